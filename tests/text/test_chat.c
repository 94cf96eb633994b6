/* test_chat.c - chat templates of checkpoints: where they are found, what form of messages each takes, and how requests
 * are put into it. Checkpoints are directories written by the tests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/file.h"
#include "text/chat.h"

#define PLAIN "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"

/* ---- a directory that stands for a checkpoint ---- */

static char dir[64];

static int make_dir(void **state) {
    (void)state;
    strcpy(dir, "/tmp/td_test_chat_XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static const char *const files[] = {"chat_template.jinja", "tokenizer_config.json", "chat_template.json",
                                    "additional_chat_templates/tool_use.jinja"};

static int remove_dir(void **state) {
    (void)state;
    char path[200];
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        unlink(path);
    }
    snprintf(path, sizeof path, "%s/additional_chat_templates", dir);
    rmdir(path);
    return rmdir(dir);
}

static void write_file(const char *name, const char *text) {
    char path[200];
    snprintf(path, sizeof path, "%s/additional_chat_templates", dir);
    if (strchr(name, '/'))
        mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

/* ---- rendering ---- */

static json_t *parse(const char *json) {
    json_error_t error;
    json_t *value = json ? json_loads(json, 0, &error) : NULL;
    if (json && !value)
        fail_msg("%s: %s", json, error.text);
    return value;
}

static td_chat_template *from_text(const char *source) {
    td_chat_template *t;
    td_error err = {0};
    td_chat_text text = {.name = "t", .source = source, .bos_token = "<bos>", .eos_token = "<eos>"};
    if (td_chat_template_from_text(&t, &text, &err) != TD_OK)
        fail_msg("%s", err.message);
    return t;
}

static td_status render(const td_chat_template *t, const char *messages, const char *tools, const char *kwargs,
                        td_buf *out, td_error *err) {
    json_t *m = parse(messages), *before = json_deep_copy(m), *to = parse(tools), *kw = parse(kwargs);
    td_chat_request request = {.messages = m, .tools = to, .kwargs = kw};
    td_status st = td_chat_template_render(t, &request, out, err);
    assert_true(json_equal(m, before)); /* the request is only read */
    json_decref(m);
    json_decref(before);
    json_decref(to);
    json_decref(kw);
    return st;
}

static void assert_renders(const td_chat_template *t, const char *messages, const char *tools, const char *kwargs,
                           const char *expected) {
    td_error err = {0};
    td_buf out;
    td_buf_init(&out, 1 << 20);
    if (render(t, messages, tools, kwargs, &out, &err) != TD_OK)
        fail_msg("%s: %s", messages, err.message);
    assert_string_equal(td_buf_str(&out), expected);
    td_buf_free(&out);
}

static void assert_refuses(const td_chat_template *t, const char *messages, const char *tools, const char *kwargs,
                           td_status status, const char *message) {
    td_error err = {0};
    td_buf out;
    td_buf_init(&out, 1 << 20);
    assert_int_equal(render(t, messages, tools, kwargs, &out, &err), status);
    assert_string_equal(err.message, message);
    td_buf_free(&out);
}

#define HELLO "[{\"role\": \"user\", \"content\": \"hi\"}]"
#define TOOLS "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]"

/* ---- where a template is found ---- */

static void load_and_render(const char *tools, const char *expected) {
    td_chat_template *t;
    td_error err = {0};
    if (td_chat_template_load(&t, dir, &err) != TD_OK)
        fail_msg("%s", err.message);
    assert_renders(t, HELLO, tools, NULL, expected);
    td_chat_template_close(&t);
    assert_null(t);
}

static void the_jinja_file_wins(void **state) {
    (void)state;
    write_file("tokenizer_config.json", "{\"chat_template\": \"from the config\", \"bos_token\": \"<s>\"}");
    write_file("chat_template.json", "{\"chat_template\": \"from the json\"}");
    write_file("chat_template.jinja", "from the file{{ bos_token }}\n");
    load_and_render(NULL, "from the file<s>");
}

static void the_config_comes_second(void **state) {
    (void)state;
    write_file(
        "tokenizer_config.json",
        "{\"chat_template\": \"{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ unk_token is defined }}\","
        " \"bos_token\": {\"content\": \"<s>\", \"lstrip\": false}, \"eos_token\": \"</s>\", \"pad_token\": null}");
    write_file("chat_template.json", "{\"chat_template\": \"from the json\"}");
    load_and_render(NULL, "<s>|</s>||False");
    td_chat_template *t;
    assert_int_equal(td_chat_template_load(&t, dir, NULL), TD_OK);
    assert_string_equal(td_chat_template_bos(t), "<s>");
    assert_string_equal(td_chat_template_eos(t), "</s>");
    td_chat_template_close(&t);
}

static void the_json_file_comes_third(void **state) {
    (void)state;
    write_file("tokenizer_config.json", "{\"chat_template\": null}");
    write_file("chat_template.json", "{\"chat_template\": \"from the json\"}");
    load_and_render(NULL, "from the json");
}

static void named_templates_serve_with_and_without_tools(void **state) {
    (void)state;
    write_file("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"rag\"},"
                                        " {\"name\": \"tool_use\", \"template\": \"{{ tools|length }} tools\"},"
                                        " {\"name\": \"default\", \"template\": \"plain\"}]}");
    load_and_render(NULL, "plain");
    load_and_render(TOOLS, "1 tools");
    load_and_render("[]", "plain");
    write_file("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"only\", \"template\": \"only\"}]}");
    load_and_render(TOOLS, "only");
}

static void a_tool_template_may_lie_beside_the_file(void **state) {
    (void)state;
    write_file("chat_template.jinja", "plain");
    write_file("additional_chat_templates/tool_use.jinja", "with tools");
    load_and_render(NULL, "plain");
    load_and_render(TOOLS, "with tools");
}

static void assert_load_fails(td_status status, const char *end_of_message) {
    td_chat_template *t = (void *)1;
    td_error err = {0};
    assert_int_equal(td_chat_template_load(&t, dir, &err), status);
    assert_null(t);
    size_t n = strlen(err.message), m = strlen(end_of_message);
    if (n < m || strcmp(err.message + n - m, end_of_message) != 0)
        fail_msg("%s\n  expected to end in: %s", err.message, end_of_message);
    assert_non_null(strstr(err.message, dir));
}

static void a_missing_template_is_told_with_every_place(void **state) {
    (void)state;
    static const char message[] = " has no chat template: looked for chat_template.jinja, and for \"chat_template\" in "
                                  "tokenizer_config.json and in chat_template.json";
    assert_load_fails(TD_E_NOTFOUND, message);
    write_file("tokenizer_config.json", "{\"bos_token\": \"<s>\"}");
    assert_load_fails(TD_E_NOTFOUND, message);
}

static void broken_files_are_told_by_name(void **state) {
    (void)state;
    static const struct {
        const char *file, *text;
        td_status status;
        const char *message;
    } cases[] = {
        {"tokenizer_config.json", "{\"a\": 1,\n  oops}", TD_E_FORMAT,
         "/tokenizer_config.json:2:6: string or '}' "
         "expected near 'oops'"},
        {"tokenizer_config.json", "[]", TD_E_FORMAT, "/tokenizer_config.json: expected a JSON object"},
        {"tokenizer_config.json", "{\"chat_template\": 5}", TD_E_FORMAT,
         "/tokenizer_config.json: \"chat_template\" must be text or a list of named templates"},
        {"tokenizer_config.json", "{\"chat_template\": [{\"name\": \"a\"}, {\"name\": \"b\", \"template\": \"x\"}]}",
         TD_E_FORMAT,
         "/tokenizer_config.json: \"chat_template\" is a list, in which the templates named \"default\" and "
         "\"tool_use\" "
         "are looked for; expected at least the first, as text"},
        {"tokenizer_config.json", "{\"chat_template\": \"{% if %}\"}", TD_E_FORMAT,
         "/tokenizer_config.json:1:7: unexpected '%}', expected an expression"},
        {"chat_template.json", "{\"chat_template\": \"a\\n{{ x\"}", TD_E_FORMAT,
         "/chat_template.json:2:5: unexpected end of the template, expected '}}'"},
        {"chat_template.jinja", "{% include 'x' %}", TD_E_UNSUPPORTED,
         "/chat_template.jinja:1:4: chat templates stand alone: extends, include, import, from, block and autoescape "
         "are "
         "not supported"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char path[200];
        write_file(cases[i].file, cases[i].text);
        assert_load_fails(cases[i].status, cases[i].message);
        snprintf(path, sizeof path, "%s/%s", dir, cases[i].file);
        assert_int_equal(unlink(path), 0);
    }
}

/* ---- what a template takes ---- */

static td_chat_template *fixture(const char *name) {
    char path[600], *source;
    size_t size;
    snprintf(path, sizeof path, TD_FIXTURES "/templates/%s.jinja", name);
    assert_int_equal(td_file_read(path, TD_JINJA_MAX_TEMPLATE, &source, &size, NULL), TD_OK);
    td_chat_template *t = from_text(source);
    td_free(source);
    return t;
}

static void traits_are_found_by_trying(void **state) {
    (void)state;
    static const struct {
        const char *name;
        td_chat_traits traits;
    } cases[] = {
        {"gemma4",
         {.takes_parts = true,
          .takes_call_objects = true,
          .knows_developer = true,
          .uses_tools = true,
          .uses_enable_thinking = true}},
        {"qwen35", {.takes_parts = true, .takes_call_objects = true, .uses_tools = true, .uses_enable_thinking = true}},
        {"deepseek_r1", {.takes_call_objects = true}},
        {"llama31", {.takes_call_objects = true, .uses_tools = true}},
        {"mistral", {.takes_call_objects = true, .uses_tools = true}},
        {"gemma4_demo", {.takes_call_objects = true}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        td_chat_template *t = fixture(cases[i].name);
        td_chat_traits got = td_chat_template_traits(t, true), want = cases[i].traits;
        if (memcmp(&got, &want, sizeof got) != 0)
            fail_msg("%s: parts %d/%d calls %d developer %d tools %d thinking %d", cases[i].name, got.takes_parts,
                     got.needs_parts, got.takes_call_objects, got.knows_developer, got.uses_tools,
                     got.uses_enable_thinking);
        td_chat_template_close(&t);
    }
}

static void parts_are_joined_for_templates_that_take_text(void **state) {
    (void)state;
    td_chat_template *t = from_text(PLAIN);
    assert_false(td_chat_template_traits(t, false).takes_parts);
    assert_renders(t,
                   "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"},"
                   " {\"type\": \"text\", \"text\": \"b\"}]}]",
                   NULL, NULL, "<user>a\nb");
    assert_renders(t, "[{\"role\": \"user\", \"content\": []}]", NULL, NULL, "<user>");
    assert_refuses(t, "[{\"role\": \"user\", \"content\": [{\"type\": \"image_url\", \"image_url\": {}}]}]", NULL, NULL,
                   TD_E_UNSUPPORTED,
                   "messages[0]: a part of type \"image_url\"; the chat template of this model takes text only");
    td_chat_template_close(&t);
}

static void parts_are_left_for_templates_that_take_them(void **state) {
    (void)state;
    td_chat_template *t = from_text("{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
                                    "{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %}{% endfor %}");
    assert_true(td_chat_template_traits(t, false).takes_parts);
    assert_renders(t,
                   "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"},"
                   " {\"type\": \"text\", \"text\": \"b\"}]}, {\"role\": \"user\", \"content\": \"c\"}]",
                   NULL, NULL, "[a][b]c");
    td_chat_template_close(&t);
}

static void text_becomes_parts_for_templates_that_need_them(void **state) {
    (void)state;
    td_chat_template *t =
        from_text("{% for m in messages %}{% for p in m.content %}{{ '[' ~ p['text'] ~ ']' if p['type'] "
                  "== 'text' }}{% endfor %}{% endfor %}");
    assert_true(td_chat_template_traits(t, false).needs_parts);
    assert_renders(t, HELLO, NULL, NULL, "[hi]");
    td_chat_template_close(&t);
}

#define CALL(arguments)                                                                                                \
    "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": null, \"tool_calls\": "         \
    "[{\"id\": "                                                                                                       \
    "\"c1\", \"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": " arguments "}}]}]"

