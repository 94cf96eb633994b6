/* jinja_internal.h - what the files of the template engine share: arena, values, syntax tree, and the state of a run.
 *
 * Everything a compilation makes lives in the template's arena and is never changed afterwards. Everything a rendering
 * makes lives in the arena of its run and is dropped as a whole when the run ends: values carry no reference counts,
 * share freely, and may be cyclic. Text is bytes and a length; slicing, trimming and splitting make views and copy
 * nothing. Text being built (printing, joining, tojson, macro bodies) is written at the end of the run's one output
 * buffer and, when it is a value rather than output, taken off it again: see td_jrun_take. */
#ifndef TD_TEXT_JINJA_INTERNAL_H
#define TD_TEXT_JINJA_INTERNAL_H

#include "text/jinja.h"

/* ---- jinja_arena.c: memory that is freed at once ---- */

typedef struct td_jblock td_jblock;

typedef struct td_jarena {
    td_jblock *top;
    size_t held;      /* bytes taken from the heap */
    size_t ceiling;   /* `held` never passes it */
    bool stack;       /* released in reverse order of allocation (see td_jarena_release) */
    td_status failed; /* why the last allocation gave NULL: TD_E_NOMEM or TD_E_LIMIT */
} td_jarena;

typedef struct td_jmark {
    td_jblock *top;
    size_t used;
} td_jmark;

void td_jarena_init(td_jarena *a, size_t ceiling, bool stack);
void td_jarena_free(td_jarena *a);
/* n * size bytes aligned to 16, not cleared; NULL sets `failed`. */
void *td_jarena_alloc(td_jarena *a, size_t n, size_t size);
/* For arenas with `stack` set: gives back everything allocated since the mark. */
td_jmark td_jarena_mark(const td_jarena *a);
void td_jarena_release(td_jarena *a, td_jmark mark);

/* ---- values ---- */

typedef enum td_jkind {
    TD_J_ABSENT, /* an argument that was not given; never visible to a template */
    TD_J_UNDEFINED,
    TD_J_NONE,
    TD_J_BOOL,
    TD_J_INT,
    TD_J_FLOAT,
    TD_J_STRING,
    TD_J_LIST, /* every kind of sequence: see td_jflavour */
    TD_J_DICT,
    TD_J_NAMESPACE,
    TD_J_FUNCTION, /* a global function */
    TD_J_METHOD,   /* a method of a built-in type, bound to its object */
    TD_J_MACRO,    /* also the caller() of a call block */
    TD_J_LOOP,
    TD_J_CYCLER,
    TD_J_JOINER,
} td_jkind;

/* What an undefined value remembers of its origin, for the message when it is used. */
typedef enum td_jorigin {
    TD_J_FROM_NAME,      /* text: the variable */
    TD_J_FROM_ATTRIBUTE, /* text: the attribute; `owner` is the index of the owner's type name */
    TD_J_FROM_INDEX,     /* index; likewise */
    TD_J_FROM_MESSAGE,   /* text: the whole message */
} td_jorigin;

enum { TD_JV_GROWS = 1 }; /* flag of a string: it opens a td_jgrow, see td_jv_concat */

typedef struct td_jlist td_jlist;
typedef struct td_jdict td_jdict;
typedef struct td_jmacro td_jmacro;
typedef struct td_jloop td_jloop;
typedef struct td_jcycle td_jcycle;
typedef struct td_jbuiltin td_jbuiltin;
typedef struct td_jbound td_jbound;
typedef struct td_jnode td_jnode;
typedef struct td_jrun td_jrun;

typedef struct td_jv {
    uint8_t kind;   /* td_jkind */
    uint8_t flags;  /* strings */
    uint8_t origin; /* undefined: td_jorigin */
    uint8_t owner;  /* undefined: index for td_jv_type_name_at */
    union {
        bool boolean;
        int64_t integer;
        double real;
        const char *text; /* `size` bytes, UTF-8, not terminated */
        int64_t index;
        td_jlist *list;
        td_jdict *dict; /* dictionaries and namespaces */
        const td_jbuiltin *function;
        const td_jbound *bound;
        td_jmacro *macro;
        td_jloop *loop;
        td_jcycle *cycle; /* cyclers and joiners */
    };
    size_t size;
} td_jv;

