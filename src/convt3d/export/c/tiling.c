/* One tiling of a sweep: the spans of its tiles, and the memory of one. Follows cpu/plan/tiles.py, slab.py, rooms.py
   and registers.py of convt3d. */

typedef struct {
    i64 lanes, registers, l1, l2, l3, cores; /* `lanes` of numbers in a vector */
    int isa;
    int refused; /* CONVT3D_ISA asks for what is not there */
} machine;

typedef struct {
    i64 offset, pitch;
} room;

typedef struct {
    i64 copies, copy, depth, height, turns, planes, pitch, channel, plane, phase, out_channel, row;
    int merged;
} slab;

/* How Winograd's method walks a tile: vectors of positions at once, and blocks of output channels. */
typedef struct {
    i64 vectors, positions, blocks, inputs, product_point;
} blocking;

typedef struct {
    i64 rows, rest, columns;
} register_tile;

/* Output channels that are computed together: some groups, or some blocks of one. */
typedef struct {
    i64 groups, blocks, channels;
} channel_part;

/* What the tilings of a sweep share. */
typedef struct {
    run *r;
    const form *f;
    const sweep *s;
    const machine *m;
    const i64 (*values)[5]; /* shapes of the pipeline's values */
    const method *by;       /* of the convolution */
    register_tile tile;     /* as convt3d would take it to choose, our own to run */
    i64 in_channels, out_channels, groups, kernel[3];
    i64 in_group; /* input channels of a group, as they are multiplied */
    axis_step geometry[3][C3D_GEOMETRIC];
    int geometric, conv; /* steps; which of them is the convolution, or -1 */
    int shared;          /* threads may share its output channels */
    const cutting *cut;  /* in pieces; NULL: whole */
    int pointwise;       /* to choose: convt3d would read the array without a slab */
} sweep_case;

typedef struct {
    i64 tile[3];
    int copies;
    i64 asked; /* shares that were asked for */
    axis_spans axes[3];
    room rooms[C3D_ROOMS];
    slab slab;
    blocking blocking;
    channel_part share, part;
    i64 shares;
    int in_parts;
    i64 scratch, passing, moved, near; /* bytes */
} tiling;

/* --- rooms -------------------------------------------------------------------------------------------------------- */

