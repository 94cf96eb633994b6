/* route_slots.c - GET /slots, and POST /slots/ID?action=save|restore|erase with {"filename"}, as llama.cpp's server has
 * them. Files lie in one directory that the server was given; a name is a name and no path. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "serve/fields.h"
#include "serve/server_impl.h"

enum { MAX_FILENAME = 128 };

static void write_slot(td_json_out *o, uint32_t id, const td_slot_info *i) {
    td_out_begin(o, '{');
    td_out_member_int(o, "id", id);
    td_out_member_bool(o, "is_processing", i->busy);
    td_out_member_int(o, "id_task", (int64_t)i->id);
    td_out_member_int(o, "n_prompt", i->n_prompt);
    td_out_member_int(o, "n_cached", i->n_cached);
    td_out_member_int(o, "n_pending", i->n_pending);
    td_out_member_int(o, "n_decoded", i->n_generated);
    td_out_member_int(o, "draft_n", (int64_t)i->drafted);
    td_out_member_int(o, "draft_n_accepted", (int64_t)i->accepted);
    td_out_end(o, '}');
}

void td_route_slots(void *server, td_exchange *x) {
    td_server *s = server;
    td_buf json;
    td_slot_info info;
    td_scheduler *scheduler = td_server_enter(s, x, false);
    if (!scheduler)
        return;
    td_buf_init(&json, 4 << 20);
    td_json_out o = td_json_out_to(&json);
    td_out_begin(&o, '[');
    for (uint32_t i = 0; td_scheduler_slot(scheduler, i, &info, NULL) == TD_OK; i++)
        write_slot(&o, i, &info);
    td_out_end(&o, ']');
    td_server_reply_json(x, 200, &json);
    td_buf_free(&json);
    td_server_leave(s);
}

/* ---- actions ---- */

typedef struct action {
    td_server *server;
    td_scheduler *scheduler;
    uint32_t slot;
    char *path; /* owned; NULL for erase */
    const char *filename;
    uint64_t n_tokens, n_bytes;
    double ms;
} action;

static td_status read_slot(const char *text, uint32_t *slot, td_fault *fault) {
    char *end = NULL;
    unsigned long v = *text >= '0' && *text <= '9' && strlen(text) < 10 ? strtoul(text, &end, 10) : 0;
    if (!end || *end != '\0')
        return td_fault_set(fault, 404, "not_found", NULL, "there is no slot '%.40s'", text);
    *slot = (uint32_t)v;
    return TD_OK;
}

static bool is_plain_name(const char *name) {
    size_t n = strlen(name);
    if (n == 0 || n > MAX_FILENAME || name[0] == '.')
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7F || strchr("/\\:", name[i]))
            return false;
    return true;
}

static td_status read_filename(action *a, const td_fields *f) {
    TD_TRY(td_field_text(f, "filename", &a->filename));
    if (!a->filename)
        return td_field_missing(f, "filename");
    if (!is_plain_name(a->filename))
        return td_field_fail(f, "filename", "invalid_value",
                             "is '%.60s', expected a plain name of at most %d bytes: no path, no dot in front",
                             a->filename, MAX_FILENAME);
    a->path = td_path_join(a->server->opt.slot_path, a->filename);
    return a->path ? TD_OK : td_fault_of(f->fault, &(td_error){.status = TD_E_NOMEM}, NULL);
}

/* What the file is called, not where it lies: that is the server's business. */
static td_status slot_fault(const action *a, td_fault *fault, const td_error *err) {
    const char *message = err->message;
    size_t n = a->path ? strlen(a->path) - strlen(a->filename) : 0;
    td_fault_of(fault, err, "filename");
    if (n > 0 && strncmp(message, a->path, n) == 0)
        td_fault_set(fault, fault->status, fault->code, "filename", "%s", message + n);
    if (err->status == TD_E_BUSY) {
        fault->status = 409;
        fault->code = "slot_busy";
    } else if (err->status == TD_E_NOTFOUND) {
        fault->status = 404;
        fault->code = "not_found";
    }
    return err->status;
}

static td_status act(action *a, const char *what, td_fault *fault) {
    td_error err = {0};
    td_status st;
    int64_t begin = td_clock_ns();
    if (strcmp(what, "save") == 0)
        st = td_scheduler_save(a->scheduler, a->slot, a->path, &a->n_tokens, &a->n_bytes, &err);
    else if (strcmp(what, "restore") == 0)
        st = td_scheduler_restore(a->scheduler, a->slot, a->path, &a->n_tokens, &a->n_bytes, &err);
    else
        st = td_scheduler_erase(a->scheduler, a->slot, &a->n_tokens, &err);
    a->ms = td_clock_since(begin) * 1e3;
    return st == TD_OK ? TD_OK : slot_fault(a, fault, &err);
}

static void write_result(td_json_out *o, const action *a, const char *what) {
    bool save = strcmp(what, "save") == 0, restore = strcmp(what, "restore") == 0;
    td_out_begin(o, '{');
    td_out_member_int(o, "id_slot", a->slot);
    if (save || restore) {
        td_out_member_str(o, "filename", a->filename);
        td_out_member_int(o, save ? "n_saved" : "n_restored", (int64_t)a->n_tokens);
        td_out_member_int(o, save ? "n_written" : "n_read", (int64_t)a->n_bytes);
        td_out_key(o, "timings");
        td_out_begin(o, '{');
        td_out_member_real(o, save ? "save_ms" : "restore_ms", a->ms, 3);
        td_out_end(o, '}');
    } else {
        td_out_member_int(o, "n_erased", (int64_t)a->n_tokens);
    }
    td_out_end(o, '}');
}

static td_status run_action(action *a, td_exchange *x, json_t **root, td_json_out *o, td_fault *fault) {
    const char *what = td_exchange_query(x, "action");
    size_t n;
    const char *body = td_exchange_body(x, &n);
    TD_TRY(read_slot(td_exchange_path(x) + strlen("/slots/"), &a->slot, fault));
    if (!what || (strcmp(what, "save") && strcmp(what, "restore") && strcmp(what, "erase")))
        return td_fault_set(fault, 400, "invalid_value", "action",
                            "'action' is '%.40s', expected ?action=save, restore or erase", what ? what : "");
    if (!a->server->opt.slot_path)
        return td_fault_set(fault, 400, "unsupported_endpoint", NULL,
                            "this server was started without --slot-save-path, so it saves no conversations");
    if (strcmp(what, "erase") != 0) {
        TD_TRY(td_api_body_parse(body, n, root, fault));
        TD_TRY(read_filename(a, &(td_fields){*root, "", fault}));
    }
    TD_TRY(act(a, what, fault));
    write_result(o, a, what);
    return TD_OK;
}

void td_route_slot(void *server, td_exchange *x) {
    td_server *s = server;
    td_fault fault;
    td_buf json;
    json_t *root = NULL;
    action a = {.server = s};
    a.scheduler = td_server_enter(s, x, false);
    if (!a.scheduler)
        return;
    td_buf_init(&json, 1 << 16);
    td_json_out o = td_json_out_to(&json);
    if (run_action(&a, x, &root, &o, &fault) == TD_OK)
        td_server_reply_json(x, 200, &json);
    else
        td_server_reply_fault(x, &fault);
    td_free(a.path);
    td_buf_free(&json);
    json_decref(root);
    td_server_leave(s);
}
