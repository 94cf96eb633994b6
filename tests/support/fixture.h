/* fixture.h - opens a fixture checkpoint on a backend, with the reference vectors beside it. Static functions, so that
 * each test program links only its own room. */
#ifndef TD_TESTS_FIXTURE_H
#define TD_TESTS_FIXTURE_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "model/model.h"

#define ASSERT_OK(call)                                                                                                \
    do {                                                                                                               \
        td_error err_ = {0};                                                                                           \
        td_error *err = &err_;                                                                                         \
        if ((call) != TD_OK)                                                                                           \
            fail_msg("%s: %s", #call, err_.message);                                                                   \
    } while (0)

static inline td_backend *fixture_backend(const char *name) {
    td_backend *be = NULL;
    if (strcmp(name, "reference") == 0) {
        ASSERT_OK(td_backend_ref_open(&be, err));
        return be;
    }
    static const struct {
        const char *name;
        td_isa isa;
    } levels[] = {{"generic", TD_ISA_GENERIC}, {"avx2", TD_ISA_AVX2}, {"avx512", TD_ISA_AVX512}, {"cpu", TD_ISA_AUTO}};
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++)
        if (strcmp(name, levels[i].name) == 0) {
            td_cpu_options opt = {.n_threads = 2, .isa = levels[i].isa};
            td_error e;
            td_status st = td_backend_cpu_open(&be, &opt, &e);
            if (st != TD_E_UNSUPPORTED && st != TD_OK)
                fail_msg("%s", e.message);
            return be; /* NULL: this machine lacks the level */
        }
    fail_msg("no backend %s", name);
    return NULL;
}

typedef struct fixture {
    td_checkpoint *ck;
    td_backend *be; /* borrowed */
    td_model *model;
    td_safetensors *vectors;
} fixture;

static inline char *fixture_path(const char *name, const char *file, char *buf, size_t size) {
    snprintf(buf, size, TD_FIXTURES "/vectors/%s%s%s", name, file ? "/" : "", file ? file : "");
    return buf;
}

static inline void fixture_open(fixture *f, const char *name, td_backend *be, const td_model_options *opt) {
    char path[512];
    *f = (fixture){.be = be};
    ASSERT_OK(td_checkpoint_open(&f->ck, fixture_path(name, NULL, path, sizeof path), NULL, err));
    ASSERT_OK(td_model_open(&f->model, f->ck, be, opt, err));
    ASSERT_OK(td_safetensors_open(&f->vectors, fixture_path(name, "vectors.safetensors", path, sizeof path), err));
}

static inline void fixture_close(fixture *f) {
    td_model_close(&f->model);
    td_checkpoint_close(&f->ck);
    td_safetensors_close(&f->vectors);
}

/* A vector's elements; fails when it is absent or of another type or size. */
static inline const void *fixture_data(const fixture *f, const char *key, td_dtype type, size_t n) {
    const td_tensor *t = td_safetensors_find(f->vectors, key);
    if (!t || t->dtype != type || t->size != n * td_dtype_bits(type) / 8)
        fail_msg("vectors.safetensors: %s is not %zu x %s", key, n, td_dtype_name(type));
    return t->data;
}

static inline const float *fixture_f32(const fixture *f, const char *key, size_t n) {
    return fixture_data(f, key, TD_DTYPE_F32, n);
}

static inline const int32_t *fixture_i32(const fixture *f, const char *key, size_t n) {
    return fixture_data(f, key, TD_DTYPE_I32, n);
}

static inline double max_difference(const float *a, const float *b, size_t n) {
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - b[i]);
        if (!(d <= worst)) /* NaN counts as worst */
            worst = isnan(d) ? INFINITY : d;
    }
    return worst;
}

#endif
