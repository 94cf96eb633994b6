/* hub_listing.c - see hub_listing.h. The answer is read without building a tree: it is a stranger's text, and most of
 * it is the model's card. Anything in it that nobody needs may be missing or of another type. */
#include "format/hub_listing.h"

#include <fnmatch.h>
#include <string.h>

#include "base/alloc.h"
#include "format/json_scan.h"

#define MAX_DEPTH 32
#define MAX_FILES 100000

/* ---- reading ---- */

static bool is_key(const char *key, size_t n, const char *want) {
    return n == strlen(want) && memcmp(key, want, n) == 0;
}

/* A string of exactly `digits` hex digits into out; null and a missing member leave it as it is. */
static td_status read_hex(td_json_scan *s, size_t digits, char *out, td_error *err) {
    const char *str;
    size_t n, at = s->pos;
    if (td_json_scan_peek(s) == 'n')
        return td_json_scan_skip(s, err);
    TD_TRY(td_json_scan_string(s, &str, &n, err));
    char text[TD_HUB_DIGEST_TEXT_SIZE] = "";
    if (n == digits)
        memcpy(text, str, n);
    char shown[TD_SHOWN_SIZE];
    if (!td_hub_is_hex(text, digits))
        return td_json_scan_fail(s, at, err, "\"%s\" is not a checksum of %zu hex digits", td_shown(shown, str, n),
                                 digits);
    memcpy(out, text, digits + 1);
    return TD_OK;
}

static td_status read_size(td_json_scan *s, td_hub_file *f, td_error *err) {
    if (td_json_scan_peek(s) == 'n')
        return td_json_scan_skip(s, err);
    TD_TRY(td_json_scan_uint(s, &f->size, err));
    f->has_size = true;
    if (f->size > INT64_MAX)
        return td_json_scan_fail(s, s->pos, err, "no file has %llu bytes", (unsigned long long)f->size);
    return TD_OK;
}

/* {"sha256": ..., "size": ...}: they count for more than what stands beside them. */
static td_status read_lfs(td_json_scan *s, td_hub_file *f, td_error *err) {
    const char *key;
    size_t n;
    bool more;
    if (td_json_scan_peek(s) != '{')
        return td_json_scan_skip(s, err);
    TD_TRY(td_json_scan_enter(s, '{', err));
    for (;;) {
        TD_TRY(td_json_scan_next(s, &more, err));
        if (!more)
            return TD_OK;
        TD_TRY(td_json_scan_key(s, &key, &n, err));
        if (is_key(key, n, "sha256"))
            TD_TRY(read_hex(s, 64, f->checksum, err));
        else if (is_key(key, n, "size"))
            TD_TRY(read_size(s, f, err));
        else
            TD_TRY(td_json_scan_skip(s, err));
    }
}

static td_status read_name(td_json_scan *s, td_hub_listing *l, td_error *err) {
    const char *str;
    size_t n, at = s->pos;
    char shown[TD_SHOWN_SIZE];
    TD_TRY(td_json_scan_string(s, &str, &n, err));
    if (!td_hub_file_ok(str, n))
        return td_json_scan_fail(s, at, err, "the file name \"%s\" leads elsewhere or cannot be one",
                                 td_shown(shown, str, n));
    return td_hub_strings_add(&l->names, str, n, err);
}

static td_status add_file(td_json_scan *s, td_hub_listing *l, td_hub_file *f, size_t at, td_error *err) {
    size_t i = l->names.n - 1;
    if (l->names.n > MAX_FILES)
        return td_json_scan_fail(s, at, err, "more than %d files", MAX_FILES);
    if ((i & (i - 1)) == 0) { /* as td_hub_strings grows */
        td_hub_file *files = td_realloc(l->files, i ? 2 * i : 1, sizeof *files);
        if (!files)
            return td_fail(err, TD_E_NOMEM, "%s: out of memory", s->where);
        l->files = files;
    }
    f->name = l->names.v[i];
    l->files[i] = *f;
    return TD_OK;
}

