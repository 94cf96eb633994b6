/* model.c - the registry of families, and what they share: names, the layout of KV pages. */
#include "model/model.h"

#include <string.h>

#include "base/file.h"
#include "model/families.h"

static const td_model_family *const families[] = {&td_family_gemma4, &td_family_qwen35};

td_model_options td_model_options_default(void) {
    return (td_model_options){.kv_type = TD_KV_BF16,
                              .page_tokens = 64,
                              .max_rows = 512,
                              .max_out = 512,
                              .max_logits = 16,
                              .max_tentative = 16};
}

static td_status check_options(const td_model_options *o, td_error *err) {
    if (o->page_tokens < 8 || o->page_tokens > 1024 || (o->page_tokens & (o->page_tokens - 1)))
        return td_fail(err, TD_E_ARG, "KV page of %u tokens, expected a power of two from 8 to 1024", o->page_tokens);
    if (o->max_rows < 1 || o->max_rows > 65536 || o->max_out > o->max_rows || o->max_logits > o->max_rows)
        return td_fail(err, TD_E_ARG,
                       "a pass of %u rows with %u outputs and %u logits, expected 1 to 65536 rows and no "
                       "more outputs than rows",
                       o->max_rows, o->max_out, o->max_logits);
    return TD_OK;
}

td_status td_model_open(td_model **out, td_checkpoint *ck, td_backend *be, const td_model_options *opt, td_error *err) {
    *out = NULL;
    TD_TRY(check_options(opt, err));
    const json_t *config = td_checkpoint_config(ck);
    const char *type = json_string_value(json_object_get(config, "model_type"));
    if (!type)
        return td_fail(err, TD_E_MODEL, "%s/config.json: no \"model_type\"", td_checkpoint_path(ck));
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (families[i]->matches(type))
            return families[i]->open(out, ck, be, opt, err);
    if (td_family_is_assistant(type))
        return td_fail(err, TD_E_MODEL,
                       "%s: model_type \"%s\" is an assistant, not a trunk; give it as --mtp-assistant-model",
                       td_checkpoint_path(ck), type);
    return td_fail(err, TD_E_UNSUPPORTED,
                   "%s/config.json: model_type \"%s\", expected one of gemma4, gemma4_text, "
                   "gemma4_unified, gemma4_unified_text, qwen3_5, qwen3_5_text, qwen3_5_moe, qwen3_5_moe_text",
                   td_checkpoint_path(ck), type);
}

/* Bytes [data, data + size) of a map: read once, or let go. */
static void visit(const uint8_t *data, size_t size, bool forget) {
    static const size_t page = 4096;
    if (forget)
        td_map_forget(data, data + size);
    for (size_t i = 0; data && !forget && i < size; i += page)
        (void)*(const volatile uint8_t *)(data + i);
}

static void visit_matrix(const td_matrix *m) {
    const size_t rows = (size_t)m->n_stack * m->n_out;
    visit(m->data, rows * m->row_bytes, m->packed != NULL);
    visit(m->scales, rows * m->scale_row_bytes, m->packed != NULL);
    visit(m->biases, rows * m->scale_row_bytes, m->packed != NULL);
}

td_status td_model_load_all(td_backend *be, td_matrix *const *m, size_t n, td_loading *l, td_error *err) {
    for (size_t i = 0; i < n; i++) {
        TD_TRY(be->ops->adopt(be, m[i], err));
        if (be->ops->decodes && be->ops->decodes(be, m[i])) {
            l->slow = l->slow ? l->slow : m[i];
            l->slow_bytes += td_matrix_bytes(m[i]);
        }
        if (m[i]->mapped)
            visit_matrix(m[i]);
        l->done += td_matrix_bytes(m[i]);
        l->done = l->done < l->total ? l->done : l->total;
        if (l->progress && !l->progress(l->user, "load", l->done, l->total))
            return td_fail(err, TD_E_CANCELLED, "loading was cancelled");
    }
    return TD_OK;
}

static void tell_slow(const td_log *log, const td_loading *l) {
    char format[48];
    if (l->slow)
        td_log_warn(log, "%s is %s, which has no kernels: %.1f MB of such weights are decoded at every pass, slowly",
                    l->slow->name, td_matrix_describe(l->slow, format, sizeof format), (double)l->slow_bytes * 1e-6);
}

