/* scheduler.c - continuous batching: one thread, many runs, a round of all of them at a time.
 *
 * A pass serves every sequence that has a place: those that answer feed their newest token and drafts, those that read
 * their prompt feed a chunk of it. Chunks are cut so that a round does not take longer than max_stall because of them
 * while somebody is answering; row-invariance makes every cut the same text.
 *
 * Who waits is taken in the order of queue.h. A request is admitted when there is a place and when the keys that it may
 * need fit beside what those under way may still need, so that no answer is broken off for want of memory; what
 * finished answers have left in their places is given up for that.
 *
 * The lock guards the queue, the counters and the slots' shared part. Rounds, beginnings and callbacks run without it.
 * What a round does for those who wait is bounded: some of them are asked whether they still want to, some are looked
 * at. */
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "engine/queue.h"
#include "engine/run.h"

#define LEAST_CHUNK 16u    /* prompt rows of a round, however slow */
#define ASKED_A_ROUND 256u /* of those who wait, whether they still want to */
#define LOOKED_A_ROUND 64u /* of those who wait, whether they may be admitted */

typedef struct job {
    td_waiting waiting; /* first: an entry of the queue is a job */
    struct job *next;   /* of those dropped */
    uint64_t id;
    uint64_t need; /* bytes of keys that it may come to need, in an empty place */
    td_task task;
    td_end_fn on_end;
    int64_t submitted;
    double waited;
    bool queued, cancelled;
} job;

typedef struct slot {
    td_seq *seq;
    td_run run;
    job *job;            /* NULL: free */
    uint64_t need;       /* bytes of keys that the job may come to need */
    td_seq_stats before; /* of the sequence, before the round under way */
    td_slot_info info;   /* as of the last round; under the lock */
} slot;

/* Something to do between rounds, for a thread that waits for it. */
typedef struct errand {
    struct errand *next;
    td_status (*fn)(td_scheduler *s, struct errand *e, td_error *err);
    uint32_t slot;
    const char *path;
    uint64_t n_tokens, n_bytes;
    td_error error;
    td_status status;
    bool done;
} errand;

struct td_scheduler {
    td_engine *e;
    td_scheduler_options opt;
    pthread_t thread;
    bool has_thread, has_lock;
    pthread_mutex_t lock;
    pthread_cond_t work; /* for the thread: there is something to do */
    pthread_cond_t over; /* for those who wait: a request has ended, an errand is done */
    /* under the lock */
    td_queue queue;
    job *dropped; /* from the queue, to be told so */
    errand *errands;
    bool closing, draining;
    uint64_t last_id;
    uint64_t n_open;   /* requests taken whose on_end has not returned */
    uint32_t n_active; /* slots with a job */
    td_scheduler_stats stats;
    /* the thread's own, but for slot.info and slot.job (read under the lock, written by the thread under it) */
    slot *slots;        /* [parallel] */
    slot **active;      /* [n_active] those with a job, the oldest first */
    uint64_t needed;    /* bytes of keys that they may come to need */
    td_seq **seqs;      /* [parallel] of the round */
    slot **in_round;    /* [parallel] */
    double row_seconds; /* of a prompt row, measured; 0: not yet */
};

td_scheduler_options td_scheduler_options_default(void) {
    return (td_scheduler_options){.max_queue = 256, .max_stall = 0.25};
}

/* ---- the queue ---- */

static void job_close(job *j) {
    td_task_close(&j->task);
    td_free(j);
}

/* Bytes of keys that a request may come to need. The page that it takes over from the cache to go on in the middle of
 * is there twice for a moment. */
static uint64_t need_of(const td_engine *e, const td_request *q) {
    uint64_t most = e->info.n_ctx, n = q->n_prompt + (uint64_t)q->max_tokens;
    if (!q->max_tokens || n > most)
        n = most;
    uint64_t bytes =
        td_kv_plan_bytes(&e->model->kv, (uint32_t)n + e->info.mtp_depth, e->model->opt.max_rows, e->info.mtp_depth + 1);
    for (uint32_t g = 0; g < e->model->kv.n_groups && e->cache; g++)
        bytes += td_kv_page_cost(e->pool, g);
    return bytes;
}

