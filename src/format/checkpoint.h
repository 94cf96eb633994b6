/* checkpoint.h - a model directory as published: config.json, generation_config.json, one or many safetensors files,
 * and the quantisation rules of MLX conversions, behind lookups by tensor and module name; or a GGUF file, whose
 * metadata becomes the two configs and whose tensors are found under the published names too.
 *
 * A name given here is the name in the file. Stripping of wrapper prefixes ("model.language_model.") is the job of
 * td_checkpoint_alias: it registers a shorter name for a tensor, and every lookup and message knows both. The tensors
 * of a GGUF file have such an alias from the start: "blk.0.attn_q.weight" is also "layers.0.self_attn.q_proj.weight".
 */
#ifndef TD_FORMAT_CHECKPOINT_H
#define TD_FORMAT_CHECKPOINT_H

#include <jansson.h>

#include "base/log.h"
#include "format/gguf.h"
#include "format/safetensors.h"
#include "tensor/matrix.h"

typedef struct td_checkpoint td_checkpoint;

/* Opens a directory (or, when `path` is a file ending in .safetensors, its directory restricted to that file), or a
 * GGUF model: a file ending in .gguf (of a split model, its first part), or a directory that holds exactly one model
 * in that format and no safetensors. A file of draft heads ("mtp-*.gguf") beside that model is joined to it when it
 * holds the draft layers that the model lacks; an assistant there is td_checkpoint_assistant; alone it is the model.
 * Checks the shard index by the rules of the format (plain file names only, each mapped tensor present in the shard
 * named, no tensor in two shards). `log` gets warnings (tensors in a shard but not in the map). The log callback and
 * its user pointer are copied. Errors name the file: TD_E_NOTFOUND, TD_E_IO, TD_E_FORMAT, TD_E_NOMEM; of
 * GGUF also TD_E_UNSUPPORTED (an architecture or tensor type that Tandem does not have), TD_E_MODEL and TD_E_LIMIT. */
td_status td_checkpoint_open(td_checkpoint **out, const char *path, const td_log *log, td_error *err) TD_MUST_CHECK;
/* A GGUF model, whole, over bytes in memory (tests, fuzzing); `data` must outlive the handle. */
td_status td_checkpoint_parse_gguf(td_checkpoint **out, const uint8_t *data, size_t size, const char *path,
                                   td_error *err) TD_MUST_CHECK;
void td_checkpoint_close(td_checkpoint **ck);

const char *td_checkpoint_path(const td_checkpoint *ck);
/* The GGUF file that the checkpoint is (of a split model, the first part), or NULL. Its weights follow that container's
 * conventions: norms have their 1, value heads of linear attention are tiled, "linear_attn.A" is -exp(A_log). */
const td_gguf *td_checkpoint_gguf(const td_checkpoint *ck);
/* The file of an assistant in the directory that was opened, beside its GGUF model, or NULL. */
const char *td_checkpoint_assistant(const td_checkpoint *ck);
/* Why a file of draft heads that lies beside a GGUF model is not used: a sentence that names it, or "". */
const char *td_checkpoint_note(const td_checkpoint *ck);
/* True for random weights made for measuring, which say so themselves: a member of config.json, or a key of GGUF
 * metadata. */
bool td_checkpoint_synthetic(const td_checkpoint *ck);
#define TD_SYNTHETIC_FIELD "tandem_synthetic"
#define TD_SYNTHETIC_KEY "tandem.synthetic"
/* config.json's root object; generation_config.json's, or NULL. Borrowed. */
const json_t *td_checkpoint_config(const td_checkpoint *ck);
const json_t *td_checkpoint_generation_config(const td_checkpoint *ck);

size_t td_checkpoint_n_tensors(const td_checkpoint *ck);
const td_tensor *td_checkpoint_tensor_at(const td_checkpoint *ck, size_t i);
/* What the families call it: the published name of a tensor out of a GGUF file, otherwise its name. */
const char *td_checkpoint_known_name(const td_checkpoint *ck, const td_tensor *t);
/* Bytes of all weight files. */
size_t td_checkpoint_file_bytes(const td_checkpoint *ck);

/* By file name or alias; NULL when absent. O(1). */
const td_tensor *td_checkpoint_find(const td_checkpoint *ck, const char *name);

