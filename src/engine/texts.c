/* texts.c - see texts.h. A directory has files for them, a GGUF file has metadata. */
#include "engine/texts.h"

#include "base/alloc.h"
#include "base/file.h"
#include "text/tokenizer_gguf.h"

td_status td_texts_tokenizer(td_tokenizer **out, const td_checkpoint *ck, td_error *err) {
    *out = NULL;
    if (td_checkpoint_gguf(ck))
        return td_tokenizer_from_gguf(out, td_checkpoint_gguf(ck), err);
    char *path = td_path_join(td_checkpoint_path(ck), "tokenizer.json"),
         *config = td_path_join(td_checkpoint_path(ck), "tokenizer_config.json");
    td_status st = path && config ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory");
    if (st == TD_OK)
        st = td_tokenizer_load(out, path, td_file_exists(config) ? config : NULL, err);
    td_free(path);
    td_free(config);
    return st;
}

td_status td_texts_chat(td_chat_template **out, const td_checkpoint *ck, td_error *err) {
    *out = NULL;
    if (td_checkpoint_gguf(ck))
        return td_chat_template_from_gguf(out, td_checkpoint_gguf(ck), err);
    return td_chat_template_load(out, td_checkpoint_path(ck), err);
}
