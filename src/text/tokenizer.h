/* tokenizer.h - text to token ids, by the tokenizer.json that comes with a checkpoint.
 *
 * The file is Hugging Face's: added tokens are cut out of the text, what is left is normalised, split into words, and
 * each word is merged by byte pair encoding; a template may add tokens around. A component that Tandem does not know
 * is an error that names it, never a step left out. Models: BPE. Not applied, as in every server: "truncation",
 * "padding", and the templates for pairs of texts.
 *
 * A loaded tokenizer is immutable: any number of threads may use one at the same time. */
#ifndef TD_TEXT_TOKENIZER_H
#define TD_TEXT_TOKENIZER_H

#include "base/status.h"

typedef struct td_tokenizer td_tokenizer;

/* Loads a tokenizer.json. config: the tokenizer_config.json beside it, which names the tokens of bos, eos and pad and
 * may say add_bos_token or add_eos_token; or NULL.
 * Errors, each naming the file: TD_E_NOTFOUND, TD_E_IO, TD_E_FORMAT (not JSON, or not this format), TD_E_UNSUPPORTED
 * (a component type or option that Tandem does not have), TD_E_MODEL (the file contradicts itself), TD_E_LIMIT,
 * TD_E_NOMEM. */
td_status td_tokenizer_load(td_tokenizer **out, const char *path, const char *config, td_error *err) TD_MUST_CHECK;

/* The same from memory; `name` stands for the file in messages. config may be NULL. */
td_status td_tokenizer_parse(td_tokenizer **out, const char *json, size_t json_size, const char *config,
                             size_t config_size, const char *name, td_error *err) TD_MUST_CHECK;
void td_tokenizer_close(td_tokenizer **tok);

/* ---- tokens ---- */

/* A growable list of tokens with a ceiling given at the start. A failed append leaves the list as it was. */
typedef struct td_token_list {
    td_token *ids; /* owned, [n] */
    size_t n;
    size_t capacity;
    size_t ceiling; /* tokens; one more is TD_E_LIMIT */
} td_token_list;

void td_token_list_init(td_token_list *list, size_t ceiling);
void td_token_list_free(td_token_list *list);
td_status td_token_list_push(td_token_list *list, td_token token, td_error *err) TD_MUST_CHECK;
/* The tokens, now the caller's (td_free); the list is empty. NULL when it was empty. */
td_token *td_token_list_steal(td_token_list *list);

typedef enum td_encode_flags {
    /* What the file's template puts around a text, such as <bos>. A text that already begins with those tokens (a
     * rendered chat template does) does not get them twice. */
    TD_ENCODE_ADD_SPECIAL = 1,
    /* Names of special tokens in the text become those tokens. Off for text from strangers: then no token flagged
     * special can come out of the text, except the unknown token; "<bos>" is five ordinary characters. Added tokens
     * that the file does not flag special (runs of spaces, and Qwen's <think>) are found either way. */
    TD_ENCODE_PARSE_SPECIAL = 2,
} td_encode_flags;

/* Appends the tokens of text[0..size) to `out`. NUL characters are ordinary.
 * Time: O(n log n) for any text. Memory: a few times the text, and up to 72 bytes a character of its
 * longest stretch that merges can cross.
 * Errors, after which `out` is as it was: TD_E_FORMAT (not UTF-8, at err->position), TD_E_LIMIT (more tokens than the
 * ceiling of `out`, a text above 1 GiB, or a split expression of the file that does not come to an end), TD_E_MODEL (a
 * character that neither the vocabulary nor an unknown token covers), TD_E_NOMEM. */
td_status td_tokenizer_encode(const td_tokenizer *tok, const char *text, size_t size, unsigned flags,
                              td_token_list *out, td_error *err) TD_MUST_CHECK;

/* ---- the vocabulary ---- */

/* One more than the largest id, added tokens included. Ids in between may be unused; a model may have more rows. */
size_t td_tokenizer_n_vocab(const td_tokenizer *tok);

/* The token's name as the file writes it (UTF-8, not NUL-terminated, valid while `tok` is); NULL when no token has
 * this id. For text use detok.h: a name still has its space marks and byte alphabet. */
const char *td_tokenizer_piece(const td_tokenizer *tok, td_token id, size_t *size);
/* The token of this name, added tokens included; -1 when there is none. */
td_token td_tokenizer_find(const td_tokenizer *tok, const char *piece, size_t size);
/* As the file flags it. False for ids that no token has. */
bool td_tokenizer_is_special(const td_tokenizer *tok, td_token id);
bool td_tokenizer_is_added(const td_tokenizer *tok, td_token id);

/* -1: none. Named by tokenizer_config.json (unk: by the model), so without it bos, eos and pad are -1. */
td_token td_tokenizer_bos(const td_tokenizer *tok);
td_token td_tokenizer_eos(const td_tokenizer *tok);
td_token td_tokenizer_pad(const td_tokenizer *tok);
td_token td_tokenizer_unk(const td_tokenizer *tok);

/* True when two tokenizers give every id the same name, which a drafter with its own tokenizer.json must; otherwise
 * *first is the lowest id that differs. first may be NULL. */
bool td_tokenizer_same_vocab(const td_tokenizer *a, const td_tokenizer *b, td_token *first);

#endif
