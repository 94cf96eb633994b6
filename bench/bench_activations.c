/* bench_activations.c - what activations in int8 change.
 *
 *     bench_activations TRUNK [TEXTS [TOKENS]]
 *
 * The model writes TEXTS texts (default 8) of TOKENS tokens (default 256) at temperature 1, with float activations.
 * Beside it the same weights see the same tokens with activations in int8. Prints the mean and the largest divergence
 * KL(float || int8) of their next-token distributions, in nats, and how often their likeliest tokens agree. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "cache/kv.h"

#define FIRST_TOKEN 2 /* <bos> of Gemma; any start will do */

typedef struct side {
    td_backend *be;
    td_model *m;
    td_kv_pool *pool;
    td_kv_seq *seq;
    float *hidden, *logits;
} side;

static void die(const td_error *err) {
    fprintf(stderr, "bench_activations: %s\n", err->message);
    exit(1);
}

static side open_side(td_checkpoint *ck, bool float_activations, uint32_t n) {
    td_error err;
    side s;
    td_model_options o = td_model_options_default();
    o.max_rows = o.max_out = o.max_logits = 1;
    if (td_backend_cpu_open(&s.be, &(td_cpu_options){.float_activations = float_activations}, &err) != TD_OK ||
        td_model_open(&s.m, ck, s.be, &o, &err) != TD_OK ||
        td_kv_pool_open(&s.pool, &s.m->kv, s.be, 0, &err) != TD_OK ||
        td_kv_seq_open(&s.seq, s.pool, n, 0, &err) != TD_OK)
        die(&err);
    s.hidden = td_malloc_aligned(s.m->info.n_embd * sizeof(float));
    s.logits = td_malloc_aligned(s.m->info.n_vocab * sizeof(float));
    return s;
}

static void close_side(side *s) {
    td_free_aligned(s->hidden);
    td_free_aligned(s->logits);
    td_kv_seq_close(&s->seq);
    td_kv_pool_close(&s->pool);
    td_model_close(&s->m);
    td_backend_close(&s->be);
}

/* Logits behind the token at position pos. */
static void step(side *s, td_token token, int32_t pos) {
    td_error err;
    const int32_t n_keys = pos + 1, zero = 0;
    const uint32_t sure = 1, seq = 0;
    td_kv_pages tables[TD_KV_MAX_GROUPS];
    td_pass p = {.n_rows = 1,
                 .token = &token,
                 .pos = &pos,
                 .row_seq = &seq,
                 .n_seq = 1,
                 .n_keys = &n_keys,
                 .n_sure = &sure,
                 .n_out = 1,
                 .out_row = &zero,
                 .hidden = s->hidden,
                 .n_logits = 1,
                 .logits_out = &zero,
                 .logits = s->logits};
    if (td_kv_seq_reserve(s->seq, 1, &err) != TD_OK)
        die(&err);
    for (uint32_t g = 0; g < s->m->kv.n_groups; g++) {
        tables[g] = td_kv_seq_pages(s->seq, g);
        p.pages[g] = &tables[g];
    }
    if (td_model_forward(s->m, &p, &err) != TD_OK)
        die(&err);
    td_kv_seq_set_length(s->seq, (uint32_t)pos + 1);
}

static uint32_t best(const float *x, uint32_t n) {
    uint32_t b = 0;
    for (uint32_t i = 1; i < n; i++)
        b = x[i] > x[b] ? i : b;
    return b;
}

static double log_sum(const float *x, uint32_t n) {
    const double top = (double)x[best(x, n)];
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - top);
    return top + log(sum);
}

static double divergence(const float *a, const float *b, uint32_t n) {
    const double la = log_sum(a, n), lb = log_sum(b, n);
    double kl = 0;
    for (uint32_t i = 0; i < n; i++)
        kl += exp((double)a[i] - la) * (((double)a[i] - la) - ((double)b[i] - lb));
    return kl;
}

static td_token draw(const float *x, uint32_t n, double u) {
    const double l = log_sum(x, n);
    for (uint32_t i = 0; i < n; i++)
        if ((u -= exp((double)x[i] - l)) < 0)
            return (td_token)i;
    return (td_token)best(x, n);
}

int main(int argc, char **argv) {
    const uint32_t texts = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 8;
    const uint32_t tokens = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 256;
    if (argc < 2 || texts < 1 || texts > 10000 || tokens < 1 || tokens > 8192) {
        fprintf(stderr, "usage: bench_activations TRUNK [TEXTS [TOKENS]], 1 to 10000 texts of 1 to 8192 tokens\n");
        return 2;
    }
    td_error err;
    td_checkpoint *ck;
    if (td_checkpoint_open(&ck, argv[1], NULL, &err) != TD_OK)
        die(&err);
    side f = open_side(ck, true, tokens), q = open_side(ck, false, tokens);
    const uint32_t n = f.m->info.n_vocab;
    double sum = 0, most = 0;
    uint64_t same = 0, count = 0;
    for (uint32_t t = 0; t < texts; t++) {
        td_token token = FIRST_TOKEN;
        td_kv_seq_clear(f.seq);
        td_kv_seq_clear(q.seq);
        for (uint32_t i = 0; i < tokens; i++, count++) {
            step(&f, token, (int32_t)i);
            step(&q, token, (int32_t)i);
            const double kl = divergence(f.logits, q.logits, n);
            sum += kl;
            most = kl > most ? kl : most;
            same += best(f.logits, n) == best(q.logits, n);
            token = draw(f.logits, n, td_rng_uniform(t, i, 0));
        }
    }
    printf(
        "int8 activations, %u texts of %u tokens: mean KL %.5f nats, largest %.4f; the likeliest token is the same at "
        "%.1f %%\n",
        texts, tokens, sum / (double)count, most, 100.0 * (double)same / (double)count);
    close_side(&q);
    close_side(&f);
    td_checkpoint_close(&ck);
    return 0;
}
