/* ref_delta.h - the operations of ref_delta.c, for the reference backend's table. */
#ifndef TD_BACKEND_REF_REF_DELTA_H
#define TD_BACKEND_REF_REF_DELTA_H

#include "backend/backend.h"

void ref_add_gated_rows(td_backend *be, float *y, const float *x, const float *g, uint32_t n, uint32_t dim);
void ref_conv(td_backend *be, const td_conv *c);
void ref_delta(td_backend *be, const td_delta *d);

#endif
