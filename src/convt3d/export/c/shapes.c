/* The shapes of a pipeline's values, from those of the arrays; refuses what does not fit. Follows spec/ of convt3d. */

enum { MOST = 1 << 30 }; /* of a size or a parameter: sums of products of two stay below 2^63 */
#define MOST_ELEMENTS ((double)((i64)1 << 48))

typedef struct {
    i64 length, stride;
} vector_shape;

/* Of an array that has one axis longer than 1, or none; sizes that were left 0 count as 1. */
static vector_shape vector_of(run *r, const C3D_ARRAY *a, const char *name) {
    vector_shape found = {1, 1};
    i64 strides[5];
    strides_of(a, strides);
    for (int axis = 0; axis < 5; axis++)
        if (a->shape[axis] > 1) {
            if (found.length > 1)
                STOP(r, C3D_SHAPE, "%s: must have one axis only", name);
            found = (vector_shape){a->shape[axis], strides[axis]};
        }
    return found;
}

/* Numbers that an operand is taken as: those that it has; a single one as often as it is needed. */
static i64 numbers_of(vector_shape s, i64 count) { return s.length == 1 ? count : s.length; }

/* An operand with one number for each channel, in double. */
static double *wide_vector(run *r, int slot, i64 count) {
    vector_shape s = vector_of(r, r->operand[slot], r->name[slot]);
    double *found = take(r, numbers_of(s, count) * sizeof *found);
    for (i64 at = 0; !r->counting && at < numbers_of(s, count); at++)
        found[at] = number_at(r, slot, s.length == 1 ? 0 : at * s.stride);
    return found;
}

static i64 conv_int(run *r, const stage *s, int at, i64 lowest, const char *name) {
    i64 found = integer(r, s->ints[at], r->input->shape[1]); /* a kernel of ones has a group for each channel */
    if (s->ints[at] != SAME && (found < lowest || found > MOST))
        STOP(r, C3D_ARGUMENT, "%s: %lld is not between %lld and %d", name, (long long)found, (long long)lowest, MOST);
    return found;
}

/* Voxels that padding adds before (0) or after (1) an axis. */
static i64 pad_side(const run *r, const form *f, const stage *s, int axis, int after) {
    i64 code = s->ints[axis];
    if (code != SAME)
        return integer(r, code, 0);
    i64 total = f->stage[f->conv].ints[9 + axis] * (r->operand[f->stage[f->conv].slot]->shape[2 + axis] - 1);
    return after ? total - total / 2 : total / 2;
}

typedef struct {
    i64 groups, in_channels, out_channels;
    conv_axis axes[3];
} convolution;

static const char *const AXIS[3] = {"depth", "height", "width"};

static void conv_shape(run *r, const form *f, const stage *s, const i64 *in, i64 *out, convolution *c) {
    const C3D_ARRAY *weight = r->operand[s->slot];
    const i64 *shape = weight->shape;
    int forward = s->op == OP_CONV;
    c->groups = conv_int(r, s, 12, 1, "groups");
    for (int axis = 0; axis < 5; axis++)
        if (shape[axis] < 1 || shape[axis] > MOST)
            STOP(r, C3D_SHAPE, "%s: must have 5 axes, none of them empty", r->name[s->slot]);
    double elements = (double)shape[0] * (double)shape[1] * (double)shape[2] * (double)shape[3] * (double)shape[4];
    if (elements > MOST_ELEMENTS)
        STOP(r, C3D_SHAPE, "%s: has more than 2^48 elements", r->name[s->slot]);
    c->in_channels = forward ? shape[1] * c->groups : shape[0];
    c->out_channels = forward ? shape[0] : shape[1] * c->groups;
    if (c->in_channels != in[1])
        STOP(r, C3D_SHAPE, "%s: is for %lld channels, and %lld come in", r->name[s->slot], (long long)c->in_channels,
             (long long)in[1]);
    if (c->in_channels % c->groups || c->out_channels % c->groups)
        STOP(r, C3D_SHAPE, "groups: %lld does not divide the channels", (long long)c->groups);
    out[0] = in[0];
    out[1] = c->out_channels;
    for (int axis = 0; axis < 3; axis++) {
        conv_axis a = {in[2 + axis], shape[2 + axis], conv_int(r, s, axis, 1, "stride"), 0, 0,
                       conv_int(r, s, 9 + axis, 1, "dilation"), forward};
        conv_int(r, s, 3 + axis, 0, "padding");
        stage padding = *s;
        memcpy(padding.ints, s->ints + 3, 3 * sizeof *padding.ints);
        a.padding = pad_side(r, f, &padding, axis, 0);
        a.extra = f->average ? integer(r, s->ints[6 + axis], 0) : conv_int(r, s, 6 + axis, 0, "output_padding");
        if (forward)
            a.extra = pad_side(r, f, &padding, axis, 1) - a.padding;
        if (!forward && !f->average && a.extra >= most(a.stride, a.dilation))
            STOP(r, C3D_ARGUMENT, "output_padding: must be smaller than stride or dilation along %s", AXIS[axis]);
        out[2 + axis] = conv_out(&a);
        if (out[2 + axis] < 1)
            STOP(r, C3D_SHAPE, "padding: leaves an output of size %lld along %s", (long long)out[2 + axis], AXIS[axis]);
        c->axes[axis] = a;
    }
}

