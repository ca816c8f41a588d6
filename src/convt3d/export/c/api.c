/* The functions of the header, whatever the pipeline: a run begins and ends here. */

/* Where a dense array ends; 0 where it is not dense: then its voxels may lie between those of another. */
static uintptr_t end_of(const C3D_ARRAY *a) {
    i64 strides[5], step = 1;
    strides_of(a, strides);
    for (int axis = 4; axis >= 0; axis--) {
        if (a->shape[axis] < 0 || (a->shape[axis] > 1 && strides[axis] != step))
            return 0;
        step = times(step, most(a->shape[axis], 1));
    }
    return (uintptr_t)a->data + (uintptr_t)step * C3D_ITEM;
}

static int overlap(const C3D_ARRAY *a, const C3D_ARRAY *b) {
    uintptr_t end = end_of(a), other = end_of(b);
    return a->data == b->data || (end && other && (uintptr_t)a->data < other && (uintptr_t)b->data < end);
}

/* The code of what is wrong with a call, whatever its sizes. */
static int checked(const C3D_ARGS *args, int needs_data) {
    if (!args)
        return told(C3D_ARGUMENT, "args: is NULL");
    if (this_machine()->refused)
        return told(C3D_ARGUMENT, "CONVT3D_ISA: is no instruction set that processor and library have");
    if (args->threads < 0 || args->threads > MOST_THREADS)
        return told(C3D_ARGUMENT, "threads: %d is not between 0 and %d", args->threads, MOST_THREADS);
    if (!args->threads && !usable_threads())
        return told(C3D_ARGUMENT, "CONVT3D_NUM_THREADS: must be a positive integer up to %d", MOST_THREADS);
    const C3D_ARRAY *arrays[C3D_SLOTS + 2];
    const char *names[C3D_SLOTS + 2] = {"input", "output"};
    arrays[0] = &args->input;
    arrays[1] = &args->output;
    for (int slot = 0; slot < C3D_SLOTS; slot++) {
        arrays[2 + slot] = operand_of(args, slot);
        names[2 + slot] = C3D_NAMES[slot];
    }
    int empty = args->input.shape[0] == 0;
    for (int n = 0; n < C3D_SLOTS + 2; n++) {
        double reach = 0; /* from the first element to the last, in bytes */
        for (int axis = 0; axis < 5; axis++)
            reach += fabs((double)arrays[n]->strides[axis]) * fabs((double)arrays[n]->shape[axis]) * C3D_ITEM;
        if (reach > ldexp(1.0, 62))
            return told(C3D_ARGUMENT, "%s: its strides leave the memory", names[n]);
        if (needs_data && !arrays[n]->data && !(empty && n < 2))
            return told(C3D_ARGUMENT, "%s: has no data", names[n]);
        if (needs_data && (uintptr_t)arrays[n]->data % C3D_ITEM)
            return told(C3D_ARGUMENT, "%s: its address is no multiple of %d", names[n], C3D_ITEM);
    }
    for (int n = 0; n < C3D_SLOTS + 2 && needs_data && !empty; n++)
        if (n != 1 && overlap(&args->output, arrays[n]))
            return told(C3D_ARGUMENT, "output: lies on %s", names[n]);
    for (int axis = 0; axis < 5; axis++)
        if (needs_data && args->output.shape[axis] > 1 && !args->output.strides[axis])
            for (int other = 0; other < 5; other++)
                if (args->output.strides[other])
                    return told(C3D_ARGUMENT, "output: has a stride of 0: voxels would lie on each other");
    return C3D_OK;
}

typedef void (*task)(run *r, const C3D_ARGS *args, i64 *shape);

/* Whatever happens, memory is given back. */
static int guarded(run *r, const C3D_ARGS *args, task what, i64 *shape) {
    if (!setjmp(r->out))
        what(r, args, shape);
    give_back(r, (mark){0, NULL});
    return r->code;
}

static int begun(const C3D_ARGS *args, int counting, task what, i64 *shape, size_t *used) {
    i64 ints[C3D_INTS + 12];
    double reals[C3D_REALS + 2];
    run r = {.counting = counting, .ints = ints, .reals = reals};
    int before = errno, code = checked(args, !counting);
    if (!code) {
        parameters_of(args, ints, reals);
        r.threads = args->threads ? args->threads : usable_threads();
        if (!counting && args->workspace) {
            size_t lost = -(uintptr_t)args->workspace & 63;
            r.workspace = (char *)args->workspace + lost;
            r.size = args->workspace_bytes > lost ? args->workspace_bytes - lost : 0;
        }
        code = guarded(&r, args, what, shape);
        if (used && !code)
            *used = r.peak + 64;
    }
    errno = before;
    return code;
}

int C3D_RUN(const C3D_ARGS *args) { return begun(args, 0, run_segments, NULL, NULL); }

int C3D_ASK(const C3D_ARGS *args, size_t *bytes) {
    return bytes ? begun(args, 1, run_segments, NULL, bytes) : told(C3D_ARGUMENT, "bytes: is NULL");
}

int C3D_SHAPE_OF(const C3D_ARGS *args, int64_t shape[5]) {
    return shape ? begun(args, 1, shapes_only, shape, NULL) : told(C3D_ARGUMENT, "shape: is NULL");
}

const char *C3D_TEXT(void) { return message; }

const char *C3D_CHOSEN(void) { return C3D_ISA[this_machine()->isa]; }
