/* A linear model's step: products of sparse rows, sums of groups, and residuals that are measured, clipped and scaled.
 *
 * Each function computes the bits of the operations that define it (worker/data/entries.py, worker/clipping/residuals.py):
 * IEEE operations in the same order, each rounded once, without contraction. Which rows and columns have entries decides
 * what is added; no other path through it depends on a number.
 */
#include <float.h>
#include <stdint.h>
#include <string.h>

#include "threads.h"

#if defined(__FAST_MATH__) || FLT_EVAL_METHOD != 0
#error "the bits are of IEEE arithmetic: no -ffast-math, no x87"
#endif

#define INLINE static inline __attribute__((always_inline))
#define ROWS 64     /* rows whose residuals are in the first cache together */
#define NUMBERS 512 /* of a group's sum, likewise: a piece of work */
#define ROUNDING 0x1p-52

enum { PLAIN = 0, AVX2 = 1 };
enum { UNCLIPPED = 0, FLAT = 1, AUTOMATIC = 2 };

typedef double single;
typedef double pair __attribute__((vector_size(16), aligned(8), may_alias));
typedef double quad __attribute__((vector_size(32), aligned(8), may_alias));

/* --- Sparse rows --- */

#define ENTRY(type, e, value) *(const type *)(table + (int64_t)columns[e] * outputs + k) * (double)values[value]

/* out[k][i] = sum over row i's entries of value * table[column][k], for `lanes` outputs at a time: every fourth entry
 * goes to one of four sums, which hide each other's latency. */
#define ROW_PRODUCTS(type, lanes, of)                                                                                  \
    for (; outputs - k >= lanes; k += lanes)                                                                           \
        for (int64_t i = first; i < last; i++) {                                                                       \
            const int64_t end = ends[i + 1];                                                                           \
            int64_t e = ends[i];                                                                                       \
            double each[lanes];                                                                                        \
            type a = {0}, b = {0}, c = {0}, d = {0};                                                                   \
            for (; e + 4 <= end; e += 4) {                                                                             \
                a += ENTRY(type, e, of(e));                                                                            \
                b += ENTRY(type, e + 1, of(e + 1));                                                                    \
                c += ENTRY(type, e + 2, of(e + 2));                                                                    \
                d += ENTRY(type, e + 3, of(e + 3));                                                                    \
            }                                                                                                          \
            if (e < end) a += ENTRY(type, e, of(e));                                                                   \
            if (e + 1 < end) b += ENTRY(type, e + 1, of(e + 1));                                                       \
            if (e + 2 < end) c += ENTRY(type, e + 2, of(e + 2));                                                       \
            a = (a + b) + (c + d);                                                                                     \
            memcpy(each, &a, sizeof each);                                                                             \
            for (int64_t q = 0; q < lanes; q++) out[(k + q) * rows + i] = each[q];                                     \
        }
#define OF_ENTRY(e) (e)
#define OF_ROW(e) i /* one value for all entries of a row */

/* out[column][k] += value * table[i][k], row by row and entry by entry, for `lanes` outputs at a time. */
#define COLUMN_SUMS(type, lanes)                                                                                       \
    for (; outputs - k >= lanes; k += lanes)                                                                           \
        for (int64_t i = 0; i < rows; i++) {                                                                           \
            const type row = *(const type *)(table + i * outputs + k);                                                 \
            for (int64_t e = ends[i]; e < ends[i + 1]; e++)                                                            \
                *(type *)(out + (int64_t)columns[e] * outputs + k) += row * (double)values[e];                         \
        }

#define PRODUCT(kind, index, number, value)                                                                            \
    INLINE void product_##kind(double *out, int64_t rows, const int64_t *ends, const index *columns,                   \
                               const number *values, const double *table, int64_t outputs, int64_t first,              \
                               int64_t last) {                                                                         \
        int64_t k = 0;                                                                                                 \
        last = last < rows ? last : rows;                                                                              \
        ROW_PRODUCTS(quad, 4, value)                                                                                   \
        ROW_PRODUCTS(pair, 2, value)                                                                                   \
        ROW_PRODUCTS(single, 1, value)                                                                                 \
    }
#define SCATTER(kind, index, number)                                                                                   \
    INLINE void scatter_##kind(double *out, int64_t rows, const int64_t *ends, const index *columns,                   \
                               const number *values, const double *table, int64_t outputs) {                           \
        int64_t k = 0;                                                                                                 \
        COLUMN_SUMS(quad, 4)                                                                                           \
        COLUMN_SUMS(pair, 2)                                                                                           \
        COLUMN_SUMS(single, 1)                                                                                         \
    }
