/* jinja_arith.c - the arithmetic operators, on numbers, text and lists, as Python has them.
 *
 * Integers have 64 bits; a result that does not fit is an error. Division and remainder round towards minus infinity.
 *
 * Templates build prompts by "text = text + more" in a loop. Copying the whole text each time would be quadratic in
 * time and, since values are never freed during a run, in memory. So the result of a concatenation keeps spare room
 * after it (td_jgrow), and concatenating to the *end* of such a result fills the room in place: the older, shorter
 * string still reads the same bytes. A string knows by its flag that it starts a td_jgrow, and that it ends at the
 * filled part by comparing lengths; if something else was appended in between, a copy is made. */
#include <math.h>
#include <string.h>

#include "text/jinja_internal.h"

typedef struct td_jgrow {
    _Alignas(16) size_t filled;
    size_t capacity; /* bytes follow */
} td_jgrow;

static td_jgrow *grow_of(td_jv s) {
    return (td_jgrow *)(void *)((char *)s.text - sizeof(td_jgrow));
}

static td_status concat_copy(td_jrun *r, td_jv a, td_jv b, td_jv *out) {
    size_t total = a.size + b.size, room = total + total / 2 + 16;
    TD_TRY(td_jrun_charge(r, total));
    td_jgrow *g = td_jrun_alloc(r, 1, sizeof *g + room);
    if (!g)
        return td_jrun_nomem(r);
    *g = (td_jgrow){.filled = total, .capacity = room};
    char *text = (char *)(g + 1);
    if (a.size)
        memcpy(text, a.text, a.size);
    if (b.size)
        memcpy(text + a.size, b.text, b.size);
    *out = td_jv_text(text, total);
    out->flags = TD_JV_GROWS;
    return TD_OK;
}

td_status td_jv_concat(td_jrun *r, td_jv a, td_jv b, td_jv *out) {
    if (!a.size || !b.size) {
        *out = a.size ? a : b;
        return TD_OK;
    }
    td_jgrow *g = a.flags & TD_JV_GROWS ? grow_of(a) : NULL;
    if (!g || g->filled != a.size || g->capacity - g->filled < b.size)
        return concat_copy(r, a, b, out);
    TD_TRY(td_jrun_charge(r, b.size));
    memcpy((char *)a.text + a.size, b.text, b.size);
    g->filled += b.size;
    *out = a;
    out->size += b.size;
    return TD_OK;
}

/* ---- failures ---- */

static const char *const signs[] = {
    [TD_JOP_ADD] = "+",       [TD_JOP_SUB] = "-", [TD_JOP_MUL] = "*",  [TD_JOP_DIV] = "/",
    [TD_JOP_FLOORDIV] = "//", [TD_JOP_MOD] = "%", [TD_JOP_POW] = "**",
};

static td_status no_operands(td_jrun *r, td_jop op, td_jv a, td_jv b) {
    if (a.kind == TD_J_UNDEFINED || b.kind == TD_J_UNDEFINED)
        return td_jrun_fail_undefined(r, a.kind == TD_J_UNDEFINED ? a : b);
    if (op == TD_JOP_ADD && (a.kind == TD_J_STRING || a.kind == TD_J_LIST))
        return td_jrun_fail(r, TD_E_FORMAT, "can only concatenate %s (not \"%s\") to %s", td_jv_type_name(a),
                            td_jv_type_name(b), td_jv_type_name(a));
    return td_jrun_fail(r, TD_E_FORMAT, "unsupported operand types for %s: '%s' and '%s'", signs[op],
                        td_jv_type_name(a), td_jv_type_name(b));
}

static td_status overflow(td_jrun *r) {
    return td_jrun_fail(r, TD_E_LIMIT, "the result does not fit a 64-bit integer");
}

static td_status division_by_zero(td_jrun *r) {
    return td_jrun_fail(r, TD_E_FORMAT, "division by zero");
}

/* ---- integers ---- */

static td_status int_floor_divide(td_jrun *r, int64_t a, int64_t b, int64_t *quotient, int64_t *remainder) {
    if (b == 0)
        return division_by_zero(r);
    if (a == INT64_MIN && b == -1)
        return overflow(r);
    *quotient = a / b;
    *remainder = a % b;
    if (*remainder && (*remainder < 0) != (b < 0)) {
        --*quotient;
        *remainder += b;
    }
    return TD_OK;
}

