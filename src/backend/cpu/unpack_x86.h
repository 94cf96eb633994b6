/* unpack_x86.h - codes of odd widths to bytes, 32 at a time, for the AVX2 and AVX-512 levels.
 *
 * Eight codes of b bits are b bytes: a shuffle brings those of each eight into 64 bits of their own. Then halves move
 * apart three times: 4b bits to each 32, 2b bits to each 16, b bits to each 8. */
#ifndef TD_BACKEND_CPU_UNPACK_X86_H
#define TD_BACKEND_CPU_UNPACK_X86_H

/* In each `width` bits, of which the lower 2*half are in use: the upper half of those moves to the middle. */
INLINE __m256i spread_halves(__m256i v, const int width, const int half) {
    const uint64_t low = ((uint64_t)1 << half) - 1, ones = width == 64   ? 1
                                                           : width == 32 ? 0x100000001
                                                                         : 0x1000100010001;
    const __m256i keep = _mm256_set1_epi64x((long long)(low * ones));
    const __m256i move = _mm256_set1_epi64x((long long)((low << half) * ones));
    return _mm256_or_si256(_mm256_and_si256(v, keep), _mm256_slli_epi64(_mm256_and_si256(v, move), width / 2 - half));
}

/* 32 codes from 4*bits bytes; reads 16 bytes at p and at p + 2*bits. */
INLINE __m256i unpack_32(const uint8_t *p, const int bits) {
    const char b = (char)bits, z = -1;
    const __m128i apart = _mm_setr_epi8(0, 1, bits > 2 ? 2 : z, bits > 3 ? 3 : z, bits > 4 ? 4 : z, bits > 5 ? 5 : z, z,
                                        z, b, (char)(b + 1), bits > 2 ? (char)(b + 2) : z, bits > 3 ? (char)(b + 3) : z,
                                        bits > 4 ? (char)(b + 4) : z, bits > 5 ? (char)(b + 5) : z, z, z);
    __m128i first = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)p), apart);
    __m128i second = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)(p + 2 * bits)), apart);
    __m256i v = _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
    v = spread_halves(v, 64, 4 * bits);
    v = spread_halves(v, 32, 2 * bits);
    return spread_halves(v, 16, bits);
}

INLINE void unpack_bits(uint8_t *to, const uint8_t *from, uint32_t n, const int bits) {
    const uint32_t bytes = n * (uint32_t)bits / 8;
    uint32_t i = 0, at = 0;
    for (; i + 32 <= n && at + 2 * (uint32_t)bits + 16 <= bytes; i += 32, at += 4 * (uint32_t)bits)
        _mm256_storeu_si256((__m256i *)(void *)(to + i), unpack_32(from + at, bits));
    while (i < n) { /* the last loads would reach past the row */
        uint8_t part[64] = {0}, out[32];
        const uint32_t here = n - i < 32 ? n - i : 32;
        memcpy(part, from + at, here * (uint32_t)bits / 8);
        _mm256_storeu_si256((__m256i *)(void *)out, unpack_32(part, bits));
        memcpy(to + i, out, here);
        i += here;
        at += here * (uint32_t)bits / 8;
    }
}

static void unpack_x86(uint8_t *to, const uint8_t *from, uint32_t n, uint32_t bits) {
    switch (bits) {
    case 2:
        unpack_bits(to, from, n, 2);
        return;
    case 3:
        unpack_bits(to, from, n, 3);
        return;
    case 5:
        unpack_bits(to, from, n, 5);
        return;
    case 6:
        unpack_bits(to, from, n, 6);
        return;
    }
}

static void unpack_table_x86(uint8_t *to, const uint8_t *from, uint32_t n, const uint8_t table[16]) {
    const __m128i t = _mm_loadu_si128((const __m128i *)(const void *)table), nibble = _mm_set1_epi8(15);
    for (uint32_t i = 0; i < n; i += 16, from += 8) {
        __m128i raw = _mm_loadl_epi64((const __m128i *)(const void *)from);
        __m128i codes = _mm_unpacklo_epi8(_mm_and_si128(raw, nibble), _mm_and_si128(_mm_srli_epi16(raw, 4), nibble));
        _mm_storeu_si128((__m128i *)(void *)(to + i), _mm_shuffle_epi8(t, codes));
    }
}

#endif
