/* drafter.c - what all drafters share. */
#include "decode/drafter.h"

/* Finer towards 1, where drafts are worth most. */
uint32_t td_confidence_bin(float p) {
    static const float above[TD_CONFIDENCE_BINS - 1] = {0.1f, 0.25f, 0.45f, 0.65f, 0.8f, 0.92f, 0.98f};
    uint32_t bin = 0;
    while (bin < TD_CONFIDENCE_BINS - 1 && p >= above[bin])
        bin++;
    return bin;
}

void td_draft_begin(td_draft *b) {
    b->n_out = b->n_steps = 0;
    b->product = b->reach = 1;
    b->ended = false;
}

void td_draft_take(td_draft *b, td_token t, float p) {
    const td_draft_stop *s = b->stop;
    uint32_t i = b->n_out;
    b->n_steps++;
    if (p >= 0)
        b->product *= p;
    b->ended = s && b->product < s->min_prob;
    if (b->ended)
        return;
    b->out[i] = t;
    if (b->confidence)
        b->confidence[i] = p;
    td_history_add(b->history, t);
    b->n_out = i + 1;
    if (s)
        b->reach *= p >= 0 ? s->worth[td_confidence_bin(p)] : s->typical[i];
    b->ended = b->n_out >= b->depth || b->is_end(b->is_end_user, t) || (s && b->reach < s->least[i]);
}

bool td_draft_goes_on(const td_draft *b) {
    return !b->ended;
}

void td_draft_release(td_draft *b) {
    for (uint32_t j = 0; j < b->n_out; j++)
        td_history_remove(b->history, b->out[j]);
}

void td_drafter_close(td_drafter **d) {
    if (!d || !*d)
        return;
    (*d)->ops->close(*d);
    *d = NULL;
}
