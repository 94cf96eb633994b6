/* serve_log.h - the log of tandem serve: lines for people or JSON objects, on stderr or in a file that can be reopened
 * while the server runs. */
#ifndef TD_CLI_SERVE_LOG_H
#define TD_CLI_SERVE_LOG_H

#include "base/log.h"
#include "serve/http.h"

typedef struct td_serve_log td_serve_log;

/* path NULL: stderr. level: messages below it are dropped. TD_E_IO names the file. */
td_status td_serve_log_open(td_serve_log **out, const char *path, bool json, td_log_level level,
                            td_error *err) TD_MUST_CHECK;
void td_serve_log_close(td_serve_log **log);
/* Opens the file anew, after it has been moved away; the old one stays in use when that fails. */
void td_serve_log_reopen(td_serve_log *log);

/* Borrowed; takes messages of any thread. */
const td_log *td_serve_log_messages(td_serve_log *log);
/* A td_http_access_fn; `user` is the log. */
void td_serve_log_access(void *log, const td_http_access *entry);

#endif
