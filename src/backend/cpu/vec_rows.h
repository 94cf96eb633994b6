/* vec_rows.h - norms, activations, elements and conversions, in the vector vocabulary.
 *
 * Where the last vector of a row is not full, its lanes are loaded with zeros behind them and go through the same
 * instructions, so an element's bits do not depend on where it stands. */
#ifndef TD_BACKEND_CPU_VEC_ROWS_H
#define TD_BACKEND_CPU_VEC_ROWS_H

#include "backend/cpu/vec_logits.h"

/* Runs `body` for i = 0, LANES, 2*LANES, ... with `m` lanes in use. GET and PUT are full-width but for the end. */
#define GET(p) (m == LANES ? vf_load((p) + i) : vf_load_n((p) + i, m))
#define PUT(p, v)                                                                                                      \
    do {                                                                                                               \
        if (m == LANES)                                                                                                \
            vf_store((p) + i, v);                                                                                      \
        else                                                                                                           \
            vf_store_n((p) + i, v, m);                                                                                 \
    } while (0)
#define EACH_VECTOR(n) for (size_t i = 0, m; i < (n) && (m = (n)-i < LANES ? (n)-i : LANES, true); i += LANES)

/* Four accumulators in turn, added pairwise. */
static float rows_sum_squares(const float *x, uint32_t n) {
    vf acc[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    uint32_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            vf v = vf_load(x + i + j * LANES);
            acc[j] = vf_fma(v, v, acc[j]);
        }
    for (; i < n; i += LANES) {
        vf v = n - i < LANES ? vf_load_n(x + i, n - i) : vf_load(x + i);
        acc[0] = vf_fma(v, v, acc[0]);
    }
    return vf_sum(vf_add(vf_add(acc[0], acc[1]), vf_add(acc[2], acc[3])));
}

static void rows_norm(float *y, const float *x, const float *w, float k, uint32_t n) {
    const vf kv = vf_set1(k);
    EACH_VECTOR(n) {
        vf v = vf_mul(GET(x), kv);
        PUT(y, w ? vf_mul(v, GET(w)) : v);
    }
}

static void rows_add_norm(float *y, const float *x, const float *w, float k, float scale, uint32_t n) {
    const vf kv = vf_set1(k), one = vf_set1(1.0f), sv = vf_set1(scale);
    EACH_VECTOR(n) {
        vf v = vf_mul(GET(x), kv);
        v = vf_fma(v, w ? GET(w) : one, GET(y));
        PUT(y, vf_mul(v, sv));
    }
}

INLINE void gated_as(float *y, const float *a, const float *b, uint32_t n, const td_act act) {
    EACH_VECTOR(n) {
        vf v = vf_mul(vf_act(GET(a), act), GET(b));
        PUT(y, v);
    }
}

static void rows_gated(float *y, const float *a, const float *b, uint32_t n, td_act act) {
    switch (act) {
    case TD_ACT_GELU_TANH:
        gated_as(y, a, b, n, TD_ACT_GELU_TANH);
        return;
    case TD_ACT_SILU:
        gated_as(y, a, b, n, TD_ACT_SILU);
        return;
    case TD_ACT_SIGMOID:
        gated_as(y, a, b, n, TD_ACT_SIGMOID);
        return;
    }
}

static void rows_softcap(float *x, size_t n, float cap) {
    const vf c = vf_set1(cap);
    EACH_VECTOR(n) {
        vf v = vf_mul(c, vf_tanh(vf_div(GET(x), c)));
        PUT(x, v);
    }
}

static void rows_add(float *y, const float *a, const float *b, size_t n, float scale) {
    const vf s = vf_set1(scale);
    EACH_VECTOR(n) {
        vf v = vf_mul(vf_add(GET(a), GET(b)), s);
        PUT(y, v);
    }
}

