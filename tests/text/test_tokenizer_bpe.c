/* test_tokenizer_bpe.c - merging beside its definition, done the slow way: find the pair of lowest rank, the leftmost
 * of equals, join it, and begin again. */
#include "test_tokenizer_util.h"

#include "text/bpe.h"

static uint32_t state = 1;

static uint32_t next(uint32_t n) {
    state = state * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)state * n >> 32);
}

#define MAX_WORDS 400
#define MAX_MERGES 600

/* A random encoder: letters, then words joined from words that are there. */
typedef struct lab {
    td_vocab vocab;
    td_bpe *bpe;
    char words[MAX_WORDS][32];
    int n_words;
    int merges[MAX_MERGES][3]; /* left, right, result */
    int n_merges;
} lab;

static int find_word(const lab *l, const char *w) {
    for (int i = 0; i < l->n_words; i++)
        if (strcmp(l->words[i], w) == 0)
            return i;
    return -1;
}

static void add_word(lab *l, const char *w) {
    strcpy(l->words[l->n_words], w);
    assert_int_equal(td_vocab_add(&l->vocab, w, strlen(w), (uint64_t)l->n_words++, TD_PIECE_MODEL, NULL), TD_OK);
}

static void lab_init(lab *l, const char *const *letters, int n_letters, int n_merges) {
    char pair[80];
    memset(l, 0, sizeof *l);
    td_vocab_init(&l->vocab, 100000);
    for (int i = 0; i < n_letters; i++)
        add_word(l, letters[i]);
    while (l->n_merges < n_merges) {
        int a = (int)next((uint32_t)l->n_words), b = (int)next((uint32_t)l->n_words);
        int n = snprintf(pair, sizeof pair, "%s%s", l->words[a], l->words[b]);
        if (n > 24 || l->n_words == MAX_WORDS)
            continue;
        int result = find_word(l, pair);
        if (result < 0) {
            result = l->n_words;
            add_word(l, pair);
        }
        int *m = l->merges[l->n_merges++];
        m[0] = a;
        m[1] = b;
        m[2] = result;
    }
    assert_int_equal(td_bpe_new(&l->bpe, &l->vocab, 0, NULL), TD_OK);
    for (int i = 0; i < l->n_merges; i++) {
        const char *a = l->words[l->merges[i][0]], *b = l->words[l->merges[i][1]];
        snprintf(pair, sizeof pair, "%s%s", a, b);
        assert_int_equal(td_bpe_add_merge(l->bpe, pair, strlen(a), strlen(b), NULL), TD_OK);
    }
}

static void lab_free(lab *l) {
    td_bpe_free(&l->bpe);
    td_vocab_free(&l->vocab);
}

/* Of a pair listed twice the later rank holds. */
static int rank_of(const lab *l, int a, int b) {
    for (int i = l->n_merges - 1; i >= 0; i--)
        if (l->merges[i][0] == a && l->merges[i][1] == b)
            return i;
    return -1;
}

static int slow(const lab *l, int *ids, int n) {
    for (;;) {
        int best = -1, at = -1;
        for (int i = 0; i + 1 < n; i++) {
            int r = rank_of(l, ids[i], ids[i + 1]);
            if (r >= 0 && (best < 0 || r < best)) {
                best = r;
                at = i;
            }
        }
        if (best < 0)
            return n;
        ids[at] = l->merges[best][2];
        memmove(ids + at + 1, ids + at + 2, (size_t)(n - at - 2) * sizeof *ids);
        n--;
    }
}

static void random_words_are_merged_by_definition(void **unused) {
    (void)unused;
    static const char *const letters[] = {"a", "b", "c", "\xC3\xA9", "\xE2\x96\x81", "\xF0\x9F\x98\x80"};
    static lab l;
    td_bpe_work work = {0};
    td_token_list got;
    td_token_list_init(&got, 1000);
    for (int round = 0; round < 30; round++) {
        int n_letters = 2 + round % 5;
        lab_init(&l, letters, n_letters, 5 + round * 12);
        td_bpe_finish(l.bpe, (td_bpe_options){.unk = -1});
        for (int k = 0; k < 60; k++) {
            int ids[64], n = 1 + (int)next(60);
            char word[300] = "";
            for (int i = 0; i < n; i++) {
                ids[i] = (int)next((uint32_t)n_letters);
                strcat(word, letters[ids[i]]);
            }
            n = slow(&l, ids, n);
            got.n = 0;
            assert_int_equal(td_bpe_encode(l.bpe, &work, word, strlen(word), true, &got, NULL), TD_OK);
            assert_int_equal(got.n, n);
            assert_memory_equal(got.ids, ids, (size_t)n * sizeof *ids);
        }
        lab_free(&l);
    }
    td_token_list_free(&got);
    td_bpe_work_free(&work);
}