PRODUCT(narrow, uint16_t, float, OF_ENTRY)
PRODUCT(wide, int32_t, double, OF_ENTRY)
PRODUCT(even, uint16_t, float, OF_ROW)
SCATTER(narrow, uint16_t, float)
SCATTER(wide, int32_t, double)

/* --- Groups --- */

/* out[j] = sum of in[g][j] over the groups, in their order, for some numbers of groups that are `apart`. */
INLINE void add_groups(double *out, const float *in, int64_t groups, int64_t apart, int64_t count) {
    for (int64_t j = 0; j < count; j++) out[j] = 0.0;
    for (int64_t g = 0; g < groups; g++)
        for (int64_t j = 0; j < count; j++) out[j] += (double)in[g * apart + j];
}

/* --- Residuals --- */

/* e^x for x <= 0, which below -708 counts as -708: 2^n * (Taylor's polynomial of degree 13 at x - n ln 2). */
static const double TAYLOR[] = {0x1.6124613a86d09p-33, 0x1.1eed8eff8d898p-29, 0x1.ae64567f544e4p-26,
                                0x1.27e4fb7789f5cp-22, 0x1.71de3a556c734p-19, 0x1.a01a01a01a01ap-16,
                                0x1.a01a01a01a01ap-13, 0x1.6c16c16c16c17p-10, 0x1.1111111111111p-7,
                                0x1.5555555555555p-5,  0x1.5555555555555p-3,  0.5, 1.0, 1.0};

