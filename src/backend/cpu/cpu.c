/* cpu.c - opening, closing and the memory of the CPU backend. */
#include "backend/cpu/cpu.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "backend/cpu/delta.h"
#include "base/alloc.h"

void cpu_fail(td_cpu *c, td_status status, const char *fmt, ...) {
    if (c->error.status != TD_OK)
        return;
    char text[sizeof c->error.message];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    td_fail(&c->error, status, "cpu backend: %s", text);
}

/* By half at least: what is needed may grow with every few tokens of a context. */
static bool grow(cpu_block *b, size_t bytes) {
    if (bytes <= b->size)
        return true;
    if (bytes < b->size + b->size / 2)
        bytes = b->size + b->size / 2;
    uint8_t *p = td_malloc_aligned(bytes);
    if (!p)
        return false;
    td_free_aligned(b->data);
    *b = (cpu_block){p, bytes};
    return true;
}

void *cpu_scratch(td_cpu *c, cpu_slot slot, size_t n, size_t size) {
    size_t bytes;
    if (!__builtin_mul_overflow(n, size, &bytes) && grow(&c->slot[slot], bytes ? bytes : 1))
        return c->slot[slot].data;
    cpu_fail(c, TD_E_NOMEM, "no memory for %zu elements of %zu bytes of scratch", n, size);
    return NULL;
}

bool cpu_reserve_threads(td_cpu *c, size_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
    if (bytes <= c->thread_bytes)
        return true;
    if (!cpu_scratch(c, CPU_SLOT_THREAD, bytes, (size_t)c->n_threads))
        return false;
    c->thread_bytes = bytes;
    return true;
}

static void cpu_close(td_backend *be) {
    td_cpu *c = cpu_of(be);
    td_pool_close(&c->pool);
    cpu_rope_free(c);
    for (int i = 0; i < CPU_SLOT_COUNT; i++)
        td_free_aligned(c->slot[i].data);
    td_free(c);
}

static void *cpu_alloc(td_backend *be, size_t bytes) {
    (void)be;
    return td_malloc_aligned(bytes);
}

static void cpu_free(td_backend *be, void *p) {
    (void)be;
    td_free_aligned(p);
}

static td_status cpu_wait(td_backend *be, td_error *err) {
    td_cpu *c = cpu_of(be);
    td_status st = c->error.status;
    if (st != TD_OK && err)
        *err = c->error;
    c->error.status = TD_OK;
    return st;
}

static td_status cpu_reserve(td_backend *be, uint32_t n_rows, uint32_t n_in, uint32_t n_out, uint32_t n_heads,
                             uint32_t head_dim, td_error *err) {
    td_cpu *c = cpu_of(be);
    (void)n_out;
    (void)n_heads;
    size_t q_row = (size_t)n_in / 32 * c->dsp.q_bytes;
    size_t product = cpu_product_bytes(c, n_in), attention = cpu_attention_bytes(head_dim);
    bool ok = cpu_scratch(c, CPU_SLOT_Q, n_rows, q_row) && cpu_scratch(c, CPU_SLOT_Q_PLAIN, n_rows, q_row) &&
              cpu_scratch(c, CPU_SLOT_Q_HALVES, n_rows, q_row) &&
              cpu_scratch(c, CPU_SLOT_ROWS, n_rows, 8 * sizeof(void *)) &&
              cpu_reserve_threads(c, product > attention ? product : attention);
    if (ok)
        return TD_OK;
    c->error.status = TD_OK;
    return td_fail(err, TD_E_NOMEM, "cpu backend: no memory for scratch of %u rows of %u inputs", n_rows, n_in);
}

static const td_backend_ops cpu_ops = {
    .name = "cpu",
    .close = cpu_close,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .reserve = cpu_reserve,
    .decodes = cpu_decodes,
    .adopt = cpu_adopt,
    .wait = cpu_wait,
    .embed = cpu_embed,
    .rmsnorm = cpu_rmsnorm,
    .add_rmsnorm = cpu_add_rmsnorm,
    .linear = cpu_linear,
    .rope = cpu_rope,
    .kv_write = cpu_kv_write,
    .attention = cpu_attention,
    .gated = cpu_gated,
    .rows_dot = cpu_rows_dot,
    .add = cpu_add,
    .scale = cpu_scale,
    .softcap = cpu_softcap,
    .gather = cpu_gather,
    .route = cpu_route,
    .moe = cpu_moe,
    .add_gated_rows = cpu_add_gated_rows,
    .conv = cpu_conv,
    .delta = cpu_delta,
    .argmax = cpu_argmax,
    .top = cpu_top,
    .sum_exp = cpu_sum_exp,
};

const char *td_backend_cpu_isa(const td_backend *be) {
    return be->ops == &cpu_ops ? ((const td_cpu *)be)->dsp.name : "generic";
}

int td_backend_cpu_threads(const td_backend *be) {
    return be->ops == &cpu_ops ? ((const td_cpu *)be)->n_threads : 1;
}

/* Every level of this machine, worst first, into `list`. */
static const char *levels_of_this_machine(char list[64]) {
    static const td_isa order[] = {TD_ISA_GENERIC, TD_ISA_NEON,    TD_ISA_NEONDOT,
                                   TD_ISA_AVX2,    TD_ISA_AVXVNNI, TD_ISA_AVX512};
    size_t n = 0;
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++)
        if (td_dsp_has(order[i]))
            n += (size_t)snprintf(list + n, 64 - n, "%s%s", n ? ", " : "", td_isa_name(order[i]));
    return list;
}

td_status td_backend_cpu_open(td_backend **out, const td_cpu_options *opt, td_error *err) {
    *out = NULL;
    td_cpu_options o = opt ? *opt : (td_cpu_options){0};
    td_isa isa = o.isa == TD_ISA_AUTO ? td_dsp_best() : o.isa;
    char list[64];
    if (!td_dsp_has(isa))
        return td_fail(err, TD_E_UNSUPPORTED,
                       "this machine or build has no instruction set %s, expected auto or one of %s", td_isa_name(isa),
                       levels_of_this_machine(list));
    td_cpu *c = td_calloc(1, sizeof *c);
    if (!c)
        return td_fail(err, TD_E_NOMEM, "no memory for the cpu backend");
    c->base.ops = &cpu_ops;
    c->float_activations = o.float_activations;
    c->no_packing = o.no_packing;
    c->wave_bytes = CPU_WAVE_BYTES;
    td_dsp_init(&c->dsp, isa);
    for (int i = 0; i < 256; i++)
        c->e8m0[i] = td_e8m0_to_f32((uint8_t)i);
    td_pool_options po = td_pool_options_default();
    po.n_threads = o.n_threads;
    po.pin = o.pin;
    td_status st = td_pool_open(&c->pool, &po, err);
    if (st != TD_OK) {
        cpu_close(&c->base);
        return st;
    }
    c->n_threads = td_pool_n_threads(c->pool);
    *out = &c->base;
    return TD_OK;
}
