/* main.c - tandem: finds the subcommand and runs it. */
#include <stdio.h>
#include <string.h>

#include "cli/args.h"
#include "cli/commands.h"
#include "cli/report.h"
#include "cli/signals.h"

static const td_command commands[] = {
    {"chat", "talk with a model", td_command_chat},
    {"run", "continue one prompt", td_command_run},
    {"serve", "answer OpenAI's clients over HTTP", td_command_serve},
    {"demo", "a short scripted chat, drafted against plain", td_command_demo},
    {"bench", "measure speed: kernels, drafting, many answers, a server", td_command_bench},
    {"inspect", "what is in a checkpoint, and what it costs to run", td_command_inspect},
    {"quantize", "write a 4-bit or 8-bit copy of a checkpoint", td_command_quantize},
    {"pull", "download a model from the Hugging Face hub", td_command_pull},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static int help(void) {
    printf("Usage: tandem COMMAND [OPTIONS]\n\n"
           "Runs language models on this machine, with multi-token prediction: a small drafter proposes the next\n"
           "tokens, the model checks them all in one pass, and the text is the same as without it.\n\nCommands\n");
    for (int i = 0; i < N_COMMANDS; i++)
        printf("  %-10s %s\n", commands[i].name, commands[i].about);
    printf("\n'tandem COMMAND --help' lists the options of a command. Without --model, commands use the small\n"
           "demonstration pair that comes with Tandem.\n\n"
           "Exit codes: 0 done, 1 it failed, 2 wrong usage, 130 interrupted.\n");
    return TD_EXIT_OK;
}

static int unknown(const char *name) {
    const char *names[N_COMMANDS];
    for (int i = 0; i < N_COMMANDS; i++)
        names[i] = commands[i].name;
    const char *near = td_args_nearest(name, names, N_COMMANDS);
    if (near)
        td_report_error("tandem", "unknown command '%s'; did you mean '%s'?", name, near);
    else
        td_report_error("tandem", "unknown command '%s'; 'tandem --help' lists them", name);
    return TD_EXIT_USAGE;
}

static int run_command(int argc, char **argv) {
    if (argc < 2) {
        td_report_error("tandem", "no command given; 'tandem --help' lists them");
        return TD_EXIT_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0)
        return help();
    if (strcmp(name, "--version") == 0 || strcmp(name, "version") == 0) {
        printf("tandem %s\n", TD_VERSION);
        return TD_EXIT_OK;
    }
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(name, commands[i].name) == 0)
            return commands[i].run(argc - 2, argv + 2);
    return unknown(name);
}

int main(int argc, char **argv) {
    td_signals_install();
    return td_report_end(run_command(argc, argv));
}
