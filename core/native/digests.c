/* Keyed BLAKE2b (RFC 7693) of many messages, several at once: as hashlib.blake2b computes it, to the bit.
 *
 * A message takes a lane of a vector. Lanes of a group that end earlier keep their state. Integers alone: every path and
 * compiler computes the same digests. How long it takes depends on the messages' lengths and on nothing else of them.
 */
#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "words are little-endian"
#endif

#define BLOCK 128

enum { PLAIN = 0, AVX2 = 1, AVX512 = 2 };

static const uint64_t IV[8] = {0x6a09e667f3bcc908u, 0xbb67ae8584caa73bu, 0x3c6ef372fe94f82bu, 0xa54ff53a5f1d36f1u,
                               0x510e527fade682d1u, 0x9b05688c2b3e6c1fu, 0x1f83d9abfb41bd6bu, 0x5be0cd19137e2179u};

static const uint8_t SIGMA[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

static inline uint64_t word_at(const uint8_t *bytes) {
    uint64_t word;
    memcpy(&word, bytes, 8);
    return word;
}

#define LANES 4
#define WAY(name) plain_##name
#define TARGET
#include "blake2b_lanes.h"

#if defined(__x86_64__)
#define LANES 4
#define WAY(name) avx2_##name
#define TARGET __attribute__((target("avx2")))
#include "blake2b_lanes.h"

#define LANES 8
#define WAY(name) avx512_##name
#define TARGET __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2")))
#include "blake2b_lanes.h"
#endif

/* Digests of `size` bytes, one after the other.
 *
 * key: a block, the key and zeros after it; key_length at least 1. person: 16 bytes. ends: where each message ends in
 * `content`. Returns 0, or -1 if the library lacks the path.
 */
int64_t scrimp_blake2b(int path, const uint8_t *key, int64_t key_length, const uint8_t *person, const uint8_t *content,
                       const int64_t *ends, int64_t count, int64_t size, uint8_t *out) {
    plain_lane h[8];
    uint64_t begun[8], empty[8];
    const uint8_t *blocks[4] = {key, key, key, key};
    const uint64_t counts[4] = {BLOCK, BLOCK, BLOCK, BLOCK}, last[4] = {0, ~(uint64_t)0, 0, 0};
    for (int i = 0; i < 8; i++) begun[i] = IV[i];
    begun[0] ^= 0x01010000u ^ ((uint64_t)key_length << 8) ^ (uint64_t)size;
    begun[6] ^= word_at(person);
    begun[7] ^= word_at(person + 8);
    for (int i = 0; i < 8; i++) h[i] = (plain_lane){0} + begun[i];
    plain_compress(h, blocks, counts, last);
    for (int i = 0; i < 8; i++) {
        begun[i] = h[i][0];
        empty[i] = h[i][1]; /* of a message without a byte the key's block is the last */
    }
    switch (path) {
    case PLAIN: plain_digests(begun, content, ends, count, size, out); break;
#if defined(__x86_64__)
    case AVX2: avx2_digests(begun, content, ends, count, size, out); break;
    case AVX512: avx512_digests(begun, content, ends, count, size, out); break;
#endif
    default: return -1;
    }
    for (int64_t place = 0; place < count; place++)
        if (ends[place] == (place ? ends[place - 1] : 0)) memcpy(out + place * size, empty, (size_t)size);
    return 0;
}
