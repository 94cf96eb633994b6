/* test_json.c - the strict reader of JSON, the trees on top of it, and the fields of objects. */
#include "format/support_format.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "format/json_scan.h"

static td_status parse(const char *text, size_t size, json_t **out, td_error *err) {
    return td_json_parse(text, size, 8, "t", out, err);
}

/* Text, its size (0: strlen), and the message after "t: byte "; the number in it is the position too. */
static const struct {
    const char *text;
    size_t size;
    const char *want;
} refused[] = {
    {"", 0, "0: expected a value, found the end"},
    {"  ", 0, "2: expected a value, found the end"},
    {"\xEF\xBB\xBF{}", 0, "0: the text begins with a byte order mark, expected plain UTF-8"},
    {"{}\0", 3, "2: expected the end of the text, found byte 0x00"},
    {"\0{}", 3, "0: expected a value, found byte 0x00"},
    {"{} x", 0, "3: expected the end of the text, found 'x'"},
    {"{}{}", 0, "2: expected the end of the text, found '{'"},
    {"{", 0, "1: expected a string, found the end"},
    {"{\"a\"", 0, "4: expected ':', found the end"},
    {"{\"a\":", 0, "5: expected a value, found the end"},
    {"{\"a\":1", 0, "6: expected ',' or '}', found the end"},
    {"{\"a\":1,}", 0, "7: expected a string, found '}'"},
    {"{a:1}", 0, "1: expected a string, found 'a'"},
    {"{1:1}", 0, "1: expected a string, found '1'"},
    {"[", 0, "1: expected a value, found the end"},
    {"[1", 0, "2: expected ',' or ']', found the end"},
    {"[1 2]", 0, "3: expected ',' or ']', found '2'"},
    {"[1,]", 0, "3: expected a value, found ']'"},
    {"[,1]", 0, "1: expected a value, found ','"},
    {"[1}", 0, "2: expected ',' or ']', found '}'"},
    {"]", 0, "0: expected a value, found ']'"},
    {"tru", 0, "0: expected a value, found 't'"},
    {"nul", 0, "0: expected a value, found 'n'"},
    {"truee", 0, "4: expected the end of the text, found 'e'"},
    {"NaN", 0, "0: expected a value, found 'N'"},
    {"Infinity", 0, "0: expected a value, found 'I'"},
    {"-Infinity", 0, "1: expected a number, found 'I'"},
    {"-", 0, "1: expected a number, found the end"},
    {"+1", 0, "0: expected a value, found '+'"},
    {"01", 0, "0: a number begins with a superfluous 0"},
    {"-01", 0, "0: a number begins with a superfluous 0"},
    {"1.", 0, "2: expected a digit, found the end"},
    {".5", 0, "0: expected a value, found '.'"},
    {"1e", 0, "2: expected a digit, found the end"},
    {"1e+", 0, "3: expected a digit, found the end"},
    {"0x10", 0, "1: expected the end of the text, found 'x'"},
    {"1e400", 0, "0: a number is beyond the range of a double"},
    {"\"", 0, "1: the text ends inside a string"},
    {"\"\\", 0, "2: expected an escape, found the end"},
    {"\"\\x\"", 0, "1: unknown escape in a string"},
    {"\"\\\0\"", 4, "1: unknown escape in a string"},
    {"\"\\u12\"", 0, "1: expected four hex digits after \\u"},
    {"\"\\u12g4\"", 0, "1: expected four hex digits after \\u"},
    {"\"a\\u0000b\"", 0, "2: a string holds \\u0000, which is not allowed"},
    {"{\"\\u0000\":1}", 0, "2: a string holds \\u0000, which is not allowed"},
    {"\"\\uD800\"", 0, "1: a string holds a lone surrogate (\\uD800)"},
    {"\"\\uD800x\"", 0, "1: a string holds a lone surrogate (\\uD800)"},
    {"\"\\uD800\\n\"", 0, "1: a string holds a lone surrogate (\\uD800)"},
    {"\"\\uD800\\uD800\"", 0, "1: a string holds a lone surrogate (\\uD800)"},
    {"\"\\uDC00\\uD800\"", 0, "1: a string holds a lone surrogate (\\uDC00)"},
    {"\"\\udfff\"", 0, "1: a string holds a lone surrogate (\\uDFFF)"},
    {"\"a\nb\"", 0, "2: control byte 0x0A in a string"},
    {"\"a\0b\"", 5, "2: control byte 0x00 in a string"},
    {"\"\x80\"", 0, "1: invalid UTF-8 (byte 0x80)"},
    {"\"\xC0\x80\"", 0, "1: invalid UTF-8 (byte 0xC0)"},
    {"\"\xC1\xBF\"", 0, "1: invalid UTF-8 (byte 0xC1)"},
    {"\"\xE0\x9F\xBF\"", 0, "1: invalid UTF-8 (byte 0xE0)"},
    {"\"\xED\xA0\x80\"", 0, "1: invalid UTF-8 (byte 0xED)"},
    {"\"\xF0\x8F\xBF\xBF\"", 0, "1: invalid UTF-8 (byte 0xF0)"},
    {"\"\xF4\x90\x80\x80\"", 0, "1: invalid UTF-8 (byte 0xF4)"},
    {"\"\xF5\x80\x80\x80\"", 0, "1: invalid UTF-8 (byte 0xF5)"},
    {"\"\xE2\x82", 0, "1: invalid UTF-8 (byte 0xE2)"},
    {"\"\xE2\x82\"", 0, "1: invalid UTF-8 (byte 0xE2)"},
    {"[[[[[[[[[]]]]]]]]]", 0, "8: nested deeper than 8 levels"},
    {"{\"a\":[{\"a\":[{\"a\":[{\"a\":[{}]}]}]}]}", 0, "24: nested deeper than 8 levels"},
    {"{\"a\":1,\"b\":2,\"a\":3}", 0, "13: key \"a\" occurs twice"},
    {"{\"a\":1,\"\\u0061\":3}", 0, "7: key \"a\" occurs twice"},
};

