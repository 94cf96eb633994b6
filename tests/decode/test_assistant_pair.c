/* test_assistant_pair.c - a trunk and its assistant: whatever does not fit is refused in one line with both sides'
 * numbers; what fits drafts at any width, and with its centroid head as with its whole one.
 *
 * Wrong pairs are made by rewriting the assistant's checkpoint, config and tensors together, so that the pair is what
 * is wrong and not the file. */
#include "decode/support_decode.h"
#include "support/rewrite.h"

#include "base/alloc.h"
#include "model/gemma4_assistant.h"

static const char *const fixtures[] = {"gemma4-dense", "gemma4-ple", "gemma4-moe"};

/* ---- pairs that do not fit ---- */

/* How opening the assistant at `dir` against a fixture's trunk ends; its directory is written as DIR. */
static td_status pairing(const char *trunk, const char *dir, uint32_t bits, char *message, size_t size) {
    td_backend *be = fixture_backend("reference");
    fixture f;
    td_model_options o = td_model_options_default();
    td_drafter_options d = td_drafter_options_default();
    td_checkpoint *ck;
    td_drafter *drafter = (td_drafter *)&o;
    td_error e = {0};
    d.bits = bits;
    fixture_open(&f, trunk, be, &o);
    ASSERT_OK(td_checkpoint_open(&ck, dir, NULL, err));
    td_status st = td_drafter_assistant_open(&drafter, ck, f.model, &d, &e);
    if (st == TD_OK)
        td_drafter_close(&drafter);
    assert_null(drafter);
    const char *m = e.message;
    size_t at = 0;
    while (*m && at + 4 < size) {
        bool is_dir = strncmp(m, dir, strlen(dir)) == 0;
        at += (size_t)snprintf(message + at, size - at, "%.*s", is_dir ? 3 : 1, is_dir ? "DIR" : m);
        m += is_dir ? strlen(dir) : 1;
    }
    message[at] = '\0';
    td_checkpoint_close(&ck);
    fixture_close(&f);
    td_backend_close(&be);
    return st;
}

static void resize(rewrite *w, const char *name, uint64_t rows, uint64_t columns) {
    rewrite_drop(w, name);
    const uint64_t dims[] = {rows, columns, 0};
    rewrite_add(w, name, TD_DTYPE_F32, dims, NULL);
}

static void set_int(json_t *o, const char *key, int value) {
    json_object_set_new(o, key, json_integer(value));
}

static void another_width(rewrite *w) {
    set_int(w->config, "backbone_hidden_size", 96);
    resize(w, "pre_projection.weight", 32, 192);
    resize(w, "post_projection.weight", 96, 32);
}

static void no_width(rewrite *w) {
    json_object_del(w->config, "backbone_hidden_size");
}

static void another_vocabulary(rewrite *w) {
    set_int(rewrite_text(w), "vocab_size", 352);
    resize(w, "model.embed_tokens.weight", 352, 32);
}

static void another_window(rewrite *w) {
    set_int(rewrite_text(w), "sliding_window", 16);
}

static void another_full_head_dim(rewrite *w) {
    json_t *o = json_object_get(json_object_get(rewrite_text(w), "per_layer_config"), "3");
    set_int(o, "head_dim", 64);
    resize(w, "model.layers.3.self_attn.q_proj.weight", 256, 32);
    resize(w, "model.layers.3.self_attn.o_proj.weight", 32, 256);
    rewrite_drop(w, "model.layers.3.self_attn.q_norm.weight");
    rewrite_add(w, "model.layers.3.self_attn.q_norm.weight", TD_DTYPE_F32, (const uint64_t[]){64, 0}, NULL);
}

static void another_sliding_head_dim(rewrite *w) {
    set_int(rewrite_text(w), "head_dim", 8);
}

static void other_kv_heads(rewrite *w) {
    set_int(rewrite_text(w), "num_key_value_heads", 4);
}

static void a_plain_model_type(rewrite *w) {
    json_object_set_new(w->config, "model_type", json_string("gemma4_text"));
}