static td_status int_power(td_jrun *r, int64_t base, int64_t exponent, td_jv *out) {
    if (exponent < 0) {
        if (base == 0)
            return division_by_zero(r);
        *out = td_jv_float(pow((double)base, (double)exponent));
        return TD_OK;
    }
    int64_t result = 1;
    for (bool more = true; more;) {
        if ((exponent & 1) && __builtin_mul_overflow(result, base, &result))
            return overflow(r);
        exponent >>= 1;
        more = exponent != 0;
        if (more && __builtin_mul_overflow(base, base, &base))
            return overflow(r);
    }
    *out = td_jv_int(result);
    return TD_OK;
}

static td_status int_binary(td_jrun *r, td_jop op, int64_t a, int64_t b, td_jv *out) {
    int64_t result = 0, other;
    bool over = false;
    switch (op) {
    case TD_JOP_ADD:
        over = __builtin_add_overflow(a, b, &result);
        break;
    case TD_JOP_SUB:
        over = __builtin_sub_overflow(a, b, &result);
        break;
    case TD_JOP_MUL:
        over = __builtin_mul_overflow(a, b, &result);
        break;
    case TD_JOP_FLOORDIV:
        TD_TRY(int_floor_divide(r, a, b, &result, &other));
        break;
    case TD_JOP_MOD:
        if (b == -1)
            break; /* 0, also for the one dividend whose quotient overflows */
        TD_TRY(int_floor_divide(r, a, b, &other, &result));
        break;
    case TD_JOP_DIV:
        if (b == 0)
            return division_by_zero(r);
        *out = td_jv_float((double)a / (double)b);
        return TD_OK;
    default:
        return int_power(r, a, b, out);
    }
    if (over)
        return overflow(r);
    *out = td_jv_int(result);
    return TD_OK;
}

/* ---- floats ---- */

static double float_mod(double a, double b) {
    double m = fmod(a, b);
    if (m == 0)
        return copysign(0.0, b);
    return (m < 0) != (b < 0) ? m + b : m;
}

static double float_floor_divide(double a, double b) {
    double quotient = (a - float_mod(a, b)) / b;
    if (quotient == 0)
        return copysign(0.0, a / b);
    double whole = floor(quotient);
    return quotient - whole > 0.5 ? whole + 1 : whole;
}

static td_status float_power(td_jrun *r, double a, double b, td_jv *out) {
    if (a == 0 && b < 0)
        return division_by_zero(r);
    double result = pow(a, b);
    if (isfinite(a) && isfinite(b) && !isfinite(result))
        return td_jrun_fail(r, TD_E_FORMAT, "the result of ** is not a real number");
    *out = td_jv_float(result);
    return TD_OK;
}

static td_status float_binary(td_jrun *r, td_jop op, double a, double b, td_jv *out) {
    if (b == 0 && (op == TD_JOP_DIV || op == TD_JOP_FLOORDIV || op == TD_JOP_MOD))
        return division_by_zero(r);
    switch (op) {
    case TD_JOP_ADD:
        *out = td_jv_float(a + b);
        return TD_OK;
    case TD_JOP_SUB:
        *out = td_jv_float(a - b);
        return TD_OK;
    case TD_JOP_MUL:
        *out = td_jv_float(a * b);
        return TD_OK;
    case TD_JOP_DIV:
        *out = td_jv_float(a / b);
        return TD_OK;
    case TD_JOP_FLOORDIV:
        *out = td_jv_float(float_floor_divide(a, b));
        return TD_OK;
    case TD_JOP_MOD:
        *out = td_jv_float(float_mod(a, b));
        return TD_OK;
    default:
        return float_power(r, a, b, out);
    }
}

/* ---- text and lists ---- */

static td_status repeat_text(td_jrun *r, td_jv s, int64_t times, td_jv *out) {
    size_t n = times > 0 ? (size_t)times : 0;
    if (!n || !s.size) {
        *out = td_jv_literal("");
        return TD_OK;
    }
    char *text = td_jrun_alloc(r, n, s.size); /* before the charge: an absurd count is told as memory, not as time */
    if (!text)
        return td_jrun_nomem(r);
    TD_TRY(td_jrun_charge(r, n * s.size));
    for (size_t i = 0; i < n; i++)
        memcpy(text + i * s.size, s.text, s.size);
    *out = td_jv_text(text, n * s.size);
    return TD_OK;
}

