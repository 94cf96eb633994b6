/* chat.c - tandem chat: a conversation, from a terminal or from a script.
 *
 * The session keeps the keys of everything said, so a turn evaluates only what is new. A turn's prompt is the whole
 * conversation through the model's template; what the session holds of it already is found by comparing tokens. */
#include <errno.h>
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

typedef struct chat_args {
    td_model_args model;
    td_sampling_args sampling;
    td_arg_text system, script;
    td_arg_uint n;
    td_arg_flag json, show_drafts;
} chat_args;

#define C(field) offsetof(chat_args, field)
static const td_arg table[] = {
    {"system", 0, TD_ARG_TEXT, C(system), 0, 0, "TEXT", "a system message at the start"},
    {"max-tokens", 'n', TD_ARG_UINT, C(n), 0, INT32_MAX, "N",
     "tokens an answer may have, 0: until the context is full (default 1024)"},
    {"script", 0, TD_ARG_TEXT, C(script), 0, 0, "FILE", "take the messages and commands from FILE, a line each"},
    {"show-drafts", 0, TD_ARG_FLAG, C(show_drafts), 0, 0, NULL, "colour what came from accepted drafts"},
    {"json", 0, TD_ARG_FLAG, C(json), 0, 0, NULL, "print one JSON object a turn instead of text"},
};
#undef C

typedef struct chat {
    const chat_args *args;
    td_opened opened;
    td_answer answer;
    json_t *messages;
    FILE *in;
    bool interactive; /* a person at a terminal types */
    bool echo;        /* show the lines of a script */
    td_style err_style;
    /* The last turn, for /stats and /compare. */
    td_token *last_prompt;
    size_t n_last_prompt;
    td_result last;
    int rc;
} chat;

/* ---- small talk on stderr ---- */

static void note(const chat *c, const char *text) {
    if (!c->args->model.quiet.given)
        fprintf(stderr, "%s%s%s\n", c->err_style.dim, text, c->err_style.off);
}

static void print_stats(const chat *c) {
    td_buf b;
    td_buf_init(&b, 4096);
    td_stats_line(&b, &c->last);
    const char *line = td_buf_str(&b);
    note(c, line ? line : "");
    td_buf_free(&b);
}

static void end_line(const td_answer *a) {
    if (a->stream && a->last != 0 && a->last != '\n' && !a->broken)
        putchar('\n');
    fflush(stdout);
}

/* ---- a turn ---- */

static void forget_last(chat *c) {
    td_result_free(&c->last);
    td_tokens_free(c->last_prompt);
    c->last_prompt = NULL;
    c->n_last_prompt = 0;
}

static td_status answer_last_message(chat *c, td_error *err) {
    forget_last(c);
    TD_TRY(td_chat_tokens(c->opened.engine, c->messages, &c->last_prompt, &c->n_last_prompt, err));
    return td_answer_prompt(&c->answer, c->last_prompt, c->n_last_prompt, &c->last, err);
}

static void report_turn(chat *c, const char *message) {
    end_line(&c->answer);
    if (c->args->json.given) {
        json_t *out = td_stats_json(&c->last, c->opened.info, c->answer.request.sampling.seed);
        if (out)
            json_object_set_new(out, "message", json_string(message));
        int rc = td_report_json(out);
        c->rc = rc != TD_EXIT_OK ? rc : c->rc;
    } else {
        print_stats(c);
    }
}

/* False: the conversation cannot go on. */
static bool turn(chat *c, const char *message) {
    td_error err = {0};
    if (!td_chat_append(c->messages, "user", message)) {
        td_report_error("tandem", "the message is not UTF-8 text");
        c->rc = TD_EXIT_FAILURE;
        return c->interactive;
    }
    td_status st = answer_last_message(c, &err);
    if (st == TD_OK) {
        report_turn(c, message);
        td_chat_append(c->messages, "assistant", c->last.text ? c->last.text : "");
        return true;
    }
    end_line(&c->answer);
    json_array_remove(c->messages, json_array_size(c->messages) - 1);
    forget_last(c);
    c->rc = td_report_failure(st, &err);
    if (c->interactive)
        note(c, "(the message was dropped; /reset starts over)");
    return c->interactive;
}

