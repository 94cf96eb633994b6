/* places.c - see places.h. */
#include "cli/places.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
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

/* ---- the hub ---- */

/* `tail` below the directory that Hugging Face's tools share. */
static char *hub_home(const char *tail) {
    char deeper[64];
    char *path = join_env("HF_HOME", tail);
    snprintf(deeper, sizeof deeper, "huggingface/%s", tail);
    if (path == NULL)
        path = join_env("XDG_CACHE_HOME", deeper);
    snprintf(deeper, sizeof deeper, ".cache/huggingface/%s", tail);
    return path ? path : join_env("HOME", deeper);
}

char *td_places_hub_cache(void) {
    char *path = join_env("HF_HUB_CACHE", NULL);
    return path ? path : hub_home("hub");
}

/* The first of two variables that is set to something, or NULL. */
static const char *either(const char *a, const char *b) {
    const char *value = getenv(a);
    if (value == NULL || value[0] == '\0')
        value = getenv(b);
    return value && value[0] ? value : NULL;
}

/* As huggingface_hub reads switches. */
static bool switched_on(const char *variable) {
    static const char *const words[] = {"1", "on", "yes", "true"};
    const char *value = getenv(variable);
    for (size_t i = 0; value && i < sizeof words / sizeof *words; i++)
        if (strcasecmp(value, words[i]) == 0)
            return true;
    return false;
}

/* What `hf auth login` has left, or NULL. */
static char *saved_token(void) {
    char *path = join_env("HF_TOKEN_PATH", NULL), *text = NULL;
    size_t size;
    td_error ignored;
    if (path == NULL)
        path = hub_home("token");
    if (path == NULL || td_file_read(path, 8192, &text, &size, &ignored) != TD_OK)
        text = NULL;
    if (text)
        text[strcspn(text, " \t\r\n")] = '\0';
    td_free(path);
    return text;
}

void td_places_hub(td_hub_setup *setup, const char *cache) {
    *setup = (td_hub_setup){.options = td_hub_options_default()};
    td_hub_options *o = &setup->options;
    setup->cache = cache ? td_strdup(cache) : td_places_hub_cache();
    const char *token = either("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN");
    if (token == NULL && !switched_on("HF_HUB_DISABLE_IMPLICIT_TOKEN"))
        setup->token = saved_token();
    o->cache = setup->cache;
    o->token = token ? token : setup->token;
    o->endpoint = either("HF_ENDPOINT", "HF_ENDPOINT");
    o->offline = switched_on("HF_HUB_OFFLINE") || switched_on("TRANSFORMERS_OFFLINE");
    bool clear = o->endpoint && strncasecmp(o->endpoint, "http:", 5) == 0;
    o->proxy = clear ? either("http_proxy", "http_proxy") : either("https_proxy", "HTTPS_PROXY");
    if (o->proxy == NULL)
        o->proxy = either("all_proxy", "ALL_PROXY");
    o->no_proxy = either("no_proxy", "NO_PROXY");
    o->ca_file = either("CURL_CA_BUNDLE", "SSL_CERT_FILE");
}

void td_places_hub_free(td_hub_setup *setup) {
    td_free(setup->cache);
    td_free(setup->token);
    *setup = (td_hub_setup){0};
}
