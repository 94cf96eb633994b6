/* hub_names.c - see hub_names.h. Everything that becomes part of a path is checked here first, whether a user or a
 * server said it. */
#include "format/hub_names.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "format/json_scan.h"

/* ---- ids ---- */

static bool is_word(char c) {
    return isalnum((unsigned char)c) || c == '_' || c == '-' || c == '.';
}

/* word(/word)?, no "--" (it separates the parts in the cache) and no "..". */
static bool is_repo(const char *s) {
    size_t slashes = 0, n = strlen(s);
    if (n == 0 || s[0] == '/' || s[n - 1] == '/' || s[0] == '.' || strstr(s, "--") || strstr(s, "..") ||
        strstr(s, "/."))
        return false;
    for (size_t i = 0; i < n; i++) {
        slashes += s[i] == '/';
        if (s[i] != '/' && !is_word(s[i]))
            return false;
    }
    return slashes <= 1;
}

/* A branch, tag or commit; may have slashes, and may not climb. */
static bool is_revision(const char *s) {
    size_t n = strlen(s);
    if (n == 0 || s[0] == '/' || s[n - 1] == '/' || strstr(s, "..") || strstr(s, "//"))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!is_word(s[i]) && s[i] != '/' && s[i] != '+')
            return false;
    return true;
}

/* text[0..n) into out[0..size); false when it does not fit. */
static bool take(char *out, size_t size, const char *text, size_t n) {
    if (n >= size)
        return false;
    memcpy(out, text, n);
    out[n] = '\0';
    return true;
}

bool td_hub_id_parse(const char *text, td_hub_id *id) {
    *id = (td_hub_id){0};
    size_t n_repo = strcspn(text, "@:");
    const char *rest = text + n_repo;
    if (!take(id->repo, sizeof id->repo, text, n_repo) || !is_repo(id->repo))
        return false;
    if (*rest == '@') {
        size_t n = strcspn(rest + 1, ":");
        if (!take(id->revision, sizeof id->revision, rest + 1, n) || !is_revision(id->revision))
            return false;
        rest += 1 + n;
    }
    if (*rest == ':')
        return take(id->file, sizeof id->file, rest + 1, strlen(rest + 1)) &&
               td_hub_file_ok(id->file, strlen(id->file));
    return true;
}

bool td_hub_is_hex(const char *s, size_t digits) {
    return strlen(s) == digits && strspn(s, "0123456789abcdef") == digits;
}

bool td_hub_is_commit(const char *s) {
    return td_hub_is_hex(s, 40);
}

/* ---- files and directories ---- */

static bool is_component(const char *s, size_t n) {
    return n > 0 && n <= 255 && !(n == 1 && s[0] == '.') && !(n == 2 && s[0] == '.' && s[1] == '.');
}

bool td_hub_file_ok(const char *name, size_t size) {
    if (size == 0 || size > TD_HUB_FILE_MAX || !td_json_utf8_valid(name, size))
        return false;
    size_t start = 0;
    for (size_t i = 0; i <= size; i++) {
        if (i < size && ((unsigned char)name[i] < 0x20 || name[i] == 0x7F || name[i] == '\\'))
            return false;
        if (i < size && name[i] != '/')
            continue;
        if (!is_component(name + start, i - start))
            return false;
        start = i + 1;
    }
    return true;
}

char *td_hub_repo_dir(const char *cache, const char *repo) {
    td_buf b;
    td_buf_init(&b, PATH_MAX);
    (void)td_buf_printf(&b, "%s/models--", cache);
    for (const char *p = repo; *p; p++)
        (void)(*p == '/' ? td_buf_puts(&b, "--") : td_buf_putc(&b, *p));
    return td_buf_steal(&b);
}

char *td_hub_snapshot_dir(const char *repo_dir, const char *commit) {
    td_buf b;
    td_buf_init(&b, PATH_MAX);
    (void)td_buf_printf(&b, "%s/snapshots/%s", repo_dir, commit);
    return td_buf_steal(&b);
}

td_status td_hub_strings_add(td_hub_strings *list, const char *s, size_t size, td_error *err) {
    if ((list->n & (list->n - 1)) == 0) { /* 0, 1, 2, 4, 8, ...: full */
        char **v = td_realloc(list->v, list->n ? 2 * list->n : 1, sizeof *v);
        if (!v)
            return td_fail(err, TD_E_NOMEM, "out of memory for a list of files");
        list->v = v;
    }
    char *copy = td_strndup(s, size);
    if (!copy)
        return td_fail(err, TD_E_NOMEM, "out of memory for a list of files");
    list->v[list->n++] = copy;
    return TD_OK;
}

void td_hub_strings_free(td_hub_strings *list) {
    for (size_t i = 0; i < list->n; i++)
        td_free(list->v[i]);
    td_free(list->v);
    *list = (td_hub_strings){0};
}

/* ---- GGUF files ---- */

