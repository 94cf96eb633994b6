/* inspect.c - tandem inspect: what is in a checkpoint, what Tandem makes of it, and what that costs.
 *
 * A trunk is opened as for running (so that whatever would be refused there is refused here, with the same words), but
 * with the reference backend and without reading its weights. An assistant cannot be opened without its trunk: its
 * tensors are counted, and the trunk it needs is described. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/memory.h"
#include "cache/kv.h"
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/places.h"
#include "cli/report.h"
#include "engine/census.h"
#include "engine/texts.h"
#include "engine/drafting.h"
#include "model/families.h"

typedef struct inspect_args {
    td_arg_uint ctx_size, prefill_size, depth;
    td_arg_text kv;
    td_arg_flag json;
} inspect_args;

#define I(field) offsetof(inspect_args, field)
static const td_arg table[] = {
    {"ctx-size", 'c', TD_ARG_UINT, I(ctx_size), 16, 16777216, "N",
     "positions to plan memory for (default: the model's, at most 8192)"},
    {"prefill-size", 0, TD_ARG_UINT, I(prefill_size), 1, 8192, "N", "prompt tokens a pass (default 512)"},
    {"num-mtp-tokens", 0, TD_ARG_UINT, I(depth), 0, TD_MAX_DRAFT, "N", "drafts a round to plan for (default 8)"},
    {"kv", 0, TD_ARG_CHOICE, I(kv), 0, 0, "f32|bf16", "type of keys and values (default bf16)"},
    {"json", 0, TD_ARG_FLAG, I(json), 0, 0, NULL, "print one JSON object"},
};
#undef I

/* Everything the reports need. */
typedef struct subject {
    const inspect_args *args;
    char *path;
    td_checkpoint *ck;
    const char *type; /* model_type */
    bool assistant;
    td_census census;
    /* a trunk's */
    td_backend *be;
    td_model *model;
    uint32_t n_ctx, prefill_rows;
    uint64_t kv_bytes, memory_bytes, scratch_bytes, weight_bytes;
    char tokenizer[200], template[200]; /* one line each */
    bool has_tokenizer, has_template;
} subject;

static const json_t *text_config(const subject *s) {
    const char *where;
    return td_model_text_config(s->ck, &where);
}

static long long field(const json_t *o, const char *key) {
    return json_integer_value(json_object_get(o, key));
}

/* {"sliding_attention": 8, "full_attention": 2}: how many layers of each type config.json lists. */
static json_t *layer_types(const subject *s) {
    const json_t *types = json_object_get(text_config(s), "layer_types");
    json_t *out = json_object();
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (type)
            json_object_set_new(out, type, json_integer(field(out, type) + 1));
    }
    return out;
}

/* The same for people: "8 sliding, window 256; 2 full". */
static void print_layer_types(const subject *s) {
    json_t *types = layer_types(s), *count;
    const char *type, *before = " (";
    json_object_foreach(types, type, count) {
        printf("%s%lld %.*s", before, json_integer_value(count), (int)strcspn(type, "_"), type);
        if (strcmp(type, "sliding_attention") == 0)
            printf(" with a window of %lld", field(text_config(s), "sliding_window"));
        before = ", ";
    }
    printf("%s", json_object_size(types) > 0 ? ")" : "");
    json_decref(types);
}

/* ---- opening ---- */

/* Opened, and planned for, as one sequence that the engine runs. */
static td_status open_trunk(subject *s, td_error *err) {
    td_engine_options o = td_engine_options_default();
    if (s->args->depth.given)
        o.num_mtp_tokens = (uint32_t)s->args->depth.v;
    s->prefill_rows = s->args->prefill_size.given ? (uint32_t)s->args->prefill_size.v : o.prefill_size;
    td_decoder_options d = {.max_seqs = 1, .prefill_rows = s->prefill_rows, .max_depth = td_drafting_depth(&o)};
    td_model_options m = td_model_options_default();
    m.mtp = td_drafting_wants_heads(&o);
    td_decoder_model_options(&d, &m);
    m.kv_type = s->args->kv.given && strcmp(s->args->kv.v, "f32") == 0 ? TD_KV_F32 : TD_KV_BF16;
    TD_TRY(td_backend_ref_open(&s->be, err));
    TD_TRY(td_model_open(&s->model, s->ck, s->be, &m, err));
    const td_model_info *i = &s->model->info;
    uint32_t most = i->n_ctx_train < 8192 ? i->n_ctx_train : 8192;
    s->n_ctx = s->args->ctx_size.given ? (uint32_t)s->args->ctx_size.v : most;
    s->kv_bytes = td_kv_plan_bytes(&s->model->kv, s->n_ctx, m.max_rows, d.max_depth + 1);
    s->memory_bytes = i->state_bytes + TD_SNAPSHOTS * i->snapshot_bytes;
    s->scratch_bytes = i->scratch_bytes + (uint64_t)m.max_logits * i->n_vocab * 2 * sizeof(float);
    s->weight_bytes = i->weight_bytes - i->lookup_bytes + i->heap_bytes;
    return TD_OK;
}

