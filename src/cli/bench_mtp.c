/* bench_mtp.c - tandem bench mtp: drafted against plain, by kind of text, context and depth.
 *
 * Each depth is compared with a plain answer made right beside it, before it in even repeats and behind it in odd ones,
 * so that what the machine does to one it does to the other; the ratio is taken pair by pair, and its median, least and
 * greatest are printed. Depths take turns, too: a machine whose memory slows down for a minute, which helps drafts, is
 * no merit of the depth that it met. Answers of one prompt share its keys, as far as an answer leaves them: behind a
 * sliding window that has moved on they are gone, and the prompt is read anew, off the clock. Every answer must have
 * the tokens of the first one, unless acceptance is forced, when they mean nothing. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "cli/bench.h"
#include "cli/bench_texts.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "cli/signals.h"
#include "cli/stats.h"

enum {
    MAX_CONTEXTS = 16,
    MAX_DEPTHS = TD_MAX_DRAFT + 2,
    AUTO = UINT32_MAX, /* among depths */
    AUTO_DEPTH = 8,    /* the deepest draft of TD_DEPTH_AUTO */
};

typedef struct mtp_args {
    td_model_args model;
    td_bench_output output;
    td_sampling_args sampling;
    td_bench_forced forced;
    td_arg_uint repeats, n;
    td_arg_text contexts, depths;
    td_arg_texts classes;
} mtp_args;

#define A(field) offsetof(mtp_args, field)
static const td_arg table[] = {
    {"class", 0, TD_ARG_TEXTS, A(classes), 0, 0, "NAME",
     "code, prose, json, translation, maths or review; may be repeated (default: all)"},
    {"contexts", 0, TD_ARG_TEXT, A(contexts), 0, 0, "LIST",
     "tokens of the prompts, as in 150,2000,9000,40000,100000 (default 150)"},
    {"depths", 0, TD_ARG_TEXT, A(depths), 0, 0, "LIST",
     "drafts a round, as in 0-8,auto (default auto; with --mtp-fixed its number)"},
    {"max-tokens", 'n', TD_ARG_UINT, A(n), 8, 1 << 20, "N", "tokens of an answer (default 128)"},
    {"repeats", 'r', TD_ARG_UINT, A(repeats), 1, TD_BENCH_MAX_REPEATS, "N", "pairs of answers (default 3)"},
    {"forced-acceptance", 0, TD_ARG_TEXT, A(forced.profile), 0, 0, "LIST",
     "accept drafts by position in these shares of the rounds, as in 0.8,0.65,0.5,0.4: for random weights"},
};
#undef A

static const td_bench_column columns[] = {
    {"class", "class", 0},
    {"context", "context", 0},
    {"prompt_tokens", "prompt", 0},
    {"depth", "depth", 0},
    {"tokens", "tokens", 0},
    {"tokens_per_round", "tokens/round", 2},
    {NULL, "accepted by position", 0},
    {"accepted_at", NULL, 0},
    {"drafted_at", NULL, 0},
    {"plain", "plain tok/s", 1},
    {"drafted", "drafted tok/s", 1},
    {"ratio", "ratio", 2},
    {"ratio_min", "min", 2},
    {"ratio_max", "max", 2},
    {"identical", "same text", 0},
};
enum { N_COLUMNS = sizeof columns / sizeof *columns };

typedef struct bench {
    const mtp_args *args;
    td_opened opened;
    td_request request;
    td_bench_report *report;
    td_bench_table *table;
    uint32_t contexts[MAX_CONTEXTS], n_contexts, depths[MAX_DEPTHS], n_depths, repeats;
    uint32_t auto_limit; /* the deepest draft of auto */
    bool ctx_chosen;     /* --ctx-size */
    bool class[TD_BENCH_CLASSES], identical;
    uint64_t done, total;
} bench;

/* ---- one prompt ---- */

/* A prompt whose keys stay with its session. */
typedef struct stage {
    bench *b;
    td_session *session;
    td_token *prompt;
    size_t n_prompt;
    td_result first; /* the first answer of all */
} stage;