static pool_axis pool_of(const run *r, const stage *s, const i64 *shape, int axis) {
    i64 size = shape[2 + axis];
    return (pool_axis){size, integer(r, s->ints[axis], size), integer(r, s->ints[3 + axis], size), s->ints[6 + axis],
                       (int)s->ints[9]};
}

static void pool_shape(run *r, const stage *s, const i64 *in, i64 *out) {
    memcpy(out, in, 2 * sizeof *out);
    for (int axis = 0; axis < 3; axis++) {
        pool_axis p = pool_of(r, s, in, axis);
        if (p.kernel < 1 || p.kernel > MOST || p.stride < 1 || p.stride > MOST)
            STOP(r, C3D_ARGUMENT, "pool: its window must be between 1 and %d along %s", MOST, AXIS[axis]);
        out[2 + axis] = pool_out(&p);
        if (out[2 + axis] < 1 || (s->op == OP_AVG_POOL && p.size < p.kernel))
            STOP(r, C3D_SHAPE, "pool: its window is larger than its input along %s", AXIS[axis]);
    }
}

static void check_operand(run *r, int slot, int kind, const i64 *value) {
    const C3D_ARRAY *a = r->operand[slot];
    if (kind == KIND_TENSOR) {
        for (int axis = 0; axis < 5; axis++)
            if (a->shape[axis] != 1 && a->shape[axis] != value[axis])
                STOP(r, C3D_SHAPE, "%s: its axis %d has size %lld, which is neither 1 nor %lld", r->name[slot], axis,
                     (long long)a->shape[axis], (long long)value[axis]);
        return;
    }
    i64 length = vector_of(r, a, r->name[slot]).length, wanted = kind == KIND_WIDTH ? value[4] : value[1];
    if (length != wanted && !(kind == KIND_SLOPE && length == 1))
        STOP(r, C3D_SHAPE, "%s: has %lld numbers, and %lld are needed", r->name[slot], (long long)length,
             (long long)wanted);
}

/* Of every value of the pipeline: values[n] enters stage n. */
static void trace(run *r, const form *f, i64 (*values)[5], convolution *c) {
    i64 labelled[C3D_LABELS][5];
    memcpy(values[0], r->input->shape, sizeof values[0]);
    memcpy(labelled[0], values[0], sizeof values[0]);
    for (int axis = 0; axis < 5; axis++)
        if (values[0][axis] < (axis ? 1 : 0) || values[0][axis] > MOST)
            STOP(r, C3D_SHAPE, "input: must have 5 axes, none of them empty but the batch");
    for (int n = 0; n < f->stages; n++) {
        const stage *s = &f->stage[n];
        const i64 *in = values[n];
        i64 *out = values[n + 1];
        memcpy(out, in, sizeof values[0]);
        switch (s->op) {
        case OP_TRANSPOSED:
        case OP_CONV:
            conv_shape(r, f, s, in, out, c);
            break;
        case OP_PAD:
            for (int axis = 0; axis < 3; axis++) {
                i64 size = in[2 + axis], before = pad_side(r, f, s, axis, 0), after = pad_side(r, f, s, axis, 1);
                i64 limit = s->over == PAD_REFLECT ? size - 1 : s->over == PAD_CIRCULAR ? size : MOST;
                if (before > limit || after > limit)
                    STOP(r, C3D_SHAPE, "padding: must be at most %lld along %s", (long long)limit, AXIS[axis]);
                out[2 + axis] = size + before + after;
            }
            break;
        case OP_MAX_POOL:
        case OP_AVG_POOL:
            pool_shape(r, s, in, out);
            break;
        case OP_SUM:
        case OP_MEAN:
        case OP_MAX:
        case OP_LOG_SUM_EXP:
            if (s->over == OVER_CHANNELS)
                out[1] = 1;
            else
                out[2] = out[3] = out[4] = 1;
            break;
        case OP_GROUP_NORM:
            if (in[1] % s->ints[0])
                STOP(r, C3D_SHAPE, "GroupNorm: its groups must divide the %lld channels", (long long)in[1]);
            break;
        case OP_KEEP:
            memcpy(labelled[s->label], in, sizeof values[0]);
            break;
        case OP_RECALL:
            memcpy(out, labelled[s->label], sizeof values[0]);
            break;
        default:
            if (s->label >= 0)
                for (int axis = 0; axis < 5; axis++) {
                    i64 other = labelled[s->label][axis];
                    if (in[axis] != other && in[axis] != 1 && other != 1)
                        STOP(r, C3D_SHAPE, "a value of an earlier stage does not fit the current one");
                    out[axis] = in[axis] == 1 ? other : in[axis];
                }
        }
        double elements = 1;
        for (int axis = 0; axis < 5; axis++)
            elements *= (double)most(out[axis], 1);
        if (elements > MOST_ELEMENTS)
            STOP(r, C3D_SHAPE, "sizes: a value would have more than 2^48 elements");
        for (int slot = s->slot; slot < s->slot + s->slots; slot++)
            if (f->kinds[slot] != KIND_KERNEL)
                check_operand(r, slot, f->kinds[slot], s->op <= OP_CONV ? out : in);
    }
    for (int n = 0; n <= f->stages; n++)
        if (memcmp(values[n], values[f->same[n]], sizeof values[0]))
            STOP(r, C3D_SHAPE, "sizes: the values after stage %d and after stage %d must have the same", f->same[n], n);
}
