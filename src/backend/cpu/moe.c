/* moe.c - a mixture of experts: rows grouped by expert, each expert read once however many rows chose it.
 *
 * The n*k (row, expert) pairs are sorted by expert; a pair's place in that order is its slot. Then three jobs:
 *
 *   1. per expert and tile of n_ff: gate and up for the expert's rows, activation, into hidden[slot].
 *   2. hidden is quantised where the down matrices need it.
 *   3. per tile of n_embd: down for every expert in turn into scratch [slot], then for each row the weighted sum over
 *      its k slots in the order of j. Tiles cross the experts, so the sum needs no barrier of its own and its order
 *      does not depend on who was grouped with whom. */
#include "backend/cpu/cpu.h"

#include <string.h>

typedef struct moe_expert {
    int32_t expert;
    uint32_t slot, n; /* its pairs are slots [slot, slot + n) */
} moe_expert;

typedef struct moe_job {
    td_cpu *c;
    const td_moe *m;
    uint32_t n_pairs, n_active, n_ff, n_embd;
    moe_expert *active;      /* [n_active] */
    uint32_t *slot_of;       /* [n_pairs] */
    const void **gate_row;   /* [n_pairs] by slot, in the form of gate's path */
    const void **up_row;     /* of up's path; gate_row when fused */
    const void **hidden_row; /* of down's path */
    float *hidden;           /* [n_pairs][n_ff] */
    uint32_t tile, tiles;    /* outputs per tile; tiles per expert */
} moe_job;

