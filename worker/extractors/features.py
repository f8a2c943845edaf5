"""A part's features: made once by a frozen extractor, and cached next to the data set's parts.

The cache is as private as the data, and sealed if the part is. It is a folder of mode 0700 within the data set's own
folder, so it is deleted with the data set, and no other data set reads it. Its key contains the part's SHA-256, the
extractor's, how records are read, and this module's version. A file's name contains its own SHA-256, which is checked
on use. The cache keeps the KEPT most recently used files. Their number decides which files go, not their size, which
would reveal the number of records.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from core.contracts.extractor import EncoderManifest, ImageInput
from core.parts.damage import DataDamagedError
from core.parts.layout import Layout
from core.parts.part_files import load_part, open_part, remove_part, rename_part
from core.parts.part_pieces import cut, joined
from core.parts.part_reader import PartFile
from core.parts.sealed import DataKey
from core.parts.stored_records import StoredPart, Texts
from worker.extractors.efficientnet import EfficientNet
from worker.extractors.encoder import EncoderStates
from worker.extractors.extractor_files import loading, read_manifest
from worker.extractors.feature_lock import Poll, turn

VERSION = 2  # part of the key: raise it whenever features could change
KEPT = 16  # files: eight extractors' features of both parts
AT_ONCE = 256  # records of a piece, which is what is in memory while features are made
STALE_S = 86_400  # age at which a killed process's partial files are removed


class Extractor(Protocol):
    """Makes a vector from one record, as a function of that record alone."""

    @property
    def features(self) -> int:
        """The length of the vector."""
        ...

    def __call__(self, record: Any, /) -> Tensor: ...

    def examples(self, generator: np.random.Generator) -> list[Any]:
        """Three random public records of its kind, for the self-test."""
        ...


@dataclass(frozen=True)
class Kept:
    """How features are kept, and handed on.

    Attributes:
        scratch: a folder that all ranks of this attempt share, for features that the cache cannot take.
        on_disk: hands on the file instead of the records; in memory alone if nothing could be written.
        again: see PartFile.
        seal: the data key of the part, if that is sealed: its features are too.
    """

    scratch: Path | None = None
    on_disk: bool = False
    again: bool = False
    seal: DataKey | None = None


def extracted(
    stored: StoredPart | PartFile,
    part_sha256: str,
    folder: Path,
    extractor_sha256: str,
    cache: Path,
    poll: Callable[[], None],
    image: ImageInput | None = None,
    check: Callable[[Extractor], None] = lambda _: None,
    storage: Kept = Kept(),
) -> StoredPart | PartFile:
    """The part with float32 features (n, d) instead of its texts or images.

    Args:
        stored: a part of texts or images, in memory or on disk.
        image: how its records form images.
        folder, extractor_sha256: the extractor's, as admitted.
        cache: the folder of cached features.
        poll: called before each record; may raise to stop.
        check: called with the extractor before it receives any record; may raise.

    Raises:
        ExtractorMissingError: the extractor is missing or differs from the admitted one.
        DataDamagedError: the part has neither texts nor images.
    """

    def made(poll: Poll) -> Iterator[StoredPart]:
        extractor: Extractor | None = None
        for piece in pieces_of(stored, AT_ONCE):
            extractor_read, records = opened(piece, folder, extractor_sha256, image, extractor)
            if extractor is None:
                check(extractor_read)
            extractor = extractor_read
            x: NDArray[np.float32] = np.empty((len(piece.y), extractor.features), dtype=np.float32)
            for row, record in enumerate(records):
                poll()
                x[row] = extractor(record).numpy()
            yield replace(piece, x=x, y=piece.y.copy())

    form = image.model_dump_json() if image else ""
    return cached(stored, f"{part_sha256}/{extractor_sha256}/{form}", cache, made, poll, storage)


def pieces_of(stored: StoredPart | PartFile, limit: int) -> Iterator[StoredPart]:
    """A part's records in order, at most so many at once; one empty piece of a part without records."""
    remaining = stored.chunks() if isinstance(stored, PartFile) else iter((stored,))
    some = False
    for chunk in remaining:
        for start in range(0, max(1, len(chunk.y)), limit):
            some = True
            yield cut(chunk, start, min(start + limit, len(chunk.y)))
    if not some and isinstance(stored, PartFile):
        yield stored.whole()


