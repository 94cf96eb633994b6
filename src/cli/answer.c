/* answer.c - see answer.h. */
#include "cli/answer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "cli/progress.h"
#include "cli/signals.h"

static void put(td_answer *a, const char *text, size_t n) {
    if (n == 0 || a->broken)
        return;
    if (fwrite(text, 1, n, stdout) != n)
        a->broken = !td_report_flush();
    a->last = text[n - 1];
}

/* How many bytes of the round's text its accepted drafts made. Text that a stop string or half a character held back
 * belongs to an earlier round, so this is about right, and always ends at a character. */
static size_t drafted_bytes(const td_answer *a, const char *text, size_t n_text, const td_token *tokens,
                            const bool *drafted, size_t n_tokens) {
    size_t n = 0;
    while (n < n_tokens && drafted[n])
        n++;
    char *piece = NULL;
    size_t n_piece = 0;
    if (n == 0 || td_engine_detokenize(a->engine, tokens, n, false, &piece, &n_piece, NULL) != TD_OK)
        return 0;
    td_text_free(piece);
    if (n_piece > n_text)
        n_piece = n_text;
    while (n_piece > 0 && n_piece < n_text && ((unsigned char)text[n_piece] & 0xC0) == 0x80)
        n_piece--;
    return n_piece;
}

static bool on_text(void *user, const char *text, size_t n_text, const td_token *tokens, const bool *drafted,
                    size_t n_tokens) {
    td_answer *a = user;
    if (a->stream && n_text > 0) {
        td_progress_clear();
        size_t coloured = a->show_drafts ? drafted_bytes(a, text, n_text, tokens, drafted, n_tokens) : 0;
        if (coloured > 0) {
            fputs(a->style.draft, stdout);
            put(a, text, coloured);
            fputs(a->style.off, stdout);
        }
        put(a, text + coloured, n_text - coloured);
        a->broken = !td_report_flush() || a->broken;
    }
    return !a->broken && !td_interrupted();
}

td_status td_answer_prompt(td_answer *a, const td_token *prompt, size_t n_prompt, td_result *result, td_error *err) {
    a->last = 0;
    a->request.prompt = prompt;
    a->request.n_prompt = n_prompt;
    a->request.on_text = on_text;
    a->request.on_prefill = td_progress_show;
    a->request.user = a;
    td_status st = td_session_generate(a->session, &a->request, result, err);
    td_progress_clear();
    return st;
}

bool td_answer_same(const td_result *a, const td_result *b) {
    return a->n_tokens == b->n_tokens && memcmp(a->tokens, b->tokens, a->n_tokens * sizeof *a->tokens) == 0 &&
           a->n_text == b->n_text && memcmp(a->text, b->text, a->n_text) == 0;
}

td_status td_chat_tokens(const td_engine *engine, const json_t *messages, td_token **tokens, size_t *n_tokens,
                         td_error *err) {
    *tokens = NULL;
    char *json = json_dumps(messages, JSON_COMPACT), *text = NULL;
    if (json == NULL)
        return td_fail(err, TD_E_NOMEM, "out of memory for the conversation");
    td_status st = td_engine_chat_prompt(engine, json, NULL, NULL, true, &text, err);
    if (st == TD_OK)
        st = td_engine_tokenize(engine, text, strlen(text), false, true, tokens, n_tokens, err);
    td_text_free(text);
    free(json);
    return st;
}

bool td_chat_append(json_t *messages, const char *role, const char *content) {
    json_t *message = json_pack("{s:s, s:s}", "role", role, "content", content);
    return message != NULL && json_array_append_new(messages, message) == 0;
}
