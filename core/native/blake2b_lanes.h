/* BLAKE2b of LANES messages side by side, a message a lane. digests.c includes this once for each width.
 *
 * LANES: 4 or 8. WAY(name): the function's name for this width. TARGET: the instructions that it may use.
 */
#define LANE WAY(lane)
typedef uint64_t LANE __attribute__((vector_size(8 * LANES)));
typedef int64_t WAY(flags) __attribute__((vector_size(8 * LANES)));

#define ROTATED(x, bits) (((x) >> (bits)) | ((x) << (64 - (bits))))
#define MIX(a, b, c, d, x, y)          \
    do {                               \
        a = a + b + (x);               \
        d = ROTATED(d ^ a, 32);        \
        c = c + d;                     \
        b = ROTATED(b ^ c, 24);        \
        a = a + b + (y);               \
        d = ROTATED(d ^ a, 16);        \
        c = c + d;                     \
        b = ROTATED(b ^ c, 63);        \
    } while (0)

/* Takes a block of each lane into its state; `last` is all ones in the lanes that end with it. */
TARGET static void WAY(compress)(LANE h[8], const uint8_t *const blocks[LANES], const uint64_t counts[LANES],
                                 const uint64_t last[LANES]) {
    LANE m[16], v[16], count, end;
    for (int word = 0; word < 16; word++) {
        uint64_t words[LANES];
        for (int lane = 0; lane < LANES; lane++) words[lane] = word_at(blocks[lane] + 8 * word);
        memcpy(&m[word], words, sizeof words);
    }
    memcpy(&count, counts, sizeof count);
    memcpy(&end, last, sizeof end);
    for (int i = 0; i < 8; i++) {
        v[i] = h[i];
        v[8 + i] = (LANE){0} + IV[i];
    }
    v[12] ^= count;
    v[14] ^= end;
#pragma GCC unroll 12
    for (int round = 0; round < 12; round++) {
        const uint8_t *s = SIGMA[round % 10];
        MIX(v[0], v[4], v[8], v[12], m[s[0]], m[s[1]]);
        MIX(v[1], v[5], v[9], v[13], m[s[2]], m[s[3]]);
        MIX(v[2], v[6], v[10], v[14], m[s[4]], m[s[5]]);
        MIX(v[3], v[7], v[11], v[15], m[s[6]], m[s[7]]);
        MIX(v[0], v[5], v[10], v[15], m[s[8]], m[s[9]]);
        MIX(v[1], v[6], v[11], v[12], m[s[10]], m[s[11]]);
        MIX(v[2], v[7], v[8], v[13], m[s[12]], m[s[13]]);
        MIX(v[3], v[4], v[9], v[14], m[s[14]], m[s[15]]);
    }
    for (int i = 0; i < 8; i++) h[i] ^= v[i] ^ v[8 + i];
}

/* Digests LANES messages after the state `begun`, into `out`. */
TARGET static void WAY(digest)(const uint64_t begun[8], const uint8_t *const messages[LANES],
                               const int64_t lengths[LANES], int64_t size, uint8_t *const out[LANES]) {
    LANE h[8], kept[8];
    uint8_t rest[LANES][BLOCK] = {{0}};
    int64_t most = 0;
    for (int i = 0; i < 8; i++) h[i] = (LANE){0} + begun[i];
    for (int lane = 0; lane < LANES; lane++) {
        const int64_t whole = lengths[lane] ? (lengths[lane] - 1) / BLOCK : 0;
        memcpy(rest[lane], messages[lane] + whole * BLOCK, (size_t)(lengths[lane] - whole * BLOCK));
        most = whole > most ? whole : most;
    }
    for (int64_t block = 0; block <= most; block++) {
        const uint8_t *blocks[LANES];
        uint64_t counts[LANES], last[LANES];
        WAY(flags) ended;
        for (int lane = 0; lane < LANES; lane++) {
            const int64_t whole = lengths[lane] ? (lengths[lane] - 1) / BLOCK : 0;
            blocks[lane] = block < whole ? messages[lane] + block * BLOCK : rest[lane];
            counts[lane] = BLOCK + (uint64_t)(block < whole ? (block + 1) * BLOCK : lengths[lane]);
            last[lane] = block < whole ? 0 : ~(uint64_t)0;
            ended[lane] = block > whole ? -1 : 0;
        }
        memcpy(kept, h, sizeof h);
        WAY(compress)(h, blocks, counts, last);
        for (int i = 0; i < 8; i++) h[i] = ((LANE)ended & kept[i]) | (~(LANE)ended & h[i]);
    }
    for (int lane = 0; lane < LANES; lane++) {
        uint64_t words[8];
        for (int i = 0; i < 8; i++) words[i] = h[i][lane];
        memcpy(out[lane], words, (size_t)size);
    }
}

/* All messages, LANES at a time; the last group is filled up with empty ones, whose digests are dropped. */
TARGET static void WAY(digests)(const uint64_t begun[8], const uint8_t *content, const int64_t *ends, int64_t count,
                                int64_t size, uint8_t *out) {
    uint8_t dropped[64];
    for (int64_t first = 0; first < count; first += LANES) {
        const uint8_t *messages[LANES];
        int64_t lengths[LANES];
        uint8_t *outs[LANES];
        for (int lane = 0; lane < LANES; lane++) {
            const int64_t place = first + lane;
            const int64_t start = place < count && place > 0 ? ends[place - 1] : 0;
            messages[lane] = content + start;
            lengths[lane] = place < count ? ends[place] - start : 0;
            outs[lane] = place < count ? out + place * size : dropped;
        }
        WAY(digest)(begun, messages, lengths, size, outs);
    }
}

#undef LANE
#undef ROTATED
#undef MIX
#undef LANES
#undef WAY
#undef TARGET