def cached(
    stored: StoredPart | PartFile,
    form: str,
    cache: Path,
    make: Callable[[Poll], Iterator[StoredPart]],
    poll: Poll = lambda: None,
    storage: Kept = Kept(),
) -> StoredPart | PartFile:
    """A part's features from the cache, or made now and kept there. While another process makes them, it waits.

    They are written as they are made, so that no more than a piece of them is in memory. Where the cache has no room,
    they are kept for this attempt's ranks.

    Args:
        form: names the part, the extractor and the way in which it reads records.
        make: makes the features, piece by piece; calls its argument often.
        poll: called often while waiting; may raise to stop.
    """
    key = hashlib.sha256(f"scrimp/features/{VERSION}/{form}".encode()).hexdigest()
    count = len(stored) if isinstance(stored, PartFile) else len(stored.y)
    places = [cache] if storage.scratch is None else [cache, storage.scratch]
    earlier = _known(places, key, count, storage)
    if earlier is not None:
        return earlier
    for place in places:
        with contextlib.suppress(OSError):
            place.mkdir(mode=0o700, exist_ok=True)
    with turn(cache / f"{key}.lock", poll, lambda: bool(_files(cache, f"{key}.*"))) as alive:
        earlier = _known(places, key, count, storage)
        if earlier is not None:
            return earlier
        for place in places:
            try:
                _keep(place, key, make(alive), count, storage.seal)
            except OSError:  # a full disk costs only time
                continue
            written = _known([place], key, count, storage)
            if written is not None:
                return written
        return joined(list(make(alive)))


def opened(
    stored: StoredPart, folder: Path, sha256: str, image: ImageInput | None, extractor: Extractor | None = None
) -> tuple[Extractor, Iterable[Any]]:
    """The extractor for a part's records, and the records.

    Args:
        extractor: the extractor, if it was opened before.
    """
    if isinstance(stored.x, Texts) and image is None:
        return extractor or of_folder(folder, sha256, None), stored.x.texts()
    if isinstance(stored.x, np.ndarray) and image is not None and stored.x.shape[1] == image.numbers:
        records = np.require(stored.x, requirements="W")  # torch takes no views of a file's bytes
        return extractor or of_folder(folder, sha256, image), records
    raise DataDamagedError("an extractor needs texts or images")


def of_folder(folder: Path, sha256: str, image: ImageInput | None) -> Extractor:
    """The extractor in a folder, by its manifest's kind.

    Raises:
        ExtractorMissingError: it is missing, differs from the admitted one, or reads other records.
        ExtractorFormerError: only earlier releases have its kind.
    """
    with loading():
        manifest = read_manifest(folder, sha256)
        if isinstance(manifest, EncoderManifest):
            return EncoderStates(folder, sha256, image)
        if image is None:
            raise ValueError("this extractor reads images")
        return EfficientNet(folder, sha256, image)


def _known(places: Iterable[Path], key: str, count: int, cache: Kept) -> StoredPart | PartFile | None:
    for path in (path for place in places for path in _files(place, f"{key}.*")):
        try:
            part = _found(path, cache)
            with contextlib.suppress(OSError), path.open("rb") as used:
                os.utime(used.fileno())  # by its descriptor: the sandbox allows no path
            if (len(part) if isinstance(part, PartFile) else len(part.y)) == count:
                return part
        except DataDamagedError:
            remove_part(path)
    return None


def _found(path: Path, cache: Kept) -> StoredPart | PartFile:
    sha256 = path.name.split(".")[1]
    key = None if cache.seal is None else cache.seal.key
    opened_part = open_part(path, sha256, key, again=cache.again) if cache.on_disk else None
    return load_part(path, sha256, key) if opened_part is None else opened_part


def _keep(place: Path, key: str, pieces: Iterator[StoredPart], count: int, seal: DataKey | None) -> None:
    """Writes features as they are made, and then gives them their name.

    Raises:
        OSError: there is no room for all of them, known after the first piece; or there was none in the end.
    """
    from core.parts.part_writer import PartWriter  # noqa: PLC0415 - pyarrow, for writing alone

    first = next(pieces)
    needed = 2 * count * first.nbytes // max(1, len(first.y))
    if shutil.disk_usage(place).free < needed:
        raise OSError(errno.ENOSPC, "no room for features")
    partial = place / f"{secrets.token_hex(8)}.part"
    try:
        with PartWriter(partial, Layout.of(first), key=seal) as writer:
            writer.add(first)
            for piece in pieces:
                writer.add(piece)
            sha256 = writer.close()
        rename_part(partial, place / f"{key}.{sha256}.arrow")
    finally:
        remove_part(partial)
    by_use = sorted(_files(place, "*"), key=lambda path: path.stat().st_mtime_ns)
    for path in (*by_use[:-KEPT], *_left(place)):
        remove_part(path)


def _left(cache: Path) -> list[Path]:
    """What killed processes left: partial files, and an index that got its name before its part did."""
    orphans = [path for path in cache.glob("*.arrow.index") if not path.with_suffix("").exists()]
    return [path for path in (*cache.glob("*.part*"), *orphans) if path.stat().st_mtime < time.time() - STALE_S]


def _files(cache: Path, pattern: str) -> list[Path]:
    """Cached parts; those of earlier releases are NPZ files."""
    return [path for kind in ("arrow", "npz") for path in cache.glob(f"{pattern}.{kind}")]
