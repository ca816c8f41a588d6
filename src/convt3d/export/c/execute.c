/* One execution: sweeps in order, statistics combined between them. Follows cpu/runtime/execute.py of convt3d. */

typedef struct {
    void *data;
    i64 shape[5], strides[5]; /* strides in elements, 0 along axes of size 1 */
    int adjacent;             /* channels lie side by side */
    int item;
} place;

typedef struct {
    run *r;
    const form *f;
    const machine *m;
    i64 (*values)[5];
    convolution conv;
    choice chosen[C3D_STATISTICS + 1]; /* of each sweep */
    number *packed, *bias;
    i64 *skipped; /* samples that Winograd's method leaves to direct summation */
    number *value[C3D_VALUES + 1];
    number *statistic[C3D_STATISTICS + 1]; /* shift, scale and offset, one after the other */
    i64 batch;
} execution;

static place place_of_array(const C3D_ARRAY *a) {
    place found = {a->data, {0}, {0}, 0, C3D_ITEM};
    i64 strides[5];
    strides_of(a, strides);
    found.adjacent = a->shape[1] > 1 && strides[1] == 1 && strides[4] != 1;
    for (int axis = 0; axis < 5; axis++) {
        found.shape[axis] = a->shape[axis];
        found.strides[axis] = a->shape[axis] > 1 ? strides[axis] : 0;
    }
    return found;
}

static int in_output(const form *f, int array) {
    for (int n = 0; n < f->aliases; n++)
        if (f->alias[n] == array)
            return 1;
    return array == OUTPUT;
}

static place find(const execution *x, int array, const i64 *shape) {
    if (array == INPUT)
        return place_of_array(x->r->input);
    if (in_output(x->f, array))
        return place_of_array(x->r->output);
    if (array < VALUE)
        return place_of_array(x->r->operand[array - OPERAND]);
    C3D_ARRAY own = {x->value[array - VALUE], {0}, {0}};
    memcpy(own.shape, shape, sizeof own.shape);
    place found = place_of_array(&own);
    found.adjacent = 0;
    found.item = sizeof(number);
    return found;
}

static number *vector_numbers(run *r, int slot, i64 count) {
    double *wide = wide_vector(r, slot, count);
    i64 length = numbers_of(vector_of(r, r->operand[slot], r->name[slot]), count);
    number *found = take(r, length * sizeof *found);
    for (i64 at = 0; !r->counting && at < length; at++)
        found[at] = (number)wide[at];
    return found;
}

static void put_array(i64 *words, const place *p) {
    words[ArrayCall_data] = ADDRESS(p->data);
    memcpy(words + ArrayCall_b, p->strides, sizeof p->strides);
}

static void put_source(const execution *x, i64 *table, i64 *words, int array, const i64 *shape, int call) {
    place p = find(x, array, shape);
    put_array(words, &p);
    words[SourceCall_adjacent] = p.adjacent;
    if (p.adjacent) {
        table[call + SweepCall_read_block] = ADDRESS(C3D_READ[x->m->isa]);
        table[call + SweepCall_write_block] = ADDRESS(C3D_WRITE[x->m->isa]);
    }
}

static int streams(const execution *x, const sweep *s, const place *p) {
    int in_place = s->source != INPUT && in_output(x->f, s->source) && in_output(x->f, s->dest);
    i64 cached = x->m->l3 / 4 ? x->m->l3 / 4 : 4 * x->m->l2;
    return !in_place && elements_of(p->shape) * p->item >= cached;
}