static void rows_scale(float *x, const float *w, uint32_t n, float scale) {
    const vf s = vf_set1(scale);
    EACH_VECTOR(n) {
        vf v = vf_mul(GET(x), w ? vf_mul(s, GET(w)) : s);
        PUT(x, v);
    }
}

static void rows_axpy(float *y, const float *x, float a, uint32_t n, bool first) {
    const vf av = vf_set1(a);
    EACH_VECTOR(n) {
        vf v = first ? vf_mul(av, GET(x)) : vf_fma(av, GET(x), GET(y));
        PUT(y, v);
    }
}

static void rows_rotate(float *x, float *x2, const float *cosine, const float *sine, uint32_t n) {
    EACH_VECTOR(n) {
        vf a = GET(x), b = GET(x2), c = GET(cosine), s = GET(sine), zero = vf_zero();
        vf as = vf_mul(a, s), bs = vf_mul(b, s);
        PUT(x, vf_fma(a, c, vf_sub(zero, bs)));
        PUT(x2, vf_fma(b, c, as));
    }
}

static void rows_load_f32(float *to, const void *from, size_t n) {
    memcpy(to, from, n * sizeof *to);
}

static void rows_load_bf16(float *to, const void *from, size_t n) {
    const uint8_t *p = from;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        vf_store(to + i, vf_load_bf16(p + 2 * i));
    for (; i < n; i++) {
        uint16_t h;
        memcpy(&h, p + 2 * i, 2);
        to[i] = td_bf16_to_f32(h);
    }
}

static void rows_load_f16(float *to, const void *from, size_t n) {
    const uint8_t *p = from;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        vf_store(to + i, vf_load_f16(p + 2 * i));
    if (i < n) {
        uint16_t part[LANES] = {0};
        memcpy(part, p + 2 * i, (n - i) * 2);
        vf_store_n(to + i, vf_load_f16(part), (uint32_t)(n - i));
    }
}

static void rows_load_e4m3(float *to, const void *from, size_t n) {
    const uint8_t *p = from;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        vf_store(to + i, vf_load_e4m3(p + i));
    if (i < n) {
        uint8_t part[LANES] = {0};
        memcpy(part, p + i, n - i);
        vf_store_n(to + i, vf_load_e4m3(part), (uint32_t)(n - i));
    }
}

static void rows_scale_groups(float *x, const float *s, uint32_t n, uint32_t group) {
    for (uint32_t g = 0; g < n / group; g++, x += group)
        for (uint32_t i = 0; i < group; i += LANES)
            vf_store(x + i, vf_mul(vf_load(x + i), vf_set1(s[g])));
}

static void rows_store_bf16(void *to, const float *from, size_t n) {
    uint8_t *p = to;
    for (size_t i = 0; i < n; i++) {
        uint16_t h = td_f32_to_bf16(from[i]);
        memcpy(p + 2 * i, &h, 2);
    }
}

/* The slots of the table that are written in the vector vocabulary. */
static void fill_vector_slots(td_dsp *d) {
    d->lanes = LANES;
    d->dot_f32 = dot_F32;
    d->dot_bf16 = dot_BF16;
    d->dot_f16 = dot_F16;
    d->load_f32 = rows_load_f32;
    d->load_bf16 = rows_load_bf16;
    d->load_f16 = rows_load_f16;
    d->load_e4m3 = rows_load_e4m3;
    d->scale_groups = rows_scale_groups;
    d->store_bf16 = rows_store_bf16;
    d->score = attention_score;
    d->softmax = attention_softmax;
    d->mix = attention_mix;
    d->fold = attention_fold;
    d->sum_squares = rows_sum_squares;
    d->norm = rows_norm;
    d->add_norm = rows_add_norm;
    d->gated = rows_gated;
    d->softcap = rows_softcap;
    d->add = rows_add;
    d->scale = rows_scale;
    d->axpy = rows_axpy;
    d->rotate = rows_rotate;
    d->peaks = logits_peaks;
    d->above = logits_above;
    d->sum_exp = logits_sum_exp;
}

#endif
