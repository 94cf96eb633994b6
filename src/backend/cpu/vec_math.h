/* vec_math.h - exp, tanh and the activations, in the vector vocabulary of the simd_*.h included before.
 *
 * exp: k = round(x / ln 2), r = x - k ln 2 in two steps (ln 2 split so that the first product is exact), then
 * e^r = 1 + r + r^2 P(r) and a shift of the exponent by k. P is a minimax fit (Remez) of relative error 3e-9 on
 * |r| <= ln2/2, so what is left is rounding: about one unit in the last place. Below -87.33 the result is 0 and from
 * 88.37 on infinity, a little inside the range of floats. NaN stays NaN: the shift would carry the low bits of its
 * payload into the exponent, so whatever is not below 88.37 is added to infinity instead.
 *
 * tanh: x + x^3 P(x^2) below 0.55 (fit of relative error 1e-9), else 1 - 2/(e^2x + 1). */
#ifndef TD_BACKEND_CPU_VEC_MATH_H
#define TD_BACKEND_CPU_VEC_MATH_H

#include <math.h>

#include "backend/backend.h"

INLINE vf vf_exp(vf x) {
    const vf lowest = vf_set1(-87.33f), highest = vf_set1(88.37f), rounder = vf_set1(12582912.0f); /* 1.5 * 2^23 */
    vf c = vf_min(highest, vf_max(lowest, x));
    vf t = vf_fma(c, vf_set1(1.44269504f), rounder);
    vf k = vf_sub(t, rounder);
    vf r = vf_fma(k, vf_set1(-0.693359375f), c); /* 355/512 */
    r = vf_fma(k, vf_set1(2.12194440e-4f), r);   /* 355/512 - ln 2 */
    vf p = vf_set1(1.3814467353e-3f);
    p = vf_fma(p, r, vf_set1(8.3687802989e-3f));
    p = vf_fma(p, r, vf_set1(4.1668394193e-2f));
    p = vf_fma(p, r, vf_set1(1.6666520109e-1f));
    p = vf_fma(p, r, vf_set1(4.9999993413e-1f));
    p = vf_fma(vf_mul(r, r), p, r);
    p = vf_add(p, vf_set1(1.0f));
    vf y = vf_pick(vf_less(x, lowest), vf_zero(), vf_scale2(p, t));
    return vf_pick(vf_less(x, highest), y, vf_add(x, vf_set1(INFINITY)));
}

INLINE vf vf_tanh(vf x) {
    vf a = vf_abs(x), z = vf_mul(x, x);
    vf p = vf_set1(-6.2742455840e-3f);
    p = vf_fma(p, z, vf_set1(2.1071683720e-2f));
    p = vf_fma(p, z, vf_set1(-5.3852311170e-2f));
    p = vf_fma(p, z, vf_set1(1.3332586152e-1f));
    p = vf_fma(p, z, vf_set1(-3.3333317560e-1f));
    vf small = vf_fma(vf_mul(p, z), x, x);
    vf e = vf_exp(vf_add(a, a));
    vf large = vf_sub(vf_set1(1.0f), vf_div(vf_set1(2.0f), vf_add(e, vf_set1(1.0f))));
    return vf_pick(vf_less(a, vf_set1(0.55f)), small, vf_copysign(large, x));
}

/* x / (1 + e^-t): x times the logistic function of t. */
INLINE vf vf_gate(vf x, vf t) {
    vf e = vf_exp(vf_sub(vf_zero(), t));
    return vf_div(x, vf_add(vf_set1(1.0f), e));
}

/* 0.5 x (1 + tanh(u)) = x * logistic(2u), u = sqrt(2/pi) (x + 0.044715 x^3): the right side keeps its relative
 * accuracy where 1 + tanh cancels. */
INLINE vf vf_gelu(vf x) {
    vf c = vf_fma(vf_mul(x, x), vf_set1(0.044715f), vf_set1(1.0f));
    return vf_gate(x, vf_mul(vf_mul(x, vf_set1(1.59576912f)), c));
}

INLINE vf vf_act(vf x, const td_act act) {
    return act == TD_ACT_GELU_TANH ? vf_gelu(x) : act == TD_ACT_SILU ? vf_gate(x, x) : vf_gate(vf_set1(1.0f), x);
}

#endif
