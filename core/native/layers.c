/* Layers of networks: what a convolution's kernel sees at each of its places, 2 x 2 pooling, and tanh.
 *
 * Patches are copies. The others do the operations of worker/models/pooling.py and activations.py in the same order,
 * each rounded once, without contraction. So the numbers are torch's; the sign of a zero may differ. No path depends on
 * a number.
 */
#include <float.h>
#include <stdint.h>
#include <string.h>

#include "threads.h"

#if defined(__FAST_MATH__) || FLT_EVAL_METHOD != 0
#error "the bits are of IEEE arithmetic: no -ffast-math, no x87"
#endif

#define INLINE static inline __attribute__((always_inline))

enum { PLAIN = 0, AVX2 = 1 };

/* A convolution, its height first. */
typedef struct {
    int64_t records, channels, size[2], kernel[2], dilation[2], padding[2], stride[2], places[2];
    int64_t by_places; /* 1: (records, places, channels, kernel); 0: (records, channels, kernel, places) */
} Patches;

/* Copies a short line by whole vectors: the last one overlaps the one before. */
INLINE void line(float *out, const float *in, int64_t count) {
    const int64_t width = count >= 8 ? 8 : 4;
    if (count < 4) {
        for (int64_t i = 0; i < count; i++) out[i] = in[i];
    } else if (width == 8) {
        for (int64_t i = 0; i + 8 <= count; i += 8) memcpy(out + i, in + i, 8 * sizeof *out);
        memcpy(out + count - 8, in + count - 8, 8 * sizeof *out);
    } else {
        memcpy(out, in, 4 * sizeof *out);
        memcpy(out + count - 4, in + count - 4, 4 * sizeof *out);
    }
}

/* One image's patches, with the kernel's numbers last. */
INLINE void places_first(float *out, const float *in, const Patches *by, int64_t tall, int64_t wide) {
    for (int64_t y = 0; y < by->places[0]; y++)
        for (int64_t x = 0; x < by->places[1]; x++)
            for (int64_t c = 0; c < by->channels; c++)
                for (int64_t i = 0; i < by->kernel[0]; i++) {
                    const int64_t row = c * tall + y * by->stride[0] + i * by->dilation[0];
                    const float *from = in + row * wide + x * by->stride[1];
                    if (by->dilation[1] == 1)
                        line(out, from, by->kernel[1]);
                    else
                        for (int64_t j = 0; j < by->kernel[1]; j++) out[j] = from[j * by->dilation[1]];
                    out += by->kernel[1];
                }
}

/* One image's patches, with the places last. */
INLINE void kernel_first(float *out, const float *in, const Patches *by, int64_t tall, int64_t wide) {
    for (int64_t c = 0; c < by->channels; c++)
        for (int64_t i = 0; i < by->kernel[0]; i++)
            for (int64_t j = 0; j < by->kernel[1]; j++) {
                const float *from = in + (c * tall + i * by->dilation[0]) * wide + j * by->dilation[1];
                for (int64_t y = 0; y < by->places[0]; y++, from += by->stride[0] * wide, out += by->places[1]) {
                    if (by->stride[1] == 1)
                        line(out, from, by->places[1]);
                    else
                        for (int64_t x = 0; x < by->places[1]; x++) out[x] = from[x * by->stride[1]];
                }
            }
}

/* `padded` has room for one image with its border of zeros. */
INLINE void patches(float *out, const float *in, float *padded, const Patches *by, int64_t records) {
    const int64_t tall = by->size[0] + 2 * by->padding[0], wide = by->size[1] + 2 * by->padding[1];
    const int64_t border = by->padding[0] || by->padding[1], numbers = by->channels * tall * wide;
    const int64_t each = by->channels * by->kernel[0] * by->kernel[1] * by->places[0] * by->places[1];
    if (border) memset(padded, 0, (size_t)numbers * sizeof *padded);
    for (int64_t n = 0; n < records; n++, out += each) {
        const float *image = in + n * by->channels * by->size[0] * by->size[1];
        if (border) {
            for (int64_t c = 0; c < by->channels; c++)
                for (int64_t y = 0; y < by->size[0]; y++)
                    line(padded + (c * tall + y + by->padding[0]) * wide + by->padding[1],
                         image + (c * by->size[0] + y) * by->size[1], by->size[1]);
            image = padded;
        }
        if (by->by_places)
            places_first(out, image, by, tall, wide);
        else
            kernel_first(out, image, by, tall, wide);
    }
}

/* Means over windows of 2 x 2; a last odd row or column is left out. */
INLINE void average(float *out, const float *in, int64_t planes, int64_t height, int64_t width) {
    const int64_t tall = height / 2, wide = width / 2;
    for (int64_t n = 0; n < planes; n++)
        for (int64_t y = 0; y < tall; y++, out += wide) {
            const float *one = in + (n * height + 2 * y) * width, *two = one + width;
            for (int64_t x = 0; x < wide; x++)
                out[x] = (((0.0f + one[2 * x]) + one[2 * x + 1]) + two[2 * x] + two[2 * x + 1]) * 0.25f;
        }
}

