/* Parts of a step, in one pass over the numbers instead of several: widening, lengths, totals, Adam's update.
 *
 * Each function computes the bits of the torch operations that it replaces (worker/native/steps.py): IEEE operations in
 * the same order, each rounded once, without contraction. No path through it depends on a number. Pieces of rows, of
 * numbers or of columns go to the threads of a team: none shares a sum with another, but for totals, which are integers.
 */
#include <float.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "threads.h"

#if defined(__FAST_MATH__) || FLT_EVAL_METHOD != 0
#error "the bits are of IEEE arithmetic: no -ffast-math, no x87"
#endif

#define INLINE static inline __attribute__((always_inline))
#define WHOLE 0x1.8p+52 /* added to a number below 2^51, it leaves the nearest integer in the lowest bits */
#define LARGEST 0x1p51
#define BLOCK 1024
#define LANES 32  /* sums of a row's squares, side by side */
#define TILE 1024 /* numbers of a group's sum: in the first cache */
#define LEAST_PRODUCT (1 << 20) /* multiplications: for fewer no other thread is woken */

#define CASCADE 16 /* torch adds so many numbers side by side before it adds up their sums, in LEVELS levels */
#define LEVELS 4
#define ROUNDING 0x1p-52

enum { PLAIN = 0, AVX2 = 1, AVX512 = 2 };
enum { FLAT = 1, AUTOMATIC = 2 };

/* factor * number; NaN becomes 0 and an infinity the largest finite number, as torch.nan_to_num does. */
INLINE void widen(double *out, const float *in, const double *factors, int64_t rows, int64_t width) {
    for (int64_t i = 0; i < rows; i++) {
        const double factor = factors ? factors[i] : 1.0;
        for (int64_t j = 0; j < width; j++) {
            double y = (double)in[i * width + j] * factor;
            y = y > DBL_MAX ? DBL_MAX : y;
            y = y < -DBL_MAX ? -DBL_MAX : y;
            out[i * width + j] = y == y ? y : 0.0;
        }
    }
}

/* factor * number in double, rounded to float; 0 for NaN. */
INLINE void narrow(float *out, const float *in, const double *factors, int64_t rows, int64_t width) {
    for (int64_t i = 0; i < rows; i++) {
        const double factor = factors[i];
        for (int64_t j = 0; j < width; j++) {
            const double y = (double)in[i * width + j] * factor;
            out[i * width + j] = (float)(y == y ? y : 0.0);
        }
    }
}

/* totals += nearest(sums * inverse), the inverse a power of two. Returns 0 if |sum * inverse| < 2^51 for all sums: NaN
 * and infinities are not, and beyond it the lowest bits are no integer. */
#define ADD_ON_GRID(name, type)                                                                                        \
    INLINE int64_t name(int64_t *totals, const type *sums, int64_t count, double inverse) {                            \
        uint64_t whole;                                                                                                \
        int64_t found = 0;                                                                                             \
        const double shift = WHOLE;                                                                                    \
        memcpy(&whole, &shift, sizeof whole);                                                                          \
        for (int64_t start = 0; start < count; start += BLOCK) {                                                       \
            const int64_t end = count - start < BLOCK ? count : start + BLOCK;                                         \
            int64_t any = 0;                                                                                           \
            for (int64_t i = start; i < end; i++) {                                                                    \
                const double units = (double)sums[i] * inverse, rounded = units + shift;                               \
                uint64_t bits; /* wraps where a sum is out of range, as torch does */                                  \
                memcpy(&bits, &rounded, sizeof bits);                                                                  \
                totals[i] = (int64_t)((uint64_t)totals[i] + (bits - whole));                                           \
                any |= !(__builtin_fabs(units) < LARGEST);                                                             \
            }                                                                                                          \
            found |= any;                                                                                              \
        }                                                                                                              \
        return found;                                                                                                  \
    }
ADD_ON_GRID(add_on_grid, double)
ADD_ON_GRID(add_narrow_on_grid, float)