static void refuses_what_is_not_json(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        json_t *o = NULL;
        td_error err;
        size_t size = refused[i].size ? refused[i].size : strlen(refused[i].text);
        td_status st = parse(refused[i].text, size, &o, &err);
        assert_failed(st, TD_E_FORMAT, &err, "t: byte ", refused[i].want);
        assert_int_equal(err.position, strtol(refused[i].want, NULL, 10));
        assert_null(o);
        assert_int_equal(parse(refused[i].text, size, &o, NULL), TD_E_FORMAT);
    }
}

static void a_depth_bomb_costs_nothing(void **state) {
    (void)state;
    enum { N = 10 << 20 };
    char *text = malloc(N);
    memset(text, '[', N);
    long live = td_alloc_live();
    json_t *o;
    td_error err;
    assert_failed(parse(text, N, &o, &err), TD_E_FORMAT, &err, "", "t: byte 8: nested deeper than 8 levels");
    assert_int_equal(td_alloc_live(), live);
    free(text);
}

static void a_number_of_millions_of_digits_is_refused(void **state) {
    (void)state;
    enum { N = 10 << 20 };
    char *text = malloc(N);
    memset(text, '7', N);
    json_t *o;
    td_error err;
    assert_failed(parse(text, N, &o, &err), TD_E_FORMAT, &err, "",
                  "t: byte 0: a number of 10485760 characters, expected at most 1000");
    free(text);
}

static void reads_every_kind_of_value(void **state) {
    (void)state;
    static const char text[] =
        " {\"a\" : [1,-2.5e1,true,false,null,\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\u20AC\\uD83D\\uDE00\"],"
        "\r\n\t\"\xE2\x82\xAC\":{}, \"\":-0}\n";
    json_t *o;
    td_error err;
    assert_int_equal(parse(text, strlen(text), &o, &err), TD_OK);
    const json_t *a = json_object_get(o, "a");
    assert_int_equal(json_array_size(a), 6);
    assert_int_equal(json_integer_value(json_array_get(a, 0)), 1);
    assert_true(json_real_value(json_array_get(a, 1)) == -25);
    assert_true(json_is_true(json_array_get(a, 2)));
    assert_true(json_is_false(json_array_get(a, 3)));
    assert_true(json_is_null(json_array_get(a, 4)));
    assert_string_equal(json_string_value(json_array_get(a, 5)), "\"\\/\b\f\n\r\t\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80");
    assert_true(json_is_object(json_object_get(o, "\xE2\x82\xAC")));
    json_decref(o);
    assert_int_equal(parse("[[[[[[[[]]]]]]]]", 16, &o, &err), TD_OK);
    json_decref(o);
}

