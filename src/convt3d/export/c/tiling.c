/* How large tiles are, and the memory of one: the cheapest by a model of cycles. Follows cpu/plan/tiles.py,
   tile_cost.py, slab.py, rooms.py and registers.py of convt3d, so that the tiles, and with them the bits of statistics,
   are the same. */

typedef struct {
    i64 lanes, registers, l1, l2, l3, cores; /* `lanes` of numbers in a vector */
    int isa;
} machine;

typedef struct {
    i64 offset, pitch;
} room;

typedef struct {
    i64 copies, copy, depth, height, turns, planes, pitch, channel, plane, phase, out_channel, row;
    int merged;
} slab;

/* What the tilings of a sweep share. */
typedef struct {
    run *r;
    const form *f;
    const sweep *s;
    const machine *m;
    const i64 (*values)[5]; /* shapes of the pipeline's values */
    const walk *walks;      /* of the convolution */
    i64 in_channels, out_channels, groups, kernel[3];
    axis_step geometry[3][C3D_GEOMETRIC];
    int geometric, conv; /* steps; which of them is the convolution, or -1 */
} sweep_case;

typedef struct {
    i64 tile[3];
    axis_spans axes[3];
    room rooms[C3D_ROOMS];
    slab slab;
    int in_parts;
    i64 part_groups, part_room; /* groups, or channels of one, that go together */
    i64 scratch, passing, moved; /* bytes */
} tiling;

/* --- rooms -------------------------------------------------------------------------------------------------------- */

typedef struct {
    const tiling *t;
    i64 lanes, beyond, channels, total, chunk, held; /* `held`: pitches of what a part of the channels goes through */
    int step;
} rooms;

static i64 longest(const tiling *t, int axis, int step, int written) {
    const bound *b = &t->axes[axis].longest[step];
    return written ? b->write : b->read;
}

static i64 pitch_of(i64 extent, i64 lanes) {
    i64 pitch = round_up(extent, lanes);
    while (pitch * (i64)sizeof(number) % 1024 == 0)
        pitch += lanes;
    return pitch;
}

static i64 rows_together(i64 width) { return most(1, 2048 / most(1, width)); }

static room add_room(rooms *q, i64 channels, i64 pitch, int again) {
    room found = {q->total, pitch};
    i64 size = round_up(channels * pitch + 4 * q->lanes, 64);
    q->held += channels == q->channels ? pitch : 0;
    q->total += size;
    q->chunk += again ? size : 0;
    return found;
}

static room add_box(rooms *q, int step, int written, i64 slack) {
    i64 extent = 1;
    for (int axis = 0; axis < 3; axis++)
        extent *= longest(q->t, axis, step, written);
    return add_room(q, q->channels, pitch_of(extent + slack, q->lanes), 0);
}

/* For a box of the value as it stands. */
static room add_value(rooms *q, i64 slack) {
    return q->step ? add_box(q, q->step - 1, 1, slack) : add_box(q, 0, 0, slack);
}

static slab slab_of(const sweep_case *c, const tiling *t, const rooms *q, int copies) {
    const walk *w = c->walks;
    i64 position[3], extent[3], lanes = q->lanes;
    for (int axis = 0; axis < 3; axis++) {
        position[axis] = t->axes[axis].longest[c->conv].positions;
        extent[axis] = reach(&w[axis], position[axis]);
    }
    slab s = {0};
    s.planes = least(w[D].pace, w[D].high - w[D].low + 1);
    s.turns = least(w[H].pace, w[H].high - w[H].low + 1);
    s.depth = extent[D];
    s.height = ceil_div(extent[H], w[H].pace) * s.turns;
    s.row = s.pitch = extent[W];
    if (copies)
        s.pitch = position[W];
    else if (w[W].pace > 1)
        s.pitch = ceil_div(s.row, w[W].pace);
    else if (t->axes[W].tiles == 1 && s.planes == w[D].pace) {
        span found[C3D_GEOMETRIC];
        spans_of(&t->axes[W], 0, found);
        const i64 *at = found[c->conv].position;
        i64 shared = most(0, least(-(at[0] + w[W].low), at[1] + w[W].high - w[W].axis.size));
        s.pitch = most(s.pitch - shared, position[W]);
    }
    s.merged = s.depth == position[D] && s.height == position[H] && w[D].low >= 0;
    s.plane = s.merged ? position[H] * s.pitch : round_up(position[H] * s.pitch, lanes);
    s.phase = round_up(position[D] * s.plane, lanes);
    s.channel = pitch_of((s.depth * s.height + 1) * s.pitch + lanes, lanes);
    s.copies = copies ? w[W].high - w[W].low + 1 : w[W].pace;
    s.copy = q->channels * s.channel;
    s.out_channel = pitch_of(w[D].kept * w[H].kept * w[W].kept * s.phase, lanes);
    return s;
}

