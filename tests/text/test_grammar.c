/* test_grammar.c - GBNF texts and what they accept, masks, states, special tokens, limits, memory. */
#include "text/test_grammar_util.h"

#include <pthread.h>

#include "text/grammar_impl.h"

static const char *const special[] = {"<end>", "<|call>", "<call|>", "[MARK]"};
static const char *const texts[] = {"a",
                                    "b",
                                    "ab",
                                    "ba",
                                    "abc",
                                    "c",
                                    " ",
                                    "  ",
                                    "\n",
                                    "\"",
                                    "\\",
                                    "{",
                                    "}",
                                    "{\"",
                                    "\":",
                                    "\",",
                                    "\"a\"",
                                    "hello",
                                    "world",
                                    " world",
                                    "\xC3\xA9",
                                    "1",
                                    "12",
                                    "123",
                                    "true",
                                    "tru",
                                    "\xE2\x82\xAC",
                                    "[",
                                    "]",
                                    "],",
                                    "<|call>a",
                                    "\xF0\x9F\x98\x80",
                                    "ab\xF0\x9F\x98\x80"};

static td_tokenizer *tok;
static td_token_trie *trie;

static int setup(void **state) {
    (void)state;
    tok = make_tokenizer(special, 4, texts, sizeof texts / sizeof *texts);
    trie = make_trie(tok);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    td_token_trie_close(&trie);
    td_tokenizer_close(&tok);
    return 0;
}

typedef struct fit_case {
    const char *grammar, *text;
    int expected; /* 0: no; 1: a beginning; 2: complete */
} fit_case;

static void texts_fit_or_not(void **state) {
    (void)state;
    static const fit_case cases[] = {
        {"root ::= \"abc\"", "", 1},
        {"root ::= \"abc\"", "ab", 1},
        {"root ::= \"abc\"", "abc", 2},
        {"root ::= \"abc\"", "abcd", 0},
        {"root ::= \"a\" | \"b\" x\nx ::= [0-9]+", "b12", 2},
        {"root ::= \"a\" | \"b\" x\nx ::= [0-9]+", "b", 1},
        {"root ::=\n  \"a\" # first\n  | \"b\"\n", "b", 2},
        {"root ::= (\n\"a\"\n\"b\")?", "", 2},
        {"root ::= a*\na ::= \"x\" | \"y\" \"z\"", "xyzx", 2},
        {"root ::= [^a-c]", "d", 2},
        {"root ::= [^a-c]", "b", 0},
        {"root ::= [^a-c]", "\xE2\x82\xAC", 2},
        {"root ::= [^a-c]", "\xE2\x82", 1},
        {"root ::= [^a-c]", "\xED\xA0", 0}, /* surrogates are no characters */
        {"root ::= [^a-c]", "\xC0", 0},
        {"root ::= .", "\xF4\x8F\xBF\xBF", 2},
        {"root ::= .", "\xF4\x90", 0},
        {"root ::= .", "\xE0\x80", 0},
        {"root ::= [\xC3\xA0-\xC3\xBF]+", "\xC3\xA9\xC3\xBF", 2},
        {"root ::= [\xC3\xA0-\xC3\xBF]+", "\xC3\x9F", 0},
        {"root ::= [\\x41\\u00e9\\n\\]\\-]{5}", "A\xC3\xA9\n]-", 2},
        {"root ::= \"\\x41\\U0001F600\\\"\\\\\"", "A\xF0\x9F\x98\x80\"\\", 2},
        {"root ::= \"a\"{3}", "aa", 1},
        {"root ::= \"a\"{3}", "aaaa", 0},
        {"root ::= \"a\"{2,}", "aaaaaaa", 2},
        {"root ::= \"a\"{2,}", "a", 1},
        {"root ::= \"a\"{1,3}", "aaa", 2},
        {"root ::= \"a\"{,2}", "aaa", 0},
        {"root ::= (\"ab\"{2})+", "abab", 2},
        {"root ::= (\"ab\"{2})+", "ababab", 1},
        {"root ::= ((\"a\"{1000}){1000}){1000}", "aaaaaaaaaaaaaaaaaaaa", 1}, /* heavy bodies are written once */
        {"root ::= \"\" \"a\" \"\"", "a", 2},
        {"root ::= e \"x\"\ne ::= \"\" | e2\ne2 ::= \"y\"?", "x", 2},
        {"root ::= e \"x\"\ne ::= \"\" | e2\ne2 ::= \"y\"?", "yx", 2},
        {"root ::= e \"x\"\ne ::= f\nf ::= \"y\"", "x", 0},
        {"root ::= \"(\" root? \")\"", "(())", 2},
        {"root ::= \"(\" root? \")\"", "(()))", 0},
        {"root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"a\"", "aaaaaaaacbcbcbc", 2},
        {"root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"a\"", "aaaaaaaacbcbcbcb", 0},
        {"root ::= (\"a\"*)*", "aaaa", 2},
        {"root ::= ((\"a\"?)*)+ \"b\"", "aab", 2},
        {"root ::= x | y\nx ::= \"a\" x | \"\"\ny ::= \"a\" y \"b\" | \"\"", "aabb", 2},
        {"root ::= dead | \"k\"\ndead ::= \"k\" dead", "k", 2},
        {"root ::= dead | \"k\"\ndead ::= \"z\" dead", "z", 0}, /* a way without an end is never entered */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        td_grammar *g = make_gbnf(trie, cases[i].grammar);
        int found = fits(g, cases[i].text, strlen(cases[i].text));
        if (found != cases[i].expected)
            fail_msg("case %zu: %s, text %s: %d, expected %d", i, cases[i].grammar, cases[i].text, found,
                     cases[i].expected);
        td_grammar_close(&g);
    }
}

