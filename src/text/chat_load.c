/* chat_load.c - finding the chat template among the files of a checkpoint. */
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "text/chat_internal.h"

static td_status nomem(td_error *err, const char *dir) {
    return td_fail(err, TD_E_NOMEM, "%s: out of memory for the chat template", dir);
}

/* A file that may be absent: then *data is NULL. */
static td_status read_optional(const char *dir, const char *name, size_t ceiling, char **path, char **data,
                               size_t *size, td_error *err) {
    *data = NULL;
    *path = td_path_join(dir, name);
    if (!*path)
        return nomem(err, dir);
    td_status st = td_file_exists(*path) ? td_file_read(*path, ceiling, data, size, err) : TD_OK;
    if (st != TD_OK || !*data) {
        td_free(*path);
        *path = NULL;
    }
    return st;
}

/* A JSON file that may be absent: then *json is NULL. */
static td_status read_json(const char *dir, const char *name, char **path, json_t **json, td_error *err) {
    char *data;
    size_t size;
    json_error_t error;
    *json = NULL;
    TD_TRY(read_optional(dir, name, TD_CHAT_MAX_CONFIG, path, &data, &size, err));
    if (!data)
        return TD_OK;
    *json = json_loadb(data, size, 0, &error);
    td_free(data);
    td_status st = TD_OK;
    if (!*json && error.line < 0) /* jansson found no fault in the text: it ran out of memory */
        st = nomem(err, dir);
    else if (!*json)
        st = td_fail_at(err, TD_E_FORMAT, error.position, "%s:%d:%d: %s", *path, error.line, error.column, error.text);
    else if (!json_is_object(*json))
        st = td_fail(err, TD_E_FORMAT, "%s: expected a JSON object", *path);
    if (st != TD_OK) {
        json_decref(*json);
        *json = NULL;
        td_free(*path);
        *path = NULL;
    }
    return st;
}

static td_status copy_text(const json_t *text, char **out, size_t *size, td_error *err) {
    *size = json_string_length(text);
    *out = td_strndup(json_string_value(text), *size);
    return *out ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory for the chat template");
}

/* The template of this name in a list of {"name", "template"}. */
static const json_t *find_named(const json_t *list, const char *name) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        const char *given = json_string_value(json_object_get(entry, "name"));
        if (given && !strcmp(given, name))
            return json_object_get(entry, "template");
    }
    return NULL;
}

static td_status from_list(td_chat_files *f, const json_t *list, const char *path, td_error *err) {
    const json_t *plain = find_named(list, "default"), *tools = find_named(list, "tool_use");
    if (!plain && json_array_size(list) == 1)
        plain = json_object_get(json_array_get(list, 0), "template");
    if (!plain)
        plain = tools;
    if (!json_is_string(plain) || (tools && !json_is_string(tools)))
        return td_fail(err, TD_E_FORMAT,
                       "%s: \"chat_template\" is a list, in which the templates named \"default\" and \"tool_use\" are "
                       "looked for; expected at least the first, as text",
                       path);
    TD_TRY(copy_text(plain, &f->source, &f->size, err));
    return tools && tools != plain ? copy_text(tools, &f->tool_source, &f->tool_size, err) : TD_OK;
}

/* "chat_template" of a JSON file, if it has one. */
static td_status from_member(td_chat_files *f, const json_t *json, char **path, td_error *err) {
    const json_t *member = json_object_get(json, "chat_template");
    td_status st = TD_OK;
    if (f->source || !member || json_is_null(member))
        return TD_OK;
    if (json_is_string(member))
        st = copy_text(member, &f->source, &f->size, err);
    else if (json_is_array(member))
        st = from_list(f, member, *path, err);
    else
        st = td_fail(err, TD_E_FORMAT, "%s: \"chat_template\" must be text or a list of named templates", *path);
    if (st == TD_OK) {
        f->name = *path;
        *path = NULL;
    }
    return st;
}

static td_status from_jinja_file(td_chat_files *f, const char *dir, td_error *err) {
    char *path;
    TD_TRY(read_optional(dir, "chat_template.jinja", TD_JINJA_MAX_TEMPLATE, &f->name, &f->source, &f->size, err));
    if (!f->source)
        return TD_OK;
    TD_TRY(read_optional(dir, "additional_chat_templates/tool_use.jinja", TD_JINJA_MAX_TEMPLATE, &path, &f->tool_source,
                         &f->tool_size, err));
    td_free(path);
    return TD_OK;
}

/* A special token is text, or an object that describes an added token. */
static td_status read_special(td_chat_files *f, const json_t *config, td_error *err) {
    static const char *const names[] = {"bos_token", "eos_token", "pad_token",  "unk_token",
                                        "sep_token", "cls_token", "mask_token", NULL};
    f->special = json_object();
    bool failed = !f->special;
    for (size_t i = 0; names[i] && !failed; i++) {
        json_t *token = json_object_get(config, names[i]);
        if (json_is_object(token))
            token = json_object_get(token, "content");
        if (json_is_string(token))
            failed = json_object_set(f->special, names[i], token) != 0;
    }
    return failed ? td_fail(err, TD_E_NOMEM, "out of memory for the special tokens") : TD_OK;
}

static td_status from_config_file(td_chat_files *f, const char *dir, const char *name, bool special, td_error *err) {
    char *path;
    json_t *json;
    TD_TRY(read_json(dir, name, &path, &json, err));
    td_status st = special ? read_special(f, json, err) : TD_OK;
    if (st == TD_OK && json)
        st = from_member(f, json, &path, err);
    json_decref(json);
    td_free(path);
    return st;
}

static td_status read_all(td_chat_files *f, const char *dir, td_error *err) {
    TD_TRY(from_jinja_file(f, dir, err));
    TD_TRY(from_config_file(f, dir, "tokenizer_config.json", true, err));
    if (!f->source)
        TD_TRY(from_config_file(f, dir, "chat_template.json", false, err));
    if (f->source)
        return TD_OK;
    return td_fail(err, TD_E_NOTFOUND,
                   "%s has no chat template: looked for chat_template.jinja, and for \"chat_template\" in "
                   "tokenizer_config.json and in chat_template.json",
                   dir);
}

td_status td_chat_files_read(td_chat_files *files, const char *dir, td_error *err) {
    *files = (td_chat_files){0};
    td_status st = read_all(files, dir, err);
    if (st != TD_OK)
        td_chat_files_free(files);
    return st;
}

void td_chat_files_free(td_chat_files *files) {
    td_free(files->name);
    td_free(files->source);
    td_free(files->tool_source);
    json_decref(files->special);
    *files = (td_chat_files){0};
}
