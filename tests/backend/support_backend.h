/* support_backend.h - what the tests of backends share: levels of this machine, seeded data, matrices of every format
 * flush against the end of their memory, outputs between guards, and the error that sums in float may have. */
#ifndef TD_TESTS_SUPPORT_BACKEND_H
#define TD_TESTS_SUPPORT_BACKEND_H

#include "backend/backend.h"

/* The levels to test, TD_ISA_AUTO at the end: those that the machine has. The first call prints which, and which not.
 */
const td_isa *bt_levels(void);

/* For a program's list of tests: one a level of the architecture, skipped, and so counted, where the machine lacks the
 * level, since the other tests then say nothing about it. */
void bt_level_generic(void **state);
void bt_level_avx2(void **state);
void bt_level_avxvnni(void **state);
void bt_level_avx512(void **state);
void bt_level_neon(void **state);
void bt_level_neondot(void **state);
#if defined(__x86_64__)
#define BT_LEVEL_TESTS                                                                                                 \
    cmocka_unit_test(bt_level_generic), cmocka_unit_test(bt_level_avx2), cmocka_unit_test(bt_level_avxvnni),           \
        cmocka_unit_test(bt_level_avx512)
#elif defined(__aarch64__)
#define BT_LEVEL_TESTS                                                                                                 \
    cmocka_unit_test(bt_level_generic), cmocka_unit_test(bt_level_neon), cmocka_unit_test(bt_level_neondot)
#else
#define BT_LEVEL_TESTS cmocka_unit_test(bt_level_generic)
#endif

const char *bt_level_name(td_isa isa);
td_backend *bt_open(td_isa isa, int n_threads, bool float_activations);
td_backend *bt_open_ref(uint32_t n_in, uint32_t n_out, uint32_t head_dim);
void bt_wait(td_backend *be);

/* A small generator of its own: xorshift, seeded per case. */
typedef struct bt_rng {
    uint64_t s;
} bt_rng;
uint32_t bt_next(bt_rng *r);
float bt_uniform(bt_rng *r); /* (-1, 1) */
float bt_normal(bt_rng *r);  /* roughly: mean 0, deviation 1, bounded by 6 */
/* n floats, mostly normal, some of them large or zero, as activations are. */
void bt_fill(bt_rng *r, float *x, size_t n);

typedef struct bt_kind {
    const char *name;
    td_format format;
    unsigned bits, group;
    td_dtype scale_type;
} bt_kind;
/* One of each format and variant; name NULL at the end. */
extern const bt_kind bt_kinds[];
/* GGUF blocks, likewise. */
extern const bt_kind bt_blocks[];
/* The kind of that name, of either list. */
const bt_kind *bt_kind_named(const char *name);

/* `bytes` of whole blocks: every byte drawn, or if `fill` < 256 that, but the scales: f16 ones are of either sign and
 * no larger than 2^-7, E8M0 bytes from 2^-12 to 2^-5. */
void bt_fill_blocks(bt_rng *r, uint8_t *p, size_t bytes, td_format format, unsigned fill);

/* Random weights. data, scales and biases are odd addresses, each flush against the end of a heap block, so that the
 * address sanitizer sees a read past the row. Some scales are negative. */
typedef struct bt_matrix {
    td_matrix m;
    void *block[3];
} bt_matrix;
bt_matrix bt_matrix_new(bt_rng *r, const bt_kind *kind, uint32_t n_stack, uint32_t n_out, uint32_t n_in);
void bt_matrix_free(bt_matrix *m);

/* n floats between guard bytes; bt_guard_check fails the test when one was touched. */
typedef struct bt_guard {
    float *y;
    size_t n;
    uint8_t *block;
} bt_guard;
bt_guard bt_guard_new(size_t n);
void bt_guard_check(const bt_guard *g);
void bt_guard_free(bt_guard *g);

/* Fails with `what` and the place unless all bits agree. */
void bt_same_bits(const char *what, const float *got, const float *want, size_t n);
/* |got - want| <= tolerance, else fails with `what`. */
void bt_close(const char *what, size_t at, double got, double want, double tolerance);

#define BT_EPS 5.9604644775390625e-8 /* 2^-24, half a unit in the last place of 1 */

#endif