INLINE void average_back(float *out, const float *g, int64_t planes, int64_t height, int64_t width) {
    const int64_t tall = height / 2, wide = width / 2;
    for (int64_t n = 0; n < planes; n++, out += height * width) {
        for (int64_t y = 0; y < tall; y++, g += wide) {
            float *one = out + 2 * y * width;
            for (int64_t x = 0; x < wide; x++) one[2 * x] = one[2 * x + 1] = 0.0f + g[x] * 0.25f;
            if (width % 2) one[width - 1] = 0.0f;
            memcpy(one + width, one, (size_t)width * sizeof *one);
        }
        if (height % 2) memset(out + (height - 1) * width, 0, (size_t)width * sizeof *out);
    }
}

/* The larger number; NaN if one is. */
INLINE float larger(float a, float b) { return (a >= b) | (a != a) ? a : b; }

/* The larger of each number and the next one, of a whole plane; the last is as it was. */
INLINE void in_pairs(float *restrict pairs, const float *restrict in, int64_t size) {
    for (int64_t i = 0; i < size - 1; i++) pairs[i] = larger(in[i], in[i + 1]);
    pairs[size - 1] = in[size - 1];
}

/* Maxima over windows of 2 x 2 at every place. `spare` has room for two planes, in maximum_back for four. */
INLINE void maximum(float *out, const float *in, float *spare, int64_t planes, int64_t height, int64_t width) {
    const int64_t size = height * width;
    float *restrict pairs = spare, *restrict squares = spare + size;
    for (int64_t n = 0; n < planes; n++, in += size) {
        in_pairs(pairs, in, size);
        for (int64_t i = 0; i < size - width; i++) squares[i] = larger(pairs[i], pairs[i + width]);
        for (int64_t y = 0; y < height - 1; y++, out += width - 1) line(out, squares + y * width, width - 1);
    }
}

/* g at its place where the number there is not below the one `step` further on; else further on. `rest` is spare. */
INLINE void first_of(float *restrict out, const float *restrict g, const float *restrict compared, float *restrict rest,
                     int64_t size, int64_t step) {
    for (int64_t i = 0; i < size - step; i++) {
        const float here = (compared[i] >= compared[i + step] ? 1.0f : 0.0f) * g[i];
        rest[i] = g[i] - here;
        out[i] = here;
    }
    for (int64_t i = size - step; i < size; i++) out[i] = 0.0f; /* no window begins here */
    for (int64_t i = step; i < size; i++) out[i] += rest[i - step];
}

INLINE void maximum_back(float *out, const float *g, const float *in, float *spare, int64_t planes, int64_t height,
                         int64_t width) {
    const int64_t size = height * width;
    float *pairs = spare, *wide = spare + size, *upper = spare + 2 * size, *rest = spare + 3 * size;
    memset(wide, 0, (size_t)size * sizeof *wide);
    for (int64_t n = 0; n < planes; n++, in += size, out += size) {
        in_pairs(pairs, in, size);
        for (int64_t y = 0; y < height - 1; y++, g += width - 1) line(wide + y * width, g, width - 1);
        first_of(upper, wide, pairs, rest, size, width);
        first_of(out, upper, in, rest, size, 1);
    }
}

/* A ratio of polynomials: worker/models/activations.py. */
INLINE void tangent(float *restrict out, const float *restrict in, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const float x = in[i], high = x > 7.90531110763549805f ? 7.90531110763549805f : x;
        const float y = high < -7.90531110763549805f ? -7.90531110763549805f : high, s = y * y;
        float p = s * -2.76076847742355e-16f + 2.00018790482477e-13f;
        p = p * s + -8.60467152213735e-11f;
        p = p * s + 5.12229709037114e-08f;
        p = p * s + 1.48572235717979e-05f;
        p = p * s + 6.37261928875436e-04f;
        p = p * s + 4.89352455891786e-03f;
        float q = s * 1.19825839466702e-06f + 1.18534705686654e-04f;
        q = q * s + 2.26843463243900e-03f;
        q = q * s + 4.89352518554385e-03f;
        const float ratio = p * y / q;
        out[i] = __builtin_fabsf(x) < 0.0004f ? x : ratio;
    }
}

#if defined(__x86_64__)
#define WIDE __attribute__((target("avx2,fma"))) static
WIDE void patches_avx2(float *out, const float *in, float *padded, const Patches *by, int64_t records) {
    patches(out, in, padded, by, records);
}
WIDE void average_avx2(float *out, const float *in, int64_t planes, int64_t height, int64_t width) {
    average(out, in, planes, height, width);
}
WIDE void average_back_avx2(float *out, const float *g, int64_t planes, int64_t height, int64_t width) {
    average_back(out, g, planes, height, width);
}
WIDE void maximum_avx2(float *out, const float *in, float *spare, int64_t planes, int64_t height, int64_t width) {
    maximum(out, in, spare, planes, height, width);
}
WIDE void maximum_back_avx2(float *out, const float *g, const float *in, float *spare, int64_t planes, int64_t height,
                            int64_t width) {
    maximum_back(out, g, in, spare, planes, height, width);
}
WIDE void tangent_avx2(float *out, const float *in, int64_t count) { tangent(out, in, count); }
#define ON(path, name, ...) ((path) == AVX2 ? name##_avx2(__VA_ARGS__) : name(__VA_ARGS__))
#else
#define ON(path, name, ...) name(__VA_ARGS__)
#endif

