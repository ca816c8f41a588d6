/* The convolution's weights in the order the kernels read them: for each group and phase, blocks of [step][row]. */

/* Returns whether all are finite. */
static int pack_weights(const sweep_case *c, const C3D_ARRAY *weight, number *packed) {
    const walk *w = c->walks;
    int forward = w[D].axis.forward, finite = 1;
    i64 in_group = c->in_channels / c->groups, per_out = c->out_channels / c->groups, s[5], start = 0;
    strides_of(weight, s);
    i64 along_in = forward ? s[1] : s[0], along_out = forward ? s[0] : s[1];
    for (i64 group = 0; group < c->groups; group++)
        for (i64 a = 0; a < w[D].phases; a++)
            for (i64 b = 0; b < w[H].phases; b++)
                for (i64 g = 0; g < w[W].phases; g++) {
                    i64 taps = taps_of(&w[D], a) * taps_of(&w[H], b) * taps_of(&w[W], g), steps = taps * in_group;
                    i64 from = group * (forward ? per_out * along_out : in_group * along_in);
                    for (i64 first = 0; first < per_out; first += C3D_ROWS[c->m->isa]) {
                        i64 rows = least(C3D_ROWS[c->m->isa], per_out - first);
                        number *to = packed + start + first * steps;
                        for (i64 d = w[D].first[a]; d < w[D].first[a + 1]; d++)
                            for (i64 h = w[H].first[b]; h < w[H].first[b + 1]; h++)
                                for (i64 v = w[W].first[g]; v < w[W].first[g + 1]; v++) {
                                    i64 tap = from + w[D].taps[d].tap * s[2] + w[H].taps[h].tap * s[3];
                                    tap += w[W].taps[v].tap * s[4];
                                    for (i64 channel = 0; channel < in_group; channel++)
                                        for (i64 row = 0; row < rows; row++) {
                                            i64 at = tap + channel * along_in + (first + row) * along_out;
                                            double one = stored(weight->data, at);
                                            finite &= isfinite(one) != 0;
                                            *to++ = (number)one;
                                        }
                                }
                    }
                    start += steps * per_out;
                }
    return finite;
}
