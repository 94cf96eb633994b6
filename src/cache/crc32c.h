/* crc32c.h - CRC-32C (Castagnoli), the check of iSCSI (RFC 3720) and of many file formats: polynomial 0x1EDC6F41,
 * reflected. Tells damage, not tampering. Eight bytes a step, by tables that the caller keeps. */
#ifndef TD_CACHE_CRC32C_H
#define TD_CACHE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

typedef struct td_crc32c {
    uint32_t table[8][256];
} td_crc32c;

void td_crc32c_init(td_crc32c *t);

/* The check of what came before (0: nothing) and of these bytes. */
uint32_t td_crc32c_add(const td_crc32c *t, uint32_t crc, const void *bytes, size_t n);

#endif
