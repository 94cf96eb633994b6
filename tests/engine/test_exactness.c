/* test_exactness.c - the promise of the whole engine, through its public interface: over real prompts, token ids and
 * text are those of plain decoding, at every draft depth, at temperature 0 and above, however the prompt is cut into
 * passes, with a trained assistant and with a random one, and for weights of 4, 8 and 16 bits.
 *
 * The models are the embedded pair; its 16-bit form is decoded from it, and its 8-bit form quantised from that, both
 * into a temporary directory. Every prompt meets every prefill size and temperature; depths go round, so that each
 * combination of depth (0 to 8, and as many as pay), temperature and prefill size occurs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/file.h"
#include "engine/quantize.h"
#include "format/checkpoint.h"
#include "support/sanitized.h"
#include "tandem.h"

#define TRUNK TD_SOURCE_DIR "/models/gemma4-demo-4bit"
#define ASSISTANT TD_SOURCE_DIR "/models/gemma4-demo-assistant-4bit"
#define MAX_PROMPTS 80
#define N_NEW 20
#define DEPTH 8          /* the deepest */
#define AUTO (DEPTH + 1) /* as deep as pays, by the clock */

#define STEP (TD_SANITIZED ? 7 : 1) /* prompts 0, 7, 14...: a prompt's place modulo 3, 4 and 5 chooses its sampling */

