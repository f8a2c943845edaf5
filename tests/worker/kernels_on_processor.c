/* The GPU's kernels on a processor: their blocks one after another (test_noise_on_device.py, test_gpu_pass.py). It is a
 * driver, too, with the calls of libcuda that worker/native/cuda_driver.py makes; cuda.h declares them. */
#include <string.h>

#include "noise_step.h"
#include "clipping_pass.h"

int64_t step_size(void) { return (int64_t)sizeof(Step); }
int64_t step_spans(void) { return SPANS; }
int64_t step_doubts(void) { return DOUBTS; }

int64_t threads(void) { return THREADS; }

int64_t sizes(int which) {
    const size_t found[] = {sizeof(Squares), sizeof(Bounds), sizeof(Factors), sizeof(Sums), MATRICES, LENGTHS, PARTS};
    return (int64_t)found[which];
}

static const char *const NAMES[] = {"", "scrimp_noise_tables", "scrimp_noise_step", "scrimp_row_squares",
                                    "scrimp_add_lengths", "scrimp_clip_factors", "scrimp_add_sums"};
enum { NONE, TABLES, STEP, SQUARES, BOUNDS, FACTORS, SUMS };

static int number_of(const char *name) {
    for (int at = SUMS; at > NONE; at--)
        if (!strcmp(name, NAMES[at])) return at;
    return NONE;
}

static void run_blocks(int kernel, const void *argument, int blocks) {
    for (int block = 0; block < blocks; block++) {
        if (kernel == STEP) scrimp_noise_step(*(const Step *)argument, block, blocks);
        if (kernel == SQUARES) scrimp_row_squares(*(const Squares *)argument, block, blocks);
        if (kernel == BOUNDS) scrimp_add_lengths(*(const Bounds *)argument, block, blocks);
        if (kernel == FACTORS) scrimp_clip_factors(*(const Factors *)argument, block, blocks);
        if (kernel == SUMS) scrimp_add_sums(*(const Sums *)argument, block, blocks);
    }
}

void run(const char *name, const void *argument, int blocks) { run_blocks(number_of(name), argument, blocks); }

static _Thread_local void *context = NULL; /* of each thread but the first one that asks */
static void *contexts = NULL;

int cuCtxGetCurrent(void **current) {
    if (!contexts) contexts = context = (void *)2;
    *current = context;
    return 0;
}

int cuCtxSetCurrent(void *current) {
    context = current;
    return 0;
}

int cuModuleLoadData(void **module, const void *code) {
    *module = (void *)1;
    return strcmp(code, "processor") ? 200 : 0;
}

int cuModuleGetFunction(void **function, void *module, const char *name) {
    *function = (void *)(intptr_t)number_of(name);
    return module == (void *)1 && *function ? 0 : 500;
}

int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned y_threads,
                   unsigned z_threads, unsigned shared_bytes, void *stream, void **arguments, void **extra) {
    if (y != 1 || z != 1 || y_threads != 1 || z_threads != 1 || threads != THREADS || shared_bytes || extra) return 1;
    if (context != (void *)2) return 201;
    if (stream != (void *)0x123456789abcu) return 400;
    if ((intptr_t)function == TABLES) {
        scrimp_noise_tables();
        return arguments ? 1 : 0;
    }
    run_blocks((int)(intptr_t)function, arguments[0], (int)x);
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
