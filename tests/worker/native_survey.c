/* Opens the tiers of noise.c to the tests of its error bounds (test_native_bounds.py). */
#include "noise.c"

void survey_first(int path, const int64_t *words, float *z, int count);
void survey_second(const int64_t *words, double *z, double *error, int64_t count);
double survey_worst(int path, int64_t first, int64_t last);

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void first_avx2(const int64_t *words, float *z, int count) {
    first_tier(AVX2, words, z, count);
}
__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"))) static void first_avx512(const int64_t *words,
                                                                                               float *z, int count) {
    first_tier(AVX512, words, z, count);
}
#endif

void survey_first(int path, const int64_t *words, float *z, int count) {
#if defined(__x86_64__)
    if (path == AVX2) first_avx2(words, z, count);
    if (path == AVX512) first_avx512(words, z, count);
    if (path != PLAIN) return;
#endif
    first_tier(PLAIN, words, z, count);
}

/* NaN where the table ends. */
void survey_second(const int64_t *words, double *z, double *error, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (!second_tier(words[i], z + i, error + i)) z[i] = error[i] = (double)float_of(0x7fc00000u);
}

/* The largest |z - Z| of tier 1 that is possible for a word whose high half is first <= h < last, h >= 0.
 *
 * All Z of the h lie between those of its first word and of the next h's first word, which tier 2 bounds. */
double survey_worst(int path, int64_t first, int64_t last) {
    int64_t words[BLOCK];
    float z[BLOCK];
    double worst = 0.0, below, above, error, slack;
    if (!second_tier(first << 32, &below, &slack)) return -1.0;
    for (int64_t start = first; start < last; start += BLOCK) {
        const int size = (int)(last - start < BLOCK ? last - start : BLOCK);
        for (int i = 0; i < size; i++) words[i] = (start + i) << 32;
        survey_first(path, words, z, size);
        for (int i = 0; i < size; i++) {
            int64_t next = start + i + 1;
            if (!second_tier(next < (INT64_C(1) << 31) ? next << 32 : INT64_MAX, &above, &error)) return -1.0;
            if (z[i] == z[i]) { /* not a tail, which goes to tier 2 */
                double over = (double)z[i] - below + slack, under = above - (double)z[i] + error;
                if (!(over <= worst)) worst = over;
                if (!(under <= worst)) worst = under;
            }
            below = above;
            slack = error;
        }
    }
    return worst;
}
