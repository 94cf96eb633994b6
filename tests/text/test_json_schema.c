/* test_json_schema.c - what schemas accept, what they refuse to be, and that everything written under one is valid. */
#include "text/test_json_schema_util.h"

static td_tokenizer *tok;
static td_token_trie *trie;

static int setup(void **state) {
    (void)state;
    static const char *const special[] = {"<end>", "<x>"};
    tok = make_tokenizer(special, 2, json_texts, N_JSON_TEXTS);
    trie = make_trie(tok);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    td_token_trie_close(&trie);
    td_tokenizer_close(&tok);
    return 0;
}

static td_grammar *make_schema(const json_t *schema, const char *shown) {
    td_grammar *g;
    td_error err;
    if (td_grammar_from_json_schema(&g, trie, schema, NULL, &err) != TD_OK)
        fail_msg("%s: %s", err.message, shown);
    return g;
}

typedef struct text_case {
    const char *schema;
    const char *good[8], *bad[8];
} text_case;

#define PERSON                                                                                                         \
    "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"boolean\"},\"c\":{\"type\":"  \
    "\"null\"}},\"required\":[\"a\",\"c\"]"

static void texts_are_accepted_or_not(void **state) {
    (void)state;
    static const text_case cases[] = {
        {"{\"type\":\"integer\"}", {"0", "-1", "123"}, {"01", "-", "1.0", "-0", "+1", "", "12345678901234567"}},
        {"{\"type\":\"integer\",\"minimum\":5,\"maximum\":123}",
         {"5", "9", "10", "99", "100", "123"},
         {"4", "0", "124", "200", "1000", "-5"}},
        {"{\"type\":\"integer\",\"minimum\":-12,\"exclusiveMaximum\":3}",
         {"-12", "-9", "-1", "0", "2"},
         {"-13", "3", "10", "-20"}},
        {"{\"type\":\"integer\",\"exclusiveMinimum\":99}", {"100", "123456", "9999999999999999"}, {"99", "9", "-100"}},
        {"{\"type\":\"integer\",\"maximum\":-5.5}", {"-6", "-10", "-59"}, {"-5", "0", "6"}},
        {"{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":0,\"maximum\":100}",
         {"0", "7", "49", "98"},
         {"1", "8", "105", "99"}},
        {"{\"type\":\"number\",\"multipleOf\":0.25}",
         {"0.25", "-1.50", "12.00", "1000.75"},
         {"0.3", "0.1", "1", "2.33"}},
        {"{\"type\":\"number\",\"multipleOf\":0.01,\"minimum\":0,\"maximum\":1}",
         {"0.00", "0.37", "1.00"},
         {"1.01", "0.5", "-0.10", "2.00"}},
        {"{\"type\":\"number\",\"minimum\":0,\"maximum\":1}",
         {"0", "1", "0.5", "0.0001", "1.0", "1.000"},
         {"1.1", "2", "-0.1", "1.01", "-0"}},
        {"{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":2.5}",
         {"0.1", "2.5", "2.50", "2.49999", "1"},
         {"0", "0.0", "2.51", "3", "2.6"}},
        {"{\"type\":\"number\",\"minimum\":-1.25,\"maximum\":-0.5}",
         {"-0.5", "-1.25", "-1", "-0.75"},
         {"-0.4", "-1.26", "0", "-1.3", "1"}},
        {"{\"type\":\"number\",\"minimum\":10.75}", {"10.75", "10.8", "11", "200.5"}, {"10.7", "10", "9.99", "-11"}},
        {"{\"type\":\"number\"}", {"0", "-0.5", "1e10", "1.5E-7", "12"}, {".5", "1.", "1e", "01", "1e100"}},
        {"{\"type\":\"string\"}",
         {"\"\"", "\"a\\n\\u00e9\"", "\"\\ud83d\\ude00\""},
         {"\"\n\"", "\"\\x\"", "\"\\ud83d\"", "\"\\u0000\"", "x", "\"\t\""}},
        {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
         {"\"ab\"", "\"a\\n\\\"\"", "\"\xC3\xA9\xE2\x82\xAC\""},
         {"\"a\"", "\"abcd\""}},
        {"{\"type\":\"string\",\"pattern\":\"^a[0-9]+(x|yz)?$\"}",
         {"\"a1\"", "\"a12yz\""},
         {"\"a\"", "\"ba1\"", "\"a1y\""}},
        {"{\"type\":\"string\",\"pattern\":\"b\\\\d\"}", {"\"b1\"", "\"aab2cc\""}, {"\"b\"", "\"1b\""}},
        {"{\"type\":\"string\",\"pattern\":\"^\\\"\\\\n$\"}", {"\"\\\"\\n\""}, {"\"\"\\n\""}},
        {"{\"type\":\"string\",\"pattern\":\"^[a-z]*$\",\"maxLength\":2}", {"\"\"", "\"ab\""}, {"\"abc\"", "\"A\""}},
        {"{\"type\":\"string\",\"pattern\":\"^a|b$\"}", {"\"ax\"", "\"xb\""}, {"\"xa\""}},
        {"{\"type\":\"string\",\"format\":\"date\"}",
         {"\"2024-02-29\"", "\"1999-12-31\""},
         {"\"2023-02-29\"", "\"2024-13-01\"", "\"2024-04-31\"", "\"2100-02-29\""}},
        {"{\"type\":\"string\",\"format\":\"date-time\"}",
         {"\"2024-02-29T23:59:59Z\"", "\"2024-01-01T00:00:00.25+01:00\""},
         {"\"2024-01-01\"", "\"2024-01-01T24:00:00Z\""}},
        {"{\"type\":\"string\",\"format\":\"uuid\"}",
         {"\"123e4567-e89b-12d3-a456-426614174000\""},
         {"\"123e4567e89b12d3a456426614174000\""}},
        {"{\"type\":\"string\",\"format\":\"email\"}",
         {"\"a.b+c@example.org\""},
         {"\"a@b\"", "\"@x.org\"", "\".a@x.org\""}},
        {"{\"type\":\"string\",\"format\":\"ipv4\"}",
         {"\"127.0.0.1\""},
         {"\"256.0.0.1\"", "\"1.2.3\"", "\"01.2.3.4\""}},
        {"{\"type\":\"string\",\"format\":\"ipv6\"}",
         {"\"::1\"", "\"2001:db8::8a2e:370:7334\"", "\"1:2:3:4:5:6:7:8\""},
         {"\"1:2\"", "\"1::2::3\""}},
        {"{\"type\":\"string\",\"format\":\"duration\"}",
         {"\"P3D\"", "\"PT1H30M\"", "\"P1DT2H\""},
         {"\"P\"", "\"PT\"", "\"3D\""}},
        {"{\"enum\":[\"a\",1,null,{\"k\":[true]}]}", {"\"a\"", "1", "null", "{\"k\":[true]}"}, {"\"b\"", "true", "2"}},
        {"{\"type\":\"string\",\"enum\":[\"a\",1]}", {"\"a\""}, {"1"}},
        {"{\"const\":\"x\\\"y\"}", {"\"x\\\"y\""}, {"\"x\""}},
        {"{\"type\":[\"string\",\"null\"]}", {"null", "\"\""}, {"1"}},
        {"{\"type\":\"integer\",\"nullable\":true}", {"null", "1"}, {"\"\""}},
        {PERSON "}",
         {"{\"a\":1,\"c\":null}", "{\"a\": 1, \"b\": true, \"c\": null}", "{\n  \"a\": 1,\n  \"c\": null\n}"},
         {"{\"a\":1}", "{\"c\":null,\"a\":1}", "{\"a\":1,\"c\":null,\"d\":1}", "{}", "{\"a\":1,\"a\":1,\"c\":null}",
          "{\"a\":1  ,\"c\":null}"}},
        {PERSON ",\"additionalProperties\":{\"type\":\"integer\"}}",
         {"{\"a\":1,\"c\":null,\"d\":1,\"ab\":2}", "{\"a\":1,\"c\":null}"},
         {"{\"a\":1,\"c\":null,\"d\":null}", "{\"a\":1,\"c\":null,\"b\":1}", "{\"a\":1,\"c\":null,\"\\u0061\":1}"}},
        {"{\"type\":\"object\",\"properties\":{\"a\":true},\"required\":[\"z\"],\"additionalProperties\":{\"type\":"
         "\"null\"}}",
         {"{\"a\":[1],\"z\":null}", "{\"z\":null,\"q\":null}"},
         {"{\"a\":1}", "{\"z\":1}"}},
        {"{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"additionalProperties\":false}",
         {"{}", "{\"b\":1}", "{\"a\":1}"},
         {"{\"b\":1,\"a\":1}", "{\"c\":1}", "{,}"}},
        {"{\"type\":\"object\",\"maxProperties\":2,\"minProperties\":1}",
         {"{\"a\":1}", "{\"a\":1,\"b\":2}"},
         {"{}", "{\"a\":1,\"b\":2,\"c\":3}"}},
        {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":3}",
         {"[1]", "[1,2,3]", "[ 1, 2 ]"},
         {"[]", "[1,2,3,4]", "[1,]", "[\"a\"]"}},
        {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"items\":{\"type\":"
         "\"null\"}}",
         {"[]", "[1]", "[1,\"a\"]", "[1,\"a\",null,null]"},
         {"[\"a\"]", "[1,\"a\",1]", "[1,null]"}},
        {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"minItems\":2}",
         {"[1,\"a\"]"},
         {"[1]", "[]", "[1,\"a\",1]"}},
        {"{\"type\":\"array\",\"maxItems\":0}", {"[]"}, {"[1]"}},
        {"{\"anyOf\":[{\"type\":\"integer\"},{\"$ref\":\"#/$defs/"
         "l\"}],\"$defs\":{\"l\":{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}}}",
         {"1", "[]", "[1,[2,[]]]"},
         {"\"a\"", "[null]"}},
        {"{\"$ref\":\"#/definitions/a~1b\",\"definitions\":{\"a/b\":{\"type\":\"null\"}}}", {"null"}, {"1"}},
        {"{\"allOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"number\"}},\"required\":[\"a\"]},"
         "{\"properties\":{\"b\":{\"type\":\"null\"},\"a\":{\"minimum\":5,\"type\":\"integer\"}},\"required\":[\"b\"]}]"
         "}",
         {"{\"a\":5,\"b\":null}"},
         {"{\"a\":4,\"b\":null}", "{\"a\":5.5,\"b\":null}", "{\"a\":5}"}},
        {"{\"type\":\"object\",\"properties\":{\"k\":{\"type\":\"string\"}},\"anyOf\":[{\"required\":[\"k\"]},{"
         "\"properties\":{\"m\":{\"const\":1}},\"required\":[\"m\"]}]}",
         {"{\"k\":\"\"}", "{\"m\":1}", "{\"k\":\"\",\"m\":1}"},
         {"{}", "{\"m\":2}"}},
        {"{\"allOf\":[{\"enum\":[1,2,3]},{\"enum\":[2,3,4]}]}", {"2", "3"}, {"1", "4"}},
        {"true", {"{\"a\":[1,{}]}", "\"x\"", "-1.5"}, {"nul1", "{1:1}"}},
        {"{\"description\":\"any\"}", {"null"}, {"x"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *schema = parse_json(cases[i].schema);
        td_grammar *g = make_schema(schema, cases[i].schema);
        for (size_t k = 0; k < 8 && cases[i].good[k]; k++) {
            if (fits(g, cases[i].good[k], strlen(cases[i].good[k])) != 2)
                fail_msg("%s does not accept %s", cases[i].schema, cases[i].good[k]);
            json_t *v = parse_json(cases[i].good[k]);
            assert_true(valid(schema, schema, v));
            json_decref(v);
        }
        for (size_t k = 0; k < 8 && cases[i].bad[k]; k++)
            if (fits(g, cases[i].bad[k], strlen(cases[i].bad[k])) == 2)
                fail_msg("%s accepts %s", cases[i].schema, cases[i].bad[k]);
        td_grammar_close(&g);
        json_decref(schema);
    }
}

typedef struct refusal {
    const char *schema, *message;
    td_status status;
} refusal;

static void errors_name_the_place(void **state) {
    (void)state;
    static const refusal cases[] = {
        {"{\"properties\":{\"a/b\":{\"type\":\"string\",\"patternProperties\":{}}}}",
         "schema /properties/a~1b: the keyword \"patternProperties\" is not supported", TD_E_UNSUPPORTED},
        {"{\"items\":{\"not\":{}}}", "schema /items: the keyword \"not\" is not supported", TD_E_UNSUPPORTED},
        {"{\"type\":\"array\",\"uniqueItems\":true}", "schema: the keyword \"uniqueItems\" is not supported",
         TD_E_UNSUPPORTED},
        {"{\"type\":\"strin\"}",
         "schema: \"type\" is not object, array, string, number, integer, boolean, null, or a list of them",
         TD_E_FORMAT},
        {"{\"$ref\":\"#/$defs/x\"}", "schema: the reference \"#/$defs/x\" does not lead to a part of this schema",
         TD_E_UNSUPPORTED},
        {"{\"$ref\":\"other.json\"}", "schema: the reference \"other.json\" does not lead to a part of this schema",
         TD_E_UNSUPPORTED},
        {"{\"anyOf\":[1]}", "schema /anyOf/0: expected a schema: an object, true or false", TD_E_FORMAT},
        {"{\"anyOf\":[]}", "schema: \"anyOf\" is not an array of schemas", TD_E_FORMAT},
        {"{\"type\":\"string\",\"pattern\":\"(?=a)\"}", "schema: \"pattern\": (?= is not supported", TD_E_UNSUPPORTED},
        {"{\"type\":\"string\",\"pattern\":\"\\\\bx\"}", "schema: \"pattern\": \\b is not supported", TD_E_UNSUPPORTED},
        {"{\"type\":\"string\",\"pattern\":\"a(b\"}", "schema: \"pattern\": a ( without its )", TD_E_FORMAT},
        {"{\"type\":\"string\",\"pattern\":\"a)b\"}", "schema: \"pattern\": a ) too many at byte 1", TD_E_FORMAT},
        {"{\"type\":\"string\",\"pattern\":\"*\"}", "schema: \"pattern\": nothing to repeat at byte 0", TD_E_FORMAT},
        {"{\"type\":\"string\",\"pattern\":\"[a\"}", "schema: \"pattern\": a [ without its ]", TD_E_FORMAT},
        {"{\"type\":\"string\",\"pattern\":\"ab\",\"maxLength\":3}",
         "schema: \"pattern\" beside a length is supported only where it is one repeated class", TD_E_UNSUPPORTED},
        {"{\"type\":\"string\",\"format\":\"iri\"}", "schema: the format \"iri\" is not supported", TD_E_UNSUPPORTED},
        {"{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}", "schema: \"minLength\" is 3 and \"maxLength\" 2",
         TD_E_FORMAT},
        {"{\"type\":\"string\",\"minLength\":-1}", "schema: \"minLength\" is not a count", TD_E_FORMAT},
        {"{\"type\":\"array\",\"minItems\":3,\"items\":false}",
         "schema: at least 3 items are asked for, and only 0 can be there", TD_E_FORMAT},
        {"{\"type\":\"object\",\"properties\":{\"a\":{}},\"required\":[\"b\"]}",
         "schema: the required property \"b\" is not among the properties, and no others are allowed", TD_E_FORMAT},
        {"{\"allOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}",
         "schema: no value can satisfy this schema: its parts contradict each other", TD_E_FORMAT},
        {"{\"type\":\"integer\",\"multipleOf\":0.5}",
         "schema: \"multipleOf\" is not of 1 to 1000 units of its last decimal, whole ones for an integer",
         TD_E_UNSUPPORTED},
        {"{\"type\":\"integer\",\"minimum\":\"1\"}", "schema: \"minimum\" is not a number", TD_E_FORMAT},
        {"{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}",
         "no text can satisfy the grammar: every way through it needs another round, or a choice among nothing",
         TD_E_FORMAT},
        {"{\"$ref\":\"#\",\"type\":\"object\"}",
         "schema: references and combinations inside each other without end: a $ref that leads to itself beside other "
         "keywords, or "
         "more than 256 alternatives",
         TD_E_LIMIT},
        {"{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"],\"type\":\"object\"}",
         "no text can satisfy the grammar: every way through it needs another round, or a choice among nothing",
         TD_E_FORMAT},
        {"{\"$ref\":\"#\"}", "the rule \"#\" can begin with itself (left recursion): put what it repeats behind",
         TD_E_FORMAT},
        {"false",
         "no text can satisfy the grammar: every way through it needs another round, or a choice among nothing",
         TD_E_FORMAT},
        {"{\"type\":\"string\",\"minLength\":2000000}", "schema: \"minLength\" is above 1000000", TD_E_LIMIT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        td_error err = {0};
        td_grammar *g;
        json_t *schema = parse_json(cases[i].schema);
        long live = td_alloc_live();
        td_status st = td_grammar_from_json_schema(&g, trie, schema, NULL, &err);
        if (strcmp(err.message, cases[i].message) != 0)
            fail_msg("%s: %s", cases[i].schema, err.message);
        assert_int_equal(st, cases[i].status);
        assert_null(g);
        assert_int_equal(td_alloc_live(), live);
        json_decref(schema);
    }
}

static const char *const schemas[] = {
    "true",
    "{\"type\":\"object\"}",
    PERSON "}",
    PERSON ",\"additionalProperties\":true}",
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":20},\"names\":{\"type\":"
    "\"array\",\"items\":{\"type\":"
    "\"string\",\"pattern\":\"^[a-z]{1,8}$\"},\"maxItems\":4},\"na\\\"\\n\":{\"enum\":[\"x\",\"y\\\\\"]}},"
    "\"additionalProperties\":{\"type\":\"integer\"},\"required\":[\"na\\\"\\n\"]}",
    "{\"$defs\":{\"node\":{\"type\":\"object\",\"properties\":{\"value\":{\"type\":\"number\",\"minimum\":-2.5,"
    "\"maximum\":117.25},\"next\":{\"anyOf\":[{\"$ref\":"
    "\"#/$defs/"
    "node\"},{\"type\":\"null\"}]}},\"required\":[\"value\",\"next\"],\"additionalProperties\":false}},\"$ref\":\"#/"
    "$defs/node\"}",
    "{\"type\":\"object\",\"properties\":{\"steps\":{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{"
    "\"explanation\":{\"type\":"
    "\"string\"},\"output\":{\"type\":\"string\"}},\"required\":[\"explanation\",\"output\"],\"additionalProperties\":"
    "false}},\"final_answer\":{"
    "\"type\":\"string\"}},\"required\":[\"steps\",\"final_answer\"],\"additionalProperties\":false}",
    "{\"type\":\"object\",\"properties\":{\"d\":{\"type\":\"string\",\"format\":\"date\"},\"t\":{\"type\":\"string\","
    "\"format\":\"date-time\"},\"u\":{\"type\":"
    "\"string\",\"format\":\"uuid\"},\"e\":{\"type\":\"string\",\"format\":\"email\"},\"i\":{\"type\":\"string\","
    "\"format\":\"ipv4\"},\"h\":{\"type\":\"string\","
    "\"format\":\"hostname\"},\"p\":{\"type\":\"string\",\"format\":\"duration\"},\"s\":{\"type\":\"string\","
    "\"format\":\"ipv6\"},\"m\":{\"type\":\"string\",\"format\":\"time\"},\"w\":{\"type\":\"string\",\"format\":"
    "\"uri\"}},\"required\":[\"d\",\"t\",\"u\",\"e\",\"i\",\"h\",\"p\",\"s\",\"m\",\"w\"]}",
    "{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":-105,\"maximum\":2048}}",
    "{\"type\":\"array\",\"items\":{\"type\":\"number\",\"exclusiveMinimum\":-0.05,\"exclusiveMaximum\":3.005}}",
    "{\"type\":\"array\",\"items\":{\"type\":\"number\",\"multipleOf\":0.25,\"minimum\":-3,\"maximum\":140}}",
    "{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"multipleOf\":13,\"minimum\":-500,\"maximum\":5000}}",
    "{\"type\":\"array\",\"prefixItems\":[{\"const\":\"a\"},{\"type\":[\"integer\",\"null\"]}],\"items\":{\"type\":"
    "\"boolean\"},\"minItems\":2,\"maxItems\":5}",
    "{\"type\":\"object\",\"properties\":{\"kind\":{\"enum\":[\"a\",\"b\"]}},\"oneOf\":[{\"properties\":{\"x\":{"
    "\"type\":\"integer\"}},\"required\":[\"kind\",\"x\"]},{\"properties\":{\"y\":{"
    "\"type\":\"string\",\"minLength\":1,\"maxLength\":3}},\"required\":[\"y\"]}]}",
    "{\"allOf\":[{\"$ref\":\"#/definitions/"
    "a\"},{\"type\":\"object\",\"properties\":{\"more\":{\"type\":\"string\"}},\"required\":[\"more\"]}],"
    "\"definitions\":{\"a\":{\"type\":\"object\","
    "\"properties\":{\"list\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/definitions/"
    "b\"}}}},\"b\":{\"type\":\"string\",\"pattern\":\"(ab|c)+x?\"}}}",
    "{\"type\":\"string\",\"pattern\":\"^\\\\w+\\\\s(\\\\d{2,3}|[^a-z\\\"]{2})\\\\.$\"}",
    "{\"type\":\"string\",\"pattern\":\"^(?:https?://)?[^\\\\s/]{1,5}(/.*)?$\"}",
    "{\"type\":\"object\",\"minProperties\":1,\"maxProperties\":3,\"additionalProperties\":{\"type\":\"object\","
    "\"additionalProperties\":{\"type\":\"null\"}}}",
};

static void everything_written_is_valid(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        json_t *schema = parse_json(schemas[i]);
        td_grammar *g = make_schema(schema, schemas[i]);
        for (uint64_t seed = 0; seed < 25; seed++) {
            dice d = {.seed = 1000 * i + seed};
            td_buf out;
            json_error_t e;
            td_buf_init(&out, 1 << 24);
            random_walk(&d, g, 5 + 10 * seed, &out);
            json_t *v = json_loads(td_buf_str(&out), JSON_DECODE_ANY, &e);
            if (!v || !valid(schema, schema, v))
                fail_msg("schema %s, seed %d: %s: %s", schemas[i], (int)seed, v ? "not valid" : e.text,
                         td_buf_str(&out));
            json_decref(v);
            td_buf_free(&out);
        }
        td_grammar_close(&g);
        json_decref(schema);
    }
}

