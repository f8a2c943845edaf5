/* Words to released numbers: R / L with R = g * nearest((S + s * Z) / g), bit for bit as worker/noise/rounding.py.
 *
 * Z = Phi^-1(U), where the word is the leading 64 bits of U. R is a function of S and U alone, so any way to compute it
 * gives the same bits. Three tiers find it, each with a bound on its error; a number within the bound of a boundary
 * between two cells of the grid goes to the next tier:
 *
 *   1. float32, all numbers: |z - Z| <= FIRST_ERROR. tests/worker/test_native_bounds.py enumerates all 2^31 inputs.
 *   2. float64, some 0.3 %: |z - Z| <= SECOND_ERROR + SECOND_TAIL / phi(x). The proof is in docs/theorems.md.
 *   3. exact, some 2 * 10^-10: the caller's. Tiers 1 and 2 report the positions, with S still in its place.
 *
 * Only IEEE operations decide, without contraction or libm, so every path and compiler computes the same numbers.
 * Paths: AVX-512 or AVX2 where the CPU has it, else the compiler's base line.
 */
#include <float.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "gaussians.h"
#include "threads.h"

#if defined(__FAST_MATH__) || FLT_EVAL_METHOD != 0
#error "the error bounds need IEEE arithmetic: no -ffast-math, no x87"
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "words are little-endian"
#endif

#ifndef SCRIMP_DIGEST
#define SCRIMP_DIGEST "" /* the SHA-256 of the C files, set by core/native/build.py */
#endif

#define BLOCK 256 /* numbers whose Gaussians are made at once */
#define GROUP 32  /* numbers that are looked through if one of them is in doubt */
#define PARTS 64  /* of a call, at most: for other threads */

enum { PLAIN = 0, AVX2 = 1, AVX512 = 2 };

#ifndef FIRST_ERROR /* tests plant smaller bounds */
#define FIRST_ERROR 0x1.bp-21
#endif
#define FIRST_TAIL (1 << 20)   /* tier 1 ends where 1 - |2U - 1| < 2^-11, at |Z| = 3.5 */
#define FIRST_LARGEST 0x1p+38  /* tier 1 takes sums below this many cells ... */
#define FIRST_ROUNDING 0x1p-14 /* ... whose sum with the noise then rounds by less than this */

__attribute__((constructor)) static void expand_all(void) {
    for (int at = 0; at <= LAST; at++) expand(at);
}

INLINE uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

INLINE float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* a * b + c, rounded twice on the plain path and once on the others. */
INLINE float multiply_add(int path, float a, float b, float c) {
    return path == PLAIN ? a * b + c : __builtin_fmaf(a, b, c);
}

/* Tier 1. z = v * P(-log2(1 - v^2)) with v = 2U - 1 to 31 bits; a NaN in the tails. */
INLINE void first_tier(int path, const int64_t *words, float *z, int count) {
#define MA(a, b, c) multiply_add(path, a, b, c)
    int32_t highs[BLOCK];
    for (int i = 0; i < count; i++) highs[i] = (int32_t)(words[i] >> 32);
    for (int i = 0; i < count; i++) {
        int32_t high = highs[i], sign = high >> 31, size = high ^ sign, left = INT32_MAX - size;
        float v = (float)size * 0x1p-31f + 0x1p-32f, q = (float)left * 0x1p-31f + 0x1p-32f, y = q * (2.0f - q);
        /* y = 2^exponent (1 + f) with 1 + f between sqrt(1/2) and sqrt(2) */
        uint32_t scaled = bits_of(y) + (0x3f800000u - 0x3f3504f3u);
        float exponent = (float)((int32_t)(scaled >> 23) - 127);
        float f = float_of((scaled & 0x7fffffu) + 0x3f3504f3u) - 1.0f, f2 = f * f, f4 = f2 * f2;
        float f01 = MA(-0x1.71546ap-1f, f, 0x1.715474p+0f), f23 = MA(-0x1.7160e6p-2f, f, 0x1.ec76f4p-2f);
        float f45 = MA(-0x1.e87cf8p-3f, f, 0x1.268f74p-2f), f67 = MA(-0x1.aeb3p-3f, f, 0x1.bd31c2p-3f);
        float log = MA(MA(MA(0x1.00d6b2p-3f, f2, f67), f2, f45), f4, MA(f23, f2, f01));
        float x = -MA(log, f, exponent) - 4.0f, x2 = x * x, x4 = x2 * x2;
        float x01 = MA(0x1.ea0ccep-3f, x, 0x1.1be4ccp+1f), x23 = MA(-0x1.f7aca4p-12f, x, -0x1.c6b554p-9f);
        float x45 = MA(-0x1.27cb5ep-19f, x, 0x1.1ccad6p-14f), x67 = MA(0x1.af37e8p-25f, x, -0x1.a686fp-22f);
        float x89 = MA(-0x1.6c96f6p-32f, x, -0x1.a28ebap-32f);
        float upper = MA(MA(0x1.5cea06p-36f, x2, x89), x4, MA(x67, x2, x45));
        float ratio = MA(upper, x4, MA(x23, x2, x01));
        uint32_t tail = left < FIRST_TAIL ? 0x7fc00000u : 0u;
        z[i] = float_of((bits_of(ratio * v) ^ ((uint32_t)sign & 0x80000000u)) | tail);
    }
#undef MA
}