typedef enum td_jflavour {
    TD_J_PLAIN_LIST,
    TD_J_TUPLE,
    TD_J_GROUP,     /* the tuple of groupby: also .grouper and .list */
    TD_J_GENERATOR, /* what map, select, ... give: true even when empty, no length, walked once */
    TD_J_RANGE,
    TD_J_KEYS,
    TD_J_VALUES,
    TD_J_ITEMS,
} td_jflavour;

struct td_jlist {
    td_jv *items;
    size_t n, capacity;
    td_jflavour flavour;
    bool walked;      /* generators: already consumed */
    int64_t range[3]; /* ranges: start, stop, step, for printing */
};

typedef struct td_jentry {
    td_jv key, value;
    uint64_t hash;
} td_jentry;

struct td_jdict { /* insertion order; `slots` is an open-addressing index once there are more than a few entries */
    td_jentry *entries;
    size_t n, capacity;
    uint32_t *slots; /* entry + 1, 0: free */
    size_t n_slots;  /* a power of two, or 0 */
};

struct td_jcycle {
    td_jv *items;
    size_t n, at;
};

struct td_jbound {
    const td_jbuiltin *method;
    td_jv self;
};

static inline td_jv td_jv_bool(bool b) {
    return (td_jv){.kind = TD_J_BOOL, .boolean = b};
}
static inline td_jv td_jv_int(int64_t i) {
    return (td_jv){.kind = TD_J_INT, .integer = i};
}
static inline td_jv td_jv_float(double d) {
    return (td_jv){.kind = TD_J_FLOAT, .real = d};
}
static inline td_jv td_jv_text(const char *text, size_t size) { /* a view: `text` outlives the run */
    return (td_jv){.kind = TD_J_STRING, .text = text, .size = size};
}
static inline td_jv td_jv_literal(const char *s) {
    return td_jv_text(s, __builtin_strlen(s));
}
static inline td_jv td_jv_list(td_jlist *list) {
    return (td_jv){.kind = TD_J_LIST, .list = list};
}
static inline td_jv td_jv_dict(td_jdict *dict) {
    return (td_jv){.kind = TD_J_DICT, .dict = dict};
}
static inline td_jv td_jv_none(void) {
    return (td_jv){.kind = TD_J_NONE};
}
static inline td_jv td_jv_undefined(const char *message) {
    td_jv v = td_jv_literal(message);
    v.kind = TD_J_UNDEFINED;
    v.origin = TD_J_FROM_MESSAGE;
    return v;
}
static inline bool td_jv_is_text(td_jv v, const char *s) {
    return v.kind == TD_J_STRING && v.size == __builtin_strlen(s) && !__builtin_memcmp(v.text, s, v.size);
}
static inline bool td_jv_is_integral(td_jv v) { /* int, or bool, which Python counts as one */
    return v.kind == TD_J_INT || v.kind == TD_J_BOOL;
}
static inline int64_t td_jv_integral(td_jv v) {
    return v.kind == TD_J_BOOL ? v.boolean : v.integer;
}
static inline bool td_jv_is_number(td_jv v) {
    return td_jv_is_integral(v) || v.kind == TD_J_FLOAT;
}
static inline double td_jv_real(td_jv v) {
    return v.kind == TD_J_FLOAT ? v.real : (double)td_jv_integral(v);
}
static inline bool td_jv_missing(td_jv v) { /* an argument not given, or given as None */
    return v.kind == TD_J_ABSENT || v.kind == TD_J_NONE;
}

/* ---- the syntax tree ---- */

typedef enum td_jop {
    TD_JOP_ADD,
    TD_JOP_SUB,
    TD_JOP_MUL,
    TD_JOP_DIV,
    TD_JOP_FLOORDIV,
    TD_JOP_MOD,
    TD_JOP_POW,
    TD_JOP_EQ,
    TD_JOP_NE,
    TD_JOP_LT,
    TD_JOP_LE,
    TD_JOP_GT,
    TD_JOP_GE,
    TD_JOP_IN,
    TD_JOP_NOT_IN,
} td_jop;

