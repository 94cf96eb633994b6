/* request_prompt.c - the prompts of a completion: one text, a list of texts, one list of tokens, or a list of those. */
#include <stdio.h>
#include <string.h>

#include "serve/request_impl.h"

static bool is_list_of_prompts(const json_t *prompt) {
    const json_t *first = json_array_get(prompt, 0);
    return json_is_string(first) || json_is_array(first);
}

size_t td_api_prompt_count(const td_api_request *r) {
    return is_list_of_prompts(r->prompt) ? json_array_size(r->prompt) : 1;
}

const json_t *td_api_prompt_at(const td_api_request *r, size_t i) {
    return is_list_of_prompts(r->prompt) ? json_array_get(r->prompt, i) : r->prompt;
}

static td_status check_tokens(const td_fields *f, const char *path, const json_t *list, uint32_t n_vocab) {
    td_fields p = {NULL, path, f->fault};
    size_t n = json_array_size(list);
    if (n == 0)
        return td_field_fail(&p, "", "invalid_value", "is empty, expected at least one token");
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v))
            return td_field_fail(&p, "", "invalid_type", "has %s at %zu, expected token ids", td_json_kind(v), i);
        json_int_t id = json_integer_value(v);
        if (id < 0 || id >= (json_int_t)n_vocab)
            return td_field_fail(&p, "", "invalid_value", "has the token %lld at %zu, expected 0 to %u", (long long)id,
                                 i, n_vocab - 1);
    }
    return TD_OK;
}

static td_status check_one(const td_fields *f, const char *path, const json_t *one, uint32_t n_vocab) {
    td_fields p = {NULL, path, f->fault};
    if (json_is_array(one))
        return check_tokens(f, path, one, n_vocab);
    if (!json_is_string(one))
        return td_field_type(&p, "", one, "a string or a list of token ids");
    return TD_OK;
}

td_status td_api_check_prompt(td_api_request *r, const td_fields *f, const td_api_defaults *d) {
    r->prompt = td_field(f, "prompt");
    if (!r->prompt)
        return td_field_missing(f, "prompt");
    if (!is_list_of_prompts(r->prompt))
        return check_one(f, "prompt", r->prompt, d->n_vocab);
    size_t n = json_array_size(r->prompt);
    if (n * r->n > TD_API_MAX_CHOICES)
        return td_field_fail(f, "prompt", "invalid_value",
                             "has %zu prompts with %u answers each, expected at most %d in "
                             "all",
                             n, r->n, TD_API_MAX_CHOICES);
    for (size_t i = 0; i < n; i++) {
        char path[48];
        snprintf(path, sizeof path, "prompt[%zu]", i);
        TD_TRY(check_one(f, path, json_array_get(r->prompt, i), d->n_vocab));
    }
    return TD_OK;
}
