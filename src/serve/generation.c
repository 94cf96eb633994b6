/* generation.c - see generation.h. */
#include "serve/generation.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "serve/sse.h"

#define MAX_TEXT ((size_t)1 << 28) /* bytes of an answer, as the engine has it */
#define MAX_RESPONSE ((size_t)1 << 31)
#define PROGRESS_SECONDS 0.5

typedef enum phase {
    STARTING, /* answers are being submitted; what they say waits */
    OPEN,     /* they say it themselves */
    OVER,     /* the reply is complete, or somebody else has seen to it */
} phase;

typedef struct answer {
    td_generation *g;
    td_api_choice a;
    const td_api_prompt *prompt;
    bool first; /* of its prompt */
} answer;

struct td_generation {
    td_server *server;
    td_exchange *x; /* held */
    td_api_request r;
    td_api_head head;
    char call_prefix[32];
    td_api_prompt *prompts; /* [n_prompts] */
    size_t n_prompts;
    answer *answers; /* [n_answers] */
    size_t n_answers;
    uint64_t owner;
    bool progress; /* the client asked to hear of the prompt */
    atomic_int refs;
    atomic_bool unwanted; /* nothing it could still say would be heard */
    /* under the lock */
    pthread_mutex_t lock;
    phase phase;
    td_buf waiting; /* of a stream: what is said before it is open */
    bool complete;  /* the stream has been said to its end */
    bool failed;
    td_fault fault;
    /* the scheduler's thread alone */
    size_t n_over;
    td_tally tally;
    int64_t progress_ns; /* when it was last told; 0: never */
};

/* ---- life ---- */

void td_generation_release(td_generation **pg) {
    td_generation *g = *pg;
    *pg = NULL;
    if (!g || atomic_fetch_sub(&g->refs, 1) != 1)
        return;
    for (size_t i = 0; i < g->n_answers; i++)
        td_choice_close(&g->answers[i].a.c);
    for (size_t i = 0; i < g->n_prompts; i++)
        td_api_prompt_free(&g->prompts[i]);
    td_free(g->answers);
    td_free(g->prompts);
    td_buf_free(&g->waiting);
    td_api_request_free(&g->r);
    pthread_mutex_destroy(&g->lock);
    td_exchange_release(g->x);
    td_free(g);
}

static td_status no_memory(td_fault *fault) {
    return td_fault_of(fault, &(td_error){.status = TD_E_NOMEM}, NULL);
}

static td_status open_prompts(td_generation *g, td_fault *fault) {
    size_t n = g->r.chat ? 1 : td_api_prompt_count(&g->r);
    const td_engine *e = g->server->model.engine;
    g->prompts = td_calloc(n, sizeof *g->prompts);
    if (!g->prompts)
        return no_memory(fault);
    for (; g->n_prompts < n; g->n_prompts++) {
        td_api_prompt *p = &g->prompts[g->n_prompts];
        td_status st = g->r.chat ? td_api_prompt_chat(p, e, &g->r, fault)
                                 : td_api_prompt_completion(p, e, &g->r, g->n_prompts, fault);
        if (st != TD_OK) {
            td_api_prompt_free(p);
            return st;
        }
    }
    return TD_OK;
}

static td_status open_answer(td_generation *g, answer *w, size_t i, td_fault *fault) {
    const td_engine *e = g->server->model.engine;
    const td_api_prompt *p = &g->prompts[i / g->r.n];
    td_error err = {0};
    char prefix[48];
    snprintf(prefix, sizeof prefix, "%s_%zu_", g->call_prefix, i); /* unique among all answers of all responses */
    td_choice_options o = {.format = p->format,
                           .inside_reasoning = p->opens_reasoning,
                           .tools = g->r.tools,
                           .id_prefix = prefix,
                           .one_call = g->r.one_call && g->r.tools != NULL,
                           .with_spans = g->r.include_drafts,
                           .with_probs = g->r.logprobs >= 0,
                           .legacy_probs = !g->r.chat,
                           .tokenizer = e->tokenizer,
                           .end = e->end,
                           .n_end = g->r.ignore_eos ? 0 : e->n_end,
                           .max_text = MAX_TEXT};
    *w = (answer){.g = g, .prompt = p, .first = i % g->r.n == 0};
    w->a.index = (uint32_t)i;
    w->a.echo = g->r.echo ? p->text : NULL;
    w->a.n_echo = p->n_text;
    return td_choice_open(&w->a.c, &o, &err) == TD_OK ? TD_OK : td_fault_of(fault, &err, "tools");
}

