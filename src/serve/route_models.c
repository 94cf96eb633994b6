/* route_models.c - GET /v1/models and /v1/models/ID. */
#include <string.h>

#include "serve/server_impl.h"

static void write_model(td_json_out *o, const td_server *s) {
    td_out_begin(o, '{');
    td_out_member_str(o, "id", s->model.id);
    td_out_member_str(o, "object", "model");
    td_out_member_int(o, "created", s->created);
    td_out_member_str(o, "owned_by", "tandem");
    td_out_member_int(o, "max_model_len", s->info->n_ctx);
    td_out_key(o, "aliases");
    td_out_begin(o, '[');
    for (size_t i = 0; i < s->model.n_aliases; i++)
        td_out_str(o, s->model.aliases[i]);
    td_out_end(o, ']');
    td_out_end(o, '}');
}

void td_route_models(void *server, td_exchange *x) {
    td_server *s = server;
    td_buf json;
    if (!td_server_enter(s, x, false))
        return;
    td_buf_init(&json, 1 << 20);
    td_json_out o = td_json_out_to(&json);
    td_out_begin(&o, '{');
    td_out_member_str(&o, "object", "list");
    td_out_key(&o, "data");
    td_out_begin(&o, '[');
    write_model(&o, s);
    td_out_end(&o, ']');
    td_out_end(&o, '}');
    td_server_reply_json(x, 200, &json);
    td_buf_free(&json);
    td_server_leave(s);
}

void td_route_model(void *server, td_exchange *x) {
    td_server *s = server;
    td_fault fault;
    td_buf json;
    const char *id = td_exchange_path(x) + strlen("/v1/models/");
    if (!td_server_enter(s, x, false))
        return;
    if (*id && td_server_serves(s, id)) {
        td_buf_init(&json, 1 << 20);
        td_json_out o = td_json_out_to(&json);
        write_model(&o, s);
        td_server_reply_json(x, 200, &json);
        td_buf_free(&json);
    } else {
        td_fault_set(&fault, 404, "model_not_found", "model", "the model '%.120s' is not served here; '%.120s' is", id,
                     s->model.id);
        td_server_reply_fault(x, &fault);
    }
    td_server_leave(s);
}
