/* model.h - a trunk: a family's weights and its forward pass over n rows of any number of sequences.
 *
 * A model owns its weights (or views of the checkpoint's map, which must outlive it) and the scratch of one pass. It
 * keeps nothing of a sequence: keys and values lie in pages that the caller gives, so a rejected row is a length that
 * goes back. One thread runs passes of a model. */
#ifndef TD_MODEL_MODEL_H
#define TD_MODEL_MODEL_H

#include "backend/backend.h"
#include "base/log.h"
#include "format/checkpoint.h"

typedef struct td_model td_model;

typedef struct td_model_options {
    td_kv_type kv_type;     /* default TD_KV_BF16 */
    uint32_t page_tokens;   /* positions a KV page, a power of two, 8..1024; default 64 */
    uint32_t max_rows;      /* rows of one pass; default 512 */
    uint32_t max_out;       /* rows of one pass whose hidden state is asked for; default max_rows */
    uint32_t max_logits;    /* rows of one pass whose logits are asked for; default 16 */
    uint32_t max_tentative; /* rows of one sequence and pass that may be taken back; default 16 */
    bool mtp;               /* load the checkpoint's own draft heads too, if it has any */
    uint32_t mtp_bits;      /* 16 (or 0): the heads as the file has them; 8 or 4: quantised (affine) at load */
    const td_log *log;
} td_model_options;

td_model_options td_model_options_default(void);

typedef struct td_model_info {
    const char *family; /* "gemma4" */
    uint32_t n_vocab;   /* words of the head: logits a row */
    uint32_t n_embd;    /* width of the hidden state that a pass gives out */
    uint32_t n_layers;
    uint32_t n_ctx_train;    /* positions the model was made for (max_position_embeddings) */
    uint32_t weight_bits;    /* width of most of the trunk's matrices: 32, 16, 8, 6, 5, 4, 3 or 2 */
    uint64_t n_params;       /* weights, as counted before quantisation */
    uint64_t weight_bytes;   /* bytes of weights in use, as they lie in the files */
    uint64_t lookup_bytes;   /* of those, tables read a row at a time (embeddings that are no head); may stay on disk */
    uint64_t row_bytes;      /* bytes of weights that a pass of one row reads */
    uint64_t heap_bytes;     /* allocated for converted weights; heads not counted */
    uint64_t scratch_bytes;  /* allocated for passes */
    char weight_format[48];  /* of most of the trunk's matrices, as td_matrix_describe says it */
    uint32_t n_skipped;      /* tensors left alone knowingly (vision, audio, unused K/V of shared layers) */
    uint64_t state_bytes;    /* recurrent memory of a sequence: committed part and log; 0: the family has none */
    uint64_t snapshot_bytes; /* its committed part, which stands at the start */
    bool mtp_promised;       /* its config or its files speak of heads */
    bool has_mtp;            /* the checkpoint holds heads of its own */
    bool mtp_loaded;         /* and they were asked for: ops->heads can run */
    uint64_t mtp_bytes;      /* weights of the loaded heads, in files and allocated (shared tables not counted) */
    char mtp_format[48];     /* of most of their matrices */
    char mtp_reason[240];    /* why has_mtp is false; "" when it is true */
} td_model_info;

/* One pass. Rows of a sequence are consecutive, in the order of their positions, and continue its KV. Pages for every
 * row's position must be present in every group. */
typedef struct td_pass {
    uint32_t n_rows;         /* 1..max_rows */
    const td_token *token;   /* [n_rows], each in [0, n_vocab) */
    const int32_t *pos;      /* [n_rows] */
    const uint32_t *row_seq; /* [n_rows] index of the row's sequence, ascending */
    uint32_t n_seq;
    const td_kv_pages *pages[TD_KV_MAX_GROUPS]; /* a group: [n_seq] page tables */
    const int32_t *n_keys;                      /* [n_seq] keys once this pass's rows are written */
    void *const *state;                         /* [n_seq] recurrent memory; unused when info.state_bytes is 0 */
    const uint32_t *n_sure;                     /* [n_seq] leading rows of each sequence that stay whatever is sampled;
                                                 * the rest are tentative */
    const uint32_t *n_commit;                   /* [n_seq] of the sequence's last tentative rows the first n stay: they
                                                 * enter the state before this pass's rows do; NULL: none anywhere */
    const td_mark *mark;                        /* [n_marks] copies of states in mid-pass, ordered by sequence and rows,
                                                 * snapshot_bytes each */
    uint32_t n_marks;
    uint32_t n_out;            /* rows whose final hidden state is wanted; 0 is legal */
    const int32_t *out_row;    /* [n_out] row numbers, ascending */
    float *hidden;             /* [n_out][n_embd], after the final norm */
    uint32_t n_logits;         /* rows whose logits are wanted */
    const int32_t *logits_out; /* [n_logits] indices into the out rows, ascending */
    float *logits;             /* [n_logits][n_vocab], softcapped, natural-log scale */
} td_pass;

/* One pass of the checkpoint's own draft heads. A row stands at a position i and joins the token of position i + 1 with
 * the hidden state of position i: the trunk's, or where that is unknown the heads' own. It leaves its K and V beside
 * the trunk's at position i, and guesses the token of position i + 2. Rows are consecutive and ordered as in td_pass;
 * rows before them must have been here, or drafts are merely bad. */
