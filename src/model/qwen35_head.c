/* qwen35_head.c - finds and loads the draft head that a checkpoint carries (mtp.*).
 *
 * A config may promise a head that the files lost on the way (mlx-lm drops it), and a bundle may join a converted trunk
 * with a head as it was published. So whether there is one is read from the tensors, and whether its norms have their 1
 * is decided from its own norms: of a trained layer they average near 1 with it and near 0 without. The norms before fc
 * are small either way and follow the verdict.
 *
 * An embedding and a word matrix of its own are optional; a head without has the trunk's. So is, in GGUF files, the
 * last norm. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "model/qwen35.h"

#define LAYER "mtp.layers.0."

static bool has_vector(const td_checkpoint *ck, const char *name) {
    return td_checkpoint_find(ck, name) != NULL;
}

/* The first part that is missing; NULL: none is. */
static const char *missing_part(const td_checkpoint *ck, const td_qwen35_config *c) {
    static const char *const vectors[] = {"mtp.pre_fc_norm_embedding.weight",
                                          "mtp.pre_fc_norm_hidden.weight",
                                          LAYER "input_layernorm.weight",
                                          LAYER "post_attention_layernorm.weight",
                                          LAYER "self_attn.q_norm.weight",
                                          LAYER "self_attn.k_norm.weight",
                                          "mtp.norm.weight"};
    const size_t n_vectors = sizeof vectors / sizeof vectors[0] - c->gguf; /* the last is optional there */
    static const char *const matrices[] = {"mtp.fc", LAYER "self_attn.q_proj", LAYER "self_attn.k_proj",
                                           LAYER "self_attn.v_proj", LAYER "self_attn.o_proj"};
    static const char *const dense[] = {LAYER "mlp.gate_proj", LAYER "mlp.up_proj", LAYER "mlp.down_proj"};
    static const char *const moe[] = {LAYER "mlp.shared_expert.gate_proj", LAYER "mlp.shared_expert.up_proj",
                                      LAYER "mlp.shared_expert.down_proj", LAYER "mlp.shared_expert_gate",
                                      LAYER "mlp.gate"};
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++)
        if (!td_checkpoint_has_matrix(ck, matrices[i]))
            return matrices[i];
    for (size_t i = 0; i < n_vectors; i++)
        if (!has_vector(ck, vectors[i]))
            return vectors[i];
    for (size_t i = 0; i < 3 && !c->n_experts; i++)
        if (!td_checkpoint_has_matrix(ck, dense[i]))
            return dense[i];
    for (size_t i = 0; i < 5 && c->n_experts; i++)
        if (!td_checkpoint_has_matrix(ck, moe[i]))
            return moe[i];
    if (c->n_experts && !td_checkpoint_has_matrix(ck, LAYER "mlp.experts.gate_up_proj") &&
        !td_checkpoint_has_matrix(ck, LAYER "mlp.switch_mlp.gate_proj") &&
        !td_checkpoint_has_matrix(ck, LAYER "mlp.experts.0.gate_proj"))
        return LAYER "mlp.experts";
    return NULL;
}

static bool any_part(const td_checkpoint *ck) {
    for (size_t i = 0; i < td_checkpoint_n_tensors(ck); i++)
        if (strncmp(td_model_plain_name(td_checkpoint_known_name(ck, td_checkpoint_tensor_at(ck, i))), "mtp.", 4) == 0)
            return true;
    return false;
}

bool td_qwen35_head_present(const td_checkpoint *ck, const td_qwen35_config *c, char *reason, size_t size) {
    reason[0] = '\0';
    if (!any_part(ck))
        snprintf(reason, size,
                 c->n_mtp ? "config.json promises draft heads (mtp_num_hidden_layers %u), but the files hold no tensor "
                            "of mtp.*"
                          : "the checkpoint has no draft heads",
                 c->n_mtp);
    else if (c->n_mtp > 1)
        snprintf(reason, size, "the draft head has %u layers (mtp_num_hidden_layers), expected 1", c->n_mtp);
    else if (c->mtp_own_embeddings && !td_checkpoint_has_matrix(ck, "mtp.embed_tokens") &&
             !td_checkpoint_has_matrix(ck, "mtp.lm_head"))
        snprintf(reason, size,
                 "config.json promises a draft head with tables of its own (mtp_use_dedicated_embeddings), but the "
                 "files hold none");
    else if (missing_part(ck, c))
        snprintf(reason, size, "the files hold a draft head without %s", missing_part(ck, c));
    return !reason[0];
}