static td_status open_answers(td_generation *g, td_fault *fault) {
    size_t n = g->n_prompts * g->r.n;
    g->answers = td_calloc(n, sizeof *g->answers);
    if (!g->answers)
        return no_memory(fault);
    for (; g->n_answers < n; g->n_answers++) {
        td_status st = open_answer(g, &g->answers[g->n_answers], g->n_answers, fault);
        if (st != TD_OK) {
            td_choice_close(&g->answers[g->n_answers].a.c);
            return st;
        }
    }
    return TD_OK;
}

static bool asks_for_progress(td_exchange *x) {
    static const char *const yes[] = {"1", "true", "on", "yes"};
    const char *v = td_exchange_header(x, "X-Tandem-Prefill-Progress");
    for (size_t i = 0; v && i < sizeof yes / sizeof *yes; i++)
        if (strcasecmp(v, yes[i]) == 0)
            return true;
    return false;
}

static void describe(td_generation *g) {
    g->head = (td_api_head){.chat = g->r.chat,
                            .created = (int64_t)time(NULL),
                            .model = g->server->model.id,
                            .fingerprint = g->server->fingerprint,
                            .include_usage = g->r.include_usage,
                            .include_drafts = g->r.include_drafts};
    td_api_head_name(&g->head, g->call_prefix);
    g->tally = (td_tally){.seed = g->r.sampling.seed, .has_prediction = g->r.has_prediction};
    g->progress = g->r.stream && asks_for_progress(g->x);
    const char *key = g->server->opt.n_api_keys ? td_exchange_header(g->x, "Authorization") : NULL;
    if (g->server->opt.n_api_keys && !key)
        key = td_exchange_header(g->x, "x-api-key");
    g->owner = td_generation_owner(g->r.user, key, td_exchange_peer(g->x));
}

td_status td_generation_open(td_generation **out, td_server *s, td_exchange *x, td_api_request *request,
                             td_fault *fault) {
    *out = NULL;
    td_generation *g = td_calloc(1, sizeof *g);
    if (!g) {
        td_api_request_free(request);
        return no_memory(fault);
    }
    g->server = s;
    g->x = td_exchange_hold(x);
    g->r = *request;
    *request = (td_api_request){0};
    atomic_init(&g->refs, 1);
    pthread_mutex_init(&g->lock, NULL);
    td_buf_init(&g->waiting, MAX_RESPONSE);
    describe(g);
    td_status st = open_prompts(g, fault);
    if (st == TD_OK)
        st = open_answers(g, fault);
    if (st != TD_OK)
        td_generation_release(&g);
    *out = g;
    return st;
}

/* FNV-1a (Fowler, Noll, Vo), 64 bits, over a letter for what it is and the text up to `end`. */
static uint64_t hash(uint64_t h, char kind, const char *text, const char *end) {
    h = (h ^ (unsigned char)kind) * UINT64_C(0x100000001B3);
    for (; text != end && *text; text++)
        h = (h ^ (unsigned char)*text) * UINT64_C(0x100000001B3);
    return h;
}

uint64_t td_generation_owner(const char *user, const char *key, const char *peer) {
    uint64_t h = UINT64_C(0xCBF29CE484222325);
    if (key)
        h = hash(h, 'k', key, NULL);
    if (user && *user)
        return hash(h, 'u', user, NULL);
    return key ? h : hash(h, 'p', peer, strrchr(peer, ':')); /* the port is the connection's, not the person's */
}

/* ---- saying things: the scheduler's thread ---- */

