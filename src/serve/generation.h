/* generation.h - a generation under way: one exchange, its prompts, and n answers to each, joined to one response.
 *
 * Each answer is a request of the scheduler, whose thread makes every callback; they append to buffers and write to
 * the exchange, which never waits for the client. The thread that started the generation meets the scheduler's in one
 * place: `lock` guards `phase` and what streams have to say before the stream is open, because answers may begin, and
 * end, while later ones are still being submitted. So a generation that fails before its stream is open, at once or
 * in the scheduler, gets a proper HTTP status.
 *
 * It is counted: one reference for who starts it, one for each answer that has been submitted. */
#ifndef TD_SERVE_GENERATION_H
#define TD_SERVE_GENERATION_H

#include "serve/prompt.h"
#include "serve/response.h"
#include "serve/server_impl.h"

typedef struct td_generation td_generation;

/* Takes `request` over (and frees it, on failure too) and holds the exchange. Prompts are read here, nothing runs
 * yet. On failure *out is NULL and *fault says why. */
td_status td_generation_open(td_generation **out, td_server *s, td_exchange *x, td_api_request *request,
                             td_fault *fault) TD_MUST_CHECK;
/* Submits every answer and sees to the reply, whatever happens; *g is no longer the caller's. */
void td_generation_start(td_generation **g, td_scheduler *scheduler);
void td_generation_release(td_generation **g);

/* Who a request is done for, as far as fairness goes: a user's name, else a key, else an address. */
uint64_t td_generation_owner(const char *user, const char *key, const char *peer);

#endif
