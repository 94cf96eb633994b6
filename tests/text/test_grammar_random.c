/* test_grammar_random.c - random grammars against a reader of their trees that knows nothing of automata.
 *
 * A grammar is made as a tree, printed as GBNF, and read back by the code under test. Whether a text is complete, or a
 * beginning, is decided beside it by walking the tree with all ends of every part (memoised by part and place). Every
 * rule has an alternative of plain characters in front, so that every beginning can be ended, and uses of rules stand
 * behind a character, so that there is no left recursion. */
#include "text/test_grammar_util.h"

enum { MAX_NODES = 400, MAX_TEXT = 12, N_RULES = 4, ROUNDS = 300 };

typedef enum kind { CHAR, SEQ, ALT, REPEAT, RULE } kind;

typedef struct tnode {
    kind kind;
    int kids[3], n_kids;
    const char *const *chars; /* CHAR: one of these */
    int n_chars;
    int min, max, rule;
} tnode;

typedef struct tree {
    tnode nodes[MAX_NODES];
    int n;
    int rules[N_RULES];
} tree;

static const char *const some[] = {"a", "b", "c", "\xC3\xA9", "\xE2\x82\xAC", "\""};
enum { N_SOME = sizeof some / sizeof *some };

/* ---- making ---- */

static int add(tree *t, tnode n) {
    assert_true(t->n < MAX_NODES);
    t->nodes[t->n] = n;
    return t->n++;
}

static int make_char(dice *d, tree *t) {
    int from = (int)below(d, N_SOME), n = 1 + (int)below(d, 3);
    n = n < N_SOME - from ? n : N_SOME - from;
    return add(t, (tnode){.kind = CHAR, .chars = some + from, .n_chars = n});
}

static int make(dice *d, tree *t, int depth, bool guarded) {
    switch (depth > 0 && t->n < MAX_NODES - 60 ? below(d, 6) : 5) {
    case 0:
    case 1: {
        tnode n = {.kind = SEQ, .n_kids = 2 + (int)below(d, 2)};
        for (int i = 0; i < n.n_kids; i++) /* only behind a part that is never empty is the guard lifted */
            n.kids[i] = i == 0 && !guarded ? make_char(d, t) : make(d, t, depth - 1, true);
        return add(t, n);
    }
    case 2: {
        tnode n = {.kind = ALT, .n_kids = 2 + (int)below(d, 2)};
        for (int i = 0; i < n.n_kids; i++)
            n.kids[i] = make(d, t, depth - 1, guarded);
        return add(t, n);
    }
    case 3: {
        tnode n = {.kind = REPEAT, .n_kids = 1, .min = (int)below(d, 3)};
        n.max = below(d, 2) ? -1 : n.min + (int)below(d, 3);
        n.kids[0] = make(d, t, depth - 1, guarded);
        return add(t, n);
    }
    case 4:
        if (guarded)
            return add(t, (tnode){.kind = RULE, .rule = (int)below(d, N_RULES)});
        return make_char(d, t);
    default:
        return make_char(d, t);
    }
}

static void make_tree(dice *d, tree *t) {
    *t = (tree){0};
    for (int r = 0; r < N_RULES; r++) {
        int plain = make_char(d, t), rest = make(d, t, 4, false);
        t->rules[r] = add(t, (tnode){.kind = ALT, .n_kids = 2, .kids = {plain, rest}});
    }
}

/* ---- printing ---- */

static void print(const tree *t, int at, td_buf *b) {
    const tnode *n = &t->nodes[at];
    switch (n->kind) {
    case CHAR:
        td_buf_puts(b, "[");
        for (int i = 0; i < n->n_chars; i++)
            td_buf_puts(b, n->chars[i]);
        td_buf_puts(b, "]");
        break;
    case RULE:
        td_buf_printf(b, n->rule ? "rule-%d" : "root", n->rule);
        break;
    default:
        td_buf_puts(b, "(");
        for (int i = 0; i < n->n_kids; i++) {
            td_buf_puts(b, i == 0 ? "" : n->kind == ALT ? " | " : " ");
            print(t, n->kids[i], b);
        }
        td_buf_puts(b, ")");
        if (n->kind == REPEAT && n->max < 0)
            td_buf_printf(b, "{%d,}", n->min);
        else if (n->kind == REPEAT)
            td_buf_printf(b, "{%d,%d}", n->min, n->max);
    }
}

static void print_tree(const tree *t, td_buf *b) {
    for (int r = 0; r < N_RULES; r++) {
        td_buf_printf(b, r ? "rule-%d ::= " : "root ::= ", r);
        print(t, t->rules[r], b);
        td_buf_puts(b, "\n");
    }
}

/* ---- reading: sets of ends as bits ---- */

typedef struct reader {
    const tree *t;
    const char *text;
    int n;
    uint32_t ends[MAX_NODES][MAX_TEXT + 1];
    bool known[MAX_NODES][MAX_TEXT + 1];
    bool touched; /* some part could go on behind the text's end */
} reader;

static uint32_t ends_of(reader *r, int at, int from);