/* ---- commands ---- */

static const char help_text[] = "  /help           this\n"
                                "  /stats          figures of the last answer\n"
                                "  /mtp on|off|N   draft, do not draft, or draft at most N tokens a round\n"
                                "  /compare        answer the last message again without drafts and compare\n"
                                "  /system TEXT    start over with this system message\n"
                                "  /reset          start over\n"
                                "  /quit           leave\n"
                                "  Ctrl-C          stop an answer";

static bool cmd_help(chat *c, const char *rest) {
    (void)rest;
    note(c, help_text);
    return true;
}

static bool cmd_stats(chat *c, const char *rest) {
    (void)rest;
    if (c->last_prompt == NULL)
        note(c, "(no answer yet)");
    else
        print_stats(c);
    return true;
}

static bool cmd_mtp(chat *c, const char *rest) {
    const td_engine_info *info = c->opened.info;
    uint64_t depth;
    char line[256];
    if (strcmp(rest, "off") == 0) {
        c->answer.request.no_mtp = true;
        note(c, "(decoding plainly)");
    } else if (!info->mtp_active) {
        snprintf(line, sizeof line, "(cannot draft: %s)", info->mtp_reason);
        note(c, line);
    } else if (strcmp(rest, "on") == 0) {
        c->answer.request.no_mtp = false;
        c->answer.request.num_mtp_tokens = -1;
        snprintf(line, sizeof line, "(drafting up to %u tokens a round)", info->mtp_depth);
        note(c, line);
    } else if (td_args_uint(rest, 0, info->mtp_depth, &depth)) {
        c->answer.request.no_mtp = false;
        c->answer.request.num_mtp_tokens = (int)depth;
        snprintf(line, sizeof line, "(drafting up to %u tokens a round)", (unsigned)depth);
        note(c, line);
    } else {
        snprintf(line, sizeof line, "(/mtp takes on, off, or a number from 0 to %u)", info->mtp_depth);
        note(c, line);
    }
    return true;
}

static int report_comparison(const chat *c, const td_result *plain, bool same) {
    double drafted = td_stats_speed(&c->last), speed = td_stats_speed(plain);
    if (c->args->json.given)
        return td_report_json(json_pack("{s:{s:b, s:f, s:f, s:f}}", "compare", "identical", same, "tokens_per_second",
                                        drafted, "plain_tokens_per_second", speed, "ratio",
                                        speed > 0 ? drafted / speed : 0.0));
    char line[256];
    snprintf(line, sizeof line, "identical text: %s; %.1f tokens/s against %.1f plain: %.2f times as fast",
             same ? "yes" : "no", drafted, speed, speed > 0 ? drafted / speed : 0);
    note(c, line);
    return TD_EXIT_OK;
}

/* The same prompt, the same seed, no drafts; an answer that was stopped is compared up to where it stopped. */
static bool cmd_compare(chat *c, const char *rest) {
    (void)rest;
    if (c->last_prompt == NULL || c->last.n_tokens == 0) {
        note(c, "(no answer yet)");
        return true;
    }
    if (!c->last.mtp_active) {
        note(c, "(the last answer was decoded plainly; /mtp on)");
        return true;
    }
    td_answer again = c->answer;
    td_result plain = {0};
    td_error err = {0};
    again.stream = false;
    again.request.no_mtp = true;
    if (c->last.finish == TD_FINISH_CANCELLED)
        again.request.max_tokens = (uint32_t)c->last.n_tokens;
    td_status st = td_answer_prompt(&again, c->last_prompt, c->n_last_prompt, &plain, &err);
    if (st == TD_OK) {
        bool same = td_answer_same(&c->last, &plain);
        int rc = report_comparison(c, &plain, same);
        c->rc = !same ? TD_EXIT_FAILURE : rc != TD_EXIT_OK ? rc : c->rc;
    } else {
        c->rc = td_report_failure(st, &err);
    }
    td_result_free(&plain);
    return st == TD_OK || c->interactive;
}

