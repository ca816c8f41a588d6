/* An average right behind a transposed convolution, made part of its weights where sizes allow it, and inputs that are
   too wild for that. Follows spec/linear.py and cpu/runtime/execute.py of convt3d. Numbers that such a form takes from
   sizes stand behind the parameters of the call. */

/* A mean over windows of q outputs, q a divisor of the stride, is a convolution of stride / q with summed taps, where
   these are not more than before. */
static int pool_fits(run *r, const form *f, const convolution *c) {
    double voxels_of_window = 1.0;
    for (int axis = 0; axis < 3; axis++) {
        const conv_axis *a = &c->axes[axis];
        i64 q = f->window[axis], *place = take(r, a->kernel * sizeof *place);
        conv_axis own = {a->size, 0, a->stride / q, ceil_div(a->padding, q), 0, 1, 0};
        own.dilation = a->dilation % q ? 1 : a->dilation / q;
        for (i64 k = 0; k < a->kernel; k++)
            place[k] = (floor_div(k * a->dilation - a->padding, q) + own.padding) / own.dilation;
        own.kernel = place[a->kernel - 1] + 1;
        if (own.kernel > a->kernel)
            return 0;
        r->ints[C3D_INTS + axis] = own.stride;
        r->ints[C3D_INTS + 3 + axis] = own.padding;
        r->ints[C3D_INTS + 6 + axis] = conv_out(a) / q - conv_out(&own);
        r->ints[C3D_INTS + 9 + axis] = own.dilation;
        r->taps[axis] = own.kernel;
        r->place[axis] = place;
        voxels_of_window *= (double)q;
    }
    r->divisor = f->divisor ? (double)f->divisor : voxels_of_window;
    r->voxels_of_window = voxels_of_window;
    return 1;
}

/* Without padding every tap takes every input into the output: a sum over space is the input's sum times that of all
   taps. */
static int mean_fits(run *r, const convolution *c) {
    double inputs = 1.0, outputs = 1.0;
    for (int axis = 0; axis < 3; axis++) {
        inputs *= (double)c->axes[axis].size;
        outputs *= (double)conv_out(&c->axes[axis]);
    }
    r->reals[C3D_REALS] = inputs / outputs;
    r->reals[C3D_REALS + 1] = outputs;
    return 1;
}

/* Weights whose taps along an axis are added up in other places. */
static double *moved_taps(run *r, const double *from, i64 *shape, int axis) {
    i64 before = 1, behind = 1, taps = r->taps[axis], old = shape[2 + axis];
    for (int n = 0; n < 2 + axis; n++)
        before *= shape[n];
    for (int n = 3 + axis; n < 5; n++)
        behind *= shape[n];
    double *to = take_large(r, before * taps * behind * sizeof *to);
    for (i64 n = 0; n < before * taps * behind && !r->counting; n++)
        to[n] = 0.0;
    for (i64 n = 0; n < before && !r->counting; n++)
        for (i64 k = 0; k < old; k++)
            for (i64 m = 0; m < behind; m++)
                to[(n * taps + r->place[axis][k]) * behind + m] += from[(n * old + k) * behind + m];
    shape[2 + axis] = taps;
    return to;
}

