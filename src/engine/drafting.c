/* drafting.c - chooses and opens the drafter. */
#include "engine/drafting.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "decode/drafter_chain.h"
#include "decode/drafter_lookup.h"
#include "decode/drafter_model.h"
#include "engine/texts.h"

#define AUTO_DEPTH 8u
#define MOST_SAMPLED                                                                                                   \
    64u /* rows of a pass that are sampled, while there are no more sequences: a row of 262k words takes               \
         * a megabyte, and a pass so wide is bound by arithmetic, where drafts no longer pay */
#define LOOKUP_DEPTH 8u /* tokens that lookup may append to another drafter's: they cost rows, but no drafting */

/* What a drafter is asked for at most; what lookup appends is on top of it. */
static uint32_t own_depth(const td_engine_options *o) {
    return o->num_mtp_tokens == TD_DEPTH_AUTO ? AUTO_DEPTH : o->num_mtp_tokens;
}

static uint32_t chained_depth(const td_engine_options *o) {
    uint32_t depth = own_depth(o) + LOOKUP_DEPTH;
    return depth < TD_MAX_DRAFT ? depth : TD_MAX_DRAFT;
}

uint32_t td_drafting_depth(const td_engine_options *o) {
    return o->lookup && own_depth(o) ? chained_depth(o) : own_depth(o);
}

td_decoder_options td_drafting_decoder(const td_engine_options *o) {
    td_decoder_options d = {.max_seqs = o->parallel,
                            .prefill_rows = o->prefill_size,
                            .max_depth = td_drafting_depth(o),
                            .min_prob = o->mtp_min_prob,
                            .forces = o->n_forced_acceptance > 0};
    for (uint32_t i = 0; i < o->n_forced_acceptance && i < TD_MAX_DRAFT; i++)
        d.forced[i] = o->forced_acceptance[i];
    uint32_t wanted = o->parallel * (1 + d.max_depth);
    wanted = wanted < MOST_SAMPLED ? wanted : MOST_SAMPLED;
    d.max_sampled = wanted > o->parallel ? wanted : o->parallel;
    return d;
}

static td_status check_forced(const td_engine_options *o, td_error *err) {
    if (o->n_forced_acceptance > TD_MAX_DRAFT)
        return td_fail(err, TD_E_ARG, "a forced acceptance of %u drafts, expected at most %d", o->n_forced_acceptance,
                       TD_MAX_DRAFT);
    float before = 1;
    for (uint32_t i = 0; i < o->n_forced_acceptance; i++) {
        float p = o->forced_acceptance[i];
        if (!(p >= 0 && p <= before))
            return td_fail(err, TD_E_ARG, "a forced acceptance of %g at position %u, expected 0 to %g", (double)p,
                           i + 1, (double)before);
        before = p;
    }
    return TD_OK;
}

td_status td_drafting_check(const td_engine_options *o, td_error *err) {
    TD_TRY(check_forced(o, err));
    if (o->num_mtp_tokens != TD_DEPTH_AUTO && o->num_mtp_tokens > TD_MAX_DRAFT)
        return td_fail(err, TD_E_ARG, "%u drafts a round, expected 0 to %d", o->num_mtp_tokens, TD_MAX_DRAFT);
    if (o->mtp_fixed && o->num_mtp_tokens == TD_DEPTH_AUTO)
        return td_fail(err, TD_E_ARG, "a fixed depth was asked for, but not how many drafts a round");
    if (!(o->mtp_min_prob >= 0 && o->mtp_min_prob <= 1))
        return td_fail(err, TD_E_ARG, "drafts that end at a probability of %g, expected 0 to 1",
                       (double)o->mtp_min_prob);
    if (o->mtp_bits != 0 && o->mtp_bits != 4 && o->mtp_bits != 8 && o->mtp_bits != 16)
        return td_fail(err, TD_E_ARG, "draft heads of %u bits, expected 4, 8 or 16", o->mtp_bits);
    if (o->no_mtp && (o->mtp || o->assistant))
        return td_fail(err, TD_E_ARG, "drafting with heads was both asked for and switched off");
    if (o->assistant && o->draft_model)
        return td_fail(err, TD_E_ARG, "both an assistant and a draft model were given, expected one of them");
    if (o->mtp && o->draft_model)
        return td_fail(err, TD_E_ARG, "both draft heads and a draft model were asked for, expected one of them");
    if (o->mtp_bits && o->draft_model)
        return td_fail(err, TD_E_ARG, "a width of draft heads was given, but a draft model runs as it is stored");
    if (o->mtp_shortlist && (o->assistant || o->draft_model))
        return td_fail(err, TD_E_ARG,
                       "a shortlist was given, but only heads inside a checkpoint have one, and %s drafts",
                       o->assistant ? "an assistant" : "a draft model");
    return TD_OK;
}