static uint32_t min_u32(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

static float *tile_scratch(moe_job *j, int thread, uint32_t n_in) {
    uint8_t *block = cpu_thread_block(j->c, thread);
    return (float *)(void *)(block + cpu_product_bytes(j->c, n_in));
}

/* One expert, outputs [f0, f0 + n_f) of the hidden layer. */
static void hidden_tile(void *arg, int tile, int thread) {
    moe_job *j = arg;
    const td_moe *m = j->m;
    const moe_expert *e = &j->active[(uint32_t)tile / j->tiles];
    const uint32_t f0 = (uint32_t)tile % j->tiles * j->tile, n_f = min_u32(j->n_ff - f0, j->tile);
    void *block = cpu_thread_block(j->c, thread);
    float *g = tile_scratch(j, thread, j->n_embd), *u = g + (size_t)j->m->n * j->tile;
    const td_matrix *up = m->up ? m->up : m->gate;
    const uint32_t gate0 = (uint32_t)e->expert * m->gate->n_out + f0;
    const uint32_t up0 = m->up ? (uint32_t)e->expert * up->n_out + f0 : gate0 + j->n_ff;
    cpu_product_tile(j->c, block, m->gate, gate0, n_f, j->gate_row + e->slot, e->n, g, n_f);
    cpu_product_tile(j->c, block, up, up0, n_f, j->up_row + e->slot, e->n, u, n_f);
    for (uint32_t i = 0; i < e->n; i++)
        j->c->dsp.gated(j->hidden + (size_t)(e->slot + i) * j->n_ff + f0, g + (size_t)i * n_f, u + (size_t)i * n_f, n_f,
                        m->act);
}

/* All experts, outputs [o0, o0 + n_o) of the embedding. */
static void down_tile(void *arg, int tile, int thread) {
    moe_job *j = arg;
    const td_moe *m = j->m;
    const uint32_t o0 = (uint32_t)tile * j->tile, n_o = min_u32(j->n_embd - o0, j->tile);
    float *y = tile_scratch(j, thread, j->n_ff);
    for (uint32_t i = 0; i < j->n_active; i++) {
        const moe_expert *e = &j->active[i];
        cpu_product_tile(j->c, cpu_thread_block(j->c, thread), m->down, (uint32_t)e->expert * m->down->n_out + o0, n_o,
                         j->hidden_row + e->slot, e->n, y + (size_t)e->slot * n_o, n_o);
    }
    for (uint32_t r = 0; r < m->n; r++)
        for (uint32_t i = 0; i < m->k; i++) {
            const size_t pair = (size_t)r * m->k + i;
            j->c->dsp.axpy(m->out + (size_t)r * j->n_embd + o0, y + (size_t)j->slot_of[pair] * n_o, m->weight[pair],
                           n_o, i == 0);
        }
}

/* Counting sort of the pairs by expert. `count` [n_stack] is scratch. */
static void group_pairs(moe_job *j, uint32_t *count) {
    const td_moe *m = j->m;
    const uint32_t n_expert = m->down->n_stack;
    memset(count, 0, n_expert * sizeof *count);
    for (uint32_t p = 0; p < j->n_pairs; p++)
        count[m->expert[p]]++;
    uint32_t slot = 0;
    for (uint32_t e = 0; e < n_expert; e++) {
        if (count[e] == 0)
            continue;
        j->active[j->n_active++] = (moe_expert){(int32_t)e, slot, count[e]};
        slot += count[e];
        count[e] = slot - count[e]; /* from now on: the expert's next free slot */
    }
    for (uint32_t p = 0; p < j->n_pairs; p++)
        j->slot_of[p] = count[m->expert[p]]++;
}

/* Whether each pair's expert exists and is its row's only one of that number: scratch holds a row once an expert. */
static bool experts_fit(td_cpu *c, const td_moe *m) {
    for (uint32_t p = 0; p < m->n * m->k; p++) {
        if (m->expert[p] < 0 || (uint32_t)m->expert[p] >= m->down->n_stack) {
            cpu_fail(c, TD_E_ARG, "moe: row %u chose expert %d of %u", p / m->k, m->expert[p], m->down->n_stack);
            return false;
        }
        for (uint32_t other = p - p % m->k; other < p; other++)
            if (m->expert[other] == m->expert[p]) {
                cpu_fail(c, TD_E_ARG, "moe: row %u chose expert %d twice", p / m->k, m->expert[p]);
                return false;
            }
    }
    return true;
}

/* Divides one slot of scratch among the tables; false: no memory. */
static bool take_tables(moe_job *j, uint32_t **count) {
    const size_t pairs = j->n_pairs, experts = j->m->down->n_stack;
    const size_t bytes = 3 * pairs * sizeof(void *) + pairs * (sizeof(moe_expert) + 4) + experts * 4;
    uint8_t *p = cpu_scratch(j->c, CPU_SLOT_MOE, bytes, 1);
    j->hidden = p ? cpu_scratch(j->c, CPU_SLOT_HIDDEN, pairs, j->n_ff * sizeof(float)) : NULL;
    if (!j->hidden)
        return false;
    j->gate_row = (const void **)(void *)p;
    j->up_row = j->gate_row + pairs;
    j->hidden_row = j->up_row + pairs;
    j->active = (moe_expert *)(void *)(j->hidden_row + pairs);
    j->slot_of = (uint32_t *)(void *)(j->active + pairs);
    *count = j->slot_of + pairs;
    return true;
}

static bool run_hidden(moe_job *j) {
    const td_moe *m = j->m;
    const cpu_path gate = cpu_path_of(j->c, m->gate), up = m->up ? cpu_path_of(j->c, m->up) : gate;
    cpu_input in;
    if (!cpu_input_prepare(j->c, &in, m->x, m->n, j->n_embd, CPU_NEEDS(gate) | CPU_NEEDS(up)))
        return false;
    for (uint32_t p = 0; p < j->n_pairs; p++) {
        j->gate_row[j->slot_of[p]] = cpu_input_row(&in, gate, p / m->k);
        j->up_row[j->slot_of[p]] = cpu_input_row(&in, up, p / m->k);
    }
    j->tile = min_u32(cpu_tile_outputs(j->c, gate, (uint64_t)j->n_ff * j->n_active), CPU_MAX_TILE);
    j->tiles = (j->n_ff + j->tile - 1) / j->tile;
    if (!cpu_reserve_threads(j->c, cpu_product_bytes(j->c, j->n_embd) + 2 * (size_t)m->n * j->tile * sizeof(float)))
        return false;
    td_pool_run(j->c->pool, hidden_tile, j, (int)(j->n_active * j->tiles));
    return true;
}

static void run_down(moe_job *j) {
    const cpu_path down = cpu_path_of(j->c, j->m->down);
    cpu_input in;
    if (!cpu_input_prepare(j->c, &in, j->hidden, j->n_pairs, j->n_ff, CPU_NEEDS(down)))
        return;
    for (uint32_t s = 0; s < j->n_pairs; s++)
        j->hidden_row[s] = cpu_input_row(&in, down, s);
    j->tile = min_u32(cpu_tile_outputs(j->c, down, j->n_embd), 32);
    j->tiles = (j->n_embd + j->tile - 1) / j->tile;
    if (cpu_reserve_threads(j->c, cpu_product_bytes(j->c, j->n_ff) + (size_t)j->n_pairs * j->tile * sizeof(float)))
        td_pool_run(j->c->pool, down_tile, j, (int)j->tiles);
}

void cpu_moe(td_backend *be, const td_moe *m) {
    moe_job j = {.c = cpu_of(be), .m = m, .n_pairs = m->n * m->k, .n_ff = m->down->n_in, .n_embd = m->down->n_out};
    uint32_t *count;
    if (j.n_pairs == 0 || !experts_fit(j.c, m) || !take_tables(&j, &count))
        return;
    group_pairs(&j, count);
    if (run_hidden(&j))
        run_down(&j);
}