static void call_arguments_take_the_form_the_template_shows(void **state) {
    (void)state;
    td_chat_template *objects =
        from_text("{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
                  "{% for k, v in c.function.arguments|items %}{{ k }}={{ v }};{% endfor %}{% endfor %}{% endfor %}");
    assert_true(td_chat_template_traits(objects, false).takes_call_objects);
    assert_renders(objects, CALL("\"{\\\"x\\\": 1, \\\"y\\\": [2.5]}\""), NULL, NULL, "qx=1;y=[2.5];");
    assert_renders(objects, CALL("{\"x\": 1}"), NULL, NULL, "qx=1;");
    assert_renders(objects, CALL("\"\""), NULL, NULL, "q");
    assert_refuses(objects, CALL("\"not json\""), NULL, NULL, TD_E_FORMAT,
                   "t:1:108: items: expected a mapping, got str");
    td_chat_template_close(&objects);

    td_chat_template *texts = from_text("{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
                                        "{{ 'call ' + c.function.arguments }}{% endfor %}{% endfor %}");
    assert_false(td_chat_template_traits(texts, false).takes_call_objects);
    assert_renders(texts, CALL("{\"x\": [1, \"\\u00e9\"]}"), NULL, NULL, "qcall {\"x\": [1, \"\303\251\"]}");
    assert_renders(texts, CALL("\"{\\\"x\\\":1}\""), NULL, NULL, "qcall {\"x\":1}");
    td_chat_template_close(&texts);
}

