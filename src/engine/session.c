/* session.c - a conversation on one sequence: runs, one after the other. */
#include "base/alloc.h"
#include "base/pool.h"
#include "engine/run.h"

struct td_session {
    td_engine *engine;
    td_seq *seq;
};

td_status td_session_open(td_session **out, td_engine *engine, td_error *err) {
    *out = NULL;
    td_session *s = td_calloc(1, sizeof *s);
    if (!s)
        return td_fail(err, TD_E_NOMEM, "out of memory for a session");
    s->engine = engine;
    td_status st = td_seq_open(&s->seq, engine->decoder, engine->info.n_ctx, err);
    if (st != TD_OK)
        td_session_close(&s);
    *out = s;
    return st;
}

void td_session_close(td_session **session) {
    if (!session || !*session)
        return;
    td_seq_close(&(*session)->seq);
    td_free(*session);
    *session = NULL;
}

void td_result_free(td_result *r) {
    if (!r)
        return;
    td_free(r->tokens);
    td_free(r->text);
    *r = (td_result){0};
}

static td_status play(td_run *r, td_result *result, td_error *err) {
    td_run_before(r);
    while (!r->seq->finish) {
        TD_TRY(td_round(r->e->decoder, &r->seq, 1, err));
        TD_TRY(td_run_after(r, err));
        if (!r->seq->finish)
            td_run_before(r);
    }
    return td_run_result(r, result, err);
}

td_status td_session_generate(td_session *session, const td_request *req, td_result *result, td_error *err) {
    *result = (td_result){0};
    td_engine *e = session->engine;
    if (atomic_flag_test_and_set(&e->busy))
        return td_fail(err, TD_E_BUSY, "the engine is generating already");
    td_task task;
    td_run run;
    td_decoder_set_prefill(e->decoder, UINT32_MAX);
    td_status st = td_task_open(&task, e, req, err);
    if (st == TD_OK) {
        st = td_run_begin(&run, e, session->seq, &task, err);
        if (st == TD_OK) {
            st = play(&run, result, err);
            td_run_end(&run);
        }
        td_task_close(&task);
    }
    td_pool_leave();
    atomic_flag_clear(&e->busy);
    return st;
}
