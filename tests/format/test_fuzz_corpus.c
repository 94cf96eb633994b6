/* test_fuzz_corpus.c - the seeds of the fuzzer and some thousand mutations of each, in every run of the tests.
 *
 * Mutations come from the counter-based generator, so a failure is the same everywhere; the message names seed file and
 * round. Each input lies in a block of exactly its size, so that a sanitizer sees a read past its end. */
#include "format/support_format.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/rng.h"
#include "format/shard_index.h"

#define CORPUS TD_SOURCE_DIR "/tests/fuzz/corpus/"

enum { ROUNDS = 2000 };

/* Parses; checks what must hold whatever came in. True: accepted. */
typedef bool target(const uint8_t *data, size_t size);

static bool safetensors_target(const uint8_t *data, size_t size) {
    td_safetensors *f;
    td_error err;
    td_status st = td_safetensors_parse(&f, data, size, "x", &err);
    if (st != TD_OK) {
        assert_int_equal(st, TD_E_FORMAT);
        assert_true(strncmp(err.message, "x: ", 3) == 0);
        return false;
    }
    for (size_t i = 0; i < td_safetensors_count(f); i++) {
        const td_tensor *t = td_safetensors_at(f, i);
        assert_true(t->size == 0 || (t->data >= data && t->size <= (size_t)(data + size - t->data)));
        assert_ptr_equal(td_safetensors_find(f, t->name), t);
    }
    td_safetensors_close(&f);
    return true;
}

static bool index_target(const uint8_t *data, size_t size) {
    td_shard_index x;
    td_error err;
    td_status st = td_shard_index_parse(&x, (const char *)data, size, "x", &err);
    if (st != TD_OK)
        assert_int_equal(st, TD_E_FORMAT);
    for (size_t i = 0; i < x.n_shards; i++)
        assert_null(strpbrk(x.shards[i], "/\\"));
    td_shard_index_free(&x);
    return st == TD_OK;
}

static bool gguf_target(const uint8_t *data, size_t size) {
    td_gguf *g;
    td_checkpoint *ck;
    td_error err;
    if (td_gguf_parse(&g, data, size, "x", &err) != TD_OK) {
        assert_true(strncmp(err.message, "x: ", 3) == 0);
        return false;
    }
    for (size_t i = 0; i < td_gguf_n_tensors(g); i++) {
        const td_tensor *t = td_gguf_tensor_at(g, i);
        assert_true(t->data >= data && t->size <= (size_t)(data + size - t->data));
        assert_ptr_equal(td_gguf_tensor(g, t->name), t);
    }
    td_gguf_close(&g);
    td_status st = td_checkpoint_parse_gguf(&ck, data, size, "x", &err);
    td_checkpoint_close(&ck);
    return st == TD_OK;
}

static uint32_t below(uint64_t seed, uint64_t round, uint32_t *draw, uint32_t n) {
    return (uint32_t)(td_rng_uniform(seed, round, (*draw)++) * n);
}

/* One to four small changes: a bit, a byte out of JSON's own alphabet, a byte less, a byte doubled, a cut, a length. */
static size_t mutate(uint8_t *out, const uint8_t *in, size_t size, uint64_t seed, uint64_t round) {
    static const char alphabet[] = "{}[]\",:0123456789-.eE\\u tfn\x00\x80\xFF";
    uint32_t draw = 0;
    memcpy(out, in, size);
    uint32_t changes = 1 + below(seed, round, &draw, 4);
    for (uint32_t c = 0; c < changes && size > 0; c++) {
        size_t at = below(seed, round, &draw, (uint32_t)size);
        switch (below(seed, round, &draw, 6)) {
        case 0:
            out[at] ^= (uint8_t)(1u << below(seed, round, &draw, 8));
            break;
        case 1:
            out[at] = (uint8_t)alphabet[below(seed, round, &draw, sizeof alphabet - 1)];
            break;
        case 2:
            memmove(out + at, out + at + 1, size - at - 1);
            size--;
            break;
        case 3:
            memmove(out + at + 1, out + at, size - at);
            size++;
            break;
        case 4:
            size = at;
            break;
        default:
            out[at % 8 % size] = (uint8_t)below(seed, round, &draw, 256);
        }
    }
    return size;
}

static void run_exact(target *t, const uint8_t *data, size_t size, unsigned *accepted) {
    long live = td_alloc_live();
    uint8_t *exact = malloc(size ? size : 1);
    assert_non_null(exact);
    memcpy(exact, data, size);
    *accepted += t(exact, size);
    free(exact);
    assert_int_equal(td_alloc_live(), live);
}

/* Every file of a corpus, as it is and mutated. */
static void replay(const char *folder, target *t, unsigned min_seeds, unsigned min_accepted) {
    DIR *d = opendir(folder);
    assert_non_null(d);
    unsigned seeds = 0, accepted = 0, ignored = 0;
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        char path[2048], *text;
        size_t size;
        td_error err;
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        assert_int_equal(td_file_read(path, 1 << 20, &text, &size, &err), TD_OK);
        run_exact(t, (const uint8_t *)text, size, &accepted);
        const uint64_t seed = size;
        uint8_t *out = malloc(size + 4);
        for (uint64_t round = 0; round < ROUNDS; round++)
            run_exact(t, out, mutate(out, (const uint8_t *)text, size, seed, round), &ignored);
        free(out);
        td_free(text);
        seeds++;
    }
    closedir(d);
    assert_true(seeds >= min_seeds);
    assert_true(accepted >= min_accepted);
    assert_true(ignored > 0); /* some mutations are harmless: the mutator does not only break */
}

static void safetensors_seeds_and_mutations(void **state) {
    (void)state;
    replay(CORPUS "safetensors", safetensors_target, 6, 3);
}

static void index_seeds_and_mutations(void **state) {
    (void)state;
    replay(CORPUS "checkpoint_index", index_target, 2, 1);
}

static void gguf_seeds_and_mutations(void **state) {
    (void)state;
    replay(CORPUS "gguf", gguf_target, 6, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gguf_seeds_and_mutations),
        cmocka_unit_test(safetensors_seeds_and_mutations),
        cmocka_unit_test(index_seeds_and_mutations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