/* depth: 0 to TD_MAX_DRAFT, or AUTO; plain: no drafter at all. */
static td_status answer(stage *s, bool plain, uint32_t depth, uint32_t repeat, td_result *out, td_error *err) {
    bench *b = s->b;
    td_request q = b->request;
    q.prompt = s->prompt;
    q.n_prompt = s->n_prompt;
    q.no_mtp = plain;
    if (b->args->forced.n) /* other coins each time */
        q.sampling.seed += repeat;
    q.num_mtp_tokens = (int)(depth == AUTO ? b->auto_limit : depth);
    q.mtp_fixed = depth != AUTO;
    q.is_wanted = td_not_interrupted;
    if (!td_progress_show(NULL, "mtp", b->done++, b->total))
        return td_fail(err, TD_E_CANCELLED, "interrupted");
    TD_TRY(td_session_generate(s->session, &q, out, err));
    if (out->finish != TD_FINISH_CANCELLED)
        return TD_OK;
    td_result_free(out);
    return td_fail(err, TD_E_CANCELLED, "interrupted");
}

static bool same_tokens(const td_result *a, const td_result *b) {
    return a->n_tokens == b->n_tokens && memcmp(a->tokens, b->tokens, a->n_tokens * sizeof *a->tokens) == 0;
}

/* What pairs at one depth have shown. */
typedef struct arm {
    uint32_t n;                            /* pairs */
    double speed[2][TD_BENCH_MAX_REPEATS]; /* drafted, plain */
    double ratio[TD_BENCH_MAX_REPEATS];
    td_result sum; /* of the drafted answers */
    bool identical;
} arm;

static td_status one_side(stage *s, arm *a, uint32_t depth, bool plain, uint32_t k, td_error *err) {
    td_result r;
    TD_TRY(answer(s, plain, depth, k, &r, err));
    a->speed[plain][k] = td_stats_speed(&r);
    a->identical = a->identical && same_tokens(&s->first, &r);
    if (!plain)
        td_stats_add(&a->sum, &r);
    td_result_free(&r);
    return TD_OK;
}

static td_status pair(stage *s, arm *a, uint32_t depth, uint32_t k, td_error *err) {
    TD_TRY(one_side(s, a, depth, k % 2, k, err));
    TD_TRY(one_side(s, a, depth, !(k % 2), k, err));
    a->ratio[k] = a->speed[1][k] > 0 ? a->speed[0][k] / a->speed[1][k] : 0;
    a->n = k + 1;
    return TD_OK;
}

static json_t *depth_cell(uint32_t depth) {
    return depth == AUTO ? json_string("auto") : json_integer(depth);
}

static void say_where(bench *b, uint32_t class, uint32_t context, uint32_t depth) {
    char text[16] = "auto";
    if (depth != AUTO)
        snprintf(text, sizeof text, "%u", depth);
    td_bench_where(b->report, "%s at %u tokens, depth %s", td_bench_class_name(class), context, text);
}

static double per_round(const td_result *sum, uint32_t repeats) {
    return sum->rounds > repeats ? (double)(sum->n_tokens - repeats) / (sum->rounds - repeats) : 1;
}

static void add_row(stage *s, const arm *a, uint32_t class, uint32_t context, uint32_t depth) {
    bench *b = s->b;
    const uint32_t n = a->n;
    td_bench_summary ratio = td_bench_summarise(a->ratio, n);
    bool forced = b->args->forced.n > 0;
    td_bench_row(b->table, json_pack("[s,I,I,o,I,f,o,o,o,o,o,o,o,o,o]", td_bench_class_name(class), (json_int_t)context,
                                     (json_int_t)s->n_prompt, depth_cell(depth), (json_int_t)s->first.n_tokens,
                                     per_round(&a->sum, n), td_bench_shares(a->sum.accepted_at, a->sum.drafted_at),
                                     td_bench_counts(a->sum.accepted_at, a->sum.drafted_at),
                                     td_bench_counts(a->sum.drafted_at, a->sum.drafted_at),
                                     td_bench_real(td_bench_summarise(a->speed[1], n).median),
                                     td_bench_real(td_bench_summarise(a->speed[0], n).median),
                                     td_bench_real(ratio.median), td_bench_real(ratio.min), td_bench_real(ratio.max),
                                     forced ? json_null() : json_boolean(a->identical)));
    b->identical = b->identical && (forced || a->identical);
}