/* The last of a request. The lock is held, and given up around the call. */
static void end_job(td_scheduler *s, job *j, const td_result *r, const td_error *err) {
    pthread_mutex_unlock(&s->lock);
    j->on_end(j->task.req.user, r, err);
    job_close(j);
    pthread_mutex_lock(&s->lock);
    s->n_open--;
    pthread_cond_broadcast(&s->over);
}

static void fail_job(td_scheduler *s, job *j, td_status st, const char *why) {
    td_error err;
    (void)!td_fail(&err, st, "%s", why);
    end_job(s, j, NULL, &err);
}

static td_status may_come(td_scheduler *s, td_error *err) {
    if (s->closing || s->draining)
        return td_fail(err, TD_E_BUSY, "the server is shutting down");
    if (s->queue.n >= s->opt.max_queue)
        return td_fail(err, TD_E_BUSY, "%u requests are waiting already, expected at most %u", s->queue.n,
                       s->opt.max_queue);
    return TD_OK;
}

td_status td_scheduler_submit(td_scheduler *s, const td_request *request, uint64_t owner, td_end_fn on_end,
                              uint64_t *id, td_error *err) {
    *id = 0;
    job *j = td_calloc(1, sizeof *j);
    if (!j)
        return td_fail(err, TD_E_NOMEM, "out of memory for a request");
    td_status st = td_task_open(&j->task, s->e, request, err);
    if (st != TD_OK) {
        td_free(j);
        return st;
    }
    j->need = need_of(s->e, &j->task.req);
    j->on_end = on_end;
    j->submitted = td_clock_ns();
    pthread_mutex_lock(&s->lock);
    st = may_come(s, err);
    if (st == TD_OK) {
        *id = j->id = ++s->last_id;
        j->queued = true;
        td_queue_put(&s->queue, &j->waiting, owner);
        s->n_open++;
        s->stats.requests++;
        pthread_cond_signal(&s->work);
    } else {
        s->stats.refused++;
    }
    pthread_mutex_unlock(&s->lock);
    if (st != TD_OK)
        job_close(j);
    return st;
}

/* Out of the queue, without having been served. */
static void drop(td_scheduler *s, job *j) {
    td_queue_drop(&s->queue, &j->waiting);
    j->queued = false;
    j->next = s->dropped;
    s->dropped = j;
}

void td_scheduler_cancel(td_scheduler *s, uint64_t id) {
    pthread_mutex_lock(&s->lock);
    job *j = (job *)s->queue.first;
    while (j && j->id != id)
        j = (job *)j->waiting.next;
    if (j)
        drop(s, j);
    for (uint32_t i = 0; i < s->n_active; i++)
        if (s->active[i]->job->id == id)
            s->active[i]->job->cancelled = true;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
}

/* Those in the queue whom nobody waits for any more leave it. Only this thread closes jobs, so a job is there while its
 * owner is asked, though others may drop it meanwhile. */
static void sweep_queue(td_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    for (uint32_t n = s->queue.n < ASKED_A_ROUND ? s->queue.n : ASKED_A_ROUND; n && s->queue.n; n--) {
        job *j = (job *)td_queue_turn(&s->queue);
        const td_request *q = &j->task.req;
        if (!q->is_wanted)
            continue;
        pthread_mutex_unlock(&s->lock);
        bool wanted = q->is_wanted(q->user);
        pthread_mutex_lock(&s->lock);
        if (!wanted && j->queued)
            drop(s, j);
    }
    while (s->dropped) {
        job *j = s->dropped;
        s->dropped = j->next;
        s->stats.cancelled++;
        fail_job(s, j, TD_E_CANCELLED, "cancelled while waiting");
    }
    pthread_mutex_unlock(&s->lock);
}

/* ---- admission ---- */

static uint32_t common_prefix(const td_token *a, size_t n_a, const td_token *b, size_t n_b) {
    size_t n = n_a < n_b ? n_a : n_b, i = 0;
    while (i < n && a[i] == b[i])
        i++;
    return (uint32_t)i;
}

