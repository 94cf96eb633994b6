/* test_identity.c - the mark of a model and of the way it is run: the same wherever the checkpoint lies, another for
 * everything that changes keys. */
#include "support/rewrite.h"

#include "cache/identity.h"

static td_identity mark_of(const char *path, const char *backend, td_model_options o, const char *settings) {
    td_backend *be = NULL;
    td_checkpoint *ck;
    td_model *m;
    td_identity id;
    if (strcmp(backend, "reference") == 0)
        ASSERT_OK(td_backend_ref_open(&be, err));
    else
        ASSERT_OK(td_backend_cpu_open(
            &be,
            &(td_cpu_options){.n_threads = 1, .isa = strcmp(backend, "generic") == 0 ? TD_ISA_GENERIC : TD_ISA_AUTO},
            err));
    ASSERT_OK(td_checkpoint_open(&ck, path, NULL, err));
    ASSERT_OK(td_model_open(&m, ck, be, &o, err));
    ASSERT_OK(td_model_identity(&id, ck, m, settings, err));
    td_model_close(&m);
    td_checkpoint_close(&ck);
    td_backend_close(&be);
    assert_int_equal(strspn(id.text, "0123456789abcdef"), TD_IDENTITY_CHARS);
    return id;
}

static td_identity plain_mark(const char *path) {
    return mark_of(path, "generic", td_model_options_default(), NULL);
}

static void check_all_differ(const td_identity *id, size_t n) {
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < i; k++)
            if (strcmp(id[i].text, id[k].text) == 0)
                fail_msg("the ways %zu and %zu have one mark", i, k);
}

static void the_mark_is_of_the_model_and_the_way_it_is_run(void **state) {
    (void)state;
    char dense[512], moe[512], qwen[512];
    fixture_path("gemma4-dense", NULL, dense, sizeof dense);
    fixture_path("gemma4-moe", NULL, moe, sizeof moe);
    fixture_path("qwen35-dense", NULL, qwen, sizeof qwen);
    td_model_options o = td_model_options_default(), f32 = o, pages = o, heads = o, narrow = o, rows = o;
    f32.kv_type = TD_KV_F32;
    pages.page_tokens = 32;
    heads.mtp = narrow.mtp = true;
    narrow.mtp_bits = 4;
    rows.max_rows = 1000; /* changes no bit */
    const td_identity id[] = {
        mark_of(dense, "generic", o, NULL),   mark_of(moe, "generic", o, NULL),
        mark_of(qwen, "generic", o, NULL),    mark_of(dense, "generic", f32, NULL),
        mark_of(dense, "generic", pages, ""), mark_of(dense, "reference", o, NULL),
        mark_of(dense, "generic", o, "x=1"),  mark_of(qwen, "generic", heads, NULL),
        mark_of(qwen, "generic", narrow, ""),
    };
    check_all_differ(id, sizeof id / sizeof id[0]);
    assert_string_equal(mark_of(dense, "generic", rows, "").text, id[0].text);
    assert_string_equal(mark_of(dense, "generic", o, NULL).text, id[0].text);
    if (strcmp(mark_of(dense, "cpu", o, NULL).text, id[0].text) == 0) { /* unless this machine has no more */
        td_backend *be;
        ASSERT_OK(td_backend_cpu_open(&be, NULL, err));
        assert_string_equal(td_backend_cpu_isa(be), "generic");
        td_backend_close(&be);
    }
}

static void another_checkpoint_has_another_mark(void **state) {
    (void)state;
    char path[512];
    td_identity id[8] = {plain_mark(fixture_path("gemma4-dense", NULL, path, sizeof path))};
    rewrite w;
    rewrite_open(&w, "gemma4-dense");
    assert_string_equal(plain_mark(rewrite_save(&w)).text, id[0].text); /* a copy elsewhere */
    size_t n = 1;
    for (size_t at = 0; at < 3; at++) { /* one bit of one weight: the first, the last of it, that of a small vector */
        td_tensor *t = &w.tensor[at == 2 ? w.n - 1 : at], whole = *t;
        uint8_t *data = rewrite_keep(&w, td_malloc(t->size));
        memcpy(data, t->data, t->size);
        data[at == 1 ? t->size - 2 : 0] ^= 1;
        t->data = data;
        id[n++] = plain_mark(rewrite_save(&w));
        *t = whole;
    }
    json_object_set_new(w.config, "rms_norm_eps", json_real(2e-6));
    id[n++] = plain_mark(rewrite_save(&w));
    check_all_differ(id, n);
    rewrite_close(&w);
}

static void no_memory_is_an_error(void **state) {
    (void)state;
    char path[512];
    td_backend *be = fixture_backend("generic");
    fixture f;
    td_model_options o = td_model_options_default();
    fixture_open(&f, "gemma4-dense", be, &o);
    td_identity id;
    td_error e;
    long live = td_alloc_live();
    td_alloc_fail_at(0);
    assert_int_equal(td_model_identity(&id, f.ck, f.model, NULL, &e), TD_E_NOMEM);
    td_alloc_fail_at(-1);
    assert_int_equal(td_alloc_live(), live);
    ASSERT_OK(td_model_identity(&id, f.ck, f.model, NULL, err));
    assert_string_equal(id.text, plain_mark(fixture_path("gemma4-dense", NULL, path, sizeof path)).text);
    fixture_close(&f);
    td_backend_close(&be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_mark_is_of_the_model_and_the_way_it_is_run),
        cmocka_unit_test(another_checkpoint_has_another_mark),
        cmocka_unit_test(no_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