static void no_model_type(rewrite *w) {
    json_object_del(w->config, "model_type");
}

static void no_pre_projection(rewrite *w) {
    rewrite_drop(w, "pre_projection.weight");
}

static void a_narrow_pre_projection(rewrite *w) {
    resize(w, "pre_projection.weight", 32, 64);
}

static void no_post_projection(rewrite *w) {
    rewrite_drop(w, "post_projection.weight");
}

static void an_unknown_tensor(rewrite *w) {
    rewrite_add(w, "model.layers.0.self_attn.q_proj.bias", TD_DTYPE_F32, (const uint64_t[]){64, 0}, NULL);
}

static void no_centroids(rewrite *w) {
    rewrite_drop(w, "masked_embedding.centroids.weight");
}

static void no_ordering(rewrite *w) {
    rewrite_drop(w, "masked_embedding.token_ordering");
}

static void an_ordering_out_of_range(rewrite *w) {
    int64_t *ids = rewrite_data(w, "masked_embedding.token_ordering");
    ids[17] = 320;
}

static void a_negative_ordering(rewrite *w) {
    int64_t *ids = rewrite_data(w, "masked_embedding.token_ordering");
    ids[319] = -1;
}

static void an_ordering_of_floats(rewrite *w) {
    rewrite_find(w, "masked_embedding.token_ordering")->dtype = TD_DTYPE_F64;
}

static void clusters_of_no_whole_size(rewrite *w) {
    set_int(w->config, "num_centroids", 17);
}

static void more_used_than_there_are(rewrite *w) {
    set_int(w->config, "centroid_intermediate_top_k", 17);
}

static const struct {
    const char *trunk, *assistant; /* fixtures; assistant NULL: the trunk's own */
    void (*edit)(rewrite *w);
    td_status status;
    const char *message;
} pairs[] = {
    {"gemma4-dense", NULL, another_width, TD_E_MODEL,
     "DIR: made for a trunk of width 96 (backbone_hidden_size), but the trunk has 64"},
    {"gemma4-dense", NULL, no_width, TD_E_MODEL,
     "config.json: \"backbone_hidden_size\" is missing, expected an integer in [1, 131072]"},
    {"gemma4-dense", NULL, another_vocabulary, TD_E_MODEL, "DIR: a vocabulary of 352 words, but the trunk has 320"},
    {"gemma4-dense", NULL, another_window, TD_E_MODEL, "DIR: a sliding window of 16, but the trunk has 12"},
    {"gemma4-dense", NULL, another_full_head_dim, TD_E_MODEL,
     "DIR: layer 3 has head_dim 64, but the trunk's full-attention keys have 32: not the assistant of this trunk"},
    {"gemma4-dense", NULL, another_sliding_head_dim, TD_E_MODEL,
     "DIR: layer 0 has head_dim 8, but the trunk's sliding keys have 16: not the assistant of this trunk"},
    {"gemma4-dense", NULL, other_kv_heads, TD_E_MODEL,
     "DIR: layer 0 has 4 heads over 4 KV heads, but the trunk's sliding layers keep 2 KV heads: not the assistant of "
     "this trunk"},
    {"gemma4-dense", "gemma4-ple", NULL, TD_E_MODEL,
     "DIR: layer 0 has 4 heads over 1 KV heads, but the trunk's sliding layers keep 2 KV heads: not the assistant of "
     "this trunk"},
    {"gemma4-ple", "gemma4-dense", NULL, TD_E_MODEL,
     "DIR: layer 0 has 4 heads over 2 KV heads, but the trunk's sliding layers keep 1 KV heads: not the assistant of "
     "this trunk"},
    {"gemma4-dense", NULL, a_plain_model_type, TD_E_MODEL,
     "DIR: model_type \"gemma4_text\" is no assistant, expected gemma4_assistant"},
    {"gemma4-dense", NULL, no_model_type, TD_E_MODEL,
     "DIR: model_type \"\" is no assistant, expected gemma4_assistant"},
    {"gemma4-dense", NULL, no_pre_projection, TD_E_MODEL, "DIR: no weight for module \"pre_projection\""},
    {"gemma4-dense", NULL, a_narrow_pre_projection, TD_E_SHAPE,
     "DIR: module \"pre_projection\": tensor \"pre_projection.weight\" has shape [32, 64], expected [32, 128]"},
    {"gemma4-dense", NULL, no_post_projection, TD_E_MODEL, "DIR: no weight for module \"post_projection\""},
    {"gemma4-dense", NULL, an_unknown_tensor, TD_E_MODEL,
     "DIR: tensor model.layers.0.self_attn.q_proj.bias is not part of a Gemma 4 assistant with this config.json (4 "
     "layers)"},
    {"gemma4-ple", NULL, no_centroids, TD_E_MODEL, "DIR: no weight for module \"masked_embedding.centroids\""},
    {"gemma4-ple", NULL, no_ordering, TD_E_MODEL, "DIR: no tensor \"masked_embedding.token_ordering\""},
    {"gemma4-ple", NULL, an_ordering_out_of_range, TD_E_MODEL,
     "tensor masked_embedding.token_ordering: entry 17 is 320, expected 0 to 319"},
    {"gemma4-ple", NULL, a_negative_ordering, TD_E_MODEL,
     "tensor masked_embedding.token_ordering: entry 319 is -1, expected 0 to 319"},
    {"gemma4-ple", NULL, an_ordering_of_floats, TD_E_SHAPE,
     "tensor masked_embedding.token_ordering: type F64, expected I64 or I32"},
    {"gemma4-ple", NULL, clusters_of_no_whole_size, TD_E_MODEL,
     "config.json: 4 of 17 centroids over 320 words, expected a divisor of the words and no more used than there are"},
    {"gemma4-ple", NULL, more_used_than_there_are, TD_E_MODEL,
     "config.json: 17 of 16 centroids over 320 words, expected a divisor of the words and no more used than there are"},
};

