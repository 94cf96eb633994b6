/* commands.h - the subcommands. Each takes the words after its name and returns the program's exit code. */
#ifndef TD_CLI_COMMANDS_H
#define TD_CLI_COMMANDS_H

typedef struct td_command {
    const char *name;
    const char *about; /* one line of `tandem --help` */
    int (*run)(int argc, char **argv);
} td_command;

int td_command_run(int argc, char **argv);
int td_command_chat(int argc, char **argv);
int td_command_serve(int argc, char **argv);
int td_command_demo(int argc, char **argv);
int td_command_bench(int argc, char **argv);
int td_command_inspect(int argc, char **argv);
int td_command_quantize(int argc, char **argv);
int td_command_pull(int argc, char **argv);

#endif