INLINE double exponential(double x) {
    const double shift = 0x1.8p+52; /* leaves the nearest integer in the lowest bits */
    uint64_t bits, whole;
    double power;
    x = x < -708.0 ? -708.0 : x;
    const double shifted = x * 0x1.71547652b82fep+0 + shift, n = shifted - shift;
    const double rest = (x - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;
    double sum = TAYLOR[0]; /* written out, so that compilers take several rows at a time */
    sum = sum * rest + TAYLOR[1], sum = sum * rest + TAYLOR[2], sum = sum * rest + TAYLOR[3];
    sum = sum * rest + TAYLOR[4], sum = sum * rest + TAYLOR[5], sum = sum * rest + TAYLOR[6];
    sum = sum * rest + TAYLOR[7], sum = sum * rest + TAYLOR[8], sum = sum * rest + TAYLOR[9];
    sum = sum * rest + TAYLOR[10], sum = sum * rest + TAYLOR[11], sum = sum * rest + TAYLOR[12];
    sum = sum * rest + TAYLOR[13];
    memcpy(&bits, &shifted, sizeof bits);
    memcpy(&whole, &shift, sizeof whole);
    bits = (bits - whole + 1023) << 52;
    memcpy(&power, &bits, sizeof power);
    return sum * power;
}

/* Public numbers of one query. */
typedef struct {
    double kind;    /* UNCLIPPED, FLAT or AUTOMATIC */
    double norm;    /* C of a record */
    double gamma;   /* of AUTOMATIC */
    double bias;    /* 1: there is one */
    double longest; /* a longer record counts as not finite */
} Query;

/* Where a pass's outputs are: float or double, output k of row i at i * by_row + k * by_output. */
typedef struct {
    const void *numbers;
    int64_t narrow, by_row, by_output;
} Outputs;

/* loss' derivative at the outputs of `n` rows, into f[k][ROWS]. Returns 0 if all labels are classes. */
INLINE int64_t residuals(double *f, int64_t n, int64_t outputs, const int64_t *classes, const double *targets) {
    double most[ROWS], sum[ROWS];
    int64_t found = 0;
    if (!classes) {
        for (int64_t i = 0; i < n; i++) f[i] -= targets[i];
        return 0;
    }
    for (int64_t i = 0; i < n; i++) most[i] = f[i], sum[i] = 0.0;
    for (int64_t k = 1; k < outputs; k++)
        for (int64_t i = 0; i < n; i++) most[i] = f[k * ROWS + i] > most[i] ? f[k * ROWS + i] : most[i];
    for (int64_t k = 0; k < outputs; k++)
        for (int64_t i = 0; i < n; i++) {
            const double e = exponential(f[k * ROWS + i] - most[i]);
            f[k * ROWS + i] = e;
            sum[i] += e;
        }
    for (int64_t k = 0; k < outputs; k++)
        for (int64_t i = 0; i < n; i++) f[k * ROWS + i] /= sum[i];
    for (int64_t i = 0; i < n; i++) {
        const int64_t known = classes[i] >= 0 && classes[i] < outputs;
        found |= !known;
        f[(known ? classes[i] : 0) * ROWS + i] -= 1.0;
    }
    return found;
}

/* Upper bounds of the norms of residual (x, 1), and each row's factor. */
INLINE void measure(double *norms, double *factors, const double *f, int64_t n, int64_t outputs, const double *lengths,
                    const Query *by) {
    const Query q = *by;
    const double grown = 1.0 + (double)(outputs + 8) * ROUNDING;
    for (int64_t i = 0; i < n; i++) norms[i] = 0.0;
    for (int64_t k = 0; k < outputs; k++)
        for (int64_t i = 0; i < n; i++) norms[i] += f[k * ROWS + i] * f[k * ROWS + i];
    for (int64_t i = 0; i < n; i++) {
        const double x = lengths[i] > q.longest ? __builtin_inf() : lengths[i];
        const double more = __builtin_sqrt((x * x + 1.0) + DBL_MIN) * (1.0 + 10 * ROUNDING);
        const double length = q.bias != 0.0 ? more : x;
        norms[i] = (__builtin_sqrt(norms[i] + DBL_MIN) * grown) * length * (1.0 + 4 * ROUNDING);
    }
    for (int64_t i = 0; i < n; i++) {
        const double most = q.norm * (1.0 / norms[i]), one = most > 1.0 ? 1.0 : most; /* as torch divides */
        const double factor = q.kind == AUTOMATIC ? q.norm * (1.0 / (norms[i] + q.gamma)) : one;
        factors[i] = __builtin_fabs(norms[i]) <= DBL_MAX ? factor : 0.0;
    }
}

/* out[i][k] = factor * residual, for rows that are present; 0 for the others and where the factor is 0. */
INLINE int64_t clip(double *out, double *norms, const Outputs *in, const int64_t *classes, const double *targets,
                    const double *lengths, const uint8_t *present, int64_t rows, int64_t outputs, const Query *by,
                    double *scratch) {
    const Outputs from = *in;
    double factors[ROWS];
    int64_t found = 0;
    for (int64_t start = 0; start < rows; start += ROWS) {
        const int64_t n = rows - start < ROWS ? rows - start : ROWS;
        for (int64_t k = 0; k < outputs; k++) {
            const int64_t at = start * from.by_row + k * from.by_output;
            const float *narrow = (const float *)from.numbers + at;
            const double *wide = (const double *)from.numbers + at;
            for (int64_t i = 0; i < n; i++)
                scratch[k * ROWS + i] = from.narrow ? (double)narrow[i * from.by_row] : wide[i * from.by_row];
        }
        found |= residuals(scratch, n, outputs, classes ? classes + start : classes,
                           targets ? targets + start : targets);
        if (by->kind == UNCLIPPED) {
            for (int64_t i = 0; i < n; i++) factors[i] = present[start + i] ? 1.0 : 0.0;
            for (int64_t k = 0; k < outputs; k++)
                for (int64_t i = 0; i < n; i++) out[(start + i) * outputs + k] = scratch[k * ROWS + i] * factors[i];
            continue;
        }
        measure(norms + start, factors, scratch, n, outputs, lengths + start, by);
        for (int64_t i = 0; i < n; i++) factors[i] *= present[start + i] ? 1.0 : 0.0;
        for (int64_t k = 0; k < outputs; k++)
            for (int64_t i = 0; i < n; i++) {
                const double scaled = scratch[k * ROWS + i] * factors[i];
                out[(start + i) * outputs + k] = factors[i] > 0.0 ? scaled : 0.0;
            }
    }
    return found;
}

/* --- Paths --- */

#define PRODUCT_ARGUMENTS(index, number)                                                                               \
    double *out, int64_t rows, const int64_t *ends, const index *columns, const number *values, const double *table,   \
        int64_t outputs
#define CLIP_ARGUMENTS                                                                                                 \
    double *out, double *norms, const Outputs *in, const int64_t *classes, const double *targets,                      \
        const double *lengths, const uint8_t *present, int64_t rows, int64_t outputs, const Query *by, double *scratch
#define CLIP_NAMES out, norms, in, classes, targets, lengths, present, rows, outputs, by, scratch

#if defined(__x86_64__)
#define WIDE __attribute__((target("avx2,fma"))) static
#define PRODUCT_PATH(kind, index, number)                                                                              \
    WIDE void product_##kind##_avx2(PRODUCT_ARGUMENTS(index, number), int64_t first, int64_t last) {                   \
        product_##kind(out, rows, ends, columns, values, table, outputs, first, last);                                 \
    }