/* Each row's sum of squares: LANES sums side by side, then lane by lane. A float's square is exact in double. */
INLINE void squares(double *out, const float *in, int64_t rows, int64_t width) {
    for (int64_t i = 0; i < rows; i++) {
        const float *row = in + i * width;
        const int64_t whole = width / LANES * LANES;
        double lanes[LANES] = {0.0}, sum = 0.0;
        for (int64_t j = 0; j < whole; j += LANES)
            for (int64_t k = 0; k < LANES; k++) lanes[k] += (double)row[j + k] * (double)row[j + k];
        for (int64_t k = 0; k < width - whole; k++) lanes[k] += (double)row[whole + k] * (double)row[whole + k];
        for (int64_t k = 0; k < LANES; k++) sum += lanes[k];
        out[i] = sum;
    }
}

/* NaN becomes 0 and an infinity the largest finite number, as torch.nan_to_num does. */
INLINE void finite(float *out, const float *in, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        float y = in[i];
        y = y > FLT_MAX ? FLT_MAX : y;
        y = y < -FLT_MAX ? -FLT_MAX : y;
        out[i] = y == y ? y : 0.0f;
    }
}

/* ||l x r||^2 = ||l||^2 ||r||^2 of each row, and what rounding may have taken from it; longer factors than `longest`
 * count as not finite. The factors' own squares err by a share of themselves. */
INLINE void of_products(double *squares, double *slack, const double *left, const double *right, int64_t rows,
                        double left_share, double right_share, double longest) {
    for (int64_t i = 0; i < rows; i++) {
        const double less = left[i] * left_share, lesser = right[i] * right_share;
        const double one = left[i] > longest ? __builtin_inf() : left[i];
        const double two = right[i] > longest ? __builtin_inf() : right[i];
        squares[i] = one * two;
        slack[i] = (one + less) * (two + lesser) * (1.0 + 4 * ROUNDING) - one * two;
    }
}

/* The squared length of a record's sums of rows with equal ids, whose places are in the order of ids:
 * sum over t of <v_t, v_t + 2 c>, where c is the sum of the rows before t with its id. */
INLINE void squares_of_rows(double *out, const int64_t *places, const int64_t *ids, const float *values, int64_t records,
                            int64_t rows, int64_t width) {
    for (int64_t i = 0; i < records; i++, places += rows, ids += rows, values += rows * width) {
        double lanes[LANES] = {0.0}, sum = 0.0;
        for (int64_t start = 0; start < width; start += TILE / 4) {
            const int64_t count = width - start < TILE / 4 ? width - start : TILE / 4;
            double before[TILE / 4] = {0.0}, found[TILE / 4] = {0.0};
            for (int64_t t = 0; t < rows; t++) {
                const float *row = values + places[t] * width + start;
                const double same = t > 0 && ids[t] == ids[t - 1] ? 1.0 : 0.0;
                for (int64_t j = 0; j < count; j++) {
                    const double v = (double)row[j], c = same * before[j];
                    found[j] += v * (v + (c + c));
                    before[j] = v + c;
                }
            }
            for (int64_t j = 0; j < count; j++) lanes[j % LANES] += found[j];
        }
        for (int64_t k = 0; k < LANES; k++) sum += lanes[k];
        out[i] = sum;
    }
}

/* factor * number; 0 where the mask is 0, whatever the number is. */
INLINE float masked(float factor, uint32_t mask, float number) {
    float product = factor * number;
    uint32_t bits;
    memcpy(&bits, &product, sizeof bits);
    bits &= mask;
    memcpy(&product, &bits, sizeof bits);
    return product;
}

/* totals += nearest(sum * inverse) for each group's sum of factor * row in float, row by row, for `count` columns of rows
 * that are `width` apart. 0: see add_on_grid. */
