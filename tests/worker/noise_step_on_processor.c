/* The GPU's noise step on a processor: its blocks one after another (test_noise_on_device.py). It is a driver, too, with
 * the calls of libcuda that worker/native/cuda_driver.py makes; cuda.h declares them. */
#include <string.h>

#include "noise_step.h"

int64_t step_size(void) { return (int64_t)sizeof(Step); }
int64_t step_spans(void) { return SPANS; }
int64_t step_doubts(void) { return DOUBTS; }

void run(const Step *step, int blocks) {
    for (int block = 0; block < blocks; block++) scrimp_noise_step(*step, block, blocks);
}

int cuModuleLoadData(void **module, const void *code) {
    *module = (void *)1;
    return strcmp(code, "processor") ? 200 : 0;
}

int cuModuleGetFunction(void **function, void *module, const char *name) {
    const int step = !strcmp(name, "scrimp_noise_step"), tables = !strcmp(name, "scrimp_noise_tables");
    *function = step ? (void *)run : (void *)scrimp_noise_tables;
    return module == (void *)1 && (step || tables) ? 0 : 500;
}

int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned y_threads,
                   unsigned z_threads, unsigned shared_bytes, void *stream, void **arguments, void **extra) {
    if (y != 1 || z != 1 || y_threads != 1 || z_threads != 1 || threads != THREADS || shared_bytes || extra) return 1;
    if (stream != (void *)0x123456789abcu) return 400;
    if (function == (void *)scrimp_noise_tables) {
        scrimp_noise_tables();
        return arguments ? 1 : 0;
    }
    run(arguments[0], (int)x);
    return 0;
}

int cuGetErrorString(int error, const char **words) {
    *words = error == 200 ? "device kernel image is invalid" : error == 500 ? "named symbol not found" : 0;
    return *words ? 0 : 1;
}

/* The words of one cipher block. */
void words(const Step *step, uint32_t tensor, uint64_t block, int64_t *out) {
    uint32_t table[256 * COPIES], keys[4 * (ROUNDS + 1)];
    for (int i = 0; i < 256 * COPIES; i++) table[i] = mixed((uint32_t)(i / COPIES));
    expand_key(table, step->key, keys);
    words_of(table, keys, 0, step->step, tensor, block, out);
}
