/* A convolution in pieces of taps and input channels, where the slab of all would be too large. Follows
   cpu/plan/pieces.py and cpu/steps/pieces.py of convt3d. */

enum { PIECE_SHIFTS = 8, PIECE_CHANNELS = 128 };
#define ANY_SHIFTS ((i64)1 << 62)

typedef struct {
    i64 low, high;
} interval;

/* Which inputs share a slab. */
typedef struct {
    i64 channels; /* of a group, at most */
    i64 count[3], longest[3];
    interval *own[3]; /* shifts of each axis, cut */
} cutting;

static int rising(const void *one, const void *other) {
    i64 a = *(const i64 *)one, b = *(const i64 *)other;
    return (a > b) - (a < b);
}

/* `apart`: shifts between which others lie are in different pieces; `shifts`: at most, of one along an axis. */
static cutting *cut_into(run *r, const walk *w, int apart, i64 shifts, i64 channels) {
    cutting *c = take(r, sizeof *c);
    *c = (cutting){.channels = channels};
    for (int axis = 0; axis < 3; axis++) {
        i64 taps = w[axis].first[w[axis].phases], *shift = take(r, taps * sizeof *shift);
        interval *own = c->own[axis] = take(r, taps * sizeof *own), *last = own;
        for (i64 n = 0; n < taps; n++)
            shift[n] = clipped(&w[axis], w[axis].taps[n].shift);
        qsort(shift, taps, sizeof *shift, rising);
        *last = (interval){shift[0], shift[0]};
        for (i64 n = 1; n < taps; n++) {
            if (shift[n] - last->low >= shifts || (apart && shift[n] - shift[n - 1] > 1))
                *++last = (interval){shift[n], shift[n]};
            last->high = shift[n];
        }
        c->count[axis] = last - own + 1;
        for (; last >= own; last--)
            c->longest[axis] = most(c->longest[axis], last->high - last->low + 1);
    }
    return c;
}

static i64 boxes_of(const cutting *c) { return c->count[D] * c->count[H] * c->count[W]; }

/* The number of the interval that a shift is in. */
static i64 interval_of(const cutting *c, const walk *w, int axis, i64 shift) {
    i64 found = 0;
    while (found + 1 < c->count[axis] && c->own[axis][found + 1].low <= clipped(&w[axis], shift))
        found++;
    return found;
}

/* What may be tried; how many ways there are. */
static int ways_to_cut(run *r, const walk *w, i64 in_group, const cutting **found) {
    cutting *apart = cut_into(r, w, 1, ANY_SHIFTS, in_group);
    int dilated = boxes_of(apart) > 1, wide = 0, count = 0;
    for (int axis = 0; axis < 3; axis++)
        wide |= w[axis].high - w[axis].low >= PIECE_SHIFTS;
    if (dilated)
        found[count++] = apart;
    if (in_group > PIECE_CHANNELS)
        found[count++] = cut_into(r, w, dilated, ANY_SHIFTS, PIECE_CHANNELS);
    if (wide && !dilated)
        found[count++] = cut_into(r, w, 0, PIECE_SHIFTS, least(in_group, PIECE_CHANNELS));
    return count;
}

/* Fills the words of PiecesWords; `phases` are rows of PhaseWords. */
static void put_pieces(run *r, const cutting *c, const walk *w, i64 in_group, const i64 *phases, i64 *words) {
    i64 taps = w[D].axis.kernel * w[H].axis.kernel * w[W].axis.kernel, blocks = ceil_div(in_group, c->channels);
    i64 count = boxes_of(c) * blocks, *piece = take(r, count * CutWords_words * sizeof *piece);
    i64 *runs = take(r, taps * blocks * RunWords_words * sizeof *runs), made = 0;
    words[PiecesWords_pieces] = ADDRESS(piece);
    words[PiecesWords_count] = count;
    words[PiecesWords_runs] = ADDRESS(runs);
    for (int axis = 0; axis < 3; axis++)
        words[PiecesWords_shifts + axis] = c->longest[axis];
    for (i64 box = 0; box < boxes_of(c); box++) {
        i64 at[3] = {box / c->count[W] / c->count[H], box / c->count[W] % c->count[H], box % c->count[W]};
        for (i64 block = 0; block < blocks; block++, piece += CutWords_words) {
            i64 first = block * c->channels, channels = least(c->channels, in_group - first), begin = made, phase = 0;
            for (i64 a = 0; a < w[D].phases; a++)
                for (i64 b = 0; b < w[H].phases; b++)
                    for (i64 g = 0; g < w[W].phases; g++, phase++) {
                        const i64 *row = phases + phase * PhaseWords_words;
                        i64 tap = -1;
                        for (i64 d = w[D].first[a]; d < w[D].first[a + 1]; d++)
                            for (i64 h = w[H].first[b]; h < w[H].first[b + 1]; h++)
                                for (i64 v = w[W].first[g]; v < w[W].first[g + 1]; v++) {
                                    i64 shift = w[D].taps[d].shift, before = ++tap * in_group + first;
                                    if (interval_of(c, w, D, shift) != at[D] ||
                                        interval_of(c, w, H, w[H].taps[h].shift) != at[H] ||
                                        interval_of(c, w, W, w[W].taps[v].shift) != at[W])
                                        continue;
                                    i64 *last = runs + (made - 1) * RunWords_words;
                                    if (made > begin && last[RunWords_phase] == row[PhaseWords_phase] &&
                                        last[RunWords_shift] == shift &&
                                        last[RunWords_before] + last[RunWords_left] == before) {
                                        last[RunWords_left] += channels; /* goes on where it ends */
                                        continue;
                                    }
                                    last = runs + made++ * RunWords_words;
                                    last[RunWords_phase] = row[PhaseWords_phase];
                                    last[RunWords_steps] = row[PhaseWords_steps];
                                    last[RunWords_weight] = row[PhaseWords_weight];
                                    last[RunWords_offset] = row[PhaseWords_offset];
                                    last[RunWords_before] = before;
                                    last[RunWords_left] = channels;
                                    last[RunWords_shift] = shift;
                                }
                    }
            piece[CutWords_depth] = c->own[D][at[D]].low;
            piece[CutWords_height] = c->own[H][at[H]].low;
            piece[CutWords_width] = c->own[W][at[W]].low;
            piece[CutWords_channel] = first;
            piece[CutWords_channels] = channels;
            piece[CutWords_first] = begin;
            piece[CutWords_behind] = made;
        }
    }
}