/* --- Pieces for threads --- */

typedef struct {
    int path;
    float *out;
    const float *in, *other; /* of maximum_back: g, and what g's places are the maxima of */
    float *spare;            /* `room` numbers for each thread */
    int64_t room, planes, height, width;
    int64_t into, each; /* numbers of `out` for a plane; planes of a piece */
    const Patches *by;
} Planes;

static void patches_piece(void *of, int64_t piece, int64_t slot) {
    const Planes *w = of;
    const int64_t first = piece * w->each, records = share_of(w->planes, w->each, piece);
    ON(w->path, patches, w->out + first * w->into, w->in + first * w->height * w->width, w->spare + slot * w->room, w->by,
       records);
}

/* `padded` has room for one image for each thread. */
void scrimp_patches(int path, const Team *team, float *out, const float *in, float *padded, const Patches *by) {
    const int64_t tall = by->size[0] + 2 * by->padding[0], wide = by->size[1] + 2 * by->padding[1];
    const int64_t into = by->channels * by->kernel[0] * by->kernel[1] * by->places[0] * by->places[1];
    Planes work = {path, out, in, NULL, padded, by->channels * tall * wide, by->records, by->channels * by->size[0],
                   by->size[1], into, rows_of_share(into), by};
    on_threads(team, pieces_of(work.planes, work.each), patches_piece, &work);
}

#define PLANES_OF_PIECE                                                                                                \
    const Planes *w = of;                                                                                              \
    const int64_t first = piece * w->each, planes = share_of(w->planes, w->each, piece), full = w->height * w->width;  \
    float *out = w->out + first * w->into, *spare = w->spare + slot * w->room;                                         \
    (void)spare

static void average_piece(void *of, int64_t piece, int64_t slot) {
    PLANES_OF_PIECE;
    ON(w->path, average, out, w->in + first * full, planes, w->height, w->width);
}

static void average_back_piece(void *of, int64_t piece, int64_t slot) {
    PLANES_OF_PIECE;
    (void)full;
    ON(w->path, average_back, out, w->in + first * (w->height / 2) * (w->width / 2), planes, w->height, w->width);
}

static void maximum_piece(void *of, int64_t piece, int64_t slot) {
    PLANES_OF_PIECE;
    ON(w->path, maximum, out, w->in + first * full, spare, planes, w->height, w->width);
}

static void maximum_back_piece(void *of, int64_t piece, int64_t slot) {
    PLANES_OF_PIECE;
    ON(w->path, maximum_back, out, w->in + first * (w->height - 1) * (w->width - 1), w->other + first * full, spare, planes,
       w->height, w->width);
}

static void by_planes(const Team *team, Piece piece, Planes work) {
    work.each = rows_of_share(work.height * work.width);
    on_threads(team, pieces_of(work.planes, work.each), piece, &work);
}

void scrimp_average(int path, const Team *team, float *out, const float *in, int64_t planes, int64_t height,
                    int64_t width) {
    const int64_t into = (height / 2) * (width / 2);
    by_planes(team, average_piece, (Planes){path, out, in, NULL, NULL, 0, planes, height, width, into, 0, NULL});
}

void scrimp_average_back(int path, const Team *team, float *out, const float *g, int64_t planes, int64_t height,
                         int64_t width) {
    const int64_t into = height * width;
    by_planes(team, average_back_piece, (Planes){path, out, g, NULL, NULL, 0, planes, height, width, into, 0, NULL});
}

/* `spare` has room for two planes for each thread. */
void scrimp_maximum(int path, const Team *team, float *out, const float *in, float *spare, int64_t planes,
                    int64_t height, int64_t width) {
    const int64_t into = (height - 1) * (width - 1), room = 2 * height * width;
    by_planes(team, maximum_piece, (Planes){path, out, in, NULL, spare, room, planes, height, width, into, 0, NULL});
}

/* `spare` has room for four planes for each thread. */
void scrimp_maximum_back(int path, const Team *team, float *out, const float *g, const float *in, float *spare,
                         int64_t planes, int64_t height, int64_t width) {
    const int64_t into = height * width;
    by_planes(team, maximum_back_piece, (Planes){path, out, g, in, spare, 4 * into, planes, height, width, into, 0, NULL});
}

static void tanh_piece(void *of, int64_t piece, int64_t slot) {
    const Planes *w = of;
    const int64_t first = piece * SHARE, count = share_of(w->planes, SHARE, piece);
    (void)slot;
    ON(w->path, tangent, w->out + first, w->in + first, count);
}

void scrimp_tanh(int path, const Team *team, float *out, const float *in, int64_t count) {
    Planes work = {path, out, in, NULL, NULL, 0, count, 1, 1, 1, SHARE, NULL};
    on_threads(team, pieces_of(count, SHARE), tanh_piece, &work);
}
