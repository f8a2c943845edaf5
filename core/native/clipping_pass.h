/* A pass's clipping on a GPU, of many parameters at once: lengths of formed gradients, clip factors, and the sums, which
 * are added to the totals as integers on the grid (worker/clipping/totals.py).
 *
 * Formed gradients are clipped, added up by groups of records, and rounded to the grid in one reading: row by row in
 * float, with the bits of add_formed in steps.c. Sums that another kernel made, such as cuBLAS, are rounded alone.
 * Integers have no order: neither have blocks. No path depends on a private number, but for totals of no use.
 */
#ifndef SCRIMP_CLIPPING_PASS_H
#define SCRIMP_CLIPPING_PASS_H

#include "two_compilers.h"

/* Of one call: they fit in a kernel's 4 KiB of arguments. */
#define MATRICES 64
#define LENGTHS 96
#define PARTS 32
#define MOST_UNITS 0x1p+51 /* of a sum, as in steps.c */
#define INFINITE (LARGEST * 2.0)
#define AUTOMATIC 2.0 /* as in steps.c */

/* --- Lengths --- */

/* One parameter's gradients. */
typedef struct {
    double *squares;      /* (rows,) */
    const float *numbers; /* (rows, width) */
    int64_t rows, width;
    int64_t lanes;        /* threads of a row, a power of two */
    int64_t begin;        /* the first one's tile among the call's: some rows */
} Matrix;

typedef struct {
    int64_t tiles, matrices;
    Matrix matrix[MATRICES];
} Squares;

/* squares[i] = the sum of row i's squares in double, which are exact; its order is the width's. */
KERNEL(scrimp_row_squares, Squares of) {
    BLOCKS
    SHARED double sums[THREADS];
    for (int64_t tile = block; tile < of.tiles; tile += blocks) {
        int which = 0;
        FIND(which, of.matrix, MATRICES, of.matrices, tile);
        const Matrix *matrix = &of.matrix[which];
        const int lanes = (int)matrix->lanes;
        const int64_t first = (tile - matrix->begin) * (THREADS / lanes);
        EACH_THREAD {
            const int64_t row = first + thread / lanes;
            double sum = 0.0;
            for (int64_t j = thread % lanes; row < matrix->rows && j < matrix->width; j += lanes) {
                const double number = (double)matrix->numbers[row * matrix->width + j];
                sum += number * number;
            }
            sums[thread] = sum;
        }
        EVERYONE_IS_HERE
        for (int by = lanes / 2; by; by /= 2) {
            EACH_THREAD
                if (thread % lanes < by) sums[thread] += sums[thread + by];
            EVERYONE_IS_HERE
        }
        EACH_THREAD
            if (thread % lanes == 0 && first + thread / lanes < matrix->rows)
                matrix->squares[first + thread / lanes] = sums[thread];
        EVERYONE_IS_HERE
    }
}

/* --- Clip factors --- */

/* One parameter's squared lengths, as Measured of steps.c. */
typedef struct {
    const double *squares, *slack; /* (rows,); slack NULL: a share of the squares */
    double share, longest;
    int64_t group;
} Length;

typedef struct {
    double *bounds; /* (groups + 1, rows); the last ones count lengths */
    int64_t rows, groups, lengths;
    Length length[LENGTHS];
} Bounds;

/* bounds[g] += max(0, squares) + slack, of the parameters of group g in their order. */
KERNEL(scrimp_add_lengths, Bounds to) {
    BLOCKS
    EACH_THREAD
        for (int64_t row = (int64_t)block * THREADS + thread; row < to.rows; row += (int64_t)blocks * THREADS) {
            for (int at = 0; at < (int)to.lengths; at++) {
                const Length *length = &to.length[at];
                const double squares = length->squares[row];
                const double slack = length->slack ? length->slack[row] : squares * length->share;
                const double most = squares > length->longest ? INFINITE : squares;
                to.bounds[length->group * to.rows + row] += (most < 0.0 ? 0.0 : most) + slack;
            }
            to.bounds[to.groups * to.rows + row] += (double)to.lengths;
        }
}

typedef struct {
    const double *bounds;  /* (groups + 1, rows) */
    const double *weights; /* (rows,), 0 for an empty one */
    double *wide;          /* (groups, rows), the factors */
    float *narrow;         /* the same, rounded to float */
    int64_t *halves;       /* grows by 1 where the first group's factor is 1 or more, by -1 where it is less but not 0 */
    double growth;         /* of roots, which are then upper bounds */
    double kind, norm, gamma; /* FLAT or AUTOMATIC; of a group; what automatic clipping adds to a length */
    int64_t rows, groups, lengths;
} Factors;