typedef struct {
    const tiling *t;
    i64 lanes, beyond, channels, total, chunk, held; /* `held`: pitches of what a part of the channels goes through */
    int step;
    i64 piece; /* of a row, where a tile goes through its boxes in pieces; or 0 */
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

enum { MOST_SHUFFLED = 8 }; /* phases, or inputs of a position, that shuffles put together */

static i64 rows_together(i64 width) { return most(1, 2048 / most(1, width)); }

static room add_room(rooms *q, i64 channels, i64 pitch, int again) {
    room found = {q->total, pitch};
    i64 size = round_up(times(channels, pitch) + 4 * q->lanes, 64);
    q->held += channels == q->channels ? pitch : 0;
    q->total += size;
    q->chunk += again ? size : 0;
    return found;
}

static room add_box(rooms *q, int step, int written, i64 slack) {
    i64 extent = 1;
    for (int axis = 0; axis < 3; axis++)
        extent = times(extent, longest(q->t, axis, step, written));
    extent = q->piece ? q->piece : extent;
    return add_room(q, q->channels, pitch_of(extent + slack, q->lanes), 0);
}

/* For a box of the value as it stands. */
static room add_value(rooms *q, i64 slack) {
    return q->step ? add_box(q, q->step - 1, 1, slack) : add_box(q, 0, 0, slack);
}

/* Phases that have a place of their own. */
static i64 kept_phases(const walk *w) { return times(times(w[D].kept, w[H].kept), w[W].kept); }

static slab slab_of(const sweep_case *c, const tiling *t, const rooms *q, i64 channels) {
    int copies = t->copies;
    const walk *w = c->by->walks;
    i64 position[3], extent[3], shifts[3], lanes = q->lanes;
    for (int axis = 0; axis < 3; axis++) {
        position[axis] = t->axes[axis].longest[c->conv].positions;
        shifts[axis] = c->cut ? c->cut->longest[axis] : reach(&w[axis], 1);
        extent[axis] = w[axis].pace * (position[axis] - 1) + shifts[axis];
    }
    slab s = {0};
    s.planes = least(w[D].pace, shifts[D]);
    s.turns = least(w[H].pace, shifts[H]);
    s.depth = extent[D];
    s.height = ceil_div(extent[H], w[H].pace) * s.turns;
    s.row = s.pitch = extent[W];
    if (copies)
        s.pitch = position[W];
    else if (w[W].pace > 1)
        s.pitch = ceil_div(s.row, w[W].pace);
    else if (t->axes[W].tiles == 1 && s.planes == w[D].pace && !c->cut) {
        span found[C3D_GEOMETRIC];
        spans_of(&t->axes[W], 0, found);
        const i64 *at = found[c->conv].position;
        i64 shared = most(0, least(-(at[0] + w[W].low), at[1] + w[W].high - w[W].axis.size));
        s.pitch = most(s.pitch - shared, position[W]);
    }
    s.merged = s.depth == position[D] && s.height == position[H] && w[D].low >= 0 && !c->cut;
    s.plane = times(position[H], s.pitch);
    s.plane = s.merged ? s.plane : round_up(s.plane, lanes);
    s.phase = round_up(times(position[D], s.plane), lanes);
    s.channel = pitch_of(times(times(s.depth, s.height) + 1, s.pitch) + lanes, lanes);
    s.copies = copies ? shifts[W] : w[W].pace;
    s.copy = times(channels, s.channel);
    s.out_channel = pitch_of(times(kept_phases(w), s.phase), lanes);
    return s;
}

/* --- registers, as convt3d would take them where it knows the number of channels ---------------------------------- */

static i64 tile_cycles(const register_tile *t, i64 channels, i64 columns) {
    i64 full = channels / t->rows;
    i64 cost = full * (most(t->rows * columns, t->rows + 3 * columns) + 3);
    return cost + (t->rest ? most(t->rest * columns, t->rest + 3 * columns) + 3 : 0);
}

static i64 blocks_of(const register_tile *t, i64 channels) { return channels / t->rows + (t->rest != 0); }

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

/* --- chunks of Winograd's method ---------------------------------------------------------------------------------- */

/* Points an odd number of cache lines apart do not compete for the same sets. */
static i64 odd(i64 lines) { return lines | 1; }

/* Cache lines of the transformed inputs of the group that has most. */
static i64 most_inputs(const method *m, i64 in_group, i64 vectors) {
    const axis_method *const *a = m->axis;
    i64 found = 0;
    for (i64 x = 0; x < a[D]->kinds; x++)
        for (i64 y = 0; y < a[H]->kinds; y++)
            for (i64 z = 0; z < a[W]->kinds; z++) {
                const points_kind *d = &a[D]->kind[x], *h = &a[H]->kind[y], *w = &a[W]->kind[z];
                i64 total = 0;
                for (i64 i = 0; i < d->points; i++)
                    for (i64 j = 0; j < h->points; j++)
                        for (i64 n = 0; n < w->points; n++)
                            total += odd(d->pieces[i] * h->pieces[j] * w->pieces[n] * in_group * vectors);
                found = most(found, total);
            }
    return found;
}

/* As many vectors as the cache takes; then as many blocks of output channels. */
static blocking blocking_of(const sweep_case *c, const slab *s) {
    static const i64 turns[] = {8, 6, 4, 3, 2, 1};
    const register_tile *t = &c->tile;
    i64 per_out = c->out_channels / c->groups, in_group = c->in_group, lanes = c->m->lanes;
    i64 room_for = (i64)(0.7 * (double)c->m->l2) / (i64)sizeof(number), count = blocks_of(t, per_out);
    i64 in_phase = ceil_div(s->phase, lanes), blocks[] = {count, ceil_div(count, 2), 2, 1};
    blocking found = {0};
    for (int turn = 0; turn < 6; turn++) {
        i64 vectors = least(turns[turn] * t->columns, in_phase);
        i64 inputs = lanes * most_inputs(c->by, in_group, vectors);
        for (int n = 0; n < 4; n++) {
            i64 product_point = odd(least(blocks[n] * t->rows, per_out) * vectors) * lanes;
            found = (blocking){vectors, vectors * lanes, blocks[n], inputs, product_point};
            if (inputs + most_points_of(c->by) * product_point <= room_for)
                return found;
        }
    }
    return found; /* the smallest where none fits */
}

/* --- one tiling --------------------------------------------------------------------------------------------------- */

/* Groups never meet: a share has as many as fill a vector's worth of channels. Blocks of a group need all inputs. */
static void share_channels(const sweep_case *c, tiling *t) {
    i64 per_out = c->out_channels / c->groups, blocks = blocks_of(&c->tile, per_out);
    t->share = (channel_part){c->groups, blocks, c->out_channels};
    t->shares = 1;
    if (c->conv < 0) {
        i64 channels = c->values[c->s->shape][1];
        t->share.channels = ceil_div(channels, c->s->in_order ? t->asked : 1);
        t->shares = ceil_div(channels, t->share.channels);
    }
    if (!c->shared)
        return;
    if (c->groups > 1) {
        i64 together = least(c->groups, ceil_div(c->m->lanes, per_out));
        t->share = (channel_part){together, blocks, together * per_out};
        t->shares = ceil_div(c->groups, together);
        return;
    }
    i64 each = ceil_div(blocks, t->asked);
    t->share = (channel_part){1, each, least(per_out, each * c->tile.rows)};
    t->shares = ceil_div(blocks, each);
}

/* As many channels as the second-level cache has room for beside the input; `channel` is bytes of one, `inputs` of
   what a group of them meets. */
static channel_part part_for(const sweep_case *c, const channel_part *share, i64 channel, i64 inputs) {
    i64 per_out = c->out_channels / c->groups, room_for = c->m->l2 / 4 / channel;
    if (!c->by->direct)
        return (channel_part){share->channels / per_out, share->blocks, least(share->channels, most(1, room_for))};
    if (c->pointwise) {
        i64 groups = least(share->groups, most(1, room_for / per_out));
        return (channel_part){groups, share->blocks, least(groups * per_out, share->channels)};
    }
    if (share->groups > 1 && inputs + times(2 * per_out, channel) > c->m->l1)
        return (channel_part){1, share->blocks, least(per_out, share->channels)};
    if (room_for >= per_out) {
        i64 groups = least(share->groups, room_for / per_out);
        return (channel_part){groups, share->blocks, least(groups * per_out, share->channels)};
    }
    i64 blocks = least(share->blocks, most(1, room_for / c->tile.rows));
    return (channel_part){1, blocks, least(share->channels, blocks * c->tile.rows)};
}

/* Outputs of a phase at one position of the volume. */
static i64 together_at(const sweep_case *c) {
    return c->by->walks[D].together * c->by->walks[H].together * c->by->walks[W].together;
}

/* Of an elementwise sweep: voxels of a row that go through scratch memory together, with all their channels. */
static i64 piece_of(const sweep_case *c, i64 width) {
    i64 room_for = c->m->l2 / 4 / (c->values[c->s->shape][1] * (i64)sizeof(number));
    return c->s->in_order ? least(width, round_up(most(1, room_for), c->m->lanes)) : 0;
}

static tiling tiling_of(const sweep_case *c, const i64 *tile, int copies, i64 shares) {
    tiling t = {.tile = {tile[D], tile[H], tile[W]}, .copies = copies, .asked = shares};
    i64 item = sizeof(number), vector = c->m->lanes;
    for (int axis = 0; axis < 3; axis++)
        t.axes[axis] = spans_along(c->geometry[axis], c->geometric, c->values[c->s->result][2 + axis], t.tile[axis]);
    share_channels(c, &t);
    rooms q = {&t, 2 * vector, vector, c->values[c->s->shape][1], 0, 0, 0, 0, piece_of(c, tile[W])};
    room *at = t.rooms;
    for (int n = 0; n < c->s->steps; n++) {
        const step *p = &c->s->step[n];
        switch (p->kind) {
        case STEP_LOAD:
        case STEP_PADDED:
            *at++ = add_box(&q, 0, 0, q.beyond);
            break;
        case STEP_CONV:
        case STEP_WINOGRAD: {
            i64 channels = t.share.groups * c->in_group, pace = c->by->walks[W].pace;
            if (c->cut) /* of one group */
                channels = least(c->in_group, c->cut->channels);
            t.slab = slab_of(c, &t, &q, channels);
            *at++ = add_room(&q, times(channels, t.slab.copies), t.slab.channel, c->pointwise);
            if (c->pointwise) { /* panels of positions of all input channels of a group, twice */
                i64 panel = c->tile.columns * vector;
                i64 together = least(ceil_div(512, panel * item), c->m->l2 / 4 / (c->in_group * panel * item));
                add_room(&q, 2 * c->in_group, most(1, together) * panel, 1);
            }
            if (p->kind == STEP_WINOGRAD)
                t.blocking = blocking_of(c, &t.slab);
            if (p->paced) {
                i64 length = pace <= MOST_SHUFFLED ? t.slab.row + (pace + 1) * q.lanes
                                                   : (t.slab.pitch - 1) * pace + t.slab.copies;
                *at++ = add_room(&q, vector, round_up(length, q.lanes) + q.lanes, 0);
            }
            if (p->kind == STEP_WINOGRAD) {
                *at++ = add_room(&q, 1, q.lanes, 0);
                *at++ = add_room(&q, 1, t.blocking.inputs, 1);
                *at++ = add_room(&q, most_points_of(c->by), t.blocking.product_point, 1);
            }
            if (c->s->masks)
                *at++ = add_room(&q, t.slab.copies, t.slab.channel, 0);
            q.channels = t.share.channels;
            q.step++;
            q.held = 0;
            *at++ = add_room(&q, q.channels, t.slab.out_channel, 0);
            break;
        }
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
            *at++ = add_room(&q, q.channels, pitch_of(times(together_at(c), t.slab.phase), q.lanes), 0);
            break;
        default:
            break;
        }
    }
    t.scratch = q.total * item;
    t.moved = t.passing = (q.total - q.chunk) * item;
    if (c->conv >= 0 && c->s->in_parts) {
        i64 behind = c->by->direct ? q.held : q.held - t.slab.out_channel;
        t.in_parts = 1;
        i64 inputs = times(times(c->in_group, t.slab.copies), t.slab.channel) * item;
        t.part = part_for(c, &t.share, q.held * item, inputs);
        t.passing -= times(q.channels - t.part.channels, behind) * item;
        t.near = c->by->direct ? 0 : times(q.channels, behind) * item;
    }
    return t;
}

static double tiles_of(const tiling *t) {
    return (double)t->axes[D].tiles * (double)t->axes[H].tiles * (double)t->axes[W].tiles;
}

static double items_of(const tiling *t) { return tiles_of(t) * (double)t->shares; }
