/* bench_prefill.c - what it saves that layers which share keys run only for rows whose output is wanted.
 *
 *     bench_prefill TRUNK [ROWS [REPEATS]]
 *
 * Prefills ROWS tokens (default 512) with the output of the last row wanted, as generation does, and with every row's
 * hidden state wanted, alternately; prints both rates and their ratio (medians). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "cache/kv.h"

static void die(const td_error *err) {
    fprintf(stderr, "bench_prefill: %s\n", err->message);
    exit(1);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of one pass that gives out n_out rows, the last ones. */
static double prefill(td_model *m, td_kv_seq *seq, const td_token *ids, uint32_t n, uint32_t n_out, float *hidden) {
    td_error err;
    int32_t *pos = td_calloc(2 * (size_t)n, sizeof *pos), *out = pos + n, n_keys = (int32_t)n;
    uint32_t *row_seq = td_calloc(n, sizeof *row_seq);
    td_kv_seq_clear(seq);
    if (td_kv_seq_reserve(seq, n, &err) != TD_OK)
        die(&err);
    td_kv_pages tables[TD_KV_MAX_GROUPS];
    uint32_t sure = n;
    td_pass p = {.n_rows = n,
                 .token = ids,
                 .pos = pos,
                 .row_seq = row_seq,
                 .n_seq = 1,
                 .n_keys = &n_keys,
                 .n_sure = &sure,
                 .n_out = n_out,
                 .out_row = out,
                 .hidden = hidden};
    for (uint32_t g = 0; g < m->kv.n_groups; g++) {
        tables[g] = td_kv_seq_pages(seq, g);
        p.pages[g] = &tables[g];
    }
    for (uint32_t i = 0; i < n; i++)
        pos[i] = (int32_t)i;
    for (uint32_t i = 0; i < n_out; i++)
        out[i] = (int32_t)(n - n_out + i);
    int64_t start = td_clock_ns();
    if (td_model_forward(m, &p, &err) != TD_OK)
        die(&err);
    double seconds = td_clock_since(start);
    td_free(pos);
    td_free(row_seq);
    return seconds;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: bench_prefill TRUNK [ROWS [REPEATS]]\n");
        return 2;
    }
    uint32_t n = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 512;
    uint32_t repeats = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 9;
    if (n < 1 || n > 8192 || repeats < 1 || repeats > 1000) {
        fprintf(stderr, "bench_prefill: expected 1 to 8192 rows and 1 to 1000 repeats\n");
        return 2;
    }
    td_error err;
    td_backend *be;
    td_checkpoint *ck;
    td_model *m;
    td_kv_pool *pool;
    td_kv_seq *seq;
    td_model_options o = td_model_options_default();
    o.max_rows = o.max_out = n;
    o.max_logits = 1;
    if (td_backend_cpu_open(&be, NULL, &err) != TD_OK || td_checkpoint_open(&ck, argv[1], NULL, &err) != TD_OK ||
        td_model_open(&m, ck, be, &o, &err) != TD_OK || td_kv_pool_open(&pool, &m->kv, be, 0, &err) != TD_OK ||
        td_kv_seq_open(&seq, pool, n, 0, &err) != TD_OK)
        die(&err);
    td_token *ids = td_calloc(n, sizeof *ids);
    float *hidden = td_malloc_aligned((size_t)n * m->info.n_embd * sizeof(float));
    double *last = td_calloc(2 * (size_t)repeats, sizeof *last), *all = last + repeats;
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (td_token)((i * 7919u + 13u) % m->info.n_vocab);
    prefill(m, seq, ids, n, 1, hidden);
    for (uint32_t r = 0; r < repeats; r++) {
        last[r] = prefill(m, seq, ids, n, 1, hidden);
        all[r] = prefill(m, seq, ids, n, n, hidden);
    }
    qsort(last, repeats, sizeof *last, by_value);
    qsort(all, repeats, sizeof *all, by_value);
    printf("prefill of %u tokens: %.0f tokens/s when only the last row's output is wanted, %.0f when all are: %.2f x\n",
           n, n / last[repeats / 2], n / all[repeats / 2], all[repeats / 2] / last[repeats / 2]);
    td_free(ids);
    td_free(last);
    td_free_aligned(hidden);
    td_kv_seq_close(&seq);
    td_kv_pool_close(&pool);
    td_model_close(&m);
    td_checkpoint_close(&ck);
    td_backend_close(&be);
    return 0;
}
