/* options.c - see options.h. */
#include "cli/options.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/alloc.h"
#include "cli/places.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "format/hub.h"

#define M(field) offsetof(td_model_args, field)

const td_arg td_model_arg_table[] = {
    {"model", 'm', TD_ARG_TEXT, M(model), 0, 0, "PATH-OR-ID",
     "checkpoint, or hub id org/name[@revision][:gguf] (default: the embedded pair)"},
    {"mtp", 0, TD_ARG_FLAG, M(mtp), 0, 0, NULL, "insist on draft heads (those inside a checkpoint draft without it)"},
    {"no-mtp", 0, TD_ARG_FLAG, M(no_mtp), 0, 0, NULL, "leave draft heads unused"},
    {"mtp-assistant-model", 0, TD_ARG_TEXT, M(assistant), 0, 0, "PATH-OR-ID", "draft with this assistant checkpoint"},
    {"num-mtp-tokens", 0, TD_ARG_UINT, M(num_mtp_tokens), 0, TD_MAX_DRAFT, "N|auto",
     "drafts a round at most, 0 to 16, as many of them as pay; 0 decodes plainly (default auto: 8)"},
    {"mtp-fixed", 0, TD_ARG_FLAG, M(mtp_fixed), 0, 0, NULL, "make --num-mtp-tokens drafts every round, paid or not"},
    {"mtp-min-prob", 0, TD_ARG_FLOAT, M(mtp_min_prob), 0, 1, "P",
     "end a draft that its drafter holds less likely than P (default 0: where it does not pay)"},
    {"draft-model", 0, TD_ARG_TEXT, M(draft_model), 0, 0, "PATH-OR-ID",
     "draft with this smaller model of the same vocabulary"},
    {"num-draft-tokens", 0, TD_ARG_UINT, M(num_mtp_tokens), 0, TD_MAX_DRAFT, "N|auto", NULL},
    {"lookup", 0, TD_ARG_FLAG, M(lookup), 0, 0, NULL,
     "draft what followed the same words before (prompt lookup), alone or behind other drafts"},
    {"mtp-shortlist", 0, TD_ARG_UINT, M(mtp_shortlist), 0, 1 << 24, "N",
     "heads inside a checkpoint score only the N most used words"},
    {"mtp-bits", 0, TD_ARG_CHOICE, M(mtp_bits), 0, 0, "16|8|4",
     "width of the drafter's matrices (default: the model's)"},
    {"ctx-size", 'c', TD_ARG_UINT, M(ctx_size), 16, 16777216, "N",
     "positions of context (default: the model's, at most 8192)"},
    {"prefill-size", 0, TD_ARG_UINT, M(prefill_size), 1, 8192, "N", "prompt tokens a pass (default 512)"},
    {"kv", 0, TD_ARG_CHOICE, M(kv), 0, 0, "f32|bf16", "type of keys and values (default bf16)"},
    {"threads", 't', TD_ARG_UINT, M(threads), 1, 1024, "N",
     "threads (default: all processors; where each core has two, a thread a core may be as fast)"},
    {"isa", 0, TD_ARG_CHOICE, M(isa), 0, 0, "auto|generic|avx2|avxvnni|avx512|neon|neon+dotprod|reference",
     "kernels to use (default: the best the processor has)"},
    {"pin", 0, TD_ARG_FLAG, M(pin), 0, 0, NULL, "bind each thread to a processor, one of each core first"},
    {"float-activations", 0, TD_ARG_FLAG, M(float_activations), 0, 0, NULL,
     "quantised weights meet float rather than int8 activations"},
    {"no-packing", 0, TD_ARG_FLAG, M(no_packing), 0, 0, NULL,
     "read quantised weights from the file's pages, which processes share, not from a faster copy"},
    {"memory-limit-mb", 0, TD_ARG_UINT, M(memory_limit_mb), 1, 1 << 30, "N",
     "refuse a model that needs more (default: what the machine has)"},
    {"ignore-memory", 0, TD_ARG_FLAG, M(ignore_memory), 0, 0, NULL, "load it even if it does not fit"},
    {"hub-cache", 0, TD_ARG_TEXT, M(hub_cache), 0, 0, "DIR",
     "where hub models are kept (default: Hugging Face's cache)"},
    {"offline", 0, TD_ARG_FLAG, M(offline), 0, 0, NULL, "take hub ids out of the cache, download nothing"},
    {"verbose", 'v', TD_ARG_FLAG, M(verbose), 0, 0, NULL, "print what the engine logs"},
    {"quiet", 'q', TD_ARG_FLAG, M(quiet), 0, 0, NULL, "no bars and no statistics on stderr"},
};
const size_t td_model_arg_count = sizeof td_model_arg_table / sizeof *td_model_arg_table;

#undef M
#define S(field) offsetof(td_sampling_args, field)

