/* What NVRTC's C++ for a GPU and a processor's C read alike. A kernel is a text for both: on a processor its blocks follow
 * one another, and a block's threads are a loop.
 */
#ifndef SCRIMP_TWO_COMPILERS_H
#define SCRIMP_TWO_COMPILERS_H

#define THREADS 512        /* of a block */
#define LARGEST 0x1.fffffffffffffp+1023
#define SMALLEST 0x1p-1022 /* normal number */
#define NEAREST 0x1.8p+52  /* adding and subtracting this rounds to the nearest integer, up to 2^51 */

#if defined(__CUDACC_RTC__) /* NVRTC has no headers */
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#define INLINE __device__ __forceinline__
#define TABLE __device__ const
#define SERIES_TABLE __device__ __align__(16) /* two coefficients are read at once */
#define SQUARE_ROOT sqrt /* rounded correctly */
#define UNROLLED _Pragma("unroll 8") /* so many loads are under way at once */
#define KERNEL_ALONE(name) extern "C" __global__ void __launch_bounds__(THREADS, 2) name(void) /* of one block */
#define KERNEL(name, argument) extern "C" __global__ void __launch_bounds__(THREADS, 2) name(const __grid_constant__ argument)
#define SHARED __shared__
#define BLOCKS const int block = (int)blockIdx.x, blocks = (int)gridDim.x;
#define EACH_THREAD for (int thread = (int)threadIdx.x, once = 1; once; once = 0)
#define EVERYONE_IS_HERE __syncthreads();
#else
#include <stdint.h>
#define INLINE static inline __attribute__((always_inline))
#define TABLE static const
#define SERIES_TABLE static
#define UNROLLED
#define SQUARE_ROOT __builtin_sqrt
#define fabs __builtin_fabs
#define KERNEL_ALONE(name) void name(void)
#define KERNEL(name, argument) void name(const argument, int block, int blocks)
#define SHARED
#define BLOCKS
#define EACH_THREAD for (int thread = 0; thread < THREADS; thread++)
#define EVERYONE_IS_HERE
#endif

/* `which`, 0 before, becomes the last of `count` that begins no later than an item; `most` is a power of two. */
#define FIND(which, each, most, count, item)                \
    for (int by = (most) / 2; by; by /= 2)                  \
        which += which + by < (int)(count) && (each)[which + by].begin <= (item) ? by : 0

/* Adds to a total of all threads; what it was before. */
INLINE int64_t add_to(int64_t *total, int64_t amount) {
#if defined(__CUDACC_RTC__)
    return (int64_t)atomicAdd((unsigned long long *)total, (unsigned long long)amount);
#else
    const int64_t before = *total;
    *total = (int64_t)((uint64_t)before + (uint64_t)amount); /* wraps, as a GPU's does */
    return before;
#endif
}

#endif
