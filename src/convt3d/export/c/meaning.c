/* The meaning of every stage in slow, obvious double: for weights that are not finite. Follows spec/reference.py of
   convt3d. Memory is taken from the system, whatever workspace there is. */

typedef struct {
    double *data;
    i64 shape[5]; /* of one sample: the first is 1 */
} volume;

static double *doubles(run *r, i64 count) { return take(r, (size_t)count * sizeof(double)); }

static i64 voxels(const volume *v) { return v->shape[2] * v->shape[3] * v->shape[4]; }

/* Element of a volume at the place of another, larger one; axes of size 1 are repeated. */
static double repeated(const volume *v, i64 c, i64 d, i64 h, i64 w) {
    const i64 *s = v->shape;
    c = s[1] == 1 ? 0 : c;
    d = s[2] == 1 ? 0 : d;
    h = s[3] == 1 ? 0 : h;
    w = s[4] == 1 ? 0 : w;
    return v->data[((c * s[2] + d) * s[3] + h) * s[4] + w];
}

static volume sample_of(run *r, const C3D_ARRAY *a, i64 sample) {
    i64 strides[5], at = 0;
    volume v;
    strides_of(a, strides);
    memcpy(v.shape, a->shape, sizeof v.shape);
    v.shape[0] = 1;
    v.data = doubles(r, elements_of(v.shape));
    i64 first = a->shape[0] == 1 ? 0 : sample * strides[0];
    for (i64 c = 0; c < v.shape[1]; c++)
        for (i64 d = 0; d < v.shape[2]; d++)
            for (i64 h = 0; h < v.shape[3]; h++)
                for (i64 w = 0; w < v.shape[4]; w++) {
                    i64 from = first + c * strides[1] + d * strides[2] + h * strides[3] + w * strides[4];
                    v.data[at++] = stored(a->data, from);
                }
    return v;
}

static void mean_conv(run *r, const stage *s, const convolution *c, const volume *x, volume *y) {
    const C3D_ARRAY *weight = r->operand[s->slot];
    const conv_axis *a = c->axes;
    int forward = s->op == OP_CONV;
    i64 t[5], in_group = c->in_channels / c->groups, per_out = c->out_channels / c->groups;
    strides_of(weight, t);
    memset(y->data, 0, (size_t)elements_of(y->shape) * sizeof(double));
    for (i64 k = 0; k < a[D].kernel * a[H].kernel * a[W].kernel; k++) {
        i64 tap[3] = {k / a[W].kernel / a[H].kernel, k / a[W].kernel % a[H].kernel, k % a[W].kernel};
        const i64 *walked = forward ? y->shape + 2 : x->shape + 2, *met = forward ? x->shape + 2 : y->shape + 2;
        for (i64 n = 0; n < walked[D] * walked[H] * walked[W]; n++) {
            i64 at[3] = {n / walked[W] / walked[H], n / walked[W] % walked[H], n % walked[W]}, there[3];
            int inside = 1;
            for (int axis = 0; axis < 3; axis++) {
                there[axis] = at[axis] * a[axis].stride - a[axis].padding + tap[axis] * a[axis].dilation;
                inside &= there[axis] >= 0 && there[axis] < met[axis];
            }
            if (!inside)
                continue;
            i64 other = (there[D] * met[H] + there[H]) * met[W] + there[W];
            i64 from = forward ? other : n, to = forward ? n : other;
            for (i64 out = 0; out < c->out_channels; out++)
                for (i64 in = 0; in < in_group; in++) {
                    i64 cin = out / per_out * in_group + in;
                    i64 place = forward ? out * t[0] + in * t[1] : cin * t[0] + out % per_out * t[1];
                    double one = stored(weight->data, place + tap[D] * t[2] + tap[H] * t[3] + tap[W] * t[4]);
                    y->data[out * voxels(y) + to] += one * x->data[cin * voxels(x) + from];
                }
        }
    }
    if (s->slots > 1) {
        double *bias = wide_vector(r, s->slot + 1, c->out_channels);
        for (i64 at = 0; at < elements_of(y->shape); at++)
            y->data[at] += bias[at / voxels(y)];
    }
}

static double larger(double a, double b) { return isnan(a) || isnan(b) ? NAN : a > b ? a : b; }
static double smaller(double a, double b) { return isnan(a) || isnan(b) ? NAN : a < b ? a : b; }

