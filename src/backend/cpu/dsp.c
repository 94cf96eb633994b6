/* dsp.c - which instruction sets the machine has, and the table filled up to one of them. */
#include "backend/cpu/dsp.h"

#include <string.h>

static const char *const names[] = {
    [TD_ISA_AUTO] = "auto",
    [TD_ISA_GENERIC] = "generic",
    [TD_ISA_AVX2] = "avx2",
    [TD_ISA_AVXVNNI] = "avxvnni",
    [TD_ISA_AVX512] = "avx512",
    [TD_ISA_NEON] = "neon",
    [TD_ISA_NEONDOT] = "neon+dotprod",
};

const char *td_isa_name(td_isa isa) {
    return (unsigned)isa < sizeof names / sizeof names[0] ? names[isa] : "?";
}

bool td_isa_named(const char *name, td_isa *isa) {
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0) {
            *isa = (td_isa)i;
            return true;
        }
    return false;
}

#if defined(__x86_64__)
#include <cpuid.h>

typedef struct features {
    bool avx2, avxvnni, avx512;
} features;

/* The register state that the system saves on a task switch: an instruction set without it is not usable. */
static uint64_t saved_state(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static bool all(unsigned word, unsigned bits) {
    return (word & bits) == bits;
}

static features detect(void) {
    features f = {false, false, false};
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !all(c, bit_FMA | bit_OSXSAVE | bit_AVX | bit_F16C))
        return f;
    uint64_t state = saved_state();
    if ((state & 0x06) != 0x06 || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) /* xmm, ymm */
        return f;
    f.avx2 = all(b, bit_AVX2);
    f.avx512 = f.avx2 && (state & 0xE6) == 0xE6 /* and masks, zmm */ &&
               all(b, bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL) && all(c, bit_AVX512VNNI);
    f.avxvnni = f.avx2 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && all(a, 1u << 4);
    return f;
}

bool td_dsp_has(td_isa isa) {
    features f = detect();
    return isa == TD_ISA_GENERIC || (isa == TD_ISA_AVX2 && f.avx2) || (isa == TD_ISA_AVXVNNI && f.avxvnni) ||
           (isa == TD_ISA_AVX512 && f.avx512);
}
#elif defined(__aarch64__)
#if defined(__linux__)
#include <sys/auxv.h>

/* The kernel's word for it; the bit of the AArch64 ABI. */
static bool has_dot_products(void) {
    return getauxval(AT_HWCAP) & 1u << 20;
}
#else
static bool has_dot_products(void) {
#if defined(__ARM_FEATURE_DOTPROD) /* as on every Apple silicon: what the build takes for granted */
    return true;
#else
    return false;
#endif
}
#endif

bool td_dsp_has(td_isa isa) {
    return isa == TD_ISA_GENERIC || isa == TD_ISA_NEON || (isa == TD_ISA_NEONDOT && has_dot_products());
}
#else
bool td_dsp_has(td_isa isa) {
    return isa == TD_ISA_GENERIC;
}
#endif

/* A build may be told a lesser level (TD_AUTO_ISA): to test all there is on top of its kernels. */
td_isa td_dsp_best(void) {
#ifdef TD_AUTO_ISA
    td_isa told;
    if (td_isa_named(TD_AUTO_ISA, &told) && td_dsp_has(told))
        return told;
#endif
    static const td_isa order[] = {TD_ISA_AVX512, TD_ISA_AVXVNNI, TD_ISA_AVX2, TD_ISA_NEONDOT, TD_ISA_NEON};
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++)
        if (td_dsp_has(order[i]))
            return order[i];
    return TD_ISA_GENERIC;
}

void td_dsp_init(td_dsp *d, td_isa isa) {
    td_dsp_init_generic(d);
    if (isa == TD_ISA_GENERIC)
        return;
    if (isa == TD_ISA_NEON || isa == TD_ISA_NEONDOT) {
        td_dsp_init_neon(d);
        if (isa == TD_ISA_NEONDOT)
            td_dsp_init_neondot(d);
        return;
    }
    td_dsp_init_avx2(d);
    if (isa == TD_ISA_AVX2)
        return;
    if (isa == TD_ISA_AVXVNNI) {
        td_dsp_init_avxvnni(d);
        return;
    }
    td_dsp_init_avx512(d);
}
