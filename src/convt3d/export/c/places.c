/* Where words, phases and inputs stand: in a kernel's table, in a tile's result, in its slab. Follows
   cpu/plan/geometry.py and slab.py of convt3d. */

static void put_room(i64 *words, const room *q) {
    words[0] = q->offset;
    words[1] = q->pitch;
}

static i64 *places_table(run *r, const walk *w) {
    i64 count = least(w->period, conv_out(&w->axis)), *found = take(r, count * sizeof *found);
    for (i64 at = 0; at < count; at++)
        found[at] = w->kept == w->period ? at : w->kept - 1;
    if (w->kept != w->period)
        for (i64 n = 0; n < w->phases; n++)
            if (phase_of(w, n) < count)
                found[phase_of(w, n)] = n;
    return found;
}

/* Where an input lies in the slab, or in that of its piece, given by its shift. */
static i64 slab_place(const walk *w, const slab *s, const cutting *c, int axis, i64 shift) {
    i64 low = c ? c->own[axis][interval_of(c, w, axis, shift)].low : w[axis].low, from = clipped(&w[axis], shift) - low;
    if (axis == D)
        return from * s->height * s->pitch;
    if (axis == H)
        return (from % w[H].pace * (s->height / s->turns) + from / w[H].pace) * s->pitch;
    return from % s->copies * s->copy + from / s->copies;
}

