/* jinja_compare.c - equality, order and membership, as Python has them.
 *
 * Equality never fails on types: values of different types are unequal, except that numbers (bool included) compare by
 * value. Order fails on a mixture. Nested values are compared in depth, so both count depth and steps: values can
 * share parts, and a small graph can unfold into a large tree. */
#include <string.h>

#include "text/jinja_internal.h"

static int order_bytes(td_jv a, td_jv b) {
    size_t n = a.size < b.size ? a.size : b.size;
    int c = n ? memcmp(a.text, b.text, n) : 0; /* bytes of UTF-8 order as the characters do */
    return c ? c : (a.size > b.size) - (a.size < b.size);
}

/* An integer beside a float: long double holds both exactly where it has 64 bits of fraction. */
static bool equal_numbers(td_jv a, td_jv b) {
    if (td_jv_is_integral(a) && td_jv_is_integral(b))
        return td_jv_integral(a) == td_jv_integral(b);
    long double x = a.kind == TD_J_FLOAT ? (long double)a.real : (long double)td_jv_integral(a);
    long double y = b.kind == TD_J_FLOAT ? (long double)b.real : (long double)td_jv_integral(b);
    return x == y;
}

static int sequence_class(const td_jlist *list) {
    switch (list->flavour) {
    case TD_J_PLAIN_LIST:
        return 1;
    case TD_J_TUPLE:
    case TD_J_GROUP:
        return 2;
    case TD_J_RANGE:
        return 3;
    default:
        return 0; /* compared by identity */
    }
}

static td_status equal_lists(td_jrun *r, const td_jlist *a, const td_jlist *b, bool *out) {
    *out = sequence_class(a) && sequence_class(a) == sequence_class(b) && a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++)
        TD_TRY(td_jv_equal(r, a->items[i], b->items[i], out));
    return TD_OK;
}

static td_status equal_dicts(td_jrun *r, const td_jdict *a, const td_jdict *b, bool *out) {
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++) {
        td_jentry *other;
        TD_TRY(td_jdict_find(r, b, a->entries[i].key, &other));
        *out = other != NULL;
        if (other)
            TD_TRY(td_jv_equal(r, a->entries[i].value, other->value, out));
    }
    return TD_OK;
}

static td_status equal_nested(td_jrun *r, td_jv a, td_jv b, bool *out) {
    if (a.list == b.list) {
        *out = true;
        return TD_OK;
    }
    TD_TRY(td_jrun_enter(r));
    TD_TRY(a.kind == TD_J_LIST ? equal_lists(r, a.list, b.list, out) : equal_dicts(r, a.dict, b.dict, out));
    td_jrun_leave(r);
    return TD_OK;
}

td_status td_jv_equal(td_jrun *r, td_jv a, td_jv b, bool *out) {
    TD_TRY(td_jrun_charge(r, 0));
    if (td_jv_is_number(a) && td_jv_is_number(b)) {
        *out = equal_numbers(a, b);
        return TD_OK;
    }
    *out = a.kind == b.kind;
    if (!*out)
        return TD_OK;
    switch ((td_jkind)a.kind) {
    case TD_J_STRING:
        *out = a.size == b.size && (!a.size || !memcmp(a.text, b.text, a.size));
        return td_jrun_charge(r, a.size);
    case TD_J_LIST:
    case TD_J_DICT:
        return equal_nested(r, a, b, out);
    case TD_J_METHOD:
        *out = a.bound->method == b.bound->method;
        return *out ? td_jv_equal(r, a.bound->self, b.bound->self, out) : TD_OK;
    case TD_J_NAMESPACE:
    case TD_J_FUNCTION:
    case TD_J_MACRO:
    case TD_J_LOOP:
    case TD_J_CYCLER:
    case TD_J_JOINER:
        *out = a.list == b.list; /* identity */
        return TD_OK;
    default:
        return TD_OK; /* None, and undefined values, which are all equal */
    }
}

/* ---- order ---- */

static bool holds(td_jop op, int order) {
    switch (op) {
    case TD_JOP_LT:
        return order < 0;
    case TD_JOP_LE:
        return order <= 0;
    case TD_JOP_GT:
        return order > 0;
    default:
        return order >= 0;
    }
}

