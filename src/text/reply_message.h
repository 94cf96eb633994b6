/* reply_message.h - a whole answer, gathered from the events of a reply: what a server that does not stream, a
 * terminal, and the tests want. One way of parsing makes both, so a stream always adds up to the message. */
#ifndef TD_TEXT_REPLY_MESSAGE_H
#define TD_TEXT_REPLY_MESSAGE_H

#include "base/buf.h"
#include "text/reply.h"

typedef struct td_reply_call {
    char *id, *name;  /* owned */
    td_buf arguments; /* JSON; a beginning of JSON when not complete */
    bool complete;
    td_error fault; /* when not complete */
} td_reply_call;

typedef struct td_reply_message {
    td_buf reasoning, content;
    td_reply_call *calls; /* [n_calls] */
    size_t n_calls, capacity;
    size_t ceiling; /* bytes of each text */
    uint32_t n_incomplete;
    bool in_reasoning; /* the text ended inside the thoughts */
    bool finished;
} td_reply_message;

void td_reply_message_init(td_reply_message *m, size_t ceiling);
void td_reply_message_free(td_reply_message *m);

/* For td_reply_options.on_event, with the message as `user`. TD_E_NOMEM, TD_E_LIMIT: over the ceiling. */
td_status td_reply_message_event(void *message, const td_reply_event *event);

#endif
