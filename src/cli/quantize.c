/* quantize.c - tandem quantize: a thin front for engine/quantize.h. */
#include "engine/quantize.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/report.h"

typedef struct quantize_args {
    td_arg_text bits, group, embed_bits, attention_bits;
    td_arg_uint threads;
    td_arg_flag force, json, quiet;
} quantize_args;

#define Q(field) offsetof(quantize_args, field)
static const td_arg table[] = {
    {"bits", 'b', TD_ARG_CHOICE, Q(bits), 0, 0, "4|8|2|3|5|6", "width of the codes (default 4)"},
    {"group", 'g', TD_ARG_CHOICE, Q(group), 0, 0, "64|32|128", "weights that share a scale (default 64)"},
    {"embed-bits", 0, TD_ARG_CHOICE, Q(embed_bits), 0, 0, "4|8|2|3|5|6",
     "width for embeddings and the head (default: as --bits)"},
    {"attention-bits", 0, TD_ARG_CHOICE, Q(attention_bits), 0, 0, "4|8|2|3|5|6",
     "width for attention's projections (default: as --bits)"},
    {"threads", 't', TD_ARG_UINT, Q(threads), 1, 1024, "N", "threads (default: all processors)"},
    {"force", 'f', TD_ARG_FLAG, Q(force), 0, 0, NULL, "replace a checkpoint that OUT holds already"},
    {"json", 0, TD_ARG_FLAG, Q(json), 0, 0, NULL, "print the summary as one JSON object"},
    {"quiet", 'q', TD_ARG_FLAG, Q(quiet), 0, 0, NULL, "no bar and no summary"},
};
#undef Q

static void log_line(void *user, td_log_level level, const char *message) {
    const quantize_args *args = user;
    if (!args->quiet.given && level >= TD_LOG_INFO)
        td_report_note("tandem: %s", message);
}

/* The conversion's progress; `user` is for the log. */
static bool progress(void *user, const char *stage, uint64_t done, uint64_t total) {
    (void)user;
    return td_progress_show(NULL, stage, done, total);
}

static td_quantize_class all_classes(const td_quantize_report *r) {
    td_quantize_class all = {0};
    for (int i = 0; i < TD_MODULE_CLASS_COUNT; i++) {
        all.params += r->by[i].params;
        all.bytes += r->by[i].bytes;
        all.quantized += r->by[i].quantized;
        all.square += r->by[i].square;
        all.square_of += r->by[i].square_of;
    }
    return all;
}

static int print_json(const td_quantize_report *r, const char *out, double seconds) {
    json_t *classes = json_object();
    for (int i = 0; i < TD_MODULE_CLASS_COUNT; i++) {
        const td_quantize_class *c = &r->by[i];
        if (c->params > 0)
            json_object_set_new(classes, td_module_class_name((td_module_class)i),
                                json_pack("{s:I, s:f, s:f}", "parameters", (json_int_t)c->params, "bits_per_weight",
                                          td_bits_each(c->bytes, c->params), "relative_rms_error",
                                          td_quantize_error(c)));
    }
    td_quantize_class all = all_classes(r);
    return td_report_json(
        json_pack("{s:s, s:I, s:I, s:I, s:f, s:f, s:o, s:{s:i, s:i, s:i}, s:i, s:f}", "path", out, "bytes_before",
                  (json_int_t)r->bytes_before, "bytes_after", (json_int_t)r->bytes_after, "parameters",
                  (json_int_t)all.params, "bits_per_weight", td_bits_each(all.bytes, all.params), "relative_rms_error",
                  td_quantize_error(&all), "classes", classes, "tensors", "quantized", (int)r->n_quantized, "kept",
                  (int)r->n_kept, "left_out", (int)r->n_left_out, "files", (int)r->n_files, "seconds", seconds));
}

static void print_row(const char *name, const td_quantize_class *c) {
    char params[TD_NUMBER_TEXT_SIZE], bytes[TD_NUMBER_TEXT_SIZE], error[TD_NUMBER_TEXT_SIZE] = "as it was";
    if (c->quantized > 0)
        snprintf(error, sizeof error, "%.2f %%", 100 * td_quantize_error(c));
    printf("  %-18s %12s %12s %10.2f %12s\n", name, td_count_text(c->params, params, sizeof params),
           td_bytes_text(c->bytes, bytes, sizeof bytes), td_bits_each(c->bytes, c->params), error);
}

static void print_summary(const td_quantize_report *r, const char *out, double seconds) {
    char before[TD_NUMBER_TEXT_SIZE], after[TD_NUMBER_TEXT_SIZE];
    printf("%s: %s, from %s; %u tensors quantised, %u kept, %u left out; %u file%s, %.1f s\n", out,
           td_bytes_text(r->bytes_after, after, sizeof after), td_bytes_text(r->bytes_before, before, sizeof before),
           r->n_quantized, r->n_kept, r->n_left_out, r->n_files, r->n_files == 1 ? "" : "s", seconds);
    printf("  %-18s %12s %12s %10s %12s\n", "", "weights", "bytes", "bits each", "RMS error");
    for (int i = 0; i < TD_MODULE_CLASS_COUNT; i++)
        if (r->by[i].params > 0)
            print_row(td_module_class_name((td_module_class)i), &r->by[i]);
    td_quantize_class all = all_classes(r);
    print_row("all", &all);
}

/* A choice of the tables above is a small number. */
static uint32_t number(const td_arg_text *a, uint32_t otherwise) {
    uint64_t v;
    return a->given && td_args_uint(a->v, 0, UINT32_MAX, &v) ? (uint32_t)v : otherwise;
}

int td_command_quantize(int argc, char **argv) {
    quantize_args args = {0};
    const char *path[2];
    const td_arg_group groups[] = {{"Options", table, sizeof table / sizeof *table, &args}};
    const td_args spec = {
        .command = "tandem quantize",
        .synopsis = "IN OUT [--bits 4|8] [OPTIONS]",
        .about =
            "Writes a quantised copy of the checkpoint directory IN to the directory OUT, as safetensors in MLX's\n"
            "affine format: every matrix in groups with a scale and an offset. Norms stay as they are.",
        .groups = groups,
        .n_groups = 1,
        .n_positional = 2,
        .positional = path,
        .positional_names = (const char *const[]){"IN", "OUT"},
    };
    td_args_result parsed = td_args_parse(&spec, argc, argv);
    if (parsed != TD_ARGS_OK)
        return parsed == TD_ARGS_HELP ? TD_EXIT_OK : TD_EXIT_USAGE;
    td_quantize_options opt = td_quantize_options_default();
    opt.bits = number(&args.bits, opt.bits);
    opt.group = number(&args.group, opt.group);
    opt.embed_bits = number(&args.embed_bits, 0);
    opt.attention_bits = number(&args.attention_bits, 0);
    opt.n_threads = (int)args.threads.v;
    opt.force = args.force.given;
    opt.log = log_line;
    opt.progress = progress;
    opt.user = &args;
    td_progress_enable(!args.quiet.given);
    td_quantize_report report;
    td_error err = {0};
    int64_t start = td_clock_ns();
    td_status st = td_quantize(path[0], path[1], &opt, &report, &err);
    td_progress_clear();
    if (st != TD_OK)
        return td_report_failure(st, &err);
    if (args.json.given)
        return print_json(&report, path[1], td_clock_since(start));
    if (!args.quiet.given)
        print_summary(&report, path[1], td_clock_since(start));
    return TD_EXIT_OK;
}