#define ASSERT_OK(call)                                                                                                \
    do {                                                                                                               \
        td_error err_ = {0};                                                                                           \
        td_error *err = &err_;                                                                                         \
        if ((call) != TD_OK)                                                                                           \
            fail_msg("%s: %s", #call, err_.message);                                                                   \
    } while (0)

typedef struct prompt {
    td_token *ids;
    size_t n;
} prompt;

/* What one request gave. */
typedef struct answer {
    td_token ids[N_NEW];
    size_t n;
    char *text;
    td_finish finish;
} answer;

static prompt prompts[MAX_PROMPTS];
static size_t n_prompts;
static answer plain[MAX_PROMPTS][2]; /* by temperature: 0, 0.8 */

/* ---- prompts ---- */

static void add_prompt(td_engine *e, const char *text, size_t n, bool chat) {
    prompt *p = &prompts[n_prompts++];
    assert_true(n_prompts <= MAX_PROMPTS);
    ASSERT_OK(td_engine_tokenize(e, text, n, !chat, chat, &p->ids, &p->n, err));
    assert_true(p->n > 0);
}

static void add_conversation(td_engine *e, json_t *messages) {
    char *json = json_dumps(messages, 0), *text;
    ASSERT_OK(td_engine_chat_prompt(e, json, NULL, NULL, true, &text, err));
    add_prompt(e, text, strlen(text), true);
    td_text_free(text);
    free(json);
}

typedef struct reader {
    td_engine *e;
    json_t *messages; /* of the conversation under way */
    char kind[16];    /* of the block under way; "" before the first */
    td_buf block;
} reader;

static void end_block(reader *r, const char *next) {
    const char *text = td_buf_str(&r->block);
    size_t n = r->block.size;
    while (n && text[n - 1] == '\n')
        n--;
    if (strcmp(r->kind, "text") == 0)
        add_prompt(r->e, text, n, false);
    else if (r->kind[0])
        json_array_append_new(
            r->messages,
            json_pack("{s:s,s:s%}", "role", strcmp(r->kind, "model") == 0 ? "assistant" : "user", "content", text, n));
    if (strcmp(r->kind, "user") == 0 && strcmp(next, "model") != 0) {
        add_conversation(r->e, r->messages);
        json_array_clear(r->messages);
    }
    td_buf_clear(&r->block);
    snprintf(r->kind, sizeof r->kind, "%s", next);
}

static void read_prompts(td_engine *e) {
    char *file;
    size_t size;
    ASSERT_OK(td_file_read(TD_FIXTURES "/prompts/prompts.txt", 1 << 20, &file, &size, err));
    reader r = {.e = e, .messages = json_array()};
    td_buf_init(&r.block, 1 << 20);
    for (char *line = file, *end; *line; line = end) {
        end = strchr(line, '\n') + 1;
        end[-1] = '\0';
        if (line[0] == '%')
            end_block(&r, line + 1);
        else if (r.kind[0])
            assert_int_equal(td_buf_printf(&r.block, "%s\n", line), TD_OK);
    }
    end_block(&r, "");
    td_buf_free(&r.block);
    json_decref(r.messages);
    td_free(file);
    assert_true(n_prompts >= 50);
}

/* ---- engines and requests ---- */

/* `depth` drafts every round, a request may ask for fewer; AUTO: as many as pay. */
static td_engine *open_engine(const char *model, int depth, uint32_t prefill, bool random_weights) {
    td_engine_options o = td_engine_options_default();
    td_engine *e;
    o.model = model;
    o.assistant = ASSISTANT;
    o.num_mtp_tokens = depth == AUTO ? TD_DEPTH_AUTO : (uint32_t)depth;
    o.mtp_fixed = depth != AUTO;
    o.prefill_size = prefill;
    o.n_ctx = 1024;
    o.n_threads = 2;
    o.mtp_random_weights = random_weights;
    ASSERT_OK(td_engine_open(&e, &o, err));
    return e;
}

typedef struct stream {
    td_buf text;
    td_token ids[N_NEW + 1];
    size_t n, drafted;
} stream;

static bool collect(void *user, const td_piece *p) {
    stream *s = user;
    assert_int_equal(td_buf_append(&s->text, p->text, p->n_text), TD_OK);
    for (size_t i = 0; i < p->n_tokens; i++) {
        assert_true(s->n < N_NEW);
        assert_true(i == 0 || p->text_end[i] >= p->text_end[i - 1]);
        s->ids[s->n++] = p->tokens[i];
        s->drafted += p->drafted[i];
    }
    assert_true(p->n_tokens == 0 || p->text_end[p->n_tokens - 1] == p->n_text);
    assert_null(p->probs);
    return true;
}

static td_sampling sampling(int hot, size_t i) {
    td_sampling s = td_sampling_default();
    s.temperature = hot ? 0.8f : 0;
    s.seed = i;
    if (i % 3 == 1)
        s.repetition_penalty = 1.1f;
    if (i % 5 == 2) {
        s.top_k = 64;
        s.top_p = 0.95f;
        s.min_p = 0.01f;
    }
    return s;
}

/* What a stream delivered is the answer, and the counts are those of the tokens. */
static void check_result(const td_result *r, const stream *s, int depth) {
    uint64_t accepted = 0, drafted = 0;
    for (int i = 0; i < TD_MAX_DRAFT; i++) {
        accepted += r->accepted_at[i];
        drafted += r->drafted_at[i];
        assert_true(r->accepted_at[i] <= r->drafted_at[i]);
        assert_true(i < depth || r->drafted_at[i] == 0);
    }
    assert_int_equal(r->n_tokens, s->n);
    assert_memory_equal(r->tokens, s->ids, s->n * sizeof *s->ids);
    assert_int_equal(r->n_text, s->text.size);
    assert_string_equal(r->text, s->text.data ? s->text.data : "");
    assert_int_equal(accepted, s->drafted);
    assert_int_equal(drafted, r->drafted);
    assert_in_range(r->rounds + accepted - r->n_tokens, 0, 1); /* the last token may be a draft */
    assert_int_equal(r->mtp_active, depth > 0);
}

static const char *const stops[] = {"the ", ".\n", ", and"};

static void ask(td_session *session, size_t i, int hot, int depth, td_result *result) {
    td_request q = td_request_default();
    stream s = {.n = 0};
    td_buf_init(&s.text, 1 << 20);
    q.prompt = prompts[i].ids;
    q.n_prompt = prompts[i].n;
    q.max_tokens = N_NEW;
    q.sampling = sampling(hot, i);
    q.ignore_eos = i % 4 == 3;
    if (i % 3 == 2) { /* often inside a run of accepted drafts */
        q.stop = stops;
        q.n_stop = 3;
    }
    q.num_mtp_tokens = depth == AUTO ? -1 : depth;
    q.on_text = collect;
    q.user = &s;
    ASSERT_OK(td_session_generate(session, &q, result, err));
    check_result(result, &s, depth);
    if (q.ignore_eos && !q.n_stop)
        assert_int_equal(result->n_tokens, N_NEW);
    td_buf_free(&s.text);
}

static void answer_free(answer *a) {
    td_free(a->text);
    *a = (answer){0};
}

/* Plain, alone, from nothing. */
static void ask_plainly(td_engine *e, size_t i, int hot, answer *a) {
    td_session *session;
    td_result r;
    ASSERT_OK(td_session_open(&session, e, err));
    ask(session, i, hot, 0, &r);
    assert_int_equal(r.cached_tokens, 0);
    answer_free(a);
    *a = (answer){.n = r.n_tokens, .text = td_strdup(r.text), .finish = r.finish};
    memcpy(a->ids, r.tokens, r.n_tokens * sizeof *a->ids);
    td_result_free(&r);
    td_session_close(&session);
}

/* Drafting at `depth`, in a session that has answered other prompts before. Returns the drafts accepted. */
static uint64_t ask_and_compare(td_session *session, size_t i, int hot, int depth, const char *what) {
    const answer *a = &plain[i][hot];
    td_result r;
    ask(session, i, hot, depth, &r);
    bool same = r.n_tokens == a->n && memcmp(r.tokens, a->ids, a->n * sizeof *a->ids) == 0;
    if (!same || strcmp(r.text, a->text) != 0 || r.finish != a->finish)
        fail_msg("%s, prompt %zu, temperature %s, depth %d: \"%s\" (%zu tokens, %s); plainly \"%s\" (%zu, %s)", what, i,
                 hot ? "0.8" : "0", depth, r.text, r.n_tokens, td_finish_name(r.finish), a->text, a->n,
                 td_finish_name(a->finish));
    uint64_t accepted = 0;
    for (int j = 0; j < TD_MAX_DRAFT; j++)
        accepted += r.accepted_at[j];
    td_result_free(&r);
    return accepted;
}

/* A model with drafts of any depth, and with as many as pay. */
typedef struct both {
    td_engine *fixed, *paying;
} both;

static both open_both(const char *model, uint32_t prefill, bool random_weights) {
    return (both){open_engine(model, DEPTH, prefill, random_weights),
                  open_engine(model, AUTO, prefill, random_weights)};
}

static void close_both(both *e) {
    td_engine_close(&e->fixed);
    td_engine_close(&e->paying);
}

/* Every `step`-th prompt at both temperatures; depths by turns, 0 among them. */
static uint64_t sweep(const both *e, size_t step, uint32_t turn, const char *what) {
    td_session *fixed, *paying;
    uint64_t accepted = 0;
    ASSERT_OK(td_session_open(&fixed, e->fixed, err));
    ASSERT_OK(td_session_open(&paying, e->paying, err));
    for (size_t i = 0; i < n_prompts; i += step)
        for (int hot = 0; hot < 2; hot++) {
            int depth = (int)((i / step + turn + 4 * (uint32_t)hot) % (AUTO + 1));
            accepted += ask_and_compare(depth == AUTO ? paying : fixed, i, hot, depth, what);
        }
    td_session_close(&fixed);
    td_session_close(&paying);
    return accepted;
}

static void plain_answers(td_engine *e, size_t step) {
    for (size_t i = 0; i < n_prompts; i += step)
        for (int hot = 0; hot < 2; hot++)
            ask_plainly(e, i, hot, &plain[i][hot]);
}

/* ---- the pair in other widths ---- */

static void copy_file(const char *from, const char *to, const char *name) {
    char path[256];
    char *data;
    size_t size;
    snprintf(path, sizeof path, "%s/%s", from, name);
    ASSERT_OK(td_file_read(path, 64 << 20, &data, &size, err));
    snprintf(path, sizeof path, "%s/%s", to, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    fclose(f);
    td_free(data);
}

static const char *const texts[] = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                                    "generation_config.json"};

/* The bf16 form of a quantised module's weight. */
static td_tensor decoded(const td_safetensors *file, const td_tensor *weight, const json_t *quantization) {
    char module[300], name[320];
    snprintf(module, sizeof module, "%.*s", (int)(strlen(weight->name) - strlen(".weight")), weight->name);
    snprintf(name, sizeof name, "%s.scales", module);
    const td_tensor *scales = td_safetensors_find(file, name);
    snprintf(name, sizeof name, "%s.biases", module);
    const td_tensor *biases = td_safetensors_find(file, name);
    const json_t *own = json_object_get(quantization, module);
    own = own ? own : quantization;
    uint32_t bits = (uint32_t)json_integer_value(json_object_get(own, "bits"));
    uint32_t group = (uint32_t)json_integer_value(json_object_get(own, "group_size"));
    uint32_t n_out = (uint32_t)weight->dim[0], n_in = (uint32_t)scales->dim[1] * group;
    td_matrix m = {.name = module, .data = weight->data, .scales = scales->data, .biases = biases->data};
    ASSERT_OK(td_matrix_layout(&m, TD_FORMAT_AFFINE, bits, group, scales->dtype, 1, n_out, n_in, err));
    uint16_t *out = td_malloc((size_t)n_out * n_in * sizeof *out);
    float *row = td_malloc(n_in * sizeof *row);
    for (uint32_t r = 0; r < n_out; r++) {
        td_matrix_row_f32(&m, r, row);
        for (uint32_t c = 0; c < n_in; c++)
            out[(size_t)r * n_in + c] = td_f32_to_bf16(row[c]);
    }
    td_free(row);
    return (td_tensor){.name = weight->name,
                       .dtype = TD_DTYPE_BF16,
                       .n_dims = 2,
                       .dim = {n_out, n_in},
                       .data = (const uint8_t *)out,
                       .size = (size_t)n_out * n_in * 2};
}

static bool ends(const char *s, const char *suffix) {
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && strcmp(s + n - m, suffix) == 0;
}

/* The embedded trunk in bf16, as it might have been published. */
static void write_bf16(const char *dir) {
    td_checkpoint *ck;
    td_safetensors *file;
    ASSERT_OK(td_checkpoint_open(&ck, TRUNK, NULL, err));
    ASSERT_OK(td_safetensors_open(&file, TRUNK "/model.safetensors", err));
    json_t *config = json_deep_copy(td_checkpoint_config(ck));
    size_t n = 0, n_made = 0, count = td_safetensors_count(file);
    td_tensor *out = td_calloc(count, sizeof *out);
    void **made = td_calloc(count, sizeof *made);
    for (size_t i = 0; i < count; i++) {
        const td_tensor *t = td_safetensors_at(file, i);
        if (ends(t->name, ".scales") || ends(t->name, ".biases"))
            continue;
        out[n] = *t;
        if (t->dtype == TD_DTYPE_U32) {
            out[n] = decoded(file, t, json_object_get(config, "quantization"));
            made[n_made++] = (void *)(uintptr_t)out[n].data;
        }
        n++;
    }
    char path[256];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    ASSERT_OK(td_safetensors_write(path, out, n, "pt", err));
    json_object_del(config, "quantization");
    json_object_del(config, "quantization_config");
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_int_equal(json_dump_file(config, path, 0), 0);
    for (size_t i = 0; i < 4; i++)
        copy_file(TRUNK, dir, texts[i]);
    for (size_t i = 0; i < n_made; i++)
        td_free(made[i]);
    td_free(made);
    td_free(out);
    json_decref(config);
    td_safetensors_close(&file);
    td_checkpoint_close(&ck);
}

static void remove_checkpoint(const char *dir) {
    static const char *const files[] = {"model.safetensors", "config.json", "model.safetensors.index.json"};
    char path[256];
    for (size_t i = 0; dir[0] && i < 3 + 4; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, i < 3 ? files[i] : texts[i - 3]);
        unlink(path);
    }
    if (dir[0])
        rmdir(dir);
}