typedef enum td_jnode_kind {
    /* expressions */
    TD_JN_LITERAL,
    TD_JN_NAME,
    TD_JN_TUPLE,
    TD_JN_LIST,
    TD_JN_DICT,
    TD_JN_CONCAT,
    TD_JN_BINARY,
    TD_JN_COMPARE,
    TD_JN_AND,
    TD_JN_OR,
    TD_JN_NOT,
    TD_JN_NEGATE,
    TD_JN_PLUS,
    TD_JN_CONDITIONAL,
    TD_JN_ATTRIBUTE,
    TD_JN_SUBSCRIPT,
    TD_JN_SLICE,
    TD_JN_CALL,
    TD_JN_FILTER,
    TD_JN_TEST,
    TD_JN_PIPED,         /* the text that a filter block or a block set pipes into its filters */
    TD_JN_NAMESPACE_REF, /* ns.attribute as the target of an assignment */
    /* statements */
    TD_JN_BODY,
    TD_JN_TEXT,
    TD_JN_PRINT,
    TD_JN_IF,
    TD_JN_FOR,
    TD_JN_SET,
    TD_JN_SET_BLOCK,
    TD_JN_MACRO,
    TD_JN_CALL_BLOCK,
    TD_JN_FILTER_BLOCK,
    TD_JN_WITH,
    TD_JN_SCOPE, /* generation blocks: the body, in a scope of its own */
    TD_JN_DO,
    TD_JN_BREAK,
    TD_JN_CONTINUE,
} td_jnode_kind;

typedef struct td_jnodes {
    td_jnode **at;
    uint32_t n;
} td_jnodes;

typedef struct td_jargs { /* the arguments of a call, a filter or a test */
    td_jnodes positional;
    td_jv *names; /* named.n keyword names */
    td_jnodes named;
    td_jnode *star;      /* *expression or NULL */
    td_jnode *star_star; /* **expression or NULL */
} td_jargs;

typedef struct td_jmacro_def {
    td_jv name;
    uint32_t *parameters; /* symbols */
    td_jnode **defaults;  /* NULL: none */
    uint32_t n_parameters;
    td_jnode *body;
    bool takes_caller, takes_varargs, takes_kwargs; /* the body reads these names */
} td_jmacro_def;

struct td_jnode {
    uint8_t kind;    /* td_jnode_kind */
    uint8_t op;      /* td_jop of BINARY; TEST: negated */
    uint16_t height; /* levels of the tree under it, itself included */
    uint32_t offset; /* byte of the source */
    union {
        td_jv literal;      /* LITERAL, TEXT */
        uint32_t symbol;    /* NAME */
        td_jnodes children; /* TUPLE, LIST, CONCAT, BODY; DICT: key, value, key, value, ... */
        td_jnode *operand;  /* NOT, NEGATE, PLUS, PRINT, SCOPE, DO */
        struct {
            td_jnode *left, *right;
        } binary; /* BINARY, AND, OR */
        struct {
            td_jnodes operands; /* n */
            uint8_t *ops;       /* n - 1: td_jop */
        } compare;
        struct {
            td_jnode *test, *yes, *no; /* no: NULL gives undefined */
        } conditional;
        struct {
            td_jnode *object;
            td_jv name;
        } attribute;
        struct {
            td_jnode *object, *key;
        } subscript;
        struct {
            td_jnode *object, *start, *stop, *step; /* the last three may be NULL */
        } slice;
        struct {
            td_jnode *subject;
            const td_jbuiltin *builtin; /* NULL for an unknown filter or test inside a condition */
            td_jv name;
            td_jargs args;
        } apply; /* FILTER, TEST; CALL: subject is the callee, builtin unused */
        struct {
            uint32_t symbol;
            td_jv attribute;
        } namespace_ref;
        struct {
            td_jnodes tests, bodies; /* of equal length; elif is one more pair */
            td_jnode *otherwise;     /* or NULL */
        } branch;
        struct {
            td_jnode *target, *items, *filter, *body, *otherwise; /* filter, otherwise: or NULL */
            bool recursive;
        } loop;
        struct {
            td_jnode *target, *value; /* SET_BLOCK: value is the body's filter chain, or PIPED */
            td_jnode *body;           /* SET_BLOCK, FILTER_BLOCK (target NULL) */
        } set;
        struct {
            td_jmacro_def *def;
            uint32_t symbol; /* MACRO: the name it is bound to */
            td_jnode *call;  /* CALL_BLOCK */
        } macro;
        struct {
            td_jnodes targets, values;
            td_jnode *body;
        } with;
    };
};