/* Published tokenizer configs say "no limit" as 10^30. */
static void wide_integers_become_reals(void **state) {
    (void)state;
    static const char text[] = "{\"a\":1000000000000000019884624838656,\"b\":[9223372036854775808,9223372036854775807,"
                               "-9223372036854775808,-9223372036854775809],\"c\":7}";
    json_t *o;
    td_error err;
    uint32_t v;
    assert_int_equal(parse(text, strlen(text), &o, &err), TD_OK);
    assert_true(json_real_value(json_object_get(o, "a")) == 1e30);
    const json_t *b = json_object_get(o, "b");
    assert_true(json_real_value(json_array_get(b, 0)) == 9223372036854775808.0);
    assert_true(json_integer_value(json_array_get(b, 1)) == INT64_MAX);
    assert_true(json_integer_value(json_array_get(b, 2)) == INT64_MIN);
    assert_true(json_is_real(json_array_get(b, 3)));
    assert_int_equal(json_integer_value(json_object_get(o, "c")), 7);
    assert_failed(td_json_u32(o, "t", "a", 0, 9, &v, &err), TD_E_MODEL, &err, "t: \"a\" is ",
                  "1e+30, expected an integer in [0, 9]");
    json_decref(o);
}

static void fields_say_what_they_found(void **state) {
    (void)state;
    static const char text[] =
        "{\"n\":5,\"big\":4294967296,\"neg\":-1,\"r\":1.5,\"s\":\"x\",\"t\":true,\"z\":null,\"o\":{},"
        "\"l\":[]}";
    static const struct {
        const char *key, *want;
    } wrong_u32[] = {
        {"big", "t: \"big\" is 4294967296, expected an integer in [1, 9]"},
        {"neg", "t: \"neg\" is -1, expected an integer in [1, 9]"},
        {"r", "t: \"r\" is 1.5, expected an integer in [1, 9]"},
        {"s", "t: \"s\" is \"x\", expected an integer in [1, 9]"},
        {"t", "t: \"t\" is true, expected an integer in [1, 9]"},
        {"z", "t: \"z\" is null, expected an integer in [1, 9]"},
        {"o", "t: \"o\" is an object, expected an integer in [1, 9]"},
        {"l", "t: \"l\" is an array, expected an integer in [1, 9]"},
        {"none", "t: \"none\" is missing, expected an integer in [1, 9]"},
    };
    json_t *o;
    td_error err;
    uint32_t v = 0;
    double d = 0;
    bool b = false;
    assert_int_equal(parse(text, strlen(text), &o, &err), TD_OK);
    for (size_t i = 0; i < sizeof wrong_u32 / sizeof wrong_u32[0]; i++)
        assert_failed(td_json_u32(o, "t", wrong_u32[i].key, 1, 9, &v, &err), TD_E_MODEL, &err, "", wrong_u32[i].want);
    assert_int_equal(td_json_u32(o, "t", "n", 5, 5, &v, &err), TD_OK);
    assert_int_equal(v, 5);
    assert_failed(td_json_u32(o, "t", "n", 6, 9, &v, &err), TD_E_MODEL, &err, "",
                  "t: \"n\" is 5, expected an integer in [6, 9]");
    assert_int_equal(td_json_u32(o, "t", "big", 0, UINT32_MAX, &v, &err), TD_E_MODEL);
    assert_int_equal(td_json_u32_or(o, "t", "z", 0, 9, 3, &v, &err), TD_OK);
    assert_int_equal(v, 3);
    assert_int_equal(td_json_u32_or(o, "t", "none", 0, 9, 4, &v, &err), TD_OK);
    assert_int_equal(v, 4);
    assert_int_equal(td_json_u32_or(o, "t", "s", 0, 9, 4, &v, &err), TD_E_MODEL);
    assert_int_equal(td_json_u32_or(NULL, "t", "s", 0, 9, 4, &v, &err), TD_OK);
    assert_int_equal(td_json_f64_or(o, "t", "n", 0, &d, &err), TD_OK);
    assert_true(d == 5);
    assert_int_equal(td_json_f64_or(o, "t", "r", 0, &d, &err), TD_OK);
    assert_true(d == 1.5);
    assert_int_equal(td_json_f64_or(o, "t", "z", 2.5, &d, &err), TD_OK);
    assert_true(d == 2.5);
    assert_failed(td_json_f64_or(o, "t", "t", 2.5, &d, &err), TD_E_MODEL, &err, "",
                  "t: \"t\" is true, expected a number");
    assert_int_equal(td_json_bool_or(o, "t", "t", false, &b, &err), TD_OK);
    assert_true(b);
    assert_int_equal(td_json_bool_or(o, "t", "none", true, &b, &err), TD_OK);
    assert_true(b);
    assert_failed(td_json_bool_or(o, "t", "n", true, &b, &err), TD_E_MODEL, &err, "",
                  "t: \"n\" is 5, expected true or false");
    json_decref(o);
}

