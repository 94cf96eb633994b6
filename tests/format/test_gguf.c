/* test_gguf.c - the GGUF reader: what a good file says, what is said of files that are broken or mean harm, and the
 * writer's files read back. Bytes lie in blocks of exactly their size, so that a sanitizer sees a read past the end. */
#include "format/support_format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "format/gguf.h"
#include "format/gguf_write.h"
#include "tensor/blocks.h"

/* ---- bytes by hand ---- */

static void u32(td_buf *b, uint32_t v) {
    td_buf_append(b, &v, 4);
}

static void u64(td_buf *b, uint64_t v) {
    td_buf_append(b, &v, 8);
}

static void str(td_buf *b, const char *s) {
    u64(b, strlen(s));
    td_buf_append(b, s, strlen(s));
}

static td_buf begin(uint64_t n_tensors, uint64_t n_pairs) {
    td_buf b;
    td_buf_init(&b, 1 << 24);
    td_buf_append(&b, "GGUF", 4);
    u32(&b, 3);
    u64(&b, n_tensors);
    u64(&b, n_pairs);
    return b;
}

static void info(td_buf *b, const char *name, uint32_t n_dims, const uint64_t *dims, uint32_t type, uint64_t offset) {
    str(b, name);
    u32(b, n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        u64(b, dims[i]);
    u32(b, type);
    u64(b, offset);
}

static void pad(td_buf *b, size_t alignment, size_t n_data) {
    while (b->size % alignment)
        td_buf_putc(b, 0);
    for (size_t i = 0; i < n_data; i++)
        td_buf_putc(b, (char)i);
}

/* Parses a copy of exactly the size. The copy lives as long as *g. */
static td_status parse(td_gguf **g, const td_buf *b, uint8_t **copy, td_error *err) {
    *copy = malloc(b->size ? b->size : 1);
    assert_non_null(*copy);
    if (b->size)
        memcpy(*copy, b->data, b->size);
    return td_gguf_parse(g, *copy, b->size, "x.gguf", err);
}

static void refused(td_buf *b, td_status want, const char *message) {
    td_gguf *g;
    uint8_t *copy;
    td_error err = {0};
    long live = td_alloc_live();
    td_status st = parse(&g, b, &copy, &err);
    if (st != want || !strstr(err.message, message) || strncmp(err.message, "x.gguf: ", 8) != 0)
        fail_msg("%d \"%s\", expected %d \"%s\"", st, err.message, want, message);
    assert_null(g);
    assert_int_equal(td_alloc_live(), live);
    free(copy);
    td_buf_free(b);
}

/* ---- a good file ---- */

static void values_and_tensors(void **state) {
    (void)state;
    td_buf b = begin(2, 5);
    str(&b, "a.u8");
    u32(&b, TD_GGUF_U8);
    td_buf_putc(&b, (char)200);
    str(&b, "a.i64");
    u32(&b, TD_GGUF_I64);
    u64(&b, (uint64_t)-5);
    str(&b, "a.f64");
    u32(&b, TD_GGUF_F64);
    double d = 0.25;
    td_buf_append(&b, &d, 8);
    str(&b, "a.words");
    u32(&b, TD_GGUF_ARRAY);
    u32(&b, TD_GGUF_STRING);
    u64(&b, 3);
    str(&b, "x");
    str(&b, "");
    str(&b, "yz");
    str(&b, "general.alignment");
    u32(&b, TD_GGUF_U32);
    u32(&b, 64);
    info(&b, "w", 2, (const uint64_t[]){3, 2}, 0, 0);
    info(&b, "q", 1, (const uint64_t[]){32}, 8, 64);
    pad(&b, 64, 64 + 34);
    td_gguf *g;
    uint8_t *copy;
    td_error err;
    if (parse(&g, &b, &copy, &err) != TD_OK)
        fail_msg("%s", err.message);
    assert_int_equal(td_gguf_file_bytes(g), b.size);
    assert_int_equal(td_gguf_n_values(g), 5);
    uint32_t u;
    double r;
    bool flag;
    assert_int_equal(td_gguf_u32(g, "a.u8", 0, 255, &u, &err), TD_OK);
    assert_int_equal(u, 200);
    assert_int_equal(td_gguf_u32(g, "a.u8", 0, 199, &u, &err), TD_E_MODEL);
    assert_string_equal(err.message, "x.gguf: \"a.u8\" is 200, expected an integer from 0 to 199");
    assert_int_equal(td_gguf_u32(g, "a.i64", 0, 10, &u, &err), TD_E_MODEL);
    assert_string_equal(err.message, "x.gguf: \"a.i64\" is -5, expected an integer from 0 to 10");
    assert_int_equal(td_gguf_u32(g, "none", 0, 10, &u, &err), TD_E_MODEL);
    assert_string_equal(err.message, "x.gguf: no key \"none\"");
    assert_int_equal(td_gguf_u32_or(g, "none", 0, 10, 7, &u, &err), TD_OK);
    assert_int_equal(u, 7);
    assert_int_equal(td_gguf_f64_or(g, "a.f64", 1, &r, &err), TD_OK);
    assert_true(r == 0.25);
    assert_int_equal(td_gguf_f64_or(g, "a.words", 1, &r, &err), TD_E_MODEL);
    assert_string_equal(err.message, "x.gguf: \"a.words\" is an array of 3 string, expected a finite f32 or f64");
    assert_int_equal(td_gguf_bool_or(g, "a.u8", true, &flag, &err), TD_E_MODEL);

    td_gguf_strings s = {.v = td_gguf_find(g, "a.words")};
    const char *text;
    size_t size;
    assert_true(td_gguf_next_string(&s, &text, &size) && size == 1 && text[0] == 'x');
    assert_true(td_gguf_next_string(&s, &text, &size) && size == 0);
    assert_true(td_gguf_next_string(&s, &text, &size) && size == 2 && text[1] == 'z');
    assert_false(td_gguf_next_string(&s, &text, &size));

    const td_tensor *w = td_gguf_tensor(g, "w"), *q = td_gguf_tensor(g, "q");
    assert_int_equal(td_gguf_n_tensors(g), 2);
    assert_ptr_equal(td_gguf_tensor_at(g, 1), q);
    assert_int_equal(w->n_dims, 2);
    assert_int_equal(w->dim[0], 2); /* rows first */
    assert_int_equal(w->dim[1], 3);
    assert_int_equal(w->dtype, TD_DTYPE_F32);
    assert_int_equal(w->size, 24);
    assert_int_equal(w->data[5], 5);
    assert_int_equal(q->dtype, TD_DTYPE_BLOCKS);
    assert_int_equal(q->blocks, TD_FORMAT_Q8_0);
    assert_int_equal(q->size, 34);
    assert_ptr_equal(q->data, w->data + 64);
    assert_null(td_gguf_tensor(g, "none"));
    td_gguf_close(&g);
    assert_null(g);
    td_gguf_close(&g);
    free(copy);
    td_buf_free(&b);
}

static void every_integer_type(void **state) {
    (void)state;
    td_gguf_writer w;
    char path[] = "/tmp/tandem-gguf-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    const uint8_t a8[] = {1, 255}, bools[] = {0, 1};
    const int8_t b8[] = {1, -1};
    const uint16_t a16[] = {1, 65535};
    const int16_t b16[] = {1, -1};
    const uint32_t a32[] = {1, 4294967295u};
    const int32_t b32[] = {1, -1};
    const uint64_t a64[] = {1, (uint64_t)INT64_MAX + 1};
    const int64_t b64[] = {1, -1};
    const float f[] = {1.5f, -2};
    const struct {
        const char *key;
        td_gguf_type type;
        const void *v;
        int64_t second;
    } arrays[] = {{"u8", TD_GGUF_U8, a8, 255},           {"i8", TD_GGUF_I8, b8, -1},
                  {"u16", TD_GGUF_U16, a16, 65535},      {"i16", TD_GGUF_I16, b16, -1},
                  {"u32", TD_GGUF_U32, a32, 4294967295}, {"i32", TD_GGUF_I32, b32, -1},
                  {"i64", TD_GGUF_I64, b64, -1},         {"bool", TD_GGUF_BOOL, bools, 1}};
    td_gguf_writer_init(&w);
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        td_gguf_put_array(&w, arrays[i].key, arrays[i].type, arrays[i].v, 2);
    td_gguf_put_array(&w, "u64", TD_GGUF_U64, a64, 2);
    td_gguf_put_array(&w, "f32", TD_GGUF_F32, f, 2);
    td_error err;
    td_gguf *g;
    assert_int_equal(td_gguf_write(&w, path, NULL, 0, &err), TD_OK);
    assert_int_equal(td_gguf_open(&g, path, &err), TD_OK);
    int64_t x;
    double r;
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        const td_gguf_value *v = td_gguf_find(g, arrays[i].key);
        assert_true(v->is_array && v->n == 2 && v->type == arrays[i].type);
        assert_string_equal(td_gguf_type_name(v->type), arrays[i].key);
        assert_true(td_gguf_integer_at(v, 1, &x) && x == arrays[i].second);
        assert_false(td_gguf_integer_at(v, 2, &x));
        assert_false(td_gguf_real_at(v, 0, &r));
    }
    assert_true(td_gguf_integer_at(td_gguf_find(g, "u64"), 0, &x) && x == 1);
    assert_false(td_gguf_integer_at(td_gguf_find(g, "u64"), 1, &x)); /* beyond what an int64 holds */
    assert_true(td_gguf_real_at(td_gguf_find(g, "f32"), 1, &r) && r == -2);
    assert_false(td_gguf_integer_at(td_gguf_find(g, "f32"), 1, &x));
    td_gguf_close(&g);
    td_gguf_writer_free(&w);
    unlink(path);
}

