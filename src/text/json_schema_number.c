/* json_schema_number.c - numbers between bounds, and multiples: digits, one after the other.
 *
 * A bound is a decimal: digits before and behind the point. Reading digits from the left, a number is *tight* to a
 * bound while its digits are the bound's; it leaves it at the first that differs, and every digit may follow then. At
 * most one branch stays tight to each bound, so a range costs a few nodes a digit.
 *
 * Multiples are counted in units of their last decimal: 0.25 is 25 hundredths. The number is written with exactly
 * that many decimals, and each place in it knows the remainder so far. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "text/json_schema_impl.h"

enum { DIGITS = 16 };
#define LARGEST 9999999999999999LL /* of DIGITS digits */

/* A bound. Its value is digits[0..n_whole) . digits[n_whole..n), without zeros at either end (but 0 is "0"). */
typedef struct bound {
    bool there, negative, open; /* open: the bound itself is not allowed */
    char digits[2 * DIGITS + 2];
    int n_whole, n;
} bound;

static td_gb_node digit(td_gb *b, int lo, int hi) {
    char pair[3] = {(char)('0' + lo), (char)('0' + hi), '\0'};
    return td_gb_chars(b, pair);
}

static td_gb_node digits(td_gb *b, uint32_t min, uint32_t max) {
    return td_gb_repeat(b, digit(b, 0, 9), min, max);
}

td_gb_node td_js_any_number(td_js *js) {
    td_gb *b = js->b;
    if (!js->number) {
        td_gb_rule rule = td_gb_rule_new(b, NULL, 0, -1);
        td_gb_node whole = TD_GB_ALT(b, td_gb_string(b, "0"), TD_GB_SEQ(b, digit(b, 1, 9), digits(b, 0, DIGITS - 1)));
        td_gb_node decimals = TD_GB_SEQ(b, td_gb_string(b, "."), digits(b, 1, DIGITS));
        td_gb_node exponent =
            TD_GB_SEQ(b, td_gb_chars(b, "eeEE"), TD_GB_OPTIONAL(b, td_gb_chars(b, "++--")), digits(b, 1, 2));
        td_gb_define(b, rule,
                     TD_GB_SEQ(b, TD_GB_OPTIONAL(b, td_gb_string(b, "-")), whole, TD_GB_OPTIONAL(b, decimals),
                               TD_GB_OPTIONAL(b, exponent)));
        js->number = rule + 1;
    }
    return td_gb_use(b, js->number - 1);
}

/* ---- bounds ---- */

/* From the shortest decimal that is this double: d.ddde[+-]xx. */
static bool spell(double v, bound *out) {
    char text[40];
    for (int precision = 0; precision <= 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, fabs(v));
        if (strtod(text, NULL) == fabs(v))
            break;
    }
    char *e = strchr(text, 'e');
    int exponent = atoi(e + 1), n = 0;
    char all[40];
    for (const char *c = text; c < e; c++)
        if (*c != '.')
            all[n++] = *c;
    while (n > 1 && all[n - 1] == '0')
        n--;
    out->negative = v < 0;
    out->n_whole = exponent < 0 ? 1 : exponent + 1;
    out->n = 0;
    if (out->n_whole > DIGITS || n - exponent - 1 > DIGITS)
        return false;
    for (int i = exponent; i < 0; i++)
        out->digits[out->n++] = '0';
    for (int i = 0; i < n; i++)
        out->digits[out->n++] = all[i];
    while (out->n < out->n_whole)
        out->digits[out->n++] = '0';
    while (out->n > out->n_whole && out->digits[out->n - 1] == '0')
        out->n--;
    return true;
}

static bool spell_integer(json_int_t v, bound *out) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)v);
    const char *d = text + (text[0] == '-');
    out->negative = v < 0;
    out->n = out->n_whole = (int)strlen(d);
    if (out->n > DIGITS)
        return false;
    memcpy(out->digits, d, (size_t)out->n);
    return true;
}

static double value_of(const json_t *v) {
    return json_number_value(v);
}

/* The stronger of the two keywords. One that no number of ours can reach is no bound; one on the wrong side is an
 * error. */