static td_status mean_of(const td_checkpoint *ck, const char *name, uint32_t n, double *sum, td_error *err) {
    float *v;
    TD_TRY(td_checkpoint_vector(ck, name, n, &v, err));
    for (uint32_t i = 0; i < n; i++)
        *sum += v[i] / (double)n;
    td_free_aligned(v);
    return TD_OK;
}

/* A published trunk has a published head; one converted by MLX may have either; GGUF has one rule for all norms. */
static td_status norms_are_raw(const td_checkpoint *ck, const td_qwen35_config *c, bool trunk_raw, bool *raw,
                               td_error *err) {
    *raw = !c->gguf;
    if (trunk_raw || c->gguf)
        return TD_OK;
    double sum = 0;
    TD_TRY(mean_of(ck, LAYER "input_layernorm.weight", c->n_embd, &sum, err));
    TD_TRY(mean_of(ck, LAYER "post_attention_layernorm.weight", c->n_embd, &sum, err));
    *raw = sum / 2 < 0.5;
    return TD_OK;
}

static size_t all_matrices(td_qwen35_head *h, td_matrix *m[16]) {
    td_qwen35_layer *l = &h->layer;
    td_matrix *const all[] = {&h->fc,   &h->lm_head, &l->q,    &l->k,           &l->v,         &l->o,
                              &l->gate, &l->up,      &l->down, &l->expert_gate, &l->expert_up, &l->expert_down};
    memcpy(m, all, sizeof all);
    return sizeof all / sizeof all[0];
}

/* What is counted is what is left after narrowing. */
static td_status narrow_all(td_qwen35_head *h, uint32_t bits, td_qwen35_tally *t, td_error *err) {
    td_matrix *m[16];
    size_t n = all_matrices(h, m);
    for (size_t i = 0; i < n && bits < 16; i++) {
        uint64_t was = td_matrix_bytes(m[i]);
        bool owned = m[i]->owned != NULL;
        TD_TRY(td_model_narrow(m[i], bits, err));
        if (!m[i]->data)
            continue;
        *(owned ? &t->heap_bytes : &t->weight_bytes) -= was;
        *(m[i]->owned ? &t->heap_bytes : &t->weight_bytes) += td_matrix_bytes(m[i]);
    }
    return TD_OK;
}

static td_status load_table(const td_qwen35_source *s, const char *module, td_matrix *out, td_error *err) {
    return td_checkpoint_has_matrix(s->ck, module) ? td_qwen35_matrix(s, module, s->c->n_vocab, s->c->n_embd, out, err)
                                                   : TD_OK;
}

/* What the trunk has, too. */
static td_status load_ends(td_qwen35_head *h, td_qwen35_source *s, bool trunk_raw, td_error *err) {
    TD_TRY(load_table(s, "mtp.embed_tokens", &h->embed, err));
    TD_TRY(load_table(s, "mtp.lm_head", &h->lm_head, err));
    if (td_checkpoint_find(s->ck, "mtp.norm.weight"))
        return td_qwen35_norm(s, "mtp.norm.weight", s->c->n_embd, &h->norm, err);
    td_qwen35_source trunk = *s;
    trunk.raw = trunk_raw;
    return td_qwen35_norm(&trunk, "norm.weight", s->c->n_embd, &h->norm, err);
}

td_status td_qwen35_head_load(td_qwen35_head *h, const td_checkpoint *ck, const td_qwen35_config *c, bool raw,
                              uint32_t bits, td_qwen35_tally *tally, td_error *err) {
    td_qwen35_source s = {.ck = ck, .c = c, .tally = tally};
    TD_TRY(norms_are_raw(ck, c, raw, &s.raw, err));
    TD_TRY(td_qwen35_matrix(&s, "mtp.fc", c->n_embd, 2 * c->n_embd, &h->fc, err));
    TD_TRY(td_qwen35_norm(&s, "mtp.pre_fc_norm_embedding.weight", c->n_embd, &h->embed_norm, err));
    TD_TRY(td_qwen35_norm(&s, "mtp.pre_fc_norm_hidden.weight", c->n_embd, &h->hidden_norm, err));
    TD_TRY(load_ends(h, &s, raw, err));
    TD_TRY(td_qwen35_layer_load(&h->layer, &s, LAYER, true, err));
    return narrow_all(h, bits, tally, err);
}

void td_qwen35_head_free(td_qwen35_head *h) {
    td_free_aligned(h->embed_norm);
    td_free_aligned(h->hidden_norm);
    td_free_aligned(h->norm);
    td_matrix_free(&h->fc);
    td_matrix_free(&h->embed);
    td_matrix_free(&h->lm_head);
    td_qwen35_layer_free(&h->layer);
    *h = (td_qwen35_head){0};
}
