"""The system calls that a confined process may make: an attempt, a prediction, a parser of an owner's file.

Everything else is refused with EPERM; with ENOSYS where the C library then takes another way: `ABSENT`, and numbers
above `NEWEST`. The list is what the suite's attempts, predictions and parsers were traced to make, and other forms of
the same calls. CUDA's part is unproven. `python -m app.sandbox.system_calls` prints it as the table of
docs/system-calls.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

WHOLE = 0xFFFFFFFF
THIS_PROCESS = -1  # in `values`: the pid of the process that installs the filter
NEWEST = 451
ABSENT = {"clone3": 435, "close_range": 436, "openat2": 437, "epoll_pwait2": 441}  # the same on both architectures


class Rule(Enum):
    """What an argument must satisfy."""

    ONE_OF = "one of"
    NONE_OF = "none of"
    ANY_BIT = "any bit of"
    NO_BIT = "no bit of"


@dataclass(frozen=True)
class Check:
    """A check of 32 bits of an argument.

    Attributes:
        argument: 0 … 5.
        values: numbers, or bits.
        mask: the bits that are compared with numbers.
        half: 1: the upper half of 64 bits.
    """

    argument: int
    rule: Rule
    values: tuple[int, ...]
    mask: int = WHOLE
    half: int = 0


@dataclass(frozen=True)
class Condition:
    """What a call's arguments must satisfy: in words, and in checks that must all hold."""

    words: str
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class Call:
    """A system call that is allowed. One that is listed twice is allowed if either condition holds.

    Attributes:
        x86_64, aarch64: its number; None: the architecture has none.
        reason: who needs it.
    """

    name: str
    x86_64: int | None
    aarch64: int | None
    reason: str
    condition: Condition | None = None

    def number(self, machine: str) -> int | None:
        """Its number on `x86_64` or `aarch64`."""
        return self.aarch64 if machine == "aarch64" else self.x86_64


def _null(argument: int) -> tuple[Check, Check]:
    """A pointer that is null, in both halves."""
    return Check(argument, Rule.ONE_OF, (0,)), Check(argument, Rule.ONE_OF, (0,), half=1)


# CLONE_THREAD without CLONE_NEW*, CLONE_PARENT and CLONE_PTRACE. A process cannot be forked: ranks are forked before.
THREADS = Condition(
    "CLONE_THREAD, no namespace",
    (Check(0, Rule.ANY_BIT, (0x10000,)), Check(0, Rule.NO_BIT, (0x7E020000 | 0x8000 | 0x2000,))),
)
OWN = Condition("its own pid", (Check(0, Rule.ONE_OF, (THIS_PROCESS,)),))
OWN_LIMITS = Condition("pid 0: itself", (Check(0, Rule.ONE_OF, (0,)),))
# F_SETOWN, F_SETSIG and F_SETOWN_EX would have the kernel send any signal to any process of the user.
DESCRIPTORS = Condition("not F_SETOWN, F_SETSIG, F_SETOWN_EX", (Check(1, Rule.NONE_OF, (8, 10, 15)),))
REQUESTS = Condition(
    "TCGETS, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX", (Check(1, Rule.ONE_OF, (0x5401, 0x541B, 0x5421, 0x5450, 0x5451)),)
)
# By the second byte: `F` of nvidiactl, none of nvidia-uvm, `G` of dxg. Landlock leaves no other device.
DRIVERS = Condition("types `F`, `G` and 0", (Check(1, Rule.ONE_OF, (0x4600, 0x4700, 0), mask=0xFF00),))
OPEN_FILE = Condition("an open file, by no path", _null(1))
CONNECTED = Condition("no address", _null(4))
# PR_SET_NAME, PR_GET_NAME, PR_SET_VMA
NAMES = Condition("PR_SET_NAME, PR_GET_NAME, PR_SET_VMA", (Check(0, Rule.ONE_OF, (15, 16, 0x53564D41)),))
REGISTERS = Condition(
    "ARCH_GET_XCOMP_SUPP, …_GET_…PERM, …_REQ_…PERM", (Check(0, Rule.ONE_OF, (0x1021, 0x1022, 0x1023)),)
)

