/* The segments of a pipeline, one after the other: each has one convolution, and reads what those before it gave.
   Follows plan/segments.py and cpu/runtime/sequence.py of convt3d. */

/* The arrays of segment n; its form. A value of size 1 along an axis is repeated where a larger one meets it. */
static const form *enter(run *r, const C3D_ARGS *args, int n, const C3D_ARRAY *values) {
    const segment *s = &C3D_SEGMENT[n];
    C3D_ARRAY *in = &r->entering;
    *in = values[s->source];
    strides_of(&values[s->source], in->strides);
    r->ones = (C3D_ARRAY){NULL, {0, 1, 1, 1, 1}, {0}};
    for (int slot = 0; slot <= C3D_SLOTS; slot++) {
        int code = slot < s->operands ? s->operand[slot] : ONES;
        r->operand[slot] = code == ONES ? &r->ones : code < 0 ? &values[-1 - code] : operand_of(args, code);
        r->name[slot] = code == ONES ? "ones" : code < 0 ? "an earlier value" : C3D_NAMES[code];
        r->wide[slot] = 0;
    }
    for (int axis = 0; axis < 5 && s->repeated >= 0; axis++) {
        i64 size = r->operand[s->repeated]->shape[axis];
        if (in->shape[axis] != 1)
            continue;
        in->shape[axis] = size;
        in->strides[axis] = size == 1; /* of one element, any: strides that are all 0 would mean a dense array */
    }
    r->ones.shape[0] = in->shape[1];
    r->input = in;
    int isa = this_machine()->isa;
    r->averaged = s->averaged_of(isa, r->ints, r->reals);
    return s->form_of(isa, r->ints, r->reals);
}

/* The shapes of all values. */
static void trace_segments(run *r, const C3D_ARGS *args, C3D_ARRAY *values) {
    i64 shapes[C3D_STAGES + 1][5];
    convolution c;
    values[0] = args->input;
    for (int n = 0; n < C3D_SEGMENTS; n++) {
        const form *f = enter(r, args, n, values);
        trace(r, f, shapes, &c);
        values[n + 1] = (C3D_ARRAY){NULL, {0}, {0}};
        memcpy(values[n + 1].shape, shapes[f->stages], sizeof shapes[0]);
    }
}

static i64 bytes_of(const C3D_ARRAY *a) { return (i64)aligned(elements_of(a->shape) * C3D_ITEM); }

/* Puts each value between segments where none lies that is still read. */
static void place_values(run *r, C3D_ARRAY *values) {
    i64 place[C3D_SEGMENTS + 1], all = 0;
    for (int n = 1; n < C3D_SEGMENTS; n++) {
        i64 at = 0, size = bytes_of(&values[n]);
        for (int m = 1; m < n; m++)
            if (C3D_SEGMENT[m - 1].last_reader >= n - 1 && place[m] < at + size && at < place[m] + bytes_of(&values[m])) {
                at = place[m] + bytes_of(&values[m]);
                m = 0; /* which may meet another one */
            }
        place[n] = at;
        all = most(all, at + size);
    }
    char *memory = all ? take_large(r, all) : NULL;
    for (int n = 1; n < C3D_SEGMENTS && memory; n++)
        values[n].data = memory + place[n];
}

static void put_ones(run *r) {
    i64 channels = r->ones.shape[0];
    C3D_REAL one, *data = take(r, channels * sizeof one);
#if C3D_STORED == 16
    one = 0x3c00;
#elif C3D_STORED == 17
    one = 0x3f80;
#else
    one = 1;
#endif
    for (i64 n = 0; n < channels; n++)
        data[n] = one;
    r->ones.data = data;
}

static void run_segments(run *r, const C3D_ARGS *args, i64 *shape) {
    C3D_ARRAY values[C3D_SEGMENTS + 1];
    (void)shape;
    trace_segments(r, args, values);
    for (int axis = 0; axis < 5; axis++)
        if (args->output.shape[axis] != values[C3D_SEGMENTS].shape[axis])
            STOP(r, C3D_SHAPE, "output: its axis %d has size %lld, and the result has %lld", axis,
                 (long long)args->output.shape[axis], (long long)values[C3D_SEGMENTS].shape[axis]);
    if (!args->input.shape[0])
        return;
    place_values(r, values);
    values[C3D_SEGMENTS] = args->output;
    for (int n = 0; n < C3D_SEGMENTS; n++) {
        mark since = marked(r);
        const form *f = enter(r, args, n, values);
        r->output = &values[n + 1];
        if (C3D_SEGMENT[n].operand[0] == ONES)
            put_ones(r);
        execute_all(r, f);
        give_back(r, since);
    }
}

static void shapes_only(run *r, const C3D_ARGS *args, i64 *shape) {
    C3D_ARRAY values[C3D_SEGMENTS + 1];
    trace_segments(r, args, values);
    memcpy(shape, values[C3D_SEGMENTS].shape, sizeof values[0].shape);
}