bool td_drafting_wants_heads(const td_engine_options *o) {
    return !o->no_mtp && !o->assistant && !o->draft_model && td_drafting_depth(o) > 0;
}

/* Heads keep the trunk's width unless asked otherwise. */
static uint32_t head_bits(const td_engine *e, uint32_t asked) {
    if (asked)
        return asked;
    uint32_t trunk = e->model->info.weight_bits;
    return trunk <= 4 ? 4 : trunk <= 8 ? 8 : 16;
}

static td_status open_checkpoint(td_engine *e, const td_engine_options *o, const char *path_or_id, const char *what,
                                 td_error *err) {
    td_status st = td_hub_resolve(path_or_id, o->hub_cache, &e->drafter_path, err);
    if (st == TD_OK)
        st = td_checkpoint_open(&e->drafter_ck, e->drafter_path, &e->log, err);
    return st == TD_OK ? TD_OK : td_error_prefix(err, st, "%s", what);
}

static td_status open_assistant(td_engine *e, const td_engine_options *o, const char *path_or_id, td_error *err) {
    TD_TRY(open_checkpoint(e, o, path_or_id, "assistant", err));
    td_drafter_options d = td_drafter_options_default();
    d.max_seqs = o->parallel;
    d.bits = head_bits(e, o->mtp_bits);
    d.random_weights = o->mtp_random_weights;
    d.log = &e->log;
    td_status st = td_drafter_assistant_open(&e->drafter, e->drafter_ck, e->model, &d, err);
    return st == TD_OK ? TD_OK : td_error_prefix(err, st, "assistant");
}

/* An assistant that lies beside the trunk. Where heads were asked for it must fit; otherwise a misfit is a reason. */
static td_status open_found_assistant(td_engine *e, const td_engine_options *o, td_error *err) {
    td_error why;
    td_status st = open_assistant(e, o, td_checkpoint_assistant(e->ck), o->mtp ? err : &why);
    if (st == TD_OK || o->mtp)
        return st;
    if (st == TD_E_NOMEM)
        return td_fail(err, st, "%s", why.message);
    td_drafter_close(&e->drafter);
    td_checkpoint_close(&e->drafter_ck);
    td_log_warn(&e->log, "%s", why.message);
    snprintf(e->reason, sizeof e->reason, "%s", why.message);
    return TD_OK;
}

static td_status open_heads(td_engine *e, const td_engine_options *o, td_error *err) {
    td_drafter_options d = td_drafter_options_default();
    d.max_seqs = o->parallel;
    d.shortlist = o->mtp_shortlist;
    d.log = &e->log;
    return td_drafter_heads_open(&e->drafter, e->model, &d, err);
}

/* A word must have one number in both models, or every draft would be another word. */
static td_status check_vocabulary(const td_engine *e, td_error *err) {
    td_tokenizer *t = NULL;
    td_token first;
    if (!e->tokenizer)
        return TD_OK;
    td_status st = td_texts_tokenizer(&t, e->drafter_ck, err);
    if (st == TD_OK && !td_tokenizer_same_vocab(e->tokenizer, t, &first))
        st = td_fail(err, TD_E_MODEL, "%s: token %d is another word than the trunk's", e->drafter_path, first);
    td_tokenizer_close(&t);
    return st == TD_E_NOTFOUND ? TD_OK : st;
}

static td_status open_draft_model(td_engine *e, const td_engine_options *o, td_error *err) {
    TD_TRY(open_checkpoint(e, o, o->draft_model, "draft model", err));
    td_drafter_model_options d = td_drafter_model_options_default();
    d.max_seqs = o->parallel;
    d.n_ctx = e->info.n_ctx;
    d.kv_type = o->kv_f32 ? TD_KV_F32 : TD_KV_BF16;
    d.page_tokens = o->kv_page;
    d.log = &e->log;
    td_status st = check_vocabulary(e, err);
    if (st == TD_OK)
        st = td_drafter_model_open(&e->drafter, e->drafter_ck, e->be, e->info.n_vocab, &d, err);
    return st == TD_OK ? TD_OK : td_error_prefix(err, st, "draft model");
}