static void members_are_tidied(void **state) {
    (void)state;
    td_chat_template *t = from_text("{{ messages|tojson }}");
    assert_renders(
        t,
        "[{\"role\": \"developer\", \"content\": \"d\"}, {\"role\": \"user\", \"content\": null, \"name\": null},"
        " {\"role\": \"assistant\", \"tool_calls\": [], \"refusal\": null, \"reasoning\": \"r\"},"
        " {\"role\": \"tool\", \"content\": {\"a\": 1}}]",
        NULL, NULL,
        "[{\"role\": \"system\", \"content\": \"d\"}, {\"role\": \"user\", \"content\": \"\"},"
        " {\"role\": \"assistant\", \"reasoning\": \"r\", \"reasoning_content\": \"r\", \"content\": \"\"},"
        " {\"role\": \"tool\", \"content\": {\"a\": 1}}]");
    td_chat_template_close(&t);
    t = from_text("{# developer #}{{ messages[0].role }}");
    assert_renders(t, "[{\"role\": \"developer\", \"content\": \"d\"}]", NULL, NULL, "developer");
    td_chat_template_close(&t);
}

/* ---- variables ---- */

static void variables_reach_the_template(void **state) {
    (void)state;
    td_chat_template *t = from_text("{{ bos_token }}{{ eos_token }} {{ tools is none }} {{ documents is none }} "
                                    "{{ add_generation_prompt }} {{ enable_thinking is defined }} {{ extra }}");
    assert_renders(t, HELLO, NULL, NULL, "<bos><eos> True True True False ");
    assert_renders(t, HELLO, "[]", NULL, "<bos><eos> True True True False ");
    assert_renders(t, HELLO, TOOLS, "{\"extra\": [1, 2], \"bos_token\": \"<s>\"}",
                   "<s><eos> False True True False [1, 2]");
    td_chat_template_close(&t);
}

