/* route_state.c - GET /health (the process answers), /ready (it takes requests), /props (what it is).
 *
 * Health asks nothing of the model and takes no lock: a server that loads, drains or is busy is alive. */
#include <string.h>

#include "engine/engine.h"
#include "serve/server_impl.h"

static const char *state_name(int state) {
    return state == TD_SERVER_LOADING ? "loading" : state == TD_SERVER_DRAINING ? "draining" : "ok";
}

static void reply_state(td_server *s, td_exchange *x, bool must_be_ready) {
    int state = atomic_load(&s->state);
    td_buf json;
    td_buf_init(&json, 256);
    td_json_out o = td_json_out_to(&json);
    td_out_begin(&o, '{');
    td_out_member_str(&o, "status", state_name(state));
    td_out_end(&o, '}');
    td_server_reply_json(x, must_be_ready && state != TD_SERVER_READY ? 503 : 200, &json);
    td_buf_free(&json);
}

void td_route_health(void *server, td_exchange *x) {
    reply_state(server, x, false);
}

void td_route_ready(void *server, td_exchange *x) {
    reply_state(server, x, true);
}

/* ---- props ---- */

static void write_defaults(td_json_out *o, const td_server *s) {
    const td_api_defaults *d = &s->model.defaults;
    td_out_key(o, "default_generation_settings");
    td_out_begin(o, '{');
    td_out_member_int(o, "n_ctx", s->info->n_ctx);
    td_out_key(o, "params");
    td_out_begin(o, '{');
    td_out_member_real(o, "temperature", d->sampling.temperature, 6);
    td_out_member_int(o, "top_k", d->sampling.top_k);
    td_out_member_real(o, "top_p", d->sampling.top_p, 6);
    td_out_member_real(o, "min_p", d->sampling.min_p, 6);
    td_out_member_real(o, "repeat_penalty", d->sampling.repetition_penalty, 6);
    td_out_member_real(o, "presence_penalty", d->sampling.presence_penalty, 6);
    td_out_member_real(o, "frequency_penalty", d->sampling.frequency_penalty, 6);
    td_out_member_int(o, "max_tokens", d->max_tokens);
    td_out_key(o, "seed");
    if (d->has_seed)
        td_out_int(o, (int64_t)d->sampling.seed);
    else
        td_out_null(o);
    td_out_end(o, '}');
    td_out_end(o, '}');
}

static void write_mtp(td_json_out *o, const td_engine_info *i) {
    td_out_key(o, "mtp");
    td_out_begin(o, '{');
    td_out_member_bool(o, "active", i->mtp_active);
    td_out_member_str(o, "reason", i->mtp_active ? NULL : i->mtp_reason);
    td_out_member_str(o, "kind", i->mtp_kind);
    td_out_member_int(o, "depth", i->mtp_active ? i->mtp_depth : 0);
    td_out_member_int(o, "max_depth", i->mtp_active ? i->mtp_depth : 0);
    td_out_member_bool(o, "auto", i->mtp_auto);
    td_out_member_str(o, "format", i->drafter_format);
    td_out_end(o, '}');
}

static void write_model(td_json_out *o, const td_server *s) {
    const td_engine_info *i = s->info;
    td_out_member_str(o, "model", s->model.id);
    td_out_member_str(o, "model_alias", s->model.id);
    td_out_member_str(o, "model_path", i->model_path);
    td_out_member_str(o, "family", i->family);
    td_out_member_str(o, "weight_format", i->weight_format);
    td_out_member_int(o, "n_params", (int64_t)i->n_params);
    td_out_member_int(o, "n_vocab", i->n_vocab);
    td_out_member_int(o, "n_ctx", i->n_ctx);
    td_out_member_str(o, "isa", i->isa);
    td_out_member_int(o, "n_threads", i->n_threads);
    td_out_key(o, "modalities");
    td_out_begin(o, '{');
    td_out_member_bool(o, "vision", false);
    td_out_member_bool(o, "audio", false);
    td_out_end(o, '}');
}

static void write_template(td_json_out *o, const td_engine *e) {
    td_out_member_str(o, "chat_template", e->chat ? td_chat_template_source(e->chat, false) : NULL);
    td_out_member_str(o, "bos_token", e->chat ? td_chat_template_bos(e->chat) : NULL);
    td_out_member_str(o, "eos_token", e->chat ? td_chat_template_eos(e->chat) : NULL);
}

void td_route_props(void *server, td_exchange *x) {
    td_server *s = server;
    td_buf json;
    td_scheduler_stats stats;
    td_scheduler *scheduler = td_server_enter(s, x, false);
    if (!scheduler)
        return;
    td_scheduler_describe(scheduler, &stats);
    td_buf_init(&json, 8 << 20);
    td_json_out o = td_json_out_to(&json);
    td_out_begin(&o, '{');
    write_model(&o, s);
    write_mtp(&o, s->info);
    td_out_member_int(&o, "total_slots", stats.parallel);
    td_out_member_int(&o, "max_queue", stats.max_queue);
    write_defaults(&o, s);
    write_template(&o, s->model.engine);
    td_out_member_str(&o, "build_info", s->fingerprint);
    td_out_end(&o, '}');
    td_server_reply_json(x, 200, &json);
    td_buf_free(&json);
    td_server_leave(s);
}
