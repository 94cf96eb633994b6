/* generate.c - POST /v1/chat/completions and /v1/completions: from a body to a generation that runs. */
#include "serve/generation.h"

static td_status open_generation(td_generation **g, td_server *s, td_exchange *x, td_api_kind kind, td_fault *fault) {
    td_api_request r;
    size_t n;
    const char *body = td_exchange_body(x, &n);
    TD_TRY(td_api_request_parse(&r, kind, body, n, &s->model.defaults, fault));
    td_exchange_drop_body(x);
    if (!td_server_serves(s, r.model)) {
        td_fault_set(fault, 404, "model_not_found", "model", "the model '%.120s' is not served here; '%.120s' is",
                     r.model, s->model.id);
        td_api_request_free(&r);
        return TD_E_ARG;
    }
    return td_generation_open(g, s, x, &r, fault);
}

static void generate(td_server *s, td_exchange *x, td_api_kind kind) {
    td_fault fault;
    td_generation *g;
    td_scheduler *scheduler = td_server_enter(s, x, true);
    if (!scheduler)
        return;
    if (open_generation(&g, s, x, kind, &fault) == TD_OK)
        td_generation_start(&g, scheduler);
    else
        td_server_reply_fault(x, &fault);
    td_server_leave(s);
}

void td_route_chat(void *server, td_exchange *x) {
    generate(server, x, TD_API_CHAT);
}

void td_route_completions(void *server, td_exchange *x) {
    generate(server, x, TD_API_COMPLETION);
}