static uint32_t ends_of_char(reader *r, const tnode *n, int from) {
    uint32_t ends = 0;
    for (int i = 0; i < n->n_chars; i++) {
        int size = (int)strlen(n->chars[i]), left = r->n - from;
        if (memcmp(n->chars[i], r->text + from, (size_t)(size < left ? size : left)) != 0)
            continue;
        if (size <= left)
            ends |= 1u << (from + size);
        else
            r->touched = true;
    }
    return ends;
}

static uint32_t ends_from(reader *r, int at, uint32_t starts) {
    uint32_t ends = 0;
    for (int i = 0; i <= r->n; i++)
        if (starts >> i & 1)
            ends |= ends_of(r, at, i);
    return ends;
}

static uint32_t ends_of_repeat(reader *r, const tnode *n, int from) {
    uint32_t now = 1u << from, all = n->min == 0 ? now : 0, seen = 0;
    for (int i = 1; now && (n->max < 0 || i <= n->max); i++) {
        now = ends_from(r, n->kids[0], now);
        if (i >= n->min)
            all |= now;
        if (n->max < 0 && i > n->min && (now & ~seen) == 0)
            break;
        seen |= now;
    }
    return all;
}

static uint32_t ends_of(reader *r, int at, int from) {
    const tnode *n = &r->t->nodes[at];
    if (r->known[at][from])
        return r->ends[at][from];
    uint32_t ends = n->kind == SEQ ? 1u << from : 0;
    if (n->kind == CHAR)
        ends = ends_of_char(r, n, from);
    else if (n->kind == RULE)
        ends = ends_of(r, r->t->rules[n->rule], from);
    else if (n->kind == REPEAT)
        ends = ends_of_repeat(r, n, from);
    for (int i = 0; n->kind == SEQ && i < n->n_kids; i++)
        ends = ends_from(r, n->kids[i], ends);
    for (int i = 0; n->kind == ALT && i < n->n_kids; i++)
        ends |= ends_of(r, n->kids[i], from);
    r->known[at][from] = true;
    return r->ends[at][from] = ends;
}

/* As fits() of the helpers. */
static int read_text(const tree *t, const char *text, int n) {
    static reader r;
    memset(&r, 0, sizeof r);
    r.t = t;
    r.text = text;
    r.n = n;
    bool complete = ends_of(&r, t->rules[0], 0) >> n & 1;
    return complete ? 2 : r.touched ? 1 : 0;
}

/* ---- tests ---- */

static td_tokenizer *tok;
static td_token_trie *trie;

static void texts_and_masks_of_random_grammars(void **state) {
    (void)state;
    size_t found[3] = {0};
    for (uint64_t seed = 0; seed < ROUNDS; seed++) {
        dice d = {.seed = seed};
        static tree t;
        td_buf text;
        td_buf_init(&text, 1 << 20);
        make_tree(&d, &t);
        print_tree(&t, &text);
        td_grammar *g = make_gbnf(trie, td_buf_str(&text));
        for (int i = 0; i < 60; i++) { /* beginnings of texts that fit are tried with every token behind them */
            char sample[MAX_TEXT + 8] = "";
            int n = 0, want = read_text(&t, sample, 0);
            while (n < MAX_TEXT) {
                char more[MAX_TEXT + 8];
                const char *c = some[below(&d, N_SOME)];
                int size = 1 + (int)below(&d, (uint32_t)strlen(c));
                memcpy(more, sample, sizeof more);
                memcpy(more + n, c, (size_t)size);
                if (n + size > MAX_TEXT)
                    break;
                int expected = read_text(&t, more, n + size), got = fits(g, more, (size_t)(n + size));
                if (expected != got)
                    fail_msg("seed %d: %.*s: %d, expected %d, in\n%s", (int)seed, n + size, more, got, expected,
                             td_buf_str(&text));
                found[got]++;
                if (expected == 0 && below(&d, 4))
                    continue;
                memcpy(sample, more, sizeof more);
                n += size;
                want = expected;
                if (want == 0)
                    break;
            }
        }
        for (int i = 0; i < 2; i++) {
            td_buf out;
            td_buf_init(&out, 1 << 20);
            bool ended = walk_up_to(&d, g, 12, 100, &out); /* some of these grammars multiply more than they end */
            if (ended && out.size <= MAX_TEXT && read_text(&t, td_buf_str(&out), (int)out.size) != 2)
                fail_msg("seed %d: %s is not complete", (int)seed, td_buf_str(&out));
            td_buf_free(&out);
        }
        td_grammar_close(&g);
        td_buf_free(&text);
    }
    assert_true(found[0] > 1000 && found[1] > 1000 && found[2] > 1000);
}

int main(void) {
    static const char *const special[] = {"<end>"};
    static const char *const texts[] = {"a",
                                        "ab",
                                        "abc",
                                        "\xC3\xA9",
                                        "\xC3\xA9"
                                        "a",
                                        "bc\xE2\x82\xAC",
                                        "\"",
                                        "a\"",
                                        "\"\"",
                                        "cc",
                                        "aaaa"};
    tok = make_tokenizer(special, 1, texts, sizeof texts / sizeof *texts);
    trie = make_trie(tok);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_and_masks_of_random_grammars),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    td_token_trie_close(&trie);
    td_tokenizer_close(&tok);
    return failed;
}