/* Two readers of one prompt would compute it twice; the later one waits until its keys are there to share. */
static bool somebody_reads(const td_scheduler *s, const job *j) {
    if (!s->e->cache)
        return false;
    const td_request *q = &j->task.req;
    uint32_t page = s->e->model->kv.page_tokens;
    for (uint32_t i = 0; i < s->n_active; i++) {
        const td_seq *seq = s->active[i]->seq;
        if (td_seq_pending(seq) <= 1)
            continue;
        uint32_t shared = common_prefix(q->prompt, q->n_prompt, seq->tokens, seq->n_prompt);
        uint32_t read = seq->n_tokens - td_seq_pending(seq);
        if (shared >= read + page)
            return true;
    }
    return false;
}

/* The next to be served, or NULL: nobody, or nobody yet. */
static job *choose(td_scheduler *s) {
    job *best = (job *)s->queue.first;
    uint32_t looked = 0;
    while (best && somebody_reads(s, best))
        best = ++looked < LOOKED_A_ROUND ? (job *)best->waiting.next : NULL;
    if (!best || s->n_active == 0 || !s->e->kv_limit || s->needed + best->need <= s->e->kv_limit)
        return best;
    return NULL;
}

/* The free slot whose sequence shares most with the prompt. */
static slot *place_for(td_scheduler *s, const td_request *q) {
    slot *best = NULL;
    uint32_t most = 0;
    for (uint32_t i = 0; i < s->stats.parallel; i++) {
        slot *p = &s->slots[i];
        if (p->job)
            continue;
        uint32_t shared = common_prefix(q->prompt, q->n_prompt, p->seq->tokens, td_kv_seq_length(p->seq->kv));
        if (!best || shared > most || (shared == most && p->info.id < best->info.id)) {
            best = p;
            most = shared;
        }
    }
    return best;
}

static void note_slot(slot *p) {
    const td_seq *q = p->seq;
    p->info.busy = p->job != NULL;
    p->info.n_prompt = q->n_prompt;
    p->info.n_cached = q->n_reused;
    p->info.n_generated = q->n_tokens - q->n_prompt;
    p->info.n_pending = p->job ? td_seq_pending(q) : 0;
    p->info.drafted = q->stats.drafted;
    p->info.accepted = 0;
    for (int i = 0; i < TD_MAX_DRAFT; i++)
        p->info.accepted += q->stats.accepted_at[i];
}

static uint64_t held_by(const td_scheduler *s, const slot *p) {
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < s->e->model->kv.n_groups; g++)
        bytes += td_kv_seq_held(p->seq->kv, g) * (uint64_t)td_kv_page_cost(s->e->pool, g);
    return bytes;
}

/* Pages of the place's last answer stay with it, more perhaps than this one asked room for: then they go. The lock is
 * held. */
static void occupy(td_scheduler *s, slot *p, job *j) {
    uint64_t held = held_by(s, p);
    if (held > j->need && s->e->kv_limit && s->needed + held > s->e->kv_limit) {
        td_seq_finish(p->seq);
        held = 0;
    }
    p->job = j;
    p->info.id = j->id;
    p->need = held > j->need ? held : j->need;
    s->active[s->n_active++] = p;
    s->needed += p->need;
}

static void vacate(td_scheduler *s, slot *p) {
    uint32_t i = 0;
    while (s->active[i] != p)
        i++;
    memmove(s->active + i, s->active + i + 1, (--s->n_active - i) * sizeof *s->active);
    s->needed -= p->need;
    p->job = NULL;
    note_slot(p);
}

