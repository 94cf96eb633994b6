/* gguf_names.h - how GGUF files of the families call their tensors, and what the families call them. */
#ifndef TD_FORMAT_GGUF_NAMES_H
#define TD_FORMAT_GGUF_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TD_GGUF_KNOWN_NAME_SIZE 160

/* Architectures of general.architecture. */
typedef enum td_gguf_arch {
    TD_GGUF_ARCH_GEMMA4,
    TD_GGUF_ARCH_GEMMA4_ASSISTANT,
    TD_GGUF_ARCH_QWEN35,
    TD_GGUF_ARCH_QWEN35MOE,
    TD_GGUF_ARCH_COUNT
} td_gguf_arch;

/* False: not one of them. "gemma4_assistant", which early converters wrote, is the second. */
bool td_gguf_arch_parse(const char *name, size_t size, td_gguf_arch *out);

/* The family's name of the tensor `name`, as a published checkpoint has it without wrapper prefixes, in `out`. Blocks
 * from n_trunk_layers on are draft layers. False: no such tensor in this architecture. */
bool td_gguf_known_name(td_gguf_arch arch, uint32_t n_trunk_layers, const char *name,
                        char out[TD_GGUF_KNOWN_NAME_SIZE]);

#endif