typedef struct td_jsymbol {
    td_jv name; /* terminated */
    uint64_t hash;
    bool read;
} td_jsymbol;

typedef struct td_jsymbols {
    td_jsymbol *at;
    uint32_t n, capacity;
    uint32_t *slots; /* symbol + 1 */
    uint32_t n_slots;
} td_jsymbols;

struct td_jinja {
    td_jarena arena;
    const char *name;
    const char *source; /* newlines normalised; texts and literals are views into it */
    size_t size;
    td_jsymbols symbols;
    uint32_t sym_loop, sym_caller, sym_varargs, sym_kwargs;
    td_jnode *body;
};

/* "name:line:column: message" at a byte of the source; returns `status`. */
td_status td_jinja_fail(const td_jinja *t, size_t offset, td_status status, td_error *err, const char *fmt, ...)
    TD_PRINTF(5, 6);

/* ---- jinja_lex.c: the source as tokens, pulled one at a time ---- */

typedef enum td_jtoken_kind {
    TD_JT_END,
    TD_JT_DATA,
    TD_JT_PRINT_BEGIN,
    TD_JT_PRINT_END,
    TD_JT_BLOCK_BEGIN,
    TD_JT_BLOCK_END,
    TD_JT_NAME,
    TD_JT_STRING,
    TD_JT_NUMBER, /* value: int or float */
    TD_JT_ADD,
    TD_JT_SUB,
    TD_JT_MUL,
    TD_JT_DIV,
    TD_JT_FLOORDIV,
    TD_JT_MOD,
    TD_JT_POW,
    TD_JT_TILDE,
    TD_JT_EQ,
    TD_JT_NE,
    TD_JT_LT,
    TD_JT_LE,
    TD_JT_GT,
    TD_JT_GE,
    TD_JT_ASSIGN,
    TD_JT_DOT,
    TD_JT_COLON,
    TD_JT_COMMA,
    TD_JT_PIPE,
    TD_JT_SEMICOLON,
    TD_JT_LPAREN,
    TD_JT_RPAREN,
    TD_JT_LBRACKET,
    TD_JT_RBRACKET,
    TD_JT_LBRACE,
    TD_JT_RBRACE,
} td_jtoken_kind;

typedef struct td_jtoken {
    td_jtoken_kind kind;
    uint32_t offset, size; /* of the token's text in the source */
    td_jv value;           /* data, strings, names: text; numbers */
} td_jtoken;

typedef struct td_jlex {
    td_jinja *t;
    td_error *err;
    size_t pos;
    enum { TD_JLEX_DATA, TD_JLEX_PRINT, TD_JLEX_BLOCK } state;
    char closers[TD_JINJA_MAX_NESTING];
    unsigned n_closers;
} td_jlex;

void td_jlex_init(td_jlex *lex, td_jinja *t, td_error *err);
td_status td_jlex_next(td_jlex *lex, td_jtoken *token);
/* "'endif'", "end of statement block", ...: for messages. */
const char *td_jtoken_kind_text(td_jtoken_kind kind);

/* ---- jinja_parse.c, jinja_parse_expr.c ---- */

typedef struct td_jparse {
    td_jinja *t;
    td_error *err;
    td_jlex lex;
    td_jtoken token, ahead; /* the current token and the one after it */
    unsigned depth;         /* of the parser's own recursion */
    unsigned conditions;    /* open conditions: inside, an unknown filter is an error only when it runs */
    unsigned loops;         /* open loops, for break and continue */
    struct td_jmacro_open {
        struct td_jmacro_open *outer;
        bool caller, varargs, kwargs;
    } * macro; /* the macro whose body is being read */
} td_jparse;