typedef struct error_case {
    const char *grammar, *message;
    td_status status;
} error_case;

static void errors_name_their_place(void **state) {
    (void)state;
    static const error_case cases[] = {
        {"", "grammar: the grammar has no rule \"root\", which is where a text begins", TD_E_FORMAT},
        {"a ::= \"x\"", "grammar: the grammar has no rule \"root\", which is where a text begins", TD_E_FORMAT},
        {"root ::= \"x\"\nroot ::= \"y\"", "grammar, line 2, column 1: the rule \"root\" is defined twice",
         TD_E_FORMAT},
        {"root ::= \"x\" thing", "grammar, line 1, column 14: the rule \"thing\" is used but not defined", TD_E_FORMAT},
        {"root ::= \"x", "grammar, line 1, column 12: expected \" before the end of the line", TD_E_FORMAT},
        {"root ::= [a-", "grammar, line 1, column 13: expected ] before the end of the line", TD_E_FORMAT},
        {"root ::= [z-a]", "grammar, line 1, column 14: a range of characters that ends before it begins", TD_E_FORMAT},
        {"root ::= (\"a\"\n", "grammar, line 2, column 1: expected ), found the end", TD_E_FORMAT},
        {"root ::= \"a\" )", "grammar, line 1, column 14: expected the end of the rule, found )", TD_E_FORMAT},
        {"root := \"a\"", "grammar, line 1, column 6: expected ::= behind the name of a rule, found :", TD_E_FORMAT},
        {"root ::= \"\\q\"", "grammar, line 1, column 12: an escape that is not known: \\q", TD_E_FORMAT},
        {"root ::= \"\\xZZ\"", "grammar, line 1, column 13: expected 2 hexadecimal digits behind the escape",
         TD_E_FORMAT},
        {"root ::= \"\\ud800\"", "grammar, line 1, column 17: U+D800 is no character", TD_E_FORMAT},
        {"root ::= \"a\"{3,2}", "grammar, line 1, column 18: a repetition of at least 3 and at most 2 times",
         TD_E_FORMAT},
        {"root ::= \"a\"{x}", "grammar, line 1, column 14: expected a number", TD_E_FORMAT},
        {"root ::= \"a\"{1000000000}", "grammar, line 1, column 14: a repetition of more than 1000000 times",
         TD_E_LIMIT},
        {"root ::= \"abcdefghijklmnopqrstuvwx\"{60000}",
         "grammar: the grammar has more than 1000000 states, its repetitions written out", TD_E_LIMIT},
        {"root ::= root \"a\" | \"b\"",
         "grammar, line 1, column 1: the rule \"root\" can begin with itself (left recursion): put what it repeats "
         "behind",
         TD_E_FORMAT},
        {"root ::= x\nx ::= e y\ny ::= x \"b\"\ne ::= \"c\"?",
         "grammar, line 2, column 1: the rule \"x\" can begin with itself (left recursion): put what it repeats behind",
         TD_E_FORMAT},
        {"root ::= \"a\" root",
         "grammar: no text can satisfy the grammar: every way through it needs another round, or a choice among "
         "nothing",
         TD_E_FORMAT},
        {"root ::= []",
         "grammar: no text can satisfy the grammar: every way through it needs another round, or a choice "
         "among nothing",
         TD_E_FORMAT},
        {"root ::= <nobody>", "grammar, line 1, column 10: the vocabulary has no token <nobody>", TD_E_FORMAT},
        {"root ::= <[99999]>", "grammar, line 1, column 10: the vocabulary has no token 99999", TD_E_FORMAT},
        {"root ::= <[1", "grammar, line 1, column 10: expected ]> behind the name of a token", TD_E_FORMAT},
        {"root ::= <end>",
         "grammar, line 1, column 10: <end> ends the answer: it comes by itself where the text is complete",
         TD_E_FORMAT},
        {"root ::= \"\xFF\"", "grammar, line 1, column 11: the grammar is not UTF-8", TD_E_FORMAT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        td_error err = {0};
        long live = td_alloc_live();
        td_grammar *g;
        td_status st = td_grammar_from_gbnf(&g, trie, cases[i].grammar, strlen(cases[i].grammar), NULL, &err);
        assert_null(g);
        assert_string_equal(err.message, cases[i].message);
        assert_int_equal(st, cases[i].status);
        assert_int_equal(td_alloc_live(), live);
    }
}

static void deep_brackets_are_refused(void **state) {
    (void)state;
    char text[5000] = "root ::= ";
    td_grammar *g;
    td_error err;
    memset(text + 9, '(', 4000);
    assert_int_equal(td_grammar_from_gbnf(&g, trie, text, 4009, NULL, &err), TD_E_LIMIT);
    assert_string_equal(err.message, "grammar, line 1, column 210: brackets nested deeper than 200 levels");
}

static void masks_equal_brute_force(void **state) {
    (void)state;
    static const char *const grammars[] = {
        "root ::= \"hello\" (\" \" \"world\")*",
        "root ::= \"{\" \"\\\"\" [^\"\\\\]* \"\\\"\" \":\" [0-9]{1,3} \"}\"",
        "root ::= .{0,6}",
        "root ::= [^ ]* \"x\"",
        "root ::= [^~b]{0,9}",
        "root ::= [\\x01-\\x7F]*",
        "root ::= [^\xE2\x82\xAC]* .",
        "root ::= [^\xF0\x90\x80\x80-\xF4\x8F\xBF\xBF]{0,40}",
        "root ::= [^\\x00-\\x1f\"]{2,5} \"\\\"\"",
        "root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"ab\"",
        "root ::= <|call> \"a\"+ <call|> <[[MARK]]>?",
        "root ::= (<|call> | \"ab\" | <[261]>)+",
        "root ::= [\xC3\xA0-\xC3\xBF\xE2\x82\xA0-\xE2\x82\xAF ]*",
        "root ::= \"\"",
    };
    for (size_t i = 0; i < sizeof grammars / sizeof *grammars; i++) {
        td_grammar *g = make_gbnf(trie, grammars[i]);
        for (uint64_t seed = 0; seed < 6; seed++) {
            dice d = {.seed = 100 * i + seed};
            td_buf out;
            td_buf_init(&out, 1 << 20);
            td_grammar_state *s = make_state(g);
            check_mask(s, trie, grammars[i]);
            td_grammar_state_close(&s);
            random_walk(&d, g, 30, &out);
            td_buf_free(&out);
        }
        td_grammar_close(&g);
    }
}

/* A special token is no text, and its name spelt in text is not the token. */
static void special_tokens_match_literals_only(void **state) {
    (void)state;
    td_grammar *g = make_gbnf(trie, "root ::= \"<|call>\" | <|call> \"a\"");
    td_grammar_state *s = make_state(g);
    td_error err;
    const td_token call = td_tokenizer_find(tok, "<|call>", 7), spelt = td_tokenizer_find(tok, "<|call>a", 8),
                   a = td_tokenizer_find(tok, "a", 1);
    uint64_t mask[8];
    size_t n;
    assert_true(trie->n_words <= 8);
    assert_int_equal(td_grammar_state_allowed(s, mask, &n, &err), TD_OK);
    assert_true(td_mask_has(mask, call));
    assert_false(td_mask_has(mask, spelt));
    assert_int_equal(n, 2); /* and the byte '<' */
    td_token tokens[] = {call, a, 0, a};
    assert_int_equal(td_grammar_state_accepts(s, tokens, 4, &n, &err), TD_OK);
    assert_int_equal(n, 3);
    assert_int_equal(td_grammar_state_advance(s, call, &err), TD_OK);
    assert_int_equal(td_grammar_state_advance(s, call, &err), TD_E_ARG);
    assert_string_equal(err.message, "token 1 (<|call>) is not one that the grammar allows at byte 0");
    assert_int_equal(td_grammar_state_advance(s, a, &err), TD_OK);
    assert_true(td_grammar_state_must_end(s));
    td_grammar_state_close(&s);
    td_grammar_close(&g);
}

static void states_are_values(void **state) {
    (void)state;
    td_grammar *g = make_gbnf(trie, "root ::= \"ab\" \"c\"?");
    td_grammar_state *s = make_state(g), *c;
    td_error err;
    td_grammar_close(&g); /* its states own it */
    assert_null(g);
    assert_int_equal(td_grammar_state_advance_text(s, "a", 1, &err), TD_OK);
    assert_int_equal(td_grammar_state_clone(&c, s, &err), TD_OK);
    assert_int_equal(td_grammar_state_advance_text(c, "bx", 2, &err), TD_E_ARG);
    assert_int_equal(err.position, 1);
    assert_false(td_grammar_state_is_complete(c));
    assert_int_equal(td_grammar_state_advance_text(c, "b", 1, &err), TD_OK);
    assert_true(td_grammar_state_is_complete(c));
    assert_false(td_grammar_state_must_end(c));
    assert_false(td_grammar_state_is_complete(s));
    td_grammar_state_assign(s, c);
    assert_true(td_grammar_state_is_complete(s));
    assert_int_equal(td_grammar_state_advance(s, 0, &err), TD_OK);
    assert_true(td_grammar_state_has_ended(s));
    uint64_t mask[8];
    size_t n = 9;
    assert_int_equal(td_grammar_state_allowed(s, mask, &n, &err), TD_OK);
    assert_int_equal(n, 0);
    assert_int_equal(td_grammar_state_advance(s, 0, &err), TD_E_ARG);
    assert_false(td_grammar_state_has_ended(c));
    td_grammar_state_close(&s);
    td_grammar_state_close(&c);
}

static void thoughts_may_come_first(void **state) {
    (void)state;
    td_grammar *g;
    td_error err;
    static const char *const grammar = "root ::= \"{}\"";
    td_grammar_options opt = {.think = TD_REPLY_THINK_TAGS, .inside_reasoning = true};
    assert_int_equal(td_grammar_from_gbnf(&g, trie, grammar, strlen(grammar), &opt, &err), TD_OK);
    check_fits(g, "so < it </thin is</think>\n\n{}", 2);
    check_fits(g, "{}", 1); /* still a thought */
    check_fits(g, "x</think>y", 0);
    td_grammar_close(&g);
    opt.inside_reasoning = false;
    assert_int_equal(td_grammar_from_gbnf(&g, trie, grammar, strlen(grammar), &opt, &err), TD_OK);
    check_fits(g, "{}", 2);
    check_fits(g, "<think>{</think>{}", 2);
    check_fits(g, "<think>{", 1);
    td_grammar_close(&g);
}

/* Deeper than allowed is never begun, and what is begun can be ended. */
static void depth_is_bounded(void **state) {
    (void)state;
    td_grammar *g;
    td_error err;
    static const char *const grammar =
        "root ::= \"(\" x \")\"\nx ::= root \"!\" | \"z\" y\ny ::= \"\" | w \"u\"\nw ::= \"w\"";
    td_grammar_options opt = {.max_depth = 20};
    char open[64];
    memset(open, '(', sizeof open);
    assert_int_equal(td_grammar_from_gbnf(&g, trie, grammar, strlen(grammar), &opt, &err), TD_OK);
    int deepest = 0;
    while (deepest < 60 && fits(g, open, (size_t)deepest + 1) == 1)
        deepest++;
    assert_true(deepest >= 9 && deepest <= 20);
    td_buf out;
    td_buf_init(&out, 1 << 16);
    for (uint64_t seed = 0; seed < 20; seed++) {
        dice d = {.seed = seed};
        td_buf_clear(&out);
        random_walk(&d, g, 1000, &out);
    }
    td_buf_free(&out);
    td_grammar_close(&g);
}

/* Grammars made to have 2^n or n^n readings. */
static void ambiguity_is_shared(void **state) {
    (void)state;
    static const char *const grammars[] = {
        "root ::= s\ns ::= \"a\" s \"a\" | \"a\" s \"b\" | \"a\" s | \"a\"",
        "root ::= x*\nx ::= \"a\" | \"aa\" | \"aaa\" | y\ny ::= \"a\" x | \"a\" x x | \"a\" x x x | \"a\"",
        "root ::= a1 a1 a1 a1\na1 ::= a2 a2 | a2\na2 ::= a3 a3 | a3\na3 ::= a4 a4 | a4 | \"\"\na4 ::= \"a\" a4 \"a\" | "
        "\"a\" | \"\"",
        "root ::= (((\"a\"* \"a\"*)* (\"a\"* \"a\"*)*)* \"a\"{0,50}){0,50}",
        "root ::= b1 \"a\"*\nb1 ::= b2 \"a\" | b2 \"aa\"\nb2 ::= b3 \"a\" | b3 \"aa\"\nb3 ::= b4 \"a\" | b4 \"aa\"\nb4 "
        "::= b5 \"a\" | b5 \"aa\"\n"
        "b5 ::= b6 \"a\" | b6 \"aa\"\nb6 ::= b7 \"a\" | b7 \"aa\"\nb7 ::= b8 \"a\" | b8 \"aa\"\nb8 ::= b9 \"a\" | b9 "
        "\"aa\"\nb9 ::= \"a\"",
    };
    char text[200];
    memset(text, 'a', sizeof text);
    for (size_t i = 0; i < sizeof grammars / sizeof *grammars; i++) {
        td_grammar *g = make_gbnf(trie, grammars[i]);
        td_grammar_state *s = make_state(g);
        td_error err;
        if (td_grammar_state_advance_text(s, text, sizeof text, &err) != TD_OK)
            fail_msg("grammar %zu: %s", i, err.message);
        assert_true(td_grammar_state_is_complete(s));
        td_grammar_state_close(&s);
        td_grammar_close(&g);
    }
}

/* A grammar that is swept before every call, beside one that never is: two states of each, at different places. */
static void sweeping_changes_nothing(void **state) {
    (void)state;
    static const char text[] = "root ::= \"a\" root \"b\" | \"a\" root \"c\" | [^c]{0,9} \"ab\" | <|call> root";
    td_grammar *g[2] = {make_gbnf(trie, text), make_gbnf(trie, text)};
    td_grammar_state *behind[2] = {make_state(g[0]), make_state(g[1])}, *s[2] = {make_state(g[0]), make_state(g[1])};
    dice d = {.seed = 5};
    td_error err;
    for (int i = 0; i < 60 && !td_grammar_state_must_end(s[1]); i++) {
        uint64_t mask[2][8] = {{0}}, first[2][8] = {{0}};
        size_t n;
        for (int k = 0; k < 2; k++) {
            g[0]->soft_bytes = 0;
            assert_int_equal(td_grammar_state_allowed(behind[k], first[k], &n, &err), TD_OK);
            g[0]->soft_bytes = 0;
            assert_int_equal(td_grammar_state_allowed(s[k], mask[k], &n, &err), TD_OK);
        }
        assert_memory_equal(first[0], first[1], sizeof first[0]);
        assert_memory_equal(mask[0], mask[1], sizeof mask[0]);
        assert_int_equal(td_grammar_state_is_complete(s[0]), td_grammar_state_is_complete(s[1]));
        td_token token;
        do
            token = choose(&d, trie, mask[0], n, false);
        while (token == 0 && n > 1);
        for (int k = 0; k < 2; k++) {
            g[0]->soft_bytes = 0;
            assert_int_equal(td_grammar_state_advance(s[k], token, &err), TD_OK);
        }
        for (int k = 0; k < 2 && i % 3 == 0; k++)
            td_grammar_state_assign(behind[k], s[k]);
        if (token == 0)
            break;
    }
    assert_true(g[0]->automaton.n_nodes < g[1]->automaton.n_nodes);
    for (int k = 0; k < 2; k++) {
        td_grammar_state_close(&behind[k]);
        td_grammar_state_close(&s[k]);
        td_grammar_close(&g[k]);
    }
}

/* Each failing allocation in turn. */
static td_status run_all(const char *grammar) {
    td_grammar *g;
    td_grammar_state *s = NULL, *c = NULL;
    td_error err;
    uint64_t mask[8];
    size_t n;
    TD_TRY(td_grammar_from_gbnf(&g, trie, grammar, strlen(grammar), NULL, &err));
    td_status st = td_grammar_state_open(&s, g, &err);
    if (st == TD_OK)
        st = td_grammar_state_allowed(s, mask, &n, &err);
    if (st == TD_OK)
        st = td_grammar_state_advance_text(s, "aab", 3, &err);
    if (st == TD_OK)
        st = td_grammar_state_clone(&c, s, &err);
    if (st == TD_OK)
        st = td_grammar_state_allowed(c, mask, &n, &err);
    td_grammar_state_close(&s);
    td_grammar_state_close(&c);
    td_grammar_close(&g);
    return st;
}

static void memory_may_fail_anywhere(void **state) {
    (void)state;
    static const char grammar[] =
        "root ::= x+ | \"a\" y [^a-c]{0,40} | <|call>\nx ::= \"a\" x \"b\" | \"a\" x \"c\" | \"a\"\n"
        "y ::= (\"hello world and so on and so forth\" | [a-z]){3,4}";
    long live = td_alloc_live();
    for (long k = 0;; k++) {
        td_alloc_fail_at(k);
        td_status st = run_all(grammar);
        bool struck = td_alloc_failed();
        td_alloc_fail_at(-1);
        /* a mask that finds no room is not kept, which is no failure */
        assert_true(st == TD_OK || (struck && st == TD_E_NOMEM));
        assert_int_equal(td_alloc_live(), live);
        if (!struck)
            break;
    }
}

static void *walk_along(void *user) {
    td_grammar *g = user;
    for (uint64_t seed = 0; seed < 30; seed++) {
        dice d = {.seed = seed};
        td_buf out;
        td_buf_init(&out, 1 << 16);
        random_walk(&d, g, 60, &out);
        td_buf_free(&out);
    }
    return NULL;
}

static void threads_share_a_grammar(void **state) {
    (void)state;
    td_grammar *g = make_gbnf(trie, "root ::= \"{\" (\"\\\"\" [^\"]{0,30} \"\\\"\" \":\" root){0,3} \"}\"");
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, walk_along, g), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    td_grammar_close(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_fit_or_not),
        cmocka_unit_test(errors_name_their_place),
        cmocka_unit_test(deep_brackets_are_refused),
        cmocka_unit_test(masks_equal_brute_force),
        cmocka_unit_test(special_tokens_match_literals_only),
        cmocka_unit_test(states_are_values),
        cmocka_unit_test(thoughts_may_come_first),
        cmocka_unit_test(depth_is_bounded),
        cmocka_unit_test(ambiguity_is_shared),
        cmocka_unit_test(sweeping_changes_nothing),
        cmocka_unit_test(memory_may_fail_anywhere),
        cmocka_unit_test(threads_share_a_grammar),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
