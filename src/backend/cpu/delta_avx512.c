/* delta_avx512.c - the recurrent kernels in AVX-512. */
#include "backend/cpu/delta.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include "backend/cpu/simd_avx512.h"

#include "backend/cpu/delta_kernels.h"

const td_delta_dsp *td_delta_dsp_avx512(void) {
    return &delta_kernels;
}

#else

const td_delta_dsp *td_delta_dsp_avx512(void) {
    return NULL;
}

#endif