/* How much faster one arm is than another, repeat by repeat. */
static double faster(const arm *a, const arm *than) {
    double by[TD_BENCH_MAX_REPEATS];
    for (uint32_t k = 0; k < a->n; k++)
        by[k] = than->speed[0][k] > 0 ? a->speed[0][k] / than->speed[0][k] : 0;
    return td_bench_summarise(by, a->n).median;
}

/* The depth that does best beside what auto does. */
static void compare_auto(bench *b, uint32_t class, uint32_t context, const arm *arms) {
    const arm *automatic = NULL;
    double most = 0;
    uint32_t best = 0;
    for (uint32_t i = 0; i < b->n_depths; i++) {
        const double ratio = td_bench_summarise(arms[i].ratio, arms[i].n).median;
        if (b->depths[i] == AUTO) {
            automatic = &arms[i];
        } else if (ratio > most) {
            most = ratio;
            best = i;
        }
    }
    if (most > 0 && automatic)
        td_bench_note(b->report, "%s at %u: the best fixed depth is %u, %.2fx; auto is at %.0f %% of it",
                      td_bench_class_name(class), context, b->depths[best], most, 100 * faster(automatic, &arms[best]));
}

/* The depths in turn, as many times as there are repeats. */
static td_status take_turns(stage *s, arm *arms, uint32_t class, uint32_t context, td_error *err) {
    bench *b = s->b;
    for (uint32_t k = 0; k < b->repeats; k++)
        for (uint32_t i = 0; i < b->n_depths; i++) {
            say_where(b, class, context, b->depths[i]);
            TD_TRY(pair(s, &arms[i], b->depths[i], k, err));
        }
    return TD_OK;
}

static td_status all_depths(stage *s, uint32_t class, uint32_t context, td_error *err) {
    bench *b = s->b;
    arm *arms = td_calloc(b->n_depths, sizeof *arms);
    td_result warm = {0};
    td_status st = arms ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory");
    say_where(b, class, context, b->depths[0]);
    if (st == TD_OK) /* reads the prompt, and is what all others are compared with */
        st = answer(s, true, 0, 0, &s->first, err);
    if (st == TD_OK && b->opened.info->mtp_active) /* what drafting costs here is found out off the clock */
        st = answer(s, false, AUTO, 0, &warm, err);
    td_result_free(&warm);
    for (uint32_t i = 0; arms && i < b->n_depths; i++)
        arms[i].identical = true;
    if (st == TD_OK)
        st = take_turns(s, arms, class, context, err);
    for (uint32_t i = 0; arms && i < b->n_depths; i++)
        if (arms[i].n)
            add_row(s, &arms[i], class, context, b->depths[i]);
    if (st == TD_OK)
        compare_auto(b, class, context, arms);
    td_free(arms);
    return st;
}

static td_status run_stage(bench *b, uint32_t class, uint32_t context, td_error *err) {
    stage s = {.b = b};
    td_status st = td_bench_prompt(b->opened.engine, class, context, &s.prompt, &s.n_prompt, err);
    if (st == TD_OK)
        st = td_session_open(&s.session, b->opened.engine, err);
    if (st == TD_OK)
        st = all_depths(&s, class, context, err);
    td_result_free(&s.first);
    td_session_close(&s.session);
    td_tokens_free(s.prompt);
    return st;
}

/* ---- the command ---- */