CALLS = (
    # Memory
    Call("brk", 12, 214, "the heap"),
    Call("mmap", 9, 222, "the heap, libraries, stored parts, and code that oneDNN makes for this processor"),
    Call("munmap", 11, 215, "gives memory back"),
    Call("mremap", 25, 216, "the heap, and parts that grow while they are read"),
    Call("mprotect", 10, 226, "stacks of threads; code that oneDNN makes"),
    Call("madvise", 28, 233, "gives pages back; large pages"),
    Call("msync", 26, 227, "mapped files of features"),
    Call("mincore", 27, 232, "CUDA"),
    Call("mlock", 149, 228, "CUDA pins pages"),
    Call("munlock", 150, 229, "CUDA"),
    Call("mbind", 237, 235, "CUDA, for memory near a GPU"),
    Call("get_mempolicy", 239, 236, "CUDA"),
    Call("set_mempolicy", 238, 237, "CUDA"),
    Call("memfd_create", 319, 279, "weights of Hugging Face models, checked and then opened by descriptor"),
    Call("membarrier", 324, 283, "libraries with threads"),
    # Threads
    Call("clone", 56, 220, "threads; never another process, nor a namespace", THREADS),
    Call("set_robust_list", 273, 99, "each new thread"),
    Call("rseq", 334, 293, "each new thread"),
    Call("set_tid_address", 218, 96, "each new thread"),
    Call("futex", 202, 98, "locks"),
    Call("futex_waitv", 449, 449, "locks"),
    Call("sched_yield", 24, 124, "a thread that waits"),
    Call("sched_getaffinity", 204, 123, "how many threads this machine is good for"),
    Call("getcpu", 309, 168, "allocators"),
    Call("exit", 60, 93, "a thread's end"),
    Call("exit_group", 231, 94, "the end"),
    Call("restart_syscall", 219, 128, "the kernel's own, after a signal"),
    Call("wait4", 61, 260, "rank 0 hears how the other ranks ended"),
    Call("waitid", 247, 95, "rank 0 hears how the other ranks ended"),
    # Signals, to this process alone
    Call("rt_sigaction", 13, 134, "Python's handlers"),
    Call("rt_sigprocmask", 14, 135, "each new thread"),
    Call("rt_sigreturn", 15, 139, "the end of a handler"),
    Call("sigaltstack", 131, 132, "faulthandler, and libraries that catch faults"),
    Call("kill", 62, 129, "Python's os.kill", OWN),
    Call("tgkill", 234, 131, "abort", OWN),
    # Files: which ones is Landlock's to decide
    Call("open", 2, None, "files"),
    Call("openat", 257, 56, "files"),
    Call("close", 3, 57, "files"),
    Call("read", 0, 63, "files, the pipe"),
    Call("write", 1, 64, "files"),
    Call("readv", 19, 65, "files"),
    Call("writev", 20, 66, "files"),
    Call("pread64", 17, 67, "parts, by their place"),
    Call("pwrite64", 18, 68, "features, by their place"),
    Call("preadv", 295, 69, "files"),
    Call("pwritev", 296, 70, "files"),
    Call("lseek", 8, 62, "files"),
    Call("fsync", 74, 82, "a model is on disk before it is told"),
    Call("fdatasync", 75, 83, "files"),
    Call("ftruncate", 77, 46, "files that are written anew"),
    Call("fallocate", 285, 47, "files of features"),
    Call("fadvise64", 221, 223, "files that are read in order"),
    Call("copy_file_range", 326, 285, "copies of files"),
    Call("sendfile", 40, 71, "copies of files"),
    Call("flock", 73, 32, "features that several attempts share"),
    Call("fcntl", 72, 25, "descriptors; no signals to others through them", DESCRIPTORS),
    Call("ioctl", 16, 29, "Python asks if a file is a terminal, and has descriptors closed or waited for", REQUESTS),
    Call("ioctl", 16, 29, "CUDA speaks to its driver", DRIVERS),
    Call("dup", 32, 23, "descriptors"),
    Call("dup2", 33, None, "silences stdout and stderr"),
    Call("dup3", 292, 24, "silences stdout and stderr"),
    Call("getdents", 78, None, "folders"),
    Call("getdents64", 217, 61, "folders"),
    Call("mkdir", 83, None, "scratch and output"),
    Call("mkdirat", 258, 34, "scratch and output"),
    Call("rmdir", 84, None, "scratch and output"),
    Call("unlink", 87, None, "scratch and output"),
    Call("unlinkat", 263, 35, "scratch and output"),
    Call("rename", 82, None, "a file that is complete takes its name"),
    Call("renameat", 264, 38, "a file that is complete takes its name"),
    Call("renameat2", 316, 276, "a file that is complete takes its name"),
    Call("readlink", 89, None, "paths"),
    Call("readlinkat", 267, 78, "paths"),
    Call("getcwd", 79, 17, "paths"),
    Call("stat", 4, None, "sizes and times of files; of all that the user may see"),
    Call("lstat", 6, None, "sizes and times of files; of all that the user may see"),
    Call("fstat", 5, 80, "sizes and times of open files"),
    Call("newfstatat", 262, 79, "sizes and times of files; of all that the user may see"),
    Call("statx", 332, 291, "sizes and times of files; of all that the user may see"),
    Call("statfs", 137, 43, "free space; kinds of file systems"),
    Call("fstatfs", 138, 44, "free space; kinds of file systems"),
    Call("access", 21, None, "if a file is there"),
    Call("faccessat", 269, 48, "if a file is there"),
    Call("faccessat2", 439, 439, "if a file is there"),
    Call("umask", 95, 166, "modes of files"),
    Call("utimensat", 280, 88, "features that were used of late stay", OPEN_FILE),
    # The pipe to the supervisor, and what ranks share
    Call("sendto", 44, 206, "the pipe; to no address, so to nobody else", CONNECTED),
    Call("recvfrom", 45, 207, "the pipe"),
    Call("shutdown", 48, 210, "the pipe's end"),
    Call("getsockname", 51, 204, "Python, of the pipe"),
    Call("getpeername", 52, 205, "Python, of the pipe"),
    Call("getsockopt", 55, 209, "Python, of the pipe"),
    Call("poll", 7, None, "waits for the pipe"),
    Call("ppoll", 271, 73, "waits for the pipe"),
    Call("select", 23, None, "waits for the pipe"),
    Call("pselect6", 270, 72, "waits for the pipe"),
    Call("pipe", 22, None, "libraries with threads"),
    Call("pipe2", 293, 59, "libraries with threads"),
    Call("eventfd2", 290, 19, "libraries with threads"),
    Call("epoll_create1", 291, 20, "libraries with threads"),
    Call("epoll_ctl", 233, 21, "libraries with threads"),
    Call("epoll_wait", 232, None, "libraries with threads"),
    Call("epoll_pwait", 281, 22, "libraries with threads"),
    # Facts
    Call("getpid", 39, 172, "itself"),
    Call("gettid", 186, 178, "itself"),
    Call("getppid", 110, 173, "itself"),
    Call("getpgrp", 111, None, "itself"),
    Call("getpgid", 121, 155, "itself"),
    Call("getsid", 124, 156, "itself"),
    Call("getuid", 102, 174, "itself"),
    Call("geteuid", 107, 175, "itself"),
    Call("getgid", 104, 176, "itself"),
    Call("getegid", 108, 177, "itself"),
    Call("getrusage", 98, 165, "its memory"),
    Call("getrlimit", 97, 163, "its limits"),
    Call("prlimit64", 302, 261, "its limits; never another process's", OWN_LIMITS),
    Call("prctl", 157, 167, "names of threads and of memory", NAMES),
    Call("arch_prctl", 158, None, "oneDNN asks for the matrix registers of new processors", REGISTERS),
    Call("uname", 63, 160, "the kernel's version"),
    Call("sysinfo", 99, 179, "the machine's memory"),
    Call("times", 100, 153, "clocks"),
    Call("time", 201, None, "clocks"),
    Call("gettimeofday", 96, 169, "clocks"),
    Call("clock_gettime", 228, 113, "clocks"),
    Call("clock_getres", 229, 114, "clocks"),
    Call("clock_nanosleep", 230, 115, "waits"),
    Call("nanosleep", 35, 101, "waits"),
    Call("getrandom", 318, 278, "Python's hash, names of temporary files"),
)


def table() -> Iterator[str]:
    """The lines of the table in docs/system-calls.md."""
    yield "| call | x86-64 | arm64 | who needs it | only with |"
    yield "|---|---|---|---|---|"
    for call in CALLS:
        numbers = ["none" if each is None else str(each) for each in (call.x86_64, call.aarch64)]
        only = call.condition.words if call.condition else ""
        yield f"| `{call.name}` | {' | '.join(numbers)} | {call.reason} | {only} |".replace("|  |", "| |")


if __name__ == "__main__":
    sys.stdout.write("\n".join(table()) + "\n")