const td_arg td_sampling_arg_table[] = {
    {"temp", 0, TD_ARG_FLOAT, S(temp), 0, 100, "T", "temperature; 0 takes the most likely token"},
    {"temperature", 0, TD_ARG_FLOAT, S(temp), 0, 100, "T", NULL},
    {"top-k", 0, TD_ARG_UINT, S(top_k), 0, INT32_MAX, "N", "keep the N most likely tokens; 0 keeps all"},
    {"top-p", 0, TD_ARG_FLOAT, S(top_p), 0, 1, "P", "keep the most likely tokens that make up P; 1 keeps all"},
    {"min-p", 0, TD_ARG_FLOAT, S(min_p), 0, 1, "P", "keep tokens at least P times as likely as the best; 0 keeps all"},
    {"repeat-penalty", 0, TD_ARG_FLOAT, S(repeat_penalty), 0.01, 100, "X",
     "make tokens seen before X times less likely"},
    {"repetition-penalty", 0, TD_ARG_FLOAT, S(repeat_penalty), 0.01, 100, "X", NULL},
    {"presence-penalty", 0, TD_ARG_FLOAT, S(presence_penalty), -100, 100, "X",
     "taken from the logit of tokens generated before"},
    {"frequency-penalty", 0, TD_ARG_FLOAT, S(frequency_penalty), -100, 100, "X", "the same, times how often"},
    {"logit-bias", 0, TD_ARG_TEXTS, S(logit_bias), 0, 0, "ID=VALUE",
     "added to the logit of a token, -inf bans it; may be repeated"},
    {"seed", 's', TD_ARG_UINT, S(seed), 0, 9007199254740991, "N",
     "of the random numbers: the same seed gives the same text"},
    {"stop", 0, TD_ARG_TEXTS, S(stop), 0, 0, "TEXT", "ends the answer and is not part of it; may be repeated"},
};
const size_t td_sampling_arg_count = sizeof td_sampling_arg_table / sizeof *td_sampling_arg_table;

#undef S

/* ---- the engine ---- */

static void log_line(void *user, td_log_level level, const char *message) {
    const td_model_args *args = user;
    if (args->log)
        td_log_write(args->log, level, "%s", message);
    else if (level >= TD_LOG_WARN && !args->quiet.given)
        td_report_note("tandem: %s: %s", level == TD_LOG_WARN ? "warning" : "error", message);
    else if (args->verbose.given)
        td_report_note("tandem: %s", message);
}

static td_engine_options engine_options(const td_opened *o, const td_model_args *args) {
    td_engine_options e = td_engine_options_default();
    e.model = o->trunk;
    e.assistant = o->assistant;
    e.mtp = args->mtp.given;
    e.no_mtp = args->no_mtp.given;
    e.draft_model = o->draft_model;
    e.lookup = args->lookup.given;
    e.mtp_shortlist = (uint32_t)args->mtp_shortlist.v;
    e.hub_cache = o->hub_cache;
    if (args->num_mtp_tokens.given)
        e.num_mtp_tokens = (uint32_t)args->num_mtp_tokens.v;
    e.mtp_fixed = args->mtp_fixed.given;
    if (args->mtp_min_prob.given)
        e.mtp_min_prob = (float)args->mtp_min_prob.v;
    if (args->mtp_bits.given)
        e.mtp_bits = strcmp(args->mtp_bits.v, "16") == 0 ? 16 : (uint32_t)(args->mtp_bits.v[0] - '0');
    e.n_ctx = (uint32_t)args->ctx_size.v;
    e.n_ctx_least = (uint32_t)args->ctx_least.v;
    if (args->prefill_size.given)
        e.prefill_size = (uint32_t)args->prefill_size.v;
    e.kv_f32 = args->kv.given && strcmp(args->kv.v, "f32") == 0;
    e.n_threads = (int)args->threads.v;
    e.isa = args->isa.given ? args->isa.v : "auto";
    e.pin = args->pin.given;
    e.float_activations = args->float_activations.given;
    e.no_packing = args->no_packing.given;
    e.memory_limit = args->memory_limit_mb.v << 20;
    e.ignore_memory = args->ignore_memory.given;
    if (args->parallel.given)
        e.parallel = (uint32_t)args->parallel.v;
    e.cache_bytes = args->cache_mb.v << 20;
    e.forced_acceptance = args->forced_acceptance;
    e.n_forced_acceptance = args->n_forced_acceptance;
    e.refuse_synthetic = args->synthetic == TD_SYNTHETIC_REFUSED;
    e.log = log_line;
    e.progress = td_progress_show;
    e.user = (void *)args;
    return e;
}

/* What the hub says is for people who wait, not only with --verbose. */
static void hub_line(void *user, td_log_level level, const char *message) {
    const td_model_args *args = user;
    if (!args->quiet.given)
        td_report_note("tandem: %s%s", level >= TD_LOG_WARN ? "warning: " : "", message);
}

/* The path of what an option names, downloaded when need be; NULL when it names nothing. */
static td_status fetch(const td_arg_text *arg, const char *what, const td_hub_options *hub, char **out, td_error *err) {
    if (!arg->given)
        return TD_OK;
    td_status st = td_hub_fetch(arg->v, hub, out, err);
    td_progress_clear();
    return st == TD_OK || !what ? st : td_error_prefix(err, st, "%s", what);
}