INLINE int64_t add_formed(int64_t *totals, const float *in, const float *factors, int64_t rows, int64_t group,
                          int64_t width, int64_t count, double inverse) {
    int64_t found = 0;
    for (int64_t first = 0; first < rows; first += group) {
        const int64_t end = rows - first < group ? rows : first + group;
        float sum[TILE];
        int64_t i = first;
        memset(sum, 0, sizeof(float) * (size_t)count);
        for (; i + 4 <= end; i += 4) {
            const float *a = in + i * width, *b = a + width, *c = b + width, *d = c + width;
            const float *f = factors + i;
            const uint32_t m[4] = {-(uint32_t)(f[0] != 0), -(uint32_t)(f[1] != 0), -(uint32_t)(f[2] != 0),
                                   -(uint32_t)(f[3] != 0)};
            for (int64_t j = 0; j < count; j++)
                sum[j] = (((sum[j] + masked(f[0], m[0], a[j])) + masked(f[1], m[1], b[j])) + masked(f[2], m[2], c[j])) +
                         masked(f[3], m[3], d[j]);
        }
        for (; i < end; i++) {
            const float *a = in + i * width, f = factors[i];
            const uint32_t m = -(uint32_t)(f != 0);
            for (int64_t j = 0; j < count; j++) sum[j] += masked(f, m, a[j]);
        }
        found |= add_narrow_on_grid(totals, sum, count, inverse);
    }
    return found;
}

/* Public numbers of one update by Adam. */
typedef struct {
    double coupled;         /* weight decay that is added to the gradient; 0: none */
    double keep1, take1;    /* beta_1, 1 - beta_1 */
    double keep2, take2;    /* beta_2, 1 - beta_2 */
    double weight1, weight2; /* 1 - beta^t */
    double eps, rate;
    double shrink;          /* 1 - rate * decoupled weight decay; 1: none */
} Adam;

INLINE void adam(const double *gradient, double *theta, double *m, double *v, int64_t count, const Adam *by) {
    const Adam a = *by;
    for (int64_t i = 0; i < count; i++) {
        double g = gradient[i];
        if (a.coupled != 0.0) g = g + a.coupled * theta[i]; /* the same for all numbers */
        m[i] = m[i] * a.keep1 + a.take1 * g;
        v[i] = v[i] * a.keep2 + (g * g) * a.take2;
        double direction = (m[i] / a.weight1) / (__builtin_sqrt(v[i] / a.weight2) + a.eps);
        theta[i] = theta[i] * a.shrink - a.rate * direction;
    }
}

/* Multiples of the unit, over the integers themselves. */
INLINE void from_grid(double *out, int64_t count, double unit) {
    for (int64_t i = 0; i < count; i++) {
        int64_t cells;
        memcpy(&cells, out + i, sizeof cells);
        out[i] = (double)cells * unit;
    }
}

/* theta = theta * shrink - rate * direction */
INLINE void descend(double *theta, const double *direction, int64_t count, double shrink, double rate) {
    for (int64_t i = 0; i < count; i++) theta[i] = theta[i] * shrink - rate * direction[i];
}

#if defined(__x86_64__)
#define WIDE __attribute__((target("avx2,fma"))) static
WIDE void widen_avx2(double *out, const float *in, const double *factors, int64_t rows, int64_t width) {
    widen(out, in, factors, rows, width);
}
WIDE int64_t add_on_grid_avx2(int64_t *totals, const double *sums, int64_t count, double inverse) {
    return add_on_grid(totals, sums, count, inverse);
}
WIDE int64_t add_narrow_on_grid_avx2(int64_t *totals, const float *sums, int64_t count, double inverse) {
    return add_narrow_on_grid(totals, sums, count, inverse);
}
WIDE void adam_avx2(const double *gradient, double *theta, double *m, double *v, int64_t count, const Adam *by) {
    adam(gradient, theta, m, v, count, by);
}
WIDE void narrow_avx2(float *out, const float *in, const double *factors, int64_t rows, int64_t width) {
    narrow(out, in, factors, rows, width);
}
WIDE void descend_avx2(double *theta, const double *direction, int64_t count, double shrink, double rate) {
    descend(theta, direction, count, shrink, rate);
}
#define WIDER __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"))) static
WIDER void from_grid_avx512(double *out, int64_t count, double unit) { from_grid(out, count, unit); }
WIDE void squares_avx2(double *out, const float *in, int64_t rows, int64_t width) { squares(out, in, rows, width); }
WIDE void finite_avx2(float *out, const float *in, int64_t count) { finite(out, in, count); }
WIDE void squares_of_rows_avx2(double *out, const int64_t *places, const int64_t *ids, const float *values,
                               int64_t records, int64_t rows, int64_t width) {
    squares_of_rows(out, places, ids, values, records, rows, width);
}
WIDE int64_t add_formed_avx2(int64_t *totals, const float *in, const float *factors, int64_t rows, int64_t group,
                             int64_t width, int64_t count, double inverse) {
    return add_formed(totals, in, factors, rows, group, width, count, inverse);
}
#define ON(path, name, ...) ((path) != PLAIN ? name##_avx2(__VA_ARGS__) : name(__VA_ARGS__))
#else
#define ON(path, name, ...) name(__VA_ARGS__)
#endif