static void mean_pool(run *r, const stage *s, const volume *x, volume *y) {
    pool_axis p[3];
    for (int axis = 0; axis < 3; axis++)
        p[axis] = pool_of(r, s, x->shape, axis);
    for (i64 at = 0; at < elements_of(y->shape); at++) {
        i64 o[3] = {at / y->shape[4] / y->shape[3] % y->shape[2], at / y->shape[4] % y->shape[3], at % y->shape[4]};
        i64 low[3], high[3], c = at / voxels(y);
        double count = 1, total = s->op == OP_MAX_POOL ? -INFINITY : 0.0;
        for (int axis = 0; axis < 3; axis++) {
            i64 start = o[axis] * p[axis].stride - p[axis].padding, border = s->ints[10] ? p[axis].padding : 0;
            low[axis] = most(start, 0);
            high[axis] = least(start + p[axis].kernel, p[axis].size);
            count *= (double)(least(start + p[axis].kernel, p[axis].size + border) - most(start, -border));
        }
        for (i64 d = low[D]; d < high[D]; d++)
            for (i64 h = low[H]; h < high[H]; h++)
                for (i64 w = low[W]; w < high[W]; w++) {
                    double one = repeated(x, c, d, h, w);
                    total = s->op == OP_MAX_POOL ? larger(total, one) : total + one;
                }
        y->data[at] = s->op == OP_MAX_POOL ? total : total / (s->ints[11] ? (double)s->ints[11] : count);
    }
}

/* Numbers that a norm, a softmax or a reduction takes together: `count` of them, `step` apart. */
typedef struct {
    double *data;
    i64 count, step;
} together;

static double fold_of(const together *q, enum op op) {
    double total = op == OP_MAX ? -INFINITY : 0.0;
    for (i64 n = 0; n < q->count; n++)
        total = op == OP_MAX ? larger(total, q->data[n * q->step]) : total + q->data[n * q->step];
    if (op == OP_LOG_SUM_EXP) {
        double largest = finite_or_zero(fold_of(q, OP_MAX));
        total = 0.0;
        for (i64 n = 0; n < q->count; n++)
            total += exp(q->data[n * q->step] - largest);
        return largest + log(total);
    }
    return op == OP_MEAN ? total / (double)q->count : total;
}

static void normalise(const together *q, double eps) {
    double mean = fold_of(q, OP_MEAN), squares = 0.0;
    for (i64 n = 0; n < q->count; n++)
        squares += (q->data[n * q->step] - mean) * (q->data[n * q->step] - mean);
    double deviation = sqrt(squares / (double)q->count + eps);
    for (i64 n = 0; n < q->count; n++)
        q->data[n * q->step] = (q->data[n * q->step] - mean) / deviation;
}

static void soften(const together *q, double shift) {
    double total = 0.0;
    for (i64 n = 0; n < q->count; n++)
        total += q->data[n * q->step] = exp(q->data[n * q->step] - shift);
    for (i64 n = 0; n < q->count; n++)
        q->data[n * q->step] /= total;
}

/* Part `n` of a value: all channels of a voxel, all voxels of some channels, or a row. */
static together part_of(const volume *v, const stage *s, i64 n) {
    if (s->op == OP_GROUP_NORM) {
        i64 count = v->shape[1] / s->ints[0] * voxels(v);
        return (together){v->data + n * count, count, 1};
    }
    if (s->op == OP_INSTANCE_NORM || s->over == OVER_SPACE)
        return (together){v->data + n * voxels(v), voxels(v), 1};
    if (s->over == OVER_WIDTH)
        return (together){v->data + n * v->shape[4], v->shape[4], 1};
    return (together){v->data + n, v->shape[1], voxels(v)};
}

static i64 parts_count(const volume *v, const stage *s) {
    if (s->op == OP_GROUP_NORM)
        return s->ints[0];
    together one = part_of(v, s, 0);
    return elements_of(v->shape) / one.count;
}

/* x * scale + shift, a number for each channel or, of a norm along the width, for each place of a row. */
static void affine(run *r, const stage *s, volume *v) {
    if (!s->slots)
        return;
    int along = s->op == OP_LAYER_NORM && s->over == OVER_WIDTH;
    i64 count = along ? v->shape[4] : v->shape[1];
    double *weight = wide_vector(r, s->slot, count), *bias = wide_vector(r, s->slot + 1, count);
    for (i64 at = 0; at < elements_of(v->shape); at++) {
        i64 n = along ? at % v->shape[4] : at / voxels(v);
        v->data[at] = v->data[at] * weight[n] + bias[n];
    }
}

