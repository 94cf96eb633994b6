/* delta_avx2.c - the recurrent kernels in AVX2 with FMA. */
#include "backend/cpu/delta.h"

#if defined(__AVX2__) && defined(__FMA__)
#include "backend/cpu/simd_avx2.h"

#include "backend/cpu/delta_kernels.h"

const td_delta_dsp *td_delta_dsp_avx2(void) {
    return &delta_kernels;
}

#else

const td_delta_dsp *td_delta_dsp_avx2(void) {
    return NULL;
}

#endif
