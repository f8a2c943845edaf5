/* The noise step on a GPU: S becomes R / L in place, as in noise.c, from words that are made where they are used.
 *
 * NVRTC compiles it for a GPU (worker/native/gpu.py). Tests compile the same text for a processor, and compare its bits
 * with worker/noise/rounding.py.
 *
 * Words: AES-256 in counter mode, at the addresses of worker/noise/generator.py. One thread makes one cipher block: two
 * words, for two numbers. Rounds look up a table in the block's shared memory. Each of the 32 lanes of a warp has its
 * own copy, all of whose entries lie in the lane's own bank: lookups never meet in a bank, and take as long whatever
 * the key and the words are. So the cipher's time tells nothing to who shares the GPU. That of the Gaussian depends on
 * words, as on a processor (tiers of noise.c); it is part of a step's time, which is published in whole seconds at most.
 *
 * Gaussians: tier 2 of noise.c for all numbers, with its proof. What it leaves in doubt (2 of 10^10) is listed with its
 * S for the processor, which decides exactly. In its place stands no number meanwhile: S is nowhere if that fails.
 */
#include "gaussians.h"

#define COPIES 32  /* of the cipher's table: one for each bank of shared memory */
#define ROUNDS 14
#define SPANS 64   /* of one call: it fits in a kernel's 4 KiB of arguments */
#define NO_NUMBER (0.0 / 0.0)
#define DOUBTS 256 /* that have room: of more, a sum is not finite, or the generator is broken */

/* Numbers that lie one after another, and so do their words. */
typedef struct {
    double *numbers;  /* S, then R / L */
    int64_t count;    /* of the numbers */
    int64_t position; /* of the first one in its stream */
    int64_t begin;    /* the first one's cipher block among the call's */
    int64_t at;       /* the first one's place among the release's numbers */
    int64_t tensor;   /* its stream */
} Span;

/* What the processor decides. */
typedef struct {
    int64_t count;   /* of numbers in doubt: those after the first DOUBTS are not listed */
    int64_t reached; /* of all numbers, in doubt or not: of fewer, some still are S */
    struct {
        int64_t place;
        double sum;
    } listed[DOUBTS];
} Doubts;

typedef struct {
    double scale, inverse, grid, divisor; /* s / g, 1 / g, g and L */
    Doubts *doubts;
    int64_t cipher_blocks;                /* of all spans */
    uint32_t key[8];                      /* big-endian, as in FIPS 197 */
    uint32_t step, spans;
    Span span[SPANS];
} Step;

INLINE uint32_t turned(uint32_t word, int bits) { return word >> bits | word << (32 - bits); }

INLINE uint32_t swapped(uint32_t word) {
    return turned(word & 0x00ff00ffu, 8) | turned(word & 0xff00ff00u, 24);
}

/* x times y in GF(2^8), the field of AES. */
INLINE uint32_t times(uint32_t x, uint32_t y) {
    uint32_t product = 0;
    for (int bit = 0; bit < 8; bit++) {
        product ^= (y >> bit & 1u) ? x : 0u;
        x = (x << 1) ^ ((x >> 7) * 0x11bu);
    }
    return product;
}

/* S(x) of FIPS 197: 1 / x = x^254, then the affine map. */
INLINE uint32_t substituted(uint32_t x) {
    uint32_t power = 1, inverse = 1;
    for (int bit = 1; bit < 8; bit++) {
        power = bit == 1 ? times(x, x) : times(power, power);
        inverse = times(inverse, power);
    }
    uint32_t repeated = inverse * 0x01010101u;
    return (inverse ^ repeated >> 7 ^ repeated >> 6 ^ repeated >> 5 ^ repeated >> 4 ^ 0x63u) & 0xffu;
}

/* A column of S-boxes and MixColumns: 2 S(x), S(x), S(x), 3 S(x). */
INLINE uint32_t mixed(uint32_t x) {
    uint32_t s = substituted(x);
    return times(s, 2) << 24 | s << 16 | s << 8 | times(s, 3);
}

#define LOOKED_UP(x, bits) table[((x) >> (bits) & 0xffu) * COPIES + lane]
#define SUBSTITUTED(x, bits) (LOOKED_UP(x, bits) >> 8 & 0xffu)

INLINE uint32_t substituted_word(const uint32_t *table, int lane, uint32_t word) {
    return SUBSTITUTED(word, 24) << 24 | SUBSTITUTED(word, 16) << 16 | SUBSTITUTED(word, 8) << 8 | SUBSTITUTED(word, 0);
}

INLINE void expand_key(const uint32_t *table, const uint32_t *key, uint32_t *keys) {
    uint32_t constant = 1;
    for (int i = 0; i < 4 * (ROUNDS + 1); i++) {
        uint32_t word = i < 8 ? key[i] : keys[i - 1];
        if (i >= 8 && i % 8 == 0) {
            word = substituted_word(table, 0, word << 8 | word >> 24) ^ constant << 24;
            constant = times(constant, 2);
        } else if (i >= 8 && i % 8 == 4) {
            word = substituted_word(table, 0, word);
        }
        keys[i] = i < 8 ? word : word ^ keys[i - 8];
    }
}

