"""The system calls by which a process gives up rights: namespaces, Landlock, seccomp.

Each function returns False, without an error, if the kernel or container does not offer it. None needs a privilege.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import socket
import struct
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
# The kernel lacks the feature, or a container's filter or a setting forbids it.
NOT_OFFERED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOSPC, errno.EUSERS)

PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 38, 47, 4
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
NEW_NAMESPACES = 0x7E020000
SIOCSIFFLAGS, IFF_UP = 0x8914, 0x1

# Landlock. The file rights that its first version handles, and those that later versions added.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION, PATH_BENEATH = 1, 1
WRITE_FILE, READ_FILE, READ_DIR = 1 << 1, 1 << 2, 1 << 3
REMOVE_DIR, REMOVE_FILE, MAKE_DIR, MAKE_REG = 1 << 4, 1 << 5, 1 << 7, 1 << 8
FIRST_RIGHTS, REFER, TRUNCATE, IOCTL_DEV = (1 << 13) - 1, 1 << 13, 1 << 14, 1 << 15
TCP = 0b11  # bind and connect
SCOPES = 0b11  # abstract sockets and signals
OF_FILES = WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
READ = READ_FILE | READ_DIR
CHANGE = READ | WRITE_FILE | TRUNCATE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | REFER
DEVICE = READ_FILE | WRITE_FILE | IOCTL_DEV

# seccomp: BPF over struct seccomp_data {nr, arch, instruction_pointer, args[6]}.
SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC = 1, 1
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
NR, ARCH, FIRST_ARGUMENT = 0, 4, 16
X32 = 0x40000000


@dataclass(frozen=True)
class Arch:
    """One architecture: its audit number, and the numbers of the system calls used or filtered here.

    Attributes:
        refused: the calls that an attempt does not need; `others` groups the rest by topic.
    """

    audit: int
    seccomp: int
    capset: int
    socket: int
    clone: int
    kill: int
    tgkill: int
    programs: tuple[int, ...]
    others: tuple[tuple[int, ...], ...]

    @property
    def refused(self) -> Iterator[int]:
        """All refused system calls of this architecture."""
        yield from self.programs
        for group in (*self.others, REFUSED_EVERYWHERE):
            yield from group


# pidfd_send_signal, io_uring_*, the mount calls from open_tree to fspick, pidfd_getfd, mount_setattr, quotactl_fd
REFUSED_EVERYWHERE = (*range(424, 434), 438, 442, 443)
CLONE3 = 435  # a filter cannot read its flags from memory: ENOSYS makes the C library use clone
ARCHITECTURES = {
    "x86_64": Arch(
        audit=0xC000003E,
        seccomp=317,
        capset=126,
        socket=41,
        clone=56,
        kill=62,
        tgkill=234,
        programs=(59, 322),
        others=(
            (101, 310, 311, 312, 200, 129, 297),  # tracing, other processes' memory, other ways to signal
            (165, 166, 155, 161, 272, 308),  # mounts, roots, namespaces
            (175, 176, 313, 246, 320, 169),  # modules, kexec, reboot
            (159, 164, 227, 305, 167, 168, 170, 171, 172, 173),  # clocks, swap, names, ports
            (103, 248, 249, 250, 321, 298, 323),  # the kernel's log, keys, bpf, perf, userfaultfd
            (300, 303, 304, 153, 163, 179),  # fanotify, files by handle, hang-up, accounting, quota
        ),
    ),
    "aarch64": Arch(
        audit=0xC00000B7,
        seccomp=277,
        capset=91,
        socket=198,
        clone=220,
        kill=129,
        tgkill=131,
        programs=(221, 281),
        others=(
            (117, 270, 271, 272, 130, 138, 240),
            (40, 39, 41, 51, 97, 268),
            (105, 106, 273, 104, 294, 142),
            (171, 170, 112, 266, 224, 225, 161, 162),
            (116, 217, 218, 219, 280, 241, 282),
            (262, 264, 265, 58, 89, 60),
        ),
    ),
}


def _offered(result: int) -> bool:
    """Returns True if a call succeeded, False if it is not offered here.

    Raises:
        OSError: it failed for another reason.
    """
    if result >= 0:
        return True
    number = ctypes.get_errno()
    if number in NOT_OFFERED:
        return False
    raise OSError(number, os.strerror(number))


def no_new_privileges() -> bool:
    """No program started by this process gains rights, by a setuid bit or by capabilities."""
    return _offered(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def drop_capabilities() -> None:
    """Drops every capability that root, or the first process of a user namespace, has beyond a plain user."""
    arch = ARCHITECTURES.get(platform.machine())
    if arch is None:
        return
    LIBC.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header, none = struct.pack("II", 0x20080522, 0), bytes(24)
    _offered(LIBC.syscall(arch.capset, header, none))


def own_network() -> bool:
    """Enters a new network namespace that has only a loopback."""
    uid, gid = os.getuid(), os.getgid()
    if LIBC.unshare(CLONE_NEWNET) < 0:
        if not _offered(LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNET)):
            return False
        # Keeps the same user and group, so that file access stays the same.
        for name, line in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            Path(f"/proc/self/{name}").write_bytes(line.encode())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
        fcntl.ioctl(plain, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
    return True


def landlock(rules: Iterable[tuple[Path, int]]) -> bool:
    """Restricts file access to the rules. Also blocks signals to other processes and their abstract sockets.

    It holds for the calling thread and the threads that it starts, so the process must have one thread.

    Args:
        rules: paths, with the rights on everything beneath them. Missing paths are skipped.
    """
    version = LIBC.syscall(CREATE_RULESET, None, 0, VERSION)
    if not _offered(version):
        return False
    handled = FIRST_RIGHTS
    for since, right in ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEV)):
        handled |= right if version >= since else 0
    scopes = SCOPES if version >= 6 else 0
    # The kernel accepts a longer structure than its own if the rest is zero.
    ruleset = LIBC.syscall(CREATE_RULESET, struct.pack("QQQ", handled, 0, scopes), 24, 0)
    if not _offered(ruleset):
        return False
    try:
        for path, rights in rules:
            with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                _add(ruleset, path, rights & handled)
        return _offered(LIBC.syscall(RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)


def _add(ruleset: int, path: Path, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rights &= rights if path.is_dir() else OF_FILES
        _offered(LIBC.syscall(ADD_RULE, ruleset, PATH_BENEATH, struct.pack("=Qi", rights, descriptor), 0))
    finally:
        os.close(descriptor)


def seccomp(families: Collection[int]) -> bool:
    """Refuses system calls that an attempt does not need, for all threads.

    Refused are programs, other processes, mounts, namespaces, keys, bpf, and sockets outside these address families.
    Socket pairs stay possible: they reach no other process.
    """
    arch = ARCHITECTURES.get(platform.machine())
    if arch is None:
        return False
    program = b"".join(_program(arch, families))
    kept = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: a length, padding, a pointer
    described = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(kept))
    return _offered(LIBC.syscall(arch.seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, described))


def _program(arch: Arch, families: Collection[int]) -> Iterator[bytes]:
    """The filter. Jump distances count from the next instruction, so each check is followed by its own verdict."""
    refuse = ERRNO | errno.EPERM
    yield _step(LOAD, ARCH)
    yield from _unless(EQUAL, arch.audit, refuse)  # another architecture's numbers mean other calls
    yield _step(LOAD, NR)
    if arch.audit == ARCHITECTURES["x86_64"].audit:
        yield from _when(AT_LEAST, X32, refuse)
    for number in arch.refused:
        yield from _when(EQUAL, number, refuse)
    yield from _when(EQUAL, CLONE3, ERRNO | errno.ENOSYS)
    with_argument = (
        (arch.socket, [_when(EQUAL, each, ALLOW) for each in sorted(families)], refuse),
        (arch.clone, [_when(ANY_BIT, NEW_NAMESPACES, refuse)], ALLOW),
        *((number, [_when(EQUAL, os.getpid(), ALLOW)], refuse) for number in (arch.kill, arch.tgkill)),
    )
    for number, checks, otherwise in with_argument:
        body = [_step(LOAD, FIRST_ARGUMENT), *(step for check in checks for step in check), _step(RETURN, otherwise)]
        yield _step(EQUAL, number, 0, len(body))
        yield from body
    yield _step(RETURN, ALLOW)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def _when(code: int, value: int, verdict: int) -> tuple[bytes, bytes]:
    return _step(code, value, 0, 1), _step(RETURN, verdict)


def _unless(code: int, value: int, verdict: int) -> tuple[bytes, bytes]:
    return _step(code, value, 1, 0), _step(RETURN, verdict)