/* The lock is held, and given up around each beginning, which may compute. */
static void admit(td_scheduler *s) {
    job *j;
    while (s->n_active < s->stats.parallel && (j = choose(s)) != NULL) {
        td_error err;
        td_queue_serve(&s->queue, &j->waiting);
        j->queued = false;
        j->waited = td_clock_since(j->submitted);
        slot *p = place_for(s, &j->task.req);
        occupy(s, p, j);
        pthread_mutex_unlock(&s->lock);
        td_status st = td_run_begin(&p->run, s->e, p->seq, &j->task, &err);
        pthread_mutex_lock(&s->lock);
        if (st != TD_OK) {
            vacate(s, p);
            s->stats.failed++;
            fail_job(s, j, err.status, err.message);
            continue;
        }
        s->stats.prompt_tokens += p->seq->n_prompt;
        s->stats.cached_tokens += p->seq->n_reused;
        note_slot(p);
    }
}

/* Without a prompt cache the keys of an answer stay in its place, for a prompt that goes on from there; those used
 * least recently go when the pool is full. */
static bool give_way(void *user) {
    td_scheduler *s = user;
    slot *oldest = NULL;
    for (uint32_t i = 0; i < s->stats.parallel; i++) {
        slot *p = &s->slots[i];
        if (!p->job && td_kv_seq_length(p->seq->kv) && (!oldest || p->info.id < oldest->info.id))
            oldest = p;
    }
    if (oldest)
        td_seq_finish(oldest->seq);
    return oldest != NULL;
}

/* ---- rounds ---- */

static void add_stats(td_scheduler_stats *t, const td_result *r) {
    t->generated_tokens += r->n_tokens;
    t->prefill_seconds += r->prefill_seconds;
    t->decode_seconds += r->decode_seconds;
    if (r->finish == TD_FINISH_CANCELLED)
        t->cancelled++;
    else
        t->finished++;
}

static void add_rounds(td_scheduler_stats *t, const td_seq_stats *now, const td_seq_stats *before) {
    t->rounds += now->rounds - before->rounds;
    t->drafted += now->drafted - before->drafted;
    t->draft_rounds += now->drafted > before->drafted;
    for (int i = 0; i < TD_MAX_DRAFT; i++) {
        t->drafted_at[i] += now->drafted_at[i] - before->drafted_at[i];
        /* a cut takes drafts back that no counter can */
        uint64_t more = now->accepted_at[i] > before->accepted_at[i] ? now->accepted_at[i] - before->accepted_at[i] : 0;
        t->accepted_at[i] += more;
        t->accepted += more;
    }
}

/* The run is over: tells its owner, and frees the place. The lock is not held. */
static void finish(td_scheduler *s, slot *p, td_status st, const td_error *why) {
    job *j = p->job;
    td_result r = {0};
    td_error err = why ? *why : (td_error){0};
    if (st == TD_OK)
        st = td_run_result(&p->run, &r, &err);
    r.queue_seconds = j->waited;
    td_run_end(&p->run);
    td_engine_keep(s->e, p->seq);
    pthread_mutex_lock(&s->lock);
    if (st == TD_OK)
        add_stats(&s->stats, &r);
    else if (st == TD_E_CANCELLED)
        s->stats.cancelled++;
    else
        s->stats.failed++;
    vacate(s, p);
    end_job(s, j, st == TD_OK ? &r : NULL, st == TD_OK ? NULL : &err);
    pthread_mutex_unlock(&s->lock);
    td_result_free(&r);
}

/* Rows of prompts that the round may take. */
static uint32_t chunk(const td_scheduler *s, uint32_t n) {
    bool answering = false;
    for (uint32_t i = 0; i < n; i++)
        answering = answering || td_seq_pending(s->seqs[i]) == 1;
    if (!answering)
        return UINT32_MAX;
    double rows = s->row_seconds > 0 ? s->opt.max_stall / s->row_seconds : 64;
    return rows < LEAST_CHUNK ? LEAST_CHUNK : rows > UINT16_MAX ? UINT16_MAX : (uint32_t)rows;
}

static uint64_t keys_of(const td_scheduler *s, uint32_t n) {
    uint64_t keys = 0;
    for (uint32_t i = 0; i < n; i++)
        keys += td_kv_seq_length(s->seqs[i]->kv);
    return keys;
}

/* Whoever goes on is in the round, the oldest first: when there are fewer prompt rows than prompts, those in front get
 * them. Returns how many. */
