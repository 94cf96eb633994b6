/* engine.c - opens a trunk, its drafter and its texts, in that order, and refuses what does not fit before the next
 * expensive step: a checkpoint too large for memory is refused before it is read, a drafter that is not the trunk's
 * before it is quantised. */
#include "engine/drafting.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/pool.h"
#include "engine/constrain.h"
#include "engine/module_class.h"
#include "engine/texts.h"
#include "text/detok.h"

#define DEFAULT_CTX 8192u
#define MAX_CTX (1u << 24)
#define MAX_PARALLEL 1024u
#define MAX_PROMPT_TOKENS ((size_t)1 << 24)
#define MAX_TEXT ((size_t)1 << 30)
#define MAX_JSON_DEPTH 64
#define CALIBRATION_SECONDS 1.0 /* to measure rounds in, at most */
#define CALIBRATION_SHARE 0.1   /* or of the time that loading has taken, if that is more */

td_engine_options td_engine_options_default(void) {
    return (td_engine_options){
        .parallel = 1, .num_mtp_tokens = TD_DEPTH_AUTO, .prefill_size = 512, .kv_page = 64, .isa = "auto"};
}

td_sampling td_sampling_default(void) {
    return (td_sampling){.top_p = 1, .repetition_penalty = 1};
}

td_request td_request_default(void) {
    return (td_request){.sampling = td_sampling_default(), .num_mtp_tokens = -1, .n_logprobs = -1};
}

const char *td_finish_name(td_finish f) {
    switch (f) {
    case TD_FINISH_STOP:
        return "stop";
    case TD_FINISH_LENGTH:
        return "length";
    case TD_FINISH_CANCELLED:
        return "cancelled";
    case TD_FINISH_TIME:
        return "time";
    case TD_FINISH_NONE:
        break;
    }
    return "";
}

void td_tokens_free(td_token *tokens) {
    td_free(tokens);
}

void td_text_free(char *text) {
    td_free(text);
}

const td_engine_info *td_engine_describe(const td_engine *e) {
    return &e->info;
}

td_sampling td_engine_sampling(const td_engine *e) {
    return e->sampling;
}

/* ---- opening, step by step ---- */

static td_status check_options(const td_engine_options *o, td_error *err) {
    if (!o->model || !*o->model)
        return td_fail(err, TD_E_ARG, "no model given, expected a checkpoint directory or a hub id");
    if (o->prefill_size < 1 || o->prefill_size > 8192)
        return td_fail(err, TD_E_ARG, "a prefill of %u rows a pass, expected 1 to 8192", o->prefill_size);
    if (o->parallel < 1 || o->parallel > MAX_PARALLEL)
        return td_fail(err, TD_E_ARG, "%u sequences a pass, expected 1 to %u", o->parallel, MAX_PARALLEL);
    if (o->n_ctx > MAX_CTX)
        return td_fail(err, TD_E_ARG, "a context of %u tokens, expected at most %u", o->n_ctx, MAX_CTX);
    return td_drafting_check(o, err);
}

static td_status open_backend(td_engine *e, const td_engine_options *o, td_error *err) {
    const char *isa = o->isa ? o->isa : "auto";
    e->float_activations = o->float_activations;
    if (strcmp(isa, "reference") == 0) {
        e->info.isa = "reference";
        e->info.n_threads = 1;
        return td_backend_ref_open(&e->be, err);
    }
    td_cpu_options cpu = {.n_threads = o->n_threads,
                          .pin = o->pin,
                          .float_activations = o->float_activations,
                          .no_packing = o->no_packing};
    if (!td_isa_named(isa, &cpu.isa))
        return td_fail(
            err, TD_E_ARG,
            "instruction set \"%s\", expected auto, generic, avx2, avxvnni, avx512, neon, neon+dotprod or reference",
            isa);
    TD_TRY(td_backend_cpu_open(&e->be, &cpu, err));
    e->info.isa = td_backend_cpu_isa(e->be);
    e->info.n_threads = td_backend_cpu_threads(e->be);
    return TD_OK;
}

static uint64_t to_mib(uint64_t bytes) {
    return (bytes + (1 << 20) - 1) >> 20;
}

static bool fits(const td_memory_plan *m) {
    return m->weights + m->drafter + m->kv + m->scratch <= m->available;
}

