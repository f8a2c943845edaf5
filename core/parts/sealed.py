"""Sealed files: encrypted and authenticated in chunks, so that any range is read without the rest.

    header   magic, kind, file id (48 bytes that every chunk authenticates), then two places for wraps of the data key
    chunk i  AES-256-GCM of 4 KiB under the file's own key; the nonce is i and whether the chunk is the last one

This is the STREAM construction (Hoang, Reyhanitabar, Rogaway, Vizár 2015) with a key for each file in place of a prefix
for each nonce: the file's key is HKDF(data key, header), and the file id is random, so no nonce repeats under a key. A
chunk that is changed, moved, or taken from another file does not open; a file that was cut does not open at all. A
whole file in another's place is found by whoever compares the content's hash.

The data key is random and belongs to all files that are written together. It lies in each of them, wrapped by a key of
the service (app.storage.seals): to replace that key, only wraps are written anew. There are two places, so that the new
wrap is on disk before the old one goes.

A job's saved state (`state`) has no wrap: its key is derived from the job's secret and salt
(worker.noise.attempt_keys).

A file that arrives in pieces (`Pieces`) is encrypted by AES-256-CTR instead: its end may be anywhere, and its size is
its content's. It is not authenticated; its hash is compared if its sender declared one.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal, Protocol, cast

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from core.parts.damage import DataDamagedError

MAGIC = b"SCRIMPS1"
HEADER_BYTES = 512
PUBLIC_BYTES = 48  # of the header: what a file never changes
WRAP_BYTES = 76  # the wrapping key's public name, a nonce, the wrapped key
PLACES = (64, 192)
CHUNK_BYTES = 2**12  # what is decrypted to get at one record
TAG_BYTES = 16
STORED_BYTES = CHUNK_BYTES + TAG_BYTES
BLOCK = 16  # of AES
COPY_BYTES = 2**20
Kind = Literal["part", "raw", "pieces", "state"]
KINDS: tuple[Kind, ...] = ("part", "raw", "pieces", "state")


class Named(Protocol):
    """A file to be read: a Path, or one that is sealed."""

    def open(self, mode: Literal["rb"], /) -> io.BufferedReader: ...


@dataclass(frozen=True)
class DataKey:
    """Seals new files, and opens those that it sealed.

    Attributes:
        key: 32 random bytes.
        wrap: the same, wrapped by a key of the service.
    """

    key: bytes = field(repr=False)
    wrap: bytes


@dataclass(frozen=True)
class Header:
    """The beginning of a sealed file.

    Attributes:
        public: magic, kind and file id.
        wraps: what lies in the two places; zeros where nothing does.
    """

    public: bytes
    wraps: tuple[bytes, bytes]

    @classmethod
    def new(cls, kind: Kind, wrap: bytes) -> Header:
        """That of a new file."""
        public = MAGIC + bytes([KINDS.index(kind), CHUNK_BYTES.bit_length() - 1]) + bytes(6) + os.urandom(32)
        return cls(public, (wrap, bytes(WRAP_BYTES)))

    @classmethod
    def of(cls, descriptor: int) -> Header | None:
        """That of an open file; None if it is not sealed."""
        header = os.pread(descriptor, HEADER_BYTES, 0)
        if not header.startswith(MAGIC) or len(header) < HEADER_BYTES:
            return None
        first, second = (header[place : place + WRAP_BYTES] for place in PLACES)
        return cls(header[:PUBLIC_BYTES], (first, second))

    @property
    def kind(self) -> Kind:
        """What is sealed, and how. Raises DataDamagedError if this version knows no such kind."""
        kind, log2 = self.public[len(MAGIC)], self.public[len(MAGIC) + 1]
        if kind >= len(KINDS) or 2**log2 != CHUNK_BYTES:
            raise DataDamagedError("a sealed file has a form that this version does not know")
        return KINDS[kind]

    def key(self, data_key: bytes) -> bytes:
        """The file's own key."""
        info = f"scrimp/v1/sealed/{self.kind}".encode()
        return HKDF(SHA256(), 32, salt=self.public, info=info).derive(data_key)

    def __bytes__(self) -> bytes:
        out = bytearray(HEADER_BYTES)
        out[:PUBLIC_BYTES] = self.public
        for place, wrap in zip(PLACES, self.wraps, strict=True):
            out[place : place + WRAP_BYTES] = wrap
        return bytes(out)


