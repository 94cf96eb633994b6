/* blocks.c - the reference decoder of GGUF blocks.
 *
 * One function a format, each a direct transcription of where an element's bits lie. Never tuned: the kernels are
 * tested against it. Scales are halves; every product and difference is taken in f32 in the order written, which is
 * the order in which ggml takes them (the build forbids contraction).
 *
 * Layouts, with b the block's bytes and d, m halves at the offset in brackets:
 *
 *   Q4_0    d[0] codes[2..18)                      d*(q-8); low nibbles are elements 0..15, high ones 16..31
 *   Q4_1    d[0] m[2] codes[4..20)                 d*q + m
 *   Q5_0    d[0] fifth bits[2..6) codes[6..22)     d*(q-16)
 *   Q5_1    d[0] m[2] fifth bits[4..8) codes[8..)  d*q + m
 *   Q8_0    d[0] i8[2..34)                         d*q
 *   IQ4_NL  d[0] codes[2..18)                      d*table[q]
 *   MXFP4   e[0] codes[1..17)                      2^(e-128) * table[q], the table twice E2M1
 *   NVFP4   e4m3[0..4) codes[4..36)                64 elements, a scale every 16: table[q] * (0.5*scale)
 *   Q1_0    d[0] codes[2..18)                      128 elements of one bit: d or -d
 *   Q2_0    d[0] codes[2..18)                      64 elements of two bits: (q-1)*d
 *   Q2_K .. Q6_K, IQ4_XS, IQ2_XXS, TQ1_0, TQ2_0: 256 elements, see each function */
#include "tensor/blocks.h"

#include <assert.h>

static float half_at(const uint8_t *b) {
    return td_f16_to_f32((uint16_t)(b[0] | b[1] << 8));
}

/* ---- blocks of 32 ---- */

static unsigned nibble(const uint8_t *codes, unsigned i) {
    return i < 16 ? codes[i] & 15u : codes[i - 16] >> 4;
}

static void q4_0(const uint8_t *b, float *out) {
    const float d = half_at(b);
    for (unsigned i = 0; i < 32; i++)
        out[i] = (float)((int)nibble(b + 2, i) - 8) * d;
}

static void q4_1(const uint8_t *b, float *out) {
    const float d = half_at(b), m = half_at(b + 2);
    for (unsigned i = 0; i < 32; i++)
        out[i] = (float)nibble(b + 4, i) * d + m;
}

static unsigned five_bits(const uint8_t *high, const uint8_t *codes, unsigned i) {
    return nibble(codes, i) | (unsigned)(high[i / 8] >> i % 8 & 1) << 4;
}

static void q5_0(const uint8_t *b, float *out) {
    const float d = half_at(b);
    for (unsigned i = 0; i < 32; i++)
        out[i] = (float)((int)five_bits(b + 2, b + 6, i) - 16) * d;
}

static void q5_1(const uint8_t *b, float *out) {
    const float d = half_at(b), m = half_at(b + 2);
    for (unsigned i = 0; i < 32; i++)
        out[i] = (float)five_bits(b + 4, b + 8, i) * d + m;
}

static void q8_0(const uint8_t *b, float *out) {
    const float d = half_at(b);
    for (unsigned i = 0; i < 32; i++)
        out[i] = (float)(int8_t)b[2 + i] * d;
}

static const int8_t nonlinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static void iq4_nl(const uint8_t *b, float *out) {
    const float d = half_at(b);
    for (unsigned i = 0; i < 32; i++)
        out[i] = d * (float)nonlinear[nibble(b + 2, i)];
}

static const int8_t twice_e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* Half of the scale byte's power times twice the element: the smallest power is a float subnormal. */
static void mxfp4(const uint8_t *b, float *out) {
    uint32_t bits = b[0] < 2 ? 0x00200000u << b[0] : (uint32_t)(b[0] - 1) << 23;
    float d;
    memcpy(&d, &bits, 4);
    for (unsigned i = 0; i < 32; i++)
        out[i] = (float)twice_e2m1[nibble(b + 1, i)] * d;
}

/* ---- blocks of 64 and 128 ---- */

/* A scale byte of NVFP4: four bits of exponent and three of mantissa, the top bit not read; the one code that is NaN in
 * E4M3 is 0 here. */