static td_status run_all(bench *b, td_error *err) {
    for (uint32_t c = 0; c < b->n_contexts; c++)
        for (uint32_t class = 0; class < TD_BENCH_CLASSES; class ++)
            if (b->class[class])
                TD_TRY(run_stage(b, class, b->contexts[c], err));
    return TD_OK;
}

static bool has_auto(const bench *b) {
    for (uint32_t i = 0; i < b->n_depths; i++)
        if (b->depths[i] == AUTO)
            return true;
    return false;
}

static uint32_t deepest(const bench *b) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < b->n_depths; i++)
        most = b->depths[i] != AUTO && b->depths[i] > most ? b->depths[i] : most;
    return most;
}

static void state_facts(bench *b) {
    td_bench_model(b->report, b->opened.info);
    td_bench_fact(b->report, "auto_limit",
                  has_auto(b) && b->opened.info->mtp_active ? json_integer(b->auto_limit) : json_null());
    td_bench_fact(b->report, "temperature", json_real((double)b->request.sampling.temperature));
    td_bench_fact(b->report, "repeats", json_integer(b->repeats));
    if (b->args->forced.n)
        td_bench_fact(b->report, "forced_acceptance", json_string(b->args->forced.profile.v));
    if (!b->opened.info->mtp_active)
        td_bench_note(b->report, "no drafts: %s", b->opened.info->mtp_reason);
}

/* Over contexts, else over depths, else class by class: what there is most to see of. */
static td_bench_plot choose_plot(const bench *b) {
    td_bench_plot plot = {.table = b->table, .title = "Drafted over plain", .y = "ratio", .group = "class"};
    bool numbers = false;
    for (uint32_t i = 0; i < b->n_depths; i++)
        numbers = numbers || b->depths[i] != AUTO;
    if (b->n_contexts > 1) {
        plot.x = "context";
        plot.log_x = true;
        plot.and_group = b->n_depths > 1 ? "depth" : NULL;
    } else if (numbers) {
        plot.x = "depth";
    } else {
        plot.x = "class";
        plot.group = "depth";
    }
    return plot;
}

static int perform(bench *b) {
    td_error err = {0};
    uint32_t n_classes = 0;
    for (uint32_t i = 0; i < TD_BENCH_CLASSES; i++)
        n_classes += b->class[i];
    b->total = (uint64_t)b->n_contexts * n_classes * (2 + 2 * (uint64_t)b->repeats * b->n_depths);
    b->identical = true;
    state_facts(b);
    td_status st = run_all(b, &err);
    td_progress_clear();
    td_bench_fact(b->report, "identical", b->args->forced.n ? json_null() : json_boolean(b->identical));
    td_bench_plot plot = choose_plot(b);
    int rc = td_bench_end(b->report, &b->args->output, &plot, st, &err);
    if (!b->identical && st == TD_OK) {
        td_report_error("tandem", "the drafted and the plain text differ: this is a defect of Tandem");
        rc = TD_EXIT_FAILURE;
    }
    return rc;
}

static bool choose_classes(bench *b) {
    for (size_t i = 0; i < b->args->classes.n; i++) {
        uint32_t class = 0;
        while (class < TD_BENCH_CLASSES && strcmp(td_bench_class_name(class), b->args->classes.v[i]) != 0)
            class ++;
        if (class == TD_BENCH_CLASSES) {
            td_report_error("tandem bench mtp",
                            "--class is '%s'; expected code, prose, json, translation, maths or review",
                            b->args->classes.v[i]);
            return false;
        }
        b->class[class] = true;
    }
    for (uint32_t i = 0; i < TD_BENCH_CLASSES && b->args->classes.n == 0; i++)
        b->class[i] = true;
    return true;
}

/* ---- depths that contradict other options, or the drafter ---- */