#define SCATTER_PATH(kind, index, number)                                                                              \
    WIDE void scatter_##kind##_avx2(PRODUCT_ARGUMENTS(index, number)) {                                                \
        scatter_##kind(out, rows, ends, columns, values, table, outputs);                                              \
    }
PRODUCT_PATH(narrow, uint16_t, float)
PRODUCT_PATH(wide, int32_t, double)
PRODUCT_PATH(even, uint16_t, float)
SCATTER_PATH(narrow, uint16_t, float)
SCATTER_PATH(wide, int32_t, double)
WIDE void add_groups_avx2(double *out, const float *in, int64_t groups, int64_t apart, int64_t count) {
    add_groups(out, in, groups, apart, count);
}
WIDE int64_t clip_avx2(CLIP_ARGUMENTS) { return clip(CLIP_NAMES); }
#define ON(path, name, ...) ((path) == AVX2 ? name##_avx2(__VA_ARGS__) : name(__VA_ARGS__))
#else
#define ON(path, name, ...) name(__VA_ARGS__)
#endif

#define PRODUCT_CALL(kind, index, number)                                                                              \
    void scrimp_product_##kind(int path, PRODUCT_ARGUMENTS(index, number), int64_t first, int64_t last) {              \
        ON(path, product_##kind, out, rows, ends, columns, values, table, outputs, first, last);                       \
    }
#define SCATTER_CALL(kind, index, number)                                                                              \
    void scrimp_scatter_##kind(int path, PRODUCT_ARGUMENTS(index, number)) {                                           \
        ON(path, scatter_##kind, out, rows, ends, columns, values, table, outputs);                                    \
    }
PRODUCT_CALL(narrow, uint16_t, float)
PRODUCT_CALL(wide, int32_t, double)
PRODUCT_CALL(even, uint16_t, float)
SCATTER_CALL(narrow, uint16_t, float)
SCATTER_CALL(wide, int32_t, double)

typedef struct {
    int path;
    double *out;
    const float *in;
    int64_t groups, count;
} Groups;

/* Some numbers of every group. */
static void groups_piece(void *of, int64_t piece, int64_t slot) {
    const Groups *w = of;
    const int64_t first = piece * NUMBERS, count = share_of(w->count, NUMBERS, piece);
    (void)slot;
    ON(w->path, add_groups, w->out + first, w->in + first, w->groups, w->count, count);
}

void scrimp_add_groups(int path, const Team *team, double *out, const float *in, int64_t groups, int64_t count) {
    Groups work = {path, out, in, groups, count};
    on_threads(groups * count < 2 * SHARE ? &ALONE : team, pieces_of(count, NUMBERS), groups_piece, &work);
}

typedef struct {
    int path;
    double *out, *norms;
    const Outputs *in;
    const int64_t *classes;
    const double *targets, *lengths;
    const uint8_t *present;
    int64_t rows, outputs, each, found;
    const Query *by;
    double *scratch; /* ROWS * outputs for each thread */
} Clipped;

static void clip_piece(void *of, int64_t piece, int64_t slot) {
    Clipped *w = of;
    const int64_t first = piece * w->each, rows = share_of(w->rows, w->each, piece), outputs = w->outputs;
    const int64_t size = w->in->narrow ? sizeof(float) : sizeof(double);
    Outputs in = *w->in;
    in.numbers = (const char *)in.numbers + first * in.by_row * size;
    const int64_t found =
        ON(w->path, clip, w->out + first * outputs, w->norms + first, &in, w->classes ? w->classes + first : NULL,
           w->targets ? w->targets + first : NULL, w->lengths + first, w->present + first, rows, outputs, w->by,
           w->scratch + slot * ROWS * outputs);
    if (found) __atomic_fetch_or(&w->found, found, __ATOMIC_RELAXED);
}

/* `scratch` has room for ROWS * outputs numbers for each thread. */
int64_t scrimp_clip(int path, const Team *team, CLIP_ARGUMENTS) {
    const int64_t each = pieces_of(rows_of_share(4 * outputs), ROWS) * ROWS; /* a number takes as long as four others */
    Clipped work = {path, out, norms, in, classes, targets, lengths, present, rows, outputs, each, 0, by, scratch};
    on_threads(team, pieces_of(rows, each), clip_piece, &work);
    return work.found;
}