static void pairs_that_do_not_fit_are_told_why(void **state) {
    (void)state;
    int wrong = 0;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        rewrite w;
        char name[64], message[600];
        snprintf(name, sizeof name, "%s-assistant", pairs[i].assistant ? pairs[i].assistant : pairs[i].trunk);
        rewrite_open(&w, name);
        if (pairs[i].edit)
            pairs[i].edit(&w);
        td_status st = pairing(pairs[i].trunk, rewrite_save(&w), 16, message, sizeof message);
        if (st != pairs[i].status || strcmp(message, pairs[i].message) != 0) {
            print_error("%zu: %s: %s\n", i, td_status_name(st), message);
            wrong++;
        }
        rewrite_close(&w);
    }
    assert_int_equal(wrong, 0);
}

/* The two files changed over. */
static void a_trunk_is_no_assistant_and_an_assistant_no_trunk(void **state) {
    (void)state;
    char path[512], message[600];
    assert_int_equal(
        pairing("gemma4-dense", fixture_path("gemma4-dense", NULL, path, sizeof path), 16, message, sizeof message),
        TD_E_MODEL);
    assert_string_equal(message, "DIR: model_type \"gemma4_text\" is no assistant, expected gemma4_assistant");
    td_backend *be = fixture_backend("reference");
    td_checkpoint *ck;
    td_model_options o = td_model_options_default();
    td_model *m;
    td_error e;
    ASSERT_OK(td_checkpoint_open(&ck, fixture_path("gemma4-dense-assistant", NULL, path, sizeof path), NULL, err));
    assert_int_equal(td_model_open(&m, ck, be, &o, &e), TD_E_MODEL);
    assert_null(m);
    assert_non_null(strstr(e.message, "model_type \"gemma4_assistant\" is an assistant, not a trunk; give it as "
                                      "--mtp-assistant-model"));
    td_checkpoint_close(&ck);
    td_backend_close(&be);
}

