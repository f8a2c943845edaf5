"""What a worker needs so that attempts can have a user of their own (worker.attempt.second_user)."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from app.settings import Settings
from worker.attempt.second_user import User, capabilities, enterable, enters

CAPABILITIES = {"CAP_KILL": 5, "CAP_SETGID": 6, "CAP_SETUID": 7}
OTHERS_WRITE = 0o002


class UserError(Exception):
    """Attempts cannot have a user of their own; the message says what to change."""


def user_of(settings: Settings) -> User | None:
    """The settings' user of attempts; None: they have the worker's.

    Raises:
        UserError: there is a user without a group, or a group without a user.
    """
    uid, gid = settings.attempt_uid, settings.attempt_gid
    if uid is None and gid is None:
        return None
    if uid is None or gid is None:
        raise UserError("SCRIMP_ATTEMPT_UID and SCRIMP_ATTEMPT_GID are set together: set both, or neither")
    return User(uid, gid)


def require(user: User, settings: Settings) -> None:
    """Checks that this process may give attempts that user, and that its files are closed to it.

    Raises:
        UserError: it may not, or they are not.
    """
    for problem in _problems(user, settings):
        raise UserError(problem)


def _problems(user: User, settings: Settings) -> Iterator[str]:
    if user.uid == os.geteuid():
        yield f"SCRIMP_ATTEMPT_UID is {user.uid}, the worker's own user: choose another"
    if user.gid == os.getegid():
        yield f"SCRIMP_ATTEMPT_GID is {user.gid}, the worker's own group: choose another"
    lacking = [name for name, bit in CAPABILITIES.items() if not capabilities("CapEff") >> bit & 1]
    if lacking:
        yield f"SCRIMP_ATTEMPT_UID is set, and this worker lacks {', '.join(lacking)}: see docs/production.md"
    if os.geteuid() != 0 and user.gid not in os.getgroups():
        yield f"this worker is not in the group of SCRIMP_ATTEMPT_GID ({user.gid}): add it to the worker's groups"
    temporary = Path(tempfile.gettempdir()).absolute()
    folders = (settings.home, settings.storage_root, settings.effective_heads_dir, temporary)
    for folder in (each for each in folders if each.exists()):
        if folder.stat().st_mode & (OTHERS_WRITE | stat.S_ISVTX) == OTHERS_WRITE:
            yield f"every user may write {folder}, and so may attempts: chmod o-w"
    for folder in (*settings.home.absolute().parents, temporary, *temporary.parents):
        if not enters(user, folder.stat()):
            yield f"user {user.uid} cannot enter {folder}: chmod o+x, or choose another SCRIMP_HOME or TMPDIR"
    try:
        if settings.storage_root.exists():
            enterable(user, settings.storage_root / "datasets")
    except OSError as error:
        yield f"{error.filename} cannot be opened to group {user.gid}: {error.strerror}"
