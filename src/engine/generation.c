/* generation.c - what a checkpoint says about generating: which tokens end an answer, which must not come, and how to
 * sample by default. generation_config.json goes before config.json. */
#include <math.h>

#include "base/alloc.h"
#include "engine/engine.h"

/* A token id or a list of them; absent gives n = 0. */
static td_status read_tokens(const json_t *v, const char *where, const char *key, uint32_t n_vocab, td_token **out,
                             size_t *n, td_error *err) {
    *out = NULL;
    *n = 0;
    if (!v || json_is_null(v))
        return TD_OK;
    size_t count = json_is_array(v) ? json_array_size(v) : 1;
    if (!count)
        return TD_OK;
    td_token *t = td_calloc(count, sizeof *t);
    if (!t)
        return td_fail(err, TD_E_NOMEM, "out of memory for %zu tokens", count);
    for (size_t i = 0; i < count; i++) {
        const json_t *e = json_is_array(v) ? json_array_get(v, i) : v;
        json_int_t id = json_integer_value(e);
        if (!json_is_integer(e) || id < 0 || id >= (json_int_t)n_vocab) {
            td_free(t);
            return td_fail(err, TD_E_MODEL, "%s: entry %zu of \"%s\" is no token id, expected 0 to %u", where, i, key,
                           n_vocab - 1);
        }
        t[i] = (td_token)id;
    }
    *out = t;
    *n = count;
    return TD_OK;
}

static td_status read_end(td_engine *e, td_error *err) {
    static const char key[] = "eos_token_id";
    const char *where = "generation_config.json";
    const json_t *v = json_object_get(td_checkpoint_generation_config(e->ck), key);
    if (!v || json_is_null(v)) {
        v = json_object_get(td_model_text_config(e->ck, &where), key);
        if (!v || json_is_null(v)) {
            where = "config.json";
            v = json_object_get(td_checkpoint_config(e->ck), key);
        }
    }
    return read_tokens(v, where, key, e->model->info.n_vocab, &e->end, &e->n_end, err);
}

/* Tokens that must not come: those that the checkpoint says, and rows of the head behind the last word of the tokenizer
 * (some tables are padded), which have no text. */
static td_status read_banned(td_engine *e, td_error *err) {
    static const char key[] = "suppress_tokens";
    td_token *t;
    size_t n;
    TD_TRY(read_tokens(json_object_get(td_checkpoint_generation_config(e->ck), key), "generation_config.json", key,
                       e->model->info.n_vocab, &t, &n, err));
    size_t words = e->tokenizer ? td_tokenizer_n_vocab(e->tokenizer) : e->model->info.n_vocab;
    size_t padding = e->model->info.n_vocab > words ? e->model->info.n_vocab - words : 0;
    e->n_banned = n + padding;
    if (e->n_banned == 0)
        return TD_OK;
    e->banned = td_calloc(e->n_banned, sizeof *e->banned);
    for (size_t i = 0; e->banned && i < e->n_banned; i++)
        e->banned[i] = (td_logit_bias){i < n ? t[i] : (td_token)(words + i - n), -INFINITY};
    td_free(t);
    return e->banned ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory for %zu banned tokens", e->n_banned);
}

static td_status read_sampling(td_engine *e, td_error *err) {
    const char *where = "generation_config.json";
    const json_t *g = td_checkpoint_generation_config(e->ck);
    e->sampling = td_sampling_default();
    bool sample;
    double temperature, top_p, min_p, repetition;
    TD_TRY(td_json_bool_or(g, where, "do_sample", false, &sample, err));
    TD_TRY(td_json_f64_or(g, where, "temperature", 1, &temperature, err));
    TD_TRY(td_json_f64_or(g, where, "top_p", 1, &top_p, err));
    TD_TRY(td_json_f64_or(g, where, "min_p", 0, &min_p, err));
    TD_TRY(td_json_f64_or(g, where, "repetition_penalty", 1, &repetition, err));
    TD_TRY(td_json_u32_or(g, where, "top_k", 0, UINT32_MAX, 0, &e->sampling.top_k, err));
    e->sampling.temperature = sample ? (float)temperature : 0;
    e->sampling.top_p = (float)top_p;
    e->sampling.min_p = (float)min_p;
    e->sampling.repetition_penalty = (float)repetition;
    td_status st = td_sampling_check(&e->sampling, e->model->info.n_vocab, err);
    return st == TD_OK ? st : td_error_prefix(err, st, "%s/%s", e->trunk_path, where);
}

td_status td_engine_load_generation(td_engine *e, td_error *err) {
    TD_TRY(read_end(e, err));
    TD_TRY(read_banned(e, err));
    return read_sampling(e, err);
}
