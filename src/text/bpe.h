/* bpe.h - byte pair encoding of one word: its characters, merged pair by pair in the order of the merge list.
 *
 * Sennrich, Haddow, Birch: "Neural Machine Translation of Rare Words with Subword Units" (2016), with the options of
 * tokenizer.json's "BPE" model. A word may be a whole book: the time is O(n log n). */
#ifndef TD_TEXT_BPE_H
#define TD_TEXT_BPE_H

#include "text/tokenizer.h"
#include "text/tokenizer_vocab.h"

typedef struct td_bpe td_bpe;

typedef struct td_bpe_options {
    bool byte_fallback; /* a character that is no token becomes the tokens <0xHH> of its bytes */
    bool fuse_unk;      /* neighbouring unknown characters are one unknown token */
    bool ignore_merges; /* a word that is a token is that token */
    td_token unk;       /* -1: an unknown character is left out, as in the reference implementation */
} td_bpe_options;

/* Starts an encoder over a complete vocabulary, which must outlive it. n_merges: how many will come, or a guess. */
td_status td_bpe_new(td_bpe **out, const td_vocab *vocab, size_t n_merges, td_error *err) TD_MUST_CHECK;
void td_bpe_free(td_bpe **bpe);

/* Adds the next merge of the list: the words of its two parts, which lie one behind the other in pair[0..left+right).
 * TD_E_MODEL: a part, or the two together, is not in the vocabulary. */
td_status td_bpe_add_merge(td_bpe *bpe, const char *pair, size_t left, size_t right, td_error *err) TD_MUST_CHECK;

/* After the last merge. */
void td_bpe_finish(td_bpe *bpe, td_bpe_options options);

/* Scratch memory, one a thread; a zeroed one is ready. */
typedef struct td_bpe_work {
    struct td_bpe_symbol *symbols; /* [capacity] */
    uint64_t *heap;                /* [2 * capacity] */
    size_t capacity;
} td_bpe_work;

void td_bpe_work_free(td_bpe_work *w);

/* Appends the tokens of word[0..size), valid UTF-8, size > 0. special false: no merge and no whole word gives a token
 * flagged special. TD_E_LIMIT: the list's ceiling; TD_E_NOMEM. */
td_status td_bpe_encode(const td_bpe *bpe, td_bpe_work *work, const char *word, size_t size, bool special,
                        td_token_list *out, td_error *err) TD_MUST_CHECK;

#endif