/* Lookup may draft beyond the number: then the engine says how far. */
static bool choose_depths(bench *b, const mtp_args *args, const char *me) {
    char fixed[16];
    bool pinned = args->model.mtp_fixed.given && args->model.num_mtp_tokens.given;
    snprintf(fixed, sizeof fixed, "%u", (unsigned)args->model.num_mtp_tokens.v);
    const char *usual = pinned ? fixed : "auto";
    if (!td_bench_list(me, "depths", args->depths.given ? args->depths.v : usual, 0, TD_MAX_DRAFT, "auto", b->depths,
                       MAX_DEPTHS, &b->n_depths))
        return false;
    if (args->model.mtp_fixed.given && args->depths.given && has_auto(b)) {
        td_report_error(me, "--depths asks for auto, but --mtp-fixed leaves no depth to choose");
        return false;
    }
    if (args->model.num_mtp_tokens.given && deepest(b) > args->model.num_mtp_tokens.v && !args->model.lookup.given) {
        td_report_error(me, "--depths asks for %u drafts a round, but --num-mtp-tokens allows %u", deepest(b),
                        (unsigned)args->model.num_mtp_tokens.v);
        return false;
    }
    if (args->model.no_mtp.given && !args->model.draft_model.given && !args->model.lookup.given && deepest(b)) {
        td_report_error(me, "%u drafts a round are asked for, but --no-mtp for none", deepest(b));
        return false;
    }
    return true;
}

/* Rows that are called by a depth must have run at it. Says what auto stands for, too. */
static int check_depths(bench *b) {
    const td_engine_info *info = b->opened.info;
    const td_arg_uint *asked = &b->args->model.num_mtp_tokens;
    bool raised = asked->given && b->auto_limit; /* by settle_engine, for other depths than auto */
    bool chained = strchr(info->mtp_kind, '+') != NULL;
    b->auto_limit = raised && !chained && info->mtp_depth > AUTO_DEPTH ? AUTO_DEPTH : info->mtp_depth;
    if (deepest(b) <= info->mtp_depth)
        return TD_EXIT_OK;
    if (!info->mtp_active)
        td_report_error("tandem", "%u drafts a round are asked for, but nothing drafts: %s", deepest(b),
                        info->mtp_reason);
    else
        td_report_error("tandem", "%u drafts a round are asked for, but the drafter (%s) makes at most %u", deepest(b),
                        info->mtp_kind, info->mtp_depth);
    return TD_EXIT_FAILURE;
}

/* ---- the engine ---- */

/* Settings of the engine that follow from what is measured. */
static void settle_engine(bench *b, mtp_args *args) {
    if (!args->model.num_mtp_tokens.given && deepest(b) > AUTO_DEPTH) {
        args->model.num_mtp_tokens = (td_arg_uint){true, deepest(b)};
        b->auto_limit = AUTO_DEPTH;
    }
    args->model.forced_acceptance = args->forced.p;
    args->model.n_forced_acceptance = args->forced.n;
}

/* Positions for a prompt of about so many tokens and its answer; somebody who says how many there are gets no reserve.
 */
static uint32_t context_for(const bench *b, uint32_t context) {
    return context + b->request.max_tokens + (b->ctx_chosen ? 0 : context / 10 + 320);
}

static void note_left_out(bench *b, uint32_t context) {
    if (b->ctx_chosen) {
        td_bench_note(b->report, "a context of %u is left out: --ctx-size allows %u tokens in all", context,
                      b->opened.info->n_ctx);
        return;
    }
    td_memory_plan m = td_engine_plan(b->opened.engine, context_for(b, context));
    td_bench_note(b->report, "a context of %u is left out: it needs %.0f MiB, and %.0f MiB are available", context,
                  (double)(m.weights + m.drafter + m.kv + m.scratch) / 0x1p20, (double)m.available / 0x1p20);
}

/* The contexts that the engine has no room for are left out, with a note; false: those were all. */
static bool drop_contexts(bench *b) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < b->n_contexts; i++) {
        if (context_for(b, b->contexts[i]) <= b->opened.info->n_ctx)
            b->contexts[kept++] = b->contexts[i];
        else
            note_left_out(b, b->contexts[i]);
    }
    b->n_contexts = kept;
    return kept > 0;
}

/* Opens the engine once, for the longest context that fits the memory; when not even the shortest does, that is the
 * engine's error. */