/* ---- the cases ---- */

static void the_embedded_pair_is_exact(void **state) {
    (void)state;
    static const uint32_t prefills[] = {512, 1, 7, 64};
    uint64_t accepted = 0;
    for (uint32_t c = 0; c < 4; c++) {
        both e = open_both(TRUNK, prefills[c], false);
        if (c == 0) {
            read_prompts(e.fixed);
            plain_answers(e.fixed, STEP);
        }
        char what[32];
        snprintf(what, sizeof what, "prefill %u", prefills[c]);
        accepted += sweep(&e, STEP, 2 * c + 1, what);
        accepted += sweep(&e, STEP, 2 * c + 6, what);
        close_both(&e);
    }
    print_message("%zu prompts, %llu drafts accepted\n", n_prompts, (unsigned long long)accepted);
    assert_true(accepted > n_prompts / STEP * 10); /* it did draft */
}

/* ---- sessions that go on ---- */

/* What a prompt gives in a session that holds keys already, drafted for, and cold and plain. Returns tokens reused. */
static uint32_t warm_equals_cold(td_engine *e, td_session *warm, const td_token *ids, size_t n, td_result *result) {
    td_session *cold;
    td_request q = td_request_default();
    td_result want;
    q.prompt = ids;
    q.n_prompt = n;
    q.max_tokens = N_NEW;
    ASSERT_OK(td_session_generate(warm, &q, result, err));
    q.no_mtp = true;
    ASSERT_OK(td_session_open(&cold, e, err));
    ASSERT_OK(td_session_generate(cold, &q, &want, err));
    assert_int_equal(want.cached_tokens, 0);
    assert_int_equal(want.drafted, 0);
    if (result->n_tokens != want.n_tokens || strcmp(result->text, want.text) != 0 ||
        memcmp(result->tokens, want.tokens, want.n_tokens * sizeof *want.tokens) != 0)
        fail_msg("%zu tokens, %u of them reused: \"%s\", cold \"%s\"", n, result->cached_tokens, result->text,
                 want.text);
    td_result_free(&want);
    td_session_close(&cold);
    return result->cached_tokens;
}

