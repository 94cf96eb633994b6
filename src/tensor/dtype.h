/* dtype.h - element types as safetensors names them, and scalar conversions to and from float.
 *
 * Source: safetensors format; OCP OFP8 for E4M3/E5M2; OCP MX for E2M1 and E8M0. */
#ifndef TD_TENSOR_DTYPE_H
#define TD_TENSOR_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* X(enum suffix, safetensors name, bits) */
#define TD_DTYPE_LIST(X)                                                                                               \
    X(BOOL, "BOOL", 8)                                                                                                 \
    X(U8, "U8", 8)                                                                                                     \
    X(I8, "I8", 8)                                                                                                     \
    X(U16, "U16", 16)                                                                                                  \
    X(I16, "I16", 16)                                                                                                  \
    X(U32, "U32", 32)                                                                                                  \
    X(I32, "I32", 32)                                                                                                  \
    X(U64, "U64", 64)                                                                                                  \
    X(I64, "I64", 64)                                                                                                  \
    X(F16, "F16", 16)                                                                                                  \
    X(BF16, "BF16", 16)                                                                                                \
    X(F32, "F32", 32)                                                                                                  \
    X(F64, "F64", 64)                                                                                                  \
    X(C64, "C64", 64)                                                                                                  \
    X(F8_E4M3, "F8_E4M3", 8)                                                                                           \
    X(F8_E5M2, "F8_E5M2", 8)                                                                                           \
    X(F8_E4M3FNUZ, "F8_E4M3FNUZ", 8)                                                                                   \
    X(F8_E5M2FNUZ, "F8_E5M2FNUZ", 8)                                                                                   \
    X(F8_E8M0, "F8_E8M0", 8)                                                                                           \
    X(F6_E2M3, "F6_E2M3", 6)                                                                                           \
    X(F6_E3M2, "F6_E3M2", 6)                                                                                           \
    X(F4, "F4", 4)

typedef enum td_dtype {
#define TD_DTYPE_ENUM(id, name, bits) TD_DTYPE_##id,
    TD_DTYPE_LIST(TD_DTYPE_ENUM)
#undef TD_DTYPE_ENUM
        TD_DTYPE_COUNT,
    TD_DTYPE_BLOCKS = TD_DTYPE_COUNT /* no element type: a tensor of GGUF blocks, whose td_format says the rest */
} td_dtype;

/* "BF16", ... ; "?" for a value out of range. */
const char *td_dtype_name(td_dtype t);
unsigned td_dtype_bits(td_dtype t);
/* False when no such name. */
bool td_dtype_parse(const char *name, td_dtype *out);

static inline float td_bf16_to_f32(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* Round to nearest even; NaN stays a (quiet) NaN. */
static inline uint16_t td_f32_to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

float td_f16_to_f32(uint16_t h);
uint16_t td_f32_to_f16(float f); /* nearest even, overflow to infinity */
float td_e4m3_to_f32(uint8_t b); /* E4M3FN: 0x7F and 0xFF are NaN */
float td_e5m2_to_f32(uint8_t b);
float td_e8m0_to_f32(uint8_t b); /* 2^(b-127); 255 is NaN */
float td_e2m1_to_f32(uint8_t b); /* low 4 bits */

/* n elements of a float-like type (F32, F16, BF16, F64, F8_E4M3, F8_E5M2, F8_E8M0) to float; src may be unaligned.
 * False for any other type. */
bool td_to_f32(float *dst, td_dtype type, const void *src, size_t n);

#endif
