/* bench_tokenizer.c - loading a tokenizer.json of Gemma 4's size, and encoding and decoding a megabyte with it.
 *
 *   bench_tokenizer [words [merges]]        default 262144 words, 514000 merges
 *   bench_tokenizer tokenizer.json          the same texts with that file
 *
 * The file is synthesised: words are joined from shorter ones by fixed pseudo-random choices, in the form that Gemma's
 * has (spaces as marks, bytes for what is unknown, no splitting). Texts: English-like prose of those words, the same
 * letters without a space, a megabyte of spaces, and random CJK. Each figure is the processor time of the one
 * thread that works, so that a busy machine does not show in it: the median of REPEATS runs with its spread, and the
 * least wall time beside it. The encoding is decoded and compared before anything is timed. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "text/detok.h"
#include "text/tokenizer.h"

#define REPEATS 5
#define TEXT_SIZE ((size_t)1 << 20)
#define CEILING ((size_t)1 << 30)
#define FIRST_WORD 263 /* behind the special tokens and the bytes */

static void die(const char *what) {
    fprintf(stderr, "bench_tokenizer: %s\n", what);
    exit(1);
}

static uint32_t state = 1;

static uint32_t next(uint32_t n) {
    state = state * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)state * n >> 32);
}

/* ---- the file ---- */

typedef struct words {
    char **v;
    size_t n;
    json_t *seen; /* name -> id */
} words;

static bool add_word(words *w, const char *name) {
    if (json_object_get(w->seen, name))
        return false;
    json_object_set_new(w->seen, name, json_integer((json_int_t)w->n));
    w->v[w->n++] = td_strdup(name);
    return true;
}

static void add_alphabet(words *w) {
    char name[16];
    static const char *const specials[FIRST_WORD - 256] = {"<pad>",  "<eos>",        "<bos>", "<unk>",
                                                           "<mask>", "\xE2\x96\x81", "\n"};
    for (size_t i = 0; i < sizeof specials / sizeof specials[0]; i++)
        add_word(w, specials[i]);
    for (int b = 0; b < 256; b++) {
        snprintf(name, sizeof name, "<0x%02X>", b);
        add_word(w, name);
    }
    for (char c = '!'; c <= '~'; c++) {
        name[0] = c;
        name[1] = '\0';
        add_word(w, name);
    }
    for (int c = 0x4E00; c < 0x5E00; c++) {
        snprintf(name, sizeof name, "%c%c%c", 0xE0 | c >> 12, 0x80 | (c >> 6 & 63), 0x80 | (c & 63));
        add_word(w, name);
    }
}

/* A word to join: letters and short words come often, as in a trained vocabulary. */
static const char *pick(const words *w) {
    static const char letters[] = "etaoinshrdlucmfwypvbgk";
    static char one[2];
    uint32_t kind = next(8);
    if (kind < 2) {
        one[0] = letters[next(sizeof letters - 1)];
        return one;
    }
    if (kind == 2)
        return "\xE2\x96\x81";
    return w->v[FIRST_WORD + next((uint32_t)(w->n - FIRST_WORD) >> next(10))];
}

static void put_json(td_buf *b, const char *s) {
    json_t *v = json_string(s);
    char *text = json_dumps(v, JSON_ENCODE_ANY);
    td_buf_puts(b, text);
    free(text);
    json_decref(v);
}

/* Joins two words to a new one, if the result is a plausible token: marks at its start only. */
static bool join(words *w, char *left, char *right, size_t size) {
    char name[96];
    snprintf(left, size, "%s", pick(w));
    snprintf(right, size, "%s", pick(w));
    if (strlen(left) + strlen(right) > 16 || strncmp(right, "\xE2\x96\x81", 3) == 0 || strchr(left, '<') ||
        strchr(right, '<'))
        return false;
    snprintf(name, sizeof name, "%s%s", left, right);
    return add_word(w, name);
}

static void put_pair(td_buf *b, const char *left, const char *right, bool first) {
    td_buf_puts(b, first ? "\n      [\n        " : ",\n      [\n        ");
    put_json(b, left);
    td_buf_puts(b, ",\n        ");
    put_json(b, right);
    td_buf_puts(b, "\n      ]");
}

/* Other ways to arrive at words that are there: published lists have about two merges a word. */
static size_t other_splits(const words *w, td_buf *b, size_t n, size_t want) {
    for (size_t i = FIRST_WORD; i < w->n && n < want; i++) {
        size_t size = strlen(w->v[i]);
        for (size_t cut = 1; cut < size && n < want; cut++) {
            char left[96], right[96];
            snprintf(left, sizeof left, "%.*s", (int)cut, w->v[i]);
            snprintf(right, sizeof right, "%s", w->v[i] + cut);
            if (!json_object_get(w->seen, left) || !json_object_get(w->seen, right))
                continue;
            put_pair(b, left, right, n == 0);
            n++;
        }
    }
    return n;
}