/* --- Pieces for threads --- */

typedef struct {
    int path;
    void *out;
    const float *in;
    const double *factors;
    int64_t rows, width, each;
} Rows;

#define ROWS_OF_PIECE                                                                                                  \
    const Rows *w = of;                                                                                                \
    const int64_t first = piece * w->each, rows = share_of(w->rows, w->each, piece);                                   \
    const float *in = w->in + first * w->width;                                                                        \
    (void)slot

static void widen_piece(void *of, int64_t piece, int64_t slot) {
    ROWS_OF_PIECE;
    ON(w->path, widen, (double *)w->out + first * w->width, in, w->factors ? w->factors + first : NULL, rows, w->width);
}

static void narrow_piece(void *of, int64_t piece, int64_t slot) {
    ROWS_OF_PIECE;
    ON(w->path, narrow, (float *)w->out + first * w->width, in, w->factors + first, rows, w->width);
}

static void squares_piece(void *of, int64_t piece, int64_t slot) {
    ROWS_OF_PIECE;
    ON(w->path, squares, (double *)w->out + first, in, rows, w->width);
}

static void by_rows(const Team *team, Piece piece, Rows work) {
    work.each = rows_of_share(work.width);
    on_threads(team, pieces_of(work.rows, work.each), piece, &work);
}

void scrimp_widen(int path, const Team *team, double *out, const float *in, const double *factors, int64_t rows,
                  int64_t width) {
    by_rows(team, widen_piece, (Rows){path, out, in, factors, rows, width, 0});
}

void scrimp_narrow(int path, const Team *team, float *out, const float *in, const double *factors, int64_t rows,
                   int64_t width) {
    by_rows(team, narrow_piece, (Rows){path, out, in, factors, rows, width, 0});
}

void scrimp_squares(int path, const Team *team, double *out, const float *in, int64_t rows, int64_t width) {
    by_rows(team, squares_piece, (Rows){path, out, in, NULL, rows, width, 0});
}

/* Two factors of products, row by row. */
typedef struct {
    int path;
    const float *left, *right;
    const double *factors;
    float *narrowed, *finite;
    double *left_squares, *right_squares, *squares, *slack;
    int64_t rows, p, q, each;
    double left_share, right_share, longest;
} Factors;

#define ROWS_OF_FACTORS                                                                                                \
    const Factors *w = of;                                                                                             \
    const int64_t first = piece * w->each, rows = share_of(w->rows, w->each, piece);                                   \
    const float *left = w->left + first * w->p, *right = w->right + first * w->q;                                      \
    (void)slot

static void of_products_piece(void *of, int64_t piece, int64_t slot) {
    ROWS_OF_FACTORS;
    double *one = w->left_squares + first, *two = w->right_squares + first;
    ON(w->path, squares, one, left, rows, w->p);
    ON(w->path, squares, two, right, rows, w->q);
    of_products(w->squares + first, w->slack + first, one, two, rows, w->left_share, w->right_share, w->longest);
}