static td_jflavour plain_flavour(const td_jlist *list) {
    return list->flavour == TD_J_GROUP ? TD_J_TUPLE : list->flavour;
}

static bool is_concrete(td_jv v) {
    return v.kind == TD_J_LIST &&
           (v.list->flavour == TD_J_PLAIN_LIST || v.list->flavour == TD_J_TUPLE || v.list->flavour == TD_J_GROUP);
}

static td_status repeat_list(td_jrun *r, const td_jlist *list, int64_t times, td_jv *out) {
    size_t n = times > 0 ? (size_t)times : 0, total;
    if (__builtin_mul_overflow(n, list->n, &total))
        return td_jrun_fail(r, TD_E_LIMIT, "a list of that length is too long");
    td_jlist *made;
    TD_TRY(td_jlist_new(r, plain_flavour(list), total, &made));
    TD_TRY(td_jrun_charge(r, total));
    for (size_t i = 0; list->n && i < n; i++)
        memcpy(made->items + i * list->n, list->items, list->n * sizeof *list->items);
    made->n = total;
    *out = td_jv_list(made);
    return TD_OK;
}

static td_status join_lists(td_jrun *r, const td_jlist *a, const td_jlist *b, td_jv *out) {
    td_jlist *made;
    TD_TRY(td_jrun_charge(r, a->n + b->n));
    TD_TRY(td_jlist_new(r, plain_flavour(a), a->n + b->n, &made));
    if (a->n)
        memcpy(made->items, a->items, a->n * sizeof *a->items);
    if (b->n)
        memcpy(made->items + a->n, b->items, b->n * sizeof *b->items);
    made->n = a->n + b->n;
    *out = td_jv_list(made);
    return TD_OK;
}

static td_status multiply(td_jrun *r, td_jv a, td_jv b, td_jv *out) {
    if (td_jv_is_integral(a)) {
        td_jv swap = a;
        a = b;
        b = swap;
    }
    if (td_jv_is_integral(b) && a.kind == TD_J_STRING)
        return repeat_text(r, a, td_jv_integral(b), out);
    if (td_jv_is_integral(b) && is_concrete(a))
        return repeat_list(r, a.list, td_jv_integral(b), out);
    return no_operands(r, TD_JOP_MUL, a, b);
}

td_status td_jv_binary(td_jrun *r, td_jop op, td_jv a, td_jv b, td_jv *out) {
    if (td_jv_is_integral(a) && td_jv_is_integral(b))
        return int_binary(r, op, td_jv_integral(a), td_jv_integral(b), out);
    if (td_jv_is_number(a) && td_jv_is_number(b))
        return float_binary(r, op, td_jv_real(a), td_jv_real(b), out);
    if (op == TD_JOP_ADD && a.kind == TD_J_STRING && b.kind == TD_J_STRING)
        return td_jv_concat(r, a, b, out);
    if (op == TD_JOP_ADD && is_concrete(a) && is_concrete(b) && plain_flavour(a.list) == plain_flavour(b.list))
        return join_lists(r, a.list, b.list, out);
    if (op == TD_JOP_MUL)
        return multiply(r, a, b, out);
    if (op == TD_JOP_MOD && a.kind == TD_J_STRING)
        return td_jformat_percent(r, a, b, out);
    return no_operands(r, op, a, b);
}

td_status td_jv_signed(td_jrun *r, td_jv v, bool minus, td_jv *out) {
    if (v.kind == TD_J_FLOAT) {
        *out = td_jv_float(minus ? -v.real : v.real);
        return TD_OK;
    }
    if (v.kind == TD_J_UNDEFINED)
        return td_jrun_fail_undefined(r, v);
    if (!td_jv_is_integral(v))
        return td_jrun_fail(r, TD_E_FORMAT, "bad operand type for unary %c: '%s'", minus ? '-' : '+',
                            td_jv_type_name(v));
    int64_t i = td_jv_integral(v);
    if (minus && i == INT64_MIN)
        return overflow(r);
    *out = td_jv_int(minus ? -i : i);
    return TD_OK;
}
