/* test_safetensors.c - the reader: every rule of the format as a row of a table, with the exact message. */
#include "format/support_format.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "format/safetensors.h"

#define U8(name, shape, begin, end)                                                                                    \
    "\"" name "\":{\"dtype\":\"U8\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

/* ---- headers that are refused ---- */

static const struct {
    const char *header;
    size_t n_data;
    const char *want; /* after "x: " */
} refused[] = {
    /* not an object */
    {"[]", 0, "byte 8: the header begins with byte 0x5B, expected '{'"},
    {"null", 0, "byte 8: the header begins with byte 0x6E, expected '{'"},
    {"17", 0, "byte 8: the header begins with byte 0x31, expected '{'"},
    {" {}", 0, "byte 8: the header begins with byte 0x20, expected '{'"},
    {"\xEF\xBB\xBF{}", 0, "byte 8: the header begins with byte 0xEF, expected '{'"},
    {"{", 0, "byte 9: expected a string, found the end"},
    {"{}x", 0, "byte 10: expected the end of the text, found 'x'"},
    {"{}{}", 0, "byte 10: expected the end of the text, found '{'"},
    {"{\"a\":null}", 0, "byte 13: in \"a\": expected an object, found 'n'"},
    {"{\"a\":[]}", 0, "byte 13: in \"a\": expected an object, found '['"},
    /* names */
    {"{\"\x80\":{}}", 0, "byte 10: invalid UTF-8 (byte 0x80)"},
    {"{\"a\xE2\x82", 0, "byte 11: invalid UTF-8 (byte 0xE2)"},
    {"{\"a\\u0000b\":{}}", 0, "byte 11: a string holds \\u0000, which is not allowed"},
    {"{\"\\uD83D\":{}}", 0, "byte 10: a string holds a lone surrogate (\\uD83D)"},
    {"{\"a\tb\":{}}", 0, "byte 11: control byte 0x09 in a string"},
    {"{" U8("a", "[1]", 0, 1) "," U8("a", "[1]", 1, 2) "}", 2, "tensor \"a\": the name occurs twice"},
    {"{" U8("b", "[0]", 0, 0) "," U8("\\u0062", "[0]", 0, 0) "}", 0, "tensor \"b\": the name occurs twice"},
    /* members */
    {"{\"a\":{}}", 0, "byte 14: in \"a\": member \"dtype\" is missing"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "byte 38: in \"a\": member \"data_offsets\" is missing"},
    {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "byte 47: in \"a\": member \"shape\" is missing"},
    {"{\"a\":{\"shape\":[],\"data_offsets\":[0,1]}}", 1, "byte 45: in \"a\": member \"dtype\" is missing"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1],\"strides\":[1]}}", 1,
     "byte 59: in \"a\": unexpected member \"strides\""},
    {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 1, "byte 27: in \"a\": member \"dtype\" occurs twice"},
    {"{\"a\":{\"shape\":[],\"shape\":[]}}", 1, "byte 25: in \"a\": member \"shape\" occurs twice"},
    {"{\"a\":{\"data_offsets\":[0,1],\"data_offsets\":[0,1]}}", 1,
     "byte 35: in \"a\": member \"data_offsets\" occurs twice"},
    /* dtype */
    {"{\"a\":{\"dtype\":\"Q4\",\"shape\":[],\"data_offsets\":[0,1]}}", 1, "byte 22: in \"a\": unknown dtype \"Q4\""},
    {"{\"a\":{\"dtype\":\"bf16\"}}", 1, "byte 22: in \"a\": unknown dtype \"bf16\""},
    {"{\"a\":{\"dtype\":\"\"}}", 1, "byte 22: in \"a\": unknown dtype \"\""},
    {"{\"a\":{\"dtype\":\"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\"}}", 1,
     "byte 22: in \"a\": unknown dtype \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\""},
    {"{\"a\":{\"dtype\":8}}", 1, "byte 22: in \"a\": expected a string, found '8'"},
    /* numbers */
    {"{" U8("a", "[1.0]", 0, 1) "}", 1, "byte 36: in \"a\": expected a plain non-negative integer, found 1.0"},
    {"{" U8("a", "[1e0]", 0, 1) "}", 1, "byte 36: in \"a\": expected a plain non-negative integer, found 1e0"},
    {"{" U8("a", "[1e400]", 0, 1) "}", 1, "byte 36: in \"a\": expected a plain non-negative integer, found 1e400"},
    {"{" U8("a", "[-0]", 0, 0) "}", 0, "byte 36: in \"a\": expected a plain non-negative integer, found -0"},
    {"{" U8("a", "[-1]", 0, 0) "}", 0, "byte 36: in \"a\": expected a plain non-negative integer, found -1"},
    {"{" U8("a", "[01]", 0, 1) "}", 1, "byte 36: in \"a\": a number begins with a superfluous 0"},
    {"{" U8("a", "[\"1\"]", 0, 1) "}", 1, "byte 36: in \"a\": expected a plain non-negative integer, found '\"'"},
    {"{" U8("a", "[true]", 0, 1) "}", 1, "byte 36: in \"a\": expected a plain non-negative integer, found 't'"},
    {"{" U8("a", "[[1]]", 0, 1) "}", 1, "byte 36: in \"a\": expected a plain non-negative integer, found '['"},
    {"{" U8("a", "{}", 0, 1) "}", 1, "byte 35: in \"a\": expected an array, found '{'"},
    {"{" U8("a", "[1", 0, 1) "}", 1, "byte 38: in \"a\": expected a plain non-negative integer, found '\"'"},
    {"{" U8("a", "[]", -0, 1) "}", 1, "byte 54: in \"a\": expected a plain non-negative integer, found -0"},
    {"{" U8("a", "[]", 0, 1.0) "}", 1, "byte 56: in \"a\": expected a plain non-negative integer, found 1.0"},
    {"{" U8("a", "[]", 0, 18446744073709551616) "}", 1,
     "byte 56: in \"a\": expected an integer below 2^64, found 18446744073709551616"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[]}}", 1,
     "byte 55: in \"a\": expected two data_offsets, found fewer"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0]}}", 1,
     "byte 56: in \"a\": expected two data_offsets, found fewer"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1,2]}}", 1,
     "byte 58: in \"a\": expected two data_offsets, found more"},
    /* shapes */
    {"{" U8("a", "[1,1,1,1,1,1,1,1,1]", 0, 1) "}", 1, "byte 52: in \"a\": a shape of more than 8 dimensions"},
    {"{" U8("a", "[4294967296,4294967296,16]", 0, 1) "}", 1,
     "tensor \"a\": U8 [4294967296, 4294967296, 16] is not a whole number of bytes below 2^61"},
    {"{" U8("a", "[9223372036854775808]", 0, 1) "}", 1,
     "tensor \"a\": U8 [9223372036854775808] is not a whole number of bytes below 2^61"},
    {"{" U8("a", "[2305843009213693951]", 0, 1) "}", 1,
     "tensor \"a\": data_offsets [0, 1] hold 1 bytes, but U8 [2305843009213693951] takes 2305843009213693951"},
    {"{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2,
     "tensor \"a\": F4 [3] is not a whole number of bytes below 2^61"},
    {"{\"a\":{\"dtype\":\"F6_E2M3\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2,
     "tensor \"a\": F6_E2M3 [2] is not a whole number of bytes below 2^61"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4,
     "tensor \"a\": data_offsets [0, 4] hold 4 bytes, but F32 [2] takes 8"},
    {"{" U8("a", "[0,9223372036854775808]", 0, 1) "}", 1,
     "tensor \"a\": data_offsets [0, 1] hold 1 bytes, but U8 [0, 9223372036854775808] takes 0"},
    /* offsets */
    {"{" U8("a", "[1]", 2, 1) "}", 2, "tensor \"a\": data_offsets [2, 1] end before they begin"},
    {"{" U8("a", "[3]", 0, 3) "}", 2, "tensor \"a\": data_offsets [0, 3] end beyond the file's 2 bytes of data"},
    {"{" U8("a", "[1]", 18446744073709551614, 18446744073709551615) "}", 2,
     "tensor \"a\": data_offsets [18446744073709551614, 18446744073709551615] end beyond the file's 2 bytes of data"},
    {"{" U8("a", "[1]", 9223372036854775808, 9223372036854775809) "}", 2,
     "tensor \"a\": data_offsets [9223372036854775808, 9223372036854775809] end beyond the file's 2 bytes of data"},
    {"{" U8("a", "[2]", 0, 2) "," U8("b", "[2]", 1, 3) "}", 3, "tensor \"b\": data begins at 1, inside tensor \"a\""},
    {"{" U8("b", "[2]", 1, 3) "," U8("a", "[2]", 0, 2) "}", 3, "tensor \"b\": data begins at 1, inside tensor \"a\""},
    {"{" U8("a", "[2]", 0, 2) "," U8("b", "[2]", 0, 2) "}", 2, "tensor \"b\": data begins at 0, inside tensor \"a\""},
    {"{" U8("a", "[2]", 0, 2) "," U8("b", "[0]", 1, 1) "}", 2, "tensor \"b\": data begins at 1, inside tensor \"a\""},
    {"{" U8("a", "[1]", 0, 1) "," U8("b", "[1]", 2, 3) "}", 3,
     "tensor \"b\": data begins at 2, leaving a hole after 1"},
    {"{" U8("a", "[1]", 1, 2) "}", 2, "tensor \"a\": data begins at 1, leaving a hole after 0"},
    {"{" U8("a", "[1]", 0, 1) "}", 3, "2 bytes after the last tensor, expected the file to end at byte 62"},
    {"{}", 1, "1 bytes after the last tensor, expected the file to end at byte 10"},
    /* __metadata__ */
    {"{\"__metadata__\":null}", 0, "byte 24: expected an object, found 'n'"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "byte 29: __metadata__ values must be strings"},
    {"{\"__metadata__\":{\"a\":{}}}", 0, "byte 29: __metadata__ values must be strings"},
    {"{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, "__metadata__ key \"a\" occurs twice"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "byte 27: __metadata__ occurs twice"},
    {"{" U8("__metadata__", "[1]", 0, 1) "}", 1, "byte 46: __metadata__ values must be strings"},
};

