/* What all parts of the library share: errors that leave a run, its memory, and what a pipeline is described by. */

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int64_t i64;
typedef void (*kernel_fn)(i64 *table, i64 worker);

enum { D, H, W };

/* --- the description, which convt3d has written ------------------------------------------------------------------- */

typedef struct {
    int parameter; /* -1: the value itself; -2: none is given */
    double value;
} number_of;

enum { WHOLE = -1000, SAME }; /* of an integer: the axis, padding that keeps its size; -1 - n: parameter n */
#define DIVIDED(number, n) (2 * WHOLE - 256 * (number) - (n)) /* a number that parameter n divides, by it */

enum op {
    OP_TRANSPOSED, OP_CONV, OP_PAD, OP_MAX_POOL, OP_AVG_POOL, OP_SUM, OP_MEAN, OP_MAX, OP_LOG_SUM_EXP, OP_SOFTMAX,
    OP_LAYER_NORM, OP_GROUP_NORM, OP_INSTANCE_NORM, OP_BATCH_NORM, OP_KEEP, OP_RECALL, OP_ADD, OP_SUBTRACT,
    OP_MULTIPLY, OP_DIVIDE, OP_CLAMP, OP_GELU, OP_RELU, OP_LEAKY_RELU, OP_PRELU, OP_SIGMOID, OP_TANH, OP_SILU,
    OP_HARD_SWISH, OP_HARD_TANH, OP_MISH, OP_SOFTPLUS, OP_EXP, OP_LOG
};
enum { OVER_CHANNELS, OVER_SPACE, OVER_WIDTH };
enum { PAD_ZEROS, PAD_REFLECT, PAD_REPLICATE, PAD_CIRCULAR };

typedef struct {
    enum op op;
    int over;    /* channels, space or width; of a GELU, 1: by tanh; of padding, its mode */
    int reverse; /* the second value stands left of the sign */
    int label;   /* of the value that it names or uses; -1: none; 0: the input */
    int slot;    /* its first operand */
    int slots;
    number_of numbers[3]; /* as the stage has them */
    i64 ints[13];
} stage;

enum { KIND_KERNEL, KIND_CHANNEL, KIND_SLOPE, KIND_WIDTH, KIND_TENSOR };

/* Arrays of sweeps: 0 the input, 1 the output, then operands, values and statistics. */
enum { INPUT, OUTPUT, OPERAND = 2, VALUE = 64, STATISTIC = 128, NOTHING = -1 };

enum { LINK_PLAIN, LINK_CONSTANTS, LINK_TENSOR, LINK_KEEP };

typedef struct {
    int words; /* LINK_...: the set of words that it has */
    int collapses;
    int arrays, array[4];
    int shape; /* value whose shape a tensor has that is a value itself */
    int constants;
    number_of constant[3];
} chain_link;

enum step_kind {
    STEP_LOAD, STEP_PADDED, STEP_CONV, STEP_WINOGRAD, STEP_INTERLEAVE, STEP_CHAIN, STEP_ROW_NORM, STEP_POOL, STEP_PHASE_POOL,
    STEP_REDUCE, STEP_STORE
};

typedef struct {
    enum step_kind kind;
    int words, call;  /* where its sets begin in the table */
    int stage;        /* of the pipeline */
    int array;        /* that it reads or writes; NOTHING: the tile's memory */
    int numbers;      /* of a reduction: for each channel of a tile; of a load: 1: channels are taken in parts; of a pool:
                         1: it is told whether a window is as wide as the array */
    int paced;        /* of a convolution: a position may be several inputs wide */
    int links;
    const chain_link *link;
} step;