static int open_engine(bench *b, mtp_args *args) {
    uint32_t shortest = b->contexts[0], longest = 0;
    b->ctx_chosen = args->model.ctx_size.given;
    for (uint32_t i = 0; i < b->n_contexts; i++) {
        shortest = b->contexts[i] < shortest ? b->contexts[i] : shortest;
        longest = b->contexts[i] > longest ? b->contexts[i] : longest;
    }
    if (!b->ctx_chosen) {
        args->model.ctx_size = (td_arg_uint){true, context_for(b, longest)};
        args->model.ctx_least = (td_arg_uint){true, context_for(b, shortest)};
    }
    int rc = td_open_engine(&b->opened, &args->model);
    if (rc != TD_EXIT_OK)
        return rc;
    if (!drop_contexts(b)) {
        td_report_error("tandem bench mtp", "--ctx-size is %u, but a context of %u needs %u for prompt and answer",
                        b->opened.info->n_ctx, shortest, context_for(b, shortest));
        return TD_EXIT_USAGE;
    }
    return check_depths(b);
}

static int mtp_with_args(mtp_args *args, td_logit_bias *biases) {
    const char *me = "tandem bench mtp";
    bench b = {.args = args, .repeats = args->repeats.given ? (uint32_t)args->repeats.v : 3};
    b.request = td_request_default();
    b.request.max_tokens = args->n.given ? (uint32_t)args->n.v : 128;
    b.request.ignore_eos = true;
    b.request.benchmark = true;
    if (!choose_classes(&b) || !td_bench_forced_profile(me, &args->forced) ||
        !td_sampling_of(&args->sampling, td_sampling_default(), me, biases, &b.request.sampling) ||
        !td_bench_list(me, "contexts", args->contexts.given ? args->contexts.v : "150", 16, 1 << 20, NULL, b.contexts,
                       MAX_CONTEXTS, &b.n_contexts) ||
        !choose_depths(&b, args, me))
        return TD_EXIT_USAGE;
    int rc = td_bench_check_output(me, &args->output);
    if (rc != TD_EXIT_OK)
        return rc;
    settle_engine(&b, args);
    b.report = td_bench_report_new(me);
    if (b.report)
        b.table = td_bench_table_new(b.report, "mtp", "Drafted against plain", columns, N_COLUMNS);
    rc = b.table ? open_engine(&b, args) : td_report_failure(TD_E_NOMEM, NULL);
    if (rc == TD_EXIT_OK)
        rc = perform(&b);
    td_bench_report_free(&b.report);
    td_close_engine(&b.opened);
    return rc;
}

int td_bench_mtp(int argc, char **argv) {
    mtp_args args = {0};
    const td_arg_group groups[] = {
        {"What is measured", table, sizeof table / sizeof *table, &args},
        {"Result", td_bench_output_table, td_bench_output_count, &args.output},
        {"Sampling (default: temperature 0, everything off)", td_sampling_arg_table, td_sampling_arg_count,
         &args.sampling},
        {"Model", td_model_arg_table, td_model_arg_count, &args.model},
    };
    const td_args spec = {
        .command = "tandem bench mtp",
        .synopsis = "[OPTIONS]",
        .about =
            "Answers prompts of several kinds with drafts and plainly, in turn, at chosen depths and contexts:\n"
            "acceptance by position, tokens a round, both speeds and their ratio. Exit code 1 when a text differs.",
        .groups = groups,
        .n_groups = 4,
    };
    td_args_result parsed = td_args_parse(&spec, argc, argv);
    int rc = parsed == TD_ARGS_HELP ? TD_EXIT_OK : TD_EXIT_USAGE;
    td_logit_bias *biases = td_calloc(args.sampling.logit_bias.n, sizeof *biases);
    if (parsed == TD_ARGS_OK)
        rc = biases ? mtp_with_args(&args, biases) : td_report_failure(TD_E_NOMEM, NULL);
    td_free(biases);
    td_args_free(&spec);
    return rc;
}
