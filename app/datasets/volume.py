"""The folder of files that arrive has a name of its own: a random id, in its file `volume`.

The row of a registration names it, and so does that of an ingest worker. Two processes with one name see the same
files, whatever their paths; a process on another disk claims none of them.
"""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress

from app.settings import Settings
from core.disk import sync
from core.ids import new_id
from core.parts.sealed import create

NAME = "volume"
ID = re.compile(r"vol_[a-z2-7]{21}")
KINDS = ("uploads", "reading", "staging")  # gone within a day of their last use


def of(settings: Settings) -> str | None:
    """The folder's id; None if no API process has used it.

    Raises:
        OSError: the file cannot be read, or is damaged.
    """
    path = settings.arrivals_root / NAME
    try:
        name = path.read_bytes().decode(errors="replace").strip()
    except FileNotFoundError:
        return None
    if not ID.fullmatch(name):  # many damaged files would be one name
        raise OSError(errno.EIO, "this is no name of a volume: restore the file, or remove it to have a new one", path)
    return name


def ensure(settings: Settings) -> str:
    """The folder's id. A new folder gets one, and what waits where the last release left it."""
    root = settings.arrivals_root
    if (name := of(settings)) is not None:
        return name
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    for kind in KINDS if root != settings.storage_root else ():
        with suppress(OSError):  # it is not there, another process moved it, or the folder is another disk's
            (settings.storage_root / kind).rename(root / kind)
    half = root / new_id("vol")
    with create(half, None) as out:
        out.write(half.name.encode())
        out.flush()
        os.fsync(out.fileno())
    with suppress(FileExistsError):  # of many processes one gives the name
        (root / NAME).hardlink_to(half)
    half.unlink()
    sync(root)
    name = of(settings)
    if name is None:
        raise FileNotFoundError(os.fspath(root / NAME))
    return name
