/* Where a tile comes from: for every step of a sweep the ranges it reads and writes along one axis. Follows
   cpu/plan/geometry.py and spec/shapes.py of convt3d. */

typedef struct {
    i64 size, kernel, stride, padding, extra, dilation;
    int forward; /* a convolution that is not transposed */
} conv_axis;

typedef struct {
    i64 size, kernel, stride, padding;
    int ceil_mode;
} pool_axis;

static i64 conv_out(const conv_axis *a) {
    i64 reach = a->dilation * (a->kernel - 1) + 1;
    if (a->forward)
        return floor_div(a->size + 2 * a->padding + a->extra - reach, a->stride) + 1;
    return (a->size - 1) * a->stride - 2 * a->padding + reach + a->extra;
}

static i64 conv_offset(const conv_axis *a, i64 k) {
    return a->forward ? k * a->dilation - a->padding : a->padding - k * a->dilation;
}

static i64 pool_out(const pool_axis *p) {
    i64 span = p->size + 2 * p->padding - p->kernel;
    if (!p->ceil_mode)
        return span >= 0 ? span / p->stride + 1 : 0;
    i64 count = ceil_div(span, p->stride) + 1;
    return (count - 1) * p->stride >= p->size + p->padding ? count - 1 : count;
}

/* Input-tap pairs of the whole axis. */
static i64 multiplications(const conv_axis *a) {
    i64 total = 0, out = conv_out(a);
    for (i64 k = 0; k < a->kernel; k++) {
        i64 offset = conv_offset(a, k), first, last;
        if (a->forward) {
            first = most(0, -floor_div(offset, a->stride));
            last = least(out - 1, floor_div(a->size - 1 - offset, a->stride));
        } else {
            first = most(0, ceil_div(offset, a->stride));
            last = least(a->size - 1, floor_div(out - 1 + offset, a->stride));
        }
        total += most(first, last + 1) - first;
    }
    return total;
}

/* --- a convolution's axis, cut into positions --------------------------------------------------------------------- */

enum { LONG_STRIDE = 8, STEP_WORDS = 9 };

typedef struct {
    i64 phase, tap, shift, order;
} tap_of;

typedef struct {
    conv_axis axis;
    i64 together;                           /* outputs of a phase at one position */
    i64 period, pace, positions, low, high; /* outputs and inputs of a position; smallest and largest shift */
    i64 kept;                               /* phases that have a place of their own */
    i64 phases;                             /* that have taps */
    i64 *first;                             /* of each of these, its first tap; one more behind the last */
    tap_of *taps;                           /* phase by phase, shifts falling */
} walk;

static int by_phase(const void *one, const void *other) {
    const tap_of *a = one, *b = other;
    return a->phase != b->phase ? (a->phase > b->phase) - (a->phase < b->phase)
                                : (a->order > b->order) - (a->order < b->order);
}

/* Of a stride: how many outputs come from an input, or inputs go to an output. */
static i64 outputs_per_input(const conv_axis *a) { return a->forward ? 1 : a->stride; }
static i64 inputs_per_output(const conv_axis *a) { return a->forward ? a->stride : 1; }

/* A shift that meets no input at any position is as good as the nearest such one: it meets zeros. */
static i64 clipped(const walk *w, i64 shift) {
    return least(most(shift, -w->pace * (w->positions - 1) - 1), w->axis.size);
}

static void make_walk(run *r, walk *w, conv_axis axis, i64 together) {
    i64 every = outputs_per_input(&axis), n = axis.kernel * together, at = 0;
    w->axis = axis;
    w->together = together;
    w->period = every * together;
    w->pace = inputs_per_output(&axis) * together;
    w->positions = (conv_out(&axis) - 1) / w->period + 1;
    w->taps = take(r, n * sizeof *w->taps);
    w->first = take(r, (n + 1) * sizeof *w->first);
    for (i64 order = 0; order < axis.kernel; order++) {
        i64 k = axis.forward ? axis.kernel - 1 - order : order, offset = conv_offset(&axis, k);
        for (i64 phase = modulo(-offset, every); phase < w->period; phase += every)
            w->taps[at++] =
                (tap_of){phase, k, floor_div(phase * inputs_per_output(&axis) + offset, every), order};
    }
    qsort(w->taps, n, sizeof *w->taps, by_phase);
    w->phases = 0;
    i64 low = w->taps[0].shift, high = low;
    for (at = 0; at < n; at++) {
        if (!at || w->taps[at].phase != w->taps[at - 1].phase)
            w->first[w->phases++] = at;
        low = least(low, w->taps[at].shift);
        high = most(high, w->taps[at].shift);
    }
    w->first[w->phases] = n;
    w->low = clipped(w, low);
    w->high = clipped(w, high);
    w->kept = every > LONG_STRIDE && w->phases + 1 < w->period ? w->phases + 1 : w->period;
}