/* --- registers, as convt3d would take them where it knows the number of channels ---------------------------------- */

typedef struct {
    i64 rows, rest, columns;
} register_tile;

static i64 tile_cycles(const register_tile *t, i64 channels, i64 columns) {
    i64 full = channels / t->rows;
    i64 cost = full * (most(t->rows * columns, t->rows + 3 * columns) + 3);
    return cost + (t->rest ? most(t->rest * columns, t->rest + 3 * columns) + 3 : 0);
}

static register_tile registers_for(i64 channels, i64 registers) {
    register_tile best = {0};
    double cost = 0;
    for (i64 columns = 1; columns < 9; columns++) {
        i64 limit = (registers - 1 - columns) / columns;
        if (limit < 1)
            break;
        i64 rows = ceil_div(channels, ceil_div(channels, limit));
        register_tile t = {rows, channels % rows, columns};
        double own = (double)tile_cycles(&t, channels, columns) / (double)columns;
        if (!best.rows || own < cost)
            best = t, cost = own;
    }
    return best;
}

/* --- one tiling --------------------------------------------------------------------------------------------------- */

static tiling tiling_of(const sweep_case *c, i64 d, i64 h, i64 w, int copies) {
    tiling t = {.tile = {d, h, w}};
    i64 item = sizeof(number), vector = c->m->lanes;
    for (int axis = 0; axis < 3; axis++)
        t.axes[axis] = spans_along(c->geometry[axis], c->geometric, c->values[c->s->result][2 + axis], t.tile[axis]);
    rooms q = {&t, 2 * vector, vector, c->values[c->s->shape][1], 0, 0, 0, 0};
    room *at = t.rooms;
    for (int n = 0; n < c->s->steps; n++) {
        const step *p = &c->s->step[n];
        switch (p->kind) {
        case STEP_LOAD:
        case STEP_PADDED:
            *at++ = add_box(&q, 0, 0, q.beyond);
            break;
        case STEP_CONV:
            t.slab = slab_of(c, &t, &q, copies);
            *at++ = add_room(&q, q.channels * t.slab.copies, t.slab.channel, 0);
            if (p->paced) {
                i64 pace = p->paced - 1, length = t.slab.row + (pace + 1) * q.lanes;
                if (!pace)
                    length = (t.slab.pitch - 1) * c->walks[W].pace + t.slab.copies;
                *at++ = add_room(&q, vector, round_up(length, q.lanes) + q.lanes, 0);
            }
            q.channels = c->out_channels;
            q.step++;
            q.held = 0;
            *at++ = add_room(&q, q.channels, t.slab.out_channel, 0);
            break;
        case STEP_INTERLEAVE:
            if (p->array == NOTHING)
                *at++ = add_value(&q, 0);
            else {
                int last = most(q.step - 1, 0), written = q.step > 0;
                i64 height = longest(&t, H, last, written), width = longest(&t, W, last, written), held = q.held;
                i64 rows = least(height, rows_together(width));
                *at++ = add_room(&q, most(q.channels, rows), round_up(width, q.lanes), 1);
                q.held = held;
            }
            break;
        case STEP_CHAIN:
            for (int m = 0; m < p->links; m++)
                if (p->link[m].words == LINK_TENSOR)
                    *at++ = add_value(&q, q.beyond);
                else if (p->link[m].words == LINK_KEEP)
                    *at++ = add_room(&q, q.channels, q.lanes, 0);
            for (int m = 0; m < p->links; m++)
                if (p->link[m].collapses)
                    q.channels = 1;
            break;
        case STEP_POOL:
            *at++ = add_box(&q, q.step, 1, 0);
            *at++ = add_room(&q, 1, round_up(longest(&t, W, q.step, 0), q.lanes) + q.lanes, 0);
            q.step++;
            break;
        case STEP_PHASE_POOL:
            q.step++;
            *at++ = add_room(&q, q.channels, pitch_of(t.slab.phase, q.lanes), 0);
            break;
        default:
            break;
        }
    }
    t.scratch = q.total * item;
    t.moved = t.passing = (q.total - q.chunk) * item;
    if (c->conv >= 0 && c->s->in_parts) {
        i64 per_out = c->out_channels / c->groups, fitting = c->m->l2 / 4 / (q.held * item);
        int alone = c->groups > 1 && 2 * per_out * q.held * item > c->m->l1;
        register_tile own = registers_for(per_out, c->m->registers);
        t.in_parts = 1;
        t.part_groups = alone ? 1 : most(1, least(c->groups, fitting / per_out));
        t.part_room = alone || fitting >= per_out ? per_out : most(1, fitting / own.rows) * own.rows;
        t.passing -= (q.channels - t.part_groups * least(per_out, t.part_room)) * q.held * item;
    }
    return t;
}

