/* fuzz_safetensors.c - libFuzzer target of the safetensors reader.
 *
 * What is accepted must also be true: tensors tile the data in order, every one can be read and is found by its name,
 * and nothing stays allocated. Seeds: tests/fuzz/corpus/safetensors.
 *   fuzz_safetensors -max_total_time=60 <scratch corpus> tests/fuzz/corpus/safetensors */
#include <stdlib.h>

#include "base/alloc.h"
#include "format/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const td_safetensors *f, const uint8_t *data, size_t size) {
    const uint8_t *end = NULL;
    unsigned sum = 0;
    for (size_t i = 0; i < td_safetensors_count(f); i++) {
        const td_tensor *t = td_safetensors_at(f, i);
        uint64_t bytes;
        if (!td_tensor_byte_size(t->dtype, t->n_dims, t->dim, &bytes) || bytes != t->size ||
            td_safetensors_find(f, t->name) != t)
            abort();
        if (t->size == 0)
            continue;
        if (end && t->data != end)
            abort();
        for (size_t k = 0; k < t->size; k++)
            sum += t->data[k];
        end = t->data + t->size;
    }
    if (end && end != data + size)
        abort();
    volatile unsigned keep = sum;
    (void)keep;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    td_safetensors *f;
    td_error err;
    long live = td_alloc_live();
    td_status st = td_safetensors_parse(&f, data, size, "fuzz", &err);
    if (st == TD_OK)
        check(f, data, size);
    else if (f || st != TD_E_FORMAT || !err.message[0])
        abort();
    td_safetensors_close(&f);
    if (td_alloc_live() != live)
        abort();
    return 0;
}