/* The integers of a safetensors header, by their characters. */
static void plain_integers_only(void **state) {
    (void)state;
    static const struct {
        const char *text, *want; /* NULL: accepted */
        uint64_t value;
    } cases[] = {
        {"0", NULL, 0},
        {" 18446744073709551615", NULL, UINT64_MAX},
        {"18446744073709551616", "t: byte 0: expected an integer below 2^64, found 18446744073709551616", 0},
        {"1e400", "t: byte 0: expected a plain non-negative integer, found 1e400", 0},
        {"1.0", "t: byte 0: expected a plain non-negative integer, found 1.0", 0},
        {"1e2", "t: byte 0: expected a plain non-negative integer, found 1e2", 0},
        {"-0", "t: byte 0: expected a plain non-negative integer, found -0", 0},
        {"-1", "t: byte 0: expected a plain non-negative integer, found -1", 0},
        {"007", "t: byte 0: a number begins with a superfluous 0", 0},
        {"\"1\"", "t: byte 0: expected a plain non-negative integer, found '\"'", 0},
        {"null", "t: byte 0: expected a plain non-negative integer, found 'n'", 0},
        {"", "t: byte 0: expected a plain non-negative integer, found the end", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        td_json_scan s;
        td_error err;
        uint64_t v = 1;
        td_json_scan_init(&s, cases[i].text, strlen(cases[i].text), 0, 8, "t");
        td_status st = td_json_scan_uint(&s, &v, &err);
        if (cases[i].want) {
            assert_failed(st, TD_E_FORMAT, &err, "", cases[i].want);
        } else {
            assert_int_equal(st, TD_OK);
            assert_true(v == cases[i].value);
        }
        td_json_scan_free(&s);
    }
}

static void shown_text_is_cut_on_a_character(void **state) {
    (void)state;
    char out[TD_SHOWN_SIZE], text[200];
    assert_string_equal(td_shown(out, "abc", 3), "abc");
    memset(text, 'x', sizeof text);
    assert_int_equal(strlen(td_shown(out, text, TD_SHOWN_SIZE - 1)), TD_SHOWN_SIZE - 1);
    assert_int_equal(strlen(td_shown(out, text, TD_SHOWN_SIZE)), TD_SHOWN_SIZE - 1);
    memcpy(text + TD_SHOWN_SIZE - 6, "\xE2\x82\xAC", 3); /* would end one byte too late */
    td_shown(out, text, sizeof text);
    assert_string_equal(out + TD_SHOWN_SIZE - 7, "x...");
}

static void survives_every_failed_allocation(void **state) {
    (void)state;
    static const char text[] =
        "{\"a\":[1,2,\"\\u00e9 long enough to be worth a buffer of its own, on the heap of this test\"],"
        "\"b\":{\"c\":12345678901234567890,\"d\":\"\\n\",\"e\":[[],{}],\"f\":1.5}}";
    count_jansson();
    unsigned k = 0;
    for (;; k++) {
        json_t *o;
        td_error err;
        long live = td_alloc_live();
        td_alloc_fail_at(k);
        td_status st = parse(text, strlen(text), &o, &err);
        bool struck = td_alloc_failed();
        td_alloc_fail_at(-1);
        if (!struck) {
            assert_int_equal(st, TD_OK);
            json_decref(o);
            assert_int_equal(td_alloc_live(), live);
            break;
        }
        assert_failed(st, TD_E_NOMEM, &err, "", err.message);
        assert_null(o);
        assert_int_equal(td_alloc_live(), live);
    }
    assert_true(k > 20);
    json_set_alloc_funcs(malloc, free);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_what_is_not_json),
        cmocka_unit_test(a_depth_bomb_costs_nothing),
        cmocka_unit_test(a_number_of_millions_of_digits_is_refused),
        cmocka_unit_test(reads_every_kind_of_value),
        cmocka_unit_test(wide_integers_become_reals),
        cmocka_unit_test(fields_say_what_they_found),
        cmocka_unit_test(plain_integers_only),
        cmocka_unit_test(shown_text_is_cut_on_a_character),
        cmocka_unit_test(survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
