/* request_refused.c - members that OpenAI or other servers know and Tandem does not do. One that asks for nothing
 * (null, false, "", an empty list or object, its neutral number) passes. */
#include <string.h>

#include "serve/request_impl.h"

enum { CHAT = 1, COMPLETION = 2, BOTH = 3 };

typedef struct refused {
    const char *name;
    unsigned where;
    double neutral; /* the number that asks for nothing */
    const char *why;
} refused;

static const refused table[] = {
    {"audio", CHAT, 0, "is not supported: answers are text"},
    {"functions", CHAT, 0, "is OpenAI's older form and not supported; use 'tools'"},
    {"function_call", CHAT, 0, "is OpenAI's older form and not supported; use 'tool_choice'"},
    {"web_search_options", CHAT, 0, "is not supported: this server searches nothing"},
    {"suffix", BOTH, 0, "is not supported: text is only continued"},
    {"use_beam_search", BOTH, 0, "is not supported: tokens are sampled"},
    {"kv_bits", BOTH, 0, "is not a choice of a request; see the server's --kv"},
    {"prompt_logprobs", BOTH, 0, "is not supported: the prompt's log-probabilities are not computed"},
    {"guided_json", BOTH, 0, "is not supported; use 'response_format'"},
    {"guided_regex", BOTH, 0, "is not supported; use 'grammar'"},
    {"guided_choice", BOTH, 0, "is not supported; use 'grammar'"},
    {"guided_grammar", BOTH, 0, "is not supported; use 'grammar'"},
    {"structured_outputs", BOTH, 0, "is not supported; use 'response_format' or 'grammar'"},
    {"json_schema", BOTH, 0, "is not supported here; use 'response_format'"},
    {"typical_p", BOTH, 1, "is not supported"},
    {"top_a", BOTH, 0, "is not supported"},
    {"tfs_z", BOTH, 1, "is not supported"},
    {"mirostat", BOTH, 0, "is not supported"},
    {"dry_multiplier", BOTH, 0, "is not supported"},
    {"xtc_probability", BOTH, 0, "is not supported"},
    {"dynatemp_range", BOTH, 0, "is not supported"},
    {"chat_template", CHAT, 0, "is the server's; a request may set 'chat_template_kwargs'"},
    {"echo", CHAT, 0, "is not supported in chats"},
    {"truncate_prompt_tokens", BOTH, 0, "is not supported: nothing of a prompt is left out"},
    {"include_stop_str_in_output", BOTH, 0, "is not supported: stop strings are not part of the answer"},
    {"length_penalty", BOTH, 1, "is not supported: there is no beam search"},
    {"n_probs", BOTH, 0, "is not supported; use 'logprobs'"},
    {"stop_token_ids", BOTH, 0, "is not supported; use 'stop'"},
    {"min_tokens", BOTH, 0, "is not supported"},
    {"bad_words", BOTH, 0, "is not supported; use 'logit_bias'"},
    {"allowed_token_ids", BOTH, 0, "is not supported; use 'grammar'"},
};

static bool asks_for_nothing(const json_t *v, double neutral) {
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return json_object_size(v) == 0;
    case JSON_ARRAY:
        return json_array_size(v) == 0;
    case JSON_STRING:
        return json_string_length(v) == 0;
    case JSON_INTEGER:
    case JSON_REAL:
        return json_number_value(v) == neutral;
    case JSON_TRUE:
        return false;
    case JSON_FALSE:
    case JSON_NULL:
        break;
    }
    return true;
}

static td_status check_modalities(const td_fields *f) {
    json_t *list = NULL;
    TD_TRY(td_field_array(f, "modalities", &list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *word = json_string_value(json_array_get(list, i));
        if (!word || strcmp(word, "text") != 0)
            return td_field_fail(f, "modalities", "unsupported_value", "has '%.40s', expected text only",
                                 word ? word : "something else than a word");
    }
    return TD_OK;
}

td_status td_api_refuse(td_api_kind kind, const td_fields *f) {
    unsigned here = kind == TD_API_CHAT ? CHAT : COMPLETION;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const json_t *v = td_field(f, table[i].name);
        if (v && (table[i].where & here) && !asks_for_nothing(v, table[i].neutral))
            return td_field_fail(f, table[i].name, "unsupported_parameter", "%s", table[i].why);
    }
    return check_modalities(f);
}
