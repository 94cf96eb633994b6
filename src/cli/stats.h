/* stats.h - the figures of one answer, as a line for people and as JSON for scripts. */
#ifndef TD_CLI_STATS_H
#define TD_CLI_STATS_H

#include <jansson.h>

#include "base/buf.h"
#include "tandem.h"

/* Tokens a second of decoding; 0 when nothing was decoded. */
double td_stats_speed(const td_result *r);
/* Tokens a round; 1 for plain decoding. */
double td_stats_per_round(const td_result *r);

/* "62% 38% 24% 16%": how often the draft at each position was accepted when there was one; "" without drafts. */
void td_stats_acceptance(td_buf *b, const td_result *r);

/* One line: speed of decoding, tokens a round, acceptance, speed of the prompt. */
void td_stats_line(td_buf *b, const td_result *r);

/* The object of `tandem run --json`; NULL: out of memory. */
json_t *td_stats_json(const td_result *r, const td_engine_info *info, uint64_t seed);

/* Adds the figures of `r` to `sum`: counts and seconds; not its text or tokens. */
void td_stats_add(td_result *sum, const td_result *r);

#endif
