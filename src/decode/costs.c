/* costs.c - cells of recent measurements, and lines through what they agree on. */
#include "decode/costs.h"

#include <string.h>

#define EXACT 16u         /* rows that have a cell of their own */
#define ROW_GUESS 0.05    /* of a pass, for a further row, while nothing but one pass is known */
#define STEP_GUESS 0.05   /* of a plain pass, for a draft step */
#define MEMBER_GUESS 0.2  /* of a draft step, for a further sequence in it */
#define ALIKE 1.25f       /* times as dear as another is not dearer but for noise */
#define YOUNGER 256u      /* rounds that a price may be older than one that it overrules */
#define SETTLED 3u        /* measurements after which a price is believed */
#define ROWS_WEIGHT 0.25f /* of the latest, in the rows that a shared cell stands for */

/* ---- cells ---- */

static uint32_t cell_of(uint32_t rows) {
    if (rows <= EXACT)
        return rows - 1;
    uint32_t octave = 0;
    while (rows >= 2 * EXACT) { /* 17..31 in steps of two, then of four, ... */
        rows /= 2;
        octave++;
    }
    uint32_t cell = EXACT + 8 * octave + (rows - EXACT) / 2;
    return cell < TD_COSTS_CELLS ? cell : TD_COSTS_CELLS - 1;
}

/* The mean of those about as dear as the lower quartile (of up to four the least, of a full window the second) or less:
 * on a busy machine more than half of some cell's measurements are interrupted sooner or later, and what seems dear is
 * not tried again soon. */
static float price(const td_cost *c) {
    uint32_t n = c->n < TD_COSTS_WINDOW ? c->n : TD_COSTS_WINDOW, used = 0;
    float sorted[TD_COSTS_WINDOW], sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = i;
        for (; j > 0 && sorted[j - 1] > c->recent[i]; j--)
            sorted[j] = sorted[j - 1];
        sorted[j] = c->recent[i];
    }
    while (used < n && sorted[used] <= ALIKE * sorted[(n - 1) / 4])
        sum += sorted[used++];
    return sum / (float)used;
}

static void measure(td_cost *c, uint32_t rows, uint32_t round, double seconds) {
    if (!(seconds > 0))
        return;
    if (c->n && round - c->at > TD_COSTS_RECENT)
        c->n = 0;
    c->recent[c->n++ % TD_COSTS_WINDOW] = (float)seconds;
    if (c->n == 2 * TD_COSTS_WINDOW) /* or it would wrap one day */
        c->n = TD_COSTS_WINDOW;
    c->rows = c->rows > 0 ? c->rows + ROWS_WEIGHT * ((float)rows - c->rows) : (float)rows;
    c->at = round;
    c->seconds = price(c);
}

/* ---- lines ---- */

typedef struct point {
    double x, y;
} point;

/* How much dearer this bucket is than the one that lent: by the smallest pass that both know. */
static double dearer(const td_cost *cells) {
    for (uint32_t i = 0; i < TD_COSTS_CELLS; i++)
        if (cells[i].seconds > 0 && cells[i].lent > 0)
            return (double)cells[i].seconds / (double)cells[i].lent;
    return 1;
}

/* What cells hold, in order: own prices, none dearer than a younger one behind it; between them lent ones. And a row
 * costs no more than it does in passes of fewer rows: those could be run instead. */
static uint32_t points_of(const td_cost *cells, point *p) {
    uint32_t n = 0;
    double lent = dearer(cells), least = 0;
    for (uint32_t i = 0; i < TD_COSTS_CELLS; i++) {
        const td_cost *c = &cells[i];
        double y = c->seconds > 0 ? (double)c->seconds : (double)c->lent * lent;
        if (!(y > 0))
            continue;
        for (uint32_t j = i + 1; j < TD_COSTS_CELLS; j++)
            if (cells[j].seconds > 0 && (double)cells[j].seconds < y && cells[j].at + YOUNGER >= c->at)
                y = (double)cells[j].seconds;
        y = y > least ? y : least; /* only a lent one can be less */
        least = y;
        if (n && y * p[n - 1].x > p[n - 1].y * (double)c->rows)
            y = p[n - 1].y * (double)c->rows / p[n - 1].x;
        p[n++] = (point){(double)c->rows, y};
    }
    return n;
}

/* The price at x: between two points on their line, before the first as the first, behind the last along the line from
 * the first to the last, or by a guess when there is but one. *at is where the last call has come to. */
static double at(const point *p, uint32_t n, uint32_t *from, double x, double guess) {
    while (*from + 1 < n && p[*from + 1].x <= x)
        (*from)++;
    const point *a = &p[*from], *last = &p[n - 1];
    if (x <= a->x)
        return a->y;
    if (a != last)
        return a->y + (a[1].y - a->y) * (x - a->x) / (a[1].x - a->x);
    double slope = n > 1 && last->x > p->x ? (last->y - p->y) / (last->x - p->x) : guess * last->y;
    return last->y + slope * (x - last->x);
}

