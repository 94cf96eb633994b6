/* run.c - tandem run: one prompt, one answer. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/file.h"
#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/signals.h"
#include "cli/stats.h"

#define PROMPT_MAX ((size_t)256 << 20)

typedef struct run_args {
    td_model_args model;
    td_sampling_args sampling;
    td_arg_text prompt, file, ids, system;
    td_arg_uint n;
    td_arg_flag chat, ignore_eos, special, json;
} run_args;

#define R(field) offsetof(run_args, field)
static const td_arg table[] = {
    {"prompt", 'p', TD_ARG_TEXT, R(prompt), 0, 0, "TEXT", "the prompt"},
    {"file", 'f', TD_ARG_TEXT, R(file), 0, 0, "FILE", "the prompt is what FILE holds; - is standard input"},
    {"prompt-ids", 0, TD_ARG_TEXT, R(ids), 0, 0, "1,2,3", "the prompt as token ids"},
    {"chat", 0, TD_ARG_FLAG, R(chat), 0, 0, NULL, "the prompt is a message: apply the model's chat template"},
    {"system", 0, TD_ARG_TEXT, R(system), 0, 0, "TEXT", "a system message before it, with --chat"},
    {"max-tokens", 'n', TD_ARG_UINT, R(n), 0, INT32_MAX, "N",
     "tokens to generate, 0: until the context is full (default 512)"},
    {"ignore-eos", 0, TD_ARG_FLAG, R(ignore_eos), 0, 0, NULL, "go on after an end token"},
    {"special", 0, TD_ARG_FLAG, R(special), 0, 0, NULL, "show special tokens in the text"},
    {"json", 0, TD_ARG_FLAG, R(json), 0, 0, NULL, "print one JSON object instead of the text"},
};
#undef R

static const char command[] = "tandem run";

/* ---- the prompt ---- */

/* "1,2,3", with spaces where people put them. False: not that. */
static bool parse_ids(const char *text, td_token **tokens, size_t *n) {
    td_token *list = td_calloc(strlen(text) + 1, sizeof *list);
    size_t count = 0;
    bool ok = list != NULL;
    for (const char *p = text; ok;) {
        char *end;
        p += strspn(p, " \t\n[");
        errno = 0;
        long v = strtol(p, &end, 10);
        ok = end > p && *p != '-' && *p != '+' && errno == 0 && v >= 0 && v <= INT32_MAX;
        if (!ok)
            break;
        list[count++] = (td_token)v;
        p = end + strspn(end, " \t\n]");
        if (*p == '\0')
            break;
        ok = *p++ == ',';
    }
    if (!ok) {
        td_free(list);
        return false;
    }
    *tokens = list;
    *n = count;
    return true;
}

static td_status read_stream(FILE *f, char **text, size_t *n, td_error *err) {
    td_buf b;
    td_buf_init(&b, PROMPT_MAX);
    char piece[16384];
    for (size_t got; (got = fread(piece, 1, sizeof piece, f)) > 0;)
        td_buf_append(&b, piece, got);
    if (ferror(f)) {
        td_buf_free(&b);
        return td_fail(err, TD_E_IO, "standard input: %s", strerror(errno));
    }
    *n = b.size;
    *text = td_buf_steal(&b);
    return *text ? TD_OK : td_fail(err, TD_E_LIMIT, "standard input: more than %zu bytes", PROMPT_MAX);
}

static td_status text_tokens(const td_engine *engine, const run_args *args, const char *text, size_t n_text,
                             td_token **tokens, size_t *n, td_error *err) {
    if (!args->chat.given)
        return td_engine_tokenize(engine, text, n_text, true, true, tokens, n, err);
    json_t *messages = json_array();
    bool ok = !args->system.given || td_chat_append(messages, "system", args->system.v);
    ok = ok && strlen(text) == n_text && td_chat_append(messages, "user", text);
    td_status st =
        ok ? td_chat_tokens(engine, messages, tokens, n, err) : td_fail(err, TD_E_ARG, "the prompt is not UTF-8 text");
    json_decref(messages);
    return st;
}

static td_status prompt_tokens(const td_engine *engine, const run_args *args, td_token **tokens, size_t *n,
                               td_error *err) {
    if (args->prompt.given)
        return text_tokens(engine, args, args->prompt.v, strlen(args->prompt.v), tokens, n, err);
    char *text = NULL;
    size_t n_text = 0;
    if (strcmp(args->file.v, "-") == 0)
        TD_TRY(read_stream(stdin, &text, &n_text, err));
    else
        TD_TRY(td_file_read(args->file.v, PROMPT_MAX, &text, &n_text, err));
    td_status st = text_tokens(engine, args, text, n_text, tokens, n, err);
    td_free(text);
    return st;
}

/* ---- the answer ---- */

static void print_stats(const td_result *r) {
    td_style style = td_style_for(STDERR_FILENO);
    td_buf b;
    td_buf_init(&b, 4096);
    td_stats_line(&b, r);
    const char *line = td_buf_str(&b);
    fprintf(stderr, "%s%s%s\n", style.dim, line ? line : "", style.off);
    td_buf_free(&b);
}

