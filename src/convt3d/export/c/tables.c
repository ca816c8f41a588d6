/* The words of a kernel's table that depend on sizes, and the tables that they point to. Follows the binders in
   cpu/steps/ of convt3d; places of the words come from cpu/words.py. */

/* A row for each phase that has taps, and the offset in the slab of every step; how many steps there are. */
static i64 phase_tables(run *r, const sweep_case *c, const slab *s, i64 **table, i64 **offsets) {
    const walk *w = c->by->walks;
    const cutting *cut = c->cut;
    i64 in_group = c->in_group, per_out = c->out_channels / c->groups;
    i64 together = cut ? cut->channels : in_group;
    i64 phases = w[D].phases * w[H].phases * w[W].phases, steps = c->kernel[D] * c->kernel[H] * c->kernel[W] * in_group;
    i64 *row = *table = take(r, phases * PhaseWords_words * sizeof *row);
    i64 *offset = *offsets = take(r, (steps + 1) * sizeof *offset), start = 0;
    for (i64 a = 0; a < w[D].phases; a++)
        for (i64 b = 0; b < w[H].phases; b++)
            for (i64 g = 0; g < w[W].phases; g++, row += PhaseWords_words) {
                const tap_of *depth = &w[D].taps[w[D].first[a]];
                i64 taps = taps_of(&w[D], a) * taps_of(&w[H], b) * taps_of(&w[W], g);
                i64 plane = place_of(&w[D], a) * w[H].kept + place_of(&w[H], b);
                row[PhaseWords_phase] = plane * w[W].kept + place_of(&w[W], g);
                row[PhaseWords_steps] = taps * in_group;
                row[PhaseWords_offset] = start;
                row[PhaseWords_weight] = start * per_out;
                row[PhaseWords_taps] = taps_of(&w[D], a);
                row[PhaseWords_shift] = depth[0].shift;
                row[PhaseWords_apart] = taps_of(&w[D], a) > 1 ? depth[0].shift - depth[1].shift : 1;
                row[PhaseWords_height] = taps_of(&w[H], b);
                start += taps * in_group;
                for (i64 d = w[D].first[a]; d < w[D].first[a + 1]; d++)
                    for (i64 h = w[H].first[b]; h < w[H].first[b + 1]; h++)
                        for (i64 v = w[W].first[g]; v < w[W].first[g + 1]; v++) {
                            i64 place = slab_place(w, s, cut, D, w[D].taps[d].shift);
                            place += slab_place(w, s, cut, H, w[H].taps[h].shift);
                            place += slab_place(w, s, cut, W, w[W].taps[v].shift);
                            for (i64 channel = 0; channel < in_group; channel++)
                                *offset++ = place + channel % together * s->channel;
                        }
            }
    *offset = 0;
    return steps;
}

static void put_conv(run *r, const sweep_case *c, const step *p, const tiling *t, const room *q, i64 *table) {
    i64 *words = table + p->words, *own = words + ConvWords_words, *phases, *offsets;
    const slab *s = &t->slab;
    const walk *w = c->by->walks;
    i64 per_out = c->out_channels / c->groups, in_group = c->in_group, numbers;
    if (p->kind == STEP_WINOGRAD) {
        i64 steps = most_pieces_of(c->by) * in_group;
        put_room(own + PacedWords_row, &q[1]);
        numbers = put_winograd(r, c, t, q + 2, own + PacedWords_words);
        put_room(words + ConvWords_phased, &q[5]);
        offsets = take(r, (steps + 1) * sizeof *offsets);
        for (i64 at = 0; at <= steps; at++)
            offsets[at] = at * t->blocking.positions;
    } else {
        numbers = phase_tables(r, c, s, &phases, &offsets) * per_out;
        put_room(words + ConvWords_phased, &q[1 + !!p->paced + c->s->masks]);
        own[DirectWords_phase_table] = ADDRESS(phases);
        own[DirectWords_in_depth] = w[D].axis.size;
        own[DirectWords_share_groups] = t->share.groups;
        own[DirectWords_share_blocks] = t->share.blocks;
        if (p->paced)
            put_room(own + DirectWords_words + PacedWords_row, &q[1]);
        own += DirectWords_words + (p->paced ? PacedWords_words : 0);
        if (c->cut)
            put_pieces(r, c->cut, w, in_group, phases, own);
        if (c->s->masks) { /* a slab of one channel that tells what is inside the array */
            slab inside = *s;
            i64 *places;
            inside.copy = s->channel;
            inside.channel = 0;
            phase_tables(r, c, &inside, &phases, &places);
            own += c->cut ? PiecesWords_words : 0;
            put_room(own + MaskWords_inside, &q[1 + !!p->paced]);
            own[MaskWords_places] = ADDRESS(places);
        }
    }
    put_room(words + ConvWords_slab, &q[0]);
    words[ConvWords_row] = s->pitch;
    words[ConvWords_slab_depth] = s->depth;
    words[ConvWords_slab_height] = s->height;
    words[ConvWords_turns] = s->turns;
    words[ConvWords_planes] = s->planes;
    words[ConvWords_copies] = s->copies;
    words[ConvWords_copy] = s->copy;
    words[ConvWords_phase] = s->phase;
    words[ConvWords_plane] = s->plane;
    words[ConvWords_merged] = s->merged;
    words[ConvWords_in_channels] = c->in_channels;
    words[ConvWords_out_channels] = c->out_channels;
    words[ConvWords_in_group] = in_group;
    words[ConvWords_out_group] = per_out;
    words[ConvWords_groups] = c->groups;
    words[ConvWords_biased] = c->f->stage[c->f->conv].slots > 1;
    words[ConvWords_phases] = kept_phases(w);
    words[ConvWords_pooled_phases] = together_at(c);
    words[ConvWords_phases_with_taps] = w[D].phases * w[H].phases * w[W].phases;
    for (int axis = 0; axis < 3; axis++) {
        i64 *each = take(r, w[axis].together * sizeof *each);
        for (i64 at = 0; at < w[axis].together; at++)
            each[at] = at;
        words[ConvWords_strides + axis] = w[axis].axis.stride;
        words[ConvWords_periods + axis] = w[axis].period;
        words[ConvWords_kept + axis] = w[axis].kept;
        words[ConvWords_places + axis] = ADDRESS(places_table(r, &w[axis]));
        words[ConvWords_together + axis] = w[axis].together;
        words[ConvWords_together_places + axis] = ADDRESS(each);
        words[ConvWords_paces + axis] = w[axis].pace;
    }
    words[ConvWords_weights_group] = numbers;
    words[ConvWords_offsets] = ADDRESS(offsets);
}