static td_status check_memory(td_engine *e, const td_engine_options *o, td_error *err) {
    const td_memory_plan *m = &e->info.memory;
    uint64_t need = m->weights + m->drafter + m->kv + m->scratch;
    if (fits(m) || o->ignore_memory)
        return TD_OK;
    return td_fail(err, TD_E_LIMIT,
                   "%s: needs %llu MiB (weights %llu, drafter %llu, keys and values of %u tokens %llu, passes "
                   "%llu), but %llu MiB are %s; use a smaller context, fewer bits, or ignore the plan",
                   e->trunk_path, (unsigned long long)to_mib(need), (unsigned long long)to_mib(m->weights),
                   (unsigned long long)to_mib(m->drafter), e->info.n_ctx, (unsigned long long)to_mib(m->kv),
                   (unsigned long long)to_mib(m->scratch), (unsigned long long)to_mib(m->available),
                   o->memory_limit ? "allowed" : "available");
}

static uint64_t drafter_bytes(const td_engine *e, uint32_t n_ctx) {
    const td_drafter *d = e->drafter;
    if (!d)
        return 0;
    return d->weight_bytes + (d->ops->heap_at ? d->ops->heap_at(d, n_ctx) : d->heap_bytes);
}

td_memory_plan td_engine_plan(const td_engine *e, uint32_t n_ctx) {
    const td_model_info *info = &e->model->info;
    const td_model_options *m = &e->model->opt;
    return (td_memory_plan){
        .weights = info->weight_bytes - info->lookup_bytes + info->heap_bytes,
        .scratch = info->scratch_bytes + (uint64_t)m->max_logits * info->n_vocab * 2 * sizeof(float),
        .drafter = drafter_bytes(e, n_ctx),
        .kv = td_kv_plan_bytes(&e->model->kv, n_ctx, m->max_rows, e->decoder_options.max_depth + 1) +
              info->state_bytes + TD_SNAPSHOTS * info->snapshot_bytes,
        .available = e->info.memory.available};
}

/* Shortens the context to what fits, as far as the options allow. The plan only grows with the context. */
static void fit_context(td_engine *e, const td_engine_options *o) {
    td_memory_plan p = td_engine_plan(e, e->info.n_ctx);
    uint32_t least = o->n_ctx_least;
    if (least && least < e->info.n_ctx && !o->ignore_memory && !fits(&p)) {
        uint32_t beyond = e->info.n_ctx;
        while (beyond - least > 1) {
            uint32_t middle = least + (beyond - least) / 2;
            p = td_engine_plan(e, middle);
            *(fits(&p) ? &least : &beyond) = middle;
        }
        e->info.n_ctx = least;
    }
    e->info.memory = td_engine_plan(e, e->info.n_ctx);
}

static td_status open_model(td_engine *e, const td_engine_options *o, td_error *err) {
    td_model_options m = td_model_options_default();
    td_decoder_options d = td_drafting_decoder(o);
    m.mtp = td_drafting_wants_heads(o);
    m.mtp_bits = o->mtp_bits;
    td_decoder_model_options(&d, &m);
    m.kv_type = o->kv_f32 ? TD_KV_F32 : TD_KV_BF16;
    m.page_tokens = o->kv_page;
    m.log = &e->log;
    td_status st = td_model_open(&e->model, e->ck, e->be, &m, err);
    if (st != TD_OK)
        return st;
    const td_model_info *info = &e->model->info;
    uint32_t most = o->n_ctx ? o->n_ctx : DEFAULT_CTX;
    e->info.n_ctx = most < info->n_ctx_train || o->n_ctx ? most : info->n_ctx_train;
    if (e->info.n_ctx > info->n_ctx_train)
        td_log_warn(&e->log, "a context of %u tokens, but the model was made for %u", e->info.n_ctx, info->n_ctx_train);
    e->info.family = info->family;
    e->info.weight_format = info->weight_format;
    e->info.n_params = info->n_params;
    e->info.n_vocab = info->n_vocab;
    e->info.n_embd = info->n_embd;
    e->info.n_layers = info->n_layers;
    e->decoder_options = d;
    e->info.memory.available = o->memory_limit ? o->memory_limit : td_memory_available();
    fit_context(e, o);
    return check_memory(e, o, err);
}

/* A model without a tokenizer or a template still runs on token ids; who asks it for text is told what is missing. */
static td_status keep_reason(char **reason, const td_error *problem, td_error *err) {
    *reason = td_strdup(problem->message);
    return *reason ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory");
}

