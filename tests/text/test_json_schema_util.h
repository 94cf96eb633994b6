/* test_json_schema_util.h - a small validator of JSON Schema, written for the tests and from the specification alone:
 * it shares no code and no idea with the compiler. Patterns are matched by PCRE2. */
#ifndef TEST_JSON_SCHEMA_UTIL_H
#define TEST_JSON_SCHEMA_UTIL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <math.h>
#include <pcre2.h>

#include "text/json_schema.h"
#include "text/test_grammar_util.h"

static inline json_t *parse_json(const char *text) {
    json_error_t e;
    json_t *v = json_loads(text, JSON_DECODE_ANY, &e);
    if (!v)
        fail_msg("%s: %s", e.text, text);
    return v;
}

static inline bool pattern_matches(const char *pattern, const char *text) {
    int error;
    size_t offset;
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY, &error, &offset, NULL);
    assert_non_null(re);
    pcre2_match_data *m = pcre2_match_data_create_from_pattern(re, NULL);
    bool found = pcre2_match(re, (PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, 0, 0, m, NULL) >= 0;
    pcre2_match_data_free(m);
    pcre2_code_free(re);
    return found;
}

static inline size_t n_characters(const char *s) {
    size_t n = 0;
    for (; *s; s++)
        n += ((unsigned char)*s & 0xC0) != 0x80;
    return n;
}

static inline bool format_matches(const char *format, const char *s) {
    static const char *const table[][2] = {
        {"date", "^\\d{4}-\\d\\d-\\d\\d$"},
        {"time", "^\\d\\d:\\d\\d:\\d\\d(\\.\\d+)?(Z|[+-]\\d\\d:\\d\\d)$"},
        {"date-time", "^\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d(\\.\\d+)?(Z|[+-]\\d\\d:\\d\\d)$"},
        {"uuid", "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"},
        {"email", "^[^@\\s.]+(\\.[^@\\s.]+)*@[^@\\s.-][^@\\s]*\\.[A-Za-z]{2,}$"},
        {"ipv4", "^(\\d{1,3}\\.){3}\\d{1,3}$"},
        {"ipv6", "^[0-9a-fA-F:]{2,39}$"},
        {"hostname", "^[A-Za-z0-9.-]{1,253}$"},
        {"duration", "^P(?=.)(\\d+W|(\\d+Y)?(\\d+M)?(\\d+D)?(T(?=.)(\\d+H)?(\\d+M)?(\\d+S)?)?)$"},
        {"uri", "^[a-z]+://[^\\s]+$"},
    };
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(table[i][0], format) == 0 && !pattern_matches(table[i][1], s))
            return false;
    if (strncmp(format, "date", 4) == 0) {
        int y = atoi(s), m = atoi(s + 5), d = atoi(s + 8);
        bool leap = (y % 4 == 0 && y % 100 != 0) || y % 400 == 0;
        return m >= 1 && m <= 12 && d >= 1 && d <= days[m - 1] + (m == 2 && leap);
    }
    return true;
}

static inline const json_t *follow_ref(const json_t *root, const char *ref) {
    const json_t *at = root;
    char name[100], *slash;
    for (ref++; *ref == '/'; ref += strcspn(ref, "/")) {
        sscanf(++ref, "%99[^/]", name);
        while ((slash = strstr(name, "~1"))) {
            *slash = '/';
            memmove(slash + 1, slash + 2, strlen(slash + 2) + 1);
        }
        at = json_object_get(at, name);
    }
    assert_non_null(at);
    return at;
}

static inline bool is_type(const json_t *v, const char *type) {
    return strcmp(type, "object") == 0   ? json_is_object(v)
           : strcmp(type, "array") == 0  ? json_is_array(v)
           : strcmp(type, "string") == 0 ? json_is_string(v)
           : strcmp(type, "number") == 0 ? json_is_number(v)
           : strcmp(type, "integer") == 0
               ? json_is_integer(v) || (json_is_real(v) && floor(json_real_value(v)) == json_real_value(v))
           : strcmp(type, "boolean") == 0 ? json_is_boolean(v)
                                          : json_is_null(v);
}

static inline bool valid(const json_t *root, const json_t *s, const json_t *v);

static inline bool valid_object(const json_t *root, const json_t *s, const json_t *v) {
    const char *key;
    json_t *member, *name, *schema, *more = json_object_get(s, "additionalProperties");
    size_t i;
    json_array_foreach(json_object_get(s, "required"), i, name) {
        if (!json_object_get(v, json_string_value(name)))
            return false;
    }
    json_object_foreach((json_t *)(uintptr_t)v, key, member) {
        schema = json_object_get(json_object_get(s, "properties"), key);
        schema = schema ? schema : more;
        if (schema && !valid(root, schema, member))
            return false;
    }
    json_t *min = json_object_get(s, "minProperties"), *max = json_object_get(s, "maxProperties");
    return (!min || (json_int_t)json_object_size(v) >= json_integer_value(min)) &&
           (!max || (json_int_t)json_object_size(v) <= json_integer_value(max));
}