/* Makes `alias` find the tensor `name` too. TD_E_FORMAT when two tensors claim one alias (naming both). */
td_status td_checkpoint_alias(td_checkpoint *ck, const char *alias, const char *name, td_error *err) TD_MUST_CHECK;

/* The tensor, with its shape checked: dims[0..n_dims) must equal. TD_E_MODEL: absent (names it and the checkpoint);
 * TD_E_SHAPE: another shape, both shapes printed. */
td_status td_checkpoint_require(const td_checkpoint *ck, const char *name, int n_dims, const uint64_t *dims,
                                const td_tensor **out, td_error *err) TD_MUST_CHECK;

/* A float tensor of any shape, checked as by td_checkpoint_require and converted to a new f32 array in row-major order,
 * aligned to 64 (td_free_aligned). A dtype that is not float is TD_E_SHAPE; a value that is not finite is TD_E_NUMERIC
 * with its place as the position. */
td_status td_checkpoint_array(const td_checkpoint *ck, const char *name, int n_dims, const uint64_t *dims, float **out,
                              td_error *err) TD_MUST_CHECK;

/* As td_checkpoint_array, for a vector of n elements: its shape is [n], or has other dimensions that are all 1 (or
 * none, for n = 1). */
td_status td_checkpoint_vector(const td_checkpoint *ck, const char *name, size_t n, float **out,
                               td_error *err) TD_MUST_CHECK;

/* The matrix of a module: looks for `module`.weight (or the bare name `module`, as fused expert tensors have none of
 * the suffix), and for `module`.scales and `module`.biases. n_stack 0: a plain [n_out, n_in] matrix; else a stack
 * [n_stack, n_out, n_in]. Whether and how it is quantised follows config.json's "quantization" object (explicit entry
 * for the module path, with and without wrapper prefixes; else quantised iff .scales exists) and is checked against the
 * shapes; a contradiction is TD_E_SHAPE naming module, bits from the shapes and bits from the config. */
td_status td_checkpoint_matrix(const td_checkpoint *ck, const char *module, uint32_t n_stack, uint32_t n_out,
                               uint32_t n_in, td_matrix *out, td_error *err) TD_MUST_CHECK;

/* True when the module has a weight under either name. */
bool td_checkpoint_has_matrix(const td_checkpoint *ck, const char *module);

/* ---- fields of a JSON object, with errors that name file, key, value found and type expected ---- */

/* `where` names the object in messages ("config.json", "config.json text_config"). A missing required key, a wrong
 * type, or a value outside [lo, hi] is TD_E_MODEL. The _or variants take a default for an absent or null key. */
td_status td_json_u32(const json_t *o, const char *where, const char *key, uint32_t lo, uint32_t hi, uint32_t *out,
                      td_error *err) TD_MUST_CHECK;
td_status td_json_u32_or(const json_t *o, const char *where, const char *key, uint32_t lo, uint32_t hi, uint32_t def,
                         uint32_t *out, td_error *err) TD_MUST_CHECK;
td_status td_json_f64_or(const json_t *o, const char *where, const char *key, double def, double *out,
                         td_error *err) TD_MUST_CHECK;
td_status td_json_bool_or(const json_t *o, const char *where, const char *key, bool def, bool *out,
                          td_error *err) TD_MUST_CHECK;

/* Parses a whole JSON text. Duplicate keys, trailing garbage, NUL bytes, a byte order mark, "\u0000", lone surrogates
 * and nesting deeper than `max_depth` (at most 128) are TD_E_FORMAT with the byte position. An integer beyond 64 bits
 * becomes a real. A tree can take eighty times the memory of its text, so give texts of strangers a ceiling. Caller
 * json_decref()s *out. `where` names the text. */
td_status td_json_parse(const char *text, size_t size, int max_depth, const char *where, json_t **out,
                        td_error *err) TD_MUST_CHECK;

/* ---- the hub cache ---- */

/* Finds the directory that PATH-OR-ID means: an existing path as it is; else, for "org/name" (optionally
 * "org/name@revision"), the newest complete snapshot in the Hugging Face hub cache rooted at `cache` (a
 * .../huggingface/hub directory: models--org--name/refs, snapshots, blobs). *out is td_free'd by the caller.
 * TD_E_NOTFOUND says which places were searched. */
td_status td_hub_resolve(const char *path_or_id, const char *cache, char **out, td_error *err) TD_MUST_CHECK;

#endif
