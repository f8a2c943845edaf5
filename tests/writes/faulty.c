/* Preloaded into every process of a home (LD_PRELOAD): makes the n-th write, sync, truncation or rename of a file below
 * the home fail, tear or be lost. Processes share one map (WRITES_MAP), so that n counts the writes of all of them. What a
 * write replaced is kept in the map: who plays the power cut puts it back (tests/writes/library.py).
 *
 * Or none goes wrong, and each waits halfway, alone, until the home is copied (PAUSE): as it would be if all died there.
 *
 * stdio's own writes do not come through here: neither Python, SQLite nor Rust's library uses them.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define BYTES (64ull << 20)
#define PATH 512

enum op { WRITE = 1, SYNC, TRUNCATE, RENAME };
enum kind { NONE, EIO_, FULL, TORN, TORN_DIES, LOST, PAUSE };

struct map {
    uint64_t count, at, kill_at, delay, used;
    uint32_t kind, dead, hit_op, turn;
    uint64_t waits;
    char home[PATH], side[PATH], hit[PATH];
};

struct record { /* followed by `kept` bytes */
    uint64_t n, offset, old_size, length, kept;
    uint32_t op, torn;
    char path[PATH];
};

static struct map *map;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("WRITES_MAP");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *got = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    map = got == MAP_FAILED ? NULL : got;
}

static void die(void)
{
    map->dead = 1;
    raise(SIGKILL);
}

static int is_below(const char *path)
{
    size_t length = strlen(map->home), all = strlen(path);
    if (!length || strncmp(path, map->home, length) || path[length] != '/')
        return 0;
    return all < 4 || strcmp(path + all - 4, "-shm"); /* shared memory of SQLite: not for a disk */
}

/* The path of a regular file or folder below the home; 0 if it is none. */
static int path_of(int fd, char *path)
{
    struct stat at;
    char link[64];
    if (!map || !map->home[0] || fstat(fd, &at) || !(S_ISREG(at.st_mode) || S_ISDIR(at.st_mode)))
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH - 1);
    if (length <= 0)
        return 0;
    path[length] = 0;
    return is_below(path);
}

/* Counts an operation. Returns its kind of fault. */
static uint32_t next(enum op op, const char *path, uint64_t *n)
{
    *n = __atomic_add_fetch(&map->count, 1, __ATOMIC_SEQ_CST);
    if (map->dead || (map->kill_at && *n >= map->kill_at))
        die();
    if (*n != map->at)
        return NONE;
    map->hit_op = op;
    strncpy(map->hit, path, PATH - 1);
    if (map->kind == LOST)
        map->kill_at = *n + map->delay;
    return map->kind;
}

static void note(enum op op, const char *path, int fd, uint64_t n, uint64_t offset, uint64_t length)
{
    struct stat at = {0};
    fstat(fd, &at);
    uint64_t size = at.st_size, end = op == TRUNCATE ? size : offset + length;
    uint64_t kept = op != SYNC && offset < size ? (end < size ? end : size) - offset : 0;
    uint64_t whole = (sizeof(struct record) + kept + 7) & ~7ull;
    uint64_t where = __atomic_fetch_add(&map->used, whole, __ATOMIC_SEQ_CST);
    if (sizeof(struct map) + where + whole > BYTES)
        abort();
    struct record *record = (void *)((char *)(map + 1) + where);
    *record = (struct record){n, offset, size, length, kept, op, 0, {0}};
    strncpy(record->path, path, PATH - 1);
    if (kept && pread(fd, record + 1, kept, offset) != (ssize_t)kept)
        record->torn = 1; /* a file that is only written: what it held is not known */
}

/* Waits for its turn, and counts. */
static uint64_t enter(enum op op, const char *path)
{
    uint32_t nobody = 0;
    while (!__atomic_compare_exchange_n(&map->turn, &nobody, 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
        nobody = 0;
        usleep(100);
    }
    uint64_t n = __atomic_add_fetch(&map->count, 1, __ATOMIC_SEQ_CST);
    map->hit_op = op;
    memset(map->hit, 0, PATH);
    strncpy(map->hit, path, PATH - 1);
    return n;
}

static void wait_halfway(uint64_t n)
{
    __atomic_store_n(&map->waits, n, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&map->waits, __ATOMIC_SEQ_CST) == n)
        usleep(100);
}

static void leave(void) { __atomic_store_n(&map->turn, 0, __ATOMIC_SEQ_CST); }

static ssize_t written(int fd, const void *from, size_t length, off_t at, int by_place)
{
    __typeof__(&write) plain = REAL(write);
    __typeof__(&pwrite64) placed = REAL(pwrite64);
    char path[PATH];
    uint64_t n;
    if (!length || !path_of(fd, path))
        return by_place ? placed(fd, from, length, at) : plain(fd, from, length);
    int saved = errno;
    off_t offset = by_place ? at : lseek(fd, 0, fcntl(fd, F_GETFL) & O_APPEND ? SEEK_END : SEEK_CUR);
    if (map->kind == PAUSE) {
        n = enter(WRITE, path);
        note(WRITE, path, fd, n, offset, length);
        size_t half = length / 2;
        if (half)
            by_place ? placed(fd, from, half, at) : plain(fd, from, half);
        wait_halfway(n);
        const char *rest = (const char *)from + half;
        errno = saved;
        ssize_t done = by_place ? placed(fd, rest, length - half, at + half) : plain(fd, rest, length - half);
        leave();
        return done < 0 ? done : (ssize_t)half + done;
    }
    uint32_t kind = next(WRITE, path, &n);
    errno = saved;
    if (kind == EIO_ || kind == FULL) {
        errno = kind == FULL ? ENOSPC : EIO;
        return -1;
    }
    note(WRITE, path, fd, n, offset, length);
    errno = saved;
    if (kind != TORN && kind != TORN_DIES)
        return by_place ? placed(fd, from, length, at) : plain(fd, from, length);
    size_t half = length / 2;
    if (half)
        by_place ? placed(fd, from, half, at) : plain(fd, from, half);
    if (kind == TORN_DIES)
        die();
    if (!by_place)
        lseek(fd, offset + length, SEEK_SET);
    errno = saved;
    return length;
}

