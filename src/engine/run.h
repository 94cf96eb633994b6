/* run.h - one answer under way: from a request to text, whoever plays the rounds.
 *
 * A session plays one run after the other; a scheduler plays many in the same rounds. Tokens leave a round several at a
 * time but are looked at one by one: the first that completes a stop string ends the answer, and what the round made
 * after it is cut off, from the text, the counts and the keys. */
#ifndef TD_ENGINE_RUN_H
#define TD_ENGINE_RUN_H

#include "engine/engine.h"
#include "engine/stop.h"
#include "text/detok.h"

/* A request that is the library's own copy, checked, with its constraint compiled. */
typedef struct td_task {
    td_request req; /* everything it points at is the task's, but for `user` */
    td_constraint *constraint;
    td_logit_bias *bias; /* the request's and the model's */
} td_task;

/* Checks everything that does not depend on when it runs. Any thread. Errors as td_session_generate. */
td_status td_task_open(td_task *task, td_engine *e, const td_request *req, td_error *err) TD_MUST_CHECK;
void td_task_close(td_task *task);

typedef struct td_run {
    td_engine *e;
    td_seq *seq;
    td_task *task;
    td_stop stop;
    td_detok detok;
    uint32_t delivered; /* tokens of the sequence that on_text has seen */
    int64_t began;      /* clock */
    int64_t answering;  /* when the first round had sampled; 0: not yet */
    int64_t ended;
} td_run;

/* The sequence starts with the task's prompt; both must outlive the run. */
td_status td_run_begin(td_run *run, td_engine *e, td_seq *seq, td_task *task, td_error *err) TD_MUST_CHECK;

/* Before a round: reports on the prompt; ends the run when nobody wants it any more or its time is up. Afterwards
 * run->seq->finish tells whether it goes on. */
void td_run_before(td_run *run);

/* After a round that the sequence was in: gives out what it made. An error is the run's own (the sequence's status, or
 * a text that cannot be held). */
td_status td_run_after(td_run *run, td_error *err) TD_MUST_CHECK;

/* Ends it now. */
void td_run_cancel(td_run *run);

/* Of a run that has finished. td_result_free. */
td_status td_run_result(td_run *run, td_result *result, td_error *err) TD_MUST_CHECK;

/* Frees; the sequence keeps its tokens and keys. */
void td_run_end(td_run *run);

#endif
