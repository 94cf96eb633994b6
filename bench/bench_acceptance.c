/* bench_acceptance.c - how often an assistant's drafts are accepted, for each convention that implementations disagree
 * on: the query's position (P-1, P, P+1), the sliding window's edge, the centroid head or the whole one, and the width
 * that the assistant is kept in.
 *
 *     bench_acceptance TRUNK ASSISTANT [PROMPTS.json [TOKENS]]
 *
 * PROMPTS.json: {"runs": [{"prompt_ids": [...], "generated": n, "ids": [...]}]}, by default the demonstration pair's
 * reference (tests/fixtures/demo_acceptance.json). Greedy, depth 4, keys and values in f32. It first says whether the
 * text equals the reference's "ids"; a quantised copy of the trunk writes its own text and differs. TOKENS: how many to
 * generate for each prompt instead of as many as the reference has; above the sliding window the edge begins to tell.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "decode/round.h"

#define DEPTH 4

static void die(const char *what, const td_error *err) {
    fprintf(stderr, "bench_acceptance: %s: %s\n", what, err->message);
    exit(1);
}

typedef struct bench {
    td_backend *be;
    td_checkpoint *trunk_ck, *assistant_ck;
    td_model *model;
    td_kv_pool *pool;
    json_t *runs;
    uint32_t n_tokens; /* 0: as many as the reference */
} bench;

typedef struct outcome {
    uint64_t tokens, rounds, drafted_at[DEPTH], accepted_at[DEPTH], equal_runs;
    double seconds;
} outcome;

/* One prompt; adds to `o`. */
static void run_prompt(bench *b, td_decoder *d, const json_t *run, outcome *o) {
    td_error err;
    td_token prompt[1024];
    const json_t *ids = json_object_get(run, "prompt_ids"), *want = json_object_get(run, "ids");
    size_t n = json_array_size(ids);
    for (size_t i = 0; i < n && i < 1024; i++)
        prompt[i] = (td_token)json_integer_value(json_array_get(ids, i));
    td_seq *s;
    td_seq_params p = {.sampling = {.top_p = 1, .repetition_penalty = 1},
                       .max_tokens = b->n_tokens ? b->n_tokens : (uint32_t)json_array_size(want),
                       .depth = DEPTH,
                       .ignore_end = true};
    if (td_seq_open(&s, d, 2048, &err) != TD_OK || td_seq_start(s, prompt, (uint32_t)n, &p, &err) != TD_OK)
        die("sequence", &err);
    int64_t start = td_clock_ns();
    while (!s->finish)
        if (td_round(d, &s, 1, &err) != TD_OK || s->status != TD_OK)
            die("round", s->status ? &s->error : &err);
    o->seconds += td_clock_since(start);
    bool equal = true;
    for (uint32_t i = 0; i < p.max_tokens && i < json_array_size(want); i++)
        equal = equal && s->tokens[n + i] == (td_token)json_integer_value(json_array_get(want, i));
    o->equal_runs += equal;
    o->tokens += p.max_tokens - 1; /* the first comes from the prompt's pass */
    o->rounds += s->stats.rounds - 1;
    for (int i = 0; i < DEPTH; i++) {
        o->drafted_at[i] += s->stats.drafted_at[i];
        o->accepted_at[i] += s->stats.accepted_at[i];
    }
    td_seq_close(&s);
}

static outcome run_all(bench *b, const td_drafter_options *opt) {
    td_error err;
    td_drafter *drafter;
    td_decoder *d;
    outcome o = {0};
    td_decoder_options dopt = {.max_seqs = 1, .prefill_rows = 512, .max_depth = DEPTH};
    if (td_drafter_assistant_open(&drafter, b->assistant_ck, b->model, opt, &err) != TD_OK ||
        td_decoder_open(&d, b->model, drafter, b->pool, &dopt, &err) != TD_OK)
        die("drafter", &err);
    for (size_t i = 0; i < json_array_size(b->runs); i++)
        run_prompt(b, d, json_array_get(b->runs, i), &o);
    td_decoder_close(&d);
    td_drafter_close(&drafter);
    return o;
}

static void print_row(const char *name, const outcome *o) {
    printf("| %-44s | %5.3f |", name, (double)o->tokens / (double)o->rounds);
    for (int i = 0; i < DEPTH; i++)
        printf(" %.3f", (double)o->accepted_at[i] / (double)o->rounds);
    printf(" | %6.1f |\n", (double)o->tokens / o->seconds);
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: bench_acceptance TRUNK ASSISTANT [PROMPTS.json [TOKENS]]\n");
        return 2;
    }
    td_error err;
    bench b = {0};
    json_error_t jerr;
    json_t *root = json_load_file(argc > 3 ? argv[3] : "tests/fixtures/demo_acceptance.json", 0, &jerr);
    b.runs = json_object_get(root, "runs");
    if (!json_array_size(b.runs)) {
        fprintf(stderr, "bench_acceptance: no runs in the prompts: %s\n", jerr.text);
        return 1;
    }
    b.n_tokens = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 0;
    td_model_options m = td_model_options_default();
    td_decoder_options d = {.max_seqs = 1, .prefill_rows = 512, .max_depth = DEPTH};
    td_decoder_model_options(&d, &m);
    m.kv_type = TD_KV_F32;
    if (td_backend_cpu_open(&b.be, NULL, &err) != TD_OK ||
        td_checkpoint_open(&b.trunk_ck, argv[1], NULL, &err) != TD_OK ||
        td_checkpoint_open(&b.assistant_ck, argv[2], NULL, &err) != TD_OK ||
        td_model_open(&b.model, b.trunk_ck, b.be, &m, &err) != TD_OK ||
        td_kv_pool_open(&b.pool, &b.model->kv, b.be, 0, &err) != TD_OK)
        die("open", &err);

    static const struct {
        const char *name;
        int offset, extra;
        bool full;
        uint32_t bits;
    } rows[] = {
        {"query at P, trunk's window", 0, 0, false, 16},           {"query at P, one key more", 0, 1, false, 16},
        {"query at P, transformers' W + 1 keys", 0, 2, false, 16}, {"query at P, one key fewer", 0, -1, false, 16},
        {"query at P-1, trunk's window", -1, 0, false, 16},        {"query at P-1, W keys", -1, 1, false, 16},
        {"query at P+1, trunk's window", 1, 0, false, 16},         {"query at P, whole head", 0, 0, true, 16},
        {"query at P, 8-bit assistant", 0, 0, false, 8},           {"query at P, 4-bit assistant", 0, 0, false, 4},
    };
    printf("| convention | tokens/round | accepted by position | tokens/s |\n|---|---|---|---|\n");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        td_drafter_options o = td_drafter_options_default();
        o.query_offset = rows[i].offset;
        o.window_extra = rows[i].extra;
        o.full_head = rows[i].full;
        o.bits = rows[i].bits;
        outcome r = run_all(&b, &o);
        print_row(rows[i].name, &r);
        if (i == 0)
            fprintf(stderr, "texts equal to the reference: %llu of %zu\n", (unsigned long long)r.equal_runs,
                    json_array_size(b.runs));
    }
    td_kv_pool_close(&b.pool);
    td_model_close(&b.model);
    td_checkpoint_close(&b.assistant_ck);
    td_checkpoint_close(&b.trunk_ck);
    td_backend_close(&b.be);
    json_decref(root);
    return 0;
}