td_status td_model_load(td_model *m, td_progress_fn progress, void *user, td_error *err) {
    const td_model_info *info = &m->info;
    td_loading l = {.progress = progress, .user = user};
    l.total = info->weight_bytes - info->lookup_bytes + info->heap_bytes + info->mtp_bytes;
    TD_TRY(m->ops->adopt(m, &l, err));
    tell_slow(m->opt.log, &l);
    if (progress && !progress(user, "load", l.total, l.total))
        return td_fail(err, TD_E_CANCELLED, "loading was cancelled");
    return TD_OK;
}

void td_model_close(td_model **m) {
    if (!m || !*m)
        return;
    (*m)->ops->close(*m);
    *m = NULL;
}

td_status td_model_forward(td_model *m, const td_pass *pass, td_error *err) {
    TD_TRY(m->ops->forward(m, pass, err));
    return m->be->ops->wait(m->be, err);
}

td_status td_model_heads(td_model *m, const td_head_pass *pass, td_error *err) {
    if (!m->info.mtp_loaded)
        return td_fail(err, TD_E_ARG, "the model was opened without draft heads");
    TD_TRY(m->ops->heads(m, pass, err));
    return m->be->ops->wait(m->be, err);
}

const json_t *td_model_text_config(const td_checkpoint *ck, const char **where) {
    const json_t *root = td_checkpoint_config(ck);
    const json_t *text = json_object_get(root, "text_config");
    *where = json_is_object(text) ? "config.json text_config" : "config.json";
    return json_is_object(text) ? text : root;
}

static const char *strip(const char *s, const char *prefix) {
    size_t n = strlen(prefix);
    return strncmp(s, prefix, n) == 0 ? s + n : s;
}

const char *td_model_plain_name(const char *name) {
    return strip(strip(strip(name, "model."), "language_model."), "model.");
}

td_status td_model_alias_plain_names(td_checkpoint *ck, td_error *err) {
    for (size_t i = 0; i < td_checkpoint_n_tensors(ck); i++) {
        const char *name = td_checkpoint_tensor_at(ck, i)->name;
        const char *plain = td_model_plain_name(name);
        if (plain != name)
            TD_TRY(td_checkpoint_alias(ck, plain, name, err));
    }
    return TD_OK;
}

void td_kv_layout_finish(td_kv_layout *layout) {
    size_t element = td_kv_type_bytes(layout->type);
    for (uint32_t g = 0; g < layout->n_groups; g++)
        layout->group[g].page_bytes = 0;
    for (uint32_t i = 0; i < layout->n_layers; i++) {
        td_kv_layer *l = &layout->layer[i];
        td_kv_group *g = &layout->group[l->group];
        size_t bytes = (size_t)l->n_kv_heads * l->head_dim * layout->page_tokens * element;
        bytes = (bytes + 63) / 64 * 64;
        l->k_offset = g->page_bytes;
        l->v_offset = g->page_bytes + bytes;
        g->page_bytes += 2 * bytes;
    }
}

td_status td_model_narrow(td_matrix *m, uint32_t bits, td_error *err) {
    uint32_t group = m->n_in % 64 == 0 ? 64 : 32;
    if (!m->data || m->bits <= bits || m->n_in % group)
        return TD_OK;
    td_matrix q;
    TD_TRY(td_matrix_quantize(&q, m, bits, group, TD_DTYPE_BF16, err));
    td_matrix_free(m);
    *m = q;
    return TD_OK;
}

void td_model_describe_weights(td_model_info *info, const uint64_t *bits_count, const td_matrix *const *some,
                               size_t n) {
    info->weight_bits = 0;
    for (uint32_t b = 1; b <= 32; b++)
        if (bits_count[b] > bits_count[info->weight_bits])
            info->weight_bits = b;
    for (size_t i = 0; i < n; i++)
        if (some[i]->data && some[i]->bits == info->weight_bits) {
            td_matrix_describe(some[i], info->weight_format, sizeof info->weight_format);
            return;
        }
}