static bound read_bound(td_js *js, const json_t *schema, bool lower) {
    const char *keys[] = {lower ? "minimum" : "maximum", lower ? "exclusiveMinimum" : "exclusiveMaximum"};
    const json_t *closed = json_object_get(schema, keys[0]), *open = json_object_get(schema, keys[1]);
    bound out = {0};
    if (json_is_boolean(open)) { /* draft 4: it changes the other */
        open = json_is_true(open) ? closed : NULL;
        closed = open ? NULL : closed;
    }
    if ((closed && !json_is_number(closed)) || (open && !json_is_number(open))) {
        td_js_fail(js, TD_E_FORMAT, "\"%s\" is not a number", keys[closed && !json_is_number(closed) ? 0 : 1]);
        return out;
    }
    if (closed && open) {
        bool open_wins = lower ? value_of(open) >= value_of(closed) : value_of(open) <= value_of(closed);
        *(open_wins ? &closed : &open) = NULL;
    }
    const json_t *v = open ? open : closed;
    if (!v)
        return out;
    out.open = open != NULL;
    out.there = json_is_integer(v) ? spell_integer(json_integer_value(v), &out) : spell(json_real_value(v), &out);
    if (!out.there && fabs(value_of(v)) < 1)
        td_js_fail(js, TD_E_UNSUPPORTED, "\"%s\" has more than %d decimals", keys[open != NULL], DIGITS);
    else if (!out.there && (value_of(v) > 0) == lower)
        td_js_fail(js, TD_E_UNSUPPORTED, "\"%s\" has more than %d digits", keys[open != NULL], DIGITS);
    return out;
}

/* ---- ranges of decimals ---- */

typedef struct range {
    td_js *js;
    bound lo, hi; /* of numbers that are not negative; lo is there always */
} range;

static int decimal_of(const bound *x, int i) {
    return x->n_whole + i < x->n ? x->digits[x->n_whole + i] - '0' : 0;
}

static bool is_over(const bound *x, int i) {
    return x->n_whole + i >= x->n;
}

/* Decimals from place i on, at least one, or (*may_end) none, when the number is tight to lo or hi so far. */
static td_gb_node decimals(const range *r, int i, bool lo, bool hi, bool *may_end) {
    td_gb *b = r->js->b;
    *may_end = (!lo || (is_over(&r->lo, i) && !r->lo.open)) && (!hi || !is_over(&r->hi, i) || !r->hi.open);
    lo = lo && !(is_over(&r->lo, i) && !r->lo.open);
    if (i == DIGITS)
        return td_gb_alt(b, NULL, 0);
    if (!lo && !hi)
        return digits(b, 1, (uint32_t)(DIGITS - i));
    td_gb_list ways = {0};
    int from = lo ? decimal_of(&r->lo, i) : 0, to = hi ? decimal_of(&r->hi, i) : 9;
    for (int d = from; d <= to;) {
        bool tight_lo = lo && d == from, tight_hi = hi && d == to, end;
        int last = tight_lo || tight_hi ? d : hi ? to - 1 : to;
        td_gb_node rest = decimals(r, i + 1, tight_lo, tight_hi, &end);
        td_gb_push(b, &ways, TD_GB_SEQ(b, digit(b, d, last), end ? TD_GB_OPTIONAL(b, rest) : rest));
        d = last + 1;
    }
    td_gb_node node = td_gb_alt(b, ways.v, ways.n);
    td_gb_list_free(&ways);
    return node;
}

static td_gb_node with_decimals(const range *r, bool lo, bool hi) {
    td_gb *b = r->js->b;
    bool may_end;
    td_gb_node node = TD_GB_SEQ(b, td_gb_string(b, "."), decimals(r, 0, lo, hi, &may_end));
    return may_end ? TD_GB_OPTIONAL(b, node) : node;
}

/* Digits before the point from place i of n on; then the decimals. */
static td_gb_node whole(const range *r, int i, int n, bool lo, bool hi) {
    td_gb *b = r->js->b;
    if (i == n)
        return with_decimals(r, lo, hi);
    if (!lo && !hi)
        return TD_GB_SEQ(b, digits(b, (uint32_t)(n - i), (uint32_t)(n - i)), with_decimals(r, false, false));
    td_gb_list ways = {0};
    int from = lo ? r->lo.digits[i] - '0' : 0, to = hi ? r->hi.digits[i] - '0' : 9;
    for (int d = from; d <= to;) {
        bool tight_lo = lo && d == from, tight_hi = hi && d == to;
        int last = tight_lo || tight_hi ? d : hi ? to - 1 : to;
        td_gb_push(b, &ways, TD_GB_SEQ(b, digit(b, d, last), whole(r, i + 1, n, tight_lo, tight_hi)));
        d = last + 1;
    }
    td_gb_node node = td_gb_alt(b, ways.v, ways.n);
    td_gb_list_free(&ways);
    return node;
}

static int compare(const bound *a, const bound *b) {
    int n = a->n > b->n ? a->n : b->n;
    if (a->n_whole != b->n_whole)
        return a->n_whole - b->n_whole;
    for (int i = 0; i < n; i++) {
        int x = i < a->n ? a->digits[i] : '0', y = i < b->n ? b->digits[i] : '0';
        if (x != y)
            return x - y;
    }
    return 0;
}