/* See of_products. `squares` and `slack` have 2 rows numbers each: the second half is scratch. */
void scrimp_squares_of_products(int path, const Team *team, double *squares, double *slack, const float *left,
                                const float *right, int64_t rows, int64_t p, int64_t q, double left_share,
                                double right_share, double longest) {
    Factors work = {path, left, right, NULL, NULL, NULL, squares + rows, slack + rows, squares, slack,
                    rows, p, q, rows_of_share(p + q), left_share, right_share, longest};
    on_threads(team, pieces_of(rows, work.each), of_products_piece, &work);
}

static void scaled_piece(void *of, int64_t piece, int64_t slot) {
    ROWS_OF_FACTORS;
    ON(w->path, narrow, w->narrowed + first * w->p, left, w->factors + first, rows, w->p);
    ON(w->path, finite, w->finite + first * w->q, right, rows * w->q);
}

/* narrowed = factor * left, as `narrow` rounds; finite = right. */
void scrimp_scaled(int path, const Team *team, float *narrowed, float *finite_right, const float *left,
                   const float *right, const double *factors, int64_t rows, int64_t p, int64_t q) {
    Factors work = {path, left, right, factors, narrowed, finite_right, NULL, NULL, NULL, NULL,
                    rows, p, q, rows_of_share(p + q), 0.0, 0.0, 0.0};
    on_threads(team, pieces_of(rows, work.each), scaled_piece, &work);
}

/* One parameter's squared lengths, as they were measured; see worker/clipping/accumulators.py. */
typedef struct {
    const double *squares, *slack; /* slack NULL: a share of the squares */
    double share, longest;
} Measured;

/* Public numbers of one query. */
typedef struct {
    double kind;  /* FLAT or AUTOMATIC */
    double norm;  /* of a group */
    double gamma; /* of AUTOMATIC */
} Clipping;

/* One sum of many numbers as torch adds them: CASCADE at a time, and their sums likewise. */
typedef struct {
    double levels[LEVELS][CASCADE];
    int64_t added;
} Cascade;

INLINE void carry(Cascade *sum, int64_t count) {
    if (++sum->added % CASCADE) return;
    for (int64_t level = 1, of = sum->added / CASCADE; level < LEVELS; level++, of /= CASCADE) {
        for (int64_t i = 0; i < count; i++) sum->levels[level][i] += sum->levels[level - 1][i];
        for (int64_t i = 0; i < count; i++) sum->levels[level - 1][i] = 0.0;
        if (of % CASCADE) break;
    }
}

INLINE double total_of(const Cascade *sum, int64_t i) {
    return ((sum->levels[0][i] + sum->levels[1][i]) + sum->levels[2][i]) + sum->levels[3][i];
}

/* What a parameter adds to a bound on a row. */
INLINE double length_of(const Measured *m, int64_t row) {
    const double s = m->squares[row], less = m->slack ? m->slack[row] : s * m->share;
    const double most = s > m->longest ? __builtin_inf() : s;
    return (most < 0.0 ? 0.0 : most) + less;
}

/* bounds[g] = the smallest normal number + the sum over the group's parameters of max(0, squares) + slack, in the order
 * of torch's sum over dimension 0: by whole blocks of rows, and by four sums side by side on the rest of them. The groups'
 * parameters, terms[g], lie one after another. */
void scrimp_add_lengths(double *const *bounds, const Measured *each, const int64_t *terms, int64_t groups, int64_t rows) {
    for (int64_t group = 0; group < groups; each += terms[group++])
        for (int64_t first = 0; first < rows; first += CASCADE) {
            const int64_t count = share_of(rows, CASCADE, first / CASCADE), most = terms[group];
            const int64_t lanes = count == CASCADE ? 1 : 4;
            Cascade sums[4] = {0};
            double *out = bounds[group] + first;
            int64_t at = 0;
            for (; at < most / lanes * lanes; at++) {
                Cascade *sum = sums + at % lanes;
                for (int64_t i = 0; i < count; i++) sum->levels[0][i] += length_of(each + at, first + i);
                carry(sum, count);
            }
            for (int64_t i = 0; i < count; i++) out[i] = total_of(sums, i);
            for (; at < most; at++)
                for (int64_t i = 0; i < count; i++) out[i] += length_of(each + at, first + i);
            for (int64_t lane = 1; lane < lanes; lane++)
                for (int64_t i = 0; i < count; i++) out[i] += total_of(sums + lane, i);
            for (int64_t i = 0; i < count; i++) out[i] += DBL_MIN;
        }
}