/* The weights, and the bias if there is one, with the average in them; whether they are tame. */
static int into_taps(run *r, const change *c) {
    i64 shape[5], strides[5], at = 0, taps;
    int good = 1;
    memcpy(shape, r->operand[c->first]->shape, sizeof shape);
    strides_of(r->operand[c->first], strides);
    taps = shape[2] * shape[3] * shape[4];
    double *made = take_large(r, elements_of(shape) * sizeof *made);
    for (i64 n = 0; n < shape[0] * shape[1] && !r->counting; n++)
        for (i64 k = 0; k < taps; k++) {
            i64 from = n / shape[1] * strides[0] + n % shape[1] * strides[1] + k / shape[4] / shape[3] * strides[2];
            from += k / shape[4] % shape[3] * strides[3] + k % shape[4] * strides[4];
            made[at] = number_at(r, c->first, from);
            good &= is_tame(made[at++]);
        }
    if (c->kind == POOL_TAPS) {
        for (int axis = 0; axis < 3; axis++)
            made = moved_taps(r, made, shape, axis);
        for (i64 n = 0; n < elements_of(shape) && !r->counting; n++)
            made[n] /= r->divisor;
    } else {
        for (i64 n = 0; n < shape[0] * shape[1] && !r->counting; n++)
            made[n] = 0.0 + pairwise(made + n * taps, taps, 1);
        shape[2] = shape[3] = shape[4] = 1;
    }
    good &= r->counting || all_tame(made, elements_of(shape));
    put_wide(r, c->first, shape, made);
    if (c->count > 1) {
        i64 count = length_of(r, c->first + 1);
        double *bias = wide_vector(r, c->first + 1, count);
        good &= r->counting || all_tame(bias, count);
        for (i64 n = 0; n < count && c->kind == POOL_TAPS && !r->counting; n++)
            bias[n] *= r->voxels_of_window / r->divisor;
        good &= r->counting || all_tame(bias, count);
        put_wide(r, c->first + 1, (const i64[]){count, 1, 1, 1, 1}, bias);
    }
    return good;
}

/* --- inputs ------------------------------------------------------------------------------------------------------- */

typedef struct {
    const C3D_ARRAY *input;
    _Atomic i64 taken;
    _Atomic char *wild; /* of each sample */
} looking;

/* NaN, infinite, or so large that a sum of some might overflow. */
#if C3D_STORED == 32
typedef int32_t flag;
static flag is_wild(float x) { return !(fabsf(x) < 0x1p50f); }
#elif C3D_STORED == 64
typedef int64_t flag;
static flag is_wild(double x) { return !(fabs(x) < 0x1p480); }
#else
typedef int16_t flag;
static flag is_wild(uint16_t bits) { return (int16_t)(bits & 0x7fff) >= (C3D_STORED == 16 ? 0x7c00 : (50 + 127) << 7); }
#endif

/* Whether one of `count` numbers is, `step` apart. Those side by side are looked at some at once. */
static int any_wild(const C3D_REAL *row, i64 count, i64 step) {
    enum { TOGETHER = 64 / sizeof *row };
    flag found[TOGETHER] = {0};
    i64 at = 0;
    for (; step == 1 && at + TOGETHER <= count; at += TOGETHER)
        for (int n = 0; n < TOGETHER; n++)
            found[n] |= is_wild(row[at + n]);
    for (; at < count; at++)
        found[0] |= is_wild(row[at * step]);
    for (int n = 1; n < TOGETHER; n++)
        found[0] |= found[n];
    return found[0] != 0;
}

/* Threads take planes after each other. */
static void look_at_some(i64 *table, i64 worker) {
    looking *q = (looking *)(void *)table;
    const i64 *shape = q->input->shape;
    i64 s[5], planes = shape[0] * shape[1] * shape[2], plane;
    (void)worker;
    strides_of(q->input, s);
    int dense = s[4] == 1 && s[3] == shape[4];
    while ((plane = q->taken++) < planes) {
        i64 sample = plane / shape[2] / shape[1], first = sample * s[0];
        first += plane / shape[2] % shape[1] * s[1] + plane % shape[2] * s[2];
        const C3D_REAL *from = (const C3D_REAL *)q->input->data + first;
        for (i64 h = 0; h < (dense ? 1 : shape[3]); h++)
            if (any_wild(from + h * s[3], dense ? shape[3] * shape[4] : shape[4], s[4]))
                q->wild[sample] = 1;
    }
}

/* Which samples are wild; NULL if none is. */
static const _Atomic char *wild_samples(run *r) {
    i64 batch = r->input->shape[0];
    looking *q = take(r, sizeof *q);
    *q = (looking){.input = r->input};
    q->wild = take(r, batch);
    memset((void *)q->wild, 0, batch);
    if (r->counting)
        return NULL;
    on_threads(look_at_some, (i64 *)(void *)q, elements_of(r->input->shape) > 1 << 16 ? r->threads : 1);
    for (i64 sample = 0; sample < batch; sample++)
        if (q->wild[sample])
            return q->wild;
    return NULL;
}
