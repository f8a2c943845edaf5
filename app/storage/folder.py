"""Published files in the storage's folder, on this machine or on a volume that all share (see app.storage.objects)."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from core.disk import sync
from core.errors import NotFound, PrivacyError

STALE_S = 24 * 3600.0


class Folder:
    """The storage's folder, on this machine or on a volume that all share."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def publish(self, key: str, file: Path, sha256: str) -> None:
        """The file already lies at its place: its writer has synced it to disk."""
        if file.resolve() != (self._root / key).resolve():
            raise PrivacyError("a published file lies at its key's place in the storage")

    def local(self, key: str, sha256: str) -> Path:
        """Returns the file itself."""
        path, root = (self._root / key).resolve(), self._root.resolve()
        if not path.is_relative_to(root) or not path.is_file():
            raise NotFound("this artifact's file is no longer in the store")
        return path

    def replace(self, key: str, file: Path) -> None:
        """Renames the file, which its writer has synced to disk."""
        file.replace(self._root / key)
        sync(file.parent)

    def latest(self, key: str, copy: Path) -> Path | None:
        """The file itself."""
        path = self._root / key
        return path if path.is_file() else None

    def jobs(self, under: str = "jobs") -> list[str]:
        """The folders there."""
        return sorted(path.name for path in (self._root / under).glob("job_*"))

    def stale(self, under: str) -> list[str]:
        """The folders there, by their own times."""
        return sorted(path.name for path in stale(self._root, under))

    def marker(self, key: str) -> str | None:
        """The file's text."""
        path = self._root / key
        return path.read_text().strip() if path.is_file() else None

    def remove(self, prefix: str) -> None:
        """Removes the folder."""
        shutil.rmtree(self._root / prefix, ignore_errors=True)

    def set_aside(self, job_id: str, under: str) -> None:
        """Moves the job's folder."""
        folder = self._root / under
        folder.mkdir(mode=0o700, exist_ok=True)
        (self._root / "jobs" / job_id).rename(folder / job_id)

    def forget(self) -> None:
        """It makes no copies."""


def is_stale(written_s: float) -> bool:
    """Whether what was written last at this time of day is older than any request."""
    return time.time() - written_s > STALE_S


def stale(storage_root: Path, kind: str) -> Iterator[Path]:
    """Folders under `kind` that nobody has touched for a day."""
    for folder in (storage_root / kind).glob("*"):
        try:
            if is_stale(folder.stat().st_mtime):
                yield folder
        except FileNotFoundError:
            continue
