/* Winograd's method along an axis: which outputs are made together, from which pieces of the taps. Follows
   cpu/plan/winograd.py of convt3d, whose schemes F(2, r) are the tables C3D_... here. */

enum { MOST_PACE = 8, MOST_GROUPS = 512, FEWEST_PAIRS = 8, LONGEST = C3D_SCHEMES };

/* Outputs of one phase that are made together: pieces of taps, each with the scheme of its length. */
typedef struct {
    i64 pieces, *length;
    i64 *tap;   /* of each piece, the first of its taps among those of the axis */
    i64 *first; /* the shift of its first input */
    i64 points; /* of the longest piece, which has those of all */
    i64 output[2];
    int even;   /* all pieces have all points */
} together_of;

/* How many pieces have a product at each point of a group. */
typedef struct {
    i64 points, pieces[LONGEST + 1];
} points_kind;

typedef struct {
    walk walk;
    i64 outputs; /* 1: plain; or 2 */
    i64 apart;   /* distance of neighbouring inputs of a piece */
    i64 *taps;   /* run by run, inputs rising */
    i64 groups;
    together_of *group;
    i64 pieces_of[LONGEST + 1];  /* of all groups, by their length */
    i64 longest_of[LONGEST + 1]; /* groups, by the length of their longest piece */
    i64 products, points, most_points, most_pieces;
    i64 kinds; /* of groups, which differ in the pieces at their points */
    points_kind *kind;
} axis_method;

typedef struct {
    const axis_method *axis[3];
    walk walks[3];
    int direct;
    double gather, scatter; /* cycles of the transforms of a vector */
} method;

static i64 gcd_of(i64 a, i64 b) { return b ? gcd_of(b, a % b) : a; }

/* --- schemes: matrices of F(outputs, taps) ------------------------------------------------------------------------ */

static i64 points_for(i64 outputs, i64 taps) { return outputs + taps - 1; }

static double input_factor(i64 outputs, i64 taps, i64 point, i64 at) {
    return outputs == 1 ? 1.0 : C3D_INPUTS[taps - 1][point][at];
}
static double weight_factor(i64 outputs, i64 taps, i64 point, i64 at) {
    return outputs == 1 ? 1.0 : C3D_WEIGHTS[taps - 1][point][at];
}
static double output_factor(i64 outputs, i64 taps, i64 output, i64 point) {
    return outputs == 1 ? 1.0 : C3D_OUTPUTS[taps - 1][output][point];
}

typedef double (*factor_fn)(i64 outputs, i64 taps, i64 row, i64 column);

/* Of a matrix: its rows, its columns, most factors of a row that are not zero, and those of all rows beyond one. */
typedef struct {
    i64 rows, columns, terms, more;
} matrix_size;

static matrix_size size_of_matrix(factor_fn factor, i64 outputs, i64 taps) {
    matrix_size s = {factor == output_factor ? outputs : points_for(outputs, taps), points_for(outputs, taps), 0, 0};
    for (i64 row = 0; row < s.rows; row++) {
        i64 found = 0;
        for (i64 column = 0; column < s.columns; column++)
            found += factor(outputs, taps, row, column) != 0.0;
        s.terms = most(s.terms, found);
        s.more += found - 1;
    }
    return s;
}

/* Fifths of cycles. */
static i64 transform_cost(matrix_size d, matrix_size h, matrix_size w) {
    i64 loads = d.terms * d.rows * h.columns * w.columns, adds = d.terms > 1 ? loads : 0;
    adds += d.rows * w.columns * h.more + d.rows * h.rows * w.more;
    return 6 * most(loads, adds) + 10 * d.rows * h.rows * w.rows;
}

/* --- an axis ------------------------------------------------------------------------------------------------------ */

typedef struct {
    i64 phase, run, order, tap;
} run_tap;

static int by_run(const void *one, const void *other) {
    const run_tap *a = one, *b = other;
    if (a->phase != b->phase)
        return a->phase < b->phase ? -1 : 1;
    return a->run != b->run ? (a->run < b->run ? -1 : 1) : (a->order > b->order) - (a->order < b->order);
}