void td_costs_passes(const td_cost_bucket *b, bool mixed, uint32_t rows, uint32_t n, double *out) {
    point p[TD_COSTS_CELLS];
    uint32_t n_points = points_of(mixed ? b->mixed : b->pass, p), from = 0;
    for (uint32_t i = 0; i <= n; i++)
        out[i] = n_points ? at(p, n_points, &from, rows + i, ROW_GUESS) : 0;
}

static void steps(const td_cost *cells, uint32_t n, double guess, double *out) {
    point p[TD_COSTS_CELLS];
    uint32_t n_points = points_of(cells, p), from = 0;
    out[0] = 0;
    for (uint32_t m = 1; m <= n; m++)
        out[m] = n_points ? at(p, n_points, &from, m, MEMBER_GUESS) : guess * (1 + MEMBER_GUESS * (m - 1));
}

void td_costs_steps(const td_cost_bucket *b, uint32_t n, double plain, double *first, double *later) {
    steps(b->first, n, STEP_GUESS * plain, first);
    steps(b->later, n, n ? first[1] : 0, later); /* as the first, while nothing else is known */
}

uint32_t td_costs_seen(const td_cost_bucket *b, uint32_t rows) {
    const td_cost *c = &b->pass[cell_of(rows)];
    if (!c->n || b->rounds - c->at > TD_COSTS_RECENT)
        return 0;
    return c->n < TD_COSTS_WINDOW ? c->n : TD_COSTS_WINDOW;
}

bool td_costs_settled(const td_cost_bucket *b, uint32_t rows) {
    uint32_t around = rows / 16;
    for (uint32_t r = rows - around; r <= rows + around; r++)
        if (td_costs_seen(b, r) >= SETTLED)
            return true;
    return false;
}

bool td_costs_fresh(const td_cost_bucket *b, uint32_t rows) {
    const td_cost *c = &b->pass[cell_of(rows)];
    return c->n && b->rounds - c->at <= TD_COSTS_FRESH;
}

/* ---- buckets ---- */

static void borrow(td_cost *to, const td_cost *from) {
    for (uint32_t i = 0; i < TD_COSTS_CELLS; i++)
        to[i] = (td_cost){.rows = from[i].rows, .lent = from[i].seconds > 0 ? from[i].seconds : from[i].lent};
}

static void borrow_all(td_cost_bucket *to, const td_cost_bucket *from) {
    borrow(to->pass, from->pass);
    borrow(to->mixed, from->mixed);
    borrow(to->first, from->first);
    borrow(to->later, from->later);
}

td_cost_bucket *td_costs_bucket(td_costs *costs, uint64_t n_keys) {
    int b = 0;
    for (; n_keys > 127 && b < TD_COSTS_BUCKETS - 1; b++)
        n_keys /= 2;
    td_cost_bucket *own = &costs->bucket[b];
    for (int away = 1; !own->rounds && !own->borrowed && away < TD_COSTS_BUCKETS; away++)
        for (int side = -away; side <= away; side += 2 * away) /* the one of fewer keys first */
            if (!own->borrowed && b + side >= 0 && b + side < TD_COSTS_BUCKETS && costs->bucket[b + side].rounds) {
                borrow_all(own, &costs->bucket[b + side]);
                own->borrowed = true;
            }
    return own;
}

void td_costs_saw_pass(td_cost_bucket *b, bool mixed, uint32_t rows, double seconds) {
    b->rounds++;
    measure(mixed ? &b->mixed[cell_of(rows)] : &b->pass[cell_of(rows)], rows, b->rounds, seconds);
}

/* Only the sum of the steps is known. It is shared out in proportion to what they were thought to cost; rounds of
 * different depths and companies then tell the kinds of steps apart. */
void td_costs_saw_draft(td_cost_bucket *b, const uint32_t *live, uint32_t n_steps, double plain, double seconds) {
    uint32_t most = 0;
    for (uint32_t j = 0; j < n_steps; j++)
        most = live[j] > most ? live[j] : most;
    if (!most || most > EXACT * EXACT)
        return;
    double first[EXACT * EXACT + 1], later[EXACT * EXACT + 1], sum = 0;
    td_costs_steps(b, most, plain, first, later);
    for (uint32_t j = 0; j < n_steps; j++)
        sum += j ? later[live[j]] : first[live[j]];
    double scale = sum > 0 ? seconds / sum : 0;
    for (uint32_t j = 0; j < n_steps; j++) {
        double each = sum > 0 ? (j ? later[live[j]] : first[live[j]]) * scale : seconds / n_steps;
        if (j == 0)
            measure(&b->first[cell_of(live[0])], live[0], b->rounds, each);
        else if (j == 1 || live[j] != live[j - 1]) /* once a company: a deep round is one measurement */
            measure(&b->later[cell_of(live[j])], live[j], b->rounds, each);
    }
}