static bool order_numbers(td_jop op, td_jv a, td_jv b) {
    if (td_jv_is_integral(a) && td_jv_is_integral(b)) {
        int64_t x = td_jv_integral(a), y = td_jv_integral(b);
        return holds(op, (x > y) - (x < y));
    }
    long double x = a.kind == TD_J_FLOAT ? (long double)a.real : (long double)td_jv_integral(a);
    long double y = b.kind == TD_J_FLOAT ? (long double)b.real : (long double)td_jv_integral(b);
    if (x != x || y != y)
        return false; /* not-a-number is in no order */
    return holds(op, (x > y) - (x < y));
}

static td_status order_lists(td_jrun *r, td_jop op, const td_jlist *a, const td_jlist *b, bool *out) {
    size_t n = a->n < b->n ? a->n : b->n;
    for (size_t i = 0; i < n; i++) {
        bool same;
        TD_TRY(td_jv_equal(r, a->items[i], b->items[i], &same));
        if (!same)
            return td_jv_order(r, op, a->items[i], b->items[i], out);
    }
    *out = holds(op, (a->n > b->n) - (a->n < b->n));
    return TD_OK;
}

td_status td_jv_order(td_jrun *r, td_jop op, td_jv a, td_jv b, bool *out) {
    static const char *const signs[] = {[TD_JOP_LT] = "<", [TD_JOP_LE] = "<=", [TD_JOP_GT] = ">", [TD_JOP_GE] = ">="};
    TD_TRY(td_jrun_charge(r, 0));
    if (td_jv_is_number(a) && td_jv_is_number(b)) {
        *out = order_numbers(op, a, b);
        return TD_OK;
    }
    if (a.kind == TD_J_STRING && b.kind == TD_J_STRING) {
        *out = holds(op, order_bytes(a, b));
        return td_jrun_charge(r, a.size < b.size ? a.size : b.size);
    }
    if (a.kind == TD_J_LIST && b.kind == TD_J_LIST && sequence_class(a.list) == sequence_class(b.list) &&
        (sequence_class(a.list) == 1 || sequence_class(a.list) == 2)) {
        TD_TRY(td_jrun_enter(r));
        TD_TRY(order_lists(r, op, a.list, b.list, out));
        td_jrun_leave(r);
        return TD_OK;
    }
    if (a.kind == TD_J_UNDEFINED || b.kind == TD_J_UNDEFINED)
        return td_jrun_fail_undefined(r, a.kind == TD_J_UNDEFINED ? a : b);
    return td_jrun_fail(r, TD_E_FORMAT, "'%s' not supported between instances of '%s' and '%s'", signs[op],
                        td_jv_type_name(a), td_jv_type_name(b));
}

/* ---- membership ---- */

static td_status list_contains(td_jrun *r, td_jv container, td_jv item, bool *out) {
    td_jv *items;
    size_t n;
    TD_TRY(td_jv_iterate(r, container, &items, &n));
    *out = false;
    for (size_t i = 0; !*out && i < n; i++)
        TD_TRY(td_jv_equal(r, items[i], item, out));
    return TD_OK;
}

td_status td_jv_contains(td_jrun *r, td_jv container, td_jv item, bool *out) {
    td_jentry *entry;
    switch ((td_jkind)container.kind) {
    case TD_J_STRING:
        if (item.kind != TD_J_STRING)
            return td_jrun_fail(r, TD_E_FORMAT, "'in <string>' requires string as left operand, not %s",
                                td_jv_type_name(item));
        TD_TRY(td_jrun_charge(r, container.size));
        *out = td_jstr_find(container, item, 0) != SIZE_MAX;
        return TD_OK;
    case TD_J_DICT:
        TD_TRY(td_jdict_find(r, container.dict, item, &entry));
        *out = entry != NULL;
        return TD_OK;
    case TD_J_LIST:
        return list_contains(r, container, item, out);
    case TD_J_UNDEFINED:
        *out = false;
        return TD_OK;
    default:
        return td_jrun_fail(r, TD_E_FORMAT, "argument of type '%s' is not iterable", td_jv_type_name(container));
    }
}

td_status td_jv_compare(td_jrun *r, td_jop op, td_jv a, td_jv b, bool *out) {
    switch (op) {
    case TD_JOP_EQ:
        return td_jv_equal(r, a, b, out);
    case TD_JOP_NE:
        TD_TRY(td_jv_equal(r, a, b, out));
        *out = !*out;
        return TD_OK;
    case TD_JOP_IN:
        return td_jv_contains(r, b, a, out);
    case TD_JOP_NOT_IN:
        TD_TRY(td_jv_contains(r, b, a, out));
        *out = !*out;
        return TD_OK;
    default:
        return td_jv_order(r, op, a, b, out);
    }
}