static float nvfp4_scale(uint8_t x) {
    const uint32_t e = x >> 3 & 15u, m = x & 7u, bits = (e + 120) << 23 | m << 20;
    float f;
    memcpy(&f, &bits, 4);
    return x == 0x7F ? 0.0f : e ? f : (float)m * 0x1p-9f;
}

static void nvfp4(const uint8_t *b, float *out) {
    for (unsigned s = 0; s < 4; s++) {
        const uint8_t *codes = b + 4 + 8 * s;
        const float d = 0.5f * nvfp4_scale(b[s]);
        for (unsigned i = 0; i < 16; i++)
            out[16 * s + i] = (float)twice_e2m1[i < 8 ? codes[i] & 15 : codes[i - 8] >> 4] * d;
    }
}

static void q1_0(const uint8_t *b, float *out) {
    const float d = half_at(b);
    for (unsigned i = 0; i < 128; i++)
        out[i] = b[2 + i / 8] >> i % 8 & 1 ? d : -d;
}

static void q2_0(const uint8_t *b, float *out) {
    const float d = half_at(b);
    for (unsigned i = 0; i < 64; i++)
        out[i] = (float)((b[2 + i / 4] >> 2 * (i % 4) & 3) - 1) * d;
}

/* ---- blocks of 256 ---- */

/* The six-bit scale and minimum of group j of eight, packed in twelve bytes. */
static void six_bit_pair(const uint8_t *s, unsigned j, unsigned *scale, unsigned *min) {
    if (j < 4) {
        *scale = s[j] & 63u;
        *min = s[j + 4] & 63u;
    } else {
        *scale = (s[j + 4] & 15u) | (unsigned)(s[j - 4] >> 6) << 4;
        *min = (unsigned)(s[j + 4] >> 4) | (unsigned)(s[j] >> 6) << 4;
    }
}

/* d[0] dmin[2] scales[4..16) codes[16..144): d*scale*q - dmin*min in groups of 32; 64 elements share 32 bytes. */
static void q4_k(const uint8_t *b, float *out) {
    const float d = half_at(b), dmin = half_at(b + 2);
    for (unsigned j = 0; j < 8; j++) {
        unsigned scale, min;
        six_bit_pair(b + 4, j, &scale, &min);
        const float s = d * (float)scale, m = dmin * (float)min;
        for (unsigned l = 0; l < 32; l++) {
            unsigned byte = b[16 + 32 * (j / 2) + l], q = j % 2 ? byte >> 4 : byte & 15u;
            out[32 * j + l] = s * (float)q - m;
        }
    }
}

/* As Q4_K, with a fifth bit of each code in [16..48), bit j of byte l, and the codes at [48..176). */
static void q5_k(const uint8_t *b, float *out) {
    const float d = half_at(b), dmin = half_at(b + 2);
    for (unsigned j = 0; j < 8; j++) {
        unsigned scale, min;
        six_bit_pair(b + 4, j, &scale, &min);
        const float s = d * (float)scale, m = dmin * (float)min;
        for (unsigned l = 0; l < 32; l++) {
            unsigned byte = b[48 + 32 * (j / 2) + l], q = j % 2 ? byte >> 4 : byte & 15u;
            q += 16u * (b[16 + l] >> j & 1u);
            out[32 * j + l] = s * (float)q - m;
        }
    }
}

/* low nibbles[0..128) two high bits[128..192) scales i8[192..208) d[208]: d*scale*(q-32) in groups of 16. */
static void q6_k(const uint8_t *b, float *out) {
    const float d = half_at(b + 208);
    for (unsigned i = 0; i < 256; i++) {
        unsigned half = i / 128, g = i % 128 / 32, l = i % 32;
        unsigned low = b[64 * half + l + 32 * (g & 1)], high = b[128 + 32 * half + l] >> 2 * g & 3u;
        int q = (int)((g < 2 ? low & 15u : low >> 4) | high << 4) - 32;
        out[i] = d * (float)(int8_t)b[192 + i / 16] * (float)q;
    }
}

/* Two-bit codes as Q2_K and Q3_K lay them: 128 elements share 32 bytes. */
static unsigned two_bits(const uint8_t *codes, unsigned i) {
    return codes[32 * (i / 128) + i % 32] >> 2 * (i % 128 / 32) & 3u;
}

/* scale and minimum nibbles[0..16) codes[16..80) d[80] dmin[82], in groups of 16. */
static void q2_k(const uint8_t *b, float *out) {
    const float d = half_at(b + 80), dmin = half_at(b + 82);
    for (unsigned i = 0; i < 256; i++) {
        const float s = d * (float)(b[i / 16] & 15), m = dmin * (float)(b[i / 16] >> 4);
        out[i] = s * (float)two_bits(b + 16, i) - m;
    }
}

