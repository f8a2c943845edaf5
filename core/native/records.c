/* Columns of numbers as records: the copies of a registration between Arrow's columns and the rows that are hashed.
 *
 * Copies, conversions of float32 to float64 and one addition of +0, which makes -0 of it 0: the bits are numpy's. How
 * long it takes depends on sizes alone, and on the labels' lengths.
 */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__FAST_MATH__) || FLT_EVAL_METHOD != 0
#error "the bits are of IEEE arithmetic: no -ffast-math, no x87"
#endif

#define TILE 32 /* rows and columns that are copied together: both sides stay in the cache */

/* rows[row][place] = columns[place][row] + 0, row by row. odd[place]: 1 if the column has a cell that is no finite
 * float32, else 0. */
void scrimp_stacked(const double *const *columns, int64_t count, int64_t width, double *rows, uint8_t *odd) {
    memset(odd, 0, (size_t)width);
    for (int64_t first = 0; first < count; first += TILE) {
        const int64_t high = count - first < TILE ? count - first : TILE;
        for (int64_t place = 0; place < width; place++) {
            const double *in = columns[place] + first;
            double *out = rows + first * width + place;
            int wrong = 0;
            for (int64_t row = 0; row < high; row++) {
                const double value = in[row] + 0.0;
                wrong |= !(fabs(value) <= FLT_MAX);
                out[row * width] = value;
            }
            odd[place] |= (uint8_t)wrong;
        }
    }
}

/* Contents of records, one after the other: `begin`, the numbers in this order as float64, the label's first bytes.
 *
 * numbers: float32 if `single`, else float64; rows of `width`. order: `width` places. labels: rows of `label_width`.
 */
void scrimp_contents(const void *numbers, int64_t single, int64_t count, int64_t width, const int64_t *order,
                     const uint8_t *begin, int64_t begin_width, const uint8_t *labels, int64_t label_width,
                     const int64_t *label_lengths, uint8_t *out, int64_t *ends) {
    int64_t at = 0;
    for (int64_t row = 0; row < count; row++) {
        memcpy(out + at, begin, (size_t)begin_width);
        at += begin_width;
        const float *singles = (const float *)numbers + row * width;
        const double *doubles = (const double *)numbers + row * width;
        for (int64_t place = 0; place < width; place++, at += 8) {
            const double value = (single ? (double)singles[order[place]] : doubles[order[place]]) + 0.0;
            memcpy(out + at, &value, 8);
        }
        memcpy(out + at, labels + row * label_width, (size_t)label_lengths[row]);
        at += label_lengths[row];
        ends[row] = at;
    }
}

/* Adds little-endian numbers of 512 bits to `sum`, modulo 2^512. */
void scrimp_sum(const uint8_t *numbers, int64_t count, uint64_t sum[8]) {
    for (int64_t number = 0; number < count; number++) {
        unsigned __int128 carry = 0;
        for (int word = 0; word < 8; word++) {
            uint64_t own;
            memcpy(&own, numbers + 64 * number + 8 * word, 8);
            carry += (unsigned __int128)sum[word] + own;
            sum[word] = (uint64_t)carry;
            carry >>= 64;
        }
    }
}