static td_status open_texts(td_engine *e, td_error *err) {
    td_error problem = {0};
    td_status st = td_texts_tokenizer(&e->tokenizer, e->ck, &problem);
    if (st == TD_E_NOTFOUND)
        return keep_reason(&e->tokenizer_error, &problem, err);
    if (st == TD_OK) {
        st = td_texts_chat(&e->chat, e->ck, &problem);
        if (st == TD_E_NOTFOUND)
            return keep_reason(&e->chat_error, &problem, err);
    }
    if (st != TD_OK && err) /* there is one, and it is broken */
        *err = problem;
    return st;
}

static td_status open_decoder(td_engine *e, const td_engine_options *o, td_error *err) {
    td_decoder_options *d = &e->decoder_options;
    const td_memory_plan *m = &e->info.memory;
    uint64_t other = m->weights + m->drafter + m->scratch;
    e->kv_limit = m->available > other + m->kv ? m->available - other : m->kv;
    TD_TRY(td_kv_pool_open(&e->pool, &e->model->kv, e->be, o->ignore_memory ? 0 : e->kv_limit, err));
    if (o->cache_bytes)
        TD_TRY(td_prompt_cache_open(&e->cache, e->model, e->pool, o->cache_bytes, err));
    d->cache = e->cache;
    return td_decoder_open(&e->decoder, e->model, e->drafter, e->pool, d, err);
}

/* Depths are chosen by what rounds cost: that is found out now rather than at the first user's expense. */
static td_status calibrate(td_engine *e, const td_engine_options *o, int64_t began, td_error *err) {
    double share = CALIBRATION_SHARE * td_clock_since(began);
    td_calibration c = {.n_ctx = e->info.n_ctx,
                        .seconds = share > CALIBRATION_SECONDS ? share : CALIBRATION_SECONDS,
                        .progress = e->progress,
                        .user = e->user};
    if (!e->info.mtp_auto || o->no_calibration)
        return TD_OK;
    return td_decoder_calibrate(e->decoder, &c, err);
}

/* A model that means nothing should not be taken for one that answers badly. */
static td_status check_meaning(td_engine *e, const td_engine_options *o, td_error *err) {
    e->info.synthetic = td_checkpoint_synthetic(e->ck);
    if (!e->info.synthetic || !o->refuse_synthetic)
        return TD_OK;
    return td_fail(err, TD_E_MODEL,
                   "%s: random weights, made for measuring (tandem bench synth); to serve them must be asked for "
                   "(--allow-synthetic)",
                   e->trunk_path);
}

static td_status open_all(td_engine *e, const td_engine_options *o, td_error *err) {
    int64_t began = td_clock_ns();
    TD_TRY(check_options(o, err));
    TD_TRY(td_grammars_open(&e->grammars, err));
    TD_TRY(td_hub_resolve(o->model, o->hub_cache, &e->trunk_path, err));
    e->info.model_path = e->trunk_path;
    TD_TRY(td_checkpoint_open(&e->ck, e->trunk_path, &e->log, err));
    TD_TRY(check_meaning(e, o, err));
    TD_TRY(open_backend(e, o, err));
    TD_TRY(open_model(e, o, err));
    TD_TRY(open_texts(e, err));
    TD_TRY(td_drafting_open(e, o, err));
    fit_context(e, o); /* the drafter wants its part */
    TD_TRY(check_memory(e, o, err));
    TD_TRY(td_engine_load_generation(e, err));
    TD_TRY(open_decoder(e, o, err));
    TD_TRY(td_model_load(e->model, e->progress, e->user, err));
    return calibrate(e, o, began, err);
}

td_status td_engine_open(td_engine **out, const td_engine_options *opt, td_error *err) {
    *out = NULL;
    int64_t start = td_clock_ns();
    td_engine *e = td_calloc(1, sizeof *e);
    if (!e)
        return td_fail(err, TD_E_NOMEM, "out of memory for an engine");
    e->log = (td_log){.fn = opt->log, .user = opt->user, .level = TD_LOG_DEBUG};
    e->progress = opt->progress;
    e->user = opt->user;
    atomic_flag_clear(&e->busy);
    td_status st = open_all(e, opt, err);
    if (st != TD_OK) {
        td_engine_close(&e);
        return st;
    }
    td_pool_leave(); /* who opens need not be who generates, and starts other threads */
    e->info.load_seconds = td_clock_since(start);
    *out = e;
    return TD_OK;
}

