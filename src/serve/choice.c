/* choice.c - see choice.h. */
#include "serve/choice.h"

static bool is_end(const td_choice *c, td_token t) {
    for (size_t i = 0; i < c->n_end; i++)
        if (c->end[i] == t)
            return true;
    return false;
}

/* ---- events of the reply ---- */

static td_status on_event(void *user, const td_reply_event *e) {
    td_choice *c = user;
    if (c->done && e->kind != TD_REPLY_FINISH)
        return TD_OK;
    if (e->kind == TD_REPLY_REASONING)
        c->in_reasoning = true;
    else if (e->kind == TD_REPLY_CONTENT || e->kind == TD_REPLY_CALL_BEGIN)
        c->in_reasoning = false;
    if (e->kind == TD_REPLY_CALL_BEGIN)
        c->n_calls++;
    if (e->kind == TD_REPLY_CALL_END && e->complete) {
        c->n_complete++;
        c->done = c->one_call;
    }
    return td_api_delta_add_event(&c->delta, e, c->drafted);
}

td_status td_choice_open(td_choice *c, const td_choice_options *opt, td_error *err) {
    *c = (td_choice){
        .end = opt->end, .n_end = opt->n_end, .one_call = opt->one_call, .in_reasoning = opt->inside_reasoning};
    td_api_delta_init(&c->delta, opt->max_text, opt->with_spans);
    td_api_probs_init(&c->probs, opt->tokenizer, opt->with_probs, opt->legacy_probs);
    if (opt->format.think == TD_REPLY_THINK_NONE && opt->format.calls == TD_REPLY_CALLS_NONE)
        return TD_OK;
    td_reply_options reply = {.format = opt->format,
                              .inside_reasoning = opt->inside_reasoning,
                              .tools = opt->tools,
                              .id_prefix = opt->id_prefix,
                              .on_event = on_event,
                              .user = c};
    return td_reply_open(&c->reply, &reply, err);
}

void td_choice_close(td_choice *c) {
    td_reply_close(&c->reply);
    td_api_delta_free(&c->delta);
    td_api_probs_free(&c->probs);
    *c = (td_choice){0};
}

/* ---- text ---- */

static td_status no_room(td_status st, td_error *err) {
    return st == TD_OK ? TD_OK : td_fail(err, st, "the answer is too long to be held: %s", td_status_text(st));
}

static td_status take(td_choice *c, const char *text, size_t n, td_error *err) {
    if (n == 0 || c->done)
        return TD_OK;
    if (c->reply)
        return td_reply_push(c->reply, text, n, err);
    return no_room(td_api_delta_add_text(&c->delta, &c->delta.content, text, n, c->drafted), err);
}

static td_status take_token(td_choice *c, const td_piece *p, size_t i, size_t from, td_error *err) {
    const char *text = p->text + from;
    size_t n = p->text_end[i] - from;
    c->drafted = p->drafted[i];
    c->n_tokens++;
    if (p->probs && !is_end(c, p->tokens[i]))
        TD_TRY(td_api_probs_add(&c->probs, p->probs + i * (1 + p->n_logprobs), p->n_logprobs, text, n, err));
    TD_TRY(take(c, text, n, err));
    c->n_reasoning += c->in_reasoning;
    return TD_OK;
}

td_status td_choice_feed(td_choice *c, const td_piece *piece, td_error *err) {
    size_t from = 0;
    for (size_t i = 0; i < piece->n_tokens && !c->done; i++) {
        TD_TRY(take_token(c, piece, i, from, err));
        from = piece->text_end[i];
    }
    return take(c, piece->text + from, piece->n_text - from, err);
}

td_status td_choice_finish(td_choice *c, td_error *err) {
    return c->reply ? td_reply_finish(c->reply, err) : TD_OK;
}

/* A call that broke off is no reason to run anything. */
const char *td_choice_finish_reason(const td_choice *c, td_finish finish) {
    if (c->done)
        return "tool_calls";
    if (finish == TD_FINISH_LENGTH || finish == TD_FINISH_TIME)
        return "length";
    return c->n_complete > 0 ? "tool_calls" : "stop";
}