static td_status read_file(td_json_scan *s, td_hub_listing *l, td_error *err) {
    td_hub_file f = {0}, lfs = {0};
    const char *key;
    size_t n, before = l->names.n, at = s->pos;
    bool more;
    TD_TRY(td_json_scan_enter(s, '{', err));
    for (;;) {
        TD_TRY(td_json_scan_next(s, &more, err));
        if (!more)
            break;
        TD_TRY(td_json_scan_key(s, &key, &n, err));
        if (is_key(key, n, "rfilename") && l->names.n == before)
            TD_TRY(read_name(s, l, err));
        else if (is_key(key, n, "size"))
            TD_TRY(read_size(s, &f, err));
        else if (is_key(key, n, "blobId"))
            TD_TRY(read_hex(s, 40, f.checksum, err));
        else if (is_key(key, n, "lfs"))
            TD_TRY(read_lfs(s, &lfs, err));
        else
            TD_TRY(td_json_scan_skip(s, err));
    }
    if (l->names.n == before)
        return td_json_scan_fail(s, at, err, "a file without \"rfilename\"");
    if (lfs.checksum[0])
        memcpy(f.checksum, lfs.checksum, sizeof f.checksum);
    if (lfs.has_size) {
        f.size = lfs.size;
        f.has_size = true;
    }
    return add_file(s, l, &f, at, err);
}

static td_status read_files(td_json_scan *s, td_hub_listing *l, td_error *err) {
    bool more;
    TD_TRY(td_json_scan_enter(s, '[', err));
    for (;;) {
        TD_TRY(td_json_scan_next(s, &more, err));
        if (!more)
            return TD_OK;
        TD_TRY(read_file(s, l, err));
    }
}

static td_status read_listing(td_json_scan *s, td_hub_listing *l, td_error *err) {
    const char *key;
    size_t n;
    bool more, seen = false;
    TD_TRY(td_json_scan_enter(s, '{', err));
    for (;;) {
        TD_TRY(td_json_scan_next(s, &more, err));
        if (!more)
            break;
        TD_TRY(td_json_scan_key(s, &key, &n, err));
        if (is_key(key, n, "sha"))
            TD_TRY(read_hex(s, 40, l->commit, err));
        else if (is_key(key, n, "siblings") && !seen) {
            seen = true;
            TD_TRY(read_files(s, l, err));
        } else
            TD_TRY(td_json_scan_skip(s, err));
    }
    TD_TRY(td_json_scan_end(s, err));
    if (l->commit[0] == '\0' || !seen)
        return td_fail(err, TD_E_FORMAT, "%s: no \"%s\" in what the hub says", s->where, seen ? "sha" : "siblings");
    return TD_OK;
}

static td_status index_names(td_hub_listing *l, const char *where, td_error *err) {
    char shown[TD_SHOWN_SIZE];
    for (size_t i = 0; i < l->names.n; i++) {
        const char *name = l->names.v[i];
        if (td_name_map_find(&l->by_name, name))
            return td_fail(err, TD_E_FORMAT, "%s: the file %s is listed twice", where,
                           td_shown(shown, name, strlen(name)));
        if (!td_name_map_add(&l->by_name, name, &l->files[i]))
            return td_fail(err, TD_E_NOMEM, "%s: out of memory", where);
    }
    return TD_OK;
}

td_status td_hub_listing_parse(td_hub_listing *listing, const char *text, size_t size, const char *where,
                               td_error *err) {
    *listing = (td_hub_listing){0};
    td_name_map_init(&listing->by_name);
    td_json_scan s;
    td_json_scan_init(&s, text, size, 0, MAX_DEPTH, where);
    td_status st = read_listing(&s, listing, err);
    td_json_scan_free(&s);
    if (st == TD_OK)
        st = index_names(listing, where, err);
    if (st != TD_OK)
        td_hub_listing_free(listing);
    return st;
}

void td_hub_listing_free(td_hub_listing *listing) {
    td_hub_strings_free(&listing->names);
    td_name_map_free(&listing->by_name);
    td_free(listing->files);
    *listing = (td_hub_listing){0};
}

td_hub_file *td_hub_listing_find(td_hub_listing *listing, const char *name) {
    const td_name_slot *slot = td_name_map_find(&listing->by_name, name);
    return slot ? (td_hub_file *)(uintptr_t)slot->value : NULL;
}

/* ---- choosing ---- */

