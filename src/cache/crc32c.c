/* crc32c.c - "slicing by eight" (Kounavis, Berry 2005): table k holds what a byte does to the check k bytes later. */
#include "cache/crc32c.h"

#define POLYNOMIAL 0x82F63B78u /* 0x1EDC6F41, reflected */

void td_crc32c_init(td_crc32c *t) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; bit++)
            c = c & 1 ? c >> 1 ^ POLYNOMIAL : c >> 1;
        t->table[0][i] = c;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int k = 1; k < 8; k++) {
            uint32_t before = t->table[k - 1][i];
            t->table[k][i] = before >> 8 ^ t->table[0][before & 0xFF];
        }
}

static uint32_t word(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

uint32_t td_crc32c_add(const td_crc32c *t, uint32_t crc, const void *bytes, size_t n) {
    const uint8_t *p = bytes;
    uint32_t c = ~crc;
    for (; n >= 8; n -= 8, p += 8) {
        uint32_t a = word(p) ^ c, b = word(p + 4);
        c = t->table[7][a & 0xFF] ^ t->table[6][a >> 8 & 0xFF] ^ t->table[5][a >> 16 & 0xFF] ^ t->table[4][a >> 24] ^
            t->table[3][b & 0xFF] ^ t->table[2][b >> 8 & 0xFF] ^ t->table[1][b >> 16 & 0xFF] ^ t->table[0][b >> 24];
    }
    for (; n; n--, p++)
        c = c >> 8 ^ t->table[0][(c ^ *p) & 0xFF];
    return ~c;
}
