/* rng.c - Philox4x32-10. */
#include "base/rng.h"

#include <math.h>

void td_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

static double uniform(uint32_t word) {
    return ((double)word + 0.5) * 0x1p-32;
}

double td_rng_uniform(uint64_t seed, uint64_t position, uint32_t token) {
    const uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), token / 4, 0};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t block[4];
    td_philox4x32(counter, key, block);
    return uniform(block[token % 4]);
}

double td_rng_gumbel(uint64_t seed, uint64_t position, uint32_t token) {
    return -log(-log(td_rng_uniform(seed, position, token)));
}

/* Philox of all blocks side by side, so that the compiler makes vectors of them. */
void td_rng_words(uint64_t seed, uint64_t position, uint32_t first, uint32_t word[TD_RNG_WORDS]) {
    enum { N = TD_RNG_WORDS / 4 };
    uint32_t c0[N], c1[N], c2[N], c3[N], k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (uint32_t i = 0; i < N; i++) {
        c0[i] = (uint32_t)position;
        c1[i] = (uint32_t)(position >> 32);
        c2[i] = first / 4 + i;
        c3[i] = 0;
    }
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)
        for (uint32_t i = 0; i < N; i++) {
            const uint64_t p0 = (uint64_t)0xD2511F53u * c0[i], p1 = (uint64_t)0xCD9E8D57u * c2[i];
            const uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1[i] ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3[i] ^ k1;
            c1[i] = (uint32_t)p1;
            c3[i] = (uint32_t)p0;
            c0[i] = n0;
            c2[i] = n2;
        }
    for (uint32_t i = 0; i < N; i++) {
        word[4 * i] = c0[i];
        word[4 * i + 1] = c1[i];
        word[4 * i + 2] = c2[i];
        word[4 * i + 3] = c3[i];
    }
}

double td_rng_gumbel_of(uint32_t word) {
    return -log(-log(uniform(word)));
}

/* -log u > 1 - u = (m + 1/2) / 2^32 with m = ~word, so the noise is below 32 log 2 - log(m + 1/2), and a nonzero m of z
 * leading zeros is at least 2^(31 - z), while m = 0, z = 32, makes log(m + 1/2) = -log 2: below (z + 1) log 2 in any
 * case. The rest is for roundings. */
double td_rng_gumbel_below(int ones) {
    return (ones + 1) * 0.69314718055994531 + 1e-9;
}