td_status td_jparse_template(td_jinja *t, td_error *err);

td_status td_jparse_fail(td_jparse *p, size_t offset, td_status status, const char *fmt, ...) TD_PRINTF(4, 5);
td_status td_jparse_unexpected(td_jparse *p, const char *expected);
td_status td_jparse_enter(td_jparse *p);
void td_jparse_leave(td_jparse *p);
td_status td_jparse_advance(td_jparse *p);
bool td_jparse_at_word(const td_jparse *p, const char *word);
/* Consumes the token if it is this one. */
td_status td_jparse_skip(td_jparse *p, td_jtoken_kind kind, bool *skipped);
td_status td_jparse_skip_word(td_jparse *p, const char *word, bool *skipped);
td_status td_jparse_expect(td_jparse *p, td_jtoken_kind kind);
td_status td_jparse_node(td_jparse *p, td_jnode_kind kind, size_t offset, td_jnode **out);
/* Makes `child` (or NULL) a child of `parent` for the height limit. */
td_status td_jparse_adopt(td_jparse *p, td_jnode *parent, const td_jnode *child);
td_status td_jparse_push(td_jparse *p, td_jnodes *list, td_jnode *node);
td_status td_jparse_symbol(td_jparse *p, td_jv name, uint32_t *symbol);
td_status td_jparse_name(td_jparse *p, td_jv *name);

/* NO_CONDITIONAL: an `if` after it is not part of it. PARENTHESES: may be empty. OF_LOOP: ends at `recursive`. */
enum { TD_JEXPR_NO_CONDITIONAL = 1, TD_JEXPR_PARENTHESES = 2, TD_JEXPR_OF_LOOP = 4 };
td_status td_jparse_expression(td_jparse *p, td_jnode **out);
td_status td_jparse_tuple(td_jparse *p, unsigned flags, td_jnode **out);
td_status td_jparse_target(td_jparse *p, bool namespaces, td_jnode **out);
/* The filters after `subject`; `inline_first`: the first one has no '|' before it. */
td_status td_jparse_filters(td_jparse *p, td_jnode *subject, bool inline_first, td_jnode **out);

/* ---- a run ---- */

typedef struct td_jvariable {
    uint32_t symbol;
    td_jv value;
} td_jvariable;

typedef struct td_jscope {
    struct td_jscope *parent;
    td_jvariable *at;
    uint32_t n, capacity;
    bool kept; /* a macro closes over it: not reused for the next turn of a loop */
} td_jscope;

struct td_jmacro {
    const td_jmacro_def *def;
    td_jscope *scope; /* where it was defined */
};

struct td_jloop {
    const td_jnode *node;
    td_jv *items;
    size_t n, index;
    unsigned depth;   /* of recursive loops, from 0 */
    td_jscope *outer; /* for the body of a recursive loop */
    td_jv changed;    /* what loop.changed() saw last; ABSENT: nothing yet */
};

typedef enum td_jflow { TD_J_NEXT, TD_J_BREAK, TD_J_CONTINUE } td_jflow;

struct td_jrun {
    const td_jinja *t;
    td_jinja_options options; /* limits filled in */
    td_jarena heap;           /* values */
    td_jarena scratch;        /* arguments of the calls in progress */
    td_buf *out;
    td_jscope *scope;
    td_jv *context; /* [symbols]: variables given, then functions, then undefined */
    td_jv piped;
    td_jflow flow;
    uint64_t steps;
    unsigned depth, calls;
    const td_jnode *at; /* for messages */
    td_error *err;
};

td_status td_jrun_fail(td_jrun *r, td_status status, const char *fmt, ...) TD_PRINTF(3, 4);
td_status td_jrun_nomem(td_jrun *r);
/* Fails on the use of an undefined value, in Jinja's words. */
td_status td_jrun_fail_undefined(td_jrun *r, td_jv v);
/* Counts a step, and one more for every 256 of `work` (bytes or items). */
td_status td_jrun_charge(td_jrun *r, size_t work);
td_status td_jrun_enter(td_jrun *r);
void td_jrun_leave(td_jrun *r);
void *td_jrun_alloc(td_jrun *r, size_t n, size_t size); /* NULL: the caller returns td_jrun_nomem */
td_status td_jrun_copy(td_jrun *r, const char *text, size_t size, td_jv *out);