/* Numbers of n digits before the point, each count a way of its own, as no number begins with a zero. */
static td_gb_node positive(td_js *js, bound lo, bound hi) {
    td_gb *b = js->b;
    td_gb_list ways = {0};
    range r = {js, lo, hi};
    int most = hi.there ? hi.n_whole : DIGITS;
    if (hi.there && (compare(&lo, &hi) > 0 || (compare(&lo, &hi) == 0 && (lo.open || hi.open))))
        most = 0;
    for (int n = lo.n_whole; n <= most; n++) {
        bool tight_lo = n == lo.n_whole, tight_hi = hi.there && n == hi.n_whole;
        if (!tight_lo) { /* from 10...0 on */
            r.lo = (bound){.there = true, .n = n, .n_whole = n};
            memset(r.lo.digits, '0', (size_t)n);
            r.lo.digits[0] = '1';
        }
        td_gb_push(b, &ways, whole(&r, 0, n, true, tight_hi));
    }
    td_gb_node node = td_gb_alt(b, ways.v, ways.n);
    td_gb_list_free(&ways);
    return node;
}

static td_gb_node decimal_range(td_js *js, bound lo, bound hi) {
    td_gb *b = js->b;
    bound zero = {.there = true, .digits = "0", .n = 1, .n_whole = 1}, above = zero;
    above.open = true;
    td_gb_list ways = {0};
    if (!hi.there || !hi.negative)
        td_gb_push(b, &ways, positive(js, lo.there && !lo.negative ? lo : zero, hi));
    if (!lo.there || lo.negative) {
        bound least = hi.there && hi.negative ? hi : above, most = lo;
        least.negative = most.negative = false;
        td_gb_push(b, &ways, TD_GB_SEQ(b, td_gb_string(b, "-"), positive(js, least, most)));
    }
    td_gb_node node = td_gb_alt(b, ways.v, ways.n);
    td_gb_list_free(&ways);
    return node;
}

/* ---- ranges of whole numbers of units ---- */

typedef struct units {
    td_js *js;
    int places; /* decimals of a unit */
    uint32_t step;
    char lo[24], hi[24]; /* of equal length */
    int n;
} units;

static td_gb_node unit_digits(const units *u, int i, bool lo, bool hi, uint32_t left_over);

/* All endings of `left` digits with this remainder, as a rule that is made once. */
static td_gb_node free_digits(const units *u, int left, uint32_t left_over) {
    td_gb *b = u->js->b;
    if (u->step == 1 && (left < u->places || u->places == 0))
        return digits(b, (uint32_t)left, (uint32_t)left);
    if (u->step == 1) {
        uint32_t before = (uint32_t)(left - u->places), behind = (uint32_t)u->places;
        return TD_GB_SEQ(b, digits(b, before, before), td_gb_string(b, "."), digits(b, behind, behind));
    }
    td_gb_rule *rule = &u->js->free_digits[(uint32_t)left * u->step + left_over];
    if (!*rule) {
        *rule = td_gb_rule_new(b, NULL, 0, -1) + 1;
        units v = *u;
        v.n = left;
        td_gb_define(b, *rule - 1, unit_digits(&v, -1, false, false, left_over));
    }
    return td_gb_use(b, *rule - 1);
}

/* The digits from place i on. i < 0: of a free ending, the next of n digits that are left. */
static td_gb_node unit_digits(const units *u, int i, bool lo, bool hi, uint32_t left_over) {
    td_gb *b = u->js->b;
    int left = i < 0 ? u->n : u->n - i;
    if (left == 0)
        return left_over == 0 ? 0 : td_gb_alt(b, NULL, 0);
    if (!lo && !hi && i >= 0)
        return free_digits(u, left, left_over);
    td_gb_list ways = {0};
    int from = lo ? u->lo[i] - '0' : 0, to = hi ? u->hi[i] - '0' : 9;
    for (int d = from; d <= to;) {
        bool tight_lo = lo && d == from, tight_hi = hi && d == to;
        int last = u->step > 1 || tight_lo || tight_hi ? d : hi ? to - 1 : to;
        uint32_t over = (uint32_t)((left_over * 10 + (uint32_t)d) % u->step);
        td_gb_node rest = tight_lo || tight_hi ? unit_digits(u, i + 1, tight_lo, tight_hi, over)
                          : left > 1           ? free_digits(u, left - 1, over)
                          : over == 0          ? 0
                                               : td_gb_alt(b, NULL, 0);
        bool point = left == u->places;
        td_gb_push(b, &ways, TD_GB_SEQ(b, point ? td_gb_string(b, ".") : 0, digit(b, d, last), rest));
        d = last + 1;
    }
    td_gb_node node = td_gb_alt(b, ways.v, ways.n);
    td_gb_list_free(&ways);
    return node;
}

