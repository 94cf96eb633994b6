/* sampler_impl.h - what the plain way (sampler.c) and the short one (sampler_row.c) share. */
#ifndef TD_DECODE_SAMPLER_IMPL_H
#define TD_DECODE_SAMPLER_IMPL_H

#include "decode/sampler.h"
#include "decode/words.h"

struct td_sampler {
    uint32_t n_vocab;
    td_backend *be; /* NULL: the plain way only */
    td_word *items; /* [n_vocab] */
    float *peak;    /* [td_peaks(n_vocab)] with a backend */
    /* of the last draw: how many words were kept, and the value of the one drawn */
    uint32_t n_kept;
    float drawn;
    /* all of a row were kept: the row, its temperature and its largest logit; NULL: items[0..n_kept) were */
    const float *row;
    float temperature, top;
};

/* td_sample of n >= 1 logits that neither penalties nor bias change. *done stays false: it takes the plain way. */
td_status td_sample_row(td_sampler *s, const td_sampling *p, const float *logits, const td_token *candidate,
                        const uint64_t *allowed, uint32_t n, uint64_t position, bool *done, td_token *out,
                        td_error *err) TD_MUST_CHECK;
/* td_sampler_confidence where s->row was kept. */
float td_row_confidence(const td_sampler *s);

#endif
