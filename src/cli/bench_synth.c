/* bench_synth.c - tandem bench synth: writes a synthetic checkpoint (engine/synthetic.h). */
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "cli/bench.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "engine/synthetic.h"

typedef struct synth_args {
    td_arg_text shape, format;
    td_arg_uint layers, vocab, experts, seed;
    td_arg_flag quiet;
} synth_args;

#define S(field) offsetof(synth_args, field)
static const td_arg table[] = {
    {"shape", 0, TD_ARG_TEXT, S(shape), 0, 0, "NAME", "which model's, see below"},
    {"format", 0, TD_ARG_CHOICE, S(format), 0, 0, "q4_0|affine4",
     "q4_0: a GGUF file, for llama.cpp, too; affine4: a directory, MLX 4-bit (default q4_0)"},
    {"layers", 0, TD_ARG_UINT, S(layers), 1, 4096, "N", "fewer layers, or more (default: see below)"},
    {"vocab", 0, TD_ARG_UINT, S(vocab), 1, 1 << 20, "N", "fewer words (default: the model's)"},
    {"experts", 0, TD_ARG_UINT, S(experts), 1, 4096, "N", "fewer experts (default: the model's)"},
    {"seed", 's', TD_ARG_UINT, S(seed), 0, 0, "N", "of the random weights (default 0)"},
    {"quiet", 'q', TD_ARG_FLAG, S(quiet), 0, 0, NULL, "no bar on stderr"},
};
#undef S

static int write_model(const synth_args *a, const char *path) {
    td_synthetic_options o = {.shape = a->shape.v,
                              .format = a->format.given && strcmp(a->format.v, "affine4") == 0 ? TD_SYNTHETIC_AFFINE4
                                                                                               : TD_SYNTHETIC_Q4_0,
                              .n_layers = (uint32_t)a->layers.v,
                              .n_vocab = (uint32_t)a->vocab.v,
                              .n_experts = (uint32_t)a->experts.v,
                              .seed = a->seed.v,
                              .progress = td_progress_show};
    uint64_t bytes;
    char text[TD_NUMBER_TEXT_SIZE];
    td_error err = {0};
    td_progress_enable(!a->quiet.given);
    td_status st = td_synthetic_write(path, &o, &bytes, &err);
    td_progress_clear();
    if (st != TD_OK)
        return td_report_failure(st, &err);
    printf("%s: %s of random weights\n", path, td_bytes_text(bytes, text, sizeof text));
    return TD_EXIT_OK;
}

/* What the help says of the shapes. */
static void describe_shapes(td_buf *b) {
    (void)td_buf_puts(b, "Writes a model of random weights, in the shape of a published one, to measure speed with. "
                         "OUT is a new\nfile or directory. Shapes, with their layers here and as published:\n");
    for (size_t i = 0; td_synthetic_shape_at(i); i++) {
        const td_synthetic_shape *s = td_synthetic_shape_at(i);
        (void)td_buf_printf(b, "\n  %-18s %2u/%-3u %s", s->name, s->n_layers, s->published_layers, s->about);
    }
}

int td_bench_synth(int argc, char **argv) {
    static const char *const names[] = {"OUT"};
    synth_args args = {0};
    const char *out = NULL;
    td_buf about;
    td_buf_init(&about, 8192);
    describe_shapes(&about);
    const td_arg_group groups[] = {{"Options", table, sizeof table / sizeof *table, &args}};
    const td_args spec = {.command = "tandem bench synth",
                          .synopsis = "--shape NAME [OPTIONS] OUT",
                          .about = td_buf_str(&about),
                          .groups = groups,
                          .n_groups = 1,
                          .n_positional = 1,
                          .positional = &out,
                          .positional_names = names};
    td_args_result parsed = td_args_parse(&spec, argc, argv);
    int rc = parsed == TD_ARGS_HELP ? TD_EXIT_OK : TD_EXIT_USAGE;
    if (parsed == TD_ARGS_OK && !args.shape.given)
        td_report_error(spec.command, "--shape is missing; 'tandem bench synth --help' lists the shapes");
    else if (parsed == TD_ARGS_OK)
        rc = write_model(&args, out);
    td_args_free(&spec);
    td_buf_free(&about);
    return rc;
}