/* n digits, zeros in front. */
static void put_digits(char *out, int64_t v, int n) {
    for (int i = n; i > 0; i--, v /= 10)
        out[i - 1] = (char)('0' + v % 10);
}

/* lo <= number of units <= hi, neither negative. */
static td_gb_node unit_range(td_js *js, int places, uint32_t step, int64_t lo, int64_t hi) {
    td_gb *b = js->b;
    td_gb_list ways = {0};
    units u = {.js = js, .places = places, .step = step};
    int64_t first = 0, beyond = 10; /* numbers of n digits */
    for (u.n = 1; u.n <= places; u.n++)
        beyond *= 10;
    for (; u.n <= DIGITS && first <= hi; u.n++) {
        int64_t from = lo > first ? lo : first, to = hi < beyond - 1 ? hi : beyond - 1;
        if (from <= to) {
            put_digits(u.lo, from, u.n);
            put_digits(u.hi, to, u.n);
            td_gb_push(b, &ways, unit_digits(&u, 0, true, true, 0));
        }
        first = beyond;
        beyond *= 10;
    }
    td_gb_node node = td_gb_alt(b, ways.v, ways.n);
    td_gb_list_free(&ways);
    return node;
}

/* A bound in units, rounded into the range; what is out of reach becomes the largest. */
static int64_t in_units(const bound *x, int places, bool lower) {
    if (!x->there)
        return lower ? -LARGEST : LARGEST;
    int64_t v = 0;
    bool more = false; /* digits behind the last unit */
    for (int i = 0; i < x->n_whole + places && v <= LARGEST; i++)
        v = v * 10 + (i < x->n ? x->digits[i] - '0' : 0);
    v = v > LARGEST ? LARGEST : v;
    more = x->n > x->n_whole + places;
    bool up = lower != x->negative; /* away from zero */
    if (more)
        v += up;
    else if (x->open)
        v += up ? 1 : -1;
    return x->negative ? -v : v;
}

static td_gb_node unit_numbers(td_js *js, int places, uint32_t step, bound lo, bound hi) {
    td_gb *b = js->b;
    int64_t from = in_units(&lo, places, true), to = in_units(&hi, places, false);
    td_gb_list ways = {0};
    if (step > 1)
        js->free_digits = td_calloc((size_t)(DIGITS + 1) * step, sizeof *js->free_digits);
    if (step > 1 && !js->free_digits)
        return td_js_fail(js, TD_E_NOMEM, "out of memory for a grammar");
    if (to >= 0)
        td_gb_push(b, &ways, unit_range(js, places, step, from > 0 ? from : 0, to));
    if (from < 0)
        td_gb_push(b, &ways, TD_GB_SEQ(b, td_gb_string(b, "-"), unit_range(js, places, step, to < 0 ? -to : 1, -from)));
    td_gb_node node = td_gb_alt(b, ways.v, ways.n);
    td_gb_list_free(&ways);
    td_free(js->free_digits);
    js->free_digits = NULL;
    return node;
}

/* multipleOf in units of its last decimal. */
static bool read_step(td_js *js, const json_t *v, bool integer, int *places, uint32_t *step) {
    bound s = {0};
    int64_t n = 0;
    *places = 0;
    *step = 1;
    if (!v)
        return true;
    bool fine = json_is_number(v) && value_of(v) > 0 &&
                (json_is_integer(v) ? spell_integer(json_integer_value(v), &s) : spell(json_real_value(v), &s));
    for (int i = 0; fine && i < s.n && n <= TD_JSON_SCHEMA_MAX_MULTIPLE; i++)
        n = n * 10 + s.digits[i] - '0';
    *places = s.n - s.n_whole;
    if (!fine || n > TD_JSON_SCHEMA_MAX_MULTIPLE || (integer && *places > 0)) {
        td_js_fail(js, TD_E_UNSUPPORTED, "\"multipleOf\" is not of 1 to %d units of its last decimal%s",
                   TD_JSON_SCHEMA_MAX_MULTIPLE, integer ? ", whole ones for an integer" : "");
        return false;
    }
    *step = (uint32_t)n;
    return true;
}

td_gb_node td_js_number(td_js *js, const json_t *schema, bool integer) {
    const json_t *multiple = json_object_get(schema, "multipleOf");
    int places;
    uint32_t step;
    bound lo = read_bound(js, schema, true), hi = read_bound(js, schema, false);
    if (td_gb_status(js->b) != TD_OK || !read_step(js, multiple, integer, &places, &step))
        return 0;
    if (integer || multiple)
        return unit_numbers(js, places, step, lo, hi);
    return lo.there || hi.there ? decimal_range(js, lo, hi) : td_js_any_number(js);
}
