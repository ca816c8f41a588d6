/* Which tiles a sweep takes, and by which method it is convolved: the cheapest by the model of cycles. Follows
   cpu/plan/tile_cost.py and choice.py of convt3d. */

enum { MOST_TILES = 1024, MOST_SCRATCH = 64, MOST_PARTS = 130, TRIED = 3, SUMMED = C3D_SUMMED, SHORTEST_RUN = 64 << 10 };

static int falling(const void *one, const void *other) {
    i64 a = *(const i64 *)one, b = *(const i64 *)other;
    return (a < b) - (a > b);
}

/* `size`, and the sizes that cut it into 2, 3, 4, 6, 8, 12, ... nearly equal parts of whole periods, falling. */
static int parts_of(i64 size, i64 period, i64 *found) {
    int count = 0, kept = 0;
    for (i64 power = 1; power <= size; power *= 2)
        for (i64 part = power; part <= 3 * power; part += 2 * power)
            if (part <= size)
                found[count++] = least(size, round_up(ceil_div(size, part), period));
    qsort(found, count, sizeof *found, falling);
    for (int n = 0; n < count; n++)
        if (!n || found[n] != found[kept - 1])
            found[kept++] = found[n];
    return kept;
}

static int fits(const sweep_case *c, const tiling *t, i64 bytes) {
    return t->passing <= bytes && (!c->by->direct || !t->in_parts || t->scratch <= 4 * c->m->l2);
}

typedef struct {
    i64 d[MOST_PARTS], h[MOST_PARTS], w;
    int depths, heights, copies;
} choices;

static tiling tiling_at(const sweep_case *c, const choices *q, int d, int h, int copies, i64 shares) {
    return tiling_of(c, (const i64[]){q->d[d], q->h[h], q->w}, copies, shares);
}

/* The largest tiles that take at most twice the scratch of the smallest. */
static tiling largest_tiles(const sweep_case *c, const choices *q) {
    tiling best = {0};
    i64 room_for = INT64_MAX;
    for (int pass = 0; pass < 2; pass++)
        for (int copies = 0; copies <= q->copies; copies++)
            for (int h = q->heights - 1; h >= 0; h--)
                for (int d = q->depths - 1; d >= 0; d--) {
                    tiling t = tiling_at(c, q, d, h, copies, 1);
                    if (!pass)
                        room_for = least(room_for, 2 * t.scratch);
                    else if (t.scratch <= room_for && (!best.scratch || tiles_of(&t) < tiles_of(&best) ||
                                                       (tiles_of(&t) == tiles_of(&best) && t.scratch < best.scratch)))
                        best = t;
                }
    return best;
}

/* Rows are cut only where few are too much already, and it pays. */
static i64 width_of(const sweep_case *c, const i64 *size, const i64 *period) {
    i64 widths[MOST_PARTS], chosen, scratch = 0, smallest = INT64_MAX, tile[3] = {1, 1, 0};
    i64 room_for = c->by->direct ? c->m->l2 / 2 : 2 * c->m->l2;
    for (int axis = 0; axis < 2 && !c->by->direct; axis++)
        tile[axis] = least(size[axis], period[axis]);
    int count = parts_of(size[W], period[W], widths);
    chosen = widths[count - 1];
    for (int n = 0; n < count; n++) {
        tile[W] = widths[n];
        tiling t = tiling_of(c, tile, 0, 1);
        if (fits(c, &t, room_for)) {
            chosen = widths[n];
            break;
        }
    }
    if (ceil_div(size[W], chosen) <= MOST_TILES)
        return chosen;
    double tiles = INFINITY;
    for (int pass = 0; pass < 2; pass++)
        for (int n = 0; n < count; n++) {
            tile[W] = widths[n];
            tiling t = tiling_of(c, tile, 0, 1);
            if (!pass)
                smallest = least(smallest, t.scratch);
            else if (t.scratch <= 2 * smallest &&
                     (tiles_of(&t) < tiles || (tiles_of(&t) == tiles && t.scratch < scratch)))
                tiles = tiles_of(&t), scratch = t.scratch, chosen = widths[n];
        }
    return chosen;
}

