"""The system calls by which a process gives up rights: namespaces, Landlock, seccomp.

Each function returns False, without an error, if the kernel or container does not offer it. None needs a privilege.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from app.sandbox.system_calls import ABSENT, CALLS, NEWEST, THIS_PROCESS, WHOLE, Check, Rule

LIBC = ctypes.CDLL(None, use_errno=True)
# The kernel lacks the feature, or a container's filter or a setting forbids it.
NOT_OFFERED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOSPC, errno.EUSERS)

PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 38, 47, 4
CLONE_NEWUSER, CLONE_NEWNET, CLONE_NEWIPC = 0x10000000, 0x40000000, 0x08000000

# Landlock. The file rights that its first version handles, and those that later versions added.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION, PATH_BENEATH = 1, 1
WRITE_FILE, READ_FILE, READ_DIR = 1 << 1, 1 << 2, 1 << 3
REMOVE_DIR, REMOVE_FILE, MAKE_DIR, MAKE_REG = 1 << 4, 1 << 5, 1 << 7, 1 << 8
FIRST_RIGHTS, REFER, TRUNCATE, IOCTL_DEV = (1 << 13) - 1, 1 << 13, 1 << 14, 1 << 15
SCOPES = 0b11  # abstract sockets and signals
OF_FILES = WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
READ = READ_FILE | READ_DIR
CHANGE = READ | WRITE_FILE | TRUNCATE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | REFER
DEVICE = READ_FILE | WRITE_FILE | IOCTL_DEV

# seccomp: BPF over struct seccomp_data {nr, arch, instruction_pointer, args[6]}, little-endian.
SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC = 1, 1
LOAD, AND, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
NR, ARCH, FIRST_ARGUMENT = 0, 4, 16
X32 = 0x40000000


@dataclass(frozen=True)
class Arch:
    """One architecture: its audit number, and the numbers of the calls that are made here without the C library."""

    audit: int
    seccomp: int
    capset: int


ARCHITECTURES = {"x86_64": Arch(0xC000003E, 317, 126), "aarch64": Arch(0xC00000B7, 277, 91)}


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


@cache
def offers_namespaces() -> bool:
    """True if a process of this user may enter namespaces of its own, as a process that ends finds out.

    Some systems let it enter a user namespace and then refuse its maps (Ubuntu since 23.10): there it would be nobody.
    """
    pid = os.fork()
    if pid == 0:
        entered = False
        with suppress(OSError):
            entered = _enter_namespaces()
        os._exit(0 if entered else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def own_namespaces() -> bool:
    """Enters a network without interfaces, and System V's and POSIX's message queues and memory of its own."""
    return offers_namespaces() and _enter_namespaces()


def _enter_namespaces() -> bool:
    uid, gid = os.getuid(), os.getgid()
    if LIBC.unshare(CLONE_NEWNET | CLONE_NEWIPC) == 0:
        return True
    if not _offered(LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWIPC)):
        return False
    # Keeps the same user and group, so that file access stays the same.
    for name, line in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        Path(f"/proc/self/{name}").write_bytes(line.encode())
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


def seccomp() -> bool:
    """Allows the system calls of app.sandbox.system_calls and refuses all others, for all threads of this process.

    No process can be forked afterwards.
    """
    machine = platform.machine()
    arch = ARCHITECTURES.get(machine)
    return arch is not None and install(arch, b"".join(_program(arch, machine)))


def install(arch: Arch, program: bytes) -> bool:
    """Adds a BPF program to this process's filters."""
    buffer = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: a length, padding, a pointer
    described = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    return _offered(LIBC.syscall(arch.seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, described))


def _program(arch: Arch, machine: str) -> Iterator[bytes]:
    """The filter. Calls without a condition come first: they are the frequent ones."""
    refuse = ERRNO | errno.EPERM
    yield step(LOAD, ARCH)
    yield from (step(EQUAL, arch.audit, 1, 0), step(RETURN, refuse))  # another architecture's numbers mean other calls
    yield step(LOAD, NR)
    if machine == "x86_64":
        yield from when(AT_LEAST, X32, refuse)
    numbers = [(call.number(machine), call) for call in sorted(CALLS, key=lambda call: call.condition is not None)]
    for number, call in numbers:
        if number is None:
            continue
        if call.condition is None:
            yield from when(EQUAL, number, ALLOW)
            continue
        body = _checked(call.condition.checks)
        yield step(EQUAL, number, 0, len(body))
        yield from body
    for number in ABSENT.values():
        yield from when(EQUAL, number, ERRNO | errno.ENOSYS)
    yield from when(AT_LEAST, NEWEST + 1, ERRNO | errno.ENOSYS)
    yield step(RETURN, refuse)


def _checked(checks: Sequence[Check]) -> list[bytes]:
    """Allows the call if all checks hold; otherwise goes on behind these instructions, with the number loaded again."""
    body = [step(RETURN, ALLOW), step(LOAD, NR)]
    for check in reversed(checks):
        body = [*_check(check, failed=len(body) - 1), *body]
    return body


def _check(check: Check, failed: int) -> list[bytes]:
    """One check. It goes on at the next instruction if it holds, else `failed` instructions further."""
    load = [step(LOAD, FIRST_ARGUMENT + 8 * check.argument + 4 * check.half)]
    load += [] if check.mask == WHOLE else [step(AND, check.mask)]
    code = EQUAL if check.rule in (Rule.ONE_OF, Rule.NONE_OF) else ANY_BIT
    values = [os.getpid() if each == THIS_PROCESS else each for each in check.values]
    tests = []
    for place, value in enumerate(values):
        left = len(values) - 1 - place
        if check.rule in (Rule.ONE_OF, Rule.ANY_BIT):
            tests.append(step(code, value, left, 0 if left else failed))
        else:
            tests.append(step(code, value, left + failed, 0))
    return [*load, *tests]


def step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """One BPF instruction. Jumps count from the next one."""
    return struct.pack("HBBI", code, if_true, if_false, value)


def when(code: int, value: int, verdict: int) -> tuple[bytes, bytes]:
    """Ends with a verdict if the loaded number satisfies a test."""
    return step(code, value, 0, 1), step(RETURN, verdict)