static void mean_batch_norm(run *r, const stage *s, volume *v) {
    i64 count = v->shape[1];
    double *mean = wide_vector(r, s->slot, count), *variance = wide_vector(r, s->slot + 1, count);
    double *weight = s->slots > 2 ? wide_vector(r, s->slot + 2, count) : NULL;
    double *bias = s->slots > 2 ? wide_vector(r, s->slot + 3, count) : NULL;
    for (i64 at = 0; at < elements_of(v->shape); at++) {
        i64 n = at / voxels(v);
        double scale = (weight ? weight[n] : 1.0) / sqrt(variance[n] + scalar(r, s->numbers[0]));
        v->data[at] = v->data[at] * scale + ((bias ? bias[n] : 0.0) - mean[n] * scale);
    }
}

static double softplus(double x) { return larger(x, 0.0) + log1p(exp(-fabs(x))); }

static double pointwise(run *r, const stage *s, double x, double slope) {
    double a = scalar(r, s->numbers[0]), b = scalar(r, s->numbers[1]), shrunk = exp(-fabs(x));
    switch (s->op) {
    case OP_CLAMP:
        x = given(s->numbers[0]) ? larger(x, a) : x;
        return given(s->numbers[1]) ? smaller(x, b) : x;
    case OP_GELU:
        return s->over ? 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
                       : 0.5 * x * erfc(x * -0.7071067811865476);
    case OP_RELU: return larger(x, 0.0);
    case OP_LEAKY_RELU: return x > 0.0 ? x : x * a;
    case OP_PRELU: return x > 0.0 ? x : x * slope;
    case OP_SIGMOID: return (x < 0 ? shrunk : 1.0) / (1.0 + shrunk);
    case OP_TANH: return tanh(x);
    case OP_SILU: return (x < 0 ? x * shrunk : x) / (1.0 + shrunk);
    case OP_HARD_SWISH: return x * smaller(larger(x + 3.0, 0.0), 6.0) / 6.0;
    case OP_HARD_TANH: return smaller(larger(x, a), b);
    case OP_MISH: return x * tanh(softplus(x));
    case OP_SOFTPLUS: return x * a > b ? x : softplus(x * a) / a;
    case OP_EXP: return exp(x);
    case OP_LOG: return log(x);
    default: return x;
    }
}

static double combined(const stage *s, double x, double y) {
    double left = s->reverse ? y : x, right = s->reverse ? x : y;
    switch (s->op) {
    case OP_ADD: return left + right;
    case OP_SUBTRACT: return left - right;
    case OP_MULTIPLY: return left * right;
    default: return left / right;
    }
}

static void mean_binary(run *r, const form *f, const stage *s, const volume *x, volume *y, const volume *labelled,
                        i64 sample) {
    volume other = {0};
    double *vector = NULL;
    if (s->label >= 0)
        other = labelled[s->label];
    else if (s->slots && f->kinds[s->slot] == KIND_TENSOR)
        other = sample_of(r, r->operand[s->slot], sample);
    else if (s->slots)
        vector = wide_vector(r, s->slot, y->shape[1]);
    for (i64 at = 0; at < elements_of(y->shape); at++) {
        i64 w = at % y->shape[4], h = at / y->shape[4] % y->shape[3], d = at / y->shape[4] / y->shape[3] % y->shape[2];
        i64 c = at / voxels(y);
        double second = other.data ? repeated(&other, c, d, h, w) : vector ? vector[c] : scalar(r, s->numbers[0]);
        y->data[at] = combined(s, repeated(x, c, d, h, w), second);
    }
}

