/* grammar_set.h - sets of characters, and the bytes that spell them.
 *
 * A set is sorted, disjoint ranges of Unicode scalar values: surrogates are in none. A compiled set is a little machine
 * over bytes: it begins in sub-state 0, and each byte of a character leads to another until the last one accepts. */
#ifndef TD_TEXT_GRAMMAR_SET_H
#define TD_TEXT_GRAMMAR_SET_H

#include "base/status.h"

#define TD_CHAR_MAX 0x10FFFFu

typedef struct td_char_range {
    uint32_t lo, hi; /* both belong to it */
} td_char_range;

/* Zeroed: empty. A failed addition leaves it failed; later calls do nothing. */
typedef struct td_char_set {
    td_char_range *v; /* [n] sorted and disjoint after td_char_set_settle */
    size_t n, capacity;
    bool failed; /* out of memory */
} td_char_set;

void td_char_set_free(td_char_set *s);
/* Adds a range, in any order, overlapping or not. */
void td_char_set_add(td_char_set *s, uint32_t lo, uint32_t hi);
void td_char_set_add_all(td_char_set *s, const td_char_set *other);
/* Sorts, joins, and takes surrogates out. Everything below expects it, and leaves it so. */
void td_char_set_settle(td_char_set *s);
/* Everything but U+0000 that was not in it. */
void td_char_set_invert(td_char_set *s);
void td_char_set_remove(td_char_set *s, uint32_t lo, uint32_t hi);
bool td_char_set_has(const td_char_set *s, uint32_t c);

/* Targets of a byte in a sub-state. */
enum { TD_SUB_DEAD = 0, TD_SUB_ACCEPT = 0xFFFF };

/* Compiled sets, one after the other: 256 targets a sub-state. */
typedef struct td_set_rows {
    uint16_t (*v)[256]; /* [n] */
    size_t n, capacity;
} td_set_rows;

#define TD_SET_MAX_SUBS 4096   /* of one set */
#define TD_SET_MAX_ROWS 20000u /* of all sets of a grammar */

/* Appends the rows of a set; *first is its sub-state 0. An empty set is one dead row. TD_E_LIMIT, TD_E_NOMEM. */
td_status td_set_rows_add(td_set_rows *rows, const td_char_set *s, uint32_t *first, td_error *err) TD_MUST_CHECK;
void td_set_rows_free(td_set_rows *rows);

#endif
