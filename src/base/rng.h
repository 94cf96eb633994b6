/* rng.h - counter-based random numbers: a pure function of its key, so that a drafter and the trunk, at any depth and
 * in any order, see the same noise at a position.
 *
 * Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011). Key: the 64-bit
 * seed. Counter: (position, token / 4); the four words of a block serve four neighbouring tokens. */
#ifndef TD_BASE_RNG_H
#define TD_BASE_RNG_H

#include <stdint.h>

/* One Philox4x32-10 block. */
void td_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* Uniform in (0, 1): (word + 0.5) / 2^32, as a double, so neither 0 nor 1 occurs. */
double td_rng_uniform(uint64_t seed, uint64_t position, uint32_t token);

/* Standard Gumbel noise, -log(-log(u)). |noise| <= TD_GUMBEL_MAX always. */
double td_rng_gumbel(uint64_t seed, uint64_t position, uint32_t token);
#define TD_GUMBEL_MAX 22.9

/* Many at once. words: what the noise of tokens first, first + 1, ... is made of; first is a multiple of 4. gumbel_of:
 * the noise that such a word makes, with the bits of td_rng_gumbel. gumbel_below: the noise of a word that begins with
 * so many ones and no more, 0 to 32, is less than this, which grows with them. */
#define TD_RNG_WORDS 64
void td_rng_words(uint64_t seed, uint64_t position, uint32_t first, uint32_t word[TD_RNG_WORDS]);
double td_rng_gumbel_of(uint32_t word);
double td_rng_gumbel_below(int ones);

#endif