static void look_for_texts(subject *s) {
    td_error err = {0};
    td_tokenizer *t = NULL;
    td_chat_template *c = NULL;
    td_status st = td_texts_tokenizer(&t, s->ck, &err);
    s->has_tokenizer = st == TD_OK;
    if (st == TD_OK)
        snprintf(s->tokenizer, sizeof s->tokenizer, "%zu tokens", td_tokenizer_n_vocab(t));
    else
        snprintf(s->tokenizer, sizeof s->tokenizer, "%.190s",
                 st == TD_E_NOTFOUND ? "none: the model runs on token ids alone" : err.message);
    st = td_texts_chat(&c, s->ck, &err);
    s->has_template = st == TD_OK;
    if (st == TD_OK)
        snprintf(s->template, sizeof s->template, "its own%s",
                 td_chat_template_traits(c, true).uses_tools ? ", for tools too" : "");
    else
        snprintf(s->template, sizeof s->template, "%.190s", st == TD_E_NOTFOUND ? "none" : err.message);
    td_chat_template_close(&c);
    td_tokenizer_close(&t);
}

static td_status open_subject(subject *s, const char *path_or_id, td_error *err) {
    char *cache = td_places_hub_cache();
    td_status st = td_hub_resolve(path_or_id, cache, &s->path, err);
    td_free(cache);
    TD_TRY(st);
    TD_TRY(td_checkpoint_open(&s->ck, s->path, NULL, err));
    s->type = json_string_value(json_object_get(td_checkpoint_config(s->ck), "model_type"));
    s->assistant = s->type && td_family_is_assistant(s->type);
    td_census_take(&s->census, s->ck);
    look_for_texts(s);
    return s->assistant ? TD_OK : open_trunk(s, err);
}

static void close_subject(subject *s) {
    td_model_close(&s->model);
    td_backend_close(&s->be);
    td_checkpoint_close(&s->ck);
    td_free(s->path);
}

/* ---- for people ---- */

static void print_census(const td_census *c) {
    char params[TD_NUMBER_TEXT_SIZE], bytes[TD_NUMBER_TEXT_SIZE];
    printf("\n  %-18s %12s %12s %10s  %s\n", "", "weights", "bytes", "bits each", "formats");
    for (int k = 0; k < TD_MODULE_CLASS_COUNT; k++) {
        const td_census_class *m = &c->by[k];
        if (m->n_modules == 0)
            continue;
        printf("  %-18s %12s %12s %10.2f  ", td_module_class_name((td_module_class)k),
               td_count_text(m->params, params, sizeof params), td_bytes_text(m->bytes, bytes, sizeof bytes),
               td_bits_each(m->bytes, m->params));
        for (uint32_t i = 0; i < m->n_formats; i++)
            printf("%s%s", i > 0 ? ", " : "", m->format[i].name);
        printf("\n");
    }
}

static void print_group(const td_kv_layout *kv, uint32_t g) {
    unsigned layers = 0;
    const td_kv_layer *one = NULL;
    for (uint32_t i = 0; i < kv->n_layers; i++)
        if (kv->layer[i].group == g) {
            layers++;
            one = &kv->layer[i];
        }
    if (one == NULL)
        return;
    char bytes[TD_NUMBER_TEXT_SIZE], page[TD_NUMBER_TEXT_SIZE], window[64] = "all positions kept";
    if (kv->group[g].window)
        snprintf(window, sizeof window, "the last %u positions kept", kv->group[g].window);
    printf("    %u layer%s of %u KV head%s of %u: %s a position, %s a page, %s\n", layers, layers == 1 ? "" : "s",
           one->n_kv_heads, one->n_kv_heads == 1 ? "" : "s", one->head_dim,
           td_bytes_text(kv->group[g].page_bytes / kv->page_tokens, bytes, sizeof bytes),
           td_bytes_text(kv->group[g].page_bytes, page, sizeof page), window);
}

