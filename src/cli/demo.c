/* demo.c - tandem demo: every message of a short script answered with drafts and without, in turn, several times.
 *
 * The point is the comparison: the text must be the same every time, and the ratio of the speeds is what drafting is
 * worth here. The two ways alternate, so that a machine that warms up or is shared slows both; a figure is the median
 * of its repeats. Loading and prefill are not in the speeds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/signals.h"
#include "cli/stats.h"

enum { MAX_REPEATS = 99 };

typedef struct demo_args {
    td_model_args model;
    td_sampling_args sampling;
    td_arg_uint repeats, n;
    td_arg_flag json;
    td_arg_texts prompts;
} demo_args;

#define D(field) offsetof(demo_args, field)
static const td_arg table[] = {
    {"prompt", 'p', TD_ARG_TEXTS, D(prompts), 0, 0, "TEXT", "a message; may be repeated (default: a short script)"},
    {"repeats", 'r', TD_ARG_UINT, D(repeats), 1, MAX_REPEATS, "N", "times each way (default 3)"},
    {"max-tokens", 'n', TD_ARG_UINT, D(n), 1, INT32_MAX, "N", "tokens an answer may have (default 160)"},
    {"json", 0, TD_ARG_FLAG, D(json), 0, 0, NULL, "print one JSON object instead of text"},
};
#undef D

static const char *const script[] = {
    "Who are you?",
    "What is 3 + 4?",
    "Tell me a short story about a little fox.",
    "Can you tell me a story about a dog named Max?",
};

/* Both ways of answering one message. */
typedef struct duel {
    const char *message;
    td_result first[2]; /* drafted, plain: the first of each */
    double speed[2][MAX_REPEATS];
    uint32_t repeats;
    bool identical;
} duel;