/* Tiles that are multiples of these begin where a position of the convolution begins. */
static void periods_of(const sweep_case *c, i64 *period) {
    for (int axis = 0; axis < 3; axis++) {
        period[axis] = 1;
        for (int n = 0; n < c->geometric; n++) {
            const axis_step *s = &c->geometry[axis][n];
            if (s->conv)
                period[axis] = s->conv->kept == s->conv->period ? s->conv->period : 1;
            else
                period[axis] /= gcd_of(period[axis], s->pool.stride);
        }
    }
}

/* Items that lie in memory as one run, or as few as can be: channels, or planes or rows of one. */
static tiling tiling_in_order(const sweep_case *c) {
    const i64 *size = c->values[c->s->result];
    i64 item = sizeof(number), all = item * (size[1] * size[2] * size[3] * size[4]);
    i64 longest_run = most(SHORTEST_RUN, least(c->m->l2 / 2, all / (4 * c->m->cores))) / item;
    i64 w = least(size[4], longest_run), h = least(size[3], most(1, longest_run / w));
    i64 d = least(size[2], most(1, longest_run / (h * w))), channels = most(1, longest_run / (d * h * w));
    return tiling_of(c, (const i64[]){d, h, w}, 0, ceil_div(size[1], channels));
}

/* Of tiles so high, in tilings of at most so many, the depth that costs least replaces `best`, if it costs less. */
static void cheapest_depth(const sweep_case *c, const choices *q, int h, int copies, double most_tiles, tiling *best,
                           double *cost) {
    const i64 *result = c->values[c->s->result];
    i64 limit = 4 * c->m->l2, shares = least(c->m->cores, 8);
    for (int d = q->depths - 1; d >= 0; d--) {
        double tiles = (double)ceil_div(result[2], q->d[d]) * (double)ceil_div(result[3], q->h[h]) *
                       (double)ceil_div(result[4], q->w);
        if (tiles > most_tiles)
            continue;
        tiling t = tiling_at(c, q, d, h, copies, 1);
        if (!fits(c, &t, limit))
            break; /* deeper ones are larger still */
        double own = cycles_of(c, &t);
        if (!best->scratch || own < *cost)
            *best = t, *cost = own;
        if (!c->shared || items_of(&t) >= (double)shares || 2 * t.passing > c->m->l2)
            continue;
        t = tiling_at(c, q, d, h, copies, shares);
        own = cycles_of(c, &t);
        if (own < *cost)
            *best = t, *cost = own;
    }
}

static tiling choose_tiling(const sweep_case *c) {
    if (c->s->in_order)
        return tiling_in_order(c);
    const i64 *result = c->values[c->s->result], *shape = c->values[c->s->shape];
    i64 period[3];
    periods_of(c, period);
    choices q = {.w = result[4], .copies = c->conv >= 0};
    if (!c->s->whole_rows)
        q.w = width_of(c, result + 2, period);
    q.depths = parts_of(result[2], period[D], q.d);
    q.heights = parts_of(result[3], period[H], q.h);
    tiling best = {0};
    double cost = 0;
    const i64 widths[] = {q.w, result[4]};
    for (int pass = 0; pass < 2 && !best.scratch; pass++)
        for (int n = 0; n < (q.w < result[4] ? 2 : 1); n++) {
            q.w = widths[n];
            for (int copies = 0; copies <= q.copies; copies++)
                for (int h = q.heights - 1; h >= 0; h--)
                    cheapest_depth(c, &q, h, copies, pass ? INFINITY : MOST_TILES, &best, &cost);
            q.w = widths[0];
        }
    if (!best.scratch)
        for (int copies = 0; copies <= q.copies; copies++)
            for (int h = q.heights - 1; h >= 0; h--)
                for (int d = q.depths - 1; d >= 0; d--) {
                    tiling t = tiling_at(c, &q, d, h, copies, 1);
                    if (!best.scratch || t.scratch < best.scratch ||
                        (t.scratch == best.scratch && tiles_of(&t) < tiles_of(&best)))
                        best = t;
                }
    double elements = (double)shape[1] * (double)shape[2] * (double)shape[3] * (double)shape[4] +
                      (double)result[1] * (double)result[2] * (double)result[3] * (double)result[4];
    if (items_of(&best) * (double)best.scratch > MOST_SCRATCH * (double)sizeof(number) * elements)
        return largest_tiles(c, &q);
    return best;
}

