/* The convolution's weights in the order the kernels read them: for each group and phase, blocks of [step][row]; for
   Winograd's method transformed, for each group, outputs made together and point. Follows cpu/runtime/packing.py of
   convt3d. Threads take some channels of a group after each other. */

/* NaN where one is NaN. */
static double larger(double a, double b) { return a > b || isnan(a) ? a : b; }

enum { PACKED_TOGETHER = 16, PACKED_BY_ALL = 1 << 16 };

typedef struct {
    const sweep_case *c;
    int slot; /* of the weights */
    int pairs;
    number *packed;
    i64 rows, numbers; /* of a block, and of a group's weights */
    double *room;      /* of all threads */
    i64 room_each;
    double *largest;   /* magnitude that each thread saw; NaN or infinity, if there is one */
    _Atomic i64 taken;
    i64 items;
} packing;

/* Strides of the weights along inputs and outputs, and where a group begins. */
typedef struct {
    i64 s[5], along_in, along_out, group;
} weight_strides;

static weight_strides strides_of_weights(const packing *q) {
    const sweep_case *c = q->c;
    int forward = c->by->walks[D].axis.forward;
    weight_strides w;
    strides_of(q->c->r->operand[q->slot], w.s);
    w.along_in = forward ? w.s[1] : w.s[0];
    w.along_out = forward ? w.s[0] : w.s[1];
    w.group = forward ? c->out_channels / c->groups * w.along_out : c->in_channels / c->groups * w.along_in;
    return w;
}

/* Two channels of bfloat16 numbers in one; a channel without a partner gets a zero. */
static number pair_of(const packing *q, i64 at, i64 along_in, i64 pair, double *largest) {
    uint32_t bits = 0;
    for (i64 n = 0; n < 2 && 2 * pair + n < q->c->in_channels / q->c->groups; n++) {
        i64 from = at + (2 * pair + n) * along_in;
        *largest = larger(fabs(number_at(q->c->r, q->slot, from)), *largest);
        bits |= (uint32_t)((const uint16_t *)q->c->r->operand[q->slot]->data)[from] << 16 * n;
    }
    number found = 0;
    memcpy(&found, &bits, sizeof bits);
    return found;
}

static double pack_directly(const packing *q, i64 group, i64 low, i64 high) {
    const sweep_case *c = q->c;
    const walk *w = c->by->walks;
    const weight_strides s = strides_of_weights(q);
    i64 in_group = c->in_group, per_out = c->out_channels / c->groups, start = group * q->numbers;
    double largest = 0.0;
    for (i64 a = 0; a < w[D].phases; a++)
        for (i64 b = 0; b < w[H].phases; b++)
            for (i64 g = 0; g < w[W].phases; g++) {
                i64 taps = taps_of(&w[D], a) * taps_of(&w[H], b) * taps_of(&w[W], g), steps = taps * in_group;
                for (i64 first = 0; first < per_out; first += q->rows) {
                    i64 rows = least(q->rows, per_out - first), step_number = 0;
                    for (i64 d = w[D].first[a]; d < w[D].first[a + 1]; d++)
                        for (i64 h = w[H].first[b]; h < w[H].first[b + 1]; h++)
                            for (i64 v = w[W].first[g]; v < w[W].first[g + 1]; v++, step_number += in_group) {
                                i64 tap = group * s.group + w[D].taps[d].tap * s.s[2] + w[H].taps[h].tap * s.s[3];
                                tap += w[W].taps[v].tap * s.s[4];
                                number *to = q->packed + start + first * steps + (step_number + low) * rows;
                                for (i64 channel = low; channel < high; channel++)
                                    for (i64 row = 0; row < rows; row++) {
                                        i64 at = tap + (first + row) * s.along_out;
                                        if (q->pairs) {
                                            *to++ = pair_of(q, at, s.along_in, channel, &largest);
                                            continue;
                                        }
                                        double one = number_at(c->r, q->slot, at + channel * s.along_in);
                                        largest = larger(fabs(one), largest);
                                        *to++ = (number)one;
                                    }
                            }
                }
                start += steps * per_out;
            }
    return largest;
}

/* --- Winograd's method -------------------------------------------------------------------------------------------- */

/* Taps of a group of outputs along an axis, and the products made of them. */
static i64 taps_in(const together_of *g) {
    i64 found = 0;
    for (i64 piece = 0; piece < g->pieces; piece++)
        found += g->length[piece];
    return found;
}