typedef struct demo {
    const demo_args *args;
    td_opened opened;
    td_request request;
    td_style style;
} demo;

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *values, uint32_t n) {
    double sorted[MAX_REPEATS];
    memcpy(sorted, values, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, compare_doubles);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

/* One answer in a session of its own, so that every one begins alike. */
static td_status answer_once(const demo *d, const td_token *prompt, size_t n, bool plain, bool stream, td_result *out,
                             td_error *err) {
    td_answer a = {.engine = d->opened.engine, .request = d->request, .stream = stream, .style = d->style};
    a.request.no_mtp = plain;
    TD_TRY(td_session_open(&a.session, d->opened.engine, err));
    td_status st = td_answer_prompt(&a, prompt, n, out, err);
    if (st == TD_OK && out->finish == TD_FINISH_CANCELLED)
        st = td_fail(err, TD_E_CANCELLED, "interrupted");
    if (stream && a.last != 0 && a.last != '\n' && !a.broken)
        putchar('\n');
    td_session_close(&a.session);
    return st;
}

static td_status repeat(const demo *d, duel *f, const td_token *prompt, size_t n, uint32_t k, td_error *err) {
    for (int plain = 0; plain < 2; plain++) {
        td_result r = {0};
        bool stream = k == 0 && plain == 0 && !d->args->json.given;
        td_status st = answer_once(d, prompt, n, plain, stream, &r, err);
        if (st != TD_OK) {
            td_result_free(&r);
            return st;
        }
        f->speed[plain][k] = td_stats_speed(&r);
        if (k == 0)
            f->first[plain] = r;
        f->identical = f->identical && td_answer_same(&f->first[0], &r);
        if (k > 0)
            td_result_free(&r);
    }
    return TD_OK;
}

static td_status fight(const demo *d, duel *f, td_error *err) {
    json_t *messages = json_array();
    td_token *prompt = NULL;
    size_t n = 0;
    td_status st = td_chat_append(messages, "user", f->message)
                       ? td_chat_tokens(d->opened.engine, messages, &prompt, &n, err)
                       : td_fail(err, TD_E_ARG, "a message is not UTF-8 text");
    f->identical = true;
    for (uint32_t k = 0; k < f->repeats && st == TD_OK; k++)
        st = repeat(d, f, prompt, n, k, err);
    td_tokens_free(prompt);
    json_decref(messages);
    return st;
}

/* ---- reports ---- */

static void print_duel(const demo *d, const duel *f) {
    double drafted = median(f->speed[0], f->repeats), plain = median(f->speed[1], f->repeats);
    td_buf b;
    td_buf_init(&b, 1024);
    td_stats_acceptance(&b, &f->first[0]);
    const char *acceptance = td_buf_str(&b);
    printf("%sidentical: %s; accepted by position: %s; %.2f tokens a round; %.1f tokens/s, plain %.1f: %.2fx%s\n\n",
           d->style.dim, f->identical ? "yes" : "NO", acceptance && *acceptance ? acceptance : "no drafts",
           td_stats_per_round(&f->first[0]), drafted, plain, plain > 0 ? drafted / plain : 0, d->style.off);
    td_buf_free(&b);
    fflush(stdout);
}

typedef struct total {
    td_result drafted;
    size_t decoded, rounds; /* without the token and the round that come with each prompt */
    double seconds[2];      /* of the median repeat, over the messages */
    bool identical;
} total;

static void add_duel(total *t, const duel *f) {
    td_stats_add(&t->drafted, &f->first[0]);
    t->identical = t->identical && f->identical;
    if (f->first[0].n_tokens > 1) {
        t->decoded += f->first[0].n_tokens - 1;
        t->rounds += f->first[0].rounds - 1;
    }
    for (int plain = 0; plain < 2; plain++) {
        double speed = median(f->speed[plain], f->repeats);
        t->seconds[plain] += speed > 0 ? (double)(f->first[plain].n_tokens - 1) / speed : 0;
    }
}

static double total_speed(const total *t, int plain) {
    return t->seconds[plain] > 0 ? (double)t->decoded / t->seconds[plain] : 0;
}

static double total_per_round(const total *t) {
    return t->rounds > 0 ? (double)t->decoded / (double)t->rounds : 0;
}

static void print_total(const demo *d, const total *t) {
    const td_engine_info *i = d->opened.info;
    td_buf b;
    td_buf_init(&b, 1024);
    td_stats_acceptance(&b, &t->drafted);
    const char *acceptance = td_buf_str(&b);
    printf("%s, %s on %d thread%s (%s)\n", i->model_path, i->weight_format, i->n_threads, i->n_threads == 1 ? "" : "s",
           i->isa);
    if (i->mtp_active)
        printf("drafts by %s, %s, up to %u a round%s\n", i->mtp_kind, i->drafter_format, i->mtp_depth,
               i->mtp_auto ? ", as many as pay" : "");
    else
        printf("no drafts: %s\n", i->mtp_reason);
    printf("  identical: %s\n  tokens a round: %.2f\n  accepted by position: %s\n", t->identical ? "yes" : "NO",
           total_per_round(t), acceptance && *acceptance ? acceptance : "no drafts");
    printf("  drafted: %.1f tokens/s\n  plain:   %.1f tokens/s\n  ratio:   %.2f\n", total_speed(t, 0),
           total_speed(t, 1), total_speed(t, 1) > 0 ? total_speed(t, 0) / total_speed(t, 1) : 0);
    td_buf_free(&b);
    fflush(stdout);
}

static json_t *duel_json(const demo *d, const duel *f) {
    json_t *o = td_stats_json(&f->first[0], d->opened.info, d->request.sampling.seed);
    double drafted = median(f->speed[0], f->repeats), plain = median(f->speed[1], f->repeats);
    json_object_set_new(o, "message", json_string(f->message));
    json_object_set_new(o, "identical", json_boolean(f->identical));
    json_object_set_new(o, "tokens_per_second", json_real(drafted));
    json_object_set_new(o, "plain_tokens_per_second", json_real(plain));
    json_object_set_new(o, "ratio", json_real(plain > 0 ? drafted / plain : 0));
    return o;
}

static int print_json(const demo *d, const total *t, json_t *duels) {
    json_t *o = td_stats_json(&t->drafted, d->opened.info, d->request.sampling.seed);
    json_object_del(o, "ids");
    json_object_del(o, "text");
    json_object_del(o, "finish_reason");
    json_object_set_new(o, "identical", json_boolean(t->identical));
    json_object_set_new(o, "tokens_per_round", json_real(total_per_round(t)));
    json_object_set_new(o, "tokens_per_second", json_real(total_speed(t, 0)));
    json_object_set_new(o, "plain_tokens_per_second", json_real(total_speed(t, 1)));
    json_object_set_new(o, "ratio", json_real(total_speed(t, 1) > 0 ? total_speed(t, 0) / total_speed(t, 1) : 0));
    json_object_set(o, "messages", duels);
    return td_report_json(o);
}

/* ---- the script ---- */

static td_status duel_run(const demo *d, const char *message, total *t, json_t *duels, td_error *err) {
    duel *f = td_calloc(1, sizeof *f);
    if (f == NULL)
        return td_fail(err, TD_E_NOMEM, "out of memory");
    f->message = message;
    f->repeats = d->args->repeats.given ? (uint32_t)d->args->repeats.v : 3;
    if (!d->args->json.given)
        printf("%s> %s%s\n", d->style.bold, message, d->style.off);
    td_status st = fight(d, f, err);
    if (st == TD_OK) {
        add_duel(t, f);
        json_array_append_new(duels, duel_json(d, f));
        if (!d->args->json.given)
            print_duel(d, f);
    }
    td_result_free(&f->first[0]);
    td_result_free(&f->first[1]);
    td_free(f);
    return st;
}

static int perform(const demo *d) {
    const char *const *messages = d->args->prompts.n > 0 ? d->args->prompts.v : script;
    size_t n = d->args->prompts.n > 0 ? d->args->prompts.n : sizeof script / sizeof *script;
    total t = {.identical = true};
    json_t *duels = json_array();
    td_error err = {0};
    td_status st = TD_OK;
    t.drafted.mtp_reason = d->opened.info->mtp_reason;
    for (size_t i = 0; i < n && st == TD_OK; i++)
        st = duel_run(d, messages[i], &t, duels, &err);
    int rc = TD_EXIT_OK;
    if (st != TD_OK)
        rc = td_report_failure(st, &err);
    else if (d->args->json.given)
        rc = print_json(d, &t, duels);
    else
        print_total(d, &t);
    json_decref(duels);
    if (rc == TD_EXIT_OK && !t.identical) {
        td_report_error("tandem", "the drafted and the plain text differ: this is a defect of Tandem");
        rc = TD_EXIT_FAILURE;
    }
    return rc;
}

static int demo_with_args(const demo_args *args) {
    demo d = {.args = args, .style = td_style_for(STDOUT_FILENO)};
    td_logit_bias *biases = td_calloc(args->sampling.logit_bias.n, sizeof *biases);
    d.request = td_request_default();
    d.request.max_tokens = args->n.given ? (uint32_t)args->n.v : 160;
    d.request.stop = args->sampling.stop.v;
    d.request.n_stop = args->sampling.stop.n;
    int rc = TD_EXIT_USAGE;
    if (biases && td_sampling_of(&args->sampling, td_sampling_default(), "tandem demo", biases, &d.request.sampling)) {
        rc = td_open_engine(&d.opened, &args->model);
        if (rc == TD_EXIT_OK)
            rc = perform(&d);
        td_close_engine(&d.opened);
    }
    td_free(biases);
    return rc;
}

int td_command_demo(int argc, char **argv) {
    demo_args args = {0};
    const td_arg_group groups[] = {
        {"Script", table, sizeof table / sizeof *table, &args},
        {"Sampling (default: temperature 0, everything off)", td_sampling_arg_table, td_sampling_arg_count,
         &args.sampling},
        {"Model", td_model_arg_table, td_model_arg_count, &args.model},
    };
    const td_args spec = {
        .command = "tandem demo",
        .synopsis = "[OPTIONS]",
        .about =
            "Answers each message of a script with drafts and plainly, in turn, and compares: the text must be the\n"
            "same, the speeds are printed with their ratio. Exit code 1 when any text differs.",
        .groups = groups,
        .n_groups = 3,
    };
    td_args_result parsed = td_args_parse(&spec, argc, argv);
    int rc = parsed == TD_ARGS_OK ? demo_with_args(&args) : parsed == TD_ARGS_HELP ? TD_EXIT_OK : TD_EXIT_USAGE;
    td_args_free(&spec);
    return rc;
}
