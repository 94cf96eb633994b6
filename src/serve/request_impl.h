/* request_impl.h - the parts of request.h's reader, a file each. All fill f->fault on failure. */
#ifndef TD_SERVE_REQUEST_IMPL_H
#define TD_SERVE_REQUEST_IMPL_H

#include "serve/fields.h"
#include "serve/request.h"

/* request_sampling.c: how tokens are drawn, and what ends an answer. */
td_status td_api_read_sampling(td_api_request *r, const td_fields *f, const td_api_defaults *d);
td_status td_api_read_stop(td_api_request *r, const td_fields *f, const td_api_defaults *d);
/* request_format.c: response_format and grammar. */
td_status td_api_read_format(td_api_request *r, const td_fields *f);
/* request_tools.c: tools, tool_choice, parallel_tool_calls. After the format, with which a forced call collides. */
td_status td_api_read_tools(td_api_request *r, const td_fields *f);
/* request_messages.c: messages of a chat. */
td_status td_api_check_messages(const td_api_request *r, const td_fields *f);
/* request_prompt.c: the prompts of a completion. */
td_status td_api_check_prompt(td_api_request *r, const td_fields *f, const td_api_defaults *d);
/* request_refused.c: members that are known and not done. */
td_status td_api_refuse(td_api_kind kind, const td_fields *f);

#endif