/* The weighted factors: 0 in all groups where one group's bound is not finite, or lacks a length. */
KERNEL(scrimp_clip_factors, Factors by) {
    BLOCKS
    EACH_THREAD
        for (int64_t row = (int64_t)block * THREADS + thread; row < by.rows; row += (int64_t)blocks * THREADS) {
            int finite = by.bounds[by.groups * by.rows + row] == (double)by.lengths;
            for (int64_t at = row; at < by.groups * by.rows; at += by.rows) {
                const double norm = SQUARE_ROOT(by.bounds[at] + SMALLEST) * by.growth;
                const double most = (1.0 / norm) * by.norm, one = most > 1.0 ? 1.0 : most;
                by.wide[at] = by.kind == AUTOMATIC ? (1.0 / (norm + by.gamma)) * by.norm : one;
                finite &= fabs(norm) <= LARGEST;
            }
            for (int64_t at = row; at < by.groups * by.rows; at += by.rows) {
                const double unweighted = by.wide[at]; /* read in any case */
                const double factor = (finite ? unweighted : 0.0) * by.weights[row];
                by.wide[at] = factor;
                by.narrow[at] = (float)factor;
            }
            const double first = by.wide[row];
            add_to(by.halves, (int64_t)(first > 0.0) * (2 * (int64_t)(first >= 1.0) - 1));
        }
}

/* --- Sums --- */

/* One parameter's. */
typedef struct {
    int64_t *totals;       /* (width,) */
    const void *numbers;   /* (rows, width) */
    const float *factors;  /* (rows,), of gradients in float; NULL: each row is a sum */
    int64_t rows, width;
    int64_t group;         /* rows that one thread reads; float adds those of gradients */
    int64_t begin;         /* the first one's tile among the call's: THREADS columns of a group */
    int64_t wide;          /* sums are in double */
} Part;

typedef struct {
    int64_t *broken;       /* grows where totals are of no use: a sum is not finite, or has MOST_UNITS or more */
    double inverse;        /* of the unit, a power of two */
    int64_t tiles, parts;
    Part part[PARTS];
} Sums;

/* factor * number; 0 where the factor is 0, whatever the number is. */
INLINE float clipped(float factor, float number) {
    union {
        float number;
        uint32_t bits;
    } product = {factor * number};
    product.bits &= -(uint32_t)(factor != 0.0f);
    return product.number;
}

/* The nearest integer to a sum in units; 0, and one more is broken, where it is out of range. */
INLINE int64_t nearest_units(double units, int64_t *broken) {
    const int in_range = fabs(units) < MOST_UNITS;
    const double inside = in_range ? units : 0.0;
    *broken += !in_range;
    return (int64_t)((inside + NEAREST) - NEAREST);
}

/* A column of a group: what it adds to its total. */
INLINE int64_t units_of_column(const Part *part, double inverse, int64_t first, int64_t column, int64_t *broken) {
    const int64_t end = part->rows - first < part->group ? part->rows : first + part->group;
    const float *narrow = (const float *)part->numbers + column;
    const double *wide = (const double *)part->numbers + column;
    uint64_t units = 0;
    float sum = 0.0f;
    if (part->factors) {
        UNROLLED for (int64_t i = first; i < end; i++) sum += clipped(part->factors[i], narrow[i * part->width]);
        return nearest_units((double)sum * inverse, broken);
    }
    for (int64_t i = first; i < end; i++) {
        const double number = part->wide ? wide[i * part->width] : (double)narrow[i * part->width];
        units += (uint64_t)nearest_units(number * inverse, broken);
    }
    return (int64_t)units;
}

/* totals += the nearest integers to the sums, in units. */
KERNEL(scrimp_add_sums, Sums sums) {
    BLOCKS
    EACH_THREAD {
        int64_t broken = 0;
        for (int64_t tile = block; tile < sums.tiles; tile += blocks) {
            int which = 0;
            FIND(which, sums.part, PARTS, sums.parts, tile);
            const Part *part = &sums.part[which];
            const int64_t across = (part->width + THREADS - 1) / THREADS, at = tile - part->begin;
            const int64_t column = at % across * THREADS + thread;
            if (column < part->width)
                add_to(&part->totals[column],
                       units_of_column(part, sums.inverse, at / across * part->group, column, &broken));
        }
        if (broken) add_to(sums.broken, broken);
    }
}

#endif