static int has_point(const together_of *g, i64 outputs, i64 piece, i64 point) {
    return point == g->points - 1 || point < points_for(outputs, g->length[piece]) - 1;
}

/* Where a point of a piece stands among all: infinity is the last one of each. */
static i64 point_of(const together_of *g, i64 outputs, i64 piece, i64 number) {
    return number < points_for(outputs, g->length[piece]) - 1 ? number : g->points - 1;
}

static i64 pieces_at(const together_of *g, i64 outputs, i64 point) {
    i64 found = 0;
    for (i64 piece = 0; piece < g->pieces; piece++)
        found += has_point(g, outputs, piece, point);
    return found;
}

static void note_kind(axis_method *m, const together_of *g) {
    points_kind own = {.points = g->points};
    for (i64 point = 0; point < g->points; point++)
        own.pieces[point] = pieces_at(g, m->outputs, point);
    for (i64 n = 0; n < m->kinds; n++)
        if (!memcmp(&m->kind[n], &own, sizeof own))
            return;
    m->kind[m->kinds++] = own;
}

/* Pieces of a phase's taps, `count` of them from `tap` on; its groups follow those before. */
static void add_phase(run *r, axis_method *m, const run_tap *tap, i64 start, i64 count, i64 apart) {
    const conv_axis *axis = &m->walk.axis;
    i64 up = outputs_per_input(axis), down = inputs_per_output(axis), longest_piece = m->outputs > 1 ? LONGEST : 1;
    i64 *length = take(r, count * sizeof *length), *first_tap = take(r, count * sizeof *first_tap), pieces = 0;
    for (i64 low = 0, high; low < count; low = high) {
        for (high = low; high < count && tap[high].run == tap[low].run;)
            high++;
        i64 size = high - low, cuts = ceil_div(size, longest_piece);
        for (i64 at = 0; at < cuts; at++, pieces++) {
            first_tap[pieces] = start + low + at * size / cuts;
            length[pieces] = (at + 1) * size / cuts - at * size / cuts;
        }
    }
    for (i64 e = 0; e < apart; e++) {
        together_of *g = &m->group[m->groups++];
        *g = (together_of){.pieces = pieces, .length = length, .tap = first_tap, .even = 1};
        g->first = take(r, pieces * sizeof *g->first);
        i64 longest_length = 0;
        for (i64 piece = 0; piece < pieces; piece++) {
            i64 offset = conv_offset(axis, m->taps[first_tap[piece]]);
            g->first[piece] = down * e + floor_div(tap->phase * down + offset, up);
            longest_length = most(longest_length, length[piece]);
            m->pieces_of[length[piece]]++;
            m->products += points_for(m->outputs, length[piece]);
        }
        for (i64 piece = 0; piece < pieces; piece++)
            g->even &= length[piece] == longest_length;
        for (i64 p = 0; p < m->outputs; p++)
            g->output[p] = up * (apart * p + e) + tap->phase;
        g->points = points_for(m->outputs, longest_length);
        m->longest_of[longest_length]++;
        note_kind(m, g);
        m->points += g->points;
        m->most_points = most(m->most_points, g->points);
        m->most_pieces = most(m->most_pieces, pieces);
    }
}

