"""An attempt's or prediction's process before it touches data: confined (app.sandbox.confinement), with a limit of
memory.

    user       a second one, where the operator has one (worker.attempt.second_user)
    memory     a cgroup if it may make one, else RLIMIT_DATA; first to be killed if the machine runs out
    devices    the nodes of GPUs, and their driver's files

`python -m worker.attempt.confined BYTES [UID GID]` probes the protections in a separate process and prints which are
on.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from app.sandbox import confinement
from app.sandbox.processes import plain_environment
from core.contracts.sandbox import Sandbox
from worker.attempt import second_user
from worker.attempt.second_user import User

ROOT = Path(__file__).resolve().parents[2]
NODES = Path("/dev")
GPU_NODES = ("nvidia*", "nvidia-caps/*", "dxg")
GPU_FILES = ("/proc/driver/nvidia", "/proc/devices", "/proc/modules", "/sys/bus/pci", "/sys/devices", "/usr/local/cuda")
OOM_SCORE = 800
SHARE = 0.9  # of the machine's memory, if no limit is set
PROBE_S = 60.0
SCRATCH, GROUP = "scrimp-scratch-", "scrimp-{pid}"
REMOVALS, REMOVAL_S = 50, 0.02  # how long the last processes of a killed group may take to end
CGROUP = Path("/sys/fs/cgroup")
CONTAINER = (CGROUP / "memory.max", CGROUP / "memory" / "memory.limit_in_bytes")


@dataclass(frozen=True)
class Policy:
    """What one attempt needs.

    Attributes:
        files: what it reads and writes.
        memory_limit_bytes: the most memory it may use.
        scratch: its own folder for temporary files, extracted features included; `leave` removes it.
        user: whose the process becomes; None: it stays the worker's.
    """

    files: confinement.Policy
    memory_limit_bytes: int
    scratch: Path | None = None
    user: User | None = None


def enter(policy: Policy) -> Sandbox:
    """Drops everything outside the policy, for good, but system calls: those go with `seal`, once ranks are forked.

    Returns:
        The protections that are on, without those of `seal`.

    Raises:
        RuntimeError: the process has several threads.
        OSError: a protection that is offered here failed.
    """
    files = policy.files
    if policy.scratch is not None:
        tempfile.tempdir = os.environ["TMPDIR"] = str(policy.scratch)
        files = replace(files, writable=(*files.writable, policy.scratch))
    limit = _limit_memory(policy.memory_limit_bytes)
    if policy.user is not None:
        second_user.open_to(policy.user, files.readable, files.writable)
        second_user.become(policy.user)
    confined = confinement.confine(with_gpus(files))
    return Sandbox(
        seccomp=False,
        landlock=confined.landlock,
        network="loopback" if confined.namespaces else "host",
        memory_limit_bytes=limit,
        uid=None if policy.user is None else os.getuid(),
    )


def seal(entered: Sandbox) -> Sandbox:
    """Refuses system calls from now on. Returns the protections that are on."""
    if not confinement.allow_calls():
        return entered
    network = "none" if entered.network == "host" else entered.network
    return Sandbox.model_validate(entered.model_dump() | {"seccomp": True, "network": network})


def with_gpus(files: confinement.Policy, nodes: Path = NODES) -> confinement.Policy:
    """Adds the nodes of GPUs, and where there are any what their driver reads."""
    nodes_present = tuple(node for pattern in GPU_NODES for node in sorted(nodes.glob(pattern)) if not node.is_dir())
    if not nodes_present:
        return files
    drivers = (*map(Path, GPU_FILES), *confinement.library_folders())
    return replace(files, devices=(*files.devices, *nodes_present), readable=(*files.readable, *drivers))


def default_memory_bytes() -> int:
    """Nine tenths of the memory of this machine or container."""
    return int(SHARE * _memory_bytes(*CONTAINER))


def cacheable_bytes() -> int:
    """The most memory that file pages of this process may take: the machine's, its container's and its own group's."""
    group = own_cgroup()
    return _memory_bytes(*CONTAINER, *([group / "memory.max"] if group else []))


def _memory_bytes(*limits: Path) -> int:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in limits:
        with suppress(OSError, ValueError):
            total = min(total, int(path.read_text()))
    return total