static i64 products_in(const axis_method *a, const together_of *g) {
    i64 found = 0;
    for (i64 piece = 0; piece < g->pieces; piece++)
        found += points_for(a->outputs, g->length[piece]);
    return found;
}

/* (before, taps, behind) -> (before, products, behind), of C3D_MOST_ROWS rows each; products by points, then pieces. */
static void transform_taps(const axis_method *a, const together_of *g, i64 before, i64 behind, const double *from,
                           double *to) {
    i64 taps = taps_in(g), products = products_in(a, g), number_of_product = 0;
    for (i64 point = 0; point < g->points; point++)
        for (i64 piece = 0, start = 0; piece < g->pieces; start += g->length[piece++]) {
            if (!has_point(g, a->outputs, piece, point))
                continue;
            i64 length = g->length[piece], own = point == g->points - 1 ? points_for(a->outputs, length) - 1 : point;
            for (i64 outer = 0; outer < before; outer++)
                for (i64 inner = 0; inner < behind; inner++) {
                    double *sum = to + ((outer * products + number_of_product) * behind + inner) * C3D_MOST_ROWS;
                    for (int row = 0; row < C3D_MOST_ROWS; row++)
                        sum[row] = -0.0; /* which changes nothing it is added to */
                    for (i64 tap = 0; tap < length; tap++) {
                        double factor = weight_factor(a->outputs, length, own, tap);
                        const double *one = from + ((outer * taps + start + tap) * behind + inner) * C3D_MOST_ROWS;
                        if (factor != 0.0)
                            for (int row = 0; row < C3D_MOST_ROWS; row++)
                                sum[row] += factor * one[row];
                    }
                }
            number_of_product++;
        }
}

/* Numbers of a thread's room: twice the products of a group of outputs, of so many rows. */
static i64 transform_room(const method *m) {
    i64 total = 2 * C3D_MOST_ROWS;
    for (int axis = 0; axis < 3; axis++) {
        i64 longest_group = 0;
        for (i64 n = 0; n < m->axis[axis]->groups; n++)
            longest_group = most(longest_group, products_in(m->axis[axis], &m->axis[axis]->group[n]));
        total *= longest_group;
    }
    return total;
}

/* Puts the products of one channel and block of rows in their places. */
static void put_products(const packing *q, volume_group g, const double *from, i64 start, i64 channel, i64 first,
                         i64 rows) {
    const method *m = q->c->by;
    i64 in_group = q->c->in_group, per_out = q->c->out_channels / q->c->groups;
    i64 outputs[3] = {m->axis[D]->outputs, m->axis[H]->outputs, m->axis[W]->outputs}, count[3];
    i64 width = products_in(m->axis[W], g[W]), plane = width * products_in(m->axis[H], g[H]);
    for (i64 i = 0, before_d = 0; i < g[D]->points; before_d += count[D], i++) {
        count[D] = pieces_at(g[D], outputs[D], i);
        for (i64 j = 0, before_h = 0; j < g[H]->points; before_h += count[H], j++) {
            count[H] = pieces_at(g[H], outputs[H], j);
            for (i64 n = 0, before_w = 0; n < g[W]->points; before_w += count[W], n++) {
                count[W] = pieces_at(g[W], outputs[W], n);
                i64 steps = count[D] * count[H] * count[W] * in_group;
                number *to = q->packed + start + first * steps;
                for (i64 d = 0; d < count[D]; d++)
                    for (i64 h = 0; h < count[H]; h++)
                        for (i64 w = 0; w < count[W]; w++) {
                            i64 piece = (d * count[H] + h) * count[W] + w;
                            i64 place = (before_d + d) * plane + (before_h + h) * width + before_w + w;
                            for (i64 row = 0; row < rows; row++)
                                to[(piece * in_group + channel) * rows + row] =
                                    (number)from[place * C3D_MOST_ROWS + row];
                        }
                start += steps * per_out;
            }
        }
    }
}