/* weighted[g][i] = weight_i * the factor of group g on row i, and the same rounded to float: 0 in all groups where a
 * group's bound is not finite. `roots` are those of the groups' bounds; each grows by its number of terms. Returns the
 * sum of 1 where the first group's factor is 1 or more, -1 where it is less, 0 where it is 0. */
int64_t scrimp_clip_factors(double *weighted, float *rounded, const double *const *roots, const int64_t *terms,
                            int64_t groups, const double *weights, int64_t rows, const Clipping *by) {
    int64_t halves = 0;
    for (int64_t i = 0; i < rows; i++) {
        int64_t finite = 1;
        for (int64_t group = 0; group < groups; group++) {
            const double norm = roots[group][i] * (1.0 + (double)(terms[group] + 8) * ROUNDING);
            const double most = (1.0 / norm) * by->norm, one = most > 1.0 ? 1.0 : most; /* as torch divides */
            weighted[group * rows + i] = by->kind == AUTOMATIC ? (1.0 / (norm + by->gamma)) * by->norm : one;
            finite &= __builtin_fabs(norm) <= DBL_MAX;
        }
        for (int64_t group = 0; group < groups; group++) {
            const double factor = (finite ? weighted[group * rows + i] : 0.0) * weights[i];
            weighted[group * rows + i] = factor;
            rounded[group * rows + i] = (float)factor;
        }
        halves += weighted[i] > 0.0 ? (weighted[i] >= 1.0 ? 1 : -1) : 0;
    }
    return halves;
}

/* out[i] = in[places[i]], rows of `words` 32-bit words; zeros where a row is absent, or its place is none of the `count`:
 * row 0 is read for such a place. Returns 0 if all rows are absent or have a place. */
typedef struct {
    uint32_t *out;
    const uint32_t *in;
    const int64_t *places;
    const uint8_t *absent;
    int64_t count, rows, words, each, broken;
} Gathered;

static void gathered_piece(void *of, int64_t piece, int64_t slot) {
    Gathered *w = of;
    const int64_t first = piece * w->each, rows = share_of(w->rows, w->each, piece);
    int64_t broken = 0;
    (void)slot;
    for (int64_t i = first; i < first + rows; i++) {
        const int64_t place = w->places[i], inside = (place >= 0) & (place < w->count), absent = w->absent[i] != 0;
        const uint32_t mask = -(uint32_t)(inside & !absent);
        const uint32_t *in = w->in + (place & -inside) * w->words;
        uint32_t *out = w->out + i * w->words;
        for (int64_t j = 0; j < w->words; j++) out[j] = in[j] & mask;
        broken |= !(inside | absent);
    }
    if (broken) __atomic_fetch_or(&w->broken, broken, __ATOMIC_RELAXED);
}

int64_t scrimp_gather(const Team *team, uint32_t *out, const uint32_t *in, const int64_t *places,
                      const uint8_t *absent, int64_t count, int64_t rows, int64_t words) {
    Gathered work = {out, in, places, absent, count, rows, words, rows_of_share(words), 0};
    on_threads(team, pieces_of(rows, work.each), gathered_piece, &work);
    return work.broken;
}

typedef struct {
    int path;
    double *out;
    const int64_t *places, *ids;
    const float *values;
    int64_t records, rows, width, each;
} Records;

static void squares_of_rows_piece(void *of, int64_t piece, int64_t slot) {
    const Records *w = of;
    const int64_t first = piece * w->each, at = first * w->rows, records = share_of(w->records, w->each, piece);
    (void)slot;
    ON(w->path, squares_of_rows, w->out + first, w->places + at, w->ids + at, w->values + at * w->width, records, w->rows,
       w->width);
}