/* --- methods ------------------------------------------------------------------------------------------------------ */

/* By any method; by direct summation; by that, without the products around the array. */
enum manner { ANY, DIRECTLY, MASKED };

/* What all sweeps of an execution share. */
typedef struct {
    run *r;
    const form *f;
    const machine *m;
    const i64 (*values)[5];
    const convolution *conv;
    const axis_method *plain[3];
    const method *direct;
    enum manner how;
} plan_case;

/* How a sweep is computed. */
typedef struct {
    const sweep *s;
    const method *by;
    const cutting *cut;
    i64 tile[3], shares, scratch;
    int copies, large; /* a slab of all taps and channels is too large */
    double cost;
} choice;

/* Input channels of a group as they are multiplied: one by one, or in pairs. */
static i64 in_group_of(const convolution *c, int pairs) { return ceil_div(c->in_channels / c->groups, pairs ? 2 : 1); }

static void make_case(sweep_case *c, const plan_case *p, const sweep *s, const method *by) {
    i64 per_out = p->conv->out_channels / p->conv->groups;
    *c = (sweep_case){.r = p->r, .f = p->f, .s = s, .m = p->m, .values = p->values, .by = by, .conv = -1};
    c->in_channels = p->conv->in_channels;
    c->out_channels = p->conv->out_channels;
    c->groups = p->conv->groups;
    c->in_group = in_group_of(p->conv, s->pairs);
    c->tile = registers_for(per_out, p->m->registers);
    for (int axis = 0; axis < 3; axis++) {
        c->kernel[axis] = p->conv->axes[axis].kernel;
        c->geometric = 0;
        for (int n = 0; n < s->steps; n++) {
            const step *t = &s->step[n];
            if (t->kind == STEP_CONV || t->kind == STEP_WINOGRAD) {
                c->conv = c->geometric;
                c->shared = t->kind == STEP_CONV && n == 0 && s->in_parts && t->array != NOTHING;
                c->geometry[axis][c->geometric++] = (axis_step){&by->walks[axis], {0}};
            } else if (t->kind == STEP_POOL || t->kind == STEP_PHASE_POOL)
                c->geometry[axis][c->geometric++] =
                    (axis_step){NULL, pool_of(p->r, &p->f->stage[t->stage], p->values[t->stage], axis)};
        }
    }
}

/* Whether each position meets the input at its own place, and no other: convt3d needs no slab for it. */
static int meets_one_input(const sweep_case *c) {
    int one = c->conv == 0 && c->s->step[0].kind == STEP_CONV && !c->s->by_rows && !c->s->pairs && !c->s->masks;
    for (int axis = 0; axis < 3; axis++) {
        const walk *w = &c->by->walks[axis];
        one &= w->low == 0 && w->high == 0 && w->positions <= w->axis.size && w->pace == 1;
    }
    return one;
}

static choice chosen_for(const plan_case *p, const sweep *s, const method *by, const cutting *cut) {
    sweep_case c;
    make_case(&c, p, s, by);
    c.cut = cut;
    c.pointwise = !cut && meets_one_input(&c);
    tiling t = choose_tiling(&c);
    int large = t.passing > p->m->l2 || t.axes[W].tiles > 1;
    return (choice){s,         by,       cut,      {t.tile[D], t.tile[H], t.tile[W]}, t.asked,
                    t.scratch, t.copies, large, cycles_of(&c, &t)};
}

/* Cycles of the convolution alone, in tiles like those of direct summation; infinity where chunks are too large. */
static double rough_cost(const plan_case *p, const sweep *s, const method *by, const choice *direct) {
    sweep_case c;
    i64 period[3], tile[3];
    make_case(&c, p, s, by);
    periods_of(&c, period);
    for (int axis = 0; axis < 3; axis++)
        tile[axis] = least(p->values[s->result][2 + axis], round_up(direct->tile[axis], period[axis]));
    tiling t = tiling_of(&c, tile, 0, 1);
    return t.scratch - t.moved > 8 * p->m->l2 ? INFINITY : steps_cycles(&c, &t) * tiles_of(&t);
}

