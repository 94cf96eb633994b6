/* jinja_tests.c - the tests: "x is defined", "x is divisibleby 3". Each gives a bool. */
#include "text/jinja_internal.h"

static td_status give(td_jv *out, bool b) {
    *out = td_jv_bool(b);
    return TD_OK;
}

/* A test that looks at the kind of its subject only. */
#define KIND_TEST(name, condition)                                                                                     \
    static td_status t_##name(td_jrun *r, const td_jinvoke *in, td_jv *out) {                                          \
        td_jv v = in->self;                                                                                            \
        (void)r;                                                                                                       \
        return give(out, condition);                                                                                   \
    }

static bool is_sequence(td_jv v) { /* has a length and can be subscripted, in Python's eyes */
    if (v.kind == TD_J_LIST)
        return v.list->flavour <= TD_J_GROUP || v.list->flavour == TD_J_RANGE;
    return v.kind == TD_J_STRING || v.kind == TD_J_DICT || v.kind == TD_J_UNDEFINED;
}

KIND_TEST(defined, v.kind != TD_J_UNDEFINED)
KIND_TEST(undefined, v.kind == TD_J_UNDEFINED)
KIND_TEST(none, v.kind == TD_J_NONE)
KIND_TEST(boolean, v.kind == TD_J_BOOL)
KIND_TEST(true, v.kind == TD_J_BOOL && v.boolean)
KIND_TEST(false, v.kind == TD_J_BOOL && !v.boolean)
KIND_TEST(integer, v.kind == TD_J_INT)
KIND_TEST(float, v.kind == TD_J_FLOAT)
KIND_TEST(number, td_jv_is_number(v))
KIND_TEST(string, v.kind == TD_J_STRING)
KIND_TEST(mapping, v.kind == TD_J_DICT)
KIND_TEST(sequence, is_sequence(v))
KIND_TEST(iterable, v.kind == TD_J_LIST || v.kind == TD_J_STRING || v.kind == TD_J_DICT || v.kind == TD_J_UNDEFINED)
KIND_TEST(callable, v.kind >= TD_J_FUNCTION ? v.kind != TD_J_CYCLER : v.kind == TD_J_UNDEFINED)
KIND_TEST(escaped, false && v.kind)
KIND_TEST(filter, td_jfilter_find(v) != NULL)
KIND_TEST(test, td_jtest_find(v) != NULL)

static td_status text_case(td_jrun *r, const td_jinvoke *in, bool (*is)(td_jv), td_jv *out) {
    td_jv s;
    TD_TRY(td_jv_string(r, in->self, &s));
    TD_TRY(td_jrun_charge(r, s.size));
    return give(out, is(s));
}

static td_status t_upper(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return text_case(r, in, td_jstr_is_upper, out);
}

static td_status t_lower(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return text_case(r, in, td_jstr_is_lower, out);
}

static td_status remainder_is(td_jrun *r, td_jv v, td_jv divisor, int64_t wanted, td_jv *out) {
    td_jv rest;
    bool same;
    TD_TRY(td_jv_binary(r, TD_JOP_MOD, v, divisor, &rest));
    TD_TRY(td_jv_equal(r, rest, td_jv_int(wanted), &same));
    return give(out, same);
}

static td_status t_odd(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return remainder_is(r, in->self, td_jv_int(2), 1, out);
}

static td_status t_even(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return remainder_is(r, in->self, td_jv_int(2), 0, out);
}

static td_status t_divisibleby(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return remainder_is(r, in->self, in->arg[0], 0, out);
}

static td_status t_sameas(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv a = in->self, b = in->arg[0];
    bool same = a.kind == b.kind;
    if (same && (a.kind == TD_J_LIST || a.kind == TD_J_DICT))
        return give(out, a.list == b.list);
    if (same)
        TD_TRY(td_jv_equal(r, a, b, &same));
    return give(out, same);
}

static td_status compare(td_jrun *r, const td_jinvoke *in, td_jop op, td_jv *out) {
    bool result;
    TD_TRY(td_jv_compare(r, op, in->self, in->arg[0], &result));
    return give(out, result);
}

static td_status t_eq(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return compare(r, in, TD_JOP_EQ, out);
}

static td_status t_ne(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return compare(r, in, TD_JOP_NE, out);
}

static td_status t_lt(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return compare(r, in, TD_JOP_LT, out);
}

static td_status t_le(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return compare(r, in, TD_JOP_LE, out);
}

static td_status t_gt(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return compare(r, in, TD_JOP_GT, out);
}

static td_status t_ge(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return compare(r, in, TD_JOP_GE, out);
}

static td_status t_in(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return compare(r, in, TD_JOP_IN, out);
}

static const td_jbuiltin tests[] = {
    {"defined", t_defined, 0, {NULL}},
    {"undefined", t_undefined, 0, {NULL}},
    {"none", t_none, 0, {NULL}},
    {"string", t_string, 0, {NULL}},
    {"mapping", t_mapping, 0, {NULL}},
    {"iterable", t_iterable, 0, {NULL}},
    {"sequence", t_sequence, 0, {NULL}},
    {"number", t_number, 0, {NULL}},
    {"integer", t_integer, 0, {NULL}},
    {"float", t_float, 0, {NULL}},
    {"boolean", t_boolean, 0, {NULL}},
    {"true", t_true, 0, {NULL}},
    {"false", t_false, 0, {NULL}},
    {"odd", t_odd, 0, {NULL}},
    {"even", t_even, 0, {NULL}},
    {"divisibleby", t_divisibleby, 1, {"num"}},
    {"in", t_in, 1, {"seq"}},
    {"eq", t_eq, 1, {"other"}},
    {"equalto", t_eq, 1, {"other"}},
    {"==", t_eq, 1, {"other"}},
    {"ne", t_ne, 1, {"other"}},
    {"!=", t_ne, 1, {"other"}},
    {"lt", t_lt, 1, {"other"}},
    {"lessthan", t_lt, 1, {"other"}},
    {"<", t_lt, 1, {"other"}},
    {"le", t_le, 1, {"other"}},
    {"<=", t_le, 1, {"other"}},
    {"gt", t_gt, 1, {"other"}},
    {"greaterthan", t_gt, 1, {"other"}},
    {">", t_gt, 1, {"other"}},
    {"ge", t_ge, 1, {"other"}},
    {">=", t_ge, 1, {"other"}},
    {"sameas", t_sameas, 1, {"other"}},
    {"callable", t_callable, 0, {NULL}},
    {"upper", t_upper, 0, {NULL}},
    {"lower", t_lower, 0, {NULL}},
    {"escaped", t_escaped, 0, {NULL}},
    {"filter", t_filter, 0, {NULL}},
    {"test", t_test, 0, {NULL}},
    {NULL, NULL, 0, {NULL}},
};

const td_jbuiltin *td_jtest_find(td_jv name) {
    return td_jbuiltin_find(tests, name);
}