typedef struct td_head_pass {
    uint32_t n_rows;         /* 1..max_rows */
    const td_token *token;   /* [n_rows] of position pos + 1 */
    const float *hidden;     /* [n_rows][n_embd], backend memory */
    const int32_t *pos;      /* [n_rows] */
    const uint32_t *row_seq; /* [n_rows] ascending */
    uint32_t n_seq;
    const td_kv_pages *pages[TD_KV_MAX_GROUPS];
    const int32_t *n_keys;  /* [n_seq] head rows once these are written */
    uint32_t n_out;         /* rows that guess; the others leave K and V only */
    const int32_t *out_row; /* [n_out] ascending */
    float *out;             /* [n_out][n_embd] the heads' own hidden state, for the next row; may not overlap hidden */
    const td_token *word;   /* [n_words] the words that are scored; NULL: all of them, and n_words is n_vocab */
    uint32_t n_words;
    float *logits; /* [n_out][n_words] */
} td_head_pass;

/* A load that somebody may watch. */
typedef struct td_loading {
    td_progress_fn progress; /* or NULL; stage "load" */
    void *user;
    uint64_t done, total;  /* bytes */
    const td_matrix *slow; /* the first that the backend decodes at every pass (td_backend_ops.decodes); NULL: none */
    uint64_t slow_bytes;   /* of all of those */
} td_loading;

typedef struct td_model_ops {
    td_status (*forward)(td_model *m, const td_pass *pass, td_error *err);
    /* Input embeddings as the trunk's first layer sees them (scaled). y [n][n_embd], backend memory. */
    void (*embed)(td_model *m, float *y, const td_token *token, uint32_t n);
    /* Families with recurrent memory only; a state is backend memory of state_bytes, 64-byte aligned, a saved one of
     * snapshot_bytes. state_reset: before the first row of a sequence. state_commit: what td_pass.n_commit does,
     * without a pass. state_copy: the committed part; the log of `to` is void. */
    void (*state_reset)(td_model *m, void *state);
    void (*state_commit)(td_model *m, void *state, uint32_t n);
    void (*state_copy)(td_model *m, void *to, const void *from);
    /* NULL in families without heads of their own; only when info.mtp_loaded. */
    td_status (*heads)(td_model *m, const td_head_pass *pass, td_error *err);
    td_status (*adopt)(td_model *m, td_loading *l, td_error *err); /* td_model_load_all of all that passes read whole */
    void (*close)(td_model *m);
} td_model_ops;

/* Public part of every family's own struct (its first member). */
struct td_model {
    const td_model_ops *ops;
    td_backend *be; /* borrowed */
    td_model_info info;
    td_kv_layout kv;
    td_model_options opt;
};

/* Recognises the family by config.json's model_type and loads it. Every tensor of the checkpoint must be known:
 * an unknown one is TD_E_MODEL naming it. The checkpoint and the backend must outlive the model.
 * Errors: TD_E_UNSUPPORTED (the family, or a feature of it), TD_E_MODEL, TD_E_SHAPE, TD_E_NUMERIC, TD_E_NOMEM. */
td_status td_model_open(td_model **out, td_checkpoint *ck, td_backend *be, const td_model_options *opt,
                        td_error *err) TD_MUST_CHECK;
/* Reads the weights, so that no pass waits for the disk: the backend arranges them for speed (td_backend_ops.adopt),
 * and the pages of what it has copied leave the process; what it leaves alone is read where it lies. Tables of which
 * passes read rows stay on disk. TD_E_CANCELLED when progress says so; TD_E_NOMEM. */
td_status td_model_load(td_model *m, td_progress_fn progress, void *user, td_error *err) TD_MUST_CHECK;
/* The same of n matrices, for families and drafters. */
td_status td_model_load_all(td_backend *be, td_matrix *const *m, size_t n, td_loading *l, td_error *err) TD_MUST_CHECK;
void td_model_close(td_model **m);

/* Runs a pass and waits for it. On failure the pages' new rows are undefined and so are the states of its sequences;
 * everything else is as before. */
td_status td_model_forward(td_model *m, const td_pass *pass, td_error *err) TD_MUST_CHECK;
td_status td_model_heads(td_model *m, const td_head_pass *pass, td_error *err) TD_MUST_CHECK;

/* ---- for families ---- */

/* The object that holds the text fields (root.text_config or root itself) and its name for messages. */
const json_t *td_model_text_config(const td_checkpoint *ck, const char **where);

/* Registers for every tensor its name without wrapper prefixes (an optional "model.", then "language_model.", then
 * "model."), so that a family asks for "layers.0.mlp.up_proj". */
td_status td_model_alias_plain_names(td_checkpoint *ck, td_error *err) TD_MUST_CHECK;
/* The name without those prefixes; points into `name`. */
const char *td_model_plain_name(const char *name);

/* Sets layout->layer[i] offsets and page sizes from group, n_kv_heads and head_dim, which are filled already. */
void td_kv_layout_finish(td_kv_layout *layout);

/* Quantises a matrix in place to `bits` in the widest group that divides a row. One that is as narrow already, that no
 * group divides, or that is not there, stays. */
td_status td_model_narrow(td_matrix *m, uint32_t bits, td_error *err) TD_MUST_CHECK;

/* Sets weight_bits and weight_format from bits_count [33], the weights by width of their code, and `some`, [n] of the
 * matrices: the first of that width gives the format. */
void td_model_describe_weights(td_model_info *info, const uint64_t *bits_count, const td_matrix *const *some, size_t n);

#endif
