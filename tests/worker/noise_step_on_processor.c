/* The GPU's noise step on a processor: its blocks one after another (test_noise_on_device.py). */
#include "noise_step.h"

__attribute__((constructor)) static void fill(void) { scrimp_noise_tables(); }

int64_t step_size(void) { return (int64_t)sizeof(Step); }
int64_t step_spans(void) { return SPANS; }
int64_t step_doubts(void) { return DOUBTS; }

void run(const Step *step, int blocks) {
    for (int block = 0; block < blocks; block++) scrimp_noise_step(*step, block, blocks);
}

/* The words of one cipher block. */
void words(const Step *step, uint32_t tensor, uint64_t block, int64_t *out) {
    uint32_t table[256 * COPIES], keys[4 * (ROUNDS + 1)];
    for (int i = 0; i < 256 * COPIES; i++) table[i] = mixed((uint32_t)(i / COPIES));
    expand_key(table, step->key, keys);
    words_of(table, keys, 0, step->step, tensor, block, out);
}