static uint64_t total_bytes(const subject *s) {
    uint64_t heads = s->model->info.mtp_loaded ? s->model->info.mtp_bytes : 0;
    return s->weight_bytes + heads + s->kv_bytes + s->memory_bytes + s->scratch_bytes;
}

static void print_plan(const subject *s) {
    const td_model_info *i = &s->model->info;
    char text[TD_NUMBER_TEXT_SIZE], other[TD_NUMBER_TEXT_SIZE];
    long long shared = field(text_config(s), "num_kv_shared_layers");
    printf("\nWhat Tandem does with it\n  keys and values: %s, pages of %u positions\n",
           s->model->kv.type == TD_KV_F32 ? "f32" : "bf16", s->model->kv.page_tokens);
    for (uint32_t g = 0; g < s->model->kv.n_groups; g++)
        print_group(&s->model->kv, g);
    if (i->snapshot_bytes)
        printf("  recurrent memory: %s whatever the length, and %s for drafts to be taken back\n",
               td_bytes_text(i->snapshot_bytes, text, sizeof text),
               td_bytes_text(i->state_bytes - i->snapshot_bytes, other, sizeof other));
    if (shared > 0)
        printf("  prefill: layers %u to %u share earlier layers' keys and values, and run only for rows whose output "
               "is wanted\n",
               (unsigned)(i->n_layers - shared), i->n_layers - 1);
    printf("  a pass of one row reads %s of weights\n", td_bytes_text(i->row_bytes, text, sizeof text));
    uint64_t total = total_bytes(s), available = td_memory_available();
    printf("  memory at %u positions, %u prompt tokens a pass\n", s->n_ctx, s->prefill_rows);
    printf("    %-24s %12s\n", "weights", td_bytes_text(s->weight_bytes, text, sizeof text));
    if (i->mtp_loaded)
        printf("    %-24s %12s\n", "draft heads", td_bytes_text(i->mtp_bytes, text, sizeof text));
    if (i->lookup_bytes)
        printf("    %-24s %12s  (read a row at a time, may stay on disk)\n", "tables",
               td_bytes_text(i->lookup_bytes, text, sizeof text));
    printf("    %-24s %12s\n", "keys and values", td_bytes_text(s->kv_bytes, text, sizeof text));
    if (s->memory_bytes)
        printf("    %-24s %12s  (with up to %u snapshots)\n", "recurrent memory",
               td_bytes_text(s->memory_bytes, text, sizeof text), TD_SNAPSHOTS);
    printf("    %-24s %12s\n", "passes", td_bytes_text(s->scratch_bytes, text, sizeof text));
    printf("    %-24s %12s", "together", td_bytes_text(total, text, sizeof text));
    printf(", of %s available: %s\n", td_bytes_text(available, text, sizeof text),
           total <= available ? "it fits" : "IT DOES NOT FIT");
}

static void print_head(const subject *s) {
    char params[TD_NUMBER_TEXT_SIZE], bytes[TD_NUMBER_TEXT_SIZE];
    printf("%s\n  %s, %s weights, %s of weight files\n", s->path, s->type ? s->type : "?",
           td_count_text(s->model ? s->model->info.n_params : s->census.params, params, sizeof params),
           td_bytes_text(td_checkpoint_file_bytes(s->ck), bytes, sizeof bytes));
    if (td_checkpoint_synthetic(s->ck))
        printf("  random weights, made for measuring: what they say means nothing\n");
}

/* Families spell it differently. */
static long long experts_used(const json_t *c) {
    return field(c, json_object_get(c, "top_k_experts") ? "top_k_experts" : "num_experts_per_tok");
}

static void print_heads(const subject *s) {
    const td_model_info *i = &s->model->info;
    if (td_checkpoint_note(s->ck)[0])
        printf("  note: %s\n", td_checkpoint_note(s->ck));
    if (i->has_mtp)
        printf("  draft heads: inside the checkpoint (%u tensors)%s\n", s->census.n_draft_tensors,
               i->mtp_loaded ? "" : ", left alone");
    else if (i->mtp_promised || s->census.n_draft_tensors > 0)
        printf("  draft heads: none that can run: %s\n", i->mtp_reason);
    else if (td_checkpoint_assistant(s->ck))
        printf("  draft heads: none inside; its assistant is %s\n", td_checkpoint_assistant(s->ck));
    else if (strcmp(i->family, "gemma4") == 0)
        printf("  draft heads: none inside; takes an assistant made for a trunk of width %u\n", i->n_embd);
    else
        printf("  draft heads: none inside\n");
}

