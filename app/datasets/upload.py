"""A multipart upload, parsed as it streams in. Files go straight to disk; every size is bounded before it is stored."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from app.datasets.storage import place
from core.contracts.dataset_spec import PREFIXES
from core.disk import LOOK_BYTES, Room
from core.errors import InvalidRequest, TooLarge, too_large
from core.parts.sealed import DataKey, create

MAX_HEADER_BYTES = 8192


class Upload:
    """The parts `spec`, `file`, `holdout_file` and `edges_file`, each at most once.

    Args:
        content_type: the request's, with the boundary.
        folder: where the files are written, under their parts' names.
        max_file_bytes: the limit of each file.
        max_spec_bytes: the limit of the spec.
        room: what the files leave of the disk.
        key: seals the files.
    """

    def __init__(
        self,
        content_type: str,
        folder: Path,
        *,
        max_file_bytes: int,
        max_spec_bytes: int,
        room: Room,
        key: DataKey | None = None,
    ) -> None:
        self.spec: bytes | None = None
        self._room, self._key = room, key
        self._folder, self._max_file_bytes, self._max_spec_bytes = folder, max_file_bytes, max_spec_bytes
        self._seen: set[str] = set()
        self._whole = False
        self._file: BinaryIO | None = None
        self._begin()
        boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
        if not boundary:
            raise _malformed("the Content-Type has no boundary")
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_header_field": self._header_field,
                    "on_header_value": self._header_value,
                    "on_header_end": self._header_end,
                    "on_headers_finished": self._headers_finished,
                    "on_part_data": self._data,
                    "on_part_end": self._end,
                    "on_end": self._finish,
                },
            )
        except FormParserError:
            raise _malformed("the boundary is too long") from None

    def feed(self, chunk: bytes) -> None:
        """Parses the next bytes of the body.

        Raises:
            InvalidRequest: it is not a well-formed multipart body with these parts.
            TooLarge: a part is larger than its limit. At most the limit was written.
            StorageFull: the disk's reserve begins (core.disk).
        """
        try:
            self._parser.write(chunk)
        except FormParserError:
            raise _malformed("it is not well-formed") from None

    def close(self) -> None:
        """Ends the upload, at the end of the body or after an error."""
        if self._file is not None:
            self._file.close()

    def check(self) -> bytes:
        """Checks that the upload is complete, and returns the spec."""
        if not self._whole:
            raise _malformed("it ends too early")
        if self.spec is None:
            raise _malformed("the part `spec` (JSON) is missing")
        return self.spec

    def _begin(self) -> None:
        self._field, self._value, self._disposition = bytearray(), bytearray(), b""
        self._header_bytes = self._size = 0

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self._field += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self._value += data[start:end]

    def _count_header(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > MAX_HEADER_BYTES:
            raise _malformed("a part's headers are too long")

    def _header_end(self) -> None:
        if self._field.lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._field, self._value = bytearray(), bytearray()

    def _headers_finished(self) -> None:
        name = parse_options_header(self._disposition)[1].get(b"name", b"").decode("ascii", "replace")
        if name not in ("spec", *PREFIXES):
            raise _malformed("it has a part that is none of `spec`, `file`, `holdout_file` and `edges_file`")
        if name in self._seen:
            raise _malformed(f"the part `{name}` appears twice")
        self._seen.add(name)
        if name == "spec":
            self.spec = b""
        else:
            self._room.require(self._folder)
            self._file = create(place(self._folder, name, sealed=self._key is not None), self._key, "raw")

    def _data(self, data: bytes, start: int, end: int) -> None:
        self._size += end - start
        if self._file is not None:
            if self._size > self._max_file_bytes:
                raise too_large(self._max_file_bytes)
            if self._size % LOOK_BYTES < end - start:
                self._room.require(self._folder)
            self._file.write(data[start:end])
        else:
            if self._size > self._max_spec_bytes:
                raise TooLarge(f"a spec may have at most {self._max_spec_bytes} bytes")
            self.spec = (self.spec or b"") + data[start:end]

    def _end(self) -> None:
        self.close()
        self._file = None

    def _finish(self) -> None:
        self._whole = True


def _malformed(detail: str) -> InvalidRequest:
    return InvalidRequest.at("", f"the multipart body cannot be used: {detail}")
