"""Data files in buckets that the settings list: `"path": "s3://bucket/key"`, read with the service's own credentials.

What a caller writes chooses a bucket from the list and a key in it, and nothing else: no endpoint, no other bucket, no
credentials. The object is fetched by a signed address without following redirects, in the version that was accepted
(If-Match), so that size, hash and content belong to one object.
"""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from app.datasets.storage import COPY_BYTES
from app.storage.s3 import client_of
from core.disk import LOOK_BYTES, Room
from core.errors import InvalidRequest, Unavailable, too_large
from core.parts.sealed import DataKey, create

SCHEME = "s3://"
BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\?#]")
SIGNED_FOR = timedelta(hours=24)  # a large object takes a while
TIMEOUT_S = 30.0
TRIES = 5


@dataclass(frozen=True)
class Address:
    """One object of a bucket that the settings list."""

    bucket: str
    key: str


def is_one(path: str) -> bool:
    """Whether a `path` names an object of a bucket."""
    return path.startswith(SCHEME)


def parse(path: str, pointer: str, listed: Sequence[str]) -> Address:
    """Reads s3://bucket/key.

    Args:
        listed: the setting: "bucket" or "bucket/prefix" each.

    Raises:
        InvalidRequest: it is no such address, or the bucket is not listed.
    """
    bucket, _, key = path.removeprefix(SCHEME).partition("/")
    segments = key.split("/")
    if not BUCKET.fullmatch(bucket) or FORBIDDEN.search(key) or not all(segments) or {".", ".."} & set(segments):
        detail = "write s3://bucket/key: a bucket's name alone, without endpoint or credentials, and a key without `.`"
        raise InvalidRequest.at(pointer, detail + ", `..`, empty parts, `?`, `#` or `\\`")
    for address in listed:
        name, _, prefix = address.strip("/").partition("/")
        inside = prefix.split("/") if prefix else []
        if bucket == name and segments[: len(inside)] == inside and len(segments) > len(inside):
            return Address(bucket, key)
    detail = f"this service reads no data at {SCHEME}{bucket}/…: an operator can list the bucket in SCRIMP_DATA_BUCKETS"
    raise InvalidRequest.at(pointer, detail)


@dataclass(frozen=True)
class Found:
    """The version of an object that is there now."""

    size: int
    etag: str


def look(address: Address, pointer: str, limit_bytes: int) -> Found:
    """Asks for an object's size and version.

    Raises:
        InvalidRequest: it is not there, the service may not read it, or the bucket is elsewhere.
        TooLarge: it is larger than the limit.
        Unavailable: the bucket does not answer.
    """
    with closing(_Asked("HEAD", address, pointer)) as request:
        answer = Found(int(request.header("Content-Length")), request.header("ETag"))
    if answer.size > limit_bytes:
        raise too_large(limit_bytes)
    return answer


def copy(address: Address, source: Found, pointer: str, target: Path, room: Room, key: DataKey | None = None) -> None:
    """Copies that version to a new file; goes on where a connection broke.

    Args:
        room: what the copy leaves of the disk.
        key: seals the copy.

    Raises:
        InvalidRequest: as `look`; the object has changed since.
        StorageFull: the disk has no room for it.
        Unavailable: the bucket does not answer.
    """
    room.require(target.parent, source.size)
    with create(target, key, "raw") as out:
        copied = 0
        for block in _blocks(address, source, pointer):
            copied += len(block)
            if copied > source.size:
                raise InvalidRequest.at(pointer, "the bucket sent more than the object has: register it again")
            if copied % LOOK_BYTES < len(block):
                room.require(target.parent)
            out.write(block)


def _blocks(address: Address, source: Found, pointer: str) -> Iterator[bytes]:
    at = 0
    for left in reversed(range(TRIES)):
        try:
            with closing(_Asked("GET", address, pointer, source, at)) as request:
                while block := request.read():
                    at += len(block)
                    yield block
        except (OSError, http.client.HTTPException):
            if not left:
                raise _away() from None
        if at >= source.size:
            return
    raise _away()


class _Asked:
    """One request and its answer, on a connection of its own."""

    def __init__(
        self, method: str, address: Address, pointer: str, source: Found | None = None, start: int = 0
    ) -> None:
        from obstore import sign  # noqa: PLC0415 - optional
        from obstore.exceptions import BaseError  # noqa: PLC0415

        try:
            store = client_of(address.bucket)
            url = urlsplit(sign(store, "HEAD" if method == "HEAD" else "GET", address.key, SIGNED_FOR))
        except BaseError:  # no credentials
            raise _away() from None
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(url.hostname or "", url.port, timeout=TIMEOUT_S)
        self._answer: http.client.HTTPResponse | None = None
        headers = {"Host": url.netloc, "Accept-Encoding": "identity"}
        if source is not None:
            headers |= {"If-Match": source.etag, "Range": f"bytes={start}-"} if start else {"If-Match": source.etag}
        try:
            self._connection.request(method, f"{url.path}?{url.query}", headers=headers)
            self._answer = self._connection.getresponse()
            _check(self._answer.status, 206 if start else 200, pointer)
        except (OSError, http.client.HTTPException):
            self.close()
            raise _away() from None
        except BaseException:
            self.close()
            raise

    def header(self, name: str) -> str:
        """A header that every S3 answers."""
        value = None if self._answer is None else self._answer.headers.get(name)
        if value is None:
            raise _away()
        return str(value)

    def read(self) -> bytes:
        return b"" if self._answer is None else self._answer.read(COPY_BYTES)

    def close(self) -> None:
        if self._answer is not None:
            self._answer.close()
        self._connection.close()


def _check(status: int, wanted: int, pointer: str) -> None:
    if status == wanted:
        return
    if 300 <= status < 400:
        detail = "the bucket answered with a redirect, which is not followed: an operator has to set its region and "
        raise InvalidRequest.at(pointer, detail + "endpoint (AWS_REGION, AWS_ENDPOINT_URL)")
    if status == 412:
        raise InvalidRequest.at(pointer, "the object was replaced since it was registered: register it again")
    if status in (401, 403, 404):
        raise InvalidRequest.at(pointer, "there is no such object in this bucket, or the service may not read it")
    raise _away()


def _away() -> Unavailable:
    return Unavailable("the data file's bucket does not answer: try again in a moment")