/* inverted third bits[0..32) codes[32..96) six-bit scales[96..108) d[108], in groups of 16. */
static void q3_k(const uint8_t *b, float *out) {
    const float d = half_at(b + 108);
    for (unsigned i = 0; i < 256; i++) {
        unsigned k = i / 16, low = k < 8 ? b[96 + k] & 15u : b[88 + k] >> 4, high = b[104 + k % 4] >> 2 * (k / 4) & 3u;
        const float s = d * (float)((int)(low | high << 4) - 32);
        int q = (int)two_bits(b + 32, i) - (b[i % 32] >> i / 32 & 1 ? 0 : 4);
        out[i] = s * (float)q;
    }
}

/* codes[0..64) d[64]: (q-1)*d. */
static void tq2_0(const uint8_t *b, float *out) {
    const float d = half_at(b + 64);
    for (unsigned i = 0; i < 256; i++)
        out[i] = (float)((int)two_bits(b, i) - 1) * d;
}

/* Digit n of a byte that holds base-3 digits as a fraction of 256, the first digit the most significant. */
static int third(uint8_t byte, unsigned n) {
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    return (uint8_t)(byte * power[n]) * 3 >> 8;
}

/* digits[0..52) d[52]: (digit-1)*d. 32 bytes hold five digits of 32 elements each, 16 the same of 16, the last 4 four
 * of 4. */
static void tq1_0(const uint8_t *b, float *out) {
    static const struct { uint8_t from, width, digits; } runs[3] = {{0, 32, 5}, {32, 16, 5}, {48, 4, 4}};
    const float d = half_at(b + 52);
    for (unsigned r = 0; r < 3; r++)
        for (unsigned n = 0; n < runs[r].digits; n++)
            for (unsigned i = 0; i < runs[r].width; i++)
                *out++ = (float)(third(b[runs[r].from + i], n) - 1) * d;
}

/* d[0] high scale bits[2..4) low scale nibbles[4..8) codes[8..136), in groups of 32. */
static void iq4_xs(const uint8_t *b, float *out) {
    const float d = half_at(b);
    const unsigned high = b[2] | (unsigned)b[3] << 8;
    for (unsigned g = 0; g < 8; g++) {
        unsigned scale = (b[4 + g / 2] >> 4 * (g % 2) & 15u) | (high >> 2 * g & 3u) << 4;
        const float s = d * (float)((int)scale - 32);
        for (unsigned i = 0; i < 32; i++)
            out[32 * g + i] = s * (float)nonlinear[nibble(b + 8 + 16 * g, i)];
    }
}

/* Magnitudes of eight neighbours as base-3 numbers, the least significant digit first; digits 0 1 2 are 8 25 43. */
static const uint16_t grid_2xxs[256] = {
    0,    2,    4,    6,    8,    10,   12,   18,   20,   24,   26,   28,   30,   36,   42,   46,   48,   54,   56,
    62,   74,   82,   84,   90,   94,   108,  138,  150,  162,  164,  182,  218,  244,  246,  252,  262,  264,  270,
    272,  276,  288,  298,  300,  306,  318,  324,  326,  330,  342,  356,  376,  378,  388,  412,  414,  432,  462,
    480,  486,  490,  492,  498,  510,  514,  516,  522,  524,  546,  570,  594,  650,  660,  730,  732,  738,  748,
    756,  774,  786,  792,  796,  810,  816,  828,  846,  854,  864,  912,  922,  972,  978,  990,  994,  1006, 1026,
    1068, 1100, 1134, 1148, 1216, 1218, 1224, 1242, 1270, 1296, 1300, 1368, 1414, 1458, 1460, 1466, 1488, 1504, 1512,
    1514, 1564, 1572, 1620, 1622, 1702, 1704, 1710, 1728, 1742, 1782, 1810, 1830, 1926, 1950, 1962, 2010, 2136, 2188,
    2190, 2196, 2202, 2206, 2208, 2214, 2220, 2228, 2232, 2242, 2244, 2250, 2268, 2286, 2314, 2322, 2326, 2350, 2358,
    2382, 2390, 2400, 2430, 2436, 2448, 2484, 2500, 2522, 2532, 2592, 2674, 2676, 2682, 2700, 2704, 2754, 2796, 2800,
    2810, 2866, 2898, 2916, 2922, 2926, 2932, 2934, 2970, 2976, 3000, 3026, 3072, 3142, 3222, 3224, 3248, 3322, 3360,
    3402, 3412, 3418, 3450, 3510, 3570, 3648, 3654, 3672, 3696, 3726, 3766, 3822, 3852, 3888, 3892, 3978, 3980, 4026,
    4160, 4374, 4376, 4382, 4402, 4430, 4458, 4470, 4482, 4546, 4618, 4620, 4626, 4630, 4644, 4662, 4698, 4730, 4764,
    4786, 4806, 4824, 4862, 4944, 5032, 5106, 5112, 5124, 5130, 5176, 5198, 5238, 5296, 5346, 5366, 5376, 5464, 5644,
    5688, 5834, 5868, 5890, 5920, 5994, 6090, 6354, 6402};