/* ---- characters that are no token ---- */

static void expect(const td_bpe *b, const char *word, const td_token *want) {
    td_bpe_work work = {0};
    td_token_list got;
    td_token_list_init(&got, 100);
    assert_int_equal(td_bpe_encode(b, &work, word, strlen(word), true, &got, NULL), TD_OK);
    size_t n = 0;
    for (; want[n] >= 0; n++)
        assert_true(n < got.n && got.ids[n] == want[n]);
    assert_int_equal(got.n, n);
    td_token_list_free(&got);
    td_bpe_work_free(&work);
}

#define EXPECT(b, word, ...) expect(b, word, (const td_token[]){__VA_ARGS__ __VA_OPT__(, ) - 1})

static void unknown_characters(void **unused) {
    (void)unused;
    static const char *const names[] = {"u", "a", "<0xC3>", "<0xA9>", "<0xC3><0xA9>", "a<0xC3>", "ua", "aa"};
    td_vocab v;
    td_bpe *b;
    td_vocab_init(&v, 100);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        assert_int_equal(td_vocab_add(&v, names[i], strlen(names[i]), i, TD_PIECE_MODEL, NULL), TD_OK);
    assert_int_equal(td_bpe_new(&b, &v, 0, NULL), TD_OK);
    td_bpe_finish(b, (td_bpe_options){.unk = -1});
    EXPECT(b, "a\xC3\xA9z", 1); /* nothing covers them: left out */
    td_bpe_finish(b, (td_bpe_options){.unk = 0});
    EXPECT(b, "zza\xC3\xA9z", 0, 0, 1, 0, 0);
    td_bpe_finish(b, (td_bpe_options){.unk = 0, .fuse_unk = true});
    EXPECT(b, "zza\xC3\xA9z", 0, 1, 0);
    td_bpe_finish(b, (td_bpe_options){.unk = 0, .fuse_unk = true, .byte_fallback = true});
    EXPECT(b, "zza\xC3\xA9z", 0, 1, 2, 3, 0);
    EXPECT(b, "\xC3\xA8", 0); /* one of its bytes is no token */
    td_bpe_free(&b);

    /* merges of bytes and of the unknown token */
    assert_int_equal(td_bpe_new(&b, &v, 0, NULL), TD_OK);
    assert_int_equal(td_bpe_add_merge(b, "<0xC3><0xA9>", 6, 6, NULL), TD_OK);
    assert_int_equal(td_bpe_add_merge(b, "ua", 1, 1, NULL), TD_OK);
    td_bpe_finish(b, (td_bpe_options){.unk = 0, .byte_fallback = true});
    EXPECT(b, "a\xC3\xA9za\xC3\xA9", 1, 4, 6, 4);
    td_bpe_free(&b);
    assert_int_equal(td_bpe_new(&b, &v, 0, NULL), TD_OK);
    assert_int_equal(td_bpe_add_merge(b, "a<0xC3>", 1, 6, NULL), TD_OK);
    td_bpe_finish(b, (td_bpe_options){.unk = 0, .byte_fallback = true});
    EXPECT(b, "aa\xC3\xA9", 1, 5, 3);
    td_bpe_free(&b);
    assert_int_equal(td_bpe_new(&b, &v, 0, NULL), TD_OK);
    assert_int_equal(td_bpe_add_merge(b, "<0xC3><0xA9>", 6, 6, NULL), TD_OK);
    td_bpe_finish(b, (td_bpe_options){.unk = 0, .byte_fallback = true});
    EXPECT(b, "a\xC3\xA9", 1, 4);
    td_bpe_free(&b);
    td_vocab_free(&v);
}