/* ---- broken headers ---- */

static void headers_are_checked(void **state) {
    (void)state;
    td_buf b;
    td_buf_init(&b, 100);
    refused(&b, TD_E_FORMAT, "byte 0: the file ends in the magic number");
    td_buf_init(&b, 100);
    td_buf_append(&b, "PK\x03\x04....", 8);
    refused(&b, TD_E_FORMAT, "byte 0: not a GGUF file: it begins with 50 4B 03 04");
    static const struct {
        uint32_t version;
        const char *message;
    } versions[] = {{0, "version 0, expected 2 or 3"},
                    {1, "version 1, expected"},
                    {4, "version 4, expected"},
                    {0x03000000, "a big-endian file, expected little-endian"}};
    for (size_t i = 0; i < 4; i++) {
        b = begin(0, 0);
        memcpy(b.data + 4, &versions[i].version, 4);
        refused(&b, TD_E_FORMAT, versions[i].message);
    }
    for (size_t cut = 4; cut < 24; cut++) {
        b = begin(0, 0);
        b.size = cut;
        refused(&b, TD_E_FORMAT, "the file ends in");
    }
    static const uint64_t counts[] = {1, 1u << 16, (uint64_t)1 << 32, (uint64_t)1 << 63, UINT64_MAX};
    for (size_t i = 0; i < 5; i++) {
        b = begin(0, counts[i]);
        refused(&b, TD_E_FORMAT, "key-value pairs, but 0 bytes are left of the file");
        b = begin(counts[i], 0);
        refused(&b, TD_E_FORMAT, "tensors, but 0 bytes are left of the file");
    }
}

