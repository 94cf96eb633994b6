/* test_calibrate.c - rounds measured when a decoder is new: every depth gets its price, nothing else stays, and what
 * cannot be measured is no error. */
#include "decode/support_decode.h"

#include "decode/drafter_lookup.h"
#include "decode/round_impl.h"

#define DEPTH 8u /* of a stage */

typedef struct watcher {
    uint32_t calls, most, total;
} watcher;

static bool count_calls(void *user, const char *what, uint64_t done, uint64_t total) {
    watcher *w = user;
    assert_string_equal(what, "measure");
    assert_true(done < total);
    w->total = (uint32_t)total;
    return ++w->calls <= w->most;
}

static td_status calibrate(stage *s, uint32_t n_ctx, double seconds, watcher *w) {
    td_calibration c = {.n_ctx = n_ctx, .seconds = seconds, .progress = w ? count_calls : NULL, .user = w};
    return td_decoder_calibrate(s->decoder, &c, NULL);
}

/* Only prices are left. */
static void nothing_stays(const stage *s) {
    static const td_acceptance none;
    const td_depth_costs *c = &s->decoder->costs;
    assert_memory_equal(&c->all, &none, sizeof none);
    assert_int_equal(c->since_probe, 0);
    assert_int_equal(c->since_explore, 0);
    assert_ptr_equal(s->decoder->drafter, s->drafter);
    assert_ptr_equal(s->decoder->opt.cache, s->cache);
    assert_int_equal(td_kv_pool_used(s->pool), 0);
    if (s->cache) {
        td_prompt_cache_stats k = td_prompt_cache_describe(s->cache);
        assert_int_equal(k.lookups + k.nodes + k.pages + k.snapshots + k.refused, 0);
    }
}

static uint32_t depths_priced(const stage *s) {
    td_cost_bucket *b = td_costs_bucket(&s->decoder->costs.costs, 20);
    uint32_t n = 0;
    while (n <= DEPTH && td_costs_settled(b, 1 + n))
        n++;
    return n;
}

static void play_one(stage *s, bool adaptive) {
    td_token prompt[20];
    truth t;
    td_seq_params p = seq_params(60, DEPTH);
    random_prompt(prompt, 20, 1);
    truth_make(&t, s, prompt, 20, &p, 128);
    p.adaptive = adaptive;
    td_seq *seq = stage_seq(s, 128);
    seq_start(seq, prompt, 20, &p);
    stage_play(s, seq, &t);
    td_seq_close(&seq);
    truth_free(&t);
}

static void every_depth_has_its_price(void **state) {
    (void)state;
    td_drafter *lookup;
    td_drafter_lookup_options o = td_drafter_lookup_options_default();
    ASSERT_OK(td_drafter_lookup_open(&lookup, &o, err));
    for (int kind = 0; kind < 2; kind++) { /* lookup finds nothing to draft in a text of no meaning, and yet */
        stage s;
        watcher w = {.most = UINT32_MAX};
        stage_open(&s,
                   &(stage_options){.assistant = kind == 0, .drafter = kind ? lookup : NULL, .cache_bytes = 1 << 20});
        assert_int_equal(calibrate(&s, 512, 60, &w), TD_OK);
        assert_int_equal(depths_priced(&s), DEPTH + 1);
        assert_int_equal(w.calls, w.total);
        nothing_stays(&s);
        double first[2], later[2];
        td_costs_steps(td_costs_bucket(&s.decoder->costs.costs, 20), 1, 1e6, first, later);
        assert_true(first[1] > 0 && first[1] < 1e3 && later[1] > 0 &&
                    later[1] < 1e3); /* no guesses from a plain pass */
        play_one(&s, true);
        td_prompt_cache_clear(s.cache);
        stage_close(&s);
    }
    td_drafter_close(&lookup);
}

/* A context that holds a few rounds is gone through again and again. */
static void a_short_context_is_enough(void **state) {
    (void)state;
    for (uint32_t n_ctx = 1; n_ctx < 32; n_ctx++) {
        stage s;
        stage_open(&s, &(stage_options){.assistant = true});
        assert_int_equal(calibrate(&s, n_ctx, 60, NULL), TD_OK);
        assert_int_equal(depths_priced(&s), n_ctx < 8 + 3 + DEPTH ? 0 : DEPTH + 1);
        nothing_stays(&s);
        stage_close(&s);
    }
}

static void what_cannot_be_measured_is_left_out(void **state) {
    (void)state;
    stage s;
    stage_open(&s, &(stage_options){.max_seqs = 1});
    assert_int_equal(calibrate(&s, 512, 60, NULL), TD_OK); /* nothing drafts */
    assert_int_equal(depths_priced(&s), 0);
    stage_close(&s);

    stage_open(&s, &(stage_options){.assistant = true});
    assert_int_equal(calibrate(&s, 512, 0, NULL), TD_OK); /* no time */
    assert_int_equal(depths_priced(&s), 0);
    s.fail_next_pass = true;
    assert_int_equal(calibrate(&s, 512, 60, NULL), TD_OK);
    assert_int_equal(depths_priced(&s), 0);
    nothing_stays(&s);
    play_one(&s, true);
    stage_close(&s);

    stage_open(&s, &(stage_options){.assistant = true, .pool_bytes = 1}); /* no room */
    assert_int_equal(calibrate(&s, 512, 60, NULL), TD_OK);
    nothing_stays(&s);
    stage_close(&s);
}

static void it_can_be_stopped(void **state) {
    (void)state;
    for (uint32_t most = 0; most < 12; most += 5) {
        stage s;
        watcher w = {.most = most};
        stage_open(&s, &(stage_options){.assistant = true, .cache_bytes = 1 << 20});
        assert_int_equal(calibrate(&s, 512, 60, &w), TD_E_CANCELLED);
        assert_int_equal(w.calls, most + 1);
        nothing_stays(&s);
        play_one(&s, false);
        td_prompt_cache_clear(s.cache);
        stage_close(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_depth_has_its_price),
        cmocka_unit_test(a_short_context_is_enough),
        cmocka_unit_test(what_cannot_be_measured_is_left_out),
        cmocka_unit_test(it_can_be_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