static bool start_over(chat *c, const char *system) {
    json_array_clear(c->messages);
    forget_last(c);
    if (system && !td_chat_append(c->messages, "system", system)) {
        td_report_error("tandem", "the system message is not UTF-8 text");
        c->rc = TD_EXIT_FAILURE;
        return c->interactive;
    }
    return true;
}

static bool cmd_system(chat *c, const char *rest) {
    note(c, "(starting over)");
    return start_over(c, *rest ? rest : NULL);
}

static bool cmd_reset(chat *c, const char *rest) {
    (void)rest;
    note(c, "(starting over)");
    return start_over(c, c->args->system.v);
}

static bool cmd_quit(chat *c, const char *rest) {
    (void)c;
    (void)rest;
    return false;
}

typedef struct chat_command {
    const char *name;
    bool (*run)(chat *c, const char *rest); /* false: leave */
} chat_command;

static const chat_command chat_commands[] = {
    {"help", cmd_help},     {"stats", cmd_stats}, {"mtp", cmd_mtp},   {"compare", cmd_compare},
    {"system", cmd_system}, {"reset", cmd_reset}, {"quit", cmd_quit}, {"exit", cmd_quit},
};
enum { N_CHAT_COMMANDS = sizeof chat_commands / sizeof *chat_commands };

static bool obey(chat *c, const char *line) {
    const char *names[N_CHAT_COMMANDS];
    char word[32];
    snprintf(word, sizeof word, "%.*s", (int)strcspn(line + 1, " \t"), line + 1);
    const char *rest = line + 1 + strcspn(line + 1, " \t");
    rest += strspn(rest, " \t");
    for (int i = 0; i < N_CHAT_COMMANDS; i++) {
        names[i] = chat_commands[i].name;
        if (strcmp(word, names[i]) == 0)
            return chat_commands[i].run(c, rest);
    }
    const char *near = td_args_nearest(word, names, N_CHAT_COMMANDS);
    if (near)
        td_report_error("tandem chat", "unknown command /%s; did you mean /%s?", word, near);
    else
        td_report_error("tandem chat", "unknown command /%s; /help lists them", word);
    if (!c->interactive)
        c->rc = TD_EXIT_USAGE;
    return c->interactive;
}

/* ---- lines ---- */

/* Without the newline and the spaces around it; free()d by the caller of getline. */
static char *trim(char *line) {
    line += strspn(line, " \t\r\n");
    size_t n = strlen(line);
    while (n > 0 && strchr(" \t\r\n", line[n - 1]))
        line[--n] = '\0';
    return line;
}

static void prompt(const chat *c) {
    if (c->interactive) {
        printf("%s>%s ", c->answer.style.bold, c->answer.style.off);
        fflush(stdout);
    }
}

static void converse(chat *c) {
    char *line = NULL;
    size_t capacity = 0;
    for (bool go_on = true; go_on && !ferror(stdout);) {
        prompt(c);
        if (getline(&line, &capacity, c->in) < 0) {
            if (c->interactive)
                putchar('\n');
            break;
        }
        char *text = trim(line);
        if (*text == '\0')
            continue;
        if (c->echo)
            printf("%s> %s%s\n", c->answer.style.bold, text, c->answer.style.off);
        go_on = text[0] == '/' ? obey(c, text) : turn(c, text);
        if (td_interrupted() && c->interactive)
            td_interrupt_reset(); /* it stopped the answer, not the chat */
        else if (td_interrupted())
            go_on = false;
    }
    free(line);
    if (td_interrupted() && !c->interactive)
        c->rc = TD_EXIT_INTERRUPTED;
}

/* ---- beginning and end ---- */