/* Sends `out`, or keeps it until the stream is open. */
static void say(td_generation *g, td_buf *out) {
    td_status st = out->failed;
    pthread_mutex_lock(&g->lock);
    if (st == TD_OK && out->size > 0 && g->phase == STARTING)
        st = td_buf_append(&g->waiting, out->data, out->size);
    else if (st == TD_OK && out->size > 0 && g->phase == OPEN)
        st = td_exchange_write(g->x, out->data, out->size);
    pthread_mutex_unlock(&g->lock);
    if (st == TD_OK)
        return;
    atomic_store(&g->unwanted, true);
    td_exchange_abort(g->x); /* a stream with a hole in it must not pass for a whole one */
}

/* The stream has been said to its end. */
static void complete(td_generation *g) {
    pthread_mutex_lock(&g->lock);
    g->complete = true;
    bool end = g->phase == OPEN;
    if (end)
        g->phase = OVER;
    pthread_mutex_unlock(&g->lock);
    if (end)
        td_exchange_end(g->x);
}

/* The first failure is the response; the other answers are not wanted any more. */
static void fail(td_generation *g, const td_error *err) {
    td_fault fault;
    td_fault_of(&fault, err, NULL);
    if (atomic_exchange(&g->unwanted, true))
        return;
    pthread_mutex_lock(&g->lock);
    phase before = g->phase;
    g->failed = true;
    g->fault = fault;
    if (before == OPEN || !g->r.stream)
        g->phase = OVER;
    pthread_mutex_unlock(&g->lock);
    td_log_warn(g->server->opt.log, "%s: %s", td_exchange_id(g->x), fault.message);
    if (before == OVER)
        return;
    if (!g->r.stream) {
        td_server_reply_fault(g->x, &fault);
    } else if (before == OPEN) {
        td_buf event;
        td_buf_init(&event, 1 << 14);
        td_chunk_error(&event, &fault);
        if (td_buf_str(&event))
            (void)!td_exchange_write(g->x, event.data, event.size);
        td_buf_free(&event);
        td_exchange_end(g->x);
    } /* else the starting thread replies */
}

/* ---- callbacks ---- */

static bool is_wanted(void *user) {
    answer *w = user;
    if (atomic_load(&w->g->unwanted))
        return false;
    bool alive = td_exchange_alive(w->g->x);
    if (!alive)
        atomic_store(&w->g->unwanted, true);
    return alive;
}

static bool on_text(void *user, const td_piece *piece) {
    answer *w = user;
    td_generation *g = w->g;
    td_error err = {0};
    if (atomic_load(&g->unwanted))
        return false;
    if (td_choice_feed(&w->a.c, piece, &err) != TD_OK) {
        fail(g, &err);
        return false;
    }
    if (g->r.stream) {
        td_buf out;
        td_buf_init(&out, MAX_RESPONSE);
        td_chunk_delta(&out, &g->head, &w->a);
        say(g, &out);
        td_buf_free(&out);
    }
    return !w->a.c.done;
}

/* {"status", "n_past", "n_prompt_tokens", "fraction", "elapsed_seconds"}, of the part that is evaluated. */
static void tell_progress(td_generation *g, uint64_t done, uint64_t total) {
    td_buf json, out;
    td_buf_init(&json, 1024);
    td_buf_init(&out, 2048);
    td_json_out o = td_json_out_to(&json);
    td_out_begin(&o, '{');
    td_out_member_str(&o, "status", "processing");
    td_out_member_int(&o, "n_past", (int64_t)done);
    td_out_member_int(&o, "n_prompt_tokens", (int64_t)total);
    td_out_member_real(&o, "fraction", total ? (double)done / (double)total : 1, 4);
    td_out_member_real(&o, "elapsed_seconds", td_clock_since(td_exchange_started_ns(g->x)), 3);
    td_out_end(&o, '}');
    if (td_buf_str(&json) && td_sse_event(&out, "prefill_progress", json.data, json.size) == TD_OK)
        say(g, &out);
    td_buf_free(&json);
    td_buf_free(&out);
}