static uint32_t gather(td_scheduler *s) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_active;) {
        slot *p = s->active[i];
        pthread_mutex_lock(&s->lock);
        bool cancelled = p->job->cancelled;
        pthread_mutex_unlock(&s->lock);
        if (cancelled)
            td_run_cancel(&p->run);
        else
            td_run_before(&p->run);
        if (p->seq->finish) {
            finish(s, p, TD_OK, NULL); /* and s->active[i] is the next */
            continue;
        }
        i++;
        p->before = p->seq->stats;
        s->in_round[n] = p;
        s->seqs[n++] = p->seq;
    }
    return n;
}

/* What a prompt row costs, from rounds that had many. A sequence that failed has lost its keys. */
static void learn(td_scheduler *s, uint64_t before, uint64_t after, uint32_t n, double took) {
    uint64_t rows = after > before ? after - before : 0;
    if (rows < LEAST_CHUNK || rows < 4 * (uint64_t)n)
        return;
    double each = took / (double)rows;
    s->row_seconds = s->row_seconds > 0 ? 0.7 * s->row_seconds + 0.3 * each : each;
}

static void play(td_scheduler *s) {
    uint32_t n = gather(s);
    if (!n)
        return;
    td_error err = {0};
    uint64_t keys = keys_of(s, n);
    td_decoder_set_prefill(s->e->decoder, chunk(s, n));
    int64_t start = td_clock_ns();
    td_status st = td_round(s->e->decoder, s->seqs, n, &err);
    double took = td_clock_since(start);
    if (st == TD_OK)
        learn(s, keys, keys_of(s, n), n, took);
    for (uint32_t i = 0; i < n; i++) {
        slot *p = s->in_round[i];
        td_error own = err;
        td_status its = st == TD_OK ? td_run_after(&p->run, &own) : st;
        pthread_mutex_lock(&s->lock);
        add_rounds(&s->stats, &p->seq->stats, &p->before);
        note_slot(p);
        pthread_mutex_unlock(&s->lock);
        if (its != TD_OK || p->seq->finish)
            finish(s, p, its, &own);
    }
    pthread_mutex_lock(&s->lock);
    s->stats.passes++;
    s->stats.busy_seconds += took;
    td_engine_note_memory(s->e, &s->stats);
    pthread_mutex_unlock(&s->lock);
}

/* ---- errands ---- */

static td_status errand_slot(td_scheduler *s, const errand *e, td_seq **seq, td_error *err) {
    *seq = s->slots[e->slot].seq;
    return s->slots[e->slot].job ? td_fail(err, TD_E_BUSY, "slot %u is generating", e->slot) : TD_OK;
}

static td_status do_save(td_scheduler *s, errand *e, td_error *err) {
    td_seq *seq;
    TD_TRY(errand_slot(s, e, &seq, err));
    return td_engine_save(s->e, seq, e->path, &e->n_tokens, &e->n_bytes, err);
}

static td_status do_restore(td_scheduler *s, errand *e, td_error *err) {
    td_seq *seq;
    TD_TRY(errand_slot(s, e, &seq, err));
    return td_engine_restore(s->e, seq, e->path, &e->n_tokens, &e->n_bytes, err);
}

static td_status do_erase(td_scheduler *s, errand *e, td_error *err) {
    td_seq *seq;
    TD_TRY(errand_slot(s, e, &seq, err));
    e->n_tokens = td_engine_erase(s->e, seq);
    return TD_OK;
}

/* Those that are there now; more may come meanwhile, but rounds go on between. The lock is held, and given up around
 * each. */
static void run_errands(td_scheduler *s) {
    errand *next = s->errands;
    s->errands = NULL;
    while (next) {
        errand *e = next;
        next = e->next; /* it is its sender's again once it is done */
        pthread_mutex_unlock(&s->lock);
        e->status = e->fn(s, e, &e->error);
        pthread_mutex_lock(&s->lock);
        note_slot(&s->slots[e->slot]);
        td_engine_note_memory(s->e, &s->stats);
        e->done = true;
        pthread_cond_broadcast(&s->over);
    }
}