#define GGUF_SUFFIX 5 /* ".gguf" */
#define GGUF_PIECE 15 /* "-00001-of-00003" */

bool td_hub_gguf_is(const char *name) {
    size_t n = strlen(name);
    return n > GGUF_SUFFIX && strcasecmp(name + n - GGUF_SUFFIX, ".gguf") == 0;
}

/* Five digits at p as a number; 0 when they are not. */
static unsigned five_digits(const char *p) {
    unsigned v = 0;
    for (int i = 0; i < 5; i++) {
        if (!isdigit((unsigned char)p[i]))
            return 0;
        v = v * 10 + (unsigned)(p[i] - '0');
    }
    return v;
}

/* The length of `name` without ".gguf" and without the number of a piece; *piece and *pieces are 1 without one. */
static size_t stem_of(const char *name, unsigned *piece, unsigned *pieces) {
    size_t n = strlen(name) - GGUF_SUFFIX;
    *piece = *pieces = 1;
    if (n <= GGUF_PIECE)
        return n;
    const char *tail = name + n - GGUF_PIECE;
    unsigned i = five_digits(tail + 1), of = five_digits(tail + 10);
    if (tail[0] != '-' || memcmp(tail + 6, "-of-", 4) != 0 || i == 0 || i > of)
        return n;
    *piece = i;
    *pieces = of;
    return n - GGUF_PIECE;
}

unsigned td_hub_gguf_pieces(const char *name) {
    unsigned piece, pieces;
    stem_of(name, &piece, &pieces);
    return pieces;
}

bool td_hub_gguf_same(const char *one, const char *name) {
    unsigned piece, pieces, other_piece, other_pieces;
    if (!td_hub_gguf_is(name))
        return false;
    size_t n = stem_of(one, &piece, &pieces), m = stem_of(name, &other_piece, &other_pieces);
    return n == m && pieces == other_pieces && memcmp(one, name, n) == 0 && (pieces > 1 || strcmp(one, name) == 0);
}

static const char *base_of(const char *name) {
    const char *slash = strrchr(name, '/');
    return slash ? slash + 1 : name;
}

/* A whole model or the first piece of one; no vision tower and no file of draft heads. */
static bool is_model(const char *name) {
    unsigned piece, pieces;
    if (!td_hub_gguf_is(name) || strncasecmp(base_of(name), "mmproj", 6) == 0 ||
        strncasecmp(base_of(name), "mtp-", 4) == 0)
        return false;
    stem_of(name, &piece, &pieces);
    return piece == 1;
}

/* "dir/Model-Q4_K_M.gguf" ends with "q4_k_m", after something that is no letter or digit. */
static bool ends_with_quantisation(const char *name, const char *quantisation) {
    unsigned piece, pieces;
    size_t n = stem_of(name, &piece, &pieces), m = strlen(quantisation);
    if (n < m || strncasecmp(name + n - m, quantisation, m) != 0)
        return false;
    return n == m || !isalnum((unsigned char)name[n - m - 1]);
}

static bool is_meant(const char *name, const char *selector) {
    return td_hub_gguf_is(selector) ? strcmp(name, selector) == 0
                                    : is_model(name) && ends_with_quantisation(name, selector);
}

void td_hub_gguf_list(char *out, size_t size, const char *const *names, size_t n, const char *selector) {
    size_t used = 0, shown = 0, left = 0;
    out[0] = '\0';
    for (size_t i = 0; i < n; i++) {
        if (selector ? !is_meant(names[i], selector) : !is_model(names[i]))
            continue;
        if (left > 0 || used + strlen(names[i]) + 20 > size)
            left++;
        else
            used += (size_t)snprintf(out + used, size - used, "%s%s", shown++ ? ", " : "", names[i]);
    }
    if (left > 0)
        snprintf(out + used, size - used, "%s%zu more", shown ? " and " : "", left);
}

td_status td_hub_gguf_pick(const char *const *names, size_t n, const char *selector, const char *where, size_t *pick,
                           td_error *err) {
    size_t hits = 0;
    for (size_t i = n; i-- > 0;)
        if (is_meant(names[i], selector)) {
            *pick = i;
            hits++;
        }
    for (size_t i = 0; i < n && hits == 1; i++) /* a later piece was named */
        if (td_hub_gguf_same(names[*pick], names[i]) && is_model(names[i]))
            *pick = i;
    if (hits == 1)
        return TD_OK;
    char list[240];
    td_hub_gguf_list(list, sizeof list, names, n, hits ? selector : NULL);
    if (hits > 1)
        return td_fail(err, TD_E_ARG, "%s: '%s' fits several files, name one: %s", where, selector, list);
    if (list[0] == '\0')
        return td_fail(err, TD_E_NOTFOUND, "%s: no file fits '%s', and there are no GGUF models", where, selector);
    return td_fail(err, TD_E_NOTFOUND, "%s: no file fits '%s'; there are %s", where, selector, list);
}