static bool on_prefill(void *user, const char *stage, uint64_t done, uint64_t total) {
    answer *w = user;
    td_generation *g = w->g;
    (void)stage;
    if (g->progress && w->a.index == 0 && (g->progress_ns == 0 || td_clock_since(g->progress_ns) >= PROGRESS_SECONDS)) {
        g->progress_ns = td_clock_ns();
        tell_progress(g, done, total);
    }
    return !atomic_load(&g->unwanted);
}

static void log_end(const td_generation *g) {
    const td_tally *t = &g->tally;
    td_log_info(g->server->opt.log,
                "%s %s: prompt %llu (%llu cached), %llu tokens, %.1f tokens/s, %llu of %llu drafts accepted",
                td_exchange_id(g->x), g->head.id, (unsigned long long)t->prompt_tokens,
                (unsigned long long)t->cached_tokens, (unsigned long long)t->completion_tokens,
                t->decode_seconds > 0 ? (double)t->timed / t->decode_seconds : 0, (unsigned long long)t->accepted,
                (unsigned long long)t->drafted);
}

/* The whole response, at its end. */
static void reply_whole(td_generation *g) {
    td_buf out;
    td_api_choice *choices = td_calloc(g->n_answers, sizeof *choices);
    td_buf_init(&out, MAX_RESPONSE);
    for (size_t i = 0; choices && i < g->n_answers; i++)
        choices[i] = g->answers[i].a; /* a view of it, not a second owner */
    if (choices)
        td_response_write(&out, &g->head, choices, g->n_answers, &g->tally);
    else
        out.failed = TD_E_NOMEM;
    td_server_reply_json(g->x, 200, &out);
    td_buf_free(&out);
    td_free(choices);
}

static void end_stream(td_generation *g, answer *w, bool last) {
    td_buf out;
    td_buf_init(&out, MAX_RESPONSE);
    td_chunk_delta(&out, &g->head, &w->a);
    td_chunk_finish(&out, &g->head, &w->a, last && !g->head.include_usage ? &g->tally : NULL);
    if (last && g->head.include_usage)
        td_chunk_usage(&out, &g->head, &g->tally);
    if (last)
        td_chunk_done(&out);
    say(g, &out);
    td_buf_free(&out);
    if (last)
        complete(g);
}

static void take_result(answer *w, const td_result *result) {
    td_generation *g = w->g;
    td_error err = {0};
    if (td_choice_finish(&w->a.c, &err) != TD_OK) {
        fail(g, &err);
        return;
    }
    w->a.finish = result->finish;
    td_tally_add(&g->tally, result, &w->a.c, w->first);
    bool last = ++g->n_over == g->n_answers;
    if (last)
        log_end(g);
    if (g->r.stream)
        end_stream(g, w, last);
    else if (last && !atomic_load(&g->unwanted))
        reply_whole(g);
    else if (last)
        td_exchange_abort(g->x); /* the client has gone */
}

static void on_end(void *user, const td_result *result, const td_error *err) {
    answer *w = user;
    td_generation *g = w->g;
    if (result)
        take_result(w, result);
    else
        fail(g, err);
    td_generation_release(&g);
}

/* ---- starting ---- */

/* Tools that must be called, or that may be and beside which a text has a form: calls are held to their schemas then,
 * because a mask that allows them must say how they go on. */
static td_constraint_spec constraint_of(const td_generation *g, const td_api_prompt *p) {
    const td_api_request *r = &g->r;
    td_constraint_spec c = {.json_schema = r->json_schema, .grammar = r->grammar, .json_object = r->json_object};
    bool must_call = r->tools && r->tool_choice == TD_TOOLS_REQUIRED;
    if (must_call) { /* no text is left for a format to hold */
        c.json_schema = NULL;
        c.json_object = false;
    }
    if (must_call || (r->tools && (r->json_schema || r->json_object))) {
        c.tools = r->tools_text;
        c.tool_name = r->tool_name;
        c.one_call = r->one_call;
    }
    c.may_think = p->may_think;
    c.thinking = p->opens_reasoning;
    return c;
}

