/* The functions of the header, whatever the pipeline: a run begins and ends here. */

/* The code of what is wrong with a call, whatever its sizes. */
static int checked(const C3D_ARGS *args, int needs_data) {
    if (!args)
        return told(C3D_ARGUMENT, "args: is NULL");
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
    for (int axis = 0; axis < 5; axis++)
        if (needs_data && args->output.shape[axis] > 1 && !args->output.strides[axis])
            for (int other = 0; other < 5; other++)
                if (args->output.strides[other])
                    return told(C3D_ARGUMENT, "output: has a stride of 0: voxels would lie on each other");
    return C3D_OK;
}

static const form *begin(const C3D_ARGS *args, run *r, i64 *ints, double *reals, int counting) {
    *r = (run){.counting = counting, .ints = ints, .reals = reals};
    r->input = &args->input;
    r->output = &args->output;
    for (int slot = 0; slot < C3D_SLOTS; slot++)
        r->operand[slot] = operand_of(args, slot);
    parameters_of(args, ints, reals);
    r->threads = args->threads ? args->threads : usable_threads();
    if (!counting && args->workspace) {
        size_t lost = -(uintptr_t)args->workspace & 63;
        r->workspace = (char *)args->workspace + lost;
        r->size = args->workspace_bytes > lost ? args->workspace_bytes - lost : 0;
    }
    r->averaged = averaged_of(this_machine()->isa, ints, reals);
    return form_of(this_machine()->isa, ints, reals);
}

typedef void (*task)(run *r, const form *f, i64 *shape);

static void all_of_it(run *r, const form *f, i64 *shape) {
    (void)shape;
    execute_all(r, f);
}

static void shapes_only(run *r, const form *f, i64 *shape) {
    i64 values[C3D_STAGES + 1][5];
    convolution c;
    trace(r, f, values, &c);
    memcpy(shape, values[f->stages], sizeof values[0]);
}

/* Whatever happens, memory is given back. */
static int guarded(run *r, const form *f, task what, i64 *shape) {
    if (!setjmp(r->out))
        what(r, f, shape);
    give_back(r, (mark){0, NULL});
    return r->code;
}

static int begun(const C3D_ARGS *args, int counting, task what, i64 *shape, size_t *used) {
    run r;
    i64 ints[C3D_INTS + 12];
    double reals[C3D_REALS + 2];
    int before = errno, code = checked(args, !counting);
    if (!code) {
        const form *chosen = begin(args, &r, ints, reals, counting);
        code = guarded(&r, chosen, what, shape);
        if (used && !code)
            *used = r.peak + 64;
    }
    errno = before;
    return code;
}

int C3D_RUN(const C3D_ARGS *args) { return begun(args, 0, all_of_it, NULL, NULL); }

int C3D_ASK(const C3D_ARGS *args, size_t *bytes) {
    return bytes ? begun(args, 1, all_of_it, NULL, bytes) : told(C3D_ARGUMENT, "bytes: is NULL");
}

int C3D_SHAPE_OF(const C3D_ARGS *args, int64_t shape[5]) {
    return shape ? begun(args, 1, shapes_only, shape, NULL) : told(C3D_ARGUMENT, "shape: is NULL");
}

const char *C3D_TEXT(void) { return message; }

const char *C3D_CHOSEN(void) { return C3D_ISA[this_machine()->isa]; }