ssize_t write(int fd, const void *from, size_t length) { return written(fd, from, length, 0, 0); }
ssize_t pwrite(int fd, const void *from, size_t length, off_t at) { return written(fd, from, length, at, 1); }
ssize_t pwrite64(int fd, const void *from, size_t length, off64_t at) { return written(fd, from, length, at, 1); }

ssize_t writev(int fd, const struct iovec *from, int count)
{
    char path[PATH];
    if (!path_of(fd, path))
        return REAL(writev)(fd, from, count);
    ssize_t all = 0;
    for (int i = 0; i < count; i++) {
        ssize_t done = write(fd, from[i].iov_base, from[i].iov_len);
        if (done < 0)
            return all ? all : -1;
        all += done;
    }
    return all;
}

static int synced(int fd, int (*real)(int))
{
    char path[PATH];
    uint64_t n;
    if (!path_of(fd, path))
        return real(fd);
    if (map->kind == PAUSE) {
        n = enter(SYNC, path);
        note(SYNC, path, fd, n, 0, 0);
        wait_halfway(n);
        int done = real(fd);
        leave();
        return done;
    }
    uint32_t kind = next(SYNC, path, &n);
    if (kind == EIO_ || kind == FULL) {
        errno = kind == FULL ? ENOSPC : EIO;
        return -1;
    }
    if (kind == TORN_DIES)
        die();
    note(SYNC, path, fd, n, 0, 0);
    return kind == NONE ? real(fd) : 0;
}

int fsync(int fd) { return synced(fd, REAL(fsync)); }
int fdatasync(int fd) { return synced(fd, REAL(fdatasync)); }

static int truncated(int fd, off_t size)
{
    char path[PATH];
    uint64_t n;
    if (!path_of(fd, path))
        return REAL(ftruncate64)(fd, size);
    if (map->kind == PAUSE) {
        n = enter(TRUNCATE, path);
        note(TRUNCATE, path, fd, n, size, 0);
        wait_halfway(n);
        int done = REAL(ftruncate64)(fd, size);
        leave();
        return done;
    }
    uint32_t kind = next(TRUNCATE, path, &n);
    if (kind == EIO_ || kind == FULL) {
        errno = kind == FULL ? ENOSPC : EIO;
        return -1;
    }
    if (kind == TORN_DIES)
        die();
    note(TRUNCATE, path, fd, n, size, 0);
    return kind == TORN ? 0 : REAL(ftruncate64)(fd, size);
}

int ftruncate(int fd, off_t size) { return truncated(fd, size); }
int ftruncate64(int fd, off64_t size) { return truncated(fd, size); }

static int named(int folder, const char *name, char *path)
{
    char link[64], root[PATH];
    if (!map || !map->home[0])
        return 0;
    if (name[0] == '/') {
        snprintf(path, PATH, "%s", name);
        return is_below(path);
    }
    snprintf(link, sizeof link, folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", folder);
    ssize_t length = readlink(link, root, PATH - 1);
    if (length <= 0)
        return 0;
    root[length] = 0;
    if (snprintf(path, PATH, "%s/%s", root, name) >= PATH)
        return 0;
    return is_below(path);
}

/* What had the name stays at hand; `side` begins with nothing there. */
static void keep_renamed(const char *path, const char *before, const char *side, uint64_t n)
{
    (void)!link(path, side);
    struct record *record = (void *)((char *)(map + 1) + __atomic_fetch_add(
        &map->used, (sizeof(struct record) + PATH + 7) & ~7ull, __ATOMIC_SEQ_CST));
    *record = (struct record){n, 0, 0, 0, PATH, RENAME, 0, {0}};
    strncpy(record->path, path, PATH - 1);
    memcpy(record + 1, before, PATH);
}

static int renamed(int from, const char *old, int to, const char *new)
{
    char path[PATH], before[PATH];
    uint64_t n;
    if (!named(to, new, path) || !named(from, old, before))
        return REAL(renameat)(from, old, to, new);
    if (map->kind == PAUSE) {
        char side[PATH + 24];
        n = enter(RENAME, path);
        snprintf(side, sizeof side, "%s.%llu", map->side, (unsigned long long)n);
        keep_renamed(path, before, side, n);
        wait_halfway(n);
        int done = REAL(renameat)(from, old, to, new);
        leave();
        return done;
    }
    uint32_t kind = next(RENAME, path, &n);
    if (kind == EIO_ || kind == FULL) {
        errno = kind == FULL ? ENOSPC : EIO;
        return -1;
    }
    if (kind == TORN_DIES)
        die();
    if (kind == LOST)
        keep_renamed(path, before, map->side, n);
    return kind == TORN ? 0 : REAL(renameat)(from, old, to, new);
}

int rename(const char *old, const char *new) { return renamed(AT_FDCWD, old, AT_FDCWD, new); }
int renameat(int from, const char *old, int to, const char *new) { return renamed(from, old, to, new); }
