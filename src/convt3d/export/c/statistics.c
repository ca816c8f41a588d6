/* Combines the statistics of tiles, in double and in a fixed order, into what the next sweep applies. Follows
   cpu/runtime/statistics.py of convt3d; sums are taken in the order in which NumPy takes them. */

/* NumPy's pairwise sum. */
static double pairwise(const double *a, i64 n, i64 step) {
    if (n < 8) {
        double total = 0.0;
        for (i64 at = 0; at < n; at++)
            total += a[at * step];
        return total;
    }
    if (n <= 128) {
        double r[8];
        i64 at;
        for (int k = 0; k < 8; k++)
            r[k] = a[k * step];
        for (at = 8; at < n - n % 8; at += 8)
            for (int k = 0; k < 8; k++)
                r[k] += a[(at + k) * step];
        double total = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
        for (; at < n; at++)
            total += a[at * step];
        return total;
    }
    i64 half = n / 2;
    half -= half % 8;
    return pairwise(a, half, step) + pairwise(a + half * step, n - half, step);
}

static double finite_or_zero(double x) { return isinf(x) ? 0.0 : x; }

typedef struct {
    i64 batch, channels, tiles;
    int numbers;
    const double *partials; /* (batch, tiles, channels, numbers) */
    const double *voxels;   /* of each tile */
    double *room;           /* of as many numbers as there are tiles, and as many as there are channels */
} statistics;

static double partial(const statistics *s, i64 sample, i64 tile, i64 channel, int n) {
    return s->partials[((sample * s->tiles + tile) * s->channels + channel) * s->numbers + n];
}

static double summed(const statistics *s, i64 sample, i64 channel) {
    for (i64 tile = 0; tile < s->tiles; tile++)
        s->room[tile] = partial(s, sample, tile, channel, 0);
    return pairwise(s->room, s->tiles, 1);
}

static double maximum(const statistics *s, i64 sample, i64 channel) {
    double found = -INFINITY;
    for (i64 tile = 0; tile < s->tiles; tile++) {
        double one = partial(s, sample, tile, channel, 0);
        if (isnan(one))
            return one;
        found = one > found ? one : found;
    }
    return found;
}

/* The sum of exp(value - largest); an infinite maximum counts as zero in the exponent. */
static double exponentials(const statistics *s, i64 sample, i64 channel, double largest) {
    for (i64 tile = 0; tile < s->tiles; tile++) {
        double moved = exponential(finite_or_zero(partial(s, sample, tile, channel, 0)) - finite_or_zero(largest));
        s->room[tile] = partial(s, sample, tile, channel, 1) * moved;
    }
    return pairwise(s->room, s->tiles, 1);
}

/* The next value (B, C, 1, 1, 1). */
static void finish_value(const statistics *s, const stage *of, number *value) {
    double voxels = pairwise(s->voxels, s->tiles, 1);
    for (i64 sample = 0; sample < s->batch; sample++)
        for (i64 channel = 0; channel < s->channels; channel++) {
            double found;
            if (of->op == OP_LOG_SUM_EXP) {
                double largest = maximum(s, sample, channel);
                found = finite_or_zero(largest) + logarithm(exponentials(s, sample, channel, largest));
            } else if (of->op == OP_MAX)
                found = maximum(s, sample, channel);
            else {
                found = summed(s, sample, channel);
                found = of->op == OP_MEAN ? found / voxels : found;
            }
            value[sample * s->channels + channel] = (number)found;
        }
}

/* Vectors (B, C): shift, scale and offset, one after the other. `scale` and `bias` are the stage's own, or NULL. */
static void finish_softmax(run *r, const statistics *s, const stage *of, const double *scale, number *vectors) {
    i64 all = s->batch * s->channels;
    int bounded = given(of->numbers[0]), scaled = given(of->numbers[1]);
    for (i64 sample = 0; sample < s->batch; sample++)
        for (i64 channel = 0; channel < s->channels; channel++) {
            i64 at = sample * s->channels + channel;
            double factor = scale ? scale[channel] : scaled ? scalar(r, of->numbers[1]) : 1.0;
            if (bounded) {
                vectors[all + at] = (number)(factor / summed(s, sample, channel));
                continue;
            }
            double largest = maximum(s, sample, channel), total = exponentials(s, sample, channel, largest);
            vectors[at] = (number)largest;
            vectors[all + at] = (number)(isinf(largest) ? NAN : factor / total);
        }
}

static void finish_norm(run *r, const statistics *s, const stage *of, const double *weight, const double *bias,
                        number *vectors) {
    i64 groups = of->op == OP_GROUP_NORM ? of->ints[0] : s->channels;
    i64 size = s->channels / groups, all = s->batch * s->channels;
    double eps = scalar(r, of->numbers[0]), total = pairwise(s->voxels, s->tiles, 1) * (double)size;
    double *each = s->room + s->tiles;
    for (i64 sample = 0; sample < s->batch; sample++)
        for (i64 group = 0; group < groups; group++) {
            for (i64 n = 0; n < size; n++) {
                for (i64 tile = 0; tile < s->tiles; tile++)
                    s->room[tile] = partial(s, sample, tile, group * size + n, 0) * s->voxels[tile];
                each[n] = pairwise(s->room, s->tiles, 1);
            }
            double mean = pairwise(each, size, 1) / total;
            for (i64 n = 0; n < size; n++) {
                for (i64 tile = 0; tile < s->tiles; tile++) {
                    double distance = partial(s, sample, tile, group * size + n, 0) - mean;
                    double square = s->voxels[tile] * distance * distance;
                    s->room[tile] = partial(s, sample, tile, group * size + n, 1) + square;
                }
                each[n] = pairwise(s->room, s->tiles, 1);
            }
            double deviation = 1.0 / sqrt(pairwise(each, size, 1) / total + eps);
            for (i64 n = 0; n < size; n++) {
                i64 channel = group * size + n, at = sample * s->channels + channel;
                double scale = weight ? deviation * weight[channel] : deviation;
                number near = (number)mean;
                double rest = isfinite((number)scale) ? ((double)near - mean) * scale : 0.0;
                vectors[at] = near;
                vectors[all + at] = (number)scale;
                vectors[2 * all + at] = (number)(rest + (bias ? bias[channel] : 0.0));
            }
        }
}
