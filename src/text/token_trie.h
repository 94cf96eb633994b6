/* token_trie.h - the vocabulary by the text of its tokens: what a grammar walks to find the tokens that may come next.
 *
 * Built once for a tokenizer, then immutable: any number of threads may use one. It borrows the tokenizer, which must
 * outlive it, as it must outlive the grammars made with it.
 *
 * The text of a token is the bytes it adds in the middle of a stream (td_token_bytes). Tokens flagged special and the
 * end tokens have no text here: only a grammar's token literals, and the end of the text, can ask for them. Tokens
 * that add no bytes, and ids that no token has, are in no grammar at all.
 *
 * The tokens are kept in slices, each a trie of its own. Slice 0 holds what needs a close look. The others hold "plain"
 * tokens: whole characters, none of them a control character, a double quote, a backslash or '<', the bytes at which
 * strings of JSON and of the tool formats end or escape. Where a grammar accepts any plain text of that many
 * characters, a slice is accepted as a whole, without a walk. */
#ifndef TD_TEXT_TOKEN_TRIE_H
#define TD_TEXT_TOKEN_TRIE_H

#include "base/buf.h"
#include "text/tokenizer.h"

#define TD_TRIE_MAX_TOKEN 4096 /* bytes; a token with more text is in no grammar */

enum { TD_TRIE_SLICES = 6 };

/* In the order of a walk, parents before children: node i's subtree is i up to skip. */
typedef struct td_trie_node {
    uint32_t skip;
    uint32_t tokens_end; /* its tokens are ids[nodes[i - 1].tokens_end .. tokens_end) */
    uint16_t depth;      /* bytes from the root: 1, 2, ... */
    uint8_t byte;
} td_trie_node;

typedef struct td_trie_slice {
    td_trie_node *nodes; /* [n_nodes] */
    size_t n_nodes;
    td_token *ids; /* [n_ids] by text */
    size_t n_ids;
    uint64_t *mask;     /* [n_words] of its tokens; slice 0: NULL */
    uint32_t max_chars; /* characters of its longest token at most; UINT32_MAX: no bound */
} td_trie_slice;

typedef struct td_token_trie {
    const td_tokenizer *tokenizer;
    size_t n_vocab; /* tokens a mask speaks of */
    size_t n_words; /* 64-bit words of a mask */
    td_trie_slice slices[TD_TRIE_SLICES];
    uint32_t max_depth;
    bool all_bytes; /* every byte is a token of its own, so that any text can be written */
    td_token *end_tokens;
    size_t n_end;
    uint32_t *text_offsets; /* [n_vocab + 1] into text: the bytes of each token; of special ones none */
    char *text;
} td_token_trie;

/* n_vocab: tokens (rows of the model's logits) a mask speaks of; 0: the tokenizer's own number. Tokens beyond it are
 * left out; ids beyond the tokenizer's are never allowed. end_tokens: those that end an answer, copied; ids outside the
 * vocabulary are ignored.
 * TD_E_NOMEM, TD_E_LIMIT (texts of 4 GiB). */
td_status td_token_trie_open(td_token_trie **out, const td_tokenizer *tokenizer, size_t n_vocab,
                             const td_token *end_tokens, size_t n_end, td_error *err) TD_MUST_CHECK;
void td_token_trie_close(td_token_trie **trie);

/* The text of a token as a mask knows it: *size 0 for special tokens, end tokens and strangers. */
const char *td_token_trie_text(const td_token_trie *trie, td_token id, size_t *size);
bool td_token_trie_is_end(const td_token_trie *trie, td_token id);

/* Appends the bytes a token adds in the middle of a stream (as after TD_DETOK_CONTINUE), before bytes are put together
 * to characters: half a character stays half. Special tokens have their name. TD_E_NOMEM, TD_E_LIMIT. */
td_status td_token_bytes(const td_tokenizer *tokenizer, td_token id, td_buf *out, td_error *err) TD_MUST_CHECK;

#endif