static void a_field_wins_over_the_kwargs(void **state) {
    (void)state;
    td_chat_template *t =
        from_text("{{ enable_thinking }}{{ add_generation_prompt }}{{ strftime_now(' %Y-%m-%d %H') }}");
    json_t *messages = parse(HELLO), *kwargs = parse("{\"enable_thinking\": false}");
    td_chat_request request = {.messages = messages,
                               .kwargs = kwargs,
                               .enable_thinking = TD_CHAT_THINKING_ON,
                               .no_generation_prompt = true,
                               .now = 1700000000,
                               .utc_offset_s = 7200};
    td_buf out;
    td_buf_init(&out, 100);
    assert_int_equal(td_chat_template_render(t, &request, &out, NULL), TD_OK);
    request.enable_thinking = TD_CHAT_THINKING_UNSET;
    assert_int_equal(td_chat_template_render(t, &request, &out, NULL), TD_OK);
    request.enable_thinking = TD_CHAT_THINKING_OFF;
    request.kwargs = NULL;
    assert_int_equal(td_chat_template_render(t, &request, &out, NULL), TD_OK);
    assert_string_equal(td_buf_str(&out), "TrueFalse 2023-11-15 00FalseFalse 2023-11-15 00FalseFalse 2023-11-15 00");
    td_buf_free(&out);
    json_decref(messages);
    json_decref(kwargs);
    td_chat_template_close(&t);
}

