/* delta_generic.c - the recurrent kernels in plain C. */
#include "backend/cpu/simd_generic.h"

#include "backend/cpu/delta_kernels.h"

const td_delta_dsp *td_delta_dsp_generic(void) {
    return &delta_kernels;
}
