"""A process drops rights before it touches what others wrote: attempts and predictions, and parsers of owners' files.

    files      reads the interpreter, its libraries, this program and what its policy names; writes what that names
    network    none
    processes  none: no program, no fork, no signal, nothing of System V's
    sizes      a file no larger than the disk had room for; a number of threads

It needs no server and no privilege. Protections that this kernel or container does not offer are off and reported.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import shutil
import signal
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from app.sandbox import kernel
from core.disk import RESERVE_BYTES

ROOT = Path(__file__).resolve().parents[2]
OWN_PACKAGES = ("app", "core", "worker")
SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo", "/etc/ld.so.cache")
# Libraries read about processors and memory here. Other processes' folders stay closed.
MACHINE = ("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys/vm", "/proc/filesystems")
PROCESSORS = ("/sys/devices/system", "/sys/fs/cgroup", "/etc/localtime")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
PR_SET_PDEATHSIG = 1
THREADS = 1024  # more than libraries start on the largest machines


@dataclass(frozen=True)
class Policy:
    """What one process needs beyond the interpreter.

    Attributes:
        readable: files and folders, with everything in them.
        writable: folders in which it may do everything but run programs.
        devices: nodes that it may use.
    """

    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    devices: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Confined:
    """The protections that are on.

    Attributes:
        namespaces: a network and System V's memory of its own.
        landlock: files by the policy.
    """

    namespaces: bool
    landlock: bool


def confine(policy: Policy) -> Confined:
    """Drops every file outside the policy, and the machine's network, for good. `allow_calls` is the second half;
    between them a process may fork others of the same rights.

    Raises:
        RuntimeError: the process has several threads.
        OSError: a protection that is offered here failed.
    """
    # Namespaces and Landlock confine the calling thread, and threads that it starts later.
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        raise RuntimeError("a process with several threads cannot be confined")
    parent = os.getppid()
    namespaces = kernel.own_namespaces()
    _limit(policy, namespaces)
    kernel.drop_capabilities()
    landlock = kernel.no_new_privileges() and kernel.landlock(_rules(policy))
    die_with(parent)  # the kernel forgets it when rights change
    return Confined(namespaces, landlock)


def allow_calls() -> bool:
    """Refuses all system calls but those of app.sandbox.system_calls, also to fork. Returns False if it is not
    offered."""
    return kernel.no_new_privileges() and kernel.seccomp()


def die_with(parent: int) -> None:
    """Has the kernel kill this process when its parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the request reached the kernel
        os._exit(1)


def _limit(policy: Policy, namespaces: bool) -> None:
    """Limits the size of a file by the room that its disk has, and the number of threads."""
    if policy.writable:
        with suppress(OSError):
            room = max(shutil.disk_usage(folder).free for folder in policy.writable) - RESERVE_BYTES
            _lower(resource.RLIMIT_FSIZE, max(0, room))
    # Root is not limited. In a user namespace of its own the kernel counts this process's threads alone.
    _lower(resource.RLIMIT_NPROC, THREADS if namespaces else THREADS + _threads_of_user())


def _lower(limit: int, value: int) -> None:
    _, hard = resource.getrlimit(limit)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (value, value))


def _threads_of_user() -> int:
    threads = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if process.stat().st_uid == os.getuid():
                threads += len(list((process / "task").iterdir()))
    return threads


def _rules(policy: Policy) -> Iterator[tuple[Path, int]]:
    for path in (*_interpreter(), *map(Path, (*SYSTEM, *MACHINE, *PROCESSORS)), *policy.readable):
        yield path, kernel.READ
    for path in policy.writable:
        yield path, kernel.CHANGE
    for path in (*map(Path, DEVICES), *policy.devices):
        yield path, kernel.DEVICE


def _interpreter() -> Iterator[Path]:
    """The folders of Python, its packages and this program. Not the folder around them, which may hold a home."""
    yield from (ROOT / name for name in OWN_PACKAGES)
    paths = {name: Path(path) for name, path in sysconfig.get_paths().items()}
    yield from (paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    yield Path(sys.base_prefix) / "lib"
    yield from (Path(each) for each in sys.path if Path(each).name in ("site-packages", "dist-packages", "lib-dynload"))
    yield from map(Path, filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)))


def library_folders(configuration: Path = Path("/etc/ld.so.conf")) -> tuple[Path, ...]:
    """The folders in which the dynamic linker looks, as its configuration names them: a driver's libraries may lie in
    /usr/local/nvidia."""
    folders: list[Path] = []
    with suppress(OSError):
        for line in configuration.read_text().splitlines():
            words = line.partition("#")[0].split()
            if words[:1] == ["include"]:
                for pattern in words[1:]:
                    absolute = configuration.parent / pattern  # an absolute pattern stays
                    for folder in sorted(Path("/").glob(str(absolute).removeprefix("/"))):
                        folders += library_folders(folder)
            else:
                folders += [Path(word) for word in re.split(r"[\s,:]+", " ".join(words)) if word.startswith("/")]
    return tuple(folders)