static void mean_stage(run *r, const form *f, const stage *s, const convolution *c, const volume *x, volume *y,
                       const volume *labelled, i64 sample) {
    switch (s->op) {
    case OP_TRANSPOSED:
    case OP_CONV:
        mean_conv(r, s, c, x, y);
        return;
    case OP_PAD:
        for (i64 at = 0; at < elements_of(y->shape); at++) {
            i64 o[3] = {at / y->shape[4] / y->shape[3] % y->shape[2], at / y->shape[4] % y->shape[3], at % y->shape[4]};
            for (int axis = 0; axis < 3; axis++)
                o[axis] = padded_source(o[axis] - pad_side(r, f, s, axis, 0), x->shape[2 + axis], s->over);
            y->data[at] = repeated(x, at / voxels(y), o[D], o[H], o[W]);
        }
        return;
    case OP_MAX_POOL:
    case OP_AVG_POOL:
        mean_pool(r, s, x, y);
        return;
    case OP_SUM:
    case OP_MEAN:
    case OP_MAX:
    case OP_LOG_SUM_EXP:
        for (i64 n = 0; n < parts_count(x, s); n++) {
            together own = part_of(x, s, n);
            y->data[n] = fold_of(&own, s->op);
        }
        return;
    case OP_ADD:
    case OP_SUBTRACT:
    case OP_MULTIPLY:
    case OP_DIVIDE:
        mean_binary(r, f, s, x, y, labelled, sample);
        return;
    case OP_RECALL:
        memcpy(y->data, labelled[s->label].data, (size_t)elements_of(y->shape) * sizeof(double));
        return;
    default:
        memcpy(y->data, x->data, (size_t)elements_of(y->shape) * sizeof(double));
    }
    if (s->op == OP_SOFTMAX || s->op == OP_LAYER_NORM || s->op == OP_GROUP_NORM || s->op == OP_INSTANCE_NORM) {
        for (i64 n = 0; n < parts_count(y, s); n++) {
            together own = part_of(y, s, n);
            if (s->op == OP_SOFTMAX)
                soften(&own, given(s->numbers[0]) ? scalar(r, s->numbers[0]) : fold_of(&own, OP_MAX));
            else
                normalise(&own, scalar(r, s->numbers[0]));
        }
        if (s->op != OP_SOFTMAX)
            affine(r, s, y);
        int scaled = s->op == OP_SOFTMAX && given(s->numbers[1]);
        for (i64 at = 0; scaled && at < elements_of(y->shape); at++)
            y->data[at] *= scalar(r, s->numbers[1]);
        return;
    }
    if (s->op == OP_BATCH_NORM) {
        mean_batch_norm(r, s, y);
        return;
    }
    double *slope = s->op == OP_PRELU ? wide_vector(r, s->slot, y->shape[1]) : NULL;
    for (i64 at = 0; at < elements_of(y->shape); at++)
        y->data[at] = pointwise(r, s, y->data[at], slope ? slope[at / voxels(y)] : 0.0);
}

/* A double as the caller's type holds it, rounded once, to nearest even. */
static void narrow(void *data, i64 at, double value) {
#if C3D_STORED == 32
    ((float *)data)[at] = (float)value;
#elif C3D_STORED == 64
    ((double *)data)[at] = value;
#else
    uint16_t sign = signbit(value) ? 0x8000 : 0, bits;
    int digits = C3D_STORED == 16 ? 10 : 7, lowest = C3D_STORED == 16 ? -14 : -126, exponent;
    double size = fabs(value);
    uint16_t infinite = C3D_STORED == 16 ? 0x7c00 : 0x7f80;
    if (isnan(value))
        bits = infinite | 1u << (digits - 1);
    else if (isinf(value))
        bits = infinite;
    else {
        frexp(size, &exponent);
        exponent = size == 0.0 || exponent - 1 < lowest ? lowest : exponent - 1;
        double units = nearbyint(ldexp(size, digits - exponent)); /* may round up to the next power of two */
        i64 whole = (i64)units + ((i64)(exponent - lowest) << digits);
        bits = whole >= infinite ? infinite : (uint16_t)whole;
    }
    ((uint16_t *)data)[at] = sign | bits;
#endif
}

static void by_meaning(run *r, const form *f, const i64 (*values)[5], const convolution *c) {
    char *workspace = r->workspace;
    chunk *before = r->chunks;
    i64 strides[5];
    r->workspace = NULL;
    strides_of(r->output, strides);
    for (i64 sample = 0; sample < values[0][0]; sample++) {
        volume x = sample_of(r, r->input, sample), labelled[C3D_LABELS];
        labelled[0] = x;
        for (int n = 0; n < f->stages; n++) {
            volume y;
            memcpy(y.shape, values[n + 1], sizeof y.shape);
            y.shape[0] = 1;
            y.data = doubles(r, elements_of(y.shape));
            mean_stage(r, f, &f->stage[n], c, &x, &y, labelled, sample);
            if (f->stage[n].op == OP_KEEP)
                labelled[f->stage[n].label] = y;
            x = y;
        }
        i64 at = 0;
        for (i64 channel = 0; channel < x.shape[1]; channel++)
            for (i64 d = 0; d < x.shape[2]; d++)
                for (i64 h = 0; h < x.shape[3]; h++)
                    for (i64 w = 0; w < x.shape[4]; w++, at++) {
                        i64 row = sample * strides[0] + channel * strides[1] + d * strides[2] + h * strides[3];
                        narrow(r->output->data, row + w * strides[4], x.data[at]);
                    }
        while (r->chunks != before) { /* memory of one sample */
            chunk *own = r->chunks;
            r->chunks = own->next;
            free(own);
        }
    }
    r->workspace = workspace;
}
