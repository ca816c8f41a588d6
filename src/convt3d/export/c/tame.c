/* Operands as a rewritten pipeline takes them, such as weights with a batch norm folded in. Follows spec/rewrite.py and
   cpu/runtime/folded.py of convt3d: where an operand is not tame, the pipeline runs as it was asked for. */

static const double TAME = 18446744073709551616.0, MOST_CONSTANT = 65536.0; /* 2^64 */

/* Neither huge nor on the way to zero. */
static int is_tame(double x) {
    double size = fabs(x);
    return size <= TAME && (size >= 1.0 / (TAME * sqrt(TAME)) || size == 0.0);
}

static int all_tame(const double *numbers, i64 count) {
    int found = 1;
    for (i64 at = 0; at < count; at++)
        found &= is_tame(numbers[at]);
    return found;
}

static i64 length_of(run *r, int slot) { return vector_of(r, r->operand[slot], r->name[slot]).length; }

/* A new operand of doubles, dense. */
static void put_wide(run *r, int slot, const i64 *shape, double *numbers) {
    C3D_ARRAY *own = take(r, sizeof *own);
    *own = (C3D_ARRAY){numbers, {0}, {0}};
    memcpy(own->shape, shape, sizeof own->shape);
    r->operand[slot] = own;
    r->wide[slot] = 1;
}

static void remove_operands(run *r, int first, int count) {
    for (int slot = first; slot + count < C3D_SLOTS; slot++) {
        r->operand[slot] = r->operand[slot + count];
        r->wide[slot] = r->wide[slot + count];
        r->name[slot] = r->name[slot + count];
    }
}

/* ((w * x + b) - mean) * s + beta = (w * s) * x + ((b - mean) * s + beta), s = weight / sqrt(var + eps). */
static int into_weights(run *r, const change *c, int forward, i64 groups) {
    const C3D_ARRAY *kernel = r->operand[c->first];
    const i64 *shape = kernel->shape;
    i64 channels = forward ? shape[0] : shape[1] * groups, strides[5], at = 0, in_group = shape[0] / groups;
    int next = c->first + 1 + c->biased, affine = c->count - 3 - c->biased, good = 1;
    const double *vectors[4];
    for (int n = 0; n < 2 + affine; n++) {
        vectors[n] = wide_vector(r, next + n, channels);
        good &= r->counting || all_tame(vectors[n], channels);
    }
    double *scale = take(r, channels * sizeof *scale), *shift = take(r, channels * sizeof *shift);
    const double *bias = c->biased ? wide_vector(r, c->first + 1, channels) : NULL;
    good &= r->counting || !bias || all_tame(bias, channels);
    for (i64 n = 0; n < channels && !r->counting; n++) {
        scale[n] = (affine ? vectors[2][n] : 1.0) / sqrt(vectors[1][n] + c->eps);
        shift[n] = ((bias ? bias[n] : 0.0) - vectors[0][n]) * scale[n] + (affine ? vectors[3][n] : 0.0);
    }
    double *weights = take_large(r, elements_of(shape) * sizeof *weights);
    strides_of(kernel, strides);
    for (i64 a = 0; a < shape[0] && !r->counting; a++)
        for (i64 b = 0; b < shape[1]; b++) {
            i64 channel = forward ? a : a / in_group * shape[1] + b;
            for (i64 d = 0; d < shape[2]; d++)
                for (i64 h = 0; h < shape[3]; h++)
                    for (i64 w = 0; w < shape[4]; w++) {
                        i64 from = a * strides[0] + b * strides[1] + d * strides[2] + h * strides[3] + w * strides[4];
                        double one = number_at(r, c->first, from);
                        weights[at++] = one * scale[channel];
                        good &= is_tame(one);
                    }
        }
    good &= r->counting || (all_tame(shift, channels) && all_tame(weights, at));
    put_wide(r, c->first, shape, weights);
    put_wide(r, c->first + 1, (const i64[]){channels, 1, 1, 1, 1}, shift);
    remove_operands(r, c->first + 2, c->count - 2);
    return good;
}

static int kernel_is_tame(run *r, int slot) {
    const C3D_ARRAY *kernel = r->operand[slot];
    const i64 *shape = kernel->shape;
    i64 strides[5];
    int good = 1;
    strides_of(kernel, strides);
    for (i64 n = 0; n < elements_of(shape); n++) {
        i64 from = 0, rest = n;
        for (int axis = 4; axis >= 0; rest /= shape[axis--])
            from += rest % shape[axis] * strides[axis];
        good &= is_tame(number_at(r, slot, from));
    }
    return good;
}

static int into_taps(run *r, const change *c);

/* One change of the operands; whether it holds for them. */
static int changed(run *r, const form *f, const change *c) {
    int good = 1;
    if (c->kind == POOL_TAPS || c->kind == SUM_TAPS)
        return into_taps(r, c);
    if (c->kind == INTO_WEIGHTS) {
        const stage *conv = &f->stage[f->conv];
        return into_weights(r, c, conv->op == OP_CONV, integer(r, conv->ints[12], r->input->shape[1]));
    }
    for (int slot = c->first; slot < c->first + c->count; slot++) {
        if (slot == c->kernel) {
            good &= r->counting || kernel_is_tame(r, slot);
            continue;
        }
        i64 count = length_of(r, slot);
        double *numbers = wide_vector(r, slot, count);
        for (i64 at = 0; at < count && !r->counting; at++)
            good &= c->kind == LEAVE_OUT ? fabs(numbers[at]) <= MOST_CONSTANT : is_tame(numbers[at]);
        if (c->kind != ADDED_UP)
            continue;
        double *total = take(r, sizeof *total);
        *total = r->counting ? 0.0 : 0.0 + pairwise(numbers, count, 1);
        *total = c->average ? *total / (double)count : *total;
        good &= is_tame(*total);
        put_wide(r, slot, (const i64[]){1, 1, 1, 1, 1}, total);
    }
    if (c->kind == LEAVE_OUT)
        remove_operands(r, c->first, c->count);
    return good;
}

/* The operands of a rewritten pipeline; whether all of them are tame. */
static int made_tame(run *r, const form *f) {
    for (int n = 0; n < f->changes; n++)
        if (!changed(r, f, &f->change[n]))
            return 0;
    return 1;
}