/* A file with one pair whose bytes after the key are given. */
static td_buf with_pair(const char *key, const void *rest, size_t n) {
    td_buf b = begin(0, 1);
    str(&b, key);
    td_buf_append(&b, rest, n);
    pad(&b, 1, 64);
    return b;
}

static void values_are_checked(void **state) {
    (void)state;
    td_buf b = with_pair("k", (const uint32_t[]){13}, 4);
    refused(&b, TD_E_FORMAT, "\"k\": value type 13, expected 0 to 12");
    b = with_pair("k", (const uint8_t[]){7, 0, 0, 0, 2}, 5);
    refused(&b, TD_E_FORMAT, "\"k\": a bool that is 2, expected 0 or 1");
    b = with_pair("k", (const uint32_t[]){8, 0xFFFFFFF0, 0xFFFFFFFF}, 12);
    refused(&b, TD_E_FORMAT, "\"k\": a string of 18446744073709551600 bytes, but 64 are left");
    b = with_pair("k", (const uint32_t[]){9, 9, 1, 0}, 16);
    refused(&b, TD_E_FORMAT, "\"k\": an array of arrays");
    b = with_pair("k", (const uint32_t[]){9, 4, 0x40000001, 0x40000000}, 16);
    refused(&b, TD_E_FORMAT, "elements of type u32, but 64 bytes are left");
    b = with_pair("k", (const uint32_t[]){9, 8, 0, 0x20000000}, 16);
    refused(&b, TD_E_FORMAT, "strings, but 64 bytes are left");
    b = with_pair("k", (const uint32_t[]){9, 99, 0, 0}, 16);
    refused(&b, TD_E_FORMAT, "value type 99");
    b = with_pair("", (const uint32_t[]){4, 1}, 8);
    refused(&b, TD_E_FORMAT, "a key of 0 bytes, expected 1 to 65535");
    b = with_pair("\xFF", (const uint32_t[]){4, 1}, 8);
    refused(&b, TD_E_FORMAT, "a key is not UTF-8");
    b = begin(0, 2);
    for (int i = 0; i < 2; i++) {
        str(&b, "k");
        u32(&b, TD_GGUF_U32);
        u32(&b, 1);
    }
    refused(&b, TD_E_FORMAT, "\"k\": the key is there twice");
    b = begin(0, 1);
    u64(&b, 3);
    td_buf_append(&b, "a\0b", 3);
    pad(&b, 1, 40);
    refused(&b, TD_E_FORMAT, "a key holds a zero byte");
    char *long_key = malloc(70000);
    memset(long_key, 'k', 69999);
    long_key[69999] = '\0';
    b = with_pair(long_key, (const uint32_t[]){4, 1}, 8);
    refused(&b, TD_E_FORMAT, "a key of 69999 bytes");
    free(long_key);
    static const uint32_t alignments[] = {0, 3, 0x80000000};
    for (size_t i = 0; i < 3; i++) {
        b = with_pair("general.alignment", (const uint32_t[]){4, alignments[i]}, 8);
        refused(&b, i == 1 ? TD_E_FORMAT : TD_E_MODEL, "general.alignment");
    }
}

