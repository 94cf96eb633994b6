/* reply_message.c - events added up. */
#include "text/reply_message.h"

#include "base/alloc.h"

void td_reply_message_init(td_reply_message *m, size_t ceiling) {
    *m = (td_reply_message){.ceiling = ceiling};
    td_buf_init(&m->reasoning, ceiling);
    td_buf_init(&m->content, ceiling);
}

void td_reply_message_free(td_reply_message *m) {
    for (size_t i = 0; i < m->n_calls; i++) {
        td_free(m->calls[i].id);
        td_free(m->calls[i].name);
        td_buf_free(&m->calls[i].arguments);
    }
    td_free(m->calls);
    td_buf_free(&m->reasoning);
    td_buf_free(&m->content);
    td_reply_message_init(m, m->ceiling);
}

static td_status reserve(td_reply_message *m) {
    if (m->n_calls < m->capacity)
        return TD_OK;
    size_t capacity = m->capacity ? 2 * m->capacity : 4;
    td_reply_call *calls = td_realloc(m->calls, capacity, sizeof *calls);
    if (!calls)
        return TD_E_NOMEM;
    m->calls = calls;
    m->capacity = capacity;
    return TD_OK;
}

static td_status begin(td_reply_message *m, const td_reply_event *e) {
    TD_TRY(reserve(m));
    td_reply_call *c = &m->calls[m->n_calls++];
    *c = (td_reply_call){.id = td_strdup(e->id), .name = td_strdup(e->name)};
    td_buf_init(&c->arguments, m->ceiling);
    return c->id && c->name ? TD_OK : TD_E_NOMEM;
}

td_status td_reply_message_event(void *message, const td_reply_event *e) {
    td_reply_message *m = message;
    td_reply_call *last = m->n_calls ? &m->calls[m->n_calls - 1] : NULL;
    switch (e->kind) {
    case TD_REPLY_REASONING:
        return td_buf_append(&m->reasoning, e->text, e->size);
    case TD_REPLY_CONTENT:
        return td_buf_append(&m->content, e->text, e->size);
    case TD_REPLY_CALL_BEGIN:
        return begin(m, e);
    case TD_REPLY_CALL_ARGUMENTS:
        return td_buf_append(&last->arguments, e->text, e->size);
    case TD_REPLY_CALL_END:
        last->complete = e->complete;
        if (e->fault)
            last->fault = *e->fault;
        return TD_OK;
    case TD_REPLY_FINISH:
        m->n_incomplete = e->n_incomplete;
        m->in_reasoning = e->in_reasoning;
        m->finished = true;
    }
    return TD_OK;
}
