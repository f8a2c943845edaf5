"""A second user for attempts and predictions, where the operator has one (SCRIMP_ATTEMPT_UID, SCRIMP_ATTEMPT_GID).

Files and processes of the service are then closed to an attempt by their owner alone, without seccomp and Landlock. The
attempt's process begins under the service's user. It opens what its message names to the group, and changes its user
before it confines itself:

    parts, weights    0640, in folders that the group may enter (0710)
    output, scratch   02770: the group has what is written there, so the service reads and removes it
    features          the caches stay closed: an attempt keeps features in its scratch folder
    artifacts         become the service's files, in a folder that is closed again, before a row names them
                      (worker.attempt.output_files)
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from app.sandbox import kernel

PR_SET_DUMPABLE = 4
READ, ENTER, SHARED = 0o040, 0o010, 0o2070
OTHERS_READ, OTHERS_ENTER, OF_GROUP = 0o004, 0o001, 0o070
UMASK = 0o007
REMOVAL = (sys.executable, "-I", "-c", "import shutil, sys; shutil.rmtree(sys.argv[1], ignore_errors=True)")
REMOVAL_S = 60.0
LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class User:
    """The user and the only group of attempts."""

    uid: int
    gid: int

    @classmethod
    def parsed(cls, arguments: Sequence[str]) -> User | None:
        """The user that `arguments` names; None if it names none."""
        return cls(*map(int, arguments)) if arguments else None

    @property
    def arguments(self) -> tuple[str, str]:
        """For a command line."""
        return str(self.uid), str(self.gid)


def enters(user: User, folder: os.stat_result) -> bool:
    """Returns True if the user may enter a folder of this status."""
    return bool(folder.st_mode & (ENTER if folder.st_gid == user.gid else OTHERS_ENTER))


def capabilities(which: str) -> int:
    """This process's capabilities, as bits: `CapEff`, `CapPrm`, … of /proc/self/status."""
    lines = (each.split() for each in Path("/proc/self/status").read_text().splitlines())
    return int(next(each[1] for each in lines if each[0] == f"{which}:"), 16)


def open_to(user: User, readable: Iterable[Path], writable: Iterable[Path]) -> None:
    """Lets the group read files, write folders, and enter the folders above both. Leaves folders of models as they are.

    Raises:
        OSError: a file or folder is not the service's, or a folder above is shared with another group.
    """
    for path in readable:
        if path.is_file():
            enterable(user, path)
            if not path.stat().st_mode & OTHERS_READ:
                _share(user, path, READ)
    for folder in writable:
        enterable(user, folder)
        _share(user, folder, SHARED)


def enterable(user: User, path: Path) -> None:
    """Lets the group enter the folders above a path.

    Raises:
        OSError: as `open_to`.
    """
    for folder in path.absolute().parents:
        status = folder.stat()
        if enters(user, status):
            continue
        if status.st_gid != user.gid and status.st_mode & OF_GROUP:
            raise PermissionError(errno.EACCES, "another group has rights there: chmod o+x or g=", str(folder))
        _share(user, folder, ENTER)


def _share(user: User, path: Path, rights: int) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if status.st_gid != user.gid:
            os.fchown(descriptor, -1, user.gid)
        if status.st_mode & rights != rights:
            os.fchmod(descriptor, stat.S_IMODE(status.st_mode) | rights)
    finally:
        os.close(descriptor)


def become(user: User) -> None:
    """Makes this process that user's for good: it keeps no group, capability or saved identity of the service.

    Raises:
        OSError: it lacks the capabilities, or cannot drop them.
    """
    os.setgroups([])
    os.setresgid(user.gid, user.gid, user.gid)
    os.setresuid(user.uid, user.uid, user.uid)
    kernel.drop_capabilities()  # from one plain user to another, the kernel keeps them
    if capabilities("CapPrm"):
        raise PermissionError(errno.EPERM, "capabilities cannot be dropped on this architecture")
    # A change of user gives /proc/self to root, where this process writes its namespace's maps. There is no core file.
    LIBC.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    os.umask(UMASK)


def remove(folder: Path, user: User | None) -> None:
    """Removes an attempt's folder. Folders in it that it closed to the service are removed as that user first."""
    shutil.rmtree(folder, ignore_errors=True)
    if user is None or not folder.exists():
        return
    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            [*REMOVAL, str(folder)],
            user=user.uid,
            group=user.gid,
            extra_groups=[],
            cwd="/",
            stdin=subprocess.DEVNULL,
            timeout=REMOVAL_S,
            check=False,
        )
    shutil.rmtree(folder, ignore_errors=True)