/* One tensor with 64 bytes of data behind it. */
static td_buf with_tensor(uint32_t n_dims, const uint64_t *dims, uint32_t type, uint64_t offset) {
    td_buf b = begin(1, 0);
    info(&b, "t", n_dims, dims, type, offset);
    pad(&b, 32, 64);
    return b;
}

static void tensors_are_checked(void **state) {
    (void)state;
    const uint64_t big = (uint64_t)1 << 63;
    td_buf b = with_tensor(5, (const uint64_t[]){1, 1, 1, 1, 1}, 0, 0);
    refused(&b, TD_E_FORMAT, "\"t\": 5 dimensions, expected at most 4");
    b = with_tensor(2, (const uint64_t[]){0, 4}, 0, 0);
    refused(&b, TD_E_FORMAT, "dimension 1 is 0");
    b = with_tensor(3, (const uint64_t[]){(uint64_t)1 << 32, (uint64_t)1 << 32, 16}, 0, 0);
    refused(&b, TD_E_FORMAT, "no more elements than 2^64");
    b = with_tensor(1, &big, 0, 0);
    refused(&b, TD_E_FORMAT, "take more bytes than the file has");
    b = with_tensor(1, (const uint64_t[]){17}, 0, 0);
    refused(&b, TD_E_FORMAT, "\"t\": its 68 bytes of data end beyond the file of");
    b = with_tensor(1, (const uint64_t[]){33}, 8, 0);
    refused(&b, TD_E_FORMAT, "rows of 33 elements, expected whole blocks of 32");
    b = with_tensor(2, (const uint64_t[]){64, 1}, 12, 0);
    refused(&b, TD_E_FORMAT, "rows of 64 elements, expected whole blocks of 256");
    b = with_tensor(1, (const uint64_t[]){4}, 0, 16);
    refused(&b, TD_E_FORMAT, "its data is at offset 16, expected 0");
    b = with_tensor(1, (const uint64_t[]){4}, 0, UINT64_MAX - 31);
    refused(&b, TD_E_FORMAT, "its data is at offset");
    static const struct {
        uint32_t id;
        const char *name;
    } types[] = {{4, "Q4_2, removed"},
                 {5, "Q4_3, removed"},
                 {9, "Q8_1"},
                 {15, "Q8_K"},
                 {17, "IQ2_XS"},
                 {18, "IQ3_XXS"},
                 {29, "IQ1_M"},
                 {31, "Q4_0_4_4, removed"},
                 {36, "IQ4_NL_4_4, removed"},
                 {43, "unknown"},
                 {255, "unknown"},
                 {256, "unknown"},
                 {UINT32_MAX, "unknown"}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        char message[100];
        snprintf(message, sizeof message, "tensor \"t\" is of type %u (%s), which has no decoder here", types[i].id,
                 types[i].name);
        b = with_tensor(1, (const uint64_t[]){4}, types[i].id, 0);
        refused(&b, TD_E_UNSUPPORTED, message);
    }
    b = begin(2, 0);
    info(&b, "t", 1, (const uint64_t[]){4}, 0, 0);
    info(&b, "t", 1, (const uint64_t[]){4}, 0, 32);
    pad(&b, 32, 64);
    refused(&b, TD_E_FORMAT, "\"t\": the tensor is there twice");
    b = begin(2, 0); /* on top of each other */
    info(&b, "t", 1, (const uint64_t[]){4}, 0, 0);
    info(&b, "s", 1, (const uint64_t[]){4}, 0, 0);
    pad(&b, 32, 64);
    refused(&b, TD_E_FORMAT, "\"s\": its data is at offset 0, expected 32");
    char name[200];
    memset(name, 'n', sizeof name);
    name[199] = '\0';
    b = begin(1, 0);
    info(&b, name, 1, (const uint64_t[]){4}, 0, 0);
    pad(&b, 32, 64);
    refused(&b, TD_E_FORMAT, "a tensor's name of 199 bytes, expected 1 to 127");
}

