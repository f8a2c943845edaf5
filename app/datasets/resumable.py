"""Resumable uploads: a file that arrives in pieces, and goes on where it stopped.

uploads/<id>/file          what has arrived; its size is the offset
uploads/<id>/file.sealed   the same, sealed, after a header
uploads/<id>/upload.json   what was declared: written last, removed first; its last change is the last progress
uploads/lock               held by whoever begins uploads or sweeps them, in all processes

API processes with one storage go on with each other's uploads. Others answer 404 and say why.

Who writes to a file holds its lock (flock); the end of a process gives it back. A crash leaves at worst a folder
without upload.json, which `sweep` removes.

What an upload declares counts at once against its own key. From the other keys it keeps at most as many bytes free as
have arrived of it: a declaration alone takes nothing of the disk from anybody. An incomplete upload expires
`upload_idle_s` after its last progress, and n bytes are progress of n / `body_bytes_per_s` seconds: who sends a byte
now and then keeps nothing for long. A complete one is kept `upload_kept_hours` after its last byte.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from app.datasets.storage import SEALED, arrived, key_of, place
from app.settings import Settings
from app.storage.seals import Seals
from core.contracts.base import Document
from core.disk import LOOK_BYTES, Room, sync
from core.errors import Conflict, InvalidRequest, NotFound, too_large
from core.ids import new_id, now
from core.parts.sealed import HEADER_BYTES, Header, Named, Pieces, create, header_of

ID = re.compile(r"up_[a-z2-7]{21}")
FILE, DECLARED, LOCK = "file", "upload.json", "lock"
NOT_HERE = (
    "there is no upload with this id here, or it has expired; if several hosts run the API and share no storage, an "
    "upload goes on at the host that began it"
)


class Declared(Document):
    """What an upload was begun with.

    Attributes:
        key: the id of the key that began it: no other key sees it.
        size: the whole file's bytes.
        sha256: the whole file's, in hex, if it was sent.
    """

    key: str
    size: int
    sha256: str | None = None


@dataclass(frozen=True)
class Upload:
    """An upload as it is on disk.

    Attributes:
        offset: how many bytes have arrived.
        progress_s: when it last had progress, as the time of day.
        expires_at: when it is removed if nothing more arrives.
    """

    id: str
    folder: Path
    declared: Declared
    offset: int
    progress_s: float
    expires_at: datetime

    @property
    def file(self) -> Path:
        """The file, as far as it has arrived."""
        return arrived(self.folder, FILE)


def begin(settings: Settings, key_id: str, size: int, sha256: str | None) -> Upload:
    """Makes an empty upload and sets its bytes aside, by the key's limits and by the free disk.

    Raises:
        TooLarge: it is larger than any upload may be.
        Conflict: `too-many-uploads`: the key has too many, or too many bytes, that are not registered.
        StorageFull: the disk has no room for it beside the key's other uploads and what is kept free for other keys'.
    """
    if size > settings.max_upload_total_bytes:
        raise too_large(settings.max_upload_total_bytes)
    with _locked(settings) as root:
        earlier = _there(settings, root)
        _check_limits(settings, [each.declared.size for each in earlier if each.declared.key == key_id], size)
        Room(settings.disk_reserve_bytes, lambda: _promised(earlier, key_id)).require(root, size)
        folder = root / new_id("up")
        folder.mkdir(mode=0o700)
        key = Seals(settings).new()
        with create(place(folder, FILE, sealed=key is not None), None) as file:
            if key is not None:
                file.write(bytes(Header.new("pieces", key.wrap)))
        _declare(folder, Declared(key=key_id, size=size, sha256=sha256))
        sync(root)
    return find(settings, key_id, folder.name)


def declared_bytes(settings: Settings, key_id: str) -> int:
    """What a key's uploads have declared together."""
    return sum(each.declared.size for each in _there(settings, _root(settings)) if each.declared.key == key_id)


def arrived_bytes(settings: Settings, key_id: str) -> int:
    """What has arrived of a key's uploads."""
    return sum(each.offset for each in _there(settings, _root(settings)) if each.declared.key == key_id)


def room_of(settings: Settings) -> Room:
    """What data files may take of the storage's disk."""
    return Room(settings.disk_reserve_bytes, partial(_promised_now, settings))


def _promised_now(settings: Settings) -> int:
    return _promised(_there(settings, _root(settings)))


def _promised(uploads: Sequence[Upload], key_id: str | None = None) -> int:
    """The bytes that are kept free for uploads, as this key sees it: all that is missing of its own uploads; of others'
    at most as many bytes as have arrived. So who keeps n bytes from other keys has sent n."""
    missing = ((each, each.declared.size - each.offset) for each in uploads)
    return sum(left if each.declared.key == key_id else min(left, each.offset) for each, left in missing)


