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

static bool on_text(void *user, const td_piece *piece) {
    td_answer *a = user;
    if (!a->stream || !piece->n_text)
        return !a->broken && !td_interrupted();
    td_progress_clear();
    size_t from = 0;
    for (size_t i = 0; i < piece->n_tokens; i++) {
        bool coloured = a->show_drafts && piece->drafted[i] && piece->text_end[i] > from;
        if (coloured)
            fputs(a->style.draft, stdout);
        put(a, piece->text + from, piece->text_end[i] - from);
        if (coloured)
            fputs(a->style.off, stdout);
        from = piece->text_end[i];
    }
    put(a, piece->text + from, piece->n_text - from);
    a->broken = !td_report_flush() || a->broken;
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