static td_status open_lookup(td_engine *e, const td_engine_options *o, td_error *err) {
    if (e->drafter) {
        td_drafter *inner = e->drafter;
        td_drafter_chain_options c = td_drafter_chain_options_default();
        c.ngrams.n_ctx = e->info.n_ctx;
        c.inner_depth = own_depth(o);
        e->info.mtp_depth = chained_depth(o);
        td_status st = td_drafter_chain_open(&e->drafter, inner, &c, err);
        if (st != TD_OK)
            e->drafter = inner;
        return st;
    }
    td_drafter_lookup_options l = td_drafter_lookup_options_default();
    l.max_seqs = o->parallel;
    l.ngrams.n_ctx = e->info.n_ctx;
    return td_drafter_lookup_open(&e->drafter, &l, err);
}

/* Why nothing drafts, when nothing was asked for. */
static void explain(td_engine *e, const td_engine_options *o) {
    const td_model_info *info = &e->model->info;
    if (e->reason[0]) /* said already */
        return;
    if (o->no_mtp)
        snprintf(e->reason, sizeof e->reason, "switched off (--no-mtp)");
    else if (td_checkpoint_note(e->ck)[0])
        snprintf(e->reason, sizeof e->reason, "%s", td_checkpoint_note(e->ck));
    else if (info->mtp_reason[0])
        snprintf(e->reason, sizeof e->reason, "%s", info->mtp_reason);
    else
        snprintf(e->reason, sizeof e->reason,
                 "the checkpoint holds no draft heads, and neither an assistant "
                 "(--mtp-assistant-model), a draft model (--draft-model) nor --lookup was asked for");
}

/* Settings of heads that there are none of. A promise that the files do not keep has been warned of. */
static td_status check_heads(const td_engine *e, const td_engine_options *o, td_error *err) {
    const td_model_info *info = &e->model->info;
    if (info->mtp_promised || o->no_mtp || !(o->mtp || o->mtp_bits || o->mtp_shortlist))
        return TD_OK;
    const char *option = o->mtp ? "--mtp" : o->mtp_bits ? "--mtp-bits" : "--mtp-shortlist";
    if (td_checkpoint_note(e->ck)[0])
        return td_fail(err, TD_E_MODEL, "%s: %s, but %s", e->trunk_path, option, td_checkpoint_note(e->ck));
    return td_fail(err, TD_E_MODEL, "%s: %s, but the checkpoint holds no draft heads (family %s)%s", e->trunk_path,
                   option, info->family,
                   strcmp(info->family, "gemma4") == 0 ? "; give its assistant with --mtp-assistant-model" : "");
}

static td_status open_drafter(td_engine *e, const td_engine_options *o, td_error *err) {
    const td_model_info *info = &e->model->info;
    if (o->assistant)
        TD_TRY(open_assistant(e, o, o->assistant, err));
    else if (o->draft_model)
        TD_TRY(open_draft_model(e, o, err));
    else if (info->mtp_loaded)
        TD_TRY(open_heads(e, o, err));
    else if (td_checkpoint_assistant(e->ck) && !o->no_mtp && !o->mtp_shortlist)
        TD_TRY(open_found_assistant(e, o, err));
    else
        TD_TRY(check_heads(e, o, err));
    return o->lookup ? open_lookup(e, o, err) : TD_OK;
}

td_status td_drafting_open(td_engine *e, const td_engine_options *o, td_error *err) {
    e->info.mtp_reason = e->reason;
    e->info.mtp_kind = e->info.drafter_format = "";
    if (td_drafting_depth(o) == 0) {
        snprintf(e->reason, sizeof e->reason, "the depth is 0 (--num-mtp-tokens 0)");
        return TD_OK;
    }
    e->info.mtp_depth = own_depth(o);
    TD_TRY(open_drafter(e, o, err));
    if (!e->drafter) {
        e->info.mtp_depth = 0;
        explain(e, o);
        return TD_OK;
    }
    e->info.mtp_kind = e->drafter->kind;
    e->info.drafter_format = e->drafter->format;
    e->info.mtp_active = true;
    e->info.mtp_auto = !o->mtp_fixed;
    return TD_OK;
}
