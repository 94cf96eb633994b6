/* fuzz_hub_listing.c - libFuzzer target of what a hub says: lists of files, and ids as a user writes them.
 *
 * Whatever comes in, no name that is accepted leads out of the directory it is put in, and what is chosen has a place.
 */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "format/hub_listing.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* By other means than td_hub_file_ok: walks the components. */
static void check_name(const char *name) {
    int depth = 0;
    if (name[0] == '/' || name[0] == '\0' || strlen(name) > TD_HUB_FILE_MAX)
        abort();
    for (const char *p = name; *p; p += strspn(p, "/")) {
        size_t n = strcspn(p, "/");
        depth += n == 2 && memcmp(p, "..", 2) == 0 ? -1 : 1;
        if (depth <= 0)
            abort();
        p += n;
    }
    for (const char *p = name; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7F || *p == '\\')
            abort();
}

static void check_id(const char *text) {
    td_hub_id id;
    if (!td_hub_id_parse(text, &id))
        return;
    if (strstr(id.repo, "..") || strstr(id.revision, "..") || id.repo[0] == '/' || id.revision[0] == '/')
        abort();
    if (id.file[0])
        check_name(id.file);
}

static void choose(td_hub_listing *l, const char *id_text) {
    td_hub_id id;
    td_hub_file *index;
    td_error err;
    const td_hub_options o = td_hub_options_default();
    if (!td_hub_id_parse(id_text, &id))
        abort();
    td_status st = td_hub_listing_choose(l, &id, &o, &index, &err);
    if (st != TD_OK && st != TD_E_NOTFOUND && st != TD_E_ARG)
        abort();
    if (index && td_hub_listing_find(l, index->name) != index)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    long live = td_alloc_live();
    td_hub_listing l;
    td_error err;
    char *text = td_strndup((const char *)data, size);
    if (!text)
        return 0;
    check_id(text);
    td_free(text);
    td_status st = td_hub_listing_parse(&l, (const char *)data, size, "fuzz", &err);
    if (st != TD_OK && st != TD_E_FORMAT)
        abort();
    for (size_t i = 0; i < l.names.n; i++)
        check_name(l.names.v[i]);
    if (st == TD_OK) {
        choose(&l, "o/n");
        choose(&l, "o/n:Q4_K_M");
    }
    td_hub_listing_free(&l);
    if (td_alloc_live() != live)
        abort();
    return 0;
}
