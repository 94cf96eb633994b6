/* jinja_json.c - the tojson filter: Python's json.dumps, byte for byte, with its separators, indentation, key order,
 * escapes and spelling of numbers. */
#include <math.h>
#include <string.h>

#include "text/jinja_internal.h"

static td_status write_value(td_jrun *r, td_jv v, const td_jjson_style *style, size_t level);

static td_status escape_ascii(td_jrun *r, uint32_t cp) {
    if (cp < 0x10000)
        return td_jrun_writef(r, "\\u%04x", cp);
    cp -= 0x10000;
    return td_jrun_writef(r, "\\u%04x\\u%04x", 0xd800 + (cp >> 10), 0xdc00 + (cp & 0x3ff));
}

static const char *short_escape(uint32_t cp) {
    switch (cp) {
    case '"':
        return "\\\"";
    case '\\':
        return "\\\\";
    case '\n':
        return "\\n";
    case '\r':
        return "\\r";
    case '\t':
        return "\\t";
    case '\b':
        return "\\b";
    case '\f':
        return "\\f";
    default:
        return NULL;
    }
}

static td_status write_text(td_jrun *r, td_jv s, bool ascii) {
    size_t plain = 0; /* bytes before i not yet written */
    TD_TRY(td_jrun_charge(r, s.size));
    TD_TRY(td_jrun_puts(r, "\""));
    for (size_t i = 0, step; i < s.size; i += step) {
        uint32_t cp;
        step = td_jchar(s.text + i, s.size - i, &cp);
        const char *escape = short_escape(cp);
        if (!escape && cp >= 0x20 && (cp < 0x7f || !ascii))
            continue;
        TD_TRY(td_jrun_write(r, s.text + plain, i - plain));
        TD_TRY(escape ? td_jrun_puts(r, escape) : escape_ascii(r, cp));
        plain = i + step;
    }
    TD_TRY(td_jrun_write(r, s.text + plain, s.size - plain));
    return td_jrun_puts(r, "\"");
}

static td_status write_float(td_jrun *r, double d) {
    char text[32];
    if (isnan(d))
        return td_jrun_puts(r, "NaN");
    if (isinf(d))
        return td_jrun_puts(r, d < 0 ? "-Infinity" : "Infinity");
    return td_jrun_write(r, text, td_jtext_float(d, text));
}

static td_status new_line(td_jrun *r, const td_jjson_style *style, size_t level) {
    if (!style->indented)
        return TD_OK;
    TD_TRY(td_jrun_puts(r, "\n"));
    for (size_t i = 0; i < level; i++)
        TD_TRY(td_jrun_write(r, style->indent.text, style->indent.size));
    return td_jrun_charge(r, level);
}

static td_status separate(td_jrun *r, const td_jjson_style *style, size_t level, bool first) {
    if (!first)
        TD_TRY(td_jrun_write(r, style->item_separator.text, style->item_separator.size));
    return new_line(r, style, level);
}

static td_status write_list(td_jrun *r, const td_jlist *list, const td_jjson_style *style, size_t level) {
    if (list->n == 0)
        return td_jrun_puts(r, "[]");
    TD_TRY(td_jrun_puts(r, "["));
    for (size_t i = 0; i < list->n; i++) {
        TD_TRY(separate(r, style, level + 1, i == 0));
        TD_TRY(write_value(r, list->items[i], style, level + 1));
    }
    TD_TRY(new_line(r, style, level));
    return td_jrun_puts(r, "]");
}

/* A key that is no string is written as the string of its JSON. */
static td_status write_key(td_jrun *r, td_jv key, const td_jjson_style *style) {
    if (key.kind == TD_J_STRING)
        return write_text(r, key, style->ascii);
    if (!td_jv_is_number(key) && key.kind != TD_J_NONE)
        return td_jrun_fail(r, TD_E_FORMAT, "keys must be str, int, float, bool or None, not %s", td_jv_type_name(key));
    TD_TRY(td_jrun_puts(r, "\""));
    TD_TRY(write_value(r, key, style, 0));
    return td_jrun_puts(r, "\"");
}

/* The entries in the order to write them: `order` is [n] values of the dictionary, keys beside them. */
static td_status sorted_entries(td_jrun *r, const td_jdict *dict, td_jv *keys, td_jv *values) {
    for (size_t i = 0; i < dict->n; i++) {
        keys[i] = dict->entries[i].key;
        values[i] = dict->entries[i].value;
    }
    return td_jv_sort(r, keys, values, dict->n, false);
}

static td_status write_dict(td_jrun *r, const td_jdict *dict, const td_jjson_style *style, size_t level) {
    td_jv *keys = NULL, *values = NULL;
    if (dict->n == 0)
        return td_jrun_puts(r, "{}");
    if (style->sort_keys) {
        keys = td_jrun_alloc(r, dict->n, sizeof *keys);
        values = td_jrun_alloc(r, dict->n, sizeof *values);
        if (!keys || !values)
            return td_jrun_nomem(r);
        TD_TRY(sorted_entries(r, dict, keys, values));
    }
    TD_TRY(td_jrun_puts(r, "{"));
    for (size_t i = 0; i < dict->n; i++) {
        TD_TRY(separate(r, style, level + 1, i == 0));
        TD_TRY(write_key(r, keys ? keys[i] : dict->entries[i].key, style));
        TD_TRY(td_jrun_write(r, style->key_separator.text, style->key_separator.size));
        TD_TRY(write_value(r, values ? values[i] : dict->entries[i].value, style, level + 1));
    }
    TD_TRY(new_line(r, style, level));
    return td_jrun_puts(r, "}");
}

static td_status write_nested(td_jrun *r, td_jv v, const td_jjson_style *style, size_t level) {
    TD_TRY(td_jrun_enter(r));
    TD_TRY(v.kind == TD_J_LIST ? write_list(r, v.list, style, level) : write_dict(r, v.dict, style, level));
    td_jrun_leave(r);
    return TD_OK;
}

static td_status write_value(td_jrun *r, td_jv v, const td_jjson_style *style, size_t level) {
    TD_TRY(td_jrun_charge(r, 0));
    switch ((td_jkind)v.kind) {
    case TD_J_NONE:
        return td_jrun_puts(r, "null");
    case TD_J_BOOL:
        return td_jrun_puts(r, v.boolean ? "true" : "false");
    case TD_J_INT:
        return td_jrun_writef(r, "%lld", (long long)v.integer);
    case TD_J_FLOAT:
        return write_float(r, v.real);
    case TD_J_STRING:
        return write_text(r, v, style->ascii);
    case TD_J_DICT:
        return write_nested(r, v, style, level);
    case TD_J_LIST:
        if (v.list->flavour <= TD_J_GROUP)
            return write_nested(r, v, style, level);
        break;
    default:
        break;
    }
    return td_jrun_fail(r, TD_E_FORMAT, "Object of type %s is not JSON serializable", td_jv_type_name(v));
}

td_status td_jv_json(td_jrun *r, td_jv v, const td_jjson_style *style) {
    return write_value(r, v, style, 0);
}
