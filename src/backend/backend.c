/* backend.c - what all backends share: closing, and the size of a KV element. */
#include "backend/backend.h"

size_t td_kv_type_bytes(td_kv_type type) {
    return type == TD_KV_BF16 ? 2 : 4;
}

void td_backend_close(td_backend **be) {
    if (!be || !*be)
        return;
    (*be)->ops->close(*be);
    *be = NULL;
}