/* Conversations whose every turn is the last one's text and more; and the longest prompt, left at every few tokens for
 * another text, before and after the sliding window (256) has wrapped. */
static void a_session_that_goes_on_is_exact(void **state) {
    (void)state;
    static td_token text[1024];
    td_engine *e = open_engine(TRUNK, DEPTH, 64, false);
    td_session *warm;
    td_result r;
    ASSERT_OK(td_session_open(&warm, e, err));
    size_t n = 0, longest = 0, turns = 0;
    for (size_t i = 0; i < n_prompts; i += TD_SANITIZED ? STEP : 2) {
        longest = prompts[i].n > prompts[longest].n ? i : longest;
        if (n + prompts[i].n + N_NEW > 600)
            n = 0;
        size_t held = n;
        memcpy(text + n, prompts[i].ids, prompts[i].n * sizeof *text);
        n += prompts[i].n;
        uint32_t reused = warm_equals_cold(e, warm, text, n, &r);
        assert_true(!held || reused + 1 >= held);
        memcpy(text + n, r.tokens, r.n_tokens * sizeof *text);
        n += r.n_tokens;
        turns += held > 0;
        td_result_free(&r);
    }
    assert_true(turns > 5);
    for (size_t i = 0; i < n_prompts; i++)
        longest = prompts[i].n > prompts[longest].n ? i : longest;
    const prompt *p = &prompts[longest];
    assert_true(p->n > 256 + 64);
    for (size_t split = 20; split < p->n; split += 40 * STEP) {
        (void)warm_equals_cold(e, warm, p->ids, p->n, &r);
        td_result_free(&r);
        memcpy(text, p->ids, split * sizeof *text);
        memcpy(text + split, prompts[5].ids, prompts[5].n * sizeof *text);
        (void)warm_equals_cold(e, warm, text, split + prompts[5].n, &r);
        td_result_free(&r);
    }
    td_session_close(&warm);
    td_engine_close(&e);
}

