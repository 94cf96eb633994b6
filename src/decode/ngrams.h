/* ngrams.h - where a text has said the same before: an index of the n-grams of a sequence of tokens.
 *
 * The index follows a sequence as it grows, is cut, or becomes another one, and finds the most recent place where the
 * last n tokens stood, for the longest n that it knows of. It costs a constant number of steps a token and a find,
 * whatever the length of the text, and memory that is taken once. */
#ifndef TD_DECODE_NGRAMS_H
#define TD_DECODE_NGRAMS_H

#include "base/status.h"

#define TD_NGRAM_MAX 32u

typedef struct td_ngrams td_ngrams;

typedef struct td_ngrams_options {
    uint32_t n_ctx;      /* tokens indexed at most; what a text says later is not found */
    uint32_t min_match;  /* tokens that a place must share with the end of the text, 1..max_match */
    uint32_t max_match;  /* sharing more is no better; <= TD_NGRAM_MAX */
    uint32_t max_probes; /* places looked at for each of the lengths min_match, 2*min_match, ..., >= 1 */
} td_ngrams_options;

/* n_ctx 8192, matches of 2 to 8, 16 probes. */
td_ngrams_options td_ngrams_options_default(void);

/* Options in range, else TD_E_ARG. */
td_status td_ngrams_options_check(const td_ngrams_options *opt, td_error *err) TD_MUST_CHECK;

/* Bytes that an index takes. */
uint64_t td_ngrams_bytes(const td_ngrams_options *opt);

td_status td_ngrams_open(td_ngrams **out, const td_ngrams_options *opt, td_error *err) TD_MUST_CHECK;
void td_ngrams_close(td_ngrams **g);

/* The index becomes that of tokens[0..n). Their newest is not looked up yet: nothing is known to follow it. Allocates
 * nothing. */
void td_ngrams_follow(td_ngrams *g, const td_token *tokens, uint32_t n);

/* The most recent place whose tokens are the last ones of tail [n_tail], for the longest match up to max_match: returns
 * the length of the match and the position behind it, or 0. */
uint32_t td_ngrams_find(td_ngrams *g, const td_token *tail, uint32_t n_tail, uint32_t *next);

/* Entries made and taken back, and places looked at, since the index was opened. */
uint64_t td_ngrams_steps(const td_ngrams *g);

#endif