/* Writing text. To make a value of it: mark = r->out->size; write...; td_jrun_take(r, mark, &v). */
td_status td_jrun_write(td_jrun *r, const char *text, size_t size);
td_status td_jrun_puts(td_jrun *r, const char *text);
td_status td_jrun_writef(td_jrun *r, const char *fmt, ...) TD_PRINTF(2, 3);
td_status td_jrun_take(td_jrun *r, size_t mark, td_jv *out);

/* ---- jinja_value.c ---- */

td_status td_jv_from_json(td_jrun *r, const json_t *json, td_jv *out);
uint8_t td_jv_type_index(td_jv v);
const char *td_jv_type_name_at(uint8_t index);
const char *td_jv_type_name(td_jv v); /* as Python names it */
bool td_jv_truth(td_jv v);
td_status td_jv_length(td_jrun *r, td_jv v, size_t *n);
/* The items to walk: strings give characters, dicts keys; a generator is consumed. The array is the run's, read only.
 */
td_status td_jv_iterate(td_jrun *r, td_jv v, td_jv **items, size_t *n);

/* ---- jinja_compare.c ---- */

td_status td_jv_equal(td_jrun *r, td_jv a, td_jv b, bool *out);
/* op: LT, LE, GT, GE. */
td_status td_jv_order(td_jrun *r, td_jop op, td_jv a, td_jv b, bool *out);
td_status td_jv_contains(td_jrun *r, td_jv container, td_jv item, bool *out);
/* Any operator of td_jop that compares. */
td_status td_jv_compare(td_jrun *r, td_jop op, td_jv a, td_jv b, bool *out);

/* ---- jinja_arith.c ---- */

td_status td_jv_binary(td_jrun *r, td_jop op, td_jv a, td_jv b, td_jv *out);
td_status td_jv_signed(td_jrun *r, td_jv v, bool minus, td_jv *out);
/* The bytes of two strings after each other; amortised O(1) when `a` is itself such a result. */
td_status td_jv_concat(td_jrun *r, td_jv a, td_jv b, td_jv *out);

/* ---- jinja_access.c ---- */

/* object.name and object[key], as Jinja does them: both look at attributes and at items, in this or the other order. */
td_status td_jv_attribute(td_jrun *r, td_jv object, td_jv name, td_jv *out);
td_status td_jv_item(td_jrun *r, td_jv object, td_jv key, td_jv *out);
/* start, stop, step: NONE or ABSENT when not given. */
td_status td_jv_slice(td_jrun *r, td_jv object, td_jv start, td_jv stop, td_jv step, td_jv *out);

/* ---- jinja_collections.c ---- */

td_status td_jlist_new(td_jrun *r, td_jflavour flavour, size_t capacity, td_jlist **out);
td_status td_jlist_push(td_jrun *r, td_jlist *list, td_jv v);
td_status td_jlist_of(td_jrun *r, td_jflavour flavour, const td_jv *items, size_t n, td_jv *out);
td_status td_jv_pair(td_jrun *r, td_jv a, td_jv b, td_jv *out); /* a tuple */
td_status td_jdict_new(td_jrun *r, size_t capacity, td_jdict **out);
/* Fails on keys that Python cannot hash. *entry: NULL when there is none. */
td_status td_jdict_find(td_jrun *r, const td_jdict *dict, td_jv key, td_jentry **entry);
td_status td_jdict_set(td_jrun *r, td_jdict *dict, td_jv key, td_jv value);
td_status td_jdict_remove(td_jrun *r, td_jdict *dict, size_t at);
uint64_t td_jhash_text(td_jv s);
/* Stable merge sort of items by keys[i] (their order as td_jv_order has it). */
td_status td_jv_sort(td_jrun *r, td_jv *keys, td_jv *items, size_t n, bool reverse);