/* Runs of marks, each of two halves, as Gemma has them: without, a text of spaces would merge nothing. */
static size_t add_runs(words *w, td_buf *merges) {
    char half[64] = "\xE2\x96\x81", whole[64];
    size_t n = 0;
    for (; strlen(half) < 30; strcpy(half, whole)) {
        snprintf(whole, sizeof whole, "%s%s", half, half);
        add_word(w, whole);
        put_pair(merges, half, half, n++ == 0);
    }
    return n;
}

static void make_file(td_buf *file, words *w, size_t n_words, size_t *n_merges) {
    char left[64], right[64];
    td_buf merges;
    td_buf_init(&merges, CEILING);
    w->v = td_calloc(n_words + 5000, sizeof *w->v);
    w->seen = json_object();
    add_alphabet(w);
    size_t n = add_runs(w, &merges);
    while (w->n < n_words)
        if (join(w, left, right, sizeof left))
            put_pair(&merges, left, right, n++ == 0);
    n = other_splits(w, &merges, n, *n_merges);
    *n_merges = n;
    td_buf_puts(file, "{\n  \"version\": \"1.0\",\n  \"added_tokens\": [");
    for (int i = 0; i < 5; i++)
        td_buf_printf(file, "%s\n    {\"id\": %d, \"content\": \"%s\", \"special\": true, \"normalized\": false}",
                      i ? "," : "", i, w->v[i]);
    td_buf_puts(file, "\n  ],\n  \"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, "
                      "\"content\": \"\xE2\x96\x81\"},\n  \"decoder\": {\"type\": \"Sequence\", \"decoders\": ["
                      "{\"type\": \"Replace\", \"pattern\": {\"String\": \"\xE2\x96\x81\"}, \"content\": \" \"}, "
                      "{\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}]},\n  \"model\": {\n    \"type\": \"BPE\",\n"
                      "    \"unk_token\": \"<unk>\", \"fuse_unk\": true, \"byte_fallback\": true,\n    \"vocab\": {");
    for (size_t i = 0; i < w->n; i++) {
        td_buf_puts(file, i ? ",\n      " : "\n      ");
        put_json(file, w->v[i]);
        td_buf_printf(file, ": %zu", i);
    }
    td_buf_puts(file, "\n    },\n    \"merges\": [");
    td_buf_append(file, merges.data, merges.size);
    td_buf_puts(file, "\n    ]\n  }\n}\n");
    td_buf_free(&merges);
}

/* ---- texts ---- */

static void make_prose(td_buf *b, const words *w, bool spaces) {
    while (b->size < TEXT_SIZE) {
        const char *s = w->v[FIRST_WORD + 94 + next((uint32_t)(w->n - FIRST_WORD - 94) >> next(12))];
        bool mark = strncmp(s, "\xE2\x96\x81", 3) == 0;
        if ((unsigned char)s[3 * mark] >= 0x80) /* CJK, a run of marks */
            continue;
        td_buf_puts(b, s + 3 * mark);
        td_buf_puts(b, spaces ? next(12) ? " " : ", " : "");
    }
}

static void make_cjk(td_buf *b) {
    while (b->size < TEXT_SIZE) {
        uint32_t c = 0x4E00 + next(0x2000);
        td_buf_putc(b, (char)(0xE0 | c >> 12));
        td_buf_putc(b, (char)(0x80 | (c >> 6 & 63)));
        td_buf_putc(b, (char)(0x80 | (c & 63)));
    }
}

static void make_text(td_buf *b, const words *w, int kind) {
    td_buf_init(b, CEILING);
    if (kind <= 1)
        make_prose(b, w, kind == 0);
    else if (kind == 2)
        make_cjk(b);
    while (kind == 3 && b->size < TEXT_SIZE)
        td_buf_putc(b, ' ');
}

/* ---- timing ---- */

typedef struct timing {
    double cpu[REPEATS], wall[REPEATS];
    int n;
    struct timespec cpu_start;
    int64_t wall_start;
} timing;

static void begin(timing *t) {
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t->cpu_start);
    t->wall_start = td_clock_ns();
}

