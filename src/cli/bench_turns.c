/* bench_turns.c - tandem bench serve: what a prompt cache saves the second turn of a conversation. A long first turn,
 * its second turn, and another first turn of the same length, all alone on the server. */
#include "base/alloc.h"
#include "cli/bench_served.h"

static const td_bench_column columns[] = {
    {"turn", "turn", 0},
    {"prompt_tokens", "prompt", 0},
    {"cached_tokens", "cached", 0},
    {"ttft_ms", "first token ms", 1},
};

/* A turn that fails becomes a note: TD_OK, and c->state says it. */
static td_status take_turn(td_served *s, td_bench_table *t, const char *turn, td_bench_call *c, json_t *messages,
                           td_error *err) {
    td_error failed = {0};
    td_status st = td_served_one(s, c, messages, s->answer, NULL, NULL, &failed);
    if (st == TD_OK)
        td_bench_row(t, json_pack("[s,I,I,f]", turn, (json_int_t)c->prompt_tokens, (json_int_t)c->cached_tokens,
                                  1e3 * (c->first - c->began)));
    else if (st == TD_E_IO)
        td_bench_note(s->report, "no figures of the %s turn: %s", turn, failed.message);
    else if (err)
        *err = failed;
    return st == TD_E_IO ? TD_OK : st;
}

static json_t *second_turn(const char *text, td_bench_call *first) {
    json_t *turns = td_served_say(json_array(), "user", text);
    turns = td_served_say(turns, "assistant", td_buf_str(&first->text));
    return td_served_say(turns, "user", "And what would you change about that?");
}

static td_status take_turns(td_served *s, td_bench_table *t, td_bench_call call[3], const char *text, const char *other,
                            td_error *err) {
    TD_TRY(take_turn(s, t, "first", &call[0], td_served_say(json_array(), "user", text), err));
    if (call[0].state != TD_CALL_OK)
        return TD_OK; /* the others are no shorter */
    TD_TRY(take_turn(s, t, "second", &call[1], second_turn(text, &call[0]), err));
    return take_turn(s, t, "another first", &call[2], td_served_say(json_array(), "user", other), err);
}

td_status td_served_turns(td_served *s, td_error *err) {
    td_bench_table *t = td_bench_table_new(s->report, "cache", "Second turn of a conversation", columns, 4);
    td_bench_call call[3];
    for (int i = 0; i < 3; i++)
        td_bench_call_init(&call[i]);
    char *text = td_served_text(s, 1, 4 * s->prompt), *other = td_served_text(s, 1, 4 * s->prompt);
    td_status st = t && text && other ? take_turns(s, t, call, text, other, err)
                                      : td_fail(err, TD_E_NOMEM, "out of memory for a conversation");
    if (text)
        td_served_learn(s, text, &call[0]);
    td_free(text);
    td_free(other);
    for (int i = 0; i < 3; i++)
        td_bench_call_free(&call[i]);
    return st;
}