static double pack_transformed(const packing *q, i64 group, i64 low, i64 high, double *room_of_thread) {
    const sweep_case *c = q->c;
    const method *m = c->by;
    const weight_strides s = strides_of_weights(q);
    i64 in_group = c->in_group, per_out = c->out_channels / c->groups, start = group * q->numbers;
    double *one = room_of_thread, *other = room_of_thread + q->room_each / 2, largest = 0.0;
    for (i64 a = 0; a < m->axis[D]->groups; a++)
        for (i64 b = 0; b < m->axis[H]->groups; b++)
            for (i64 e = 0; e < m->axis[W]->groups; e++) {
                volume_group g = {&m->axis[D]->group[a], &m->axis[H]->group[b], &m->axis[W]->group[e]};
                i64 n[3] = {taps_in(g[D]), taps_in(g[H]), taps_in(g[W])}, all = 1;
                const i64 *tap[3];
                for (int axis = 0; axis < 3; axis++) {
                    tap[axis] = m->axis[axis]->taps + g[axis]->tap[0];
                    all *= products_in(m->axis[axis], g[axis]);
                }
                for (i64 first = 0; first < per_out; first += q->rows)
                    for (i64 channel = low; channel < high; channel++) {
                        i64 rows = least(q->rows, per_out - first), slot = 0;
                        i64 from = group * s.group + channel * s.along_in + first * s.along_out;
                        for (i64 d = 0; d < n[D]; d++)
                            for (i64 h = 0; h < n[H]; h++)
                                for (i64 w = 0; w < n[W]; w++, slot++) {
                                    i64 at = from + tap[D][d] * s.s[2] + tap[H][h] * s.s[3] + tap[W][w] * s.s[4];
                                    double *to = one + slot * C3D_MOST_ROWS;
                                    for (i64 row = 0; row < C3D_MOST_ROWS; row++) {
                                        to[row] = row < rows ? number_at(c->r, q->slot, at + row * s.along_out) : 0.0;
                                        largest = larger(fabs(to[row]), largest);
                                    }
                                }
                        transform_taps(m->axis[D], g[D], 1, n[H] * n[W], one, other);
                        i64 depth = products_in(m->axis[D], g[D]);
                        transform_taps(m->axis[H], g[H], depth, n[W], other, one);
                        transform_taps(m->axis[W], g[W], depth * products_in(m->axis[H], g[H]), 1, one, other);
                        put_products(q, g, other, start, channel, first, rows);
                    }
                start += all * in_group * per_out;
            }
    return largest;
}

/* --- all of it ---------------------------------------------------------------------------------------------------- */

static void pack_some(i64 *table, i64 worker) {
    packing *q = (packing *)(void *)table;
    i64 in_group = q->c->in_group, each = ceil_div(in_group, PACKED_TOGETHER), item;
    while ((item = q->taken++) < q->items) {
        i64 low = item % each * PACKED_TOGETHER, high = least(low + PACKED_TOGETHER, in_group);
        double seen = q->c->by->direct ? pack_directly(q, item / each, low, high)
                                       : pack_transformed(q, item / each, low, high, q->room + worker * q->room_each);
        q->largest[worker] = larger(seen, q->largest[worker]);
    }
}

/* Numbers that the weights become. */
static i64 packed_numbers(const sweep_case *c) {
    i64 taps = c->by->direct ? c->kernel[D] * c->kernel[H] * c->kernel[W] : products_of(c->by);
    return taps * c->in_group * c->out_channels;
}

/* The largest magnitude of a weight, NaN if there is one. */
static double pack_weights(const sweep_case *c, int slot, number *packed, int pairs) {
    run *r = c->r;
    i64 all = packed_numbers(c), items = c->groups * ceil_div(c->in_group, PACKED_TOGETHER);
    i64 threads = all >= PACKED_BY_ALL ? least(r->threads, items) : 1;
    packing *q = take(r, sizeof *q);
    *q = (packing){.c = c, .slot = slot, .packed = packed, .pairs = pairs, .rows = C3D_ROWS[c->m->isa], .items = items};
    q->numbers = all / c->groups;
    q->room_each = c->by->direct ? 0 : transform_room(c->by);
    q->room = take_large(r, threads * q->room_each * sizeof *q->room);
    q->largest = take(r, threads * sizeof *q->largest);
    memset(q->largest, 0, threads * sizeof *q->largest);
    if (!r->counting)
        on_threads(pack_some, (i64 *)(void *)q, threads);
    double largest = 0.0;
    for (i64 n = 0; n < threads; n++)
        largest = larger(q->largest[n], largest);
    return largest;
}

/* Neither so large that a transform might overflow, nor so small that halves would be rounded. */
static int transformable(double largest) {
    double huge = ldexp(1.0, sizeof(number) == 8 ? 480 : 50);
    return largest == 0.0 || (largest >= 1.0 / (huge * huge) && largest < huge);
}
