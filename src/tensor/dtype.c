/* dtype.c - names of element types, and the scalar conversions.
 *
 * Everything is computed with integers on the bit pattern, or with float operations that are exact, so a result does
 * not depend on the compiler's flags or on whether the processor has half-precision instructions. Loops in td_to_f32
 * are written so that the compiler can vectorise the wide types; the 8-bit types only feed the reference decoder. */
#include "tensor/dtype.h"

#include <math.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "checkpoints are little endian and are read in place");

static const struct {
    const char *name;
    unsigned bits;
} dtypes[TD_DTYPE_COUNT] = {
#define TD_DTYPE_ROW(id, name, bits) [TD_DTYPE_##id] = {name, bits},
    TD_DTYPE_LIST(TD_DTYPE_ROW)
#undef TD_DTYPE_ROW
};

const char *td_dtype_name(td_dtype t) {
    return (unsigned)t < TD_DTYPE_COUNT ? dtypes[t].name : "?";
}

unsigned td_dtype_bits(td_dtype t) {
    return (unsigned)t < TD_DTYPE_COUNT ? dtypes[t].bits : 0;
}

bool td_dtype_parse(const char *name, td_dtype *out) {
    for (unsigned t = 0; t < TD_DTYPE_COUNT; t++)
        if (strcmp(name, dtypes[t].name) == 0) {
            *out = (td_dtype)t;
            return true;
        }
    return false;
}

static inline float float_of_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline uint32_t bits_of_float(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

/* The exponent moves from bias 15 to bias 127 (+112); an infinity or NaN moves twice, from 31 to 255. A subnormal is
 * its mantissa times 2^-24, which a float holds exactly. No branch: all three are computed, one is kept. */
static inline float half_to_float(uint16_t h) {
    uint32_t magnitude = h & 0x7FFFu;
    uint32_t normal = (magnitude << 13) + (112u << 23) + (magnitude >= 0x7C00 ? 112u << 23 : 0);
    uint32_t subnormal = bits_of_float((float)(int32_t)magnitude * 0x1p-24f);
    uint32_t u = magnitude < 0x0400 ? subnormal : normal;
    return float_of_bits(u | (uint32_t)(h & 0x8000u) << 16);
}

float td_f16_to_f32(uint16_t h) {
    return half_to_float(h);
}

uint16_t td_f32_to_f16(float f) {
    uint32_t u = bits_of_float(f);
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    u &= 0x7FFFFFFF;
    if (u > 0x7F800000)
        return (uint16_t)(sign | 0x7E00 | (u >> 13 & 0x3FF));
    if (u >= 0x47800000) /* 2^16 and above; 65520 and above get there by rounding below */
        return (uint16_t)(sign | 0x7C00);
    if (u < 0x38800000) { /* below 2^-14: one unit of 0.5f's last place is one subnormal step, 2^-24 */
        uint32_t steps = bits_of_float(float_of_bits(u) + 0.5f) - bits_of_float(0.5f);
        return (uint16_t)(sign | steps);
    }
    u += 0xFFF + (u >> 13 & 1) - (112u << 23);
    return (uint16_t)(sign | u >> 13);
}

float td_e4m3_to_f32(uint8_t b) {
    uint32_t sign = (uint32_t)(b & 0x80) << 24;
    uint32_t magnitude = b & 0x7F;
    if (magnitude == 0x7F)
        return float_of_bits(sign | 0x7FC00000);
    if (magnitude < 8)
        return float_of_bits(sign | bits_of_float((float)magnitude * 0x1p-9f));
    return float_of_bits(sign | ((magnitude << 20) + (120u << 23)));
}

/* E5M2 is the upper byte of a half. */
float td_e5m2_to_f32(uint8_t b) {
    return half_to_float((uint16_t)(b << 8));
}

float td_e8m0_to_f32(uint8_t b) {
    if (b == 0)
        return 0x1p-127f; /* a float subnormal: the exponent field alone cannot say it */
    return float_of_bits(b == 255 ? 0x7FC00000 : (uint32_t)b << 23);
}

float td_e2m1_to_f32(uint8_t b) {
    static const float value[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6};
    return value[b & 15];
}

static void halves_to_f32(float *dst, const uint8_t *src, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, src + 2 * i, 2);
        dst[i] = half_to_float(h);
    }
}

static void bf16s_to_f32(float *dst, const uint8_t *src, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, src + 2 * i, 2);
        dst[i] = td_bf16_to_f32(h);
    }
}

static void doubles_to_f32(float *dst, const uint8_t *src, size_t n) {
    for (size_t i = 0; i < n; i++) {
        double d;
        memcpy(&d, src + 8 * i, 8);
        dst[i] = (float)d;
    }
}

static void bytes_to_f32(float *dst, const uint8_t *src, size_t n, float (*convert)(uint8_t)) {
    for (size_t i = 0; i < n; i++)
        dst[i] = convert(src[i]);
}

bool td_to_f32(float *dst, td_dtype type, const void *src, size_t n) {
    switch (type) {
    case TD_DTYPE_F32:
        if (n)
            memcpy(dst, src, n * sizeof *dst);
        return true;
    case TD_DTYPE_F16:
        halves_to_f32(dst, src, n);
        return true;
    case TD_DTYPE_BF16:
        bf16s_to_f32(dst, src, n);
        return true;
    case TD_DTYPE_F64:
        doubles_to_f32(dst, src, n);
        return true;
    case TD_DTYPE_F8_E4M3:
        bytes_to_f32(dst, src, n, td_e4m3_to_f32);
        return true;
    case TD_DTYPE_F8_E5M2:
        bytes_to_f32(dst, src, n, td_e5m2_to_f32);
        return true;
    case TD_DTYPE_F8_E8M0:
        bytes_to_f32(dst, src, n, td_e8m0_to_f32);
        return true;
    default:
        return false;
    }
}
