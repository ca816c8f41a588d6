/* Cycles of a tile, roughly: what the register tile needs, the transforms of Winograd's method, and what is moved
   around them. Follows cpu/plan/conv_cost.py and tile_cost.py of convt3d, so that the choices, and with them bits, are
   the same. */

/* Runs of positions in a tile, and the vectors of one. */
static void vectors_in(const sweep_case *c, const tiling *t, i64 *runs, i64 *vectors) {
    i64 position[3];
    for (int axis = 0; axis < 3; axis++)
        position[axis] = t->axes[axis].longest[c->conv].positions;
    i64 length = (position[H] - 1) * t->slab.pitch + position[W];
    if (t->slab.merged)
        length += (position[D] - 1) * t->slab.plane;
    *runs = t->slab.merged ? 1 : position[D];
    *vectors = ceil_div(length, c->m->lanes);
}

/* To begin and to store, once for each block of output channels. */
static i64 ends_cost(const register_tile *t, i64 channels, i64 columns, i64 call) {
    return blocks_of(t, channels) * call + 2 * channels * columns;
}

/* To bring packed weights that the second-level cache cannot hold. */
static double fetched(const sweep_case *c, double weights) {
    double size = weights * (double)sizeof(number);
    return size > (double)c->m->l2 ? size / 2.3 : 0.0;
}

/* The share of a depth's taps that meet an input. */
static double within(const sweep_case *c) {
    const walk *depth = &c->by->walks[D];
    return (double)multiplications(&depth->axis) / (double)(depth->axis.kernel * depth->positions);
}

/* What pieces add: slabs that are filled again, and sums that begin again for each of their runs. */
static double pieces_cycles(const sweep_case *c, const tiling *t, i64 turns) {
    i64 per_out = c->out_channels / c->groups, in_group = c->in_group, boxes = boxes_of(c->cut);
    i64 blocks = ceil_div(in_group, c->cut->channels), runs = boxes;
    for (int axis = 0; axis < 3; axis++)
        runs *= c->by->walks[axis].phases;
    runs = blocks > 1 ? c->kernel[D] * c->kernel[H] * c->kernel[W] * blocks : runs;
    double ends = (double)ends_cost(&c->tile, per_out, c->tile.columns, 30);
    double again = (double)(6 * t->slab.channel) / (double)c->m->lanes + (double)(100 * t->slab.depth);
    return (double)(c->groups * turns) * (double)runs * ends +
           (double)(c->groups * in_group) * (double)(boxes * t->slab.copies) * again;
}

static double direct_cycles(const sweep_case *c, const tiling *t) {
    i64 per_out = c->out_channels / c->groups, planes, vectors, phases = t->slab.out_channel / t->slab.phase;
    const register_tile *own = &c->tile;
    vectors_in(c, t, &planes, &vectors);
    double taps = (double)(c->kernel[D] * c->kernel[H] * c->kernel[W] * c->in_group) * within(c);
    double cycles[2];
    i64 columns[2] = {own->columns, vectors % own->columns};
    for (int n = 0; n < 2; n++) {
        double steps = (double)(columns[n] ? tile_cycles(own, per_out, columns[n]) : 0);
        cycles[n] = steps * taps + (double)phases * (double)ends_cost(own, per_out, columns[n], 30);
    }
    double each = (double)(vectors / own->columns) * cycles[0] + (columns[1] ? cycles[1] : 0.0);
    double products = (double)(c->groups * planes) * each;
    if (c->cut)
        products += pieces_cycles(c, t, planes * (vectors / own->columns + (columns[1] != 0)));
    double weights = fetched(c, (double)(c->groups * per_out) * taps);
    return products > weights ? products : weights;
}

