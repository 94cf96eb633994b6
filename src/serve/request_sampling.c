/* request_sampling.c - how tokens are drawn: numbers with their ranges, logit_bias, the seed; and stop strings. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/alloc.h"
#include "serve/request_impl.h"

/* ---- the seed ---- */

/* Small enough to be exact in every client's numbers. */
static uint64_t random_seed(void) {
    uint32_t word;
    if (getrandom(&word, sizeof word, 0) != (ssize_t)sizeof word)
        word = (uint32_t)time(NULL);
    return word;
}

/* The finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014),
 * cut to the 53 bits that every client reads exactly. */
uint64_t td_api_choice_seed(uint64_t seed, uint32_t i) {
    if (i == 0)
        return seed;
    uint64_t z = seed + i * UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return (z ^ (z >> 31)) >> 11;
}

/* -1 asks for a random one, as llama.cpp's clients do. */
static td_status read_seed(td_api_request *r, const td_fields *f, const td_api_defaults *d) {
    int64_t seed = d->has_seed ? (int64_t)d->sampling.seed : -1;
    bool given = td_field(f, "seed") != NULL;
    TD_TRY(td_field_int(f, "seed", INT64_MIN, INT64_MAX, &seed));
    r->sampling.seed = (given || d->has_seed) && seed != -1 ? (uint64_t)seed : random_seed();
    return TD_OK;
}

/* ---- logit_bias ---- */

/* OpenAI's scale: -100 means never. */
static td_status read_bias(const td_fields *f, const char *key, const json_t *value, uint32_t n_vocab,
                           td_logit_bias *out) {
    char *end;
    td_fields b = {NULL, "logit_bias", f->fault};
    long id = *key >= '0' && *key <= '9' && strlen(key) < 12 ? strtol(key, &end, 10) : -1;
    if (id < 0 || *end != '\0' || id >= (long)n_vocab)
        return td_field_fail(&b, "", "invalid_value", "has the key '%.40s', expected token ids from 0 to %u", key,
                             n_vocab - 1);
    if (!json_is_number(value))
        return td_field_type(&b, key, value, "a number");
    double v = json_number_value(value);
    if (!(v >= -100 && v <= 100))
        return td_field_fail(&b, key, "invalid_value", "is %g, expected -100 to 100", v);
    *out = (td_logit_bias){(td_token)id, v == -100 ? -INFINITY : (float)v};
    return TD_OK;
}

static td_status read_biases(td_api_request *r, const td_fields *f, const td_api_defaults *d) {
    json_t *object = NULL, *value;
    const char *key;
    TD_TRY(td_field_object(f, "logit_bias", &object));
    size_t n = json_object_size(object), base = d->sampling.n_bias;
    if (n > TD_API_MAX_BIASES)
        return td_field_fail(f, "logit_bias", "invalid_value", "has %zu tokens, expected at most %d", n,
                             TD_API_MAX_BIASES);
    if (n == 0)
        return TD_OK;
    r->biases = td_calloc(base + n, sizeof *r->biases);
    if (!r->biases)
        return td_fault_of(f->fault, &(td_error){.status = TD_E_NOMEM}, NULL);
    if (base)
        memcpy(r->biases, d->sampling.bias, base * sizeof *r->biases);
    json_object_foreach(object, key, value) {
        TD_TRY(read_bias(f, key, value, d->n_vocab, &r->biases[base]));
        base++;
    }
    r->sampling.bias = r->biases;
    r->sampling.n_bias = base;
    return TD_OK;
}

/* ---- numbers ---- */

/* top_k: -1, like 0, keeps all. */
static td_status read_top_k(td_api_request *r, const td_fields *f) {
    int64_t k = r->sampling.top_k;
    TD_TRY(td_field_int(f, "top_k", -1, INT32_MAX, &k));
    r->sampling.top_k = k < 0 ? 0 : (uint32_t)k;
    return TD_OK;
}

td_status td_api_read_sampling(td_api_request *r, const td_fields *f, const td_api_defaults *d) {
    td_sampling *s = &r->sampling;
    *s = d->sampling;
    TD_TRY(td_field_float(f, "temperature", 0, 100, &s->temperature));
    TD_TRY(read_top_k(r, f));
    TD_TRY(td_field_float(f, "top_p", 0, 1, &s->top_p));
    TD_TRY(td_field_float(f, "min_p", 0, 1, &s->min_p));
    TD_TRY(td_field_float(f, "repeat_penalty", 0.01, 100, &s->repetition_penalty));
    TD_TRY(td_field_float(f, "repetition_penalty", 0.01, 100, &s->repetition_penalty));
    TD_TRY(td_field_float(f, "presence_penalty", -100, 100, &s->presence_penalty));
    TD_TRY(td_field_float(f, "frequency_penalty", -100, 100, &s->frequency_penalty));
    TD_TRY(read_biases(r, f, d));
    return read_seed(r, f, d);
}

/* ---- stop ---- */

static td_status check_stop(const td_fields *f, const char *name, const json_t *v) {
    if (!json_is_string(v))
        return td_field_type(f, name, v, "a string");
    size_t n = json_string_length(v);
    if (n == 0 || n > TD_API_MAX_STOP_BYTES)
        return td_field_fail(f, name, "invalid_value", "has %zu bytes, expected 1 to %d", n, TD_API_MAX_STOP_BYTES);
    return TD_OK;
}

td_status td_api_read_stop(td_api_request *r, const td_fields *f, const td_api_defaults *d) {
    const json_t *v = td_field(f, "stop");
    bool list = json_is_array(v);
    size_t n = list ? json_array_size(v) : v != NULL;
    if (v && !list && !json_is_string(v))
        return td_field_type(f, "stop", v, "a string or a list of strings");
    if (n > TD_API_MAX_STOPS)
        return td_field_fail(f, "stop", "invalid_value", "has %zu strings, expected at most %d", n, TD_API_MAX_STOPS);
    r->stop = td_calloc(n + d->n_stop + 1, sizeof *r->stop);
    if (!r->stop)
        return td_fault_of(f->fault, &(td_error){.status = TD_E_NOMEM}, NULL);
    for (size_t i = 0; i < n; i++) {
        char name[32] = "stop";
        const json_t *one = list ? json_array_get(v, i) : v;
        if (list)
            snprintf(name, sizeof name, "stop[%zu]", i);
        TD_TRY(check_stop(f, name, one));
        r->stop[r->n_stop++] = json_string_value(one);
    }
    for (size_t i = 0; i < d->n_stop; i++)
        r->stop[r->n_stop++] = d->stop[i];
    return TD_OK;
}