/* Eight elements: seven sign bits, the eighth making their number even. */
static void iq2_eight(float scale, unsigned grid, unsigned signs, float *out) {
    static const float magnitude[3] = {8, 25, 43};
    signs |= (unsigned)__builtin_parity(signs) << 7;
    for (unsigned i = 0; i < 8; i++, grid /= 3) {
        float v = scale * magnitude[grid % 3];
        out[i] = signs >> i & 1 ? -v : v;
    }
}

/* d[0], then eight groups of 32: four grid bytes and a word with four times seven sign bits and a scale. */
static void iq2_xxs(const uint8_t *b, float *out) {
    const float d = half_at(b);
    for (unsigned g = 0; g < 8; g++) {
        const uint8_t *p = b + 2 + 8 * g;
        uint32_t word;
        memcpy(&word, p + 4, 4);
        const float scale = (d * (0.5f + (float)(word >> 28))) * 0.25f;
        for (unsigned l = 0; l < 4; l++)
            iq2_eight(scale, grid_2xxs[p[l]], word >> 7 * l & 127u, out + 32 * g + 8 * l);
    }
}

/* ---- the table ---- */

typedef struct block_rule {
    uint16_t elements, bytes;
    void (*decode)(const uint8_t *block, float *out);
} block_rule;

static const block_rule rules[TD_FORMAT_COUNT] = {
    [TD_FORMAT_Q4_0] = {32, 18, q4_0},         [TD_FORMAT_Q4_1] = {32, 20, q4_1},
    [TD_FORMAT_Q5_0] = {32, 22, q5_0},         [TD_FORMAT_Q5_1] = {32, 24, q5_1},
    [TD_FORMAT_Q8_0] = {32, 34, q8_0},         [TD_FORMAT_IQ4_NL] = {32, 18, iq4_nl},
    [TD_FORMAT_MXFP4_BLOCK] = {32, 17, mxfp4}, [TD_FORMAT_Q2_K] = {256, 84, q2_k},
    [TD_FORMAT_Q3_K] = {256, 110, q3_k},       [TD_FORMAT_Q4_K] = {256, 144, q4_k},
    [TD_FORMAT_Q5_K] = {256, 176, q5_k},       [TD_FORMAT_Q6_K] = {256, 210, q6_k},
    [TD_FORMAT_IQ4_XS] = {256, 136, iq4_xs},   [TD_FORMAT_IQ2_XXS] = {256, 66, iq2_xxs},
    [TD_FORMAT_NVFP4_BLOCK] = {64, 36, nvfp4}, [TD_FORMAT_TQ1_0] = {256, 54, tq1_0},
    [TD_FORMAT_TQ2_0] = {256, 66, tq2_0},      [TD_FORMAT_Q1_0] = {128, 18, q1_0},
    [TD_FORMAT_Q2_0] = {64, 18, q2_0},
};

uint32_t td_block_elements(td_format format) {
    return (unsigned)format < TD_FORMAT_COUNT ? rules[format].elements : 0;
}

uint32_t td_block_bytes(td_format format) {
    return (unsigned)format < TD_FORMAT_COUNT ? rules[format].bytes : 0;
}

void td_block_row_f32(td_format format, const uint8_t *row, size_t n, float *out) {
    const block_rule *r = &rules[format];
    assert(r->decode && n % r->elements == 0);
    for (size_t i = 0; i < n; i += r->elements, row += r->bytes)
        r->decode(row, out + i);
}