def header_of(path: Path) -> Header | None:
    """The header of a file; None if it is not sealed. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return Header.of(descriptor)
    finally:
        os.close(descriptor)


def sealed_size(size: int) -> int:
    """The bytes of a sealed file with so many bytes of content.

    >>> sealed_size(0), sealed_size(CHUNK_BYTES), sealed_size(CHUNK_BYTES + 1) - sealed_size(CHUNK_BYTES)
    (528, 4624, 17)
    """
    return HEADER_BYTES + size + TAG_BYTES * max(1, -(-size // CHUNK_BYTES))


def content_size(path: Path) -> int:
    """The bytes of a sealed file's content, by its size alone. Raises OSError, DataDamagedError."""
    header, stored = header_of(path), path.stat().st_size - HEADER_BYTES
    if header is None or stored < 0:
        raise _damaged()
    return stored if header.kind == "pieces" else stored - TAG_BYTES * max(1, -(-stored // STORED_BYTES))


def create(path: Path, key: DataKey | None, kind: Kind = "part") -> BinaryIO:
    """A new file of mode 0600 to be written from begin to end; sealed if there is a key."""
    file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")
    return file if key is None else sealing(file, key, kind)


def sealing(file: BinaryIO, key: DataKey, kind: Kind = "part") -> BinaryIO:
    """Seals what is written, into an empty file that is closed with this one."""
    return cast(BinaryIO, _Writer(file, key, kind))


class _Writer(io.RawIOBase):
    """Writes whole chunks as they fill; `close` writes the last one. Without that, the file does not open."""

    def __init__(self, file: BinaryIO, key: DataKey, kind: Kind) -> None:
        header = Header.new(kind, key.wrap)
        self._file, self._public, self._cipher = file, header.public, AESGCM(header.key(key.key))
        self._held, self._number = bytearray(), 0
        file.write(bytes(header))

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._number * CHUNK_BYTES + len(self._held)

    def fileno(self) -> int:
        return self._file.fileno()

    def write(self, content: object, /) -> int:
        view = memoryview(content).cast("B")  # type: ignore[arg-type]
        at = 0
        while at < len(view):
            if len(self._held) == CHUNK_BYTES:  # there is more, so it is not the last one
                self._put(last=False)
            taken = view[at : at + CHUNK_BYTES - len(self._held)]
            self._held += taken
            at += len(taken)
        return len(view)

    def close(self) -> None:
        if not self.closed:
            try:
                self._put(last=True)
            finally:
                self._file.close()
                super().close()

    def sync(self) -> None:
        """Writes the last chunk, and closes the file once it is on disk."""
        self._put(last=True)
        super().close()
        finish(self._file)

    def _put(self, *, last: bool) -> None:
        self._file.write(self._cipher.encrypt(_nonce(self._number, last), self._held, self._public))
        self._number += 1
        self._held = bytearray()


def finish(file: BinaryIO) -> None:
    """Closes a file from `create` once all of it is on disk."""
    if isinstance(file, _Writer):
        file.sync()
        return
    file.flush()
    os.fsync(file.fileno())
    file.close()


def _nonce(number: int, last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([last])


class Sealed:
    """A sealed file in chunks, open for reading at any place. Nothing of its content is kept.

    Args:
        descriptor: stays the caller's.
        header: the file's.
        data_key: its own.

    Raises:
        DataDamagedError: the key is another one, or the file was changed or cut. Reading raises it for a chunk that
            was changed or moved.
    """

    def __init__(self, descriptor: int, header: Header, data_key: bytes) -> None:
        self._descriptor, self._public = descriptor, header.public
        self._cipher = AESGCM(header.key(data_key))
        stored = os.fstat(descriptor).st_size - HEADER_BYTES
        self._chunks = -(-stored // STORED_BYTES)
        self.size = stored - self._chunks * TAG_BYTES
        if self._chunks < 1 or self.size < (self._chunks - 1) * CHUNK_BYTES:
            raise _damaged()
        self.chunks(self._chunks - 1, self._chunks)  # its nonce says that it is the last one: the file was not cut

    def chunks(self, first: int, end: int) -> list[bytes]:
        """The content of chunks that follow each other."""
        stored = memoryview(
            os.pread(self._descriptor, (end - first) * STORED_BYTES, HEADER_BYTES + first * STORED_BYTES)
        )
        opens, public, last = self._cipher.decrypt, self._public, self._chunks - 1
        try:
            return [
                opens(_nonce(number, number == last), stored[at : at + STORED_BYTES], public)
                for number, at in zip(range(first, end), range(0, len(stored), STORED_BYTES), strict=True)
            ]
        except (InvalidTag, ValueError):
            raise _damaged() from None

    def read(self, offset: int, length: int) -> bytes:
        """The content from `offset` on; less of it where it ends."""
        end = min(offset + length, self.size)
        if offset >= end:
            return b""
        first = offset // CHUNK_BYTES
        content = b"".join(self.chunks(first, (end - 1) // CHUNK_BYTES + 1))
        return content[offset - first * CHUNK_BYTES : end - first * CHUNK_BYTES]


class Pieces:
    """A file that arrives in pieces: its bytes, encrypted or decrypted at any place.

    A place that was lost from disk and is sent again gets the same key stream: what its sender sends again is the same.

    Args:
        header: the file's.
        data_key: its own.
    """

    def __init__(self, header: Header, data_key: bytes) -> None:
        self._key = header.key(data_key)

    def turned(self, offset: int, content: bytes | memoryview) -> bytes:
        """Encrypts or decrypts what lies at `offset` of the content."""
        skipped = offset % BLOCK
        cipher = Cipher(AES256(self._key), CTR((offset // BLOCK).to_bytes(BLOCK, "big"))).encryptor()
        cipher.update(bytes(skipped))
        return cipher.update(bytes(content))


@dataclass(frozen=True)
class SealedPath:
    """A sealed file to be read like a Path.

    Attributes:
        key: its data key.
    """

    path: Path
    key: bytes = field(repr=False)

    def open(self, mode: Literal["rb"], /) -> io.BufferedReader:
        """Opens its content. Raises OSError, DataDamagedError."""
        return io.BufferedReader(_Reader(self.path, self.key), COPY_BYTES)


class _Reader(io.RawIOBase):
    """The content of a sealed file as a stream."""

    def __init__(self, path: Path, key: bytes) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._at = 0
        try:
            header = Header.of(self._descriptor)
            if header is None:
                raise _damaged()
            self._pieces = Pieces(header, key) if header.kind == "pieces" else None
            self._sealed = None if self._pieces else Sealed(self._descriptor, header, key)
        except BaseException:
            os.close(self._descriptor)
            self._descriptor = -1
            raise

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise ValueError("a place before the file's beginning")
        self._at = start + offset
        return self._at

    @property
    def _size(self) -> int:
        if self._sealed is not None:
            return self._sealed.size
        return os.fstat(self._descriptor).st_size - HEADER_BYTES

    def readinto(self, buffer: object, /) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        if self._sealed is not None:
            content = self._sealed.read(self._at, len(view))
        elif self._pieces is not None:
            content = os.pread(self._descriptor, len(view), HEADER_BYTES + self._at)
            content = self._pieces.turned(self._at, content)
        view[: len(content)] = content
        self._at += len(content)
        return len(content)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        super().close()


def readable(path: Path, key: bytes | None) -> Named:
    """A file as its reader takes it: sealed if there is a key."""
    return path if key is None else SealedPath(path, key)


def content_of(path: Path, key: bytes | None) -> bytes:
    """The whole content of a part's file, sealed or not.

    Raises:
        OSError: it cannot be read.
        DataDamagedError: it is sealed, and there is no key or another one; or it was changed.
    """
    if header_of(path) is None:
        return path.read_bytes()
    with SealedPath(path, require(key)).open("rb") as file:
        return file.read()


def require(key: bytes | None) -> bytes:
    """The data key of a sealed file. Raises DataDamagedError if there is none."""
    if key is None:
        raise DataDamagedError("a stored part of the data set is sealed, and its reader was given no key")
    return key


def blocks(file: BinaryIO) -> Iterator[bytes]:
    """What is left of a file, a block at a time."""
    while block := file.read(COPY_BYTES):
        yield block


def _damaged() -> DataDamagedError:
    return DataDamagedError("a sealed file was changed, or is not of this key")
