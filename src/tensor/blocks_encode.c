/* blocks_encode.c - simple encoders of some GGUF block formats.
 *
 * Good quantised files are made by a search over scales and with the importance of each weight; these encoders exist so
 * that a synthetic model, for a test or a comparison of speed, can have any of the common formats. Q8_0 and Q4_0 have
 * one rule that everyone follows, and Q5_0 has Q4_0's. Q4_K and Q5_K take each group's range from min(0, lowest) to
 * highest, Q6_K the largest magnitude; codes are then taken with the scales as they are stored. */
#include <assert.h>
#include <math.h>

#include "tensor/blocks.h"

static void put_half(uint8_t *p, float x) {
    uint16_t h = td_f32_to_f16(x);
    p[0] = (uint8_t)h;
    p[1] = (uint8_t)(h >> 8);
}

static float stored_half(const uint8_t *p) {
    return td_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

/* round(x / step) in [lo, hi]; a step of 0 gives 0. */
static int code_of(float x, float step, int lo, int hi) {
    if (step == 0)
        return 0;
    float q = roundf(x / step);
    return q < (float)lo ? lo : q > (float)hi ? hi : (int)q;
}

static void encode_q8_0(uint8_t *b, const float *x) {
    float top = 0;
    for (unsigned i = 0; i < 32; i++)
        top = fmaxf(top, fabsf(x[i]));
    const float d = top / 127;
    put_half(b, d);
    for (unsigned i = 0; i < 32; i++)
        b[2 + i] = (uint8_t)(int8_t)code_of(x[i], d, -127, 127);
}

/* The value of largest magnitude becomes code 0, that is -half times the scale. */
static void signed_codes(uint8_t *b, uint8_t q[32], const float *x, int half) {
    float edge = 0;
    for (unsigned i = 0; i < 32; i++)
        edge = fabsf(x[i]) > fabsf(edge) ? x[i] : edge;
    const float d = edge / (float)-half, inverse = d != 0 ? 1 / d : 0;
    put_half(b, d);
    for (unsigned i = 0; i < 32; i++) {
        int code = (int)(x[i] * inverse + (float)half + 0.5f);
        q[i] = (uint8_t)(code > 2 * half - 1 ? 2 * half - 1 : code);
    }
}

static void encode_q4_0(uint8_t *b, const float *x) {
    uint8_t q[32];
    signed_codes(b, q, x, 8);
    for (unsigned i = 0; i < 16; i++)
        b[2 + i] = (uint8_t)(q[i] | q[16 + i] << 4);
}

static void encode_q5_0(uint8_t *b, const float *x) {
    uint8_t q[32];
    signed_codes(b, q, x, 16);
    memset(b + 2, 0, 4);
    for (unsigned i = 0; i < 32; i++)
        b[2 + i / 8] |= (uint8_t)(q[i] >> 4 << i % 8);
    for (unsigned i = 0; i < 16; i++)
        b[6 + i] = (uint8_t)((q[i] & 15) | (q[16 + i] & 15) << 4);
}

/* Eight six-bit scales and minima into twelve bytes, as blocks.c takes them apart. */
static void pack_six_bits(uint8_t *s, const uint8_t *scale, const uint8_t *min) {
    for (unsigned j = 0; j < 4; j++) {
        s[j] = (uint8_t)(scale[j] | scale[j + 4] >> 4 << 6);
        s[j + 4] = (uint8_t)(min[j] | min[j + 4] >> 4 << 6);
        s[j + 8] = (uint8_t)((scale[j + 4] & 15) | (min[j + 4] & 15) << 4);
    }
}

/* Scales of eight groups of 32 into the block's first 16 bytes, and codes up to `top`, one a byte. */
static void ranged_codes(uint8_t *b, uint8_t q[256], const float *x, int top) {
    float step[8], low[8], top_step = 0, top_low = 0;
    for (unsigned j = 0; j < 8; j++) {
        float lo = 0, hi = x[32 * j];
        for (unsigned l = 0; l < 32; l++) {
            lo = fminf(lo, x[32 * j + l]);
            hi = fmaxf(hi, x[32 * j + l]);
        }
        step[j] = fmaxf(hi - lo, 0) / (float)top;
        low[j] = -lo;
        top_step = fmaxf(top_step, step[j]);
        top_low = fmaxf(top_low, low[j]);
    }
    put_half(b, top_step / 63);
    put_half(b + 2, top_low / 63);
    const float d = stored_half(b), dmin = stored_half(b + 2);
    uint8_t scale[8], min[8];
    for (unsigned j = 0; j < 8; j++) {
        scale[j] = (uint8_t)code_of(step[j], d, 0, 63);
        min[j] = (uint8_t)code_of(low[j], dmin, 0, 63);
    }
    pack_six_bits(b + 4, scale, min);
    for (unsigned i = 0; i < 256; i++)
        q[i] = (uint8_t)code_of(x[i] + dmin * min[i / 32], d * scale[i / 32], 0, top);
}

/* The low nibbles of 64 elements share 32 bytes. */
static void put_nibbles(uint8_t *to, const uint8_t q[256]) {
    for (unsigned i = 0; i < 128; i++) {
        const uint8_t *two = q + 64 * (i / 32) + i % 32;
        to[i] = (uint8_t)((two[0] & 15) | (two[32] & 15) << 4);
    }
}

static void encode_q4_k(uint8_t *b, const float *x) {
    uint8_t q[256];
    ranged_codes(b, q, x, 15);
    put_nibbles(b + 16, q);
}

static void encode_q5_k(uint8_t *b, const float *x) {
    uint8_t q[256];
    ranged_codes(b, q, x, 31);
    memset(b + 16, 0, 32);
    for (unsigned i = 0; i < 256; i++)
        b[16 + i % 32] |= (uint8_t)(q[i] >> 4 << i / 32);
    put_nibbles(b + 48, q);
}

static void encode_q6_k(uint8_t *b, const float *x) {
    float edge[16], top = 0;
    for (unsigned g = 0; g < 16; g++) {
        edge[g] = 0;
        for (unsigned l = 0; l < 16; l++)
            edge[g] = fabsf(x[16 * g + l]) > fabsf(edge[g]) ? x[16 * g + l] : edge[g];
        top = fmaxf(top, fabsf(edge[g]) / 32);
    }
    put_half(b + 208, top / 127);
    const float d = stored_half(b + 208);
    memset(b, 0, 192);
    for (unsigned g = 0; g < 16; g++) /* the edge is code -32, so its sign goes into the scale */
        b[192 + g] = (uint8_t)(int8_t)code_of(edge[g] / -32, d, -127, 127);
    for (unsigned i = 0; i < 256; i++) {
        unsigned half = i / 128, part = i % 128 / 32, l = i % 32;
        unsigned q = (unsigned)(code_of(x[i], d * (float)(int8_t)b[192 + i / 16], -32, 31) + 32);
        b[64 * half + l + 32 * (part & 1)] |= (uint8_t)((q & 15) << (part < 2 ? 0 : 4));
        b[128 + 32 * half + l] |= (uint8_t)(q >> 4 << 2 * part);
    }
}

static void (*encoder_of(td_format format))(uint8_t *, const float *) {
    switch (format) {
    case TD_FORMAT_Q4_0:
        return encode_q4_0;
    case TD_FORMAT_Q5_0:
        return encode_q5_0;
    case TD_FORMAT_Q8_0:
        return encode_q8_0;
    case TD_FORMAT_Q4_K:
        return encode_q4_k;
    case TD_FORMAT_Q5_K:
        return encode_q5_k;
    case TD_FORMAT_Q6_K:
        return encode_q6_k;
    default:
        return NULL;
    }
}

bool td_block_encodes(td_format format) {
    return encoder_of(format) != NULL;
}

void td_block_encode(td_format format, uint8_t *row, const float *x, size_t n) {
    void (*encode)(uint8_t *, const float *) = encoder_of(format);
    const uint32_t elements = td_block_elements(format), bytes = td_block_bytes(format);
    assert(encode && n % elements == 0);
    for (size_t i = 0; i < n; i += elements, row += bytes)
        encode(row, x + i);
}