static td_request request_of(const td_generation *g, answer *w) {
    const td_api_request *r = &g->r;
    const td_api_prompt *p = w->prompt;
    td_request q = td_request_default();
    q.prompt = p->tokens;
    q.n_prompt = p->n;
    q.max_tokens = r->max_tokens;
    q.sampling = r->sampling;
    q.sampling.seed = td_api_choice_seed(r->sampling.seed, w->a.index % r->n);
    q.ignore_eos = r->ignore_eos;
    q.stop = r->stop;
    q.n_stop = r->n_stop;
    q.no_mtp = r->no_mtp;
    q.num_mtp_tokens = r->num_mtp_tokens;
    q.special = p->format.think != TD_REPLY_THINK_NONE || p->format.calls != TD_REPLY_CALLS_NONE;
    q.n_logprobs = r->logprobs;
    q.constraint = constraint_of(g, p);
    q.time_limit = r->time_limit;
    q.on_text = on_text;
    q.on_prefill = on_prefill;
    q.is_wanted = is_wanted;
    q.user = w;
    return q;
}

/* What a refused request was refused for: what it must match is all that has not been checked before. */
static const char *suspect(const td_api_request *r, const td_error *err) {
    if (r->tools && strncmp(err->message, "constraint: tool", strlen("constraint: tool")) == 0)
        return "tools";
    return r->json_schema ? "response_format" : r->grammar ? "grammar" : r->tools ? "tools" : NULL;
}

static td_status submit_all(td_generation *g, td_scheduler *scheduler, td_fault *fault) {
    for (size_t i = 0; i < g->n_answers; i++) {
        td_error err = {0};
        uint64_t id;
        td_request q = request_of(g, &g->answers[i]);
        atomic_fetch_add(&g->refs, 1); /* before: it may be over when submit returns */
        td_status st = td_scheduler_submit(scheduler, &q, g->owner, on_end, &id, &err);
        if (st == TD_OK)
            continue;
        atomic_fetch_sub(&g->refs, 1);
        td_fault_of(fault, &err, suspect(&g->r, &err));
        if (st == TD_E_BUSY && atomic_load(&g->server->state) == TD_SERVER_DRAINING)
            *fault = (td_fault){
                .status = 503, .code = "shutting_down", .message = "the server is shutting down", .retry_after = 5};
        return st;
    }
    return TD_OK;
}

/* Nothing that has been submitted may reply any more. False: it already has, or the fault is its own. */
static bool take_reply_over(td_generation *g, td_fault *fault) {
    pthread_mutex_lock(&g->lock);
    bool mine = g->phase == STARTING;
    if (g->failed)
        *fault = g->fault;
    g->phase = OVER;
    pthread_mutex_unlock(&g->lock);
    atomic_store(&g->unwanted, true);
    return mine;
}

/* The stream's status and headers, what waits, and perhaps its end. */
static void open_stream(td_generation *g) {
    static const td_http_header headers[] = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
    pthread_mutex_lock(&g->lock);
    bool failed = g->failed, end = g->complete;
    td_status st = TD_OK;
    if (!failed) {
        st = td_exchange_begin(g->x, 200, TD_SSE_TYPE, headers, 2);
        td_exchange_keepalive(g->x, g->server->opt.keepalive);
        if (st == TD_OK && g->waiting.size > 0)
            st = td_exchange_write(g->x, g->waiting.data, g->waiting.size);
        td_buf_free(&g->waiting);
    }
    g->phase = failed || end || st != TD_OK ? OVER : OPEN;
    pthread_mutex_unlock(&g->lock);
    if (failed)
        td_server_reply_fault(g->x, &g->fault);
    else if (st != TD_OK)
        td_exchange_abort(g->x);
    else if (end)
        td_exchange_end(g->x);
    if (st != TD_OK)
        atomic_store(&g->unwanted, true);
}

void td_generation_start(td_generation **pg, td_scheduler *scheduler) {
    td_generation *g = *pg;
    td_fault fault;
    *pg = NULL;
    if (submit_all(g, scheduler, &fault) != TD_OK) {
        if (take_reply_over(g, &fault))
            td_server_reply_fault(g->x, &fault);
    } else if (g->r.stream) {
        open_stream(g);
    }
    td_generation_release(&g);
}