void scrimp_squares_of_rows(int path, const Team *team, double *out, const int64_t *places, const int64_t *ids,
                            const float *values, int64_t records, int64_t rows, int64_t width) {
    Records work = {path, out, places, ids, values, records, rows, width, rows_of_share(rows * width)};
    on_threads(team, pieces_of(records, work.each), squares_of_rows_piece, &work);
}

typedef struct {
    int path, narrow;
    int64_t *totals;
    const void *sums;
    int64_t count, broken;
    double inverse;
} Sums;

static void on_grid_piece(void *of, int64_t piece, int64_t slot) {
    Sums *w = of;
    const int64_t first = piece * SHARE, count = share_of(w->count, SHARE, piece);
    int64_t *totals = w->totals + first;
    const float *narrow = (const float *)w->sums + first;
    const double *wide = (const double *)w->sums + first;
    const int64_t broken = w->narrow ? ON(w->path, add_narrow_on_grid, totals, narrow, count, w->inverse)
                                     : ON(w->path, add_on_grid, totals, wide, count, w->inverse);
    (void)slot;
    if (broken) __atomic_fetch_or(&w->broken, broken, __ATOMIC_RELAXED);
}

int64_t scrimp_add_on_grid(int path, const Team *team, int64_t *totals, const double *sums, int64_t count,
                           double inverse) {
    Sums work = {path, 0, totals, sums, count, 0, inverse};
    on_threads(team, pieces_of(count, SHARE), on_grid_piece, &work);
    return work.broken;
}

int64_t scrimp_add_narrow_on_grid(int path, const Team *team, int64_t *totals, const float *sums, int64_t count,
                                  double inverse) {
    Sums work = {path, 1, totals, sums, count, 0, inverse};
    on_threads(team, pieces_of(count, SHARE), on_grid_piece, &work);
    return work.broken;
}

/* One parameter's formed gradients. */
typedef struct {
    int64_t *totals;
    const float *in, *factors;
    int64_t rows, group, width;
} Formed;

typedef struct {
    int path;
    const Formed *each;
    int64_t count, broken;
    double inverse;
} AllFormed;

static void formed_piece(void *of, int64_t piece, int64_t slot) {
    AllFormed *all = of;
    const Formed *w = all->each;
    for (; piece >= pieces_of(w->width, TILE); w++) piece -= pieces_of(w->width, TILE);
    const int64_t first = piece * TILE, count = share_of(w->width, TILE, piece);
    const int64_t broken = ON(all->path, add_formed, w->totals + first, w->in + first, w->factors, w->rows, w->group,
                              w->width, count, all->inverse);
    (void)slot;
    if (broken) __atomic_fetch_or(&all->broken, broken, __ATOMIC_RELAXED);
}

/* Of several parameters, whose totals do not overlap. */
int64_t scrimp_add_formed(int path, const Team *team, const Formed *each, int64_t count, double inverse) {
    AllFormed work = {path, each, count, 0, inverse};
    int64_t pieces = 0, numbers = 0;
    for (int64_t i = 0; i < count; i++) {
        pieces += pieces_of(each[i].width, TILE);
        numbers += each[i].rows * each[i].width;
    }
    on_threads(numbers < 2 * SHARE ? &ALONE : team, pieces, formed_piece, &work);
    return work.broken;
}

/* sgemm of torch's own library: column by column, as Fortran has it. */
typedef void (*Sgemm)(const char *, const char *, const int *, const int *, const int *, const float *, const float *,
                      const int *, const float *, const int *, const float *, float *, const int *);

typedef struct {
    int path;
    Sgemm sgemm;
    int64_t *totals;
    const float *left, *right;
    float *parts; /* one for each thread */
    int64_t rows, p, q, group, each, broken;
    double inverse;
} Products;

