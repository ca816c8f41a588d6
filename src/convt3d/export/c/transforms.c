/* The tables of Winograd's method: groups of outputs, their pieces and points, and what these point into. Follows the
   binder in cpu/steps/winograd.py of convt3d. */

enum { SUMMED_ALONE = 128, SUMMED_OF_PIECES = 64 }; /* steps that are summed on their own before they join the rest */

enum { SCHEMES = LONGEST + 1 };

/* A scheme among those that transforms are compiled for: F(1, 1), then F(2, r). */
static i64 scheme_of(i64 outputs, i64 taps) { return outputs > 1 ? taps : 0; }

static i64 terms_of(factor_fn factor, i64 outputs, i64 taps) { return size_of_matrix(factor, outputs, taps).terms; }

/* For each row of a matrix its `count` terms, column and factor; filled up with zeros. */
static void row_terms(factor_fn factor, i64 outputs, i64 taps, i64 row, i64 count, i64 *column, number *factors) {
    i64 found = 0, columns = points_for(outputs, taps);
    for (i64 at = 0; at < columns; at++)
        if (factor(outputs, taps, row, at) != 0.0) {
            column[found] = at;
            factors[found++] = (number)factor(outputs, taps, row, at);
        }
    for (; found < count; found++) {
        column[found] = column[0];
        factors[found] = 0;
    }
}

typedef struct {
    const sweep_case *c;
    const tiling *t;
    i64 *groups, *pieces, *points, *gather, *scatter;
    number *factors;
    i64 group, piece, point, gathered, scattered, factored; /* rows and numbers so far */
    i64 weight;                                             /* numbers of a group's weights */
} transform_tables;

typedef const together_of *volume_group[3];

static i64 longest_length(const axis_method *a, const together_of *g) { return g->points - a->outputs + 1; }

static i64 place_of_output(const walk *w, i64 phase) {
    if (w->kept == w->period)
        return phase;
    i64 number_of_phase = 0;
    while (phase_of(w, number_of_phase) != phase)
        number_of_phase++;
    return number_of_phase;
}

/* Offsets of a piece's inputs, those of the terms of each point along the depth, and where transformed ones go. */
static void add_piece(transform_tables *q, volume_group g, const i64 *number_of_piece, const i64 *places) {
    const method *m = q->c->by;
    const walk *w = m->walks;
    i64 length[3], points[3], inputs[LONGEST + 1], columns[LONGEST + 1];
    i64 *row = q->pieces + q->piece++ * PieceWords_words, begin = q->gathered, factors = q->factored;
    int even = g[D]->even && g[H]->even && g[W]->even;
    for (int axis = 0; axis < 3; axis++) {
        length[axis] = g[axis]->length[number_of_piece[axis]];
        points[axis] = points_for(m->axis[axis]->outputs, length[axis]);
    }
    for (int axis = H; axis <= W; axis++)
        for (i64 at = 0; at < points[axis]; at++) {
            i64 shift = g[axis]->first[number_of_piece[axis]] + m->axis[axis]->apart * at;
            q->gather[q->gathered++] = slab_place(w, &q->t->slab, NULL, axis, shift);
        }
    for (i64 at = 0; at < points[D]; at++)
        inputs[at] = slab_place(w, &q->t->slab, NULL, D, g[D]->first[number_of_piece[D]] + m->axis[D]->apart * at);
    i64 terms = terms_of(input_factor, m->axis[D]->outputs, length[D]);
    for (i64 point = 0; point < points[D]; point++) {
        row_terms(input_factor, m->axis[D]->outputs, length[D], point, terms, columns, q->factors + q->factored);
        q->factored += terms;
        for (i64 term = 0; term < terms; term++)
            q->gather[q->gathered++] = inputs[columns[term]];
    }
    i64 in_group = q->c->in_group, all[3];
    for (i64 i = 0; i < points[D]; i++)
        for (i64 j = 0; j < points[H]; j++)
            for (i64 n = 0; n < points[W]; n++) {
                i64 local[3] = {i, j, n}, before = 0;
                for (int axis = 0; axis < 3; axis++) {
                    i64 outputs = m->axis[axis]->outputs;
                    all[axis] = point_of(g[axis], outputs, number_of_piece[axis], local[axis]);
                    i64 rank = 0; /* among the pieces that have a product there */
                    for (i64 other = 0; other < number_of_piece[axis]; other++)
                        rank += has_point(g[axis], outputs, other, all[axis]);
                    before = before * pieces_at(g[axis], outputs, all[axis]) + rank;
                }
                i64 place = places[(all[D] * g[H]->points + all[H]) * g[W]->points + all[W]];
                q->gather[q->gathered++] = place + before * in_group * q->t->blocking.positions;
            }
    i64 h = scheme_of(m->axis[H]->outputs, length[H]), v = scheme_of(m->axis[W]->outputs, length[W]);
    row[PieceWords_kind] = ADDRESS(C3D_GATHER[q->c->m->isa][(((terms - 1) * SCHEMES + h) * SCHEMES + v) * 2 + even]);
    row[PieceWords_depth] = points[D];
    row[PieceWords_gather] = begin;
    row[PieceWords_factors] = factors;
}