static void put_destination(const execution *x, const sweep *s, const tiling *t, i64 *table, i64 *words) {
    place p = find(x, s->dest, x->values[s->result]);
    i64 width = p.shape[4], step = p.strides[4], item = p.item, address = ADDRESS(p.data);
    int whole_rows = t->axes[W].tiles == 1, dense = !p.adjacent && (width == 1 || step == 1);
    int streamed = 0, direct = dense;
    if (streams(x, s, &p) && (dense || p.adjacent)) {
        i64 vector = x->m->lanes * item, begins = whole_rows ? 0 : t->tile[W] * item;
        if (dense) /* no line is written in two parts */
            vector = most(vector, 64);
        if (p.adjacent) /* shares of channels begin inside a voxel */
            begins = t->shares > 1 ? t->share.channels * item : 0;
        int even = address % vector == 0 && begins % vector == 0;
        for (int axis = 0; axis < 5; axis++)
            if (p.shape[axis] > 1 && p.strides[axis] != 1)
                even &= p.strides[axis] * item % vector == 0;
        streamed = address % item == 0 && (dense || even);
        direct = dense && even;
    }
    int follow = dense && whole_rows && (p.shape[3] > 1 ? p.strides[3] : width) == width;
    put_array(words, &p);
    words[ArrayCall_w] = dense ? 1 : step;
    words[DestinationCall_rows] = follow ? rows_together(width) : 1;
    words[DestinationCall_streamed] = streamed;
    words[DestinationCall_direct] = direct;
    words[DestinationCall_channels] = p.adjacent ? p.shape[1] : 1;
    if (p.adjacent) {
        table[s->call + SweepCall_read_block] = ADDRESS(C3D_READ[x->m->isa]);
        table[s->call + SweepCall_write_block] = ADDRESS(C3D_WRITE[x->m->isa]);
    }
}

static void put_vector(const execution *x, i64 *words, int array, i64 channels) {
    if (array < VALUE) {
        words[VectorCall_data] = ADDRESS(vector_numbers(x->r, array - OPERAND, channels));
        words[VectorCall_b] = 0;
        return;
    }
    int number_of_array = (array - STATISTIC) / 3, word = (array - STATISTIC) % 3;
    words[VectorCall_data] = ADDRESS(x->statistic[number_of_array] + word * x->batch * channels);
    words[VectorCall_b] = channels;
}

#define ALL ((i64)1 << 31) /* more groups, blocks and channels than there are */

/* The words of a call. */
static void put_call(const execution *x, const sweep_case *c, const tiling *t, i64 *table, double *partials) {
    const sweep *s = c->s;
    i64 most_channels = 1, channels = x->values[s->shape][1];
    for (int n = 0; n <= x->f->stages; n++)
        most_channels = most(most_channels, x->values[n][1]);
    for (int n = 0; n < s->steps; n++) {
        const step *p = &s->step[n];
        i64 *words = table + p->call;
        switch (p->kind) {
        case STEP_LOAD:
        case STEP_PADDED:
            put_source(x, table, words, p->array, x->values[p->stage], s->call);
            if (p->kind == STEP_LOAD && p->numbers) { /* as many channels as the first-level cache has room for */
                int beside = s->dest != NOTHING && find(x, s->dest, x->values[s->result]).adjacent;
                i64 pitch = table[p->words + LoadWords_box + 1], room_for = x->m->l1 / 2 / (pitch * (i64)sizeof(number));
                words[SourceCall_words + PartCall_part] = beside || words[SourceCall_adjacent] ? ALL : most(1, room_for);
            }
            break;
        case STEP_CONV:
        case STEP_WINOGRAD: {
            int beside = s->dest != NOTHING && find(x, s->dest, x->values[s->result]).adjacent;
            int parts = t->in_parts && !beside, direct = p->kind == STEP_CONV;
            words[ConvCall_weights] = ADDRESS(x->packed);
            words[ConvCall_bias] = ADDRESS(x->bias);
            if (direct) {
                words[DirectCall_part_groups] = parts ? t->part.groups : ALL;
                words[DirectCall_part_blocks] = parts ? t->part.blocks : ALL;
            } else {
                words[WinogradCall_part_channels] = parts ? t->part.channels : ALL;
                words[WinogradCall_skipped] = ADDRESS(x->skipped);
            }
            words += direct ? DirectCall_words : WinogradCall_words;
            if (p->array != NOTHING)
                put_source(x, table, words, p->array, x->values[p->stage], s->call);
            channels = x->conv.out_channels;
            break;
        }
        case STEP_INTERLEAVE:
            if (p->array == NOTHING)
                break; /* else: as a store */
            __attribute__((fallthrough));
        case STEP_STORE:
            put_destination(x, s, t, table, words);
            break;
        case STEP_CHAIN:
        case STEP_ROW_NORM:
            for (int m = 0; m < (p->kind == STEP_CHAIN ? p->links : 1); m++) {
                const chain_link *l = &p->link[m];
                for (int a = 0; a < l->arrays; a++)
                    if (l->words == LINK_TENSOR) {
                        put_source(x, table, words, l->array[a], x->values[l->shape], s->call);
                        words += SourceCall_words;
                    } else {
                        put_vector(x, words, l->array[a], l->array[a] < VALUE ? most_channels : channels);
                        words += VectorCall_words;
                    }
                channels = l->collapses ? 1 : channels;
            }
            break;
        case STEP_REDUCE:
            words[ReduceCall_partials] = ADDRESS(partials);
            break;
        default:
            break;
        }
    }
}