static td_status fetch_all(td_opened *o, const td_model_args *args, td_error *err) {
    td_hub_setup hub;
    td_places_hub(&hub, args->hub_cache.v);
    hub.options.offline |= args->offline.given;
    hub.options.log = hub_line;
    hub.options.progress = td_progress_show;
    hub.options.user = (void *)args;
    td_status st = fetch(&args->model, NULL, &hub.options, &o->trunk, err);
    if (st == TD_OK)
        st = fetch(&args->assistant, "assistant", &hub.options, &o->assistant, err);
    if (st == TD_OK)
        st = fetch(&args->draft_model, "draft model", &hub.options, &o->draft_model, err);
    o->hub_cache = hub.cache;
    hub.cache = NULL;
    td_places_hub_free(&hub);
    return st;
}

/* Nothing is loaded that was not asked for; but nobody should have to know that there is a drafter. */
static void suggest_assistant(const td_opened *o, const td_model_args *args) {
    char *found = NULL;
    bool asked = args->mtp.given || args->no_mtp.given || args->assistant.given || args->draft_model.given ||
                 args->lookup.given || args->num_mtp_tokens.given;
    if (!args->model.given || asked || args->quiet.given || o->info->mtp_active ||
        strcmp(o->info->family, "gemma4") != 0)
        return;
    if (td_hub_suggest_assistant(o->trunk, o->hub_cache, &found, NULL) == TD_OK && found)
        td_report_note("tandem: an assistant for it is at %s: --mtp-assistant-model %s", found, found);
    td_free(found);
}

int td_open_engine(td_opened *o, const td_model_args *args) {
    *o = (td_opened){0};
    td_error err = {0};
    td_status st = TD_OK;
    td_progress_enable(!args->quiet.given);
    if (!args->model.given) {
        st = td_places_embedded(&o->trunk, &o->assistant, &err);
        /* the embedded trunk with another drafter, or none */
        if (args->assistant.given || args->draft_model.given || args->no_mtp.given) {
            td_free(o->assistant);
            o->assistant = NULL;
        }
    }
    if (st == TD_OK)
        st = fetch_all(o, args, &err);
    if (st == TD_OK) {
        td_engine_options e = engine_options(o, args);
        st = td_engine_open(&o->engine, &e, &err);
    }
    td_progress_clear();
    if (st != TD_OK)
        return td_report_failure(st, &err);
    o->info = td_engine_describe(o->engine);
    if (o->info->synthetic && args->synthetic == TD_SYNTHETIC_WARNED)
        log_line((void *)args, TD_LOG_WARN,
                 "the model's weights are random (tandem bench synth): its text means nothing");
    suggest_assistant(o, args);
    return TD_EXIT_OK;
}

void td_close_engine(td_opened *o) {
    td_engine_close(&o->engine);
    td_free(o->trunk);
    td_free(o->assistant);
    td_free(o->draft_model);
    td_free(o->hub_cache);
    *o = (td_opened){0};
}

/* ---- sampling ---- */

static bool parse_bias(const char *text, td_logit_bias *out) {
    char id[24];
    size_t n = strcspn(text, "=");
    uint64_t token;
    double bias;
    if (text[n] != '=' || n == 0 || n >= sizeof id)
        return false;
    memcpy(id, text, n);
    id[n] = '\0';
    if (!td_args_uint(id, 0, INT32_MAX, &token) || !td_args_float(text + n + 1, true, &bias))
        return false;
    *out = (td_logit_bias){(td_token)token, (float)bias};
    return true;
}

bool td_sampling_of(const td_sampling_args *args, td_sampling base, const char *command, td_logit_bias *biases,
                    td_sampling *out) {
    td_sampling s = base;
    if (args->temp.given)
        s.temperature = (float)args->temp.v;
    if (args->top_k.given)
        s.top_k = (uint32_t)args->top_k.v;
    if (args->top_p.given)
        s.top_p = (float)args->top_p.v;
    if (args->min_p.given)
        s.min_p = (float)args->min_p.v;
    if (args->repeat_penalty.given)
        s.repetition_penalty = (float)args->repeat_penalty.v;
    if (args->presence_penalty.given)
        s.presence_penalty = (float)args->presence_penalty.v;
    if (args->frequency_penalty.given)
        s.frequency_penalty = (float)args->frequency_penalty.v;
    if (args->seed.given)
        s.seed = args->seed.v;
    for (size_t i = 0; i < args->logit_bias.n; i++)
        if (!parse_bias(args->logit_bias.v[i], &biases[i])) {
            td_report_error(command, "--logit-bias is '%s'; expected ID=VALUE, a token id and a number",
                            args->logit_bias.v[i]);
            return false;
        }
    s.bias = biases;
    s.n_bias = args->logit_bias.n;
    *out = s;
    return true;
}

uint64_t td_random_seed(void) {
    uint32_t word;
    if (getrandom(&word, sizeof word, 0) != (ssize_t)sizeof word)
        word = (uint32_t)time(NULL);
    return word;
}