static void add_group(transform_tables *q, volume_group g) {
    const method *m = q->c->by;
    const walk *w = m->walks;
    i64 *row = q->groups + q->group++ * GroupWords_words, begin = q->point, first = q->piece, inputs = 0;
    i64 places[(LONGEST + 1) * (LONGEST + 1) * (LONGEST + 1)], columns[LONGEST + 1], number_of_point = 0;
    i64 in_group = q->c->in_group, vectors = q->t->blocking.vectors;
    for (i64 i = 0; i < g[D]->points; i++)
        for (i64 j = 0; j < g[H]->points; j++)
            for (i64 n = 0; n < g[W]->points; n++) {
                i64 *point = q->points + q->point++ * PointWords_words;
                i64 steps = pieces_at(g[D], m->axis[D]->outputs, i) * pieces_at(g[H], m->axis[H]->outputs, j) *
                            pieces_at(g[W], m->axis[W]->outputs, n) * in_group;
                places[number_of_point++] = inputs;
                point[PointWords_inputs] = inputs;
                point[PointWords_steps] = steps;
                point[PointWords_weight] = q->weight;
                inputs += odd(steps * vectors) * (q->t->blocking.positions / vectors);
                q->weight += steps * (q->c->out_channels / q->c->groups);
            }
    i64 count[3];
    for (i64 i = 0; i < g[D]->pieces; i++)
        for (i64 j = 0; j < g[H]->pieces; j++)
            for (i64 n = 0; n < g[W]->pieces; n++)
                add_piece(q, g, (const i64[]){i, j, n}, places);
    i64 scatter = q->scattered, factors = q->factored;
    const i64 apart[3] = {w[H].kept * w[W].kept, w[W].kept, 1};
    static const int order[] = {H, W, D};
    for (int at = 0; at < 3; at++) {
        int axis = order[at];
        count[axis] = m->axis[axis]->outputs;
        for (i64 p = 0; p < count[axis]; p++)
            q->scatter[q->scattered++] = place_of_output(&w[axis], g[axis]->output[p]) * apart[axis] * q->t->slab.phase;
    }
    i64 taps = longest_length(m->axis[D], g[D]), terms = terms_of(output_factor, count[D], taps);
    i64 products = q->t->blocking.product_point * g[H]->points * g[W]->points;
    for (i64 p = 0; p < count[D]; p++) {
        row_terms(output_factor, count[D], taps, p, terms, columns, q->factors + q->factored);
        q->factored += terms;
        for (i64 term = 0; term < terms; term++)
            q->scatter[q->scattered++] = columns[term] * products;
    }
    i64 h = scheme_of(count[H], longest_length(m->axis[H], g[H])), v = longest_length(m->axis[W], g[W]);
    row[GroupWords_kind] = ADDRESS(C3D_SCATTER[q->c->m->isa][((terms - 1) * SCHEMES + h) * SCHEMES + scheme_of(count[W], v)]);
    row[GroupWords_piece] = first;
    row[GroupWords_pieces] = q->piece - first;
    row[GroupWords_point] = begin;
    row[GroupWords_points] = q->point - begin;
    row[GroupWords_depth_out] = count[D];
    row[GroupWords_scatter] = scatter;
    row[GroupWords_factors] = factors;
    row[GroupWords_summed] = q->piece - first == 1 ? SUMMED_ALONE : SUMMED_OF_PIECES;
}

/* Fills the words of Winograd's method, and says how many numbers a group's weights are. */
static i64 put_winograd(run *r, const sweep_case *c, const tiling *t, const room *q, i64 *words) {
    const method *m = c->by;
    i64 all_pieces = 1, sides = 0, corners = 1, groups = groups_of(m), widest = LONGEST + 1;
    for (int axis = 0; axis < 3; axis++) {
        i64 own = 0;
        for (i64 n = 0; n < m->axis[axis]->groups; n++)
            own += m->axis[axis]->group[n].pieces;
        all_pieces *= own;
        sides += m->axis[axis]->outputs > 1 ? widest * (axis == D ? 2 : 1) : 1;
        corners *= m->axis[axis]->outputs > 1 ? widest : 1;
    }
    transform_tables tables = {.c = c, .t = t};
    tables.groups = take(r, groups * GroupWords_words * sizeof(i64));
    tables.pieces = take(r, all_pieces * PieceWords_words * sizeof(i64));
    tables.points = take(r, points_of(m) * PointWords_words * sizeof(i64));
    tables.gather = take(r, all_pieces * (sides + corners) * sizeof(i64));
    tables.scatter = take(r, groups * 12 * sizeof(i64));
    tables.factors = take(r, (all_pieces * 2 * widest + groups * 6) * sizeof(number));
    for (i64 d = 0; d < m->axis[D]->groups; d++)
        for (i64 h = 0; h < m->axis[H]->groups; h++)
            for (i64 w = 0; w < m->axis[W]->groups; w++)
                add_group(&tables, (volume_group){&m->axis[D]->group[d], &m->axis[H]->group[h], &m->axis[W]->group[w]});
    put_room(words + WinogradWords_largest, &q[0]);
    put_room(words + WinogradWords_inputs, &q[1]);
    put_room(words + WinogradWords_products, &q[2]);
    words[WinogradWords_group_count] = groups;
    words[WinogradWords_groups] = ADDRESS(tables.groups);
    words[WinogradWords_pieces] = ADDRESS(tables.pieces);
    words[WinogradWords_points] = ADDRESS(tables.points);
    words[WinogradWords_factors] = ADDRESS(tables.factors);
    words[WinogradWords_gather] = ADDRESS(tables.gather);
    words[WinogradWords_scatter] = ADDRESS(tables.scatter);
    words[WinogradWords_chunk] = t->blocking.vectors;
    words[WinogradWords_chunk_positions] = t->blocking.positions;
    words[WinogradWords_chunk_blocks] = t->blocking.blocks;
    words[WinogradWords_product_point] = t->blocking.product_point;
    words[WinogradWords_depth_step] = m->walks[D].pace * t->slab.height * t->slab.pitch;
    return tables.weight;
}