typedef struct sweep {
    int source, shape; /* array, and the value whose shape enters */
    int dest, result;
    int finish;   /* stage whose statistics are made; -1: none */
    int finished; /* array that they become */
    int whole_rows, in_parts;
    int steps;
    const step *step;
    int words, call; /* of the table: all, and where those of a call begin */
    const kernel_fn *kernels; /* for each instruction set */
    int by_rows; /* of channels that have taps of their own, rows are summed together */
    int pairs;   /* two input channels lie in each lane, and are multiplied at once */
    int masks;   /* products with what surrounds the array are left out */
    int in_order; /* elementwise: through memory in its order */
    i64 pace;    /* of Winograd's method: inputs of a position along the width; 0: any number */
    const struct sweep *rows;        /* the same, with rows summed together */
    const struct sweep *pieces;      /* the same, in pieces of taps and input channels */
    const struct sweep *masked[2];   /* the same without products around the array, whole and in pieces */
    const struct sweep *winograd[3]; /* the same: a position is one output wide, or two; or of any pace */
} sweep;

/* How operands change where a pipeline is rewritten. */
enum change_kind { LEAVE_OUT, SAME_NUMBERS, ADDED_UP, INTO_WEIGHTS, POOL_TAPS, SUM_TAPS };

typedef struct {
    enum change_kind kind;
    int first, count; /* operands that it is about */
    double eps;
    int biased, average;
    int kernel; /* which of all operands are the weights */
} change;

typedef struct form {
    int stages, sweeps, values, conv;
    const stage *stage;
    const sweep *sweep;
    const int *same; /* of each value, the first that has its shape, for every size that it serves */
    int aliases, alias[8]; /* arrays that live in the output */
    int slots;             /* operands, and the kind of each */
    const int *kinds;
    const struct form *apart; /* the same with a pool before the convolution in a sweep of its own */
    const struct form *tame;  /* the same, rewritten for tame operands, which change */
    int changes;
    const change *change;
    int average;           /* POOL_TAPS, SUM_TAPS: one behind the convolution is part of the weights; 0: none */
    i64 window[3], divisor; /* of its pool; 0: divided by as many as a window has */
} form;

enum { ONES = 1 << 20 }; /* an operand: a kernel of ones, one for each channel that enters */

/* One convolution, and the stages that go with it. Value 0 is the input; segment n gives value n + 1. */
typedef struct {
    const form *(*form_of)(int isa, const i64 *ints, const double *reals);
    const form *(*averaged_of)(int isa, const i64 *ints, const double *reals);
    int source;         /* the value that enters */
    int repeated;       /* along axes of size 1, to the sizes of this operand; -1: as it is */
    int operands;       /* in slot order */
    const int *operand; /* 0 and more: of the call; -1 - n: value n; or ONES */
    int last_reader;    /* of the value that it gives: the segment that reads it last */
} segment;

/* --- errors and memory -------------------------------------------------------------------------------------------- */

typedef struct chunk {
    struct chunk *next;
} chunk;

typedef struct {
    jmp_buf out;
    int code;
    char *workspace; /* the caller's; NULL: memory of our own */
    size_t size, used, peak;
    int counting; /* nothing is computed: large arrays are not needed */
    chunk *chunks;
    const form *averaged; /* tried first; NULL: there is none for these parameters */
    C3D_ARRAY entering, ones; /* what a segment reads; a kernel of ones */
    const C3D_ARRAY *input, *output, *operand[C3D_SLOTS + 1];
    const char *name[C3D_SLOTS + 1]; /* of each operand */
    int wide[C3D_SLOTS + 1]; /* operands that are double, made from those that were given */
    i64 *ints; /* parameters, and what an average's form takes from sizes */
    double *reals;
    const i64 *place[3]; /* there, of each tap among the new ones */
    i64 taps[3];
    double divisor, voxels_of_window;
    int threads;
} run;

static _Thread_local char message[256];

static int told(int code, const char *format, ...) {
    va_list words;
    va_start(words, format);
    vsnprintf(message, sizeof message, format, words);
    va_end(words);
    return code;
}

#define STOP(r, why, ...) (told(why, __VA_ARGS__), (r)->code = (why), longjmp((r)->out, 1))

static size_t aligned(size_t bytes) { return (bytes + 63) & ~(size_t)63; }