/* ---- jinja_text.c: values as text ---- */

td_status td_jv_write(td_jrun *r, td_jv v); /* Python's str() */
td_status td_jv_repr(td_jrun *r, td_jv v);
td_status td_jv_string(td_jrun *r, td_jv v, td_jv *out); /* str() as a value */
/* Shortest digits that read back as d, as Python's repr; at most 32 bytes with the terminator. */
size_t td_jtext_float(double d, char out[32]);
/* Reads all of text (surrounding space allowed) as Python's float() does. */
bool td_jtext_to_float(td_jv text, double *out);
bool td_jtext_to_int(td_jv text, unsigned base, int64_t *out);

/* ---- jinja_json.c ---- */

typedef struct td_jjson_style {
    bool ascii, sort_keys, indented;
    td_jv indent; /* one level; with `indented` */
    td_jv item_separator, key_separator;
} td_jjson_style;
td_status td_jv_json(td_jrun *r, td_jv v, const td_jjson_style *style);

/* ---- jinja_format.c ---- */

td_status td_jformat_percent(td_jrun *r, td_jv format, td_jv values, td_jv *out);
/* str.format: arguments by position and by name (NULL: none). */
td_status td_jformat_braces(td_jrun *r, td_jv format, const td_jv *args, size_t n, const td_jdict *named, td_jv *out);
td_status td_jformat_time(td_jrun *r, td_jv format, td_jv *out);

/* ---- builtins: filters, tests, methods, functions ---- */

typedef struct td_jcall { /* the arguments of a call, evaluated */
    td_jv *args;
    size_t n;
    td_jv *names; /* n_named strings */
    td_jv *named;
    size_t n_named;
} td_jcall;

enum { TD_J_MAX_PARAMETERS = 5 };

typedef struct td_jinvoke {
    td_jv self;                     /* the subject of a filter, a test, a method */
    td_jv arg[TD_J_MAX_PARAMETERS]; /* by parameter; ABSENT when not given */
    const td_jcall *call;           /* as written, for variadic builtins */
} td_jinvoke;

typedef td_status td_jbuiltin_fn(td_jrun *r, const td_jinvoke *in, td_jv *out);

struct td_jbuiltin {
    const char *name;
    td_jbuiltin_fn *fn;
    int8_t required; /* how many of the parameters; -1: variadic, arguments are not bound to parameters */
    const char *parameters[TD_J_MAX_PARAMETERS];
};

const td_jbuiltin *td_jfilter_find(td_jv name);
const td_jbuiltin *td_jtest_find(td_jv name);
const td_jbuiltin *td_jmethod_find(td_jv object, td_jv name);
const td_jbuiltin *td_jfunction_find(td_jv name);
/* Searches a table that ends with a NULL name. */
const td_jbuiltin *td_jbuiltin_find(const td_jbuiltin *table, td_jv name);

/* Binds the arguments to the parameters and runs it. */
td_status td_jbuiltin_invoke(td_jrun *r, const td_jbuiltin *b, td_jv self, const td_jcall *call, td_jv *out);
/* Calls any callable value. */
td_status td_jv_call(td_jrun *r, td_jv callee, const td_jcall *call, td_jv *out);
td_status td_jv_filter(td_jrun *r, td_jv name, td_jv self, const td_jcall *call, td_jv *out);
td_status td_jv_test(td_jrun *r, td_jv name, td_jv self, const td_jcall *call, bool *out);

/* dict.update and dict(): a mapping or an iterable of pairs, then the keyword arguments. */
td_status td_jdict_update(td_jrun *r, td_jdict *dict, const td_jcall *call);

/* Arguments as C values; the message names `what`. */
td_status td_jarg_int(td_jrun *r, const char *what, td_jv v, int64_t fallback, int64_t *out);
td_status td_jarg_text(td_jrun *r, const char *what, td_jv v, td_jv *out);

/* Tables of the files that hold them. */
extern const td_jbuiltin td_jfilters_text[], td_jfilters_sequence[], td_jfilters_number[];
extern const td_jbuiltin td_jmethods_string[], td_jmethods_list[], td_jmethods_tuple[], td_jmethods_dict[];
extern const td_jbuiltin td_jmethods_loop[], td_jmethods_cycler[];

