/* Sorts digests of 128 bits, and adds up the counts of equal ones.
 *
 * Digests are uniform between the least and the largest one, so their first bits divide them into buckets of a few, each
 * of which is sorted by insertion. A larger bucket, as of a repeated digest, is sorted by qsort: no order of the digests
 * makes it slow.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BUCKET_BITS 16
#define FEW 24 /* rows that are sorted by insertion */

typedef struct {
    uint64_t first, second;
    int64_t count;
} Row;

static inline int is_below(const Row *a, const Row *b) {
    return a->first < b->first || (a->first == b->first && a->second < b->second);
}

static int compare(const void *a, const void *b) {
    return is_below(a, b) ? -1 : is_below(b, a);
}

static void sort_few(Row *rows, int64_t count) {
    for (int64_t at = 1; at < count; at++) {
        const Row row = rows[at];
        int64_t to = at;
        for (; to > 0 && is_below(&row, rows + to - 1); to--) rows[to] = rows[to - 1];
        rows[to] = row;
    }
}

/* How far the words' differences from the least one are shifted, so that they number the buckets. */
static int shift_of(uint64_t spread, int64_t count) {
    int bits = 1, shift = 0; /* at least one: no word is shifted by 64 */
    while (bits < BUCKET_BITS && count >> (bits + 3)) bits++;
    while (spread >> shift >> bits) shift++;
    return shift;
}

/* digests: `count` pairs of words. counts: how often each one counts; NULL: once. out, out_counts: room for `count`.
 * Returns how many different ones there are, or -1 without memory. */
int64_t scrimp_ascending(const uint64_t *digests, const int64_t *counts, int64_t count, uint64_t *out,
                         int64_t *out_counts) {
    if (!count) return 0;
    uint64_t least = digests[0], most = digests[0];
    for (int64_t row = 1; row < count; row++) {
        const uint64_t word = digests[2 * row];
        least = word < least ? word : least;
        most = word > most ? word : most;
    }
    const int shift = shift_of(most - least, count);
    const int64_t buckets = (int64_t)((most - least) >> shift) + 1;
    int64_t *ends = calloc((size_t)buckets + 1, sizeof *ends);
    Row *rows = malloc((size_t)count * sizeof *rows);
    if (!ends || !rows) {
        free(ends);
        free(rows);
        return -1;
    }
    for (int64_t row = 0; row < count; row++) ends[((digests[2 * row] - least) >> shift) + 1]++;
    for (int64_t bucket = 0; bucket < buckets; bucket++) ends[bucket + 1] += ends[bucket];
    for (int64_t row = 0; row < count; row++) { /* ends[b]: from a bucket's first place to its last, which is b + 1's first */
        const int64_t at = ends[(digests[2 * row] - least) >> shift]++;
        rows[at] = (Row){digests[2 * row], digests[2 * row + 1], counts ? counts[row] : 1};
    }
    int64_t different = 0;
    for (int64_t bucket = 0, first = 0; bucket < buckets; bucket++) {
        const int64_t end = ends[bucket];
        if (end - first > FEW)
            qsort(rows + first, (size_t)(end - first), sizeof *rows, compare);
        else
            sort_few(rows + first, end - first);
        for (; first < end; first++) {
            const Row row = rows[first];
            if (different && out[2 * different - 2] == row.first && out[2 * different - 1] == row.second) {
                out_counts[different - 1] += row.count;
                continue;
            }
            out[2 * different] = row.first;
            out[2 * different + 1] = row.second;
            out_counts[different++] = row.count;
        }
    }
    free(ends);
    free(rows);
    return different;
}