/* A whole small file, cut after every byte: an error each time, and never a read beyond. */
static void every_cut_is_an_error(void **state) {
    (void)state;
    td_buf whole = begin(1, 2);
    str(&whole, "a");
    u32(&whole, TD_GGUF_ARRAY);
    u32(&whole, TD_GGUF_STRING);
    u64(&whole, 2);
    str(&whole, "x");
    str(&whole, "y");
    str(&whole, "b");
    u32(&whole, TD_GGUF_F32);
    u32(&whole, 0);
    info(&whole, "t", 1, (const uint64_t[]){4}, 0, 0);
    pad(&whole, 32, 16);
    for (size_t cut = 0; cut <= whole.size; cut++) {
        td_buf b = whole;
        td_gguf *g;
        uint8_t *copy;
        td_error err;
        b.size = cut;
        td_status st = parse(&g, &b, &copy, &err);
        assert_int_equal(st, cut == whole.size ? TD_OK : TD_E_FORMAT);
        td_gguf_close(&g);
        free(copy);
    }
    td_buf_free(&whole);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    td_buf b = begin(2, 1);
    str(&b, "a");
    u32(&b, TD_GGUF_U32);
    u32(&b, 1);
    info(&b, "t", 1, (const uint64_t[]){4}, 0, 0);
    info(&b, "u", 1, (const uint64_t[]){4}, 0, 32);
    pad(&b, 32, 64);
    for (long k = 0;; k++) {
        td_gguf *g;
        uint8_t *copy;
        td_error err;
        long live = td_alloc_live();
        td_alloc_fail_at(k);
        td_status st = parse(&g, &b, &copy, &err);
        bool struck = td_alloc_failed();
        td_alloc_fail_at(-1);
        assert_int_equal(st, struck ? TD_E_NOMEM : TD_OK);
        td_gguf_close(&g);
        assert_int_equal(td_alloc_live(), live);
        free(copy);
        if (!struck)
            break;
    }
    td_buf_free(&b);
}

/* ---- the writer ---- */

static void the_writer_refuses_what_no_reader_takes(void **state) {
    (void)state;
    const float data[64] = {0};
    td_gguf_writer w;
    td_error err;
    td_gguf_writer_init(&w);
    const struct {
        td_tensor t;
        const char *message;
    } cases[] = {
        {{.name = "t", .dtype = TD_DTYPE_F32, .n_dims = 1, .dim = {4}, .data = (const uint8_t *)data, .size = 12},
         "size, shape and type do not agree"},
        {{.name = "t", .dtype = TD_DTYPE_U8, .n_dims = 1, .dim = {4}, .data = (const uint8_t *)data, .size = 4},
         "a name, rank or type that GGUF does not have"},
        {{.name = "t", .dtype = TD_DTYPE_F32, .n_dims = 5, .dim = {1, 1, 1, 1, 1}, .size = 4}, "a name, rank or type"},
        {{.name = "t", .dtype = TD_DTYPE_F32, .n_dims = 1, .dim = {0}}, "an empty or overflowing shape"},
        {{.name = "t", .dtype = TD_DTYPE_BLOCKS, .blocks = TD_FORMAT_Q8_0, .n_dims = 1, .dim = {31}, .size = 34},
         "size, shape and type do not agree"},
        {{.name = "t", .dtype = TD_DTYPE_BLOCKS, .blocks = TD_FORMAT_AFFINE, .n_dims = 1, .dim = {32}, .size = 34},
         "a name, rank or type"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(td_gguf_write(&w, "/nonexistent/x.gguf", &cases[i].t, 1, &err), TD_E_ARG);
        if (!strstr(err.message, cases[i].message))
            fail_msg("case %zu: \"%s\", expected \"%s\"", i, err.message, cases[i].message);
    }
    assert_int_equal(td_gguf_write(&w, "/nonexistent/x.gguf", NULL, 0, &err), TD_E_IO);
    td_gguf_writer_free(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_and_tensors),        cmocka_unit_test(every_integer_type),
        cmocka_unit_test(headers_are_checked),       cmocka_unit_test(values_are_checked),
        cmocka_unit_test(tensors_are_checked),       cmocka_unit_test(every_cut_is_an_error),
        cmocka_unit_test(every_allocation_may_fail), cmocka_unit_test(the_writer_refuses_what_no_reader_takes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
