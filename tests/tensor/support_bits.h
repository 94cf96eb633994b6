/* support_bits.h - an independent reader and writer of code streams, one bit at a time, straight from the format's one
 * sentence: element i occupies stream bits [i*bits, i*bits + bits), stream bit t is bit t%8 of byte t/8. */
#ifndef TD_TESTS_TENSOR_SUPPORT_BITS_H
#define TD_TESTS_TENSOR_SUPPORT_BITS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline unsigned stream_code(const uint8_t *stream, size_t i, unsigned bits) {
    unsigned code = 0;
    for (unsigned k = 0; k < bits; k++) {
        size_t t = i * bits + k;
        code |= (unsigned)(stream[t / 8] >> (t % 8) & 1) << k;
    }
    return code;
}

static inline void stream_put(uint8_t *stream, size_t i, unsigned bits, unsigned code) {
    for (unsigned k = 0; k < bits; k++) {
        size_t t = i * bits + k;
        stream[t / 8] = (uint8_t)((stream[t / 8] & ~(1u << (t % 8))) | (code >> k & 1) << (t % 8));
    }
}

static inline uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static inline float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

#endif