/* A trunk of two sliding layers: there is nothing that the assistant's full layer could read. */
static void a_trunk_without_full_layers_has_no_keys_for_one(void **state) {
    (void)state;
    rewrite w;
    rewrite_open(&w, "gemma4-dense");
    for (size_t i = w.n; i-- > 0;) {
        const char *layer = strstr(w.tensor[i].name, "layers.");
        if (layer && atoi(layer + 7) >= 2)
            w.tensor[i] = w.tensor[--w.n];
    }
    set_int(w.config, "num_hidden_layers", 2);
    json_object_set_new(w.config, "per_layer_config", json_object());
    json_object_set_new(w.config, "layer_types", json_pack("[s,s]", "sliding_attention", "sliding_attention"));
    td_backend *be = fixture_backend("reference");
    td_checkpoint *trunk, *assistant;
    td_model_options o = td_model_options_default();
    td_drafter_options d = td_drafter_options_default();
    td_model *m;
    td_drafter *drafter;
    td_error e;
    char path[512];
    ASSERT_OK(td_checkpoint_open(&trunk, rewrite_save(&w), NULL, err));
    ASSERT_OK(
        td_checkpoint_open(&assistant, fixture_path("gemma4-dense-assistant", NULL, path, sizeof path), NULL, err));
    ASSERT_OK(td_model_open(&m, trunk, be, &o, err));
    assert_int_equal(td_drafter_assistant_open(&drafter, assistant, m, &d, &e), TD_E_MODEL);
    assert_non_null(strstr(e.message, ": layer 3 reads full-attention keys, but the trunk has no such layer"));
    td_model_close(&m);
    td_checkpoint_close(&assistant);
    td_checkpoint_close(&trunk);
    td_backend_close(&be);
    rewrite_close(&w);
}

static void widths_that_do_not_exist_are_refused(void **state) {
    (void)state;
    char path[512], message[600], want[80];
    fixture_path("gemma4-dense-assistant", NULL, path, sizeof path);
    static const uint32_t bits[] = {0, 1, 2, 5, 6, 15, 32};
    for (size_t i = 0; i < 7; i++) {
        assert_int_equal(pairing("gemma4-dense", path, bits[i], message, sizeof message), TD_E_ARG);
        snprintf(want, sizeof want, "an assistant of %u bits, expected 16, 8 or 4", bits[i]);
        assert_string_equal(message, want);
    }
}

/* ---- pairs that fit ---- */

/* A pair on a stage, with a text whose every position has keys. */
typedef struct duo {
    stage s;
    td_kv_seq *kv;
    truth t;
    td_gemma4_assistant *a;
    td_kv_pages table[TD_KV_MAX_GROUPS];
} duo;

static void duo_open(duo *d, const char *name, const char *backend, uint32_t n) {
    td_token prompt[256];
    td_seq_params p = seq_params(1, 0);
    memset(d, 0, sizeof *d);
    stage_open(&d->s, &(stage_options){.fixture = name, .backend = backend, .assistant = true, .prefill_rows = 256});
    random_prompt(prompt, n, 77);
    truth_make(&d->t, &d->s, prompt, n, &p, 256);
    td_seq *seq = stage_seq(&d->s, 256);
    seq_start(seq, prompt, n, &p);
    stage_play(&d->s, seq, &d->t);
    d->kv = seq->kv; /* the keys outlive the rest of the sequence */
    seq->kv = NULL;
    td_seq_close(&seq);
    for (uint32_t g = 0; g < d->s.f.model->kv.n_groups; g++)
        d->table[g] = td_kv_seq_pages(d->kv, g);
}

static void duo_close(duo *d) {
    td_gemma4_assistant_close(&d->a);
    td_kv_seq_close(&d->kv);
    truth_free(&d->t);
    stage_close(&d->s);
}

/* One step after the text's last position but one, with that position's hidden state and some token. */
static void step(duo *d, td_gemma4_assistant *a, td_token token, float *hidden, float *logits, td_token *candidate) {
    int32_t pos = (int32_t)td_kv_seq_length(d->kv), n_keys = pos;
    td_gemma4_step st = {.n = 1,
                         .token = &token,
                         .pos = &pos,
                         .n_keys = &n_keys,
                         .hidden = hidden,
                         .logits = logits,
                         .candidate = candidate};
    for (uint32_t g = 0; g < d->s.f.model->kv.n_groups; g++)
        st.pages[g] = &d->table[g];
    ASSERT_OK(td_gemma4_assistant_step(a, &st, err));
}