def count_open(settings: Settings) -> int:
    """Counts the uploads that are there, complete or not."""
    return sum(1 for _ in _root(settings).glob("up_*"))


def _there(settings: Settings, root: Path) -> list[Upload]:
    """All uploads that have not expired."""
    uploads = [upload for folder in root.glob("up_*") if (upload := _load(settings, folder)) is not None]
    return [each for each in uploads if each.expires_at > now()]


def find(settings: Settings, key_id: str, upload_id: str) -> Upload:
    """Looks up an upload of a key.

    Raises:
        NotFound: there is none, it is another key's, or it has expired: all look alike.
    """
    upload = _load(settings, _root(settings) / upload_id) if ID.fullmatch(upload_id) else None
    if upload is None or upload.declared.key != key_id or upload.expires_at <= now():
        raise NotFound(NOT_HERE)
    return upload


class Writer:
    """The end of an upload's file, for one writer alone until it is closed.

    Args:
        upload: as it is under the lock.
        descriptor: of its file, to append to; it holds the lock.
        settings: the disk's reserve, and the rate that is progress.
        sealed: encrypts what is written.
    """

    def __init__(self, upload: Upload, descriptor: int, settings: Settings, sealed: Pieces | None = None) -> None:
        self._upload, self._settings, self._sealed = upload, settings, sealed
        self._arrived, self._next_look = 0, 0  # bytes; where the disk is looked at, and progress noted
        self._file = os.fdopen(descriptor, "ab", buffering=0)
        self._left = upload.declared.size - upload.offset
        self._size = upload.declared.size
        self._turn = threading.Lock()  # a request that is cancelled is closed while a thread still writes for it

    def write(self, chunk: bytes) -> None:
        """Appends a chunk.

        Raises:
            TooLarge: more arrived than was declared. Nothing of the chunk is written.
            StorageFull: the disk's reserve begins, as what cannot be refused took what was set aside.
        """
        with self._turn:
            if self._file.closed:
                return
            if len(chunk) > self._left:
                raise too_large(self._size)
            if self._arrived >= self._next_look:
                Room(self._settings.disk_reserve_bytes).require(self._upload.folder)
                self._note_progress()
                self._next_look = self._arrived + LOOK_BYTES
            at = self._size - self._left
            remaining = memoryview(chunk if self._sealed is None else self._sealed.turned(at, chunk))
            while remaining:
                written = self._file.write(remaining)
                self._left -= written
                self._arrived += written
                remaining = remaining[written:]

    def close(self) -> None:
        """Returns once what arrived is on disk; gives the lock back."""
        with self._turn, self._file:
            os.fsync(self._file.fileno())
            self._note_progress()

    def _note_progress(self) -> None:
        """Moves the time of the last progress on by as long as these bytes may take."""
        worth_s = self._arrived / self._settings.body_bytes_per_s
        progress_s = min(time.time(), self._upload.progress_s + worth_s)
        with suppress(FileNotFoundError):  # it was given up
            os.utime(self._upload.folder / DECLARED, (progress_s, progress_s))


def writer(settings: Settings, key_id: str, upload_id: str, offset: int, length: int) -> Writer:
    """Opens an upload to append to it.

    Args:
        offset: where the caller believes that it ends.
        length: how many bytes were announced; 0 if that is not known.

    Raises:
        NotFound: as `find`.
        Conflict: `upload-busy`: another request writes to it. `wrong-offset`: it ends elsewhere, at `offset`.
        TooLarge: more was announced than was declared. Nothing is written.
    """
    descriptor = _lock(find(settings, key_id, upload_id))
    try:
        upload = find(settings, key_id, upload_id)  # it may have grown, or have gone, before the lock was ours
        if upload.offset != offset:
            detail = f"this upload ends at {upload.offset}, not at {offset}: continue there"
            raise Conflict("wrong-offset", detail, offset=upload.offset)
        if offset + length > upload.declared.size:
            raise too_large(upload.declared.size)
        return Writer(upload, descriptor, settings, _pieces(settings, upload.file))
    except BaseException:
        os.close(descriptor)
        raise


def _pieces(settings: Settings, file: Path) -> Pieces | None:
    key, header = key_of(Seals(settings), file), header_of(file)
    return None if key is None or header is None else Pieces(header, key)


