"""Who may test a second user: root, who opens the way to the interpreter where it is closed to that user."""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from worker.attempt.confined import probe
from worker.attempt.second_user import User
from worker.attempt.user_checks import CAPABILITIES

SERVICE, ATTEMPTS = 61_001, User(61_002, 61_003)
CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000  # linux/sched.h, linux/mount.h
GIVEN = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in CAPABILITIES)
_libc = ctypes.CDLL(None, use_errno=True)


def as_service(*rights: str, groups: str = str(ATTEMPTS.gid)) -> list[str]:
    """The command before a command that runs it as the service's user: `rights` of setpriv, and no new privileges."""
    return ["setpriv", f"--reuid={SERVICE}", f"--regid={SERVICE}", f"--groups={groups}", "--no-new-privs", *rights]


CAPABLE = (f"--inh-caps=-all,{GIVEN}", f"--ambient-caps=-all,{GIVEN}", f"--bounding-set=-all,{GIVEN}")


# A container's root with the capabilities that it is given, and no other right.
ROOT_OF_CONTAINER = ("setpriv", "--inh-caps=-all", f"--bounding-set=-all,{GIVEN}", "--no-new-privs")
MAY = """
import os
from app.settings import Settings
from scrimp_server.serve import _require_user
_require_user(Settings())
print(os.getresuid(), os.getgroups())
"""


def becomes(command: list[str], environment: dict[str, str], home: Path) -> str:
    """Runs the command of a container, with MAY in the place of `scrimp worker`; its users and groups, if it may."""
    line = [*ROOT_OF_CONTAINER, *command, sys.executable, "-c", MAY]
    places = {"SCRIMP_HOME": str(home), "HOME": str(home), "TMPDIR": "/tmp"}  # noqa: S108 - as in a container
    done = subprocess.run(line, env=os.environ | environment | places, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _open_way_to_python() -> None:
    """Lets every user pass through the folders above Python, in a mount namespace of this thread and of its children.

    Where Python lies below /root, which is root's alone: an open folder that holds the same entries is mounted over it.
    """
    closed = [each for each in reversed(Path(sys.base_prefix).parents) if not each.stat().st_mode & stat.S_IXOTH]
    if not closed:
        return
    _call("unshare", CLONE_NEWNS)
    _call("mount", None, b"/", None, MS_REC | MS_PRIVATE, None)
    for folder in closed:
        below = os.open(folder, os.O_PATH)
        _call("mount", b"tmpfs", bytes(folder), b"tmpfs", 0, b"mode=0711")
        for entry in os.scandir(f"/proc/self/fd/{below}"):
            place = folder / entry.name
            if entry.is_symlink():
                place.symlink_to(Path(entry.path).readlink())
                continue
            place.mkdir() if entry.is_dir() else place.touch()
            _call("mount", os.fsencode(entry.path), bytes(place), None, MS_BIND | MS_REC, None)
        os.close(below)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


@cache
def _why_not() -> str:
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        return "only root can start a process as another user (with setpriv)"
    try:
        _open_way_to_python()
        probe(2**32, ATTEMPTS)
    except (OSError, subprocess.SubprocessError) as error:
        return f"another user cannot read this machine's Python: {error}"
    return ""


def require_root() -> None:
    """Skips the test where nobody can become another user."""
    if why := _why_not():
        pytest.skip(why)


@contextmanager
def home_of_service(uid: int = SERVICE) -> Iterator[Path]:
    """A folder that belongs to the service's user, below one that every user may enter."""
    above = Path(tempfile.mkdtemp(prefix="second-user-"))
    above.chmod(0o755)
    try:
        home = above / "home"
        home.mkdir(mode=0o700)
        os.chown(home, uid, uid)
        yield home
    finally:
        shutil.rmtree(above)