static double tiles_of(const tiling *t) {
    return (double)t->axes[D].tiles * (double)t->axes[H].tiles * (double)t->axes[W].tiles;
}

/* --- cycles ------------------------------------------------------------------------------------------------------- */

static double direct_cycles(const sweep_case *c, const tiling *t) {
    i64 position[3], per_out = c->out_channels / c->groups;
    for (int axis = 0; axis < 3; axis++)
        position[axis] = t->axes[axis].longest[c->conv].positions;
    i64 length = (position[H] - 1) * t->slab.pitch + position[W], planes = position[D];
    i64 vectors = ceil_div(length, c->m->lanes);
    if (t->slab.merged) {
        planes = 1;
        vectors = ceil_div((position[D] - 1) * t->slab.plane + length, c->m->lanes);
    }
    register_tile own = registers_for(per_out, c->m->registers);
    const walk *depth = &c->walks[D];
    double within = (double)multiplications(&depth->axis) / (double)(depth->axis.kernel * depth->positions);
    double taps = (double)(c->kernel[D] * c->kernel[H] * c->kernel[W] * c->in_channels / c->groups) * within;
    i64 phases = t->slab.out_channel / t->slab.phase, blocks = per_out / own.rows + (own.rest != 0);
    double cycles[2];
    i64 columns[2] = {own.columns, vectors % own.columns};
    for (int n = 0; n < 2; n++) {
        i64 ends = blocks * 30 + 2 * per_out * columns[n];
        cycles[n] = (double)tile_cycles(&own, per_out, columns[n]) * taps + (double)(phases * ends);
    }
    double each = (double)(vectors / own.columns) * cycles[0] + (columns[1] ? cycles[1] : 0.0);
    double weights = (double)c->out_channels * taps * (double)sizeof(number); /* bytes, brought for each walk */
    double fetched = weights > (double)c->m->l2 ? weights / 2.3 : 0.0, products = (double)(c->groups * planes) * each;
    return products > fetched ? products : fetched;
}

static i64 pieces(const tiling *t, i64 channels, int step, int written) {
    if (t->axes[W].tiles != 1)
        return channels * longest(t, D, step, written) * longest(t, H, step, written);
    return channels * (t->axes[H].tiles == 1 ? 1 : longest(t, D, step, written));
}

static double cycles_of(const sweep_case *c, const tiling *t) {
    i64 l2 = c->m->l2, slow = t->passing <= l2 ? 1 : t->passing <= 2 * l2 ? 2 : 4;
    double moved = (double)(6 * slow * t->moved) / (double)sizeof(number) / (double)c->m->lanes;
    i64 last = most(c->geometric - 1, 0);
    i64 outputs = least(c->out_channels, c->values[c->s->result][1]);
    i64 runs = pieces(t, c->values[c->s->shape][1], 0, 0) + pieces(t, outputs, last, 1);
    moved += (double)(400 * runs);
    double work = 300 + moved + (c->conv >= 0 ? direct_cycles(c, t) : 0.0);
    i64 tiles = (i64)tiles_of(t), shares = least(c->m->cores, 8);
    double balance = (double)(ceil_div(tiles, shares) * shares) / (double)tiles;
    int alone = tiles < shares && work * (double)tiles > 100000.0; /* some threads would have nothing to do */
    return work * (double)tiles * (alone ? balance : 1 + (balance - 1) / 2);
}

/* --- the choice --------------------------------------------------------------------------------------------------- */

enum { MOST_TILES = 1024, MOST_SCRATCH = 64, MOST_PARTS = 130 };

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
    return t->passing <= bytes && (!t->in_parts || t->scratch <= 4 * c->m->l2);
}