static void greet(const chat *c) {
    const td_engine_info *i = c->opened.info;
    if (!c->interactive || c->args->json.given)
        return;
    char count[TD_NUMBER_TEXT_SIZE], line[512];
    snprintf(line, sizeof line, "%s: %s, %s weights, %s; %s%s; seed %llu. /help lists commands.", i->model_path,
             i->family, td_count_text(i->n_params, count, sizeof count), i->weight_format,
             i->mtp_active ? "drafts by " : "plain: ", i->mtp_active ? i->mtp_kind : i->mtp_reason,
             (unsigned long long)c->answer.request.sampling.seed);
    note(c, line);
}

static void set_request(chat *c, const td_sampling *sampling) {
    td_request *r = &c->answer.request;
    *r = td_request_default();
    r->max_tokens = c->args->n.given ? (uint32_t)c->args->n.v : 1024;
    r->sampling = *sampling;
    r->stop = c->args->sampling.stop.v;
    r->n_stop = c->args->sampling.stop.n;
}

static int chat_with_engine(chat *c, td_logit_bias *biases) {
    td_sampling sampling = td_engine_sampling(c->opened.engine);
    sampling.seed = td_random_seed();
    if (!td_sampling_of(&c->args->sampling, sampling, "tandem chat", biases, &sampling))
        return TD_EXIT_USAGE;
    set_request(c, &sampling);
    c->answer.engine = c->opened.engine;
    c->answer.stream = !c->args->json.given;
    c->answer.show_drafts = c->args->show_drafts.given;
    c->answer.style = td_style_for(STDOUT_FILENO);
    c->err_style = td_style_for(STDERR_FILENO);
    td_error err = {0};
    td_status st = td_session_open(&c->answer.session, c->opened.engine, &err);
    if (st != TD_OK)
        return td_report_failure(st, &err);
    greet(c);
    if (start_over(c, c->args->system.v))
        converse(c);
    return c->rc;
}

static int chat_from(const chat_args *args, FILE *in) {
    chat c = {.args = args, .in = in};
    c.interactive = in == stdin && isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    c.echo = in != stdin && !args->json.given;
    c.messages = json_array();
    td_logit_bias *biases = td_calloc(args->sampling.logit_bias.n, sizeof *biases);
    int rc = td_open_engine(&c.opened, &args->model);
    if (rc == TD_EXIT_OK && c.messages && biases)
        rc = chat_with_engine(&c, biases);
    forget_last(&c);
    td_session_close(&c.answer.session);
    td_close_engine(&c.opened);
    json_decref(c.messages);
    td_free(biases);
    return rc;
}

static int chat_with_args(const chat_args *args) {
    if (!args->script.given || strcmp(args->script.v, "-") == 0)
        return chat_from(args, stdin);
    FILE *in = fopen(args->script.v, "r");
    if (in == NULL) {
        td_report_error("tandem", "%s: %s", args->script.v, strerror(errno));
        return TD_EXIT_FAILURE;
    }
    int rc = chat_from(args, in);
    fclose(in);
    return rc;
}

int td_command_chat(int argc, char **argv) {
    chat_args args = {.model.synthetic = TD_SYNTHETIC_WARNED};
    const td_arg_group groups[] = {
        {"Conversation", table, sizeof table / sizeof *table, &args},
        {"Sampling (default: as the model's publisher recommends, with a random seed)", td_sampling_arg_table,
         td_sampling_arg_count, &args.sampling},
        {"Model", td_model_arg_table, td_model_arg_count, &args.model},
    };
    const td_args spec = {
        .command = "tandem chat",
        .synopsis = "[OPTIONS]",
        .about = "Talks with a model. /help in the chat lists its commands. Messages may also come from a script or a\n"
                 "pipe, one a line.",
        .groups = groups,
        .n_groups = 3,
    };
    td_args_result parsed = td_args_parse(&spec, argc, argv);
    int rc = parsed == TD_ARGS_OK ? chat_with_args(&args) : parsed == TD_ARGS_HELP ? TD_EXIT_OK : TD_EXIT_USAGE;
    td_args_free(&spec);
    return rc;
}
