/* hub_digest.h - the two checksums that the hub names its files by, taken while the bytes pass.
 *
 * Source: FIPS 180-4 (SHA-1, SHA-256). SHA-1 serves only to recognise a git object whose name is given: it says that a
 * download is whole, not that nobody has tampered with it (that is for TLS). */
#ifndef TD_FORMAT_HUB_DIGEST_H
#define TD_FORMAT_HUB_DIGEST_H

#include <stddef.h>
#include <stdint.h>

typedef enum td_hub_digest_kind { TD_HUB_SHA1, TD_HUB_SHA256 } td_hub_digest_kind;

typedef struct td_hub_digest {
    td_hub_digest_kind kind;
    uint32_t h[8];
    uint64_t n_bytes;
    uint8_t block[64]; /* the last n_bytes % 64 bytes */
} td_hub_digest;

#define TD_HUB_DIGEST_TEXT_SIZE 65 /* 64 hex digits (40 for SHA-1) and a NUL */

void td_hub_digest_init(td_hub_digest *d, td_hub_digest_kind kind);
void td_hub_digest_add(td_hub_digest *d, const void *bytes, size_t n);
/* Lower-case hex digits of everything added; `d` must be initialised again before more is added. */
void td_hub_digest_text(td_hub_digest *d, char out[TD_HUB_DIGEST_TEXT_SIZE]);

#endif