typedef struct {
    i64 d[MOST_PARTS], h[MOST_PARTS], w;
    int depths, heights, copies;
} choices;

/* The largest tiles that take at most twice the scratch of the smallest. */
static tiling largest_tiles(const sweep_case *c, const choices *q) {
    tiling best = {0};
    i64 room = INT64_MAX;
    for (int pass = 0; pass < 2; pass++)
        for (int copies = 0; copies <= q->copies; copies++)
            for (int h = q->heights - 1; h >= 0; h--)
                for (int d = q->depths - 1; d >= 0; d--) {
                    tiling t = tiling_of(c, q->d[d], q->h[h], q->w, copies);
                    if (!pass)
                        room = least(room, 2 * t.scratch);
                    else if (t.scratch <= room && (!best.scratch || tiles_of(&t) < tiles_of(&best) ||
                                                   (tiles_of(&t) == tiles_of(&best) && t.scratch < best.scratch)))
                        best = t;
                }
    return best;
}

static i64 width_of(const sweep_case *c, i64 size, i64 period) {
    i64 widths[MOST_PARTS], chosen, scratch = 0, smallest = INT64_MAX;
    int count = parts_of(size, period, widths);
    chosen = widths[count - 1];
    for (int n = 0; n < count; n++) {
        tiling t = tiling_of(c, 1, 1, widths[n], 0);
        if (fits(c, &t, c->m->l2 / 2)) {
            chosen = widths[n];
            break;
        }
    }
    if (ceil_div(size, chosen) <= MOST_TILES)
        return chosen;
    double tiles = INFINITY;
    for (int n = 0; n < count; n++)
        smallest = least(smallest, tiling_of(c, 1, 1, widths[n], 0).scratch);
    for (int n = 0; n < count; n++) {
        tiling t = tiling_of(c, 1, 1, widths[n], 0);
        if (t.scratch > 2 * smallest)
            continue;
        if (tiles_of(&t) < tiles || (tiles_of(&t) == tiles && t.scratch < scratch))
            tiles = tiles_of(&t), scratch = t.scratch, chosen = widths[n];
    }
    return chosen;
}

static i64 gcd_of(i64 a, i64 b) { return b ? gcd_of(b, a % b) : a; }

static tiling choose_tiling(const sweep_case *c) {
    const i64 *result = c->values[c->s->result], *shape = c->values[c->s->shape];
    i64 period[3];
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
    choices q = {.w = result[4], .copies = c->conv >= 0};
    if (!c->s->whole_rows)
        q.w = width_of(c, result[4], period[W]);
    q.depths = parts_of(result[2], period[D], q.d);
    q.heights = parts_of(result[3], period[H], q.h);
    tiling best = {0};
    double cost = 0;
    i64 limit = 4 * c->m->l2;
    for (int pass = 0; pass < 2 && !best.scratch; pass++)
        for (int copies = 0; copies <= q.copies; copies++)
            for (int h = q.heights - 1; h >= 0; h--)
                for (int d = q.depths - 1; d >= 0; d--) {
                    double tiles = (double)ceil_div(result[2], q.d[d]) * (double)ceil_div(result[3], q.h[h]) *
                                   (double)ceil_div(result[4], q.w);
                    if (!pass && tiles > MOST_TILES)
                        continue;
                    tiling t = tiling_of(c, q.d[d], q.h[h], q.w, copies);
                    if (!fits(c, &t, limit))
                        break; /* deeper ones are larger still */
                    double own = cycles_of(c, &t);
                    if (!best.scratch || own < cost)
                        best = t, cost = own;
                }
    if (!best.scratch)
        for (int copies = 0; copies <= q.copies; copies++)
            for (int h = q.heights - 1; h >= 0; h--)
                for (int d = q.depths - 1; d >= 0; d--) {
                    tiling t = tiling_of(c, q.d[d], q.h[h], q.w, copies);
                    if (!best.scratch || t.scratch < best.scratch ||
                        (t.scratch == best.scratch && tiles_of(&t) < tiles_of(&best)))
                        best = t;
                }
    double elements = (double)shape[1] * (double)shape[2] * (double)shape[3] * (double)shape[4] +
                      (double)result[1] * (double)result[2] * (double)result[3] * (double)result[4];
    if (tiles_of(&best) * (double)best.scratch > MOST_SCRATCH * (double)sizeof(number) * elements)
        return largest_tiles(c, &q);
    return best;
}
