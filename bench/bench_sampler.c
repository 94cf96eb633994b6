/* bench_sampler.c - what it takes to draw a token from a row of logits.
 *
 *     bench_sampler [WORDS [THREADS...]]
 *
 * WORDS logits (default 262144) of two kinds: "text", as most rows of a language model are, a few dozen words far above
 * a bell of all others; and "flat", a wide bell alone, where a nucleus has thousands of words. Microseconds a draw, the
 * least of many for each of four rows, by the plain way (no backend: an item a word) and by the backend's operations
 * with 1 and 2 threads or those given; "and p" with the probability of the token, which drafters ask for. Both ways
 * must draw the same tokens before either is timed. Not a test: it fails nothing but wrong results. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/rng.h"
#include "decode/sampler.h"

enum { REPEATS = 100, ROWS = 4, MAX_COUNTS = 8 };

static void die(const char *what) {
    fprintf(stderr, "bench_sampler: %s\n", what);
    exit(1);
}

static double normal(uint64_t row, uint32_t i) {
    return sqrt(-2 * log(td_rng_uniform(1, row, 2 * i))) * cos(6.283185307 * td_rng_uniform(1, row, 2 * i + 1));
}

static void fill(float *x, uint32_t n, bool flat, uint64_t row) {
    for (uint32_t i = 0; i < n; i++) {
        const bool near = !flat && td_rng_uniform(2, row, i) * n < 40;
        x[i] = (float)(normal(row, i) * (flat ? 4 : 2.2) + (near ? 8 + 10 * td_rng_uniform(3, row, i) : 0));
    }
}

static td_token draw(td_sampler *s, const td_sampling *p, const float *x, uint32_t n, uint64_t position) {
    td_error err;
    td_token t;
    if (td_sample(s, p, NULL, x, NULL, NULL, n, position, &t, &err) != TD_OK)
        die(err.message);
    return t;
}

static double lesser(double a, double b) {
    return a < b ? a : b;
}

/* Microseconds of a draw, and of one whose probability is asked for: the least of each row, on average. How long a draw
 * takes depends on its noise, so a row keeps its position. */
static void measure(td_sampler *s, const td_sampling *p, const float *x, uint32_t n, double us[2]) {
    volatile float sink;
    us[0] = us[1] = 0;
    for (uint64_t r = 0; r < ROWS; r++) {
        double least[2] = {1e9, 1e9};
        for (int i = 0; i < REPEATS; i++) {
            const int64_t start = td_clock_ns();
            draw(s, p, x + r * n, n, r);
            least[0] = lesser(least[0], td_clock_since(start) * 1e6);
            sink = td_sampler_confidence(s);
            least[1] = lesser(least[1], td_clock_since(start) * 1e6);
        }
        us[0] += least[0] / ROWS;
        us[1] += least[1] / ROWS;
    }
    (void)sink;
}

static td_sampler *open_sampler(td_backend *be, uint32_t n) {
    td_error err;
    td_sampler *s;
    if (td_sampler_open(&s, be, n, &err) != TD_OK)
        die(err.message);
    return s;
}

static td_backend *open_backend(int n_threads) {
    td_error err;
    td_backend *be;
    if (td_backend_cpu_open(&be, &(td_cpu_options){.n_threads = n_threads}, &err) != TD_OK)
        die(err.message);
    return be;
}

static const struct {
    const char *name;
    td_sampling p;
} cases[] = {
    {"greedy", {.temperature = 0, .top_p = 1, .repetition_penalty = 1}},
    {"T 0.8, top_k 64, top_p 0.95", {.temperature = 0.8f, .top_k = 64, .top_p = 0.95f, .repetition_penalty = 1}},
    {"T 1, top_p 0.95", {.temperature = 1, .top_p = 0.95f, .repetition_penalty = 1}},
    {"T 1, min_p 0.05", {.temperature = 1, .top_p = 1, .min_p = 0.05f, .repetition_penalty = 1}},
    {"T 1", {.temperature = 1, .top_p = 1, .repetition_penalty = 1}},
};

static void verify(td_sampler *a, td_sampler *b, const td_sampling *p, const float *x, uint32_t n) {
    for (uint64_t i = 0; i < 2 * ROWS; i++)
        if (draw(a, p, x + i % ROWS * n, n, i) != draw(b, p, x + i % ROWS * n, n, i))
            die("the two ways draw different tokens");
}

int main(int argc, char **argv) {
    const uint32_t n = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 262144;
    int counts[MAX_COUNTS] = {1, 2}, n_counts = argc > 2 ? 0 : 2;
    for (int i = 2; i < argc && n_counts < MAX_COUNTS; i++)
        counts[n_counts++] = atoi(argv[i]);
    if (n < 1 || n > 1u << 26)
        die("expected 1 to 2^26 words");
    float *x = malloc((size_t)ROWS * n * sizeof *x);
    td_sampler *plain = open_sampler(NULL, n), *s[MAX_COUNTS];
    td_backend *be[MAX_COUNTS];
    if (!x)
        die("out of memory");
    printf("%u words, us a draw\n%-34s%9s%9s", n, "", "plain", "and p");
    for (int c = 0; c < n_counts; c++) {
        be[c] = open_backend(counts[c]);
        s[c] = open_sampler(be[c], n);
        printf("%6d thr%9s", counts[c], "and p");
    }
    printf("\n");
    for (int flat = 0; flat < 2; flat++) {
        for (uint64_t r = 0; r < ROWS; r++)
            fill(x + r * n, n, flat, r);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            double us[2];
            measure(plain, &cases[i].p, x, n, us);
            printf("%s, %-28s%9.0f%9.0f", flat ? "flat" : "text", cases[i].name, us[0], us[1]);
            for (int c = 0; c < n_counts; c++) {
                verify(plain, s[c], &cases[i].p, x, n);
                measure(s[c], &cases[i].p, x, n, us);
                printf("%10.0f%9.0f", us[0], us[1]);
            }
            printf("\n");
        }
    }
    for (int c = 0; c < n_counts; c++) {
        td_sampler_close(&s[c]);
        td_backend_close(&be[c]);
    }
    td_sampler_close(&plain);
    free(x);
    return 0;
}