/* An axis whose outputs are made one by one, or two by two; NULL where the latter saves nothing or rounds worse. */
static const axis_method *axis_method_of(run *r, const conv_axis *axis, i64 outputs) {
    i64 n = axis->kernel, common = gcd_of(axis->dilation, axis->stride), apart = axis->dilation / common;
    i64 in_step = outputs > 1 ? apart : 1, runs = axis->forward ? axis->stride / common : 1;
    if (outputs > 1 && (ceil_div(n * common, axis->stride) < 2 || apart > MOST_PACE ||
                        inputs_per_output(axis) * outputs * apart > MOST_PACE))
        return NULL;
    axis_method *m = take(r, sizeof *m);
    *m = (axis_method){.outputs = outputs, .apart = inputs_per_output(axis) * apart};
    make_walk(r, &m->walk, *axis, outputs > 1 ? outputs * apart : 1);
    run_tap *taps = take(r, n * sizeof *taps);
    m->taps = take(r, n * sizeof *m->taps);
    m->group = take(r, n * in_step * sizeof *m->group);
    m->kind = take(r, n * sizeof *m->kind);
    for (i64 order = 0; order < n; order++) {
        i64 k = axis->forward ? order : n - 1 - order;
        taps[order] = (run_tap){modulo(-conv_offset(axis, k), outputs_per_input(axis)), k % runs, order, k};
    }
    qsort(taps, n, sizeof *taps, by_run);
    for (i64 at = 0; at < n; at++)
        m->taps[at] = taps[at].tap;
    for (i64 low = 0, high; low < n; low = high) {
        for (high = low; high < n && taps[high].phase == taps[low].phase;)
            high++;
        add_phase(r, m, taps + low, low, high - low, in_step);
    }
    if (outputs > 1 && (m->most_pieces > C3D_PIECES || m->products >= outputs * apart * n))
        return NULL;
    i64 last = INT64_MIN;
    for (i64 number = 0; number < m->groups; number++)
        for (i64 piece = 0; piece < m->group[number].pieces; piece++) {
            i64 points = points_for(outputs, m->group[number].length[piece]);
            last = most(last, m->group[number].first[piece] + m->apart * (points - 1));
        }
    m->walk.high += most(0, clipped(&m->walk, last) - m->walk.high);
    return m;
}

/* --- the volume --------------------------------------------------------------------------------------------------- */

static i64 product_of(const method *m, i64 part) {
    i64 total = 1;
    for (int axis = 0; axis < 3; axis++) {
        const axis_method *a = m->axis[axis];
        total *= part == 0 ? a->products : part == 1 ? a->points : part == 2 ? a->most_points : a->most_pieces;
    }
    return total;
}
static i64 products_of(const method *m) { return product_of(m, 0); }
static i64 points_of(const method *m) { return product_of(m, 1); }
static i64 most_points_of(const method *m) { return product_of(m, 2); }
static i64 most_pieces_of(const method *m) { return product_of(m, 3); }
static i64 groups_of(const method *m) { return m->axis[D]->groups * m->axis[H]->groups * m->axis[W]->groups; }

/* Cycles of all transforms, of inputs piece by piece or of outputs group by group. */
static double transforms_cost(const method *m, factor_fn factor) {
    i64 fifths = 0;
    for (i64 d = 1; d <= LONGEST; d++)
        for (i64 h = 1; h <= LONGEST; h++)
            for (i64 w = 1; w <= LONGEST; w++) {
                i64 length[3] = {d, h, w}, times = 1;
                matrix_size size[3];
                for (int axis = 0; axis < 3; axis++) {
                    const axis_method *a = m->axis[axis];
                    times *= factor == output_factor ? a->longest_of[length[axis]] : a->pieces_of[length[axis]];
                    size[axis] = size_of_matrix(factor, a->outputs, a->outputs > 1 ? length[axis] : 1);
                }
                fifths += times ? times * transform_cost(size[D], size[H], size[W]) : 0;
            }
    return (double)fifths / 5;
}

static void make_method(method *m, const axis_method *d, const axis_method *h, const axis_method *w) {
    *m = (method){.axis = {d, h, w}, .walks = {d->walk, h->walk, w->walk}};
    m->direct = d->outputs == 1 && h->outputs == 1 && w->outputs == 1;
    if (!m->direct) {
        m->gather = transforms_cost(m, input_factor);
        m->scatter = transforms_cost(m, output_factor);
    }
}

/* Many phases or pieces would take longer to plan than to sum. */
static int is_small(const method *m) { return groups_of(m) <= MOST_GROUPS && most_pieces_of(m) <= MOST_GROUPS; }