/* String operations shared by filters and methods; all on views. */
td_status td_jstr_replace(td_jrun *r, td_jv s, td_jv from, td_jv to, int64_t count, td_jv *out);
td_jv td_jstr_strip(td_jv s, td_jv chars, bool left, bool right); /* chars: NONE or ABSENT for white space */
typedef enum td_jcasing { TD_J_UPPER, TD_J_LOWER, TD_J_CAPITALIZE, TD_J_TITLE, TD_J_SWAPCASE } td_jcasing;
td_status td_jstr_case(td_jrun *r, td_jv s, td_jcasing casing, td_jv *out);
td_status td_jstr_split_lines(td_jrun *r, td_jv s, bool keep_ends, td_jlist **out);
/* `left` and `right` copies of `fill` around it. */
td_status td_jstr_pad(td_jrun *r, td_jv s, size_t left, size_t right, td_jv fill, td_jv *out);
size_t td_jstr_count_chars(td_jv s);
bool td_jstr_is_upper(td_jv s);
bool td_jstr_is_lower(td_jv s);
/* First occurrence at or after byte `from`; last one that ends at or before byte `to`. SIZE_MAX: none. The second takes
 * time in the product of the sizes: charge that first. */
size_t td_jstr_find(td_jv s, td_jv what, size_t from);
size_t td_jstr_rfind(td_jv s, td_jv what, size_t to);

/* ---- jinja_unicode.c ---- */

/* The character at s[0..n), n > 0, and its length; a malformed byte counts as one character, U+FFFD. */
size_t td_jchar(const char *s, size_t n, uint32_t *cp);
size_t td_jchar_put(uint32_t cp, char out[4]);
bool td_jchar_is_space(uint32_t cp);
bool td_jchar_is_line_break(uint32_t cp);
bool td_jchar_is_alpha(uint32_t cp);
bool td_jchar_is_decimal(uint32_t cp);
bool td_jchar_is_digit(uint32_t cp);
bool td_jchar_is_numeric(uint32_t cp);
bool td_jchar_is_upper(uint32_t cp);
bool td_jchar_is_lower(uint32_t cp);
bool td_jchar_is_title(uint32_t cp);
bool td_jchar_is_printable(uint32_t cp);
/* Full case mappings: up to 3 characters; returns how many. */
size_t td_jchar_upper(uint32_t cp, uint32_t out[3]);
size_t td_jchar_lower(uint32_t cp, uint32_t out[3]);
size_t td_jchar_title(uint32_t cp, uint32_t out[3]);
/* Byte offset of the first byte that is not UTF-8, or SIZE_MAX. */
size_t td_jutf8_invalid(const char *s, size_t n);

/* ---- jinja_eval.c, jinja_expr.c, jinja_call.c ---- */

td_status td_jeval(td_jrun *r, const td_jnode *node, td_jv *out);
td_status td_jexec(td_jrun *r, const td_jnode *node);
td_status td_jassign(td_jrun *r, const td_jnode *target, td_jv value);
td_status td_jscope_new(td_jrun *r, td_jscope *parent, td_jscope **out);
td_status td_jscope_set(td_jrun *r, td_jscope *scope, uint32_t symbol, td_jv value);
td_status td_jcall_evaluate(td_jrun *r, const td_jargs *args, td_jcall *call); /* into r->scratch */
td_status td_jmacro_call(td_jrun *r, const td_jmacro *macro, const td_jcall *call, td_jv *out);
td_status td_jmacro_new(td_jrun *r, const td_jmacro_def *def, td_jv *out);
td_status td_jloop_attribute(td_jrun *r, td_jv object, td_jv name, td_jv *out); /* ABSENT: no such attribute */
/* Runs a recursive loop again, over other items, one level deeper. */
td_status td_jloop_recurse(td_jrun *r, const td_jloop *loop, td_jv items, td_jv *out);
td_status td_jmacro_attribute(td_jrun *r, td_jv object, td_jv name, td_jv *out);

#endif