/* Some rows of the parameter: their products of all groups, one after the other. */
static void products_piece(void *of, int64_t piece, int64_t slot) {
    Products *w = of;
    const int64_t first = piece * w->each;
    const int width = (int)w->q, apart = (int)w->p, height = (int)share_of(w->p, w->each, piece);
    const float one = 1.0f, zero = 0.0f;
    float *part = w->parts + slot * w->each * w->q;
    int64_t broken = 0;
    for (int64_t at = 0; at < w->rows; at += w->group) {
        const int records = (int)(w->rows - at < w->group ? w->rows - at : w->group);
        w->sgemm("N", "T", &width, &height, &records, &one, w->right + at * w->q, &width, w->left + at * w->p + first,
                 &apart, &zero, part, &width);
        broken |= ON(w->path, add_narrow_on_grid, w->totals + first * w->q, part, (int64_t)height * width, w->inverse);
    }
    if (broken) __atomic_fetch_or(&w->broken, broken, __ATOMIC_RELAXED);
}

/* totals (p, q) += nearest(inverse * sum) for each group's sum of left_i x right_i, for left (rows, p) and right (rows,
 * q), in products of `each` rows of the totals. 0: see add_on_grid; -1: there is no memory. */
int64_t scrimp_add_products(int path, const Team *team, Sgemm sgemm, int64_t *totals, const float *left,
                            const float *right, int64_t rows, int64_t p, int64_t q, int64_t group, int64_t each,
                            double inverse) {
    const int64_t pieces = pieces_of(p, each), slots = pieces < team->threads ? pieces : team->threads;
    Products work = {path, sgemm, totals, left, right, NULL, rows, p, q, group, each < p ? each : p, 0, inverse};
    work.parts = malloc((size_t)(slots * work.each * q) * sizeof(float));
    if (!work.parts) return -1;
    on_threads(rows * p * q < LEAST_PRODUCT ? &ALONE : team, pieces, products_piece, &work);
    free(work.parts);
    return work.broken;
}

typedef struct {
    int path;
    const double *gradient;
    double *theta, *m, *v;
    int64_t count;
    const Adam *by;
    double shrink, rate;
} Update;

#define NUMBERS_OF_PIECE                                                                                               \
    const Update *w = of;                                                                                              \
    const int64_t first = piece * SHARE, count = share_of(w->count, SHARE, piece);                                     \
    (void)slot

static void adam_piece(void *of, int64_t piece, int64_t slot) {
    NUMBERS_OF_PIECE;
    ON(w->path, adam, w->gradient + first, w->theta + first, w->m + first, w->v + first, count, w->by);
}

void scrimp_adam(int path, const Team *team, const double *gradient, double *theta, double *m, double *v, int64_t count,
                 const Adam *by) {
    Update work = {path, gradient, theta, m, v, count, by, 0.0, 0.0};
    on_threads(team, pieces_of(count, SHARE), adam_piece, &work);
}

static void descend_piece(void *of, int64_t piece, int64_t slot) {
    NUMBERS_OF_PIECE;
    ON(w->path, descend, w->theta + first, w->gradient + first, count, w->shrink, w->rate);
}

void scrimp_descend(int path, const Team *team, double *theta, const double *direction, int64_t count, double shrink,
                    double rate) {
    Update work = {path, direction, theta, NULL, NULL, count, NULL, shrink, rate};
    on_threads(team, pieces_of(count, SHARE), descend_piece, &work);
}

/* AVX2 converts no 64-bit integers. */
static void from_grid_piece(void *of, int64_t piece, int64_t slot) {
    NUMBERS_OF_PIECE;
#if defined(__x86_64__)
    if (w->path == AVX512) {
        from_grid_avx512(w->theta + first, count, w->rate);
        return;
    }
#endif
    from_grid(w->theta + first, count, w->rate);
}

void scrimp_from_grid(int path, const Team *team, double *out, int64_t count, double unit) {
    Update work = {path, NULL, out, NULL, NULL, count, NULL, 0.0, unit};
    on_threads(team, pieces_of(count, SHARE), from_grid_piece, &work);
}