/* Where rows are summed together: a vector of the slab serves all taps along the height. */
static double rows_cycles(const sweep_case *c, const tiling *t) {
    i64 position[3];
    for (int axis = 0; axis < 3; axis++)
        position[axis] = t->axes[axis].longest[c->conv].positions;
    double taps = (double)(c->kernel[D] * c->kernel[H] * c->kernel[W]) * within(c);
    i64 vectors = c->groups * position[D] * position[H] * ceil_div(position[W], c->m->lanes);
    return (double)vectors * (0.8 * taps + (double)(8 * kept_phases(c->by->walks)));
}

/* Of products, and of the transforms around them. */
static double winograd_cycles(const sweep_case *c, const tiling *t) {
    i64 per_out = c->out_channels / c->groups, in_group = c->in_group, runs, in_run;
    const register_tile *own = &c->tile;
    const method *m = c->by;
    vectors_in(c, t, &runs, &in_run);
    i64 vectors = runs * in_run, chunks = ceil_div(vectors, t->blocking.vectors);
    double transforms = (double)(2 * vectors) * ((double)in_group * m->gather + (double)per_out * m->scatter);
    i64 beyond = most(0, t->scratch - t->moved - c->m->l2);
    transforms += (double)(2 * beyond) / 8 * (double)chunks * (double)groups_of(m);
    transforms += (double)(400 * chunks * groups_of(m));
    double products = 0.0;
    i64 columns[2] = {own->columns, vectors % own->columns}, times[2] = {vectors / own->columns, columns[1] ? 1 : 0};
    for (int n = 0; n < 2; n++) {
        i64 steps = columns[n] ? tile_cycles(own, per_out, columns[n]) : 0;
        i64 each = steps * in_group * products_of(m);
        products += (double)(times[n] * (each + ends_cost(own, per_out, columns[n], 60) * points_of(m)));
    }
    double weights = (double)chunks * fetched(c, (double)(c->groups * in_group * per_out * products_of(m)));
    products *= (double)c->groups;
    return (products > weights ? products : weights) + (double)c->groups * transforms;
}

static double steps_cycles(const sweep_case *c, const tiling *t) {
    if (c->conv < 0)
        return 0.0;
    if (!c->by->direct)
        return winograd_cycles(c, t);
    i64 width = t->axes[W].longest[c->conv].positions, height = t->axes[H].longest[c->conv].positions;
    i64 lanes = c->m->lanes, few = lanes / 2 > 4 ? lanes / 2 : lanes < 4 ? lanes : 4;
    int by_rows = width >= lanes || (width >= few && height >= (c->m->registers >= 32 ? 8 : 4));
    return c->s->by_rows && by_rows ? rows_cycles(c, t) : direct_cycles(c, t);
}

static i64 pieces(const tiling *t, i64 channels, int step, int written) {
    if (t->axes[W].tiles != 1)
        return channels * longest(t, D, step, written) * longest(t, H, step, written);
    return channels * (t->axes[H].tiles == 1 ? 1 : longest(t, D, step, written));
}

static double cycles_of(const sweep_case *c, const tiling *t) {
    i64 l2 = c->m->l2, slow = t->passing <= l2 ? 1 : t->passing <= 2 * l2 ? 2 : 4;
    double moved = (double)(6 * (slow * (t->moved - t->near) + t->near)) / (double)sizeof(number) / (double)c->m->lanes;
    i64 last = most(c->geometric - 1, 0), inputs = c->values[c->s->shape][1] * t->share.groups / c->groups;
    i64 outputs = least(t->share.channels, c->values[c->s->result][1]);
    moved += (double)(400 * (pieces(t, inputs, 0, 0) + pieces(t, outputs, last, 1)));
    double work = 300 + moved + steps_cycles(c, t) / (double)t->shares, tiles = items_of(t);
    i64 shares = least(c->m->cores, 8);
    double balance = (double)(ceil_div((i64)tiles, shares) * shares) / tiles;
    int alone = tiles < (double)shares && work * tiles > 100000.0; /* some threads would have nothing to do */
    return work * tiles * (alone ? balance : 1 + (balance - 1) / 2);
}
