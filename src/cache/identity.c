/* identity.c - everything that forms keys, line by line, into one digest. */
#include "cache/identity.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "format/hub_digest.h"

#define ARITHMETIC 1u /* goes up when a family or a backend comes to give other bits for the same weights */
#define SAMPLE 256u   /* bytes at the start, a third, two thirds and the end of a tensor */

static void add_text(td_hub_digest *d, const char *s) {
    td_hub_digest_add(d, s, strlen(s) + 1); /* with its end, so that texts do not run together */
}

static void add_numbers(td_hub_digest *d, const uint64_t *v, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint8_t bytes[8];
        for (int k = 0; k < 8; k++)
            bytes[k] = (uint8_t)(v[i] >> 8 * k);
        td_hub_digest_add(d, bytes, sizeof bytes);
    }
}

static void add_tensor(td_hub_digest *d, const td_tensor *t) {
    add_text(d, t->name);
    const uint64_t about[] = {(uint64_t)t->dtype, (uint64_t)t->n_dims, t->size};
    add_numbers(d, about, 3);
    add_numbers(d, t->dim, (size_t)t->n_dims);
    size_t n = t->size < SAMPLE ? t->size : SAMPLE;
    for (size_t i = 0; i < 4 && n; i++)
        td_hub_digest_add(d, t->data + (t->size - n) / 3 * i, n);
}

static int by_name(const void *a, const void *b) {
    const td_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static td_status add_weights(td_hub_digest *d, const td_checkpoint *ck, td_error *err) {
    size_t n = td_checkpoint_n_tensors(ck);
    const td_tensor **t = td_calloc(n, sizeof *t);
    if (!t)
        return td_fail(err, TD_E_NOMEM, "out of memory for the names of %zu tensors", n);
    for (size_t i = 0; i < n; i++)
        t[i] = td_checkpoint_tensor_at(ck, i);
    qsort(t, n, sizeof *t, by_name);
    for (size_t i = 0; i < n; i++)
        add_tensor(d, t[i]);
    td_free(t);
    return TD_OK;
}

static td_status add_config(td_hub_digest *d, const td_checkpoint *ck, td_error *err) {
    char *text = json_dumps(td_checkpoint_config(ck), JSON_SORT_KEYS | JSON_COMPACT);
    if (!text)
        return td_fail(err, TD_E_NOMEM, "out of memory for a config");
    add_text(d, text);
    free(text); /* jansson's */
    return TD_OK;
}

static void add_layout(td_hub_digest *d, const td_model *m) {
    const td_kv_layout *kv = &m->kv;
    const uint64_t about[] = {ARITHMETIC,
                              (uint64_t)kv->type,
                              kv->page_tokens,
                              kv->n_groups,
                              kv->n_layers,
                              m->info.n_vocab,
                              m->info.n_embd,
                              m->info.snapshot_bytes,
                              m->info.n_layers,
                              (uint64_t)m->info.mtp_loaded,
                              m->info.mtp_loaded ? m->opt.mtp_bits : 0};
    add_numbers(d, about, sizeof about / sizeof about[0]);
    for (uint32_t g = 0; g < kv->n_groups; g++)
        add_numbers(d, (const uint64_t[]){kv->group[g].window, kv->group[g].page_bytes}, 2);
    for (uint32_t l = 0; l < kv->n_layers; l++) {
        const td_kv_layer *x = &kv->layer[l];
        add_numbers(d, (const uint64_t[]){x->group, x->n_kv_heads, x->head_dim, x->k_offset, x->v_offset}, 5);
    }
}

td_status td_model_identity(td_identity *out, const td_checkpoint *ck, const td_model *m, const char *settings,
                            td_error *err) {
    td_hub_digest d;
    td_hub_digest_init(&d, TD_HUB_SHA256);
    add_text(&d, m->info.family);
    add_text(&d, m->be->ops->name);
    add_text(&d, td_backend_cpu_isa(m->be));
    add_text(&d, settings ? settings : "");
    add_layout(&d, m);
    TD_TRY(add_config(&d, ck, err));
    TD_TRY(add_weights(&d, ck, err));
    char text[TD_HUB_DIGEST_TEXT_SIZE];
    td_hub_digest_text(&d, text);
    memcpy(out->text, text, sizeof out->text);
    return TD_OK;
}