/* The sweep whose code is for so many inputs of a position along the width. */
static const sweep *paced_sweep(const sweep *s, const method *by) {
    const sweep *exact = s->winograd[by->axis[W]->outputs > 1];
    return exact && exact->pace == by->walks[W].pace ? exact : s->winograd[2];
}

/* Whether rows are summed together: each channel has its own taps, and neighbouring rows meet the same inputs. */
static int sums_rows(const plan_case *p, const sweep *s) {
    const convolution *c = p->conv;
    const walk *w = &p->direct->walks[H];
    i64 longest_phase = 0, taps = c->axes[D].kernel * c->axes[H].kernel * c->axes[W].kernel;
    if (!s->rows || c->in_channels != c->groups || c->out_channels != c->groups || taps > SUMMED)
        return 0;
    for (i64 n = 0; n < w->phases; n++) {
        longest_phase = most(longest_phase, taps_of(w, n));
        for (i64 at = w->first[n] + 1; at < w->first[n + 1]; at++)
            if (w->taps[at - 1].shift - w->taps[at].shift != 1)
                return 0;
    }
    return longest_phase >= C3D_LOW && longest_phase <= C3D_HIGH;
}

/* Direct summation, in pieces where the slab of a whole tile would be too large and that costs less. */
static choice choose_direct(const plan_case *p, const sweep *s) {
    const sweep *own = p->how == MASKED && s->masked[0] ? s->masked[0] : s;
    const sweep *pieces = own == s ? s->pieces : s->masked[1];
    choice whole = chosen_for(p, own == s && sums_rows(p, s) ? s->rows : own, p->direct, NULL), best = whole;
    const cutting *ways[3];
    i64 room_for = 4 * p->m->l2, in_group = in_group_of(p->conv, own->pairs);
    int count = pieces && whole.large ? ways_to_cut(p->r, p->direct->walks, in_group, ways) : 0;
    for (int n = 0; n < count; n++) {
        choice one = chosen_for(p, pieces, p->direct, ways[n]);
        int small = one.scratch <= room_for, was_small = best.scratch <= room_for;
        if (small == was_small ? one.cost < best.cost : small)
            best = one;
    }
    return best;
}

static choice choose_method(const plan_case *p, const sweep *s) {
    const convolution *conv = p->conv;
    choice best = choose_direct(p, s), direct = best;
    if (p->how != ANY || !s->winograd[0] ||
        conv->in_channels / conv->groups * (conv->out_channels / conv->groups) < FEWEST_PAIRS ||
        inputs_per_output(&conv->axes[W]) > MOST_PACE)
        return best;
    const axis_method *axes[3][2];
    struct {
        double cost;
        const method *by;
    } tried[TRIED + 1];
    int count = 0, found = 0;
    for (int axis = 0; axis < 3; axis++) {
        axes[axis][0] = p->plain[axis];
        axes[axis][1] = axis_method_of(p->r, &conv->axes[axis], 2);
    }
    for (int n = 1; n < 8; n++) {
        const axis_method *d = axes[D][n >> 2], *h = axes[H][n >> 1 & 1], *w = axes[W][n & 1];
        if (!d || !h || !w)
            continue;
        method *by = take(p->r, sizeof *by);
        make_method(by, d, h, w);
        if (!is_small(by) || !paced_sweep(s, by))
            continue;
        double cost = rough_cost(p, paced_sweep(s, by), by, &direct);
        int at = count;
        for (; at > 0 && cost < tried[at - 1].cost; at--)
            tried[at] = tried[at - 1];
        tried[at].cost = cost;
        tried[at].by = by;
        count = (int)least(count + 1, TRIED);
    }
    for (int n = 0; n < count; n++)
        if (tried[n].cost < INFINITY) {
            choice one = chosen_for(p, paced_sweep(s, tried[n].by), tried[n].by, NULL);
            if (!found || one.cost < best.cost)
                best = one;
            found = 1;
        }
    return found && best.cost <= direct.cost ? best : direct;
}