static td_status send(td_scheduler *s, errand *e, uint64_t *n_tokens, uint64_t *n_bytes, td_error *err) {
    if (e->slot >= s->stats.parallel)
        return td_fail(err, TD_E_ARG, "slot %u, expected 0 to %u", e->slot, s->stats.parallel - 1);
    pthread_mutex_lock(&s->lock);
    if (s->closing) { /* nobody may be there to run it */
        pthread_mutex_unlock(&s->lock);
        return td_fail(err, TD_E_CANCELLED, "the server is shutting down");
    }
    errand **at = &s->errands;
    while (*at)
        at = &(*at)->next;
    *at = e;
    pthread_cond_signal(&s->work);
    while (!e->done)
        pthread_cond_wait(&s->over, &s->lock);
    pthread_mutex_unlock(&s->lock);
    if (e->status != TD_OK && err)
        *err = e->error;
    *n_tokens = e->status == TD_OK ? e->n_tokens : 0;
    if (n_bytes)
        *n_bytes = e->status == TD_OK ? e->n_bytes : 0;
    return e->status;
}

td_status td_scheduler_save(td_scheduler *s, uint32_t slot_no, const char *path, uint64_t *n_tokens, uint64_t *n_bytes,
                            td_error *err) {
    errand e = {.fn = do_save, .slot = slot_no, .path = path};
    return send(s, &e, n_tokens, n_bytes, err);
}

td_status td_scheduler_restore(td_scheduler *s, uint32_t slot_no, const char *path, uint64_t *n_tokens,
                               uint64_t *n_bytes, td_error *err) {
    errand e = {.fn = do_restore, .slot = slot_no, .path = path};
    return send(s, &e, n_tokens, n_bytes, err);
}

td_status td_scheduler_erase(td_scheduler *s, uint32_t slot_no, uint64_t *n_tokens, td_error *err) {
    errand e = {.fn = do_erase, .slot = slot_no};
    return send(s, &e, n_tokens, NULL, err);
}

/* ---- the thread ---- */

static void end_everything(td_scheduler *s) {
    td_error err;
    (void)!td_fail(&err, TD_E_CANCELLED, "the server is shutting down");
    while (s->n_active) {
        slot *p = s->active[0];
        td_run_cancel(&p->run);
        finish(s, p, TD_E_CANCELLED, &err);
    }
    pthread_mutex_lock(&s->lock);
    while (s->queue.first)
        drop(s, (job *)s->queue.first);
    while (s->dropped) {
        job *j = s->dropped;
        s->dropped = j->next;
        s->stats.cancelled++;
        fail_job(s, j, TD_E_CANCELLED, err.message);
    }
    pthread_mutex_unlock(&s->lock);
}