static double *voxels_of(run *r, const tiling *t) {
    i64 tiles = t->axes[D].tiles * t->axes[H].tiles * t->axes[W].tiles, at = 0;
    double *found = take(r, tiles * sizeof *found);
    for (i64 d = 0; d < t->axes[D].tiles; d++)
        for (i64 h = 0; h < t->axes[H].tiles; h++)
            for (i64 w = 0; w < t->axes[W].tiles; w++, at++) {
                i64 number_of_tile[3] = {d, h, w};
                found[at] = 1;
                for (int axis = 0; axis < 3; axis++) {
                    i64 low = number_of_tile[axis] * t->tile[axis];
                    found[at] *= (double)(least(low + t->tile[axis], t->axes[axis].size) - low);
                }
            }
    return found;
}

static void finish_sweep(execution *x, const sweep *s, const tiling *t, int numbers, const double *partials) {
    run *r = x->r;
    const stage *of = &x->f->stage[s->finish];
    i64 tiles = t->axes[D].tiles * t->axes[H].tiles * t->axes[W].tiles, channels = x->values[s->result][1];
    double *room = take(r, (tiles + channels) * sizeof *room);
    statistics q = {x->batch, channels, tiles, numbers, partials, voxels_of(r, t), room};
    double *own[2] = {NULL, NULL};
    for (int n = 0; n < of->slots && n < 2; n++)
        own[n] = wide_vector(r, of->slot + n, channels);
    if (s->finished < STATISTIC) {
        number *value = x->value[s->finished - VALUE] = take_large(r, x->batch * channels * sizeof *value);
        if (!r->counting)
            finish_value(&q, of, value);
        return;
    }
    number *vectors = take_large(r, 3 * x->batch * channels * sizeof *vectors);
    x->statistic[(s->finished - STATISTIC) / 3] = vectors;
    if (r->counting)
        return;
    memset(vectors, 0, 3 * x->batch * channels * sizeof *vectors);
    if (of->op == OP_SOFTMAX)
        finish_softmax(r, &q, of, own[0], vectors);
    else
        finish_norm(r, &q, of, own[0], own[1], vectors);
}

static void run_sweep(execution *x, const plan_case *plan, const choice *chosen) {
    run *r = x->r;
    const sweep *s = chosen->s;
    sweep_case c;
    make_case(&c, plan, s, chosen->by);
    c.cut = chosen->cut;
    i64 per_out = c.out_channels / c.groups, rows = C3D_ROWS[x->m->isa];
    c.tile = (register_tile){rows, per_out % rows, C3D_COLUMNS[x->m->isa]}; /* our own */
    tiling t = tiling_of(&c, chosen->tile, chosen->copies, chosen->shares);
    if (t.scratch >= TOO_MUCH)
        STOP(r, C3D_MEMORY, "memory: a tile of these sizes would take more than there can be");
    int numbers = 0;
    for (int n = 0; n < s->steps; n++)
        numbers = s->step[n].kind == STEP_REDUCE ? s->step[n].numbers : numbers;
    i64 before = 16, *table = take(r, (before + s->words) * sizeof *table);
    memset(table, 0, (before + s->words) * sizeof *table);
    table += before;
    put_words(r, &c, &t, table);
    i64 items = table[SweepWords_items], tiles = items / t.shares / x->batch;
    double *partials = NULL;
    i64 of_sample = tiles * x->values[s->result][1] * numbers;
    if (numbers)
        partials = take_large(r, x->batch * of_sample * sizeof *partials);
    if (s->dest >= VALUE && !in_output(x->f, s->dest))
        x->value[s->dest - VALUE] = take_large(r, elements_of(x->values[s->result]) * sizeof(number));
    double work = 32.0 * ((double)elements_of(x->values[0]) + (double)elements_of(x->values[x->f->stages]));
    if (c.conv >= 0)
        work += (double)elements_of(x->values[x->f->conv + 1]) * (double)(c.in_channels / c.groups) *
                (double)c.kernel[D] * (double)c.kernel[H] * (double)c.kernel[W];
    i64 threads = work > 1e6 ? least(r->threads, items) : 1;
    char *scratch = take_large(r, threads * t.scratch);
    if (!r->counting) {
        i64 *call = table + s->call;
        call[SweepCall_counter] = ADDRESS(table - 8);
        call[SweepCall_scratch] = ADDRESS(scratch);
    }
    put_call(x, &c, &t, table, partials);
    if (!r->counting)
        on_threads(s->kernels[x->m->isa], table, threads);
    for (i64 sample = 0; partials && sample < x->batch; sample++)
        if (x->skipped[sample]) /* tiles that were left out */
            memset(partials + sample * of_sample, 0, of_sample * sizeof *partials);
    if (s->finish >= 0)
        finish_sweep(x, s, &t, numbers, partials);
}