/* What a model may have beside its weights. */
static const char *const texts[] = {
    "config.json",           "generation_config.json", "tokenizer.json",
    "tokenizer_config.json", "added_tokens.json",      "special_tokens_map.json",
    "chat_template.jinja",   "chat_template.json",     "additional_chat_templates/*.jinja",
};

/* Marks what fits; how many did. */
static size_t want(td_hub_listing *l, const char *pattern, int flags) {
    size_t n = 0;
    for (size_t i = 0; i < l->names.n; i++)
        if (fnmatch(pattern, l->names.v[i], flags) == 0) {
            l->files[i].wanted = true;
            n++;
        }
    return n;
}

static td_status choose_gguf(td_hub_listing *l, const td_hub_id *id, td_error *err) {
    size_t pick;
    unsigned found = 0;
    TD_TRY(td_hub_gguf_pick((const char *const *)l->names.v, l->names.n, id->file, id->repo, &pick, err));
    for (size_t i = 0; i < l->names.n; i++)
        if (td_hub_gguf_same(l->names.v[pick], l->names.v[i])) {
            l->files[i].wanted = true;
            found++;
        }
    if (found != td_hub_gguf_pieces(l->names.v[pick]))
        return td_fail(err, TD_E_NOTFOUND, "%s: %s has %u pieces, but %u are in the repository", id->repo,
                       l->names.v[pick], td_hub_gguf_pieces(l->names.v[pick]), found);
    return TD_OK;
}

static td_status no_weights(td_hub_listing *l, const td_hub_id *id, td_error *err) {
    char list[240];
    td_hub_gguf_list(list, sizeof list, (const char *const *)l->names.v, l->names.n, NULL);
    if (list[0])
        return td_fail(err, TD_E_NOTFOUND, "%s: a repository of GGUF files: name one, %s:FILE or %s:Q4_K_M, of %s",
                       id->repo, id->repo, id->repo, list);
    return td_fail(err, TD_E_NOTFOUND, "%s: no safetensors weights among its %zu files", id->repo, l->names.n);
}

static td_status choose_weights(td_hub_listing *l, const td_hub_id *id, td_hub_file **index, td_error *err) {
    *index = td_hub_listing_find(l, TD_SHARD_INDEX_FILE);
    if (*index) {
        (*index)->wanted = true;
        return TD_OK;
    }
    if (want(l, "model.safetensors", FNM_PATHNAME) || want(l, "model*.safetensors", FNM_PATHNAME) ||
        want(l, "weights.safetensors", FNM_PATHNAME))
        return TD_OK;
    return no_weights(l, id, err);
}

static td_status choose_model(td_hub_listing *l, const td_hub_id *id, td_hub_file **index, td_error *err) {
    TD_TRY(choose_weights(l, id, index, err));
    if (!td_hub_listing_find(l, "config.json"))
        return td_fail(err, TD_E_NOTFOUND, "%s: there is no config.json in the repository", id->repo);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        want(l, texts[i], FNM_PATHNAME);
    return TD_OK;
}

td_status td_hub_listing_choose(td_hub_listing *listing, const td_hub_id *id, const td_hub_options *opt,
                                td_hub_file **index, td_error *err) {
    char shown[TD_SHOWN_SIZE];
    *index = NULL;
    if (id->file[0])
        TD_TRY(choose_gguf(listing, id, err));
    else
        TD_TRY(choose_model(listing, id, index, err));
    for (size_t i = 0; i < opt->n_include; i++)
        if (want(listing, opt->include[i], 0) == 0)
            return td_fail(err, TD_E_NOTFOUND, "%s: no file fits '%s'", id->repo,
                           td_shown(shown, opt->include[i], strlen(opt->include[i])));
    return TD_OK;
}

td_status td_hub_listing_choose_shards(td_hub_listing *listing, const td_shard_index *index, const char *where,
                                       td_error *err) {
    for (size_t i = 0; i < index->n_shards; i++) {
        td_hub_file *f = td_hub_listing_find(listing, index->shards[i]);
        if (!f)
            return td_fail(err, TD_E_NOTFOUND, "%s: the index names %s, which the repository lacks", where,
                           index->shards[i]);
        f->wanted = true;
    }
    return TD_OK;
}