static void every_broken_header_is_named(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        td_buf b = file_of(refused[i].header, refused[i].n_data);
        td_safetensors *f = (td_safetensors *)&b;
        td_error err;
        td_status st = td_safetensors_parse(&f, (const uint8_t *)b.data, b.size, "x", &err);
        assert_failed(st, TD_E_FORMAT, &err, "x: ", refused[i].want);
        assert_null(f);
        assert_int_equal(td_safetensors_parse(&f, (const uint8_t *)b.data, b.size, "x", NULL), TD_E_FORMAT);
        td_buf_free(&b);
    }
}

/* ---- lengths ---- */

static void every_wrong_header_length_is_named(void **state) {
    (void)state;
    static const struct {
        uint64_t n;
        const char *want;
    } cases[] = {
        {0, "x: header length 0, expected 1 to 100000000"},
        {1, "x: byte 9: expected a string, found the end"},
        {3, "x: header length 3, but the file has only 2 bytes after it"}, /* the file's size - 7 */
        {100000000, "x: header length 100000000, but the file has only 2 bytes after it"},
        {100000001, "x: header length 100000001, expected 1 to 100000000"},
        {UINT64_C(1) << 63, "x: header length 9223372036854775808, expected 1 to 100000000"},
        {UINT64_MAX, "x: header length 18446744073709551615, expected 1 to 100000000"},
        {UINT64_MAX - 7, "x: header length 18446744073709551608, expected 1 to 100000000"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t bytes[10] = {[8] = '{', [9] = '}'};
        for (int k = 0; k < 8; k++)
            bytes[k] = (uint8_t)(cases[i].n >> 8 * k);
        td_safetensors *f;
        td_error err;
        assert_failed(td_safetensors_parse(&f, bytes, sizeof bytes, "x", &err), TD_E_FORMAT, &err, "", cases[i].want);
    }
}

static void every_truncation_is_an_error(void **state) {
    (void)state;
    td_buf b = file_of("{\"__metadata__\":{\"format\":\"pt\"}," U8("a", "[2,2]", 0, 4) "," U8("b", "[]", 4, 5) "}", 5);
    for (size_t n = 0; n < b.size; n++) {
        uint8_t *exact = malloc(n ? n : 1); /* so that the sanitizer sees a read past the end */
        memcpy(exact, b.data, n);
        td_safetensors *f;
        td_error err;
        td_status st = td_safetensors_parse(&f, n ? exact : NULL, n, "x", &err);
        assert_int_equal(st, TD_E_FORMAT);
        assert_null(f);
        if (n == 7)
            assert_string_equal(err.message, "x: 7 bytes, expected at least the 8 of a header length");
        free(exact);
    }
    td_buf_free(&b);
}

static void nul_bytes_are_named(void **state) {
    (void)state;
    static const struct {
        size_t at; /* byte of the file that becomes NUL */
        const char *want;
    } cases[] = {
        {8, "x: byte 8: the header begins with byte 0x00, expected '{'"},
        {9, "x: byte 9: expected a string, found byte 0x00"},
        {10, "x: byte 10: control byte 0x00 in a string"},
        {61, "x: byte 61: expected the end of the text, found byte 0x00"}, /* padding */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        td_buf b = file_of("{" U8("a", "[1]", 0, 1) "} ", 1);
        b.data[cases[i].at] = '\0';
        td_safetensors *f;
        td_error err;
        assert_failed(td_safetensors_parse(&f, (const uint8_t *)b.data, b.size, "x", &err), TD_E_FORMAT, &err, "",
                      cases[i].want);
        td_buf_free(&b);
    }
}

/* ---- bombs ---- */

static void put(td_buf *b, const char *s) {
    assert_int_equal(td_buf_puts(b, s), TD_OK);
}

/* A header of `n` bytes `fill` between two texts. */
static td_buf bomb(const char *before, char fill, size_t n, const char *after) {
    td_buf header;
    td_buf_init(&header, SIZE_MAX / 2);
    put(&header, before);
    char *run = malloc(n);
    memset(run, fill, n);
    assert_int_equal(td_buf_append(&header, run, n), TD_OK);
    free(run);
    put(&header, after);
    td_buf file = file_of(td_buf_str(&header), 1);
    td_buf_free(&header);
    return file;
}

static void bombs_cost_one_line(void **state) {
    (void)state;
    static const struct {
        const char *before;
        char fill;
        size_t n;
        const char *after, *want;
    } cases[] = {
        {"{\"a\":", '[', 10000, "", "x: byte 13: in \"a\": expected an object, found '['"},
        {"{\"__metadata__\":{\"a\":", '[', 10000, "", "x: byte 29: __metadata__ values must be strings"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":", '[', 10000, "",
         "x: byte 36: in \"a\": expected a plain non-negative integer, found '['"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[", '9', 99999000, "],\"data_offsets\":[0,1]}}",
         "x: byte 36: in \"a\": a number of 99999000 characters, expected at most 1000"},
        {"{\"", 'n', 1 << 20, "\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}",
         "x: byte 9: a tensor name of 1048576 bytes, expected at most 4096"},
        {"{", '{', 10000, "", "x: byte 9: expected a string, found '{'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        td_buf b = bomb(cases[i].before, cases[i].fill, cases[i].n, cases[i].after);
        td_safetensors *f;
        td_error err;
        long live = td_alloc_live();
        assert_failed(td_safetensors_parse(&f, (const uint8_t *)b.data, b.size, "x", &err), TD_E_FORMAT, &err, "",
                      cases[i].want);
        assert_int_equal(td_alloc_live(), live);
        td_buf_free(&b);
    }
}

static void long_names_are_cut_in_messages(void **state) {
    (void)state;
    td_buf b = bomb("{\"", 'n', 4096, "\":{\"dtype\":\"U8\",\"shape\":[7],\"data_offsets\":[0,1]}}");
    td_safetensors *f;
    td_error err;
    char want[300], name[97];
    memset(name, 'n', 96);
    name[96] = '\0';
    snprintf(want, sizeof want, "x: tensor \"%s...\": data_offsets [0, 1] hold 1 bytes, but U8 [7] takes 7", name);
    assert_failed(td_safetensors_parse(&f, (const uint8_t *)b.data, b.size, "x", &err), TD_E_FORMAT, &err, "", want);
    td_buf_free(&b);
}

/* ---- what is legal ---- */

static td_safetensors *parse_ok(const td_buf *b) {
    td_safetensors *f;
    td_error err;
    td_status st = td_safetensors_parse(&f, (const uint8_t *)b->data, b->size, "x", &err);
    if (st != TD_OK)
        fail_msg("%s", err.message);
    return f;
}

static void an_empty_file_is_legal(void **state) {
    (void)state;
    td_buf b = file_of("{}   ", 0);
    td_safetensors *f = parse_ok(&b);
    assert_int_equal(td_safetensors_count(f), 0);
    assert_null(td_safetensors_find(f, "a"));
    assert_null(td_safetensors_meta(f, "format"));
    assert_int_equal(td_safetensors_file_bytes(f), 13);
    td_safetensors_close(&f);
    assert_null(f);
    td_safetensors_close(&f);
    td_safetensors_close(NULL);
    td_buf_free(&b);
}

/* As MLX writes: a header of odd length, keys sorted by name, data in another order, nothing aligned. */
static void any_order_and_any_alignment_is_legal(void **state) {
    (void)state;
    td_buf b = file_of("{\"__metadata__\":{\"format\":\"mlx\",\"\":\"empty\",\"\xF0\x9F\x98\x80\":\"\"},"
                       "\"a.bias\":{\"data_offsets\":[5,13],\"shape\":[2],\"dtype\":\"F32\"},"
                       "\"a.weight\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[0,5]},"
                       "\"empty\":{\"dtype\":\"BF16\",\"shape\":[4,0],\"data_offsets\":[5,5]},"
                       "\"huge\":{\"dtype\":\"F64\",\"shape\":[9223372036854775808,9,0],\"data_offsets\":[0,0]},"
                       "\"pair\":{\"dtype\":\"F4\",\"shape\":[1,4],\"data_offsets\":[14,16]},"
                       "\"s\\u0063alar\":{\"dtype\":\"BOOL\",\"shape\":[],\"data_offsets\":[13,14]}} ",
                       16);
    static const char *const order[] = {"huge", "a.weight", "empty", "a.bias", "scalar", "pair"};
    assert_int_equal(b.data[0] & 1, 1);
    td_safetensors *f = parse_ok(&b);
    assert_int_equal(td_safetensors_count(f), 6);
    const uint8_t *data = (const uint8_t *)b.data + b.size - 16;
    for (size_t i = 0; i < 6; i++) {
        const td_tensor *t = td_safetensors_at(f, i);
        assert_string_equal(t->name, order[i]);
        assert_ptr_equal(td_safetensors_find(f, order[i]), t);
    }
    const td_tensor *bias = td_safetensors_find(f, "a.bias");
    assert_int_equal(bias->dtype, TD_DTYPE_F32);
    assert_int_equal(bias->n_dims, 1);
    assert_int_equal(bias->dim[0], 2);
    assert_ptr_equal(bias->data, data + 5);
    assert_int_equal(bias->size, 8);
    const td_tensor *scalar = td_safetensors_find(f, "scalar");
    assert_int_equal(scalar->n_dims, 0);
    assert_int_equal(*scalar->data, 13);
    const td_tensor *empty = td_safetensors_find(f, "empty");
    assert_int_equal(empty->size, 0);
    assert_null(empty->data);
    assert_null(td_safetensors_find(f, "a"));
    assert_null(td_safetensors_find(f, "zz"));
    assert_string_equal(td_safetensors_meta(f, "format"), "mlx");
    assert_string_equal(td_safetensors_meta(f, ""), "empty");
    assert_null(td_safetensors_meta(f, "formats"));
    td_safetensors_close(&f);
    td_buf_free(&b);
}

static void not_a_number_is_data_like_any_other(void **state) {
    (void)state;
    td_buf b = file_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4);
    memcpy(b.data + b.size - 4, "\0\0\xC0\x7F", 4);
    td_safetensors *f = parse_ok(&b);
    float v;
    memcpy(&v, td_safetensors_at(f, 0)->data, 4);
    assert_true(isnan(v));
    td_safetensors_close(&f);
    td_buf_free(&b);
}

static void every_dtype_is_known(void **state) {
    (void)state;
    for (unsigned t = 0; t < TD_DTYPE_COUNT; t++) {
        char header[200];
        unsigned bytes = td_dtype_bits((td_dtype)t); /* 8 elements */
        snprintf(header, sizeof header, "{\"a\":{\"dtype\":\"%s\",\"shape\":[2,4],\"data_offsets\":[0,%u]}}",
                 td_dtype_name((td_dtype)t), bytes);
        td_buf b = file_of(header, bytes);
        td_safetensors *f = parse_ok(&b);
        assert_int_equal(td_safetensors_at(f, 0)->dtype, t);
        assert_int_equal(td_safetensors_at(f, 0)->size, bytes);
        td_safetensors_close(&f);
        td_buf_free(&b);
    }
}

static void shapes_have_sizes_and_texts(void **state) {
    (void)state;
    uint64_t bytes = 7;
    char text[TD_SHAPE_TEXT_SIZE], small[6];
    const uint64_t wide[] = {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX,
                             UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX};
    assert_true(td_tensor_byte_size(TD_DTYPE_C64, 2, (const uint64_t[]){3, 5}, &bytes));
    assert_int_equal(bytes, 120);
    assert_true(td_tensor_byte_size(TD_DTYPE_F32, 0, NULL, &bytes));
    assert_int_equal(bytes, 4);
    assert_false(td_tensor_byte_size(TD_DTYPE_F4, 0, NULL, &bytes));
    assert_false(td_tensor_byte_size(TD_DTYPE_U8, 8, wide, &bytes));
    assert_string_equal(td_shape_text(0, NULL, text, sizeof text), "[]");
    assert_string_equal(td_shape_text(2, (const uint64_t[]){3, 5}, text, sizeof text), "[3, 5]");
    assert_string_equal(td_shape_text(3, (const uint64_t[]){33, 55, 1}, small, sizeof small), "[33, ");
    td_shape_text(8, wide, text, sizeof text);
    assert_int_equal(text[strlen(text) - 1], ']');
}

/* ---- files ---- */

static void files_that_are_none_are_refused(void **state) {
    const char *dir = *state;
    td_safetensors *f;
    td_error err;
    const char *none = in_dir(dir, "none"), *fifo = in_dir(dir, "fifo"), *empty = in_dir(dir, "empty");
    put_text(dir, "empty", "");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_failed(td_safetensors_open(&f, none, &err), TD_E_NOTFOUND, &err, none, ": No such file or directory");
    assert_failed(td_safetensors_open(&f, dir, &err), TD_E_IO, &err, dir, ": not a regular file");
    assert_failed(td_safetensors_open(&f, fifo, &err), TD_E_IO, &err, fifo, ": not a regular file");
    assert_failed(td_safetensors_open(&f, empty, &err), TD_E_FORMAT, &err, empty,
                  ": 0 bytes, expected at least the 8 of a header length");
    assert_null(f);
}

/* The whole of a published layout: every tensor of a reference checkpoint lies inside the file and is found. */
static void reads_the_reference_checkpoints(void **state) {
    (void)state;
    static const struct {
        const char *file;
        size_t n_tensors;
        const char *tensor, *shape;
        td_dtype dtype;
    } files[] = {
        {"gemma4-ple/model.safetensors", 132, "model.embed_tokens.weight", "[320, 64]", TD_DTYPE_F32},
        {"gemma4-ple-assistant/model.safetensors", 50, "masked_embedding.token_ordering", "[320]", TD_DTYPE_I64},
        {"qwen35-moe/model.safetensors", 179, "lm_head.weight", "[320, 64]", TD_DTYPE_F32},
        {"gemma4-moe/vectors.safetensors", 18, "logits", "[48, 320]", TD_DTYPE_F32},
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        td_safetensors *f;
        td_error err;
        char path[1024], shape[TD_SHAPE_TEXT_SIZE];
        snprintf(path, sizeof path, TD_FIXTURES "/vectors/%s", files[i].file);
        if (td_safetensors_open(&f, path, &err) != TD_OK)
            fail_msg("%s", err.message);
        assert_int_equal(td_safetensors_count(f), files[i].n_tensors);
        const td_tensor *t = td_safetensors_find(f, files[i].tensor);
        assert_non_null(t);
        assert_int_equal(t->dtype, files[i].dtype);
        assert_string_equal(td_shape_text(t->n_dims, t->dim, shape, sizeof shape), files[i].shape);
        for (size_t k = 1; k < td_safetensors_count(f); k++) {
            const td_tensor *before = td_safetensors_at(f, k - 1);
            assert_ptr_equal(td_safetensors_at(f, k)->data, before->data + before->size);
            assert_ptr_equal(td_safetensors_find(f, before->name), before);
        }
        td_safetensors_close(&f);
    }
}

static void survives_every_failed_allocation(void **state) {
    (void)state;
    td_buf b;
    td_buf header;
    td_buf_init(&header, 1 << 20);
    put(&header, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int i = 0; i < 40; i++)
        assert_int_equal(td_buf_printf(&header, "," U8("t\\u0065nsor.%d", "[0]", 0, 0), i), TD_OK);
    put(&header, "}");
    b = file_of(td_buf_str(&header), 0);
    unsigned k = 0;
    for (;; k++) {
        td_safetensors *f;
        td_error err;
        long live = td_alloc_live();
        td_alloc_fail_at(k);
        td_status st = td_safetensors_parse(&f, (const uint8_t *)b.data, b.size, "x", &err);
        bool struck = td_alloc_failed();
        td_alloc_fail_at(-1);
        if (!struck) {
            assert_int_equal(st, TD_OK);
            assert_int_equal(td_safetensors_count(f), 40);
            td_safetensors_close(&f);
            assert_int_equal(td_alloc_live(), live);
            break;
        }
        assert_failed(st, TD_E_NOMEM, &err, "", err.message);
        assert_null(f);
        assert_int_equal(td_alloc_live(), live);
    }
    assert_true(k >= 8);
    td_buf_free(&b);
    td_buf_free(&header);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_broken_header_is_named),
        cmocka_unit_test(every_wrong_header_length_is_named),
        cmocka_unit_test(every_truncation_is_an_error),
        cmocka_unit_test(nul_bytes_are_named),
        cmocka_unit_test(bombs_cost_one_line),
        cmocka_unit_test(long_names_are_cut_in_messages),
        cmocka_unit_test(an_empty_file_is_legal),
        cmocka_unit_test(any_order_and_any_alignment_is_legal),
        cmocka_unit_test(not_a_number_is_data_like_any_other),
        cmocka_unit_test(every_dtype_is_known),
        cmocka_unit_test(shapes_have_sizes_and_texts),
        cmocka_unit_test_setup_teardown(files_that_are_none_are_refused, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test(reads_the_reference_checkpoints),
        cmocka_unit_test(survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