static void execute(run *r, const form *f, enum manner how);

/* Does something else instead, in the memory that was taken since. */
static void execute_else(run *r, const form *f, mark since, enum manner how) {
    give_back(r, since);
    execute(r, f, how);
}

/* One sample of an array of values, or all that it has. */
static C3D_ARRAY view_of(const C3D_ARRAY *a, i64 sample) {
    C3D_ARRAY one = *a;
    strides_of(a, one.strides);
    if (a->shape[0] > 1)
        one.data = (char *)a->data + sample * one.strides[0] * C3D_ITEM;
    one.shape[0] = 1;
    return one;
}

/* One sample of all arrays of a run takes their place; `arrays` are C3D_SLOTS + 2. */
static void take_sample(run *r, const run *whole, const form *f, i64 sample, C3D_ARRAY *arrays) {
    arrays[0] = view_of(whole->input, sample);
    arrays[1] = view_of(whole->output, sample);
    r->input = &arrays[0];
    r->output = &arrays[1];
    for (int slot = 0; slot < f->slots; slot++)
        if (f->kinds[slot] == KIND_TENSOR) {
            arrays[2 + slot] = view_of(whole->operand[slot], sample);
            r->operand[slot] = &arrays[2 + slot];
        }
}

/* The arrays of a run again. */
static void take_whole(run *r, const run *whole) {
    r->input = whole->input;
    r->output = whole->output;
    memcpy(r->operand, whole->operand, sizeof whole->operand);
    memcpy(r->wide, whole->wide, sizeof whole->wide);
    memcpy(r->name, whole->name, sizeof whole->name);
}

/* Samples with huge inputs: a transform would spread what is not finite. */
static void execute_skipped(execution *x, const form *f, mark since) {
    run *r = x->r, whole = *r;
    C3D_ARRAY arrays[C3D_SLOTS + 2];
    for (i64 sample = 0; sample < x->batch; sample++)
        if (x->skipped[sample]) {
            take_sample(r, &whole, f, sample, arrays);
            execute_else(r, f, since, DIRECTLY);
        }
    take_whole(r, &whole);
}

/* All sweeps by the methods that cost least; the sum of their costs, up to that of the convolution. */
static double choose_all(execution *x, const plan_case *plan, const form *f) {
    plan_case own = *plan;
    double cost = 0.0;
    int behind = 0;
    own.f = f;
    for (int n = 0; n < f->sweeps; n++) {
        x->chosen[n] = choose_method(&own, &f->sweep[n]);
        cost += behind ? 0.0 : x->chosen[n].cost;
        for (int at = 0; at < f->sweep[n].steps; at++)
            behind |= f->sweep[n].step[at].kind == STEP_CONV;
    }
    return cost;
}

/* All of it; or, where only the memory is asked for, what it takes. Weights that are not finite would make the zeros
   around the input NaN: then products with these are left out. */