static void print_trunk(const subject *s) {
    const td_model_info *i = &s->model->info;
    const json_t *c = text_config(s);
    printf("  trunk of %u layers", i->n_layers);
    print_layer_types(s);
    printf(", width %u, %lld query heads\n", i->n_embd, field(c, "num_attention_heads"));
    printf("  vocabulary %u, made for %u positions, mostly %s\n", i->n_vocab, i->n_ctx_train, i->weight_format);
    if (field(c, "hidden_size_per_layer_input") > 0)
        printf("  per-layer inputs of %lld\n", field(c, "hidden_size_per_layer_input"));
    if (field(c, "num_experts") > 0)
        printf("  %lld experts, %lld a token\n", field(c, "num_experts"), experts_used(c));
    printf("  tensors left alone: %u\n", i->n_skipped);
    print_heads(s);
    printf("  tokenizer: %s\n  chat template: %s\n", s->tokenizer, s->template);
    print_census(&s->census);
    print_plan(s);
}

static void print_assistant(const subject *s) {
    const json_t *root = td_checkpoint_config(s->ck), *c = text_config(s);
    printf("  assistant: a drafter that reads a trunk's keys and values\n"
           "  needs a trunk of width %lld with a vocabulary of %lld, head size %lld and %lld KV head%s\n",
           field(root, "backbone_hidden_size"), field(c, "vocab_size"), field(c, "head_dim"),
           field(c, "num_key_value_heads"), field(c, "num_key_value_heads") == 1 ? "" : "s");
    printf("  %lld layers", field(c, "num_hidden_layers"));
    print_layer_types(s);
    printf(", width %lld, %lld query heads\n", field(c, "hidden_size"), field(c, "num_attention_heads"));
    if (json_is_true(json_object_get(root, "use_ordered_embeddings")))
        printf("  head: the %lld best of %lld clusters of tokens\n", field(root, "centroid_intermediate_top_k"),
               field(root, "num_centroids"));
    else
        printf("  head: the whole vocabulary\n");
    printf("  use: --model TRUNK --mtp-assistant-model %s\n", s->path);
    print_census(&s->census);
}

/* ---- for scripts ---- */

static json_t *census_json(const td_census *c) {
    json_t *out = json_object();
    for (int k = 0; k < TD_MODULE_CLASS_COUNT; k++) {
        const td_census_class *m = &c->by[k];
        if (m->n_modules == 0)
            continue;
        json_t *formats = json_object();
        for (uint32_t i = 0; i < m->n_formats; i++)
            json_object_set_new(formats, m->format[i].name, json_integer((json_int_t)m->format[i].params));
        json_object_set_new(out, td_module_class_name((td_module_class)k),
                            json_pack("{s:I, s:I, s:f, s:o}", "parameters", (json_int_t)m->params, "bytes",
                                      (json_int_t)m->bytes, "bits_per_weight", td_bits_each(m->bytes, m->params),
                                      "formats", formats));
    }
    return out;
}

static json_t *kv_json(const td_kv_layout *kv) {
    json_t *groups = json_array();
    uint64_t a_token = 0;
    for (uint32_t g = 0; g < kv->n_groups; g++) {
        json_int_t layers = 0;
        for (uint32_t i = 0; i < kv->n_layers; i++)
            layers += kv->layer[i].group == g;
        a_token += kv->group[g].page_bytes / kv->page_tokens;
        json_array_append_new(groups, json_pack("{s:I, s:I, s:I, s:I}", "window", (json_int_t)kv->group[g].window,
                                                "layers", layers, "bytes_per_token",
                                                (json_int_t)(kv->group[g].page_bytes / kv->page_tokens), "page_bytes",
                                                (json_int_t)kv->group[g].page_bytes));
    }
    return json_pack("{s:s, s:I, s:I, s:o}", "type", kv->type == TD_KV_F32 ? "f32" : "bf16", "page_tokens",
                     (json_int_t)kv->page_tokens, "bytes_per_token", (json_int_t)a_token, "groups", groups);
}