static i64 constants_table(run *r, int count, const number_of *given) {
    number *found = take(r, (count + 1) * sizeof *found);
    for (int n = 0; n < count; n++)
        found[n] = (number)scalar(r, given[n]);
    return ADDRESS(found);
}

/* For each output of a pool: first input, end, and the count an average divides by. */
static i64 windows_table(run *r, const pool_axis *p, int include_pad, i64 divisor) {
    i64 out = pool_out(p), *found = take(r, 3 * out * sizeof *found), border = include_pad ? p->padding : 0;
    for (i64 o = 0; o < out; o++) {
        i64 start = o * p->stride - p->padding;
        found[3 * o] = most(start, 0);
        found[3 * o + 1] = least(start + p->kernel, p->size);
        found[3 * o + 2] = divisor ? divisor : least(start + p->kernel, p->size + border) - most(start, -border);
    }
    return ADDRESS(found);
}

/* The voxel that a place of a padded axis holds. */
static i64 padded_source(i64 at, i64 size, int mode) {
    if (mode == PAD_REPLICATE)
        return least(most(at, 0), size - 1);
    if (mode == PAD_CIRCULAR)
        return modulo(at, size);
    return at < 0 ? -at : at >= size ? 2 * (size - 1) - at : at;
}

/* The words that sizes decide, step by step. */
static void put_words(run *r, const sweep_case *c, const tiling *t, i64 *table) {
    const sweep *s = c->s;
    const room *q = t->rooms;
    i64 tiles = t->axes[D].tiles * t->axes[H].tiles * t->axes[W].tiles;
    table[SweepWords_items] = tiles * t->shares * c->values[0][0];
    table[SweepWords_shares] = t->shares;
    table[SweepWords_channels] = c->values[s->shape][1];
    table[SweepWords_row_words] = most(c->geometric, 1) * STEP_WORDS;
    for (int axis = 0; axis < 3; axis++) {
        table[SweepWords_tiles + axis] = t->axes[axis].tiles;
        table[SweepWords_tables + axis] = ADDRESS(axis_table(r, &t->axes[axis]));
    }
    if (s->in_order) {
        i64 *share = table + s->step[0].words - ShareWords_words;
        share[ShareWords_channels] = t->share.channels;
        share[ShareWords_voxels] = piece_of(c, t->tile[W]);
    }
    table[SweepWords_scratch_size] = t->scratch / (i64)sizeof(number);
    for (int n = 0; n < s->steps; n++) {
        const step *p = &s->step[n];
        const stage *of = &c->f->stage[p->stage];
        const i64 *shape = c->values[p->stage];
        i64 *words = table + p->words;
        switch (p->kind) {
        case STEP_LOAD:
        case STEP_INTERLEAVE:
        case STEP_PHASE_POOL:
            put_room(words, q++);
            break;
        case STEP_PADDED:
            put_room(words + PadWords_box, q++);
            for (int axis = 0; axis < 3; axis++) {
                i64 size = shape[2 + axis], out = c->values[p->stage + 1][2 + axis];
                i64 *found = take(r, out * sizeof *found);
                for (i64 at = 0; at < out; at++)
                    found[at] = padded_source(at - pad_side(r, c->f, of, axis, 0), size, of->over);
                words[PadWords_sources + axis] = ADDRESS(found);
            }
            words[PadWords_before] = pad_side(r, c->f, of, W, 0);
            words[PadWords_width] = shape[4];
            break;
        case STEP_CONV:
        case STEP_WINOGRAD:
            put_conv(r, c, p, t, q, table);
            q += p->kind == STEP_WINOGRAD ? 6 : 2 + !!p->paced + s->masks;
            break;
        case STEP_CHAIN:
            for (int m = 0; m < p->links; m++) {
                const chain_link *l = &p->link[m];
                if (l->words == LINK_CONSTANTS)
                    *words++ = constants_table(r, l->constants, l->constant);
                else if (l->words != LINK_PLAIN) {
                    put_room(words, q++);
                    words += 2;
                }
            }
            break;
        case STEP_ROW_NORM:
            *words = constants_table(r, p->link->constants, p->link->constant);
            break;
        case STEP_POOL:
            put_room(words + PoolWords_pooled, q++);
            put_room(words + PoolWords_row, q++);
            for (int axis = 0; axis < 3; axis++) {
                pool_axis own = pool_of(r, of, shape, axis);
                i64 divisor = of->ints[11] ? (axis == D ? of->ints[11] : 1) : 0;
                words[PoolWords_windows + axis] = windows_table(r, &own, (int)of->ints[10], divisor);
                if (axis == W && p->numbers)
                    words[PoolWords_words + WidthWords_whole] = own.kernel == own.size;
            }
            break;
        default:
            break;
        }
    }
}