static void end(timing *t) {
    struct timespec now;
    t->wall[t->n] = td_clock_since(t->wall_start);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    t->cpu[t->n++] = (double)(now.tv_sec - t->cpu_start.tv_sec) + (double)(now.tv_nsec - t->cpu_start.tv_nsec) * 1e-9;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_row(const char *name, timing *t, double bytes, size_t tokens) {
    qsort(t->cpu, REPEATS, sizeof *t->cpu, by_value);
    qsort(t->wall, REPEATS, sizeof *t->wall, by_value);
    double median = t->cpu[REPEATS / 2];
    printf("%-30s %8.1f ms (%.1f..%.1f), wall %.1f, %7.2f MB/s", name, median * 1e3, t->cpu[0] * 1e3,
           t->cpu[REPEATS - 1] * 1e3, t->wall[0] * 1e3, bytes / median / 1e6);
    if (tokens > 0)
        printf(", %zu tokens", tokens);
    printf("\n");
}

static void read_file(td_buf *file, const char *path) {
    td_error err;
    char *data;
    size_t size;
    if (td_file_read(path, CEILING, &data, &size, &err) != TD_OK)
        die(err.message);
    td_buf_clear(file);
    td_buf_append(file, data, size);
    td_free(data);
}

static td_tokenizer *time_load(const td_buf *file) {
    td_tokenizer *tok = NULL;
    td_error err;
    timing t = {.n = 0};
    for (int i = 0; i < REPEATS; i++) {
        td_tokenizer_close(&tok);
        begin(&t);
        if (td_tokenizer_parse(&tok, file->data, file->size, NULL, 0, "synthetic", &err) != TD_OK)
            die(err.message);
        end(&t);
    }
    print_row("load", &t, (double)file->size, 0);
    return tok;
}

/* Encodes, decodes and compares; what is left in `ids` is the encoding. */
static void check(const td_tokenizer *tok, const td_buf *text, td_token_list *ids, td_buf *back) {
    td_error err;
    if (td_tokenizer_encode(tok, text->data, text->size, 0, ids, &err) != TD_OK ||
        td_tokenizer_decode(tok, ids->ids, ids->n, 0, back, &err) != TD_OK)
        die(err.message);
    if (back->size != text->size || memcmp(back->data, text->data, back->size) != 0)
        die("the text does not come back");
}

static void time_text(const td_tokenizer *tok, const char *name, const td_buf *text) {
    td_token_list ids;
    td_buf back;
    timing encoding = {.n = 0}, decoding = {.n = 0};
    char label[64];
    td_token_list_init(&ids, CEILING);
    td_buf_init(&back, CEILING);
    check(tok, text, &ids, &back);
    for (int i = 0; i < REPEATS; i++) {
        ids.n = 0;
        begin(&encoding);
        if (td_tokenizer_encode(tok, text->data, text->size, 0, &ids, NULL) != TD_OK)
            die("encoding fails");
        end(&encoding);
        td_buf_clear(&back);
        begin(&decoding);
        if (td_tokenizer_decode(tok, ids.ids, ids.n, 0, &back, NULL) != TD_OK)
            die("decoding fails");
        end(&decoding);
    }
    snprintf(label, sizeof label, "encode, %s", name);
    print_row(label, &encoding, (double)text->size, ids.n);
    snprintf(label, sizeof label, "decode, %s", name);
    print_row(label, &decoding, (double)text->size, ids.n);
    td_buf_free(&back);
    td_token_list_free(&ids);
}

int main(int argc, char **argv) {
    const char *path = argc > 1 && strchr(argv[1], '.') ? argv[1] : NULL;
    size_t n_words = argc > 1 && !path ? strtoull(argv[1], NULL, 10) : 262144;
    size_t n_merges = argc > 2 ? strtoull(argv[2], NULL, 10) : 514000;
    static const char *const names[] = {"1 MB prose", "1 MB without a space", "1 MB of CJK", "1 MB of spaces"};
    words w = {0};
    td_buf file;
    td_buf_init(&file, CEILING);
    if (n_words < 6000)
        die("at least 6000 words");
    make_file(&file, &w, n_words, &n_merges);
    if (path)
        read_file(&file, path);
    else
        printf("%zu words, %zu merges, ", w.n, n_merges);
    printf("%.1f MB; processor time, median of %d (least..most)\n", (double)file.size / 1e6, REPEATS);
    td_tokenizer *tok = time_load(&file);
    for (int i = 0; i < 4; i++) {
        td_buf text;
        make_text(&text, &w, i);
        time_text(tok, names[i], &text);
        td_buf_free(&text);
    }
    td_tokenizer_close(&tok);
    for (size_t i = 0; i < w.n; i++)
        td_free(w.v[i]);
    td_free(w.v);
    json_decref(w.seen);
    td_buf_free(&file);
    return 0;
}
