/* vec_logits.h - rows of logits, in the vector vocabulary: peaks, words above a threshold, sums of exponentials.
 *
 * A sum is added up in float over 16 vectors at most, in four accumulators, and from there on in double. An error of a
 * term, in units of 2^-24 of it: of the difference d to the top |d|, of the exponential below 8, of its way into the
 * sum at most 10. Terms with |d| > 30 do not count, for 2^32 of them are 4e-4 beside the top's own 1. That makes 48,
 * and TD_SUM_EXP_ERROR is 64. */
#ifndef TD_BACKEND_CPU_VEC_LOGITS_H
#define TD_BACKEND_CPU_VEC_LOGITS_H

#include "backend/cpu/vec_math.h"

/* NaN and +inf above all. */
INLINE vf logit_rank(vf x) {
    const vf inf = vf_set1(INFINITY);
    return vf_pick(vf_less(x, inf), x, inf);
}

static float logits_peak_of_part(const float *x, size_t n) {
    vf top = vf_set1(-INFINITY);
    for (size_t i = 0; i < n; i += LANES) {
        const uint32_t m = n - i < LANES ? (uint32_t)(n - i) : LANES;
        const vf v = m < LANES ? vf_load_n(x + i, m) : vf_load(x + i);
        top = vf_max(vf_pick(vf_first(m), logit_rank(v), top), top);
    }
    return vf_top(top);
}

static void logits_peaks(float *peak, const float *x, size_t n) {
    for (; n >= TD_PEAK_BLOCK; n -= TD_PEAK_BLOCK, x += TD_PEAK_BLOCK) {
        vf a = logit_rank(vf_load(x)), b = logit_rank(vf_load(x + LANES));
#pragma GCC unroll 8
        for (int i = 2 * LANES; i < TD_PEAK_BLOCK; i += 2 * LANES) {
            a = vf_max(logit_rank(vf_load(x + i)), a);
            b = vf_max(logit_rank(vf_load(x + i + LANES)), b);
        }
        *peak++ = vf_top(vf_max(a, b));
    }
    if (n)
        *peak = logits_peak_of_part(x, n);
}

static uint32_t logits_above(td_word *to, const float *x, uint32_t n, float under, uint32_t first) {
    const vf u = vf_set1(under);
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i += LANES) {
        const uint32_t m = n - i < LANES ? n - i : LANES;
        const vf v = m < LANES ? vf_load_n(x + i, m) : vf_load(x + i);
        for (uint32_t bits = vm_bits(vf_less(u, v)) & ((1u << m) - 1); bits; bits &= bits - 1) {
            const uint32_t at = i + (uint32_t)__builtin_ctz(bits);
            to[count++] = (td_word){x[at], (int32_t)(first + at)};
        }
    }
    return count;
}

/* exp(x/t - top), top being divided already. */
INLINE vf logits_exp(vf x, vf top, vf t) {
    return vf_exp(vf_sub(vf_div(x, t), top));
}

static float logits_sum_part(const float *x, size_t n, vf top, vf t) {
    vf sum = vf_zero();
    for (size_t i = 0; i < n; i += LANES) {
        const uint32_t m = n - i < LANES ? (uint32_t)(n - i) : LANES;
        const vf v = m < LANES ? vf_load_n(x + i, m) : vf_load(x + i);
        sum = vf_add(sum, vf_pick(vf_first(m), logits_exp(v, top, t), vf_zero()));
    }
    return vf_sum(sum);
}

static double logits_sum_exp(const float *x, size_t n, float top, float t) {
    enum { WIDE = 16 * LANES, PART = 4 * LANES };
    const vf tv = vf_set1(t), topv = vf_div(vf_set1(top), tv);
    double sum = 0;
    for (; n >= WIDE; n -= WIDE, x += WIDE) {
        vf acc[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
        for (int i = 0; i < WIDE; i += PART)
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++)
                acc[j] = vf_add(acc[j], logits_exp(vf_load(x + i + j * LANES), topv, tv));
        sum += (double)vf_sum(vf_add(vf_add(acc[0], acc[1]), vf_add(acc[2], acc[3])));
    }
    for (; n; n -= n < PART ? n : PART, x += PART)
        sum += (double)logits_sum_part(x, n < PART ? n : PART, topv, tv);
    return sum;
}

#endif