static void any_object_is_an_object(void **state) {
    (void)state;
    td_grammar *g;
    td_error err;
    assert_int_equal(td_grammar_any_json_object(&g, trie, NULL, &err), TD_OK);
    check_fits(g, "{}", 2);
    check_fits(g, "{\"a\":{\"b\":[1,\"x\",null]}}", 2);
    check_fits(g, "[", 0);
    check_fits(g, "{\n\n", 0);
    check_fits(g, "{  ", 0);
    td_grammar_close(&g);
}

static void long_strings_are_chains(void **state) {
    (void)state;
    json_t *schema = parse_json("{\"type\":\"string\",\"maxLength\":50000,\"minLength\":3}");
    td_grammar *g = make_schema(schema, "long");
    td_grammar_state *s = make_state(g);
    td_error err;
    char text[1000];
    memset(text, 'x', sizeof text);
    assert_int_equal(td_grammar_state_advance_text(s, "\"", 1, &err), TD_OK);
    for (int i = 0; i < 50; i++)
        assert_int_equal(td_grammar_state_advance_text(s, text, sizeof text, &err), TD_OK);
    assert_int_equal(td_grammar_state_advance_text(s, "x", 1, &err), TD_E_ARG);
    check_mask(s, trie, "at the end of a long string");
    assert_int_equal(td_grammar_state_advance_text(s, "\"", 1, &err), TD_OK);
    assert_true(td_grammar_state_must_end(s));
    td_grammar_state_close(&s);
    td_grammar_close(&g);
    json_decref(schema);
}

static void memory_may_fail_anywhere(void **state) {
    (void)state;
    json_t *schema = parse_json("{\"allOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\","
                                "\"multipleOf\":3},\"b\":{\"$ref\":\"#/$defs/x\"}}},"
                                "{\"properties\":{\"b\":{\"maxLength\":4}},\"additionalProperties\":true}],\"$defs\":{"
                                "\"x\":{\"type\":\"string\"}}}");
    long live = td_alloc_live();
    for (long k = 0;; k++) {
        td_grammar *g;
        td_error err;
        td_alloc_fail_at(k);
        td_status st = td_grammar_from_json_schema(&g, trie, schema, NULL, &err);
        bool struck = td_alloc_failed();
        td_alloc_fail_at(-1);
        assert_int_equal(st, struck ? TD_E_NOMEM : TD_OK);
        td_grammar_close(&g);
        assert_int_equal(td_alloc_live(), live);
        if (!struck)
            break;
    }
    json_decref(schema);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_accepted_or_not),   cmocka_unit_test(errors_name_the_place),
        cmocka_unit_test(everything_written_is_valid), cmocka_unit_test(any_object_is_an_object),
        cmocka_unit_test(long_strings_are_chains),     cmocka_unit_test(memory_may_fail_anywhere),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
