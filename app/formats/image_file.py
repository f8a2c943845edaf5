"""A tar or ZIP archive of `class/name.png` and `class/name.jpg`, all of the declared size: one record an image.

A record is the image's values over 255, row by row, with the channels last. Nothing is unpacked to disk, and no image
is decoded before its header has the declared size, so an image cannot claim more memory than the others. Errors name
counts, never names of files: those may be of persons.
"""

from __future__ import annotations

import io
import re
import struct
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from app.formats.reader_records import HELD, Records
from app.formats.unpacking import opened
from core.contracts.dataset_spec import ImageShape, Tensor
from core.disk import is_full
from core.errors import InvalidRequest
from core.parts.sealed import Named

if TYPE_CHECKING:
    from PIL import Image

MAX_FILE_BYTES = 32 * 2**20
MAX_NAME = 255
ZIP, LINK, ENCRYPTED = b"PK", 0o12, 1
IMAGE = re.compile(r"(?i)\.(png|jpe?g)$")
FORMATS = ("PNG", "JPEG")
MODES = {1: ("L", "1"), 3: ("RGB", "L", "1")}  # grey images may be read as colours, colours never as grey
ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, RuntimeError, ValueError, OverflowError)
TAR_ERRORS = (tarfile.TarError, EOFError, OSError, ValueError, OverflowError)
# What Pillow raises for files that are no images, or damaged ones.
DAMAGED = (OSError, ValueError, SyntaxError, EOFError, OverflowError, zlib.error, struct.error, IndexError, KeyError)
File = tuple[str, bytes]


def read(path: Named, records: Records) -> None:
    """Reads the images in the archive's order.

    Raises:
        InvalidRequest: the archive is damaged; it holds something else than images in folders named like classes; an
            image is damaged, or of another size or colour mode; this service cannot read images.
    """
    if not isinstance(records.spec.features, Tensor) or records.spec.features.image is None:
        raise ValueError("images have a declared shape")
    decoder = Decoder(records.spec.features.image)
    records.begin([records.features[0].name, records.label.name])
    with path.open("rb") as file:
        is_zip = file.read(2) == ZIP
    files = _of_zip(path, records, decoder.faults) if is_zip else _of_tar(path, records, decoder.faults)
    block, classes = list[NDArray[np.float32]](), list[str]()
    decoded = first = 0  # an image of few bytes may have many pixels

    def hand_on() -> None:
        rows = np.arange(first + 1, first + len(block) + 1)
        records.add_tensor(np.stack(block), classes, None, rows)

    for name, content in files:
        image = decoder.decoded(content)
        if image is None:
            continue
        decoded += image.nbytes
        if decoded > records.max_unpacked_bytes:
            limit = records.max_unpacked_bytes
            raise records.broken(f"its images unpack to more than {limit} bytes, which is the most that is allowed")
        classes.append(name.partition("/")[0])
        block.append(image)
        if len(block) * image.size >= HELD:
            hand_on()
            first, block, classes = first + len(block), [], []
    if block:
        hand_on()
    if decoder.faults:
        listed = ", ".join(f"{count} {reason}" for reason, count in decoder.faults.items())
        raise records.broken(f"files that cannot be used: {listed}")


class Decoder:
    """Decodes images of one declared shape, and counts those that it cannot use."""

    def __init__(self, shape: ImageShape) -> None:
        try:
            from PIL import Image  # noqa: PLC0415 - an extra of the installation
        except ModuleNotFoundError:
            detail = "this service cannot read images: its operator has to install `scrimp[images]`"
            raise InvalidRequest.at("/format", detail) from None
        Image.MAX_IMAGE_PIXELS = shape.height * shape.width  # twice as many are an error as soon as a file is opened
        self._library: Any = Image
        self._size, self._channels = (shape.width, shape.height), shape.channels
        self.faults: Counter[str] = Counter()

    def decoded(self, content: bytes) -> NDArray[np.float32] | None:
        """One image's values in 0 … 1, flattened; None if it cannot be used."""
        bombs = (self._library.DecompressionBombError, self._library.DecompressionBombWarning)
        try:
            with self._library.open(io.BytesIO(content), formats=FORMATS) as image:
                if image.size != self._size:
                    self.faults["of another size"] += 1
                    return None
                return self._values(image)
        except bombs:
            self.faults["of another size"] += 1
        except DAMAGED:
            self.faults["damaged, or neither PNG nor JPEG"] += 1
        return None

    def _values(self, image: Image.Image) -> NDArray[np.float32] | None:
        if image.mode == "P" and "transparency" not in image.info:
            image = image.convert("RGB")
        if image.mode not in MODES[self._channels] or getattr(image, "n_frames", 1) != 1:
            self.faults["of another colour mode, with transparency, or animated"] += 1
            return None
        values = np.asarray(image.convert("L" if self._channels == 1 else "RGB"), dtype=np.float32)
        return values.reshape(-1) / np.float32(255)


def _of_zip(path: Named, records: Records, faults: Counter[str]) -> Iterator[File]:
    unpacked = 0
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                if member.is_dir():
                    continue
                if member.external_attr >> 28 == LINK or member.flag_bits & ENCRYPTED:
                    faults["links or encrypted"] += 1
                    continue
                if not _is_usable(member.filename, member.file_size, faults):
                    continue
                unpacked += member.file_size
                if unpacked > records.max_unpacked_bytes:
                    limit = records.max_unpacked_bytes
                    raise records.broken(f"it unpacks to more than {limit} bytes, which is the most that is allowed")
                with archive.open(member) as image:
                    content = image.read(member.file_size + 1)
                yield _plain(member.filename), content
    except ZIP_ERRORS as error:
        if is_full(error):  # the parts' disk, not this file
            raise
        raise records.broken("it is not an intact ZIP archive") from None


def _of_tar(path: Named, records: Records, faults: Counter[str]) -> Iterator[File]:
    try:
        with opened(path, records) as plain, tarfile.open(fileobj=plain, mode="r|") as archive:
            for member in archive:
                archive.members = []  # type: ignore[attr-defined] # it would keep millions
                if member.isdir():
                    continue
                if not member.isreg() or member.sparse is not None:
                    faults["links or special files"] += 1
                elif _is_usable(member.name, member.size, faults):
                    file = archive.extractfile(member)
                    content = b"" if file is None else file.read()
                    yield _plain(member.name), content
    except TAR_ERRORS as error:
        if is_full(error):
            raise
        raise records.broken("it is neither an intact tar archive nor a ZIP archive") from None


def _is_usable(name: str, size: int, faults: Counter[str]) -> bool:
    """Whether a file may be an image of a class."""
    parts = _plain(name).split("/")
    odd = len(parts) != 2 or not parts[0] or parts[0] in (".", "..") or "\\" in name or "\x00" in name
    if odd or len(name) > MAX_NAME or not IMAGE.search(parts[-1]):
        faults["not named like class/name.png or class/name.jpg"] += 1
        return False
    if not 0 < size <= MAX_FILE_BYTES:
        faults[f"empty, or larger than {MAX_FILE_BYTES} bytes"] += 1
        return False
    return True


def _plain(name: str) -> str:
    return name.removeprefix("./")