static void a_whole_word_that_is_a_token(void **unused) {
    (void)unused;
    static const char *const names[] = {"a", "b", "ab", "aba"};
    td_vocab v;
    td_bpe *b;
    td_vocab_init(&v, 100);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(td_vocab_add(&v, names[i], strlen(names[i]), i, TD_PIECE_MODEL, NULL), TD_OK);
    assert_int_equal(td_vocab_add(&v, "bb", 2, 4, TD_PIECE_ADDED, NULL), TD_OK);
    assert_int_equal(td_bpe_new(&b, &v, 0, NULL), TD_OK);
    assert_int_equal(td_bpe_add_merge(b, "ab", 1, 1, NULL), TD_OK);
    td_bpe_finish(b, (td_bpe_options){.unk = -1});
    EXPECT(b, "aba", 2, 0);
    td_bpe_finish(b, (td_bpe_options){.unk = -1, .ignore_merges = true});
    EXPECT(b, "aba", 3);
    EXPECT(b, "abab", 2, 2);
    EXPECT(b, "bb", 1, 1); /* an added token is not the model's */
    td_bpe_free(&b);
    td_vocab_free(&v);
}

/* ---- long words ---- */

/* A million characters in one word, where the border map cuts nothing: done in time, and right, since the merges pair
 * neighbours up from the left. */
static void a_million_characters_in_one_word(void **unused) {
    (void)unused;
    enum { N = 1 << 20 };
    td_vocab v;
    td_bpe *b;
    td_bpe_work work = {0};
    td_token_list got;
    char *word = td_malloc(N + 3), pair[300];
    memset(word, 'x', N + 3);
    memset(pair, 'x', sizeof pair);
    td_vocab_init(&v, 100);
    for (size_t i = 0; i < 8; i++) /* x, xx, xxxx, ... 128 of them */
        assert_int_equal(td_vocab_add(&v, pair, (size_t)1 << i, i, TD_PIECE_MODEL, NULL), TD_OK);
    assert_int_equal(td_bpe_new(&b, &v, 0, NULL), TD_OK);
    for (size_t i = 0; i < 7; i++)
        assert_int_equal(td_bpe_add_merge(b, pair, (size_t)1 << i, (size_t)1 << i, NULL), TD_OK);
    td_bpe_finish(b, (td_bpe_options){.unk = -1});
    td_token_list_init(&got, N);
    assert_int_equal(td_bpe_encode(b, &work, word, N + 3, true, &got, NULL), TD_OK);
    assert_int_equal(got.n, N / 128 + 2);
    for (size_t i = 0; i < N / 128; i++)
        assert_int_equal(got.ids[i], 7);
    assert_int_equal(got.ids[N / 128], 1);
    assert_int_equal(got.ids[N / 128 + 1], 0);
    td_token_list_free(&got);
    td_bpe_work_free(&work);
    td_bpe_free(&b);
    td_vocab_free(&v);
    td_free(word);
}

static void the_ceiling_of_the_list_holds(void **unused) {
    (void)unused;
    td_vocab v;
    td_bpe *b;
    td_bpe_work work = {0};
    td_token_list got;
    td_error err;
    td_vocab_init(&v, 100);
    assert_int_equal(td_vocab_add(&v, "a", 1, 0, TD_PIECE_MODEL, NULL), TD_OK);
    assert_int_equal(td_bpe_new(&b, &v, 0, NULL), TD_OK);
    td_bpe_finish(b, (td_bpe_options){.unk = -1});
    td_token_list_init(&got, 3);
    assert_int_equal(td_bpe_encode(b, &work, "aaaa", 4, true, &got, &err), TD_E_LIMIT);
    td_token_list_free(&got);
    td_bpe_work_free(&work);
    td_bpe_free(&b);
    td_vocab_free(&v);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_words_are_merged_by_definition), cmocka_unit_test(unknown_characters),
        cmocka_unit_test(a_whole_word_that_is_a_token),          cmocka_unit_test(a_million_characters_in_one_word),
        cmocka_unit_test(the_ceiling_of_the_list_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