static void execute(run *r, const form *f, enum manner how) {
    i64 values[C3D_STAGES + 1][5];
    execution x = {.r = r, .f = f, .m = this_machine(), .values = values};
    trace(r, f, values, &x.conv);
    x.batch = values[0][0];
    x.skipped = take(r, x.batch * sizeof *x.skipped);
    memset(x.skipped, 0, x.batch * sizeof *x.skipped);
    mark since = marked(r);
    method direct;
    plan_case plan = {r, f, x.m, (const i64 (*)[5])values, &x.conv, {NULL}, &direct, how};
    for (int axis = 0; axis < 3; axis++)
        plan.plain[axis] = axis_method_of(r, &x.conv.axes[axis], 1);
    make_method(&direct, plan.plain[D], plan.plain[H], plan.plain[W]);
    if (f->apart) { /* tiles of a convolution overlap: a pool before it may be cheaper on its own */
        double together = choose_all(&x, &plan, f), apart = choose_all(&x, &plan, f->apart);
        if (apart < 0.85 * together)
            x.f = plan.f = f->apart;
        else
            choose_all(&x, &plan, f);
    } else
        choose_all(&x, &plan, f);
    const method *by = &direct;
    int pairs = 0;
    for (int n = 0; n < x.f->sweeps; n++) {
        by = x.chosen[n].by != &direct ? x.chosen[n].by : by;
        pairs |= x.chosen[n].s->pairs;
    }
    const stage *conv = &f->stage[f->conv];
    sweep_case c = {.r = r, .m = x.m, .by = by, .in_channels = x.conv.in_channels,
                    .out_channels = x.conv.out_channels, .groups = x.conv.groups,
                    .in_group = in_group_of(&x.conv, pairs)};
    for (int axis = 0; axis < 3; axis++)
        c.kernel[axis] = x.conv.axes[axis].kernel;
    x.packed = take_large(r, packed_numbers(&c) * sizeof(number));
    double largest = pack_weights(&c, conv->slot, x.packed, pairs);
    x.bias = take(r, x.conv.out_channels * sizeof *x.bias);
    memset(x.bias, 0, x.conv.out_channels * sizeof *x.bias);
    if (conv->slots > 1)
        memcpy(x.bias, vector_numbers(r, conv->slot + 1, x.conv.out_channels), x.conv.out_channels * sizeof *x.bias);
    if (!isfinite(largest) && how != MASKED) {
        execute_else(r, f, since, MASKED);
        return;
    }
    if (by != &direct && !transformable(largest)) {
        execute_else(r, f, since, DIRECTLY);
        return;
    }
    for (int n = 0; n < x.f->sweeps; n++)
        run_sweep(&x, &plan, &x.chosen[n]);
    if (r->counting && how == ANY) { /* as much as the others may take */
        execute_else(r, f, since, DIRECTLY);
        execute_else(r, f, since, MASKED);
        return;
    }
    execute_skipped(&x, f, since);
}

/* Samples one by one: those that are wild as asked, the others rewritten. */
static void execute_apart(run *r, const form *f, const form *tame, const run *asked, const _Atomic char *wild) {
    const run rewritten = *r;
    C3D_ARRAY arrays[C3D_SLOTS + 2];
    for (i64 sample = 0; sample < rewritten.input->shape[0]; sample++) {
        const form *own = wild[sample] ? f : tame;
        const run *whole = wild[sample] ? asked : &rewritten;
        mark since = marked(r);
        take_whole(r, whole);
        take_sample(r, whole, own, sample, arrays);
        execute(r, own, ANY);
        give_back(r, since);
    }
}

/* The pipeline rewritten, where its operands allow that, or as it was asked for. */
static void execute_all(run *r, const form *f) {
    i64 values[C3D_STAGES + 1][5];
    convolution conv;
    trace(r, f, values, &conv);
    const run asked = *r;
    const form *tame = f->tame, *averaging = r->averaged;
    mark since = marked(r);
    if (averaging && (averaging->average == POOL_TAPS ? pool_fits(r, averaging, &conv) : mean_fits(r, &conv)))
        tame = averaging;
    int done = tame && made_tame(r, tame);
    if (done) {
        const _Atomic char *wild = tame->average ? wild_samples(r) : NULL;
        if (wild)
            execute_apart(r, f, tame, &asked, wild);
        else
            execute(r, tame, ANY);
    }
    take_whole(r, &asked);
    if (done && !r->counting)
        return;
    if (!(tame && tame->average && r->counting)) /* samples that are wild need both */
        give_back(r, since);
    execute(r, f, ANY);
}
