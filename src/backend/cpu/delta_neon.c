/* delta_neon.c - the recurrent kernels in NEON. */
#include "backend/cpu/delta.h"

#if defined(__aarch64__) && defined(__ARM_NEON)
#include "backend/cpu/simd_neon.h"

#include "backend/cpu/delta_kernels.h"

const td_delta_dsp *td_delta_dsp_neon(void) {
    return &delta_kernels;
}

#else

const td_delta_dsp *td_delta_dsp_neon(void) {
    return NULL;
}

#endif