/* `bytes` of memory until the run ends, on a cache line of its own. */
static void *take(run *r, size_t bytes) {
    bytes = aligned(bytes ? bytes : 1);
    r->used += bytes;
    r->peak = r->used > r->peak ? r->used : r->peak;
    if (r->workspace) {
        if (r->used > r->size)
            STOP(r, C3D_WORKSPACE, "workspace: %zu bytes are too few; ask for the number that it needs", r->size);
        return r->workspace + r->used - bytes;
    }
    chunk *own = bytes < SIZE_MAX - 128 ? aligned_alloc(64, bytes + 64) : NULL;
    if (!own)
        STOP(r, C3D_MEMORY, "memory: %zu bytes cannot be allocated", bytes);
    own->next = r->chunks;
    r->chunks = own;
    return (char *)own + 64;
}

/* The same for what is only needed where something is computed. */
static void *take_large(run *r, size_t bytes) {
    if (!r->counting)
        return take(r, bytes);
    r->used += aligned(bytes ? bytes : 1);
    r->peak = r->used > r->peak ? r->used : r->peak;
    return NULL;
}

/* What was taken until now, and the end of all that was taken since. */
typedef struct {
    size_t used;
    chunk *chunks;
} mark;

static mark marked(const run *r) { return (mark){r->used, r->chunks}; }

static void give_back(run *r, mark since) {
    while (r->chunks != since.chunks) {
        chunk *next = r->chunks->next;
        free(r->chunks);
        r->chunks = next;
    }
    r->used = since.used;
}

/* --- numbers ------------------------------------------------------------------------------------------------------ */

static i64 least(i64 a, i64 b) { return a < b ? a : b; }
static i64 most(i64 a, i64 b) { return a > b ? a : b; }
static i64 floor_div(i64 a, i64 b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
static i64 modulo(i64 a, i64 b) { return a - floor_div(a, b) * b; }
static i64 ceil_div(i64 a, i64 b) { return -floor_div(-a, b); }
static i64 round_up(i64 a, i64 to) { return ceil_div(a, to) * to; }

/* Of sizes; what no memory could hold is all the same, and sums of some such products are numbers still. */
#define TOO_MUCH ((i64)1 << 48)
static i64 times(i64 a, i64 b) {
    i64 found;
    return __builtin_mul_overflow(a, b, &found) || found > TOO_MUCH ? TOO_MUCH : found;
}

#define ADDRESS(p) ((i64)(intptr_t)(p))

static i64 elements_of(const i64 *shape) { return shape[0] * shape[1] * shape[2] * shape[3] * shape[4]; }

static i64 integer(const run *r, i64 code, i64 axis_size) {
    i64 divided = DIVIDED(0, 0) - code;
    if (divided >= 0)
        return divided / 256 / r->ints[divided % 256];
    return code == WHOLE ? axis_size : code < 0 ? r->ints[-1 - code] : code;
}

static int given(number_of n) { return n.parameter != -2; }

/* A scalar as the arithmetic sees it. */
static double scalar(const run *r, number_of n) {
    double value = n.parameter < 0 ? n.value : r->reals[n.parameter];
    return (double)(number)value;
}

/* Strides as given, or those of a dense array where all are 0. */
static void strides_of(const C3D_ARRAY *a, i64 *strides) {
    i64 any = 0;
    for (int axis = 0; axis < 5; axis++)
        any |= a->strides[axis];
    if (any)
        memcpy(strides, a->strides, 5 * sizeof *strides);
    else
        for (i64 axis = 4, step = 1; axis >= 0; step *= most(a->shape[axis--], 1))
            strides[axis] = step;
}

#if C3D_STORED == 16
static double half_of(uint16_t bits) {
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double value = exponent == 31 ? (fraction ? NAN : INFINITY)
                   : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                  : ldexp(fraction, -24);
    return bits >> 15 ? -value : value;
}
#elif C3D_STORED == 17
static double half_of(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}
#endif

/* Element `at` of the caller's memory. */
static double stored(const void *data, i64 at) {
#if C3D_STORED == 32
    return ((const float *)data)[at];
#elif C3D_STORED == 64
    return ((const double *)data)[at];
#else
    return half_of(((const uint16_t *)data)[at]);
#endif
}

/* Element `at` of an operand's memory. */
static double number_at(const run *r, int slot, i64 at) {
    const void *data = r->operand[slot]->data;
    return r->wide[slot] ? ((const double *)data)[at] : stored(data, at);
}
