/* pull.c - tandem pull: a model from the Hugging Face hub into the cache, ahead of its use. */
#include <stdio.h>

#include "base/alloc.h"
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/places.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "format/hub.h"

typedef struct pull_args {
    td_arg_text hub_cache;
    td_arg_texts include;
    td_arg_flag offline, quiet;
} pull_args;

#define P(field) offsetof(pull_args, field)
static const td_arg table[] = {
    {"hub-cache", 0, TD_ARG_TEXT, P(hub_cache), 0, 0, "DIR", "where to keep it (default: Hugging Face's cache)"},
    {"include", 0, TD_ARG_TEXTS, P(include), 0, 0, "PATTERN",
     "fetch files that fit, too (* stands for anything); may be repeated"},
    {"offline", 0, TD_ARG_FLAG, P(offline), 0, 0, NULL, "only say where it is in the cache"},
    {"quiet", 'q', TD_ARG_FLAG, P(quiet), 0, 0, NULL, "nothing on stderr but errors"},
};
#undef P

static void log_line(void *user, td_log_level level, const char *message) {
    const pull_args *args = user;
    if (!args->quiet.given)
        td_report_note("tandem: %s%s", level >= TD_LOG_WARN ? "warning: " : "", message);
}

static int pull(pull_args *args, const char *id) {
    td_hub_setup hub;
    td_error err = {0};
    char *path = NULL;
    td_places_hub(&hub, args->hub_cache.v);
    td_hub_options *o = &hub.options;
    o->offline |= args->offline.given;
    o->refresh = true;
    o->include = args->include.v;
    o->n_include = args->include.n;
    o->log = log_line;
    o->progress = td_progress_show;
    o->user = args;
    td_progress_enable(!args->quiet.given);
    td_status st = td_hub_fetch(id, o, &path, &err);
    td_progress_clear();
    if (st == TD_OK)
        printf("%s\n", path);
    td_free(path);
    td_places_hub_free(&hub);
    return st == TD_OK ? TD_EXIT_OK : td_report_failure(st, &err);
}

int td_command_pull(int argc, char **argv) {
    pull_args args = {0};
    const char *id[1];
    const td_arg_group groups[] = {{"Options", table, sizeof table / sizeof *table, &args}};
    const td_args spec = {
        .command = "tandem pull",
        .synopsis = "ORG/NAME[@REVISION][:GGUF] [OPTIONS]",
        .about =
            "Downloads a model from the Hugging Face hub into the cache that other tools share, and prints its path.\n"
            "Of a repository of GGUF files, the one that GGUF names, or its quantisation as in org/name:Q4_K_M.\n"
            "What is there already is not fetched again; an interrupted download goes on where it stopped.\n\n"
            "HF_TOKEN is the token of the hub account, HF_ENDPOINT another hub, HF_HUB_CACHE another cache.",
        .groups = groups,
        .n_groups = 1,
        .n_positional = 1,
        .positional = id,
        .positional_names = (const char *const[]){"ORG/NAME"},
    };
    td_args_result parsed = td_args_parse(&spec, argc, argv);
    int rc = parsed == TD_ARGS_OK ? pull(&args, id[0]) : parsed == TD_ARGS_HELP ? TD_EXIT_OK : TD_EXIT_USAGE;
    td_args_free(&spec);
    return rc;
}