def give_up(settings: Settings, key_id: str, upload_id: str) -> None:
    """Makes an upload be there no more; `consume` then removes its file, which takes a moment if it is large.

    Raises:
        NotFound: as `find`.
        Conflict: `upload-busy`: a request writes to it.
    """
    upload = find(settings, key_id, upload_id)
    descriptor = _lock(upload)
    try:
        (upload.folder / DECLARED).unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def take(settings: Settings, key_id: str, upload_id: str, pointer: str, folder: Path, name: str) -> Declared:
    """Gives a complete upload's file a second name, where a registration looks for it. The upload stays.

    Raises:
        InvalidRequest: there is no such upload of this key, or a part of it is missing.
    """
    try:
        upload = find(settings, key_id, upload_id)
        if upload.offset < upload.declared.size:
            detail = f"{upload.offset} of this upload's {upload.declared.size} bytes have arrived: send the rest first"
            raise InvalidRequest.at(pointer, detail)
        file = upload.file
        os.link(file, place(folder, name, sealed=file.name.endswith(SEALED)))
    except (NotFound, FileNotFoundError):
        raise InvalidRequest.at(pointer, f"{NOT_HERE}; or upload the file again") from None
    return upload.declared


def check_arrived(file: Named, sha256: str, pointer: str) -> None:
    """Reads a file whole, and raises InvalidRequest if it is not the declared one."""
    with file.open("rb") as content:
        arrived = hashlib.file_digest(content, "sha256").hexdigest()
    if arrived != sha256:
        detail = "its SHA-256 is not the declared one: delete this upload, and upload the file again"
        raise InvalidRequest.at(pointer, detail)


def consume(settings: Settings, upload_id: str) -> None:
    """Removes the files of an upload that was registered or given up; does nothing if they have gone."""
    folder = _root(settings) / upload_id
    (folder / DECLARED).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def sweep(settings: Settings) -> int:
    """Removes uploads that have expired, and what crashes left. Returns how many."""
    if not _root(settings).exists():
        return 0
    with _locked(settings) as root:
        over = [folder for folder in root.glob("up_*") if _is_over(settings, folder)]
    for folder in over:  # without the lock: a large file takes a moment
        shutil.rmtree(folder, ignore_errors=True)
    return len(over)


def _is_over(settings: Settings, folder: Path) -> bool:
    """Whether a folder is left over. An upload that has expired is no longer declared after this."""
    upload = _load(settings, folder)
    if upload is None:
        return True
    if upload.expires_at > now():
        return False
    try:
        descriptor = _lock(upload)
    except Conflict:
        return False
    try:
        (folder / DECLARED).unlink(missing_ok=True)
    finally:
        os.close(descriptor)
    return True


def _check_limits(settings: Settings, sizes: Sequence[int], size: int) -> None:
    advice = "register them, or give them up"
    if len(sizes) >= settings.max_open_uploads:
        limit = settings.max_open_uploads
        raise Conflict("too-many-uploads", f"this key has {limit} open uploads, its limit: {advice}", limit=limit)
    if sum(sizes) + size > settings.max_open_upload_bytes:
        limit = settings.max_open_upload_bytes
        detail = f"a key's open uploads may have {limit} bytes together, and {sum(sizes)} are taken: {advice}"
        raise Conflict("too-many-uploads", detail, limit_bytes=limit)


def _root(settings: Settings) -> Path:
    return settings.arrivals_root / "uploads"


@contextmanager
def _locked(settings: Settings) -> Iterator[Path]:
    """The folder of all uploads. Nobody else begins or sweeps any meanwhile."""
    settings.arrivals_root.mkdir(mode=0o700, parents=True, exist_ok=True)
    root = _root(settings)
    root.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(root / LOCK, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield root
    finally:
        os.close(descriptor)


def _lock(upload: Upload) -> int:
    """A descriptor that appends to an upload's file and holds its lock."""
    try:
        descriptor = os.open(upload.file, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise NotFound(NOT_HERE) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise Conflict("upload-busy", "another request writes to this upload: ask for its offset again") from None
    return descriptor


def _load(settings: Settings, folder: Path) -> Upload | None:
    """The upload in a folder; None if it is half made or half removed."""
    try:
        declared = Declared.model_validate_json((folder / DECLARED).read_bytes())
        progress_s = (folder / DECLARED).stat().st_mtime
        file = arrived(folder, FILE)
        status = file.stat()
    except (FileNotFoundError, NotADirectoryError, ValidationError):
        return None
    offset = status.st_size - (HEADER_BYTES if file.name.endswith(SEALED) else 0)
    is_complete = offset >= declared.size
    since_s, kept_s = (
        (status.st_mtime, 3600 * settings.upload_kept_hours) if is_complete else (progress_s, settings.upload_idle_s)
    )
    expires_at = datetime.fromtimestamp(since_s, UTC) + timedelta(seconds=kept_s)
    return Upload(folder.name, folder, declared, offset, progress_s, expires_at)


def _declare(folder: Path, declared: Declared) -> None:
    """Writes what was declared, completely or not at all."""
    half = folder / f"{DECLARED}.new"
    with create(half, None) as out:
        out.write(declared.model_dump_json().encode())
        out.flush()
        os.fsync(out.fileno())
    half.rename(folder / DECLARED)
    sync(folder)