static inline bool valid_array(const json_t *root, const json_t *s, const json_t *v) {
    json_t *prefix = json_object_get(s, "prefixItems"), *items = json_object_get(s, "items"), *item;
    json_t *min = json_object_get(s, "minItems"), *max = json_object_get(s, "maxItems");
    size_t i, n = json_array_size(v);
    json_array_foreach(v, i, item) {
        json_t *schema = i < json_array_size(prefix) ? json_array_get(prefix, i) : items;
        if (schema && !valid(root, schema, item))
            return false;
    }
    return (!min || (json_int_t)n >= json_integer_value(min)) && (!max || (json_int_t)n <= json_integer_value(max));
}

static inline bool valid_string(const json_t *s, const json_t *v) {
    const json_t *min = json_object_get(s, "minLength"), *max = json_object_get(s, "maxLength");
    const char *pattern = json_string_value(json_object_get(s, "pattern"));
    const char *format = json_string_value(json_object_get(s, "format")), *text = json_string_value(v);
    json_int_t n = (json_int_t)n_characters(text);
    return (!min || n >= json_integer_value(min)) && (!max || n <= json_integer_value(max)) &&
           (!pattern || pattern_matches(pattern, text)) && (!format || format_matches(format, text));
}

static inline bool valid_number(const json_t *s, const json_t *v) {
    const json_t *lo = json_object_get(s, "minimum"), *hi = json_object_get(s, "maximum");
    const json_t *above = json_object_get(s, "exclusiveMinimum"), *under = json_object_get(s, "exclusiveMaximum");
    double x = json_number_value(v), step = json_number_value(json_object_get(s, "multipleOf"));
    if ((lo && x < json_number_value(lo)) || (hi && x > json_number_value(hi)) ||
        (above && x <= json_number_value(above)) || (under && x >= json_number_value(under)))
        return false;
    return step == 0 || fabs(x / step - round(x / step)) < 1e-3;
}

static inline bool valid_choice(const json_t *root, const json_t *list, const json_t *v, bool all) {
    json_t *branch;
    size_t i;
    json_array_foreach(list, i, branch) {
        if (valid(root, branch, v) != all)
            return !all;
    }
    return all;
}

static inline bool valid(const json_t *root, const json_t *s, const json_t *v) {
    const json_t *x;
    json_t *one;
    size_t i;
    if (json_is_boolean(s))
        return json_is_true(s);
    if (json_is_true(json_object_get(s, "nullable")) && json_is_null(v))
        return true;
    if ((x = json_object_get(s, "$ref")) && !valid(root, follow_ref(root, json_string_value(x)), v))
        return false;
    if ((x = json_object_get(s, "const")) && !json_equal(x, v))
        return false;
    if ((x = json_object_get(s, "enum"))) {
        bool found = false;
        json_array_foreach(x, i, one) {
            found = found || json_equal(one, v);
        }
        if (!found)
            return false;
    }
    if ((x = json_object_get(s, "type"))) {
        bool found = json_is_string(x) && is_type(v, json_string_value(x));
        json_array_foreach(x, i, one) {
            found = found || is_type(v, json_string_value(one));
        }
        if (!found)
            return false;
    }
    if (((x = json_object_get(s, "anyOf")) && !valid_choice(root, x, v, false)) ||
        ((x = json_object_get(s, "oneOf")) && !valid_choice(root, x, v, false)) ||
        ((x = json_object_get(s, "allOf")) && !valid_choice(root, x, v, true)))
        return false;
    if (json_is_object(v))
        return valid_object(root, s, v);
    if (json_is_array(v))
        return valid_array(root, s, v);
    if (json_is_string(v))
        return valid_string(s, v);
    return !json_is_number(v) || valid_number(s, v);
}

/* Tokens that models have: pieces of JSON, words, runs. */
static const char *const json_texts[] = {
    "{\"",
    "\":",
    "\": \"",
    "\",",
    "\", \"",
    "\"}",
    "\"}]",
    "}}",
    "},",
    "},{\"",
    "[\"",
    "[[",
    "],[",
    "null",
    "true",
    "false",
    "name",
    "value",
    " the",
    " and",
    "ing",
    "er",
    "12",
    "100",
    "0.",
    ".5",
    "e+",
    "\\\"",
    "\\n",
    "\\u",
    "00",
    "\n",
    "\n  ",
    "\n    ",
    "  ",
    "a",
    "b",
    "x",
    "\xC3\xA9",
    "\xE4\xBD\xA0\xE5\xA5\xBD",
    "\xF0\x9F\x98\x80",
    "-",
    "2024",
    "-0",
    "://",
    "@",
    "</",
    "</parameter>",
    "</think>",
    "<parameter=",
    "parameter",
    "function",
    ">\n",
    "<|",
    "|>",
    "\"|",
    "call:",
    ":{",
    "0",
    "1",
    "2",
    "3",
    "}",
    "]",
    "\"",
};
enum { N_JSON_TEXTS = sizeof json_texts / sizeof *json_texts };

#endif