static void requests_that_are_no_conversation_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *messages, *tools, *kwargs, *message;
    } cases[] = {
        {"{}", NULL, NULL, "messages must be a list"},
        {"[5]", NULL, NULL, "messages[0]: expected an object with a \"role\""},
        {"[{\"role\": \"user\", \"content\": \"a\"}, {\"content\": \"b\"}]", NULL, NULL,
         "messages[1]: expected an object with a \"role\""},
        {"[{\"role\": 5}]", NULL, NULL, "messages[0]: expected an object with a \"role\""},
        {"[{\"role\": \"user\", \"content\": 5}]", NULL, NULL,
         "messages[0]: \"content\" must be a string, a list of parts, or null"},
        {"[{\"role\": \"user\", \"content\": [\"a\"]}]", NULL, NULL,
         "messages[0]: a part of the content must be an object with \"type\" and, for a text, \"text\""},
        {"[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": 5}]}]", NULL, NULL,
         "messages[0]: a part of type \"text\" must have a string \"text\""},
        {"[{\"role\": \"assistant\", \"tool_calls\": 5}]", NULL, NULL, "messages[0]: \"tool_calls\" must be a list"},
        {"[{\"role\": \"assistant\", \"tool_calls\": [5]}]", NULL, NULL, "messages[0].tool_calls[0] must be an object"},
        {"[{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"arguments\": {}}}]}]", NULL, NULL,
         "messages[0].tool_calls[0]: the function has no \"name\""},
        {HELLO, "{}", NULL, "tools must be a list"},
        {HELLO, NULL, "[]", "chat_template_kwargs must be an object"},
    };
    td_chat_template *t = from_text(PLAIN);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_refuses(t, cases[i].messages, cases[i].tools, cases[i].kwargs, TD_E_ARG, cases[i].message);
    td_chat_template_close(&t);
}

static void the_templates_own_refusal_is_passed_on(void **state) {
    (void)state;
    td_chat_template *t = fixture("mistral");
    assert_refuses(t, "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"user\", \"content\": \"b\"}]", NULL,
                   NULL, TD_E_ARG, "turns must alternate between user and assistant; turn 2 does not");
    td_chat_template_close(&t);
}

/* ---- memory ---- */

/* jansson's memory goes through the same counters here, so its failures are tried as well. */
static void every_failed_allocation_is_survived(void **state) {
    (void)state;
    write_file("chat_template.jinja", PLAIN "{{ tools|tojson }}{{ enable_thinking }}");
    write_file("tokenizer_config.json", "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"</s>\"}}");
    json_set_alloc_funcs(td_malloc, td_free);
    json_t *messages =
        parse("[{\"role\": \"developer\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}]},"
              " {\"role\": \"assistant\", \"reasoning\": \"r\", \"tool_calls\": [{\"function\": {\"name\": "
              "\"f\", \"arguments\": \"{}\"}}]}]");
    json_t *tools = parse(TOOLS), *kwargs = parse("{\"a\": 1}");
    td_chat_request request = {
        .messages = messages, .tools = tools, .kwargs = kwargs, .enable_thinking = TD_CHAT_THINKING_ON};
    long live = td_alloc_live(), k = 0;
    for (bool struck = true; struck; k++) {
        td_chat_template *t;
        td_error err = {0};
        td_buf out;
        td_buf_init(&out, 1 << 16);
        td_alloc_fail_at(k);
        td_status st = td_chat_template_load(&t, dir, &err);
        if (st == TD_OK)
            st = td_chat_template_render(t, &request, &out, &err);
        struck = td_alloc_failed();
        td_alloc_fail_at(-1);
        if ((st == TD_OK) == struck) /* the status may be another: jansson tells some failures as faults of the text */
            fail_msg("allocation %ld: %s", k, st == TD_OK ? "went unnoticed" : err.message);
        td_buf_free(&out);
        td_chat_template_close(&t);
        assert_int_equal(td_alloc_live(), live);
    }
    assert_true(k > 50);
    json_decref(messages);
    json_decref(tools);
    json_decref(kwargs);
    json_set_alloc_funcs(malloc, free);
}

#define IN_DIR(test) cmocka_unit_test_setup_teardown(test, make_dir, remove_dir)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_DIR(the_jinja_file_wins),
        IN_DIR(the_config_comes_second),
        IN_DIR(the_json_file_comes_third),
        IN_DIR(named_templates_serve_with_and_without_tools),
        IN_DIR(a_tool_template_may_lie_beside_the_file),
        IN_DIR(a_missing_template_is_told_with_every_place),
        IN_DIR(broken_files_are_told_by_name),
        cmocka_unit_test(traits_are_found_by_trying),
        cmocka_unit_test(parts_are_joined_for_templates_that_take_text),
        cmocka_unit_test(parts_are_left_for_templates_that_take_them),
        cmocka_unit_test(text_becomes_parts_for_templates_that_need_them),
        cmocka_unit_test(call_arguments_take_the_form_the_template_shows),
        cmocka_unit_test(members_are_tidied),
        cmocka_unit_test(variables_reach_the_template),
        cmocka_unit_test(a_field_wins_over_the_kwargs),
        cmocka_unit_test(requests_that_are_no_conversation_are_refused),
        cmocka_unit_test(the_templates_own_refusal_is_passed_on),
        IN_DIR(every_failed_allocation_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