static uint32_t argmax(const float *x, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

static td_gemma4_assistant *open_head(duo *d, bool full_head) {
    td_gemma4_assistant_options o = td_gemma4_assistant_options_default();
    td_gemma4_assistant *a;
    o.full_head = full_head;
    ASSERT_OK(td_gemma4_assistant_open(&a, d->s.assistant_ck, d->s.f.model, &o, err));
    return a;
}

/* The centroid head scores a part of the words, each as the whole head would; so it drafts the same word whenever the
 * whole head's choice is in that part. */
static void centroids_agree_on(const char *backend) {
    td_backend *probe = fixture_backend(backend);
    if (!probe)
        skip();
    td_backend_close(&probe);
    duo d;
    duo_open(&d, "gemma4-ple", backend, 60);
    td_gemma4_assistant *whole = open_head(&d, true), *part = open_head(&d, false);
    const td_gemma4_assistant_info *w = td_gemma4_assistant_describe(whole), *p = td_gemma4_assistant_describe(part);
    assert_int_equal(w->n_candidates, 320);
    assert_false(w->centroids);
    assert_int_equal(p->n_candidates, 80); /* 4 of 16 clusters of 20 */
    assert_true(p->centroids);
    float all[320], some[80], h1[64], h2[64];
    td_token candidate[80];
    uint32_t shared = 0;
    for (td_token token = 0; token < 320; token++) {
        memcpy(h1, d.t.hidden + (size_t)(token % 59) * 64, sizeof h1);
        memcpy(h2, h1, sizeof h2);
        step(&d, whole, token, h1, all, NULL);
        step(&d, part, token, h2, some, candidate);
        assert_memory_equal(h1, h2, sizeof h1); /* what goes on to the next step does not depend on the head */
        bool seen[320] = {false}, has = false;
        uint32_t best = argmax(all, 320);
        for (uint32_t i = 0; i < 80; i++) {
            td_token t = candidate[i];
            assert_in_range(t, 0, 319);
            assert_false(seen[t]);
            seen[t] = true;
            has = has || (uint32_t)t == best;
            if (some[i] != all[t])
                fail_msg("word %d has the logit %g in its cluster, %g in the whole head", t, (double)some[i],
                         (double)all[t]);
        }
        shared += has;
        if (has)
            assert_int_equal(candidate[argmax(some, 80)], best);
    }
    print_message("%s: the whole head's choice was a candidate in %u of 320 steps\n", backend, shared);
    assert_in_range(shared, 50, 319); /* clusters of random weights hold a quarter by chance */
    td_gemma4_assistant_close(&whole);
    td_gemma4_assistant_close(&part);
    duo_close(&d);
}

static void centroids_agree_with_the_whole_head_reference(void **state) {
    (void)state;
    centroids_agree_on("reference");
}

static void centroids_agree_with_the_whole_head_cpu(void **state) {
    (void)state;
    centroids_agree_on("generic");
    centroids_agree_on("cpu");
}

/* What each width is called, what it costs, and that it still drafts what the file's own weights draft, mostly. */
static void assistants_of_every_width_draft(void **state) {
    (void)state;
    static const struct {
        uint32_t bits;
        const char *format;
        uint32_t agree; /* of 320 choices, at least */
    } widths[] = {{16, "f32", 320}, {8, "affine 8-bit group 64", 280}, {4, "affine 4-bit group 64", 120}};
    for (size_t f = 0; f < 3; f++) {
        duo d;
        duo_open(&d, fixtures[f], "cpu", 40);
        uint32_t chosen[320];
        uint64_t bytes = UINT64_MAX;
        for (size_t i = 0; i < 3; i++) {
            td_gemma4_assistant_options o = td_gemma4_assistant_options_default();
            td_gemma4_assistant *a;
            o.bits = widths[i].bits;
            o.full_head = true;
            ASSERT_OK(td_gemma4_assistant_open(&a, d.s.assistant_ck, d.s.f.model, &o, err));
            const td_gemma4_assistant_info *info = td_gemma4_assistant_describe(a);
            assert_string_equal(info->format, widths[i].format);
            assert_true(info->weight_bytes < bytes);
            bytes = info->weight_bytes;
            uint32_t agree = 0;
            for (td_token token = 0; token < 320; token++) {
                float hidden[64], logits[320];
                memcpy(hidden, d.t.hidden + (size_t)(token % 39) * 64, sizeof hidden);
                step(&d, a, token, hidden, logits, NULL);
                uint32_t best = argmax(logits, 320);
                agree += i == 0 || best == chosen[token];
                if (i == 0)
                    chosen[token] = best;
            }
            if (agree < widths[i].agree)
                fail_msg("%s at %u bits: %u of 320 choices are those of the file", fixtures[f], widths[i].bits, agree);
            td_gemma4_assistant_close(&a);
        }
        duo_close(&d);
    }
}

static void random_weights_are_random_and_repeatable(void **state) {
    (void)state;
    duo d;
    duo_open(&d, "gemma4-dense", "reference", 20);
    float logits[3][320];
    for (int i = 0; i < 3; i++) {
        td_gemma4_assistant_options o = td_gemma4_assistant_options_default();
        td_gemma4_assistant *a;
        float hidden[64];
        o.random_weights = i > 0;
        ASSERT_OK(td_gemma4_assistant_open(&a, d.s.assistant_ck, d.s.f.model, &o, err));
        memcpy(hidden, d.t.hidden, sizeof hidden);
        step(&d, a, 5, hidden, logits[i], NULL);
        td_gemma4_assistant_close(&a);
    }
    assert_memory_equal(logits[1], logits[2], sizeof logits[1]);
    assert_true(max_difference(logits[0], logits[1], 320) > 0.1);
    duo_close(&d);
}

/* ---- the drafter's own rules ---- */

static bool is_listed(const void *user, td_token t) {
    const bool *end = user;
    return end[t];
}

static void a_draft_ends_with_an_end_token(void **state) {
    (void)state;
    duo d;
    duo_open(&d, "gemma4-ple", "cpu", 30);
    td_history h;
    ASSERT_OK(td_history_open(&h, 320, err));
    td_seq_params p = seq_params(1, 0);
    td_token out[TD_MAX_DRAFT] = {0};
    bool end[320] = {false};
    td_draft b = {.tokens = d.t.tokens,
                  .n_tokens = 31,
                  .kv = d.kv,
                  .hidden = d.t.hidden + 29 * 64,
                  .sampling = &p.sampling,
                  .history = &h,
                  .is_end = is_listed,
                  .is_end_user = end,
                  .depth = TD_MAX_DRAFT,
                  .out = out};
    ASSERT_OK(d.s.drafter->ops->draft(d.s.drafter, &b, 1, err));
    assert_int_equal(b.n_out, TD_MAX_DRAFT);
    td_token all[TD_MAX_DRAFT];
    memcpy(all, out, sizeof all);
    for (uint32_t depth = 1; depth <= TD_MAX_DRAFT; depth++) { /* a shorter draft is the beginning of a longer one */
        b.depth = depth;
        ASSERT_OK(d.s.drafter->ops->draft(d.s.drafter, &b, 1, err));
        assert_int_equal(b.n_out, depth);
        assert_memory_equal(out, all, depth * sizeof *out);
    }
    for (uint32_t i = 0; i < TD_MAX_DRAFT; i++) {
        uint32_t first = 0;
        while (all[first] != all[i])
            first++;
        end[all[i]] = true;
        ASSERT_OK(d.s.drafter->ops->draft(d.s.drafter, &b, 1, err));
        assert_int_equal(b.n_out, first + 1);
        assert_int_equal(out[first], all[i]);
        end[all[i]] = false;
    }
    for (uint32_t t = 0; t < 320; t++) /* the history is left as it was */
        assert_int_equal(h.generated[t], 0);
    td_history_close(&h);
    duo_close(&d);
}

/* At a temperature of 100 the noise all but decides alone, so a drafter that draws with the trunk's noise of the right
 * position is right most of the time, and one that does not is right once in 320. */
static void drafts_are_drawn_with_the_trunk_s_noise(void **state) {
    (void)state;
    for (size_t f = 0; f < 3; f++) {
        stage s;
        stage_open(&s, &(stage_options){.fixture = fixtures[f], .assistant = true, .full_head = true});
        td_seq *seq = stage_seq(&s, 300);
        td_token prompt[20];
        td_seq_params p = seq_params(200, 4);
        p.sampling.temperature = 100;
        p.sampling.seed = f;
        random_prompt(prompt, 20, f);
        truth t;
        truth_make(&t, &s, prompt, 20, &p, 300);
        seq_start(seq, prompt, 20, &p);
        stage_play(&s, seq, &t);
        for (int i = 0; i < 4; i++)
            if (seq->stats.accepted_at[i] * 2 < seq->stats.drafted_at[i])
                fail_msg("%s: %llu of %llu drafts accepted at place %d", fixtures[f],
                         (unsigned long long)seq->stats.accepted_at[i], (unsigned long long)seq->stats.drafted_at[i],
                         i);
        td_seq_close(&seq);
        truth_free(&t);
        stage_close(&s);
    }
}

static void steps_of_no_or_too_many_rows_are_refused(void **state) {
    (void)state;
    duo d;
    duo_open(&d, "gemma4-dense", "reference", 10);
    d.a = open_head(&d, true);
    td_error e;
    assert_int_equal(td_gemma4_assistant_step(d.a, &(td_gemma4_step){.n = 0}, &e), TD_E_ARG);
    assert_string_equal(e.message, "a drafting step of 0 rows, expected 1 to 1");
    assert_int_equal(td_gemma4_assistant_step(d.a, &(td_gemma4_step){.n = 2}, &e), TD_E_ARG);
    assert_string_equal(e.message, "a drafting step of 2 rows, expected 1 to 1");
    duo_close(&d);
}

/* Narrowed, replaced by noise, with clusters: every allocation of opening fails in turn. */
static void no_memory_leaves_nothing_behind(void **state) {
    (void)state;
    stage s;
    stage_open(&s, &(stage_options){.fixture = "gemma4-ple", .backend = "reference", .assistant = true});
    for (uint32_t kind = 0; kind < 3; kind++)
        for (long k = 0;; k++) {
            td_drafter_options o = td_drafter_options_default();
            td_drafter *drafter = (td_drafter *)&o;
            o.bits = kind ? 4 : 8;
            o.random_weights = kind == 2;
            long live = td_alloc_live();
            td_alloc_fail_at(k);
            td_status st = td_drafter_assistant_open(&drafter, s.assistant_ck, s.f.model, &o, NULL);
            bool struck = td_alloc_failed();
            td_alloc_fail_at(-1);
            assert_int_equal(st, struck ? TD_E_NOMEM : TD_OK);
            assert_int_equal(drafter == NULL, struck);
            td_drafter_close(&drafter);
            assert_int_equal(td_alloc_live(), live);
            if (!struck)
                break;
        }
    stage_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_that_do_not_fit_are_told_why),
        cmocka_unit_test(a_trunk_is_no_assistant_and_an_assistant_no_trunk),
        cmocka_unit_test(a_trunk_without_full_layers_has_no_keys_for_one),
        cmocka_unit_test(widths_that_do_not_exist_are_refused),
        cmocka_unit_test(centroids_agree_with_the_whole_head_reference),
        cmocka_unit_test(centroids_agree_with_the_whole_head_cpu),
        cmocka_unit_test(assistants_of_every_width_draft),
        cmocka_unit_test(random_weights_are_random_and_repeatable),
        cmocka_unit_test(a_draft_ends_with_an_end_token),
        cmocka_unit_test(drafts_are_drawn_with_the_trunk_s_noise),
        cmocka_unit_test(steps_of_no_or_too_many_rows_are_refused),
        cmocka_unit_test(no_memory_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
