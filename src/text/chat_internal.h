/* chat_internal.h - shared by the files of chat.h. */
#ifndef TD_TEXT_CHAT_INTERNAL_H
#define TD_TEXT_CHAT_INTERNAL_H

#include "text/chat.h"

typedef struct td_chat_variant {
    td_jinja *jinja;
    char *source; /* owned */
    td_chat_traits traits;
} td_chat_variant;

struct td_chat_template {
    td_chat_variant plain;
    td_chat_variant with_tools; /* jinja NULL: `plain` serves both */
    json_t *special;            /* {"bos_token": text, ...} */
};

/* chat_load.c: the texts of a checkpoint, before they are compiled. Owned by the caller: td_chat_files_free. */
typedef struct td_chat_files {
    char *name;   /* path of the file it was found in */
    char *source; /* NULL: none */
    size_t size;
    char *tool_source; /* NULL: none */
    size_t tool_size;
    json_t *special;
} td_chat_files;

td_status td_chat_files_read(td_chat_files *files, const char *dir, td_error *err);
void td_chat_files_free(td_chat_files *files);

/* chat_messages.c: one level of an object or array; NULL: out of memory. (json_copy can lose members then, silently.)
 */
json_t *td_chat_copy(const json_t *value);

/* chat_messages.c: a new array in the form the traits ask for; *out is the caller's (json_decref). */
td_status td_chat_messages_normalise(const json_t *messages, const td_chat_traits *traits, json_t **out, td_error *err);

#endif