static void *serve(void *arg) {
    td_scheduler *s = arg;
    for (;;) {
        sweep_queue(s);
        pthread_mutex_lock(&s->lock);
        run_errands(s);
        admit(s);
        if (!s->n_active && !s->closing && !s->errands && !s->dropped) /* then nobody waits, either */
            pthread_cond_wait(&s->work, &s->lock);
        bool over = s->closing;
        pthread_mutex_unlock(&s->lock);
        if (over)
            break;
        play(s);
    }
    end_everything(s);
    pthread_mutex_lock(&s->lock);
    run_errands(s);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static td_status open_slots(td_scheduler *s, td_error *err) {
    uint32_t n = s->e->decoder_options.max_seqs;
    s->slots = td_calloc(n, sizeof *s->slots);
    s->active = td_calloc(n, sizeof *s->active);
    s->seqs = td_calloc(n, sizeof *s->seqs);
    s->in_round = td_calloc(n, sizeof *s->in_round);
    if (!s->slots || !s->active || !s->seqs || !s->in_round)
        return td_fail(err, TD_E_NOMEM, "out of memory for %u places", n);
    s->stats.parallel = n;
    for (uint32_t i = 0; i < n; i++)
        TD_TRY(td_seq_open(&s->slots[i].seq, s->e->decoder, s->e->info.n_ctx, err));
    if (!s->e->cache)
        td_kv_pool_on_full(s->e->pool, give_way, s);
    return TD_OK;
}

static td_status open_thread(td_scheduler *s, td_error *err) {
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    s->has_lock = pthread_mutex_init(&s->lock, NULL) == 0 && pthread_cond_init(&s->work, &clock) == 0 &&
                  pthread_cond_init(&s->over, &clock) == 0;
    pthread_condattr_destroy(&clock);
    s->has_thread = s->has_lock && pthread_create(&s->thread, NULL, serve, s) == 0;
    return s->has_thread ? TD_OK : td_fail(err, TD_E_NOMEM, "no thread for the scheduler");
}

td_status td_scheduler_open(td_scheduler **out, td_engine *e, const td_scheduler_options *opt, td_error *err) {
    *out = NULL;
    if (opt->max_queue < 1 || !(opt->max_stall > 0))
        return td_fail(err, TD_E_ARG, "a queue of %u and stalls of %g s, expected at least 1 and more than 0",
                       opt->max_queue, opt->max_stall);
    if (atomic_flag_test_and_set(&e->busy))
        return td_fail(err, TD_E_BUSY, "the engine is generating already");
    td_scheduler *s = td_calloc(1, sizeof *s);
    if (!s) {
        atomic_flag_clear(&e->busy);
        return td_fail(err, TD_E_NOMEM, "out of memory for a scheduler");
    }
    s->e = e;
    s->opt = *opt;
    s->stats.max_queue = opt->max_queue;
    td_status st = open_slots(s, err);
    if (st == TD_OK)
        st = open_thread(s, err);
    if (st != TD_OK)
        td_scheduler_close(&s);
    *out = s;
    return st;
}

void td_scheduler_close(td_scheduler **ps) {
    if (!ps || !*ps)
        return;
    td_scheduler *s = *ps;
    if (s->has_thread) {
        pthread_mutex_lock(&s->lock);
        s->closing = true;
        pthread_cond_signal(&s->work);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
    }
    if (s->has_lock) {
        pthread_cond_destroy(&s->work);
        pthread_cond_destroy(&s->over);
        pthread_mutex_destroy(&s->lock);
    }
    if (!s->e->cache)
        td_kv_pool_on_full(s->e->pool, NULL, NULL);
    for (uint32_t i = 0; i < s->stats.parallel; i++)
        td_seq_close(&s->slots[i].seq);
    td_free(s->slots);
    td_free(s->active);
    td_free(s->seqs);
    td_free(s->in_round);
    atomic_flag_clear(&s->e->busy);
    td_free(s);
    *ps = NULL;
}

bool td_scheduler_drain(td_scheduler *s, double seconds) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    double whole = seconds > 1e9 ? 1e9 : seconds > 0 ? seconds : 0;
    until.tv_sec += (time_t)whole;
    until.tv_nsec += (long)((whole - (double)(time_t)whole) * 1e9);
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_mutex_lock(&s->lock);
    s->draining = s->stats.draining = true;
    int rc = 0;
    while (s->n_open && rc == 0)
        rc = pthread_cond_timedwait(&s->over, &s->lock, &until);
    bool done = !s->n_open;
    pthread_mutex_unlock(&s->lock);
    return done;
}

void td_scheduler_describe(td_scheduler *s, td_scheduler_stats *stats) {
    pthread_mutex_lock(&s->lock);
    *stats = s->stats;
    stats->active = s->n_active;
    stats->queued = s->queue.n;
    pthread_mutex_unlock(&s->lock);
}

td_status td_scheduler_slot(td_scheduler *s, uint32_t slot_no, td_slot_info *info, td_error *err) {
    if (slot_no >= s->stats.parallel)
        return td_fail(err, TD_E_ARG, "slot %u, expected 0 to %u", slot_no, s->stats.parallel - 1);
    pthread_mutex_lock(&s->lock);
    *info = s->slots[slot_no].info;
    pthread_mutex_unlock(&s->lock);
    return TD_OK;
}