/* One column of a round: of the bytes that ShiftRows brings there. */
#define COLUMN(a, b, c, d, key)                                                                   \
    (LOOKED_UP(a, 24) ^ turned(LOOKED_UP(b, 16), 8) ^ turned(LOOKED_UP(c, 8), 16) ^ turned(LOOKED_UP(d, 0), 24) ^ (key))
#define LAST_COLUMN(a, b, c, d, key) \
    ((SUBSTITUTED(a, 24) << 24 | SUBSTITUTED(b, 16) << 16 | SUBSTITUTED(c, 8) << 8 | SUBSTITUTED(d, 0)) ^ (key))

/* The two words of a cipher block: counter = step (32 bits) | tensor (24) | lane 0 (8) | block (64). */
INLINE void words_of(const uint32_t *table, const uint32_t *keys, int lane, uint32_t step, uint32_t tensor,
                     uint64_t block, int64_t *words) {
    uint32_t a = step ^ keys[0], b = tensor << 8 ^ keys[1];
    uint32_t c = (uint32_t)(block >> 32) ^ keys[2], d = (uint32_t)block ^ keys[3];
    for (int round = 1; round < ROUNDS; round++) {
        const uint32_t *key = keys + 4 * round;
        uint32_t p = COLUMN(a, b, c, d, key[0]), q = COLUMN(b, c, d, a, key[1]);
        uint32_t r = COLUMN(c, d, a, b, key[2]), s = COLUMN(d, a, b, c, key[3]);
        a = p, b = q, c = r, d = s;
    }
    const uint32_t *key = keys + 4 * ROUNDS;
    uint32_t p = LAST_COLUMN(a, b, c, d, key[0]), q = LAST_COLUMN(b, c, d, a, key[1]);
    uint32_t r = LAST_COLUMN(c, d, a, b, key[2]), s = LAST_COLUMN(d, a, b, c, key[3]);
    words[0] = (int64_t)((uint64_t)swapped(q) << 32 | swapped(p));
    words[1] = (int64_t)((uint64_t)swapped(s) << 32 | swapped(r));
}

INLINE void release_number(const Step *step, const Span *span, int64_t i, int64_t word) {
    double sum = span->numbers[i], integer;
    if (settled(word, sum * step->inverse, step->scale, &integer)) {
        span->numbers[i] = integer * step->grid / step->divisor;
        return;
    }
    span->numbers[i] = NO_NUMBER;
    int64_t next = add_to(&step->doubts->count, 1);
    if (next >= DOUBTS) return;
    step->doubts->listed[next].place = span->at + i;
    step->doubts->listed[next].sum = sum;
}

/* The numbers of cipher block `of` among the call's; how many they are. */
INLINE int release_block(const Step *step, const uint32_t *table, const uint32_t *keys, int lane, int64_t of) {
    int which = 0;
    FIND(which, step->span, SPANS, step->spans, of);
    const Span *span = &step->span[which];
    int reached = 0;
    int64_t words[2], block = span->position / 2 + (of - span->begin), first = 2 * block - span->position;
    words_of(table, keys, lane, step->step, (uint32_t)span->tensor, (uint64_t)block, words);
    for (int half = 0; half < 2; half++)
        if (first + half >= 0 && first + half < span->count) {
            release_number(step, span, first + half, words[half]);
            reached++;
        }
    return reached;
}

/* Fills SERIES, once after the module was loaded. One block. */
KERNEL_ALONE(scrimp_noise_tables) {
    EACH_THREAD
        if (thread <= LAST) expand(thread);
}

KERNEL(scrimp_noise_step, Step step) {
    BLOCKS
    SHARED uint32_t table[256 * COPIES];
    SHARED uint32_t keys[4 * (ROUNDS + 1)];
    SHARED int64_t reached;
    EACH_THREAD
        if (thread < 256) {
            uint32_t entry = mixed((uint32_t)thread);
            /* each lane begins in another bank */
            for (int at = 0; at < COPIES; at++) table[thread * COPIES + (thread + at) % COPIES] = entry;
        }
    EVERYONE_IS_HERE
    EACH_THREAD
        if (thread == 0) {
            expand_key(table, step.key, keys);
            reached = 0;
        }
    EVERYONE_IS_HERE
    EACH_THREAD {
        int64_t own = 0;
        for (int64_t of = (int64_t)block * THREADS + thread; of < step.cipher_blocks; of += (int64_t)blocks * THREADS)
            own += release_block(&step, table, keys, thread % COPIES, of);
        add_to(&reached, own);
    }
    EVERYONE_IS_HERE
    EACH_THREAD
        if (thread == 0) add_to(&step.doubts->reached, reached);
}
