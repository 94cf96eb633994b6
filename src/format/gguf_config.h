/* gguf_config.h - a config.json and a generation_config.json for a model that came as GGUF, so that every family has
 * one reader of configurations. Messages about a key then speak of the published config's name for it. */
#ifndef TD_FORMAT_GGUF_CONFIG_H
#define TD_FORMAT_GGUF_CONFIG_H

#include "format/checkpoint.h"
#include "format/gguf.h"
#include "format/gguf_names.h"

/* The architecture of the file, and how many of its blocks are the trunk's. TD_E_UNSUPPORTED names another
 * architecture; TD_E_MODEL. */
td_status td_gguf_read_arch(const td_gguf *g, td_gguf_arch *arch, uint32_t *n_trunk_layers,
                            td_error *err) TD_MUST_CHECK;

/* New references; NULL on failure. `ck` finds the tensors by both their names: what is not in the metadata (tied
 * embeddings, layers without a V projection, the part of a head that turns) is read off them. n_draft_layers: of a file
 * of heads that was joined to the model; 0: none. */
td_status td_gguf_make_config(const td_checkpoint *ck, const td_gguf *g, uint32_t n_draft_layers, json_t **config,
                              json_t **generation, td_error *err) TD_MUST_CHECK;

#endif
