/* Pieces of work on torch's own threads. Which of them does a piece changes no bit, and so does their number.
 *
 * torch's OpenMP has started its threads, and they wait as the attempt's environment says. GOMP_parallel is how compiled
 * code enters it: GCC's, LLVM's and Intel's libraries all have it. A pool of our own would compete with it for the cores.
 */
#ifndef SCRIMP_THREADS_H
#define SCRIMP_THREADS_H
#include <stdint.h>

#define SHARE 32768 /* numbers of a piece: for fewer no other thread is woken */

typedef struct {
    void (*region)(void (*)(void *), void *, unsigned, unsigned); /* GOMP_parallel; NULL: there is one thread */
    int64_t threads;
} Team;

static const Team ALONE = {0, 1};

/* Does one piece. `slot` is below the number of threads, and no other piece has it meanwhile. */
typedef void (*Piece)(void *work, int64_t piece, int64_t slot);

typedef struct {
    Piece piece;
    void *work;
    int64_t pieces, next, slots;
} Pieces;

static void take_pieces(void *of) {
    Pieces *all = of;
    const int64_t slot = __atomic_fetch_add(&all->slots, 1, __ATOMIC_RELAXED);
    for (;;) {
        const int64_t piece = __atomic_fetch_add(&all->next, 1, __ATOMIC_RELAXED);
        if (piece >= all->pieces) return;
        all->piece(all->work, piece, slot);
    }
}

static void on_threads(const Team *team, int64_t pieces, Piece piece, void *work) {
    Pieces all = {piece, work, pieces, 0, 0};
    const int64_t threads = pieces < team->threads ? pieces : team->threads;
    if (threads > 1 && team->region)
        team->region(take_pieces, &all, (unsigned)threads, 0);
    else
        take_pieces(&all);
}

/* The piece's share of `count`, of which each piece has `each`. */
static inline int64_t share_of(int64_t count, int64_t each, int64_t piece) {
    return count - piece * each < each ? count - piece * each : each;
}

static inline int64_t pieces_of(int64_t count, int64_t each) { return (count + each - 1) / each; }

/* How many rows of this width make a piece. */
static inline int64_t rows_of_share(int64_t width) { return width < SHARE ? SHARE / (width > 0 ? width : 1) : 1; }

#endif
