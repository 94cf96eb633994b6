/* drafting.h - which drafter an engine gets: the checkpoint's heads, an assistant, a whole smaller model, prompt
 * lookup, or one of the first three continued by lookup. What was asked for and cannot be had is an error; what was not
 * asked for and cannot be had is a reason. */
#ifndef TD_ENGINE_DRAFTING_H
#define TD_ENGINE_DRAFTING_H

#include "engine/engine.h"

/* Drafts a round that the options allow at most, whichever drafter it will be; e->info.mtp_depth is what it is. */
uint32_t td_drafting_depth(const td_engine_options *o);

/* The decoder that the options ask for: its sequences, rows, depth. No cache. */
td_decoder_options td_drafting_decoder(const td_engine_options *o);

/* TD_E_ARG: options that contradict each other. */
td_status td_drafting_check(const td_engine_options *o, td_error *err) TD_MUST_CHECK;

/* True when the trunk's own heads should be loaded with it. */
bool td_drafting_wants_heads(const td_engine_options *o);

/* Opens e->drafter and fills the mtp fields of e->info; it may have been made for a longer context than e->info.n_ctx
 * becomes. The trunk is open. */
td_status td_drafting_open(td_engine *e, const td_engine_options *o, td_error *err) TD_MUST_CHECK;

#endif