static void add_trunk_json(const subject *s, json_t *out) {
    const td_model_info *i = &s->model->info;
    const json_t *c = text_config(s);
    json_object_set_new(out, "family", json_string(i->family));
    json_object_set_new(out, "weight_format", json_string(i->weight_format));
    json_object_set_new(
        out, "shape",
        json_pack("{s:I, s:I, s:I, s:I, s:o, s:I, s:I, s:I}", "layers", (json_int_t)i->n_layers, "width",
                  (json_int_t)i->n_embd, "vocabulary", (json_int_t)i->n_vocab, "context", (json_int_t)i->n_ctx_train,
                  "layer_types", layer_types(s), "kv_shared_layers", (json_int_t)field(c, "num_kv_shared_layers"),
                  "experts", (json_int_t)field(c, "num_experts"), "experts_per_token", (json_int_t)experts_used(c)));
    json_object_set_new(
        out, "draft_heads",
        json_pack("{s:b, s:b, s:s}", "inside", i->has_mtp, "used", i->mtp_loaded, "reason", i->mtp_reason));
    json_object_set_new(out, "left_alone", json_integer(i->n_skipped));
    json_object_set_new(out, "kv", kv_json(&s->model->kv));
    json_object_set_new(out, "memory",
                        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "ctx_size", (json_int_t)s->n_ctx,
                                  "weights", (json_int_t)s->weight_bytes, "tables", (json_int_t)i->lookup_bytes, "kv",
                                  (json_int_t)s->kv_bytes, "recurrent", (json_int_t)s->memory_bytes, "draft_heads",
                                  (json_int_t)(i->mtp_loaded ? i->mtp_bytes : 0), "scratch",
                                  (json_int_t)s->scratch_bytes, "total", (json_int_t)total_bytes(s), "available",
                                  (json_int_t)(td_memory_available() & INT64_MAX)));
    json_object_set_new(out, "row_bytes", json_integer((json_int_t)i->row_bytes));
}

static void add_assistant_json(const subject *s, json_t *out) {
    const json_t *root = td_checkpoint_config(s->ck), *c = text_config(s);
    json_object_set_new(out, "trunk_width", json_integer(field(root, "backbone_hidden_size")));
    json_object_set_new(out, "shape",
                        json_pack("{s:I, s:I, s:I}", "layers", (json_int_t)field(c, "num_hidden_layers"), "width",
                                  (json_int_t)field(c, "hidden_size"), "vocabulary",
                                  (json_int_t)field(c, "vocab_size")));
    json_object_set_new(out, "centroids", json_boolean(json_is_true(json_object_get(root, "use_ordered_embeddings"))));
}

static int print_json(const subject *s) {
    json_t *out = json_pack("{s:s, s:s, s:s, s:I, s:I, s:o, s:i, s:b, s:b}", "path", s->path, "kind",
                            s->assistant ? "assistant" : "trunk", "model_type", s->type ? s->type : "", "parameters",
                            (json_int_t)s->census.params, "file_bytes", (json_int_t)td_checkpoint_file_bytes(s->ck),
                            "classes", census_json(&s->census), "draft_head_tensors", (int)s->census.n_draft_tensors,
                            "tokenizer", s->has_tokenizer, "chat_template", s->has_template);
    json_object_set_new(out, "synthetic", json_boolean(td_checkpoint_synthetic(s->ck)));
    if (s->assistant)
        add_assistant_json(s, out);
    else
        add_trunk_json(s, out);
    return td_report_json(out);
}

/* ---- the command ---- */

static int inspect(const inspect_args *args, const char *path) {
    subject s = {.args = args};
    td_error err = {0};
    int rc = TD_EXIT_OK;
    td_status st = open_subject(&s, path, &err);
    if (st != TD_OK)
        rc = td_report_failure(st, &err);
    else if (args->json.given)
        rc = print_json(&s);
    else {
        print_head(&s);
        s.assistant ? print_assistant(&s) : print_trunk(&s);
    }
    close_subject(&s);
    return rc;
}

int td_command_inspect(int argc, char **argv) {
    inspect_args args = {0};
    const char *path[1];
    const td_arg_group groups[] = {{"Options", table, sizeof table / sizeof *table, &args}};
    const td_args spec = {
        .command = "tandem inspect",
        .synopsis = "PATH-OR-ID [OPTIONS]",
        .about = "Shows what is in a checkpoint, a model's or an assistant's, what Tandem does with it and the memory\n"
                 "that takes. Weights are not read.",
        .groups = groups,
        .n_groups = 1,
        .n_positional = 1,
        .positional = path,
        .positional_names = (const char *const[]){"PATH-OR-ID"},
    };
    td_args_result parsed = td_args_parse(&spec, argc, argv);
    if (parsed != TD_ARGS_OK)
        return parsed == TD_ARGS_HELP ? TD_EXIT_OK : TD_EXIT_USAGE;
    return inspect(&args, path[0]);
}
