/* places.c - see places.h. */
#include "cli/places.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"

#define TRUNK "gemma4-demo-4bit"
#define ASSISTANT "gemma4-demo-assistant-4bit"

/* The directory of the running program followed by `tail`, or "". */
static void beside_executable(char out[PATH_MAX], const char *tail) {
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    out[0] = '\0';
    if (n <= 0)
        return;
    exe[n] = '\0';
    char *slash = strrchr(exe, '/');
    if (slash == NULL)
        return;
    *slash = '\0';
    if (snprintf(out, PATH_MAX, "%s/%s", exe, tail) >= PATH_MAX)
        out[0] = '\0';
}

/* Both halves under `models`; false when one is not there or there is no memory. */
static bool pair_in(const char *models, char **trunk, char **assistant) {
    *trunk = td_path_join(models, TRUNK);
    *assistant = td_path_join(models, ASSISTANT);
    if (*trunk && *assistant && td_dir_exists(*trunk) && td_dir_exists(*assistant))
        return true;
    td_free(*trunk);
    td_free(*assistant);
    *trunk = *assistant = NULL;
    return false;
}

td_status td_places_embedded(char **trunk, char **assistant, td_error *err) {
    char beside[PATH_MAX], shared[PATH_MAX];
    beside_executable(beside, "models");
    beside_executable(shared, "../share/tandem/models");
    const char *const places[] = {TD_SOURCE_MODELS, TD_INSTALL_MODELS, beside, shared};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (places[i][0] && pair_in(places[i], trunk, assistant))
            return TD_OK;
    return td_fail(err, TD_E_NOTFOUND,
                   "the demonstration pair (%s, %s) is in none of %s, %s, %s, %s; give a model with --model", TRUNK,
                   ASSISTANT, places[0], places[1], places[2], places[3]);
}

static char *join_env(const char *variable, const char *tail) {
    const char *value = getenv(variable);
    if (value == NULL || value[0] == '\0')
        return NULL;
    return tail ? td_path_join(value, tail) : td_strdup(value);
}

char *td_places_hub_cache(void) {
    char *path = join_env("HF_HUB_CACHE", NULL);
    if (path == NULL)
        path = join_env("HF_HOME", "hub");
    if (path == NULL)
        path = join_env("XDG_CACHE_HOME", "huggingface/hub");
    if (path == NULL)
        path = join_env("HOME", ".cache/huggingface/hub");
    return path;
}