static i64 phase_of(const walk *w, i64 number) { return w->taps[w->first[number]].phase; }
static i64 taps_of(const walk *w, i64 number) { return w->first[number + 1] - w->first[number]; }
static i64 place_of(const walk *w, i64 number) { return w->kept == w->period ? phase_of(w, number) : number; }

/* Inputs from the first to the last that so many positions meet. */
static i64 reach(const walk *w, i64 positions) { return w->pace * (positions - 1) + w->high - w->low + 1; }

/* --- tiles along an axis ------------------------------------------------------------------------------------------ */

typedef struct {
    const walk *conv; /* NULL: a pool */
    pool_axis pool;
} axis_step;

typedef struct {
    i64 read, write, positions;
} bound;

typedef struct {
    i64 read[2], write[2], position[2];
} span;

typedef struct {
    const axis_step *steps;
    int count;
    i64 size, tile, tiles;
    bound longest[C3D_GEOMETRIC];
} axis_spans;

static axis_spans spans_along(const axis_step *steps, int count, i64 size, i64 tile) {
    axis_spans a = {steps, count, size, tile, ceil_div(size, tile), {{0}}};
    i64 length = least(tile, size), first = 0, advance = tile;
    if (!count)
        a.longest[0] = (bound){length, length, 0};
    for (int at = count - 1; at >= 0; at--) {
        const walk *w = steps[at].conv;
        const pool_axis *p = &steps[at].pool;
        bound *b = &a.longest[at];
        b->write = length;
        if (w) {
            i64 remainder = modulo(advance, w->period) ? w->period - 1 : modulo(first, w->period);
            b->positions = least((remainder + length - 1) / w->period + 1, w->positions);
            b->read = least(reach(w, b->positions), w->axis.size);
        } else {
            b->positions = 0;
            b->read = least((length - 1) * p->stride + p->kernel, p->size);
            first = first * p->stride - p->padding;
            advance *= p->stride;
        }
        length = b->read;
    }
    return a;
}

/* The spans of one tile, a step each. */
static void spans_of(const axis_spans *a, i64 number, span *found) {
    i64 low = number * a->tile, high = least((number + 1) * a->tile, a->size);
    if (!a->count)
        found[0] = (span){{low, high}, {low, high}, {0, 0}};
    for (int at = a->count - 1; at >= 0; at--) {
        const walk *w = a->steps[at].conv;
        const pool_axis *p = &a->steps[at].pool;
        span *s = &found[at];
        *s = (span){{0, 0}, {low, high}, {0, 0}};
        if (w) {
            s->position[0] = low / w->period;
            s->position[1] = (high - 1) / w->period + 1;
            i64 first = w->pace * s->position[0] + w->low, length = reach(w, s->position[1] - s->position[0]);
            s->read[0] = least(most(first, 0), w->axis.size - 1);
            s->read[1] = least(most(first + length, s->read[0] + 1), w->axis.size);
        } else {
            s->read[0] = most(low * p->stride - p->padding, 0);
            s->read[1] = least((high - 1) * p->stride - p->padding + p->kernel, p->size);
        }
        low = s->read[0];
        high = s->read[1];
    }
}

/* A row for each tile, STEP_WORDS words for each step. */
static i64 *axis_table(run *r, const axis_spans *a) {
    int steps = a->count ? a->count : 1;
    i64 *table = take(r, a->tiles * steps * STEP_WORDS * sizeof *table), *at = table;
    span found[C3D_GEOMETRIC];
    for (i64 number = 0; number < a->tiles; number++) {
        spans_of(a, number, found);
        for (int n = 0; n < steps; n++, at += STEP_WORDS) {
            const span *s = &found[n];
            const walk *w = a->count ? a->steps[n].conv : NULL;
            i64 ranges[STEP_WORDS] = {s->read[0], s->read[1] - s->read[0], s->write[0], s->write[1] - s->write[0]};
            if (w) {
                i64 count = s->position[1] - s->position[0], origin = w->pace * s->position[0] + w->low;
                i64 first = most(origin, 0), last = least(origin + reach(w, count), w->axis.size);
                i64 valid = most(0, last - first);
                ranges[4] = s->position[0];
                ranges[5] = count;
                ranges[6] = valid ? first - origin : 0;
                ranges[7] = valid ? first - s->read[0] : 0;
                ranges[8] = valid;
            }
            memcpy(at, ranges, sizeof ranges);
        }
    }
    return table;
}