void td_engine_close(td_engine **pe) {
    if (!pe || !*pe)
        return;
    td_engine *e = *pe;
    td_decoder_close(&e->decoder);
    td_prompt_cache_close(&e->cache);
    td_kv_pool_close(&e->pool);
    td_drafter_close(&e->drafter);
    td_model_close(&e->model);
    td_checkpoint_close(&e->drafter_ck);
    td_checkpoint_close(&e->ck);
    td_backend_close(&e->be);
    td_grammars_close(&e->grammars);
    td_tokenizer_close(&e->tokenizer);
    td_chat_template_close(&e->chat);
    td_free(e->tokenizer_error);
    td_free(e->chat_error);
    td_free(e->end);
    td_free(e->banned);
    td_free(e->trunk_path);
    td_free(e->drafter_path);
    td_free(e);
    *pe = NULL;
}

/* ---- texts ---- */

static td_status need_tokenizer(const td_engine *e, td_error *err) {
    return e->tokenizer ? TD_OK : td_fail(err, TD_E_NOTFOUND, "no tokenizer: %s", e->tokenizer_error);
}

td_status td_engine_tokenize(const td_engine *e, const char *text, size_t n_text, bool add_bos, bool special,
                             td_token **tokens, size_t *n_tokens, td_error *err) {
    *tokens = NULL;
    *n_tokens = 0;
    TD_TRY(need_tokenizer(e, err));
    td_token_list list;
    td_token_list_init(&list, MAX_PROMPT_TOKENS);
    unsigned flags = (add_bos ? TD_ENCODE_ADD_SPECIAL : 0) | (special ? TD_ENCODE_PARSE_SPECIAL : 0);
    td_status st = td_tokenizer_encode(e->tokenizer, text, n_text, flags, &list, err);
    *n_tokens = list.n;
    if (st == TD_OK)
        *tokens = td_token_list_steal(&list);
    else
        *n_tokens = 0;
    td_token_list_free(&list);
    return st;
}

td_status td_engine_detokenize(const td_engine *e, const td_token *tokens, size_t n_tokens, bool special, char **text,
                               size_t *n_text, td_error *err) {
    *text = NULL;
    *n_text = 0;
    TD_TRY(need_tokenizer(e, err));
    td_buf b;
    td_buf_init(&b, MAX_TEXT);
    td_status st = td_tokenizer_decode(e->tokenizer, tokens, n_tokens, special ? 0 : TD_DETOK_SKIP_SPECIAL, &b, err);
    if (st == TD_OK) {
        *n_text = b.size;
        *text = td_buf_steal(&b);
        st = *text ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory for the text of %zu tokens", n_tokens);
    }
    td_buf_free(&b);
    return st;
}

/* A JSON argument of the caller: absent (NULL) stays NULL. */
static td_status parse_argument(const char *text, const char *what, json_t **out, td_error *err) {
    *out = NULL;
    return text ? td_json_parse(text, strlen(text), MAX_JSON_DEPTH, what, out, err) : TD_OK;
}

td_status td_engine_chat_prompt(const td_engine *e, const char *messages, const char *tools, const char *kwargs,
                                bool add_generation_prompt, char **text, td_error *err) {
    *text = NULL;
    if (!e->chat)
        return td_fail(err, TD_E_NOTFOUND, "no chat template: %s", e->chat_error ? e->chat_error : e->tokenizer_error);
    json_t *m = NULL, *t = NULL, *k = NULL;
    td_buf b;
    td_buf_init(&b, TD_JINJA_MAX_OUTPUT);
    td_status st = parse_argument(messages, "messages", &m, err);
    if (st == TD_OK)
        st = parse_argument(tools, "tools", &t, err);
    if (st == TD_OK)
        st = parse_argument(kwargs, "template variables", &k, err);
    if (st == TD_OK) {
        td_chat_request r = {.messages = m,
                             .tools = t,
                             .kwargs = k,
                             .no_generation_prompt = !add_generation_prompt,
                             .now = (int64_t)time(NULL)};
        st = td_chat_template_render(e->chat, &r, &b, err);
    }
    if (st == TD_OK) {
        *text = td_buf_steal(&b);
        st = *text ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory for the prompt");
    }
    td_buf_free(&b);
    json_decref(m);
    json_decref(t);
    json_decref(k);
    return st;
}