INLINE int64_t release(int path, const int64_t *words, const double *sums, double *out, int64_t count, double std,
                       double grid, double divisor, int64_t *undecided) {
    float z[BLOCK];
    double result[BLOCK];
    int64_t doubts[GROUP];
    const double scale = std / grid, inverse = 1.0 / grid; /* both exact: the grid is a power of two */
    const double limit = 0.5 - (scale * FIRST_ERROR + FIRST_ROUNDING);
    int64_t left = 0;
    for (int64_t start = 0; start < count; start += BLOCK) {
        const int size = (int)(count - start < BLOCK ? count - start : BLOCK);
        const int64_t *word = words + start;
        const double *sum = sums + start;
        first_tier(path, word, z, size);
        for (int at = 0; at < size; at += GROUP) {
            const int group = size - at < GROUP ? size - at : GROUP;
            int64_t any = 0;
            for (int i = 0; i < group; i++) {
                double cells = sum[at + i] * inverse, noised = cells + scale * (double)z[at + i];
                double nearest = (noised + NEAREST) - NEAREST;
                result[at + i] = nearest * grid / divisor;
                /* also where one of them is a NaN */
                doubts[i] = !(__builtin_fabs(noised - nearest) <= limit) | !(__builtin_fabs(cells) < FIRST_LARGEST);
            }
            for (int i = 0; i < group; i++) any |= doubts[i];
            for (int i = 0; any && i < group; i++) {
                double integer;
                if (!doubts[i]) continue;
                if (settled(word[at + i], sum[at + i] * inverse, scale, &integer)) {
                    result[at + i] = integer * grid / divisor;
                } else {
                    result[at + i] = sum[at + i];
                    undecided[left++] = start + at + i;
                }
            }
        }
        memcpy(out + start, result, (size_t)size * sizeof *out);
    }
    return left;
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static int64_t release_avx2(const int64_t *words, const double *sums, double *out,
                                                               int64_t count, double std, double grid, double divisor,
                                                               int64_t *undecided) {
    return release(AVX2, words, sums, out, count, std, grid, divisor, undecided);
}
__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"))) static int64_t release_avx512(
    const int64_t *words, const double *sums, double *out, int64_t count, double std, double grid, double divisor,
    int64_t *undecided) {
    return release(AVX512, words, sums, out, count, std, grid, divisor, undecided);
}
#endif

/* The best path of this CPU. Asks it directly: not every compiler's library has __builtin_cpu_supports. */
int scrimp_path(void) {
#if defined(__x86_64__)
    unsigned a, b, c, d, saved, ignored;
    const unsigned fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, avx2 = 1u << 5;
    const unsigned avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31; /* F, DQ, BW and VL */
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & (fma | osxsave | avx)) != (fma | osxsave | avx)) return PLAIN;
    __asm__("xgetbv" : "=a"(saved), "=d"(ignored) : "c"(0));
    if ((saved & 6) != 6) return PLAIN; /* the system keeps the upper halves of registers */
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & avx2)) return PLAIN;
    return (b & avx512) == avx512 && (saved & 0xe6) == 0xe6 ? AVX512 : AVX2;
#endif
    return PLAIN;
}

const char *scrimp_digest(void) { return SCRIMP_DIGEST; }

typedef struct {
    int path;
    const int64_t *words;
    const double *sums;
    double *out;
    int64_t count, each;
    double std, grid, divisor;
    int64_t *undecided, left[PARTS];
} Release;

static void release_piece(void *of, int64_t piece, int64_t slot) {
    Release *w = of;
    const int64_t first = piece * w->each, count = share_of(w->count, w->each, piece);
    const int64_t *words = w->words + first;
    const double *sums = w->sums + first;
    double *out = w->out + first;
    int64_t *undecided = w->undecided + first;
    (void)slot;
#if defined(__x86_64__)
    if (w->path == AVX2)
        w->left[piece] = release_avx2(words, sums, out, count, w->std, w->grid, w->divisor, undecided);
    else if (w->path == AVX512)
        w->left[piece] = release_avx512(words, sums, out, count, w->std, w->grid, w->divisor, undecided);
    else
#endif
        w->left[piece] = release(PLAIN, words, sums, out, count, w->std, w->grid, w->divisor, undecided);
}

/* Writes R / divisor; `out` may be `sums` or `words` itself. Writes S where tiers 1 and 2 are in doubt, and these
 * positions into `undecided`, which has room for `count`, ascending. Returns their number, or -1 if there is no such
 * path; the caller has asked scrimp_path what this CPU has. */
int64_t scrimp_release(int path, const Team *team, const int64_t *words, const double *sums, double *out, int64_t count,
                       double std, double grid, double divisor, int64_t *undecided) {
    const int64_t fair = pieces_of(pieces_of(count, PARTS), BLOCK) * BLOCK, each = fair < SHARE / 4 ? SHARE / 4 : fair;
    Release work = {path, words, sums, out, count, each, std, grid, divisor, undecided, {0}};
    int64_t left = 0;
#if defined(__x86_64__)
    if (path != PLAIN && path != AVX2 && path != AVX512) return -1;
#else
    if (path != PLAIN) return -1;
#endif
    on_threads(team, pieces_of(count, each), release_piece, &work);
    for (int64_t piece = 0; piece < pieces_of(count, each); piece++)
        for (int64_t i = 0; i < work.left[piece]; i++) undecided[left++] = undecided[piece * each + i] + piece * each;
    return left;
}