static void an_assistant_of_random_weights_changes_nothing(void **state) {
    (void)state;
    both e = open_both(TRUNK, 64, true);
    uint64_t accepted = sweep(&e, 3 * STEP, 4, "random assistant");
    print_message("random assistant: %llu drafts accepted\n", (unsigned long long)accepted);
    close_both(&e);
}

static void exact_at_width(const char *dir, const char *format) {
    uint64_t accepted = 0;
    for (uint32_t c = 0; c < 2; c++) {
        both e = open_both(dir, c ? 7 : 512, false);
        assert_string_equal(td_engine_describe(e.fixed)->weight_format, format);
        if (c == 0)
            plain_answers(e.fixed, 4 * STEP);
        accepted += sweep(&e, 4 * STEP, 3 + 5 * c, format);
        close_both(&e);
    }
    print_message("%s: %llu drafts accepted\n", format, (unsigned long long)accepted);
    assert_true(accepted > 0);
}

static char bf16[64], eight[80]; /* directories; removed at the very end, whatever happens */

static void weights_of_16_and_8_bits_are_exact(void **state) {
    (void)state;
    snprintf(bf16, sizeof bf16, "%s/tandem-exactness-XXXXXX", td_dir_exists("/dev/shm") ? "/dev/shm" : "/tmp");
    assert_non_null(mkdtemp(bf16));
    snprintf(eight, sizeof eight, "%s-8bit", bf16);
    write_bf16(bf16);
    td_quantize_options o = td_quantize_options_default();
    td_quantize_report report;
    o.bits = 8;
    ASSERT_OK(td_quantize(bf16, eight, &o, &report, err));
    exact_at_width(bf16, "bf16");
    exact_at_width(eight, "affine 8-bit group 64");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_embedded_pair_is_exact), cmocka_unit_test(a_session_that_goes_on_is_exact),
        cmocka_unit_test(an_assistant_of_random_weights_changes_nothing),
        cmocka_unit_test(weights_of_16_and_8_bits_are_exact), /* last: it replaces the plain answers */
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    remove_checkpoint(bf16);
    remove_checkpoint(eight);
    for (size_t i = 0; i < n_prompts; i++) {
        td_tokens_free(prompts[i].ids);
        answer_free(&plain[i][0]);
        answer_free(&plain[i][1]);
    }
    return failed;
}
