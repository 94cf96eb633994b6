/* tokenizer_vocab.h - the names of tokens: id to name, name to id, and flags. Built once, then read by any thread. */
#ifndef TD_TEXT_TOKENIZER_VOCAB_H
#define TD_TEXT_TOKENIZER_VOCAB_H

#include "base/status.h"

typedef enum td_piece_flags {
    TD_PIECE_MODEL = 1, /* in the model's vocabulary: merging may arrive at it */
    TD_PIECE_ADDED = 2,
    TD_PIECE_SPECIAL = 4,
} td_piece_flags;

typedef struct td_vocab_piece {
    uint32_t offset, size; /* into the pool */
} td_vocab_piece;

typedef struct td_vocab_slot {
    uint32_t hash; /* of the name */
    int32_t id;    /* -1: free */
} td_vocab_slot;

typedef struct td_vocab {
    char *pool; /* [pool_size] all names, one after the other */
    size_t pool_size, pool_capacity;
    td_vocab_piece *pieces; /* [n] */
    uint8_t *flags;         /* [n] td_piece_flags; 0: no token has this id */
    size_t n, capacity;
    td_vocab_slot *slots; /* [n_slots] open addressing, n_slots a power of two, at most half full */
    size_t n_slots, n_used;
    size_t max_id; /* ids above it are refused, so that memory stays in proportion to the file */
} td_vocab;

void td_vocab_init(td_vocab *v, size_t max_id);
void td_vocab_free(td_vocab *v);

/* Gives `id` a name and flags (not 0). TD_E_MODEL: the name or the id is taken (the message says by what); TD_E_LIMIT:
 * the id is beyond max_id, or too many names fall on one slot, which only a crafted file does. */
td_status td_vocab_add(td_vocab *v, const char *name, size_t size, uint64_t id, uint8_t flags,
                       td_error *err) TD_MUST_CHECK;

/* -1: no such name. */
td_token td_vocab_find(const td_vocab *v, const char *name, size_t size);

static inline bool td_vocab_has(const td_vocab *v, td_token id) {
    return id >= 0 && (size_t)id < v->n && v->flags[id] != 0;
}

static inline const char *td_vocab_name(const td_vocab *v, td_token id, size_t *size) {
    *size = v->pieces[id].size;
    return v->pool + v->pieces[id].offset;
}

#endif