/* A model without a tokenizer answers in ids, which the text has none of. */
static void explain_no_text(const td_answer *a, const td_result *r) {
    td_error err = {0};
    char *text = NULL;
    size_t n;
    if (r->n_text == 0 &&
        td_engine_detokenize(a->engine, r->tokens, r->n_tokens, true, &text, &n, &err) == TD_E_NOTFOUND)
        td_report_note("tandem: %s; --json prints the ids", err.message);
    td_text_free(text);
}

static int report(const run_args *args, const td_answer *a, const td_result *r, const td_engine_info *info) {
    int rc = TD_EXIT_OK;
    if (args->json.given)
        rc = td_report_json(td_stats_json(r, info, a->request.sampling.seed));
    else if (a->last != 0 && a->last != '\n' && !a->broken)
        putchar('\n');
    fflush(stdout);
    if (!args->json.given)
        explain_no_text(a, r);
    if (!args->json.given && !args->model.quiet.given)
        print_stats(r);
    return r->finish == TD_FINISH_CANCELLED && td_interrupted() ? TD_EXIT_INTERRUPTED : rc;
}

static int generate(const run_args *args, td_opened *o, const td_token *prompt, size_t n, td_sampling sampling) {
    td_answer a = {.engine = o->engine, .stream = !args->json.given, .style = td_style_for(STDOUT_FILENO)};
    a.request = td_request_default();
    a.request.max_tokens = args->n.given ? (uint32_t)args->n.v : 512;
    a.request.sampling = sampling;
    a.request.ignore_eos = args->ignore_eos.given;
    a.request.special = args->special.given;
    a.request.stop = args->sampling.stop.v;
    a.request.n_stop = args->sampling.stop.n;
    td_error err = {0};
    td_result result = {0};
    td_status st = td_session_open(&a.session, o->engine, &err);
    if (st == TD_OK)
        st = td_answer_prompt(&a, prompt, n, &result, &err);
    int rc = st == TD_OK ? report(args, &a, &result, o->info) : td_report_failure(st, &err);
    td_result_free(&result);
    td_session_close(&a.session);
    return rc;
}

static int open_and_generate(const run_args *args, td_token *ids, size_t n_ids, td_sampling sampling) {
    td_opened o;
    int rc = td_open_engine(&o, &args->model);
    if (rc == TD_EXIT_OK && ids) {
        rc = generate(args, &o, ids, n_ids, sampling);
    } else if (rc == TD_EXIT_OK) {
        td_error err = {0};
        td_token *tokens = NULL;
        size_t n = 0;
        td_status st = prompt_tokens(o.engine, args, &tokens, &n, &err);
        rc = st == TD_OK ? generate(args, &o, tokens, n, sampling) : td_report_failure(st, &err);
        td_tokens_free(tokens);
    }
    td_close_engine(&o);
    return rc;
}

/* Everything about the command line that can be wrong is found before a model is opened. */
static int run(const run_args *args) {
    if (args->prompt.given + args->file.given + args->ids.given != 1) {
        td_report_error(command, "give one prompt, with -p TEXT, -f FILE or --prompt-ids 1,2,3");
        return TD_EXIT_USAGE;
    }
    if (args->ids.given && args->chat.given) {
        td_report_error(command, "--chat wraps a text, and --prompt-ids is none");
        return TD_EXIT_USAGE;
    }
    if (args->system.given && !args->chat.given) {
        td_report_error(command, "--system needs --chat");
        return TD_EXIT_USAGE;
    }
    td_token *ids = NULL;
    size_t n_ids = 0;
    if (args->ids.given && !parse_ids(args->ids.v, &ids, &n_ids)) {
        td_report_error(command, "--prompt-ids is '%.60s'; expected token ids like 1,2,3", args->ids.v);
        return TD_EXIT_USAGE;
    }
    int rc = TD_EXIT_USAGE;
    td_sampling sampling;
    td_logit_bias *biases = td_calloc(args->sampling.logit_bias.n, sizeof *biases);
    if (biases && td_sampling_of(&args->sampling, td_sampling_default(), command, biases, &sampling))
        rc = open_and_generate(args, ids, n_ids, sampling);
    td_free(biases);
    td_free(ids);
    return rc;
}

int td_command_run(int argc, char **argv) {
    run_args args = {.model.synthetic = TD_SYNTHETIC_WARNED};
    const td_arg_group groups[] = {
        {"Prompt and answer", table, sizeof table / sizeof *table, &args},
        {"Sampling (default: temperature 0, everything off)", td_sampling_arg_table, td_sampling_arg_count,
         &args.sampling},
        {"Model", td_model_arg_table, td_model_arg_count, &args.model},
    };
    const td_args spec = {
        .command = command,
        .synopsis = "-p TEXT [OPTIONS]",
        .about = "Continues one prompt. The text goes to standard output as it comes, statistics to standard error.",
        .groups = groups,
        .n_groups = 3,
    };
    td_args_result parsed = td_args_parse(&spec, argc, argv);
    int rc = parsed == TD_ARGS_OK ? run(&args) : parsed == TD_ARGS_HELP ? TD_EXIT_OK : TD_EXIT_USAGE;
    td_args_free(&spec);
    return rc;
}
