"""Files that an attempt leaves, read and taken over by their descriptors.

The attempt may still change its folder, and its user may own every name in it. A path that was checked could lead
elsewhere a moment later: to a secret that would be published, or to a file of the service that would be replaced. So
the folder and each file are opened once, never through a link, and what is checked is what was opened.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from core.contracts.stored_documents import ArtifactFile
from core.errors import PrivacyError

NO_FILE = (errno.ELOOP, errno.ENXIO)  # a link, a socket


def read_artifact(folder: Path, file: ArtifactFile) -> bytes:
    """Reads a file of an attempt's folder, as the attempt reported it.

    Raises:
        PrivacyError: it lies outside the folder, is no regular file of one name, or differs from the report.
        OSError: it is not there, or cannot be read.
    """
    path = Path(file.path)
    if path.name != file.name or path.parent != folder.resolve():
        raise PrivacyError("an artifact lies outside the attempt's own folder")
    with _opened(folder) as place:
        try:
            # Without waiting for a pipe's writer.
            descriptor = os.open(file.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place)
        except OSError as error:
            if error.errno in NO_FILE:
                raise PrivacyError("an artifact is no regular file") from None
            raise
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                raise PrivacyError("an artifact is no regular file of one name")
            with os.fdopen(descriptor, "rb", closefd=False) as opened:
                content = opened.read(file.size_bytes + 1)
        finally:
            os.close(descriptor)
    if len(content) != file.size_bytes or hashlib.sha256(content).hexdigest() != file.sha256:
        raise PrivacyError("an artifact differs from what the attempt reported")
    return content


def take_over(folder: Path, name: str, content: bytes) -> None:
    """Makes an attempt's file the service's, with this content, and closes its folder to the group.

    Raises:
        OSError: the folder is none, or the file cannot be written.
    """
    with _opened(folder) as place:
        os.fchmod(place, 0o700)  # first: nothing is made in it after this
        own_name = f"{name}.{secrets.token_hex(8)}"
        descriptor = os.open(
            own_name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=place
        )
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(own_name, name, src_dir_fd=place, dst_dir_fd=place)
        os.fsync(place)


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
