/* reply_format.c - which format a model writes, read off the markers in its chat template.
 *
 * A template shows earlier answers to the model in the format it is to write, so its markers say more than a name does.
 * The family only decides about <tool_call>, which Qwen 3.5 fills with XML, and others with JSON: there a template may
 * build its tags from pieces and not mention "<function=". */
#include <string.h>

#include "text/reply_impl.h"

static bool mentions(const char *chat_template, const char *text) {
    return strstr(chat_template, text) != NULL;
}

static bool of_family(const char *family, const char *prefix) {
    return family && strncasecmp(family, prefix, strlen(prefix)) == 0;
}

static td_reply_think choose_think(const char *t) {
    if (mentions(t, "<|channel>"))
        return TD_REPLY_THINK_CHANNEL;
    if (mentions(t, "<think>") || mentions(t, "</think>"))
        return TD_REPLY_THINK_TAGS;
    return TD_REPLY_THINK_NONE;
}

static td_reply_calls choose_calls(const char *family, const char *t) {
    if (mentions(t, "<|tool_call>"))
        return TD_REPLY_CALLS_GEMMA4;
    if (mentions(t, "<function=") || (mentions(t, "<tool_call>") && of_family(family, "qwen")))
        return TD_REPLY_CALLS_QWEN;
    if (mentions(t, "<tool_call>") || mentions(t, "[TOOL_CALLS]") || mentions(t, "<|python_tag|>"))
        return TD_REPLY_CALLS_JSON;
    bool object = mentions(t, "\"name\"") && (mentions(t, "\"parameters\"") || mentions(t, "\"arguments\""));
    return object && mentions(t, "tool_calls") ? TD_REPLY_CALLS_JSON : TD_REPLY_CALLS_NONE;
}

td_reply_format td_reply_format_choose(const char *family, const char *chat_template) {
    if (!chat_template)
        return (td_reply_format){TD_REPLY_THINK_NONE, TD_REPLY_CALLS_NONE};
    return (td_reply_format){choose_think(chat_template), choose_calls(family, chat_template)};
}

bool td_reply_prompt_opens_reasoning(td_reply_format format, const char *prompt, size_t size) {
    if (format.think == TD_REPLY_THINK_NONE)
        return false;
    const char *opening = format.think == TD_REPLY_THINK_CHANNEL ? "<|channel>thought" : "<think>";
    size_t n = strlen(opening);
    while (size > 0 && td_reply_is_space(prompt[size - 1]))
        size--;
    return size >= n && memcmp(prompt + size - n, opening, n) == 0;
}