def _limit_memory(limit_bytes: int) -> int:
    """Limits memory by a cgroup, which counts pages, if this process may make one; else by RLIMIT_DATA."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_bytes(b"%d" % OOM_SCORE)
    if not join_cgroup(own_cgroup(), limit_bytes):
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit_bytes = limit_bytes if hard == resource.RLIM_INFINITY else min(limit_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
    return limit_bytes


def own_cgroup() -> Path | None:
    """This process's folder in the cgroup v2 tree, if that is mounted."""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::/"):
                return CGROUP / line.removeprefix("0::/")
    return None


def join_cgroup(parent: Path | None, limit_bytes: int) -> bool:
    """Moves this process into its own group below `parent`, if memory control is delegated to this user."""
    if parent is None:
        return False
    group = parent / GROUP.format(pid=os.getpid())
    try:
        if "memory" not in (parent / "cgroup.subtree_control").read_text().split():
            return False
        group.mkdir()
        for name, value in (("memory.max", limit_bytes), ("memory.swap.max", 0), ("memory.oom.group", 1)):
            (group / name).write_bytes(b"%d" % value)
        (group / "cgroup.procs").write_bytes(b"%d" % os.getpid())
    except OSError:
        with suppress(OSError):
            group.rmdir()
        return False
    return True


def own_scratch() -> Path:
    """Makes a new folder for this process's temporary files, and locks it.

    The kernel gives the lock back once this process and its forks have ended, however they end. So a folder without a
    lock is nobody's. Its pid would not say so: another process may have it by then, or it counts in another container.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=SCRATCH))
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)  # stays open to the end
        except FileNotFoundError:  # it was swept before it was locked
            continue
        with suppress(OSError):  # no locks here: then nobody can lock it to remove it either
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if folder.exists():
            return folder
        os.close(descriptor)


def leave(pid: int, user: User | None = None) -> None:
    """Removes the cgroup of a process that has ended, and all scratch folders whose processes have.

    Args:
        user: whose the process became.
    """
    _remove_scratch(user)
    parent = own_cgroup()
    if parent is not None:
        _remove_group(parent / GROUP.format(pid=pid))


def _remove_group(group: Path) -> None:
    """Ends what is left in a cgroup, such as ranks whose first one died, and removes it once the last is gone."""
    with suppress(OSError):
        descriptor = os.open(group / "cgroup.kill", os.O_WRONLY)
        with os.fdopen(descriptor, "wb") as kill:
            kill.write(b"1")
    for _ in range(REMOVALS):
        try:
            return group.rmdir()
        except FileNotFoundError:
            return None
        except OSError:
            time.sleep(REMOVAL_S)
    return None


def sweep(user: User | None = None) -> None:
    """Removes what dead processes left because their fork server died first. Call it at the start."""
    parent = own_cgroup()
    for group in () if parent is None else parent.glob(GROUP.format(pid="*")):
        pid = group.name.removeprefix("scrimp-")
        if pid.isdecimal() and not Path("/proc", pid).exists():  # not a group of somebody else's with such a name
            _remove_group(group)
    _remove_scratch(user)


def _remove_scratch(user: User | None) -> None:
    """Removes the folders that no process holds. Another user's stay."""
    for folder in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*"):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            second_user.remove(folder, user)
        except OSError:  # its process lives
            continue
        finally:
            os.close(descriptor)


def probe(memory_limit_bytes: int, user: User | None = None) -> Sandbox:
    """Starts a process that enters a sandbox, and returns the protections that attempts on this machine have.

    Args:
        user: of attempts; it must be able to read the interpreter and this program.

    Raises:
        subprocess.SubprocessError, ValueError: the process fails.
    """
    result = subprocess.run(
        [sys.executable, "-m", "worker.attempt.confined", str(memory_limit_bytes), *(user.arguments if user else ())],
        cwd=ROOT,
        env=plain_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        timeout=PROBE_S,
        check=True,
    )
    return Sandbox.model_validate(json.loads(result.stdout))


if __name__ == "__main__":
    found = seal(enter(Policy(confinement.Policy(), int(sys.argv[1]), user=User.parsed(sys.argv[2:]))))
    for each in (Path(__file__), Path(json.__file__)):
        each.read_bytes()
    print(found.model_dump_json())  # noqa: T201 - a command's answer
