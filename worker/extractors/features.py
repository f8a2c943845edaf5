"""A part's features: made once by a frozen extractor, and cached next to the data set's parts.

The cache is as private as the data. It is a folder of mode 0700 within the data set's own folder, so it is deleted with
the data set, and no other data set reads it. Its key contains the part's SHA-256, the extractor's, how records are
read, and this module's version. A file's name contains its own SHA-256, which is checked on use. The cache keeps the
KEPT most recently used files. Their number decides which files go, not their size, which would reveal the number of
records.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from app.contracts.extractor import ImageInput
from app.formats.part_files import load_part, remove_part, rename_part, save_part
from app.formats.stored import DataDamagedError, StoredPart, Texts
from worker.extractors.bert import BertMean
from worker.extractors.efficientnet import EfficientNet
from worker.extractors.turns import Poll, turn

VERSION = 2  # part of the key: raise it whenever features could change
KEPT = 16  # files: eight extractors' features of both parts
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


def extracted(
    stored: StoredPart,
    part_sha256: str,
    folder: Path,
    extractor_sha256: str,
    cache: Path,
    poll: Callable[[], None],
    image: ImageInput | None = None,
    check: Callable[[Extractor], None] = lambda _: None,
) -> StoredPart:
    """The part with float32 features (n, d) instead of its texts or images.

    Args:
        stored: a part of texts or images.
        image: how its records form images.
        folder, extractor_sha256: the extractor's, as admitted.
        cache: the folder of cached features.
        poll: called before each record; may raise to stop.
        check: called with the extractor before it receives any record; may raise.

    Raises:
        ExtractorMissingError: the extractor is missing or differs from the admitted one.
        DataDamagedError: the part has neither texts nor images.
    """

    def made(poll: Poll) -> StoredPart:
        extractor, records = opened(stored, folder, extractor_sha256, image)
        check(extractor)
        x: NDArray[np.float32] = np.empty((len(stored.y), extractor.features), dtype=np.float32)
        for row, record in enumerate(records):
            poll()
            x[row] = extractor(record).numpy()
        return replace(stored, x=x)

    how = image.model_dump_json() if image else ""
    return cached(stored, f"{part_sha256}/{extractor_sha256}/{how}", cache, made, poll)


def cached(
    stored: StoredPart, how: str, cache: Path, made: Callable[[Poll], StoredPart], poll: Poll = lambda: None
) -> StoredPart:
    """A part's features from the cache, or made now and kept there. While another process makes them, it waits.

    Args:
        how: names the part, the extractor and the way in which it reads records.
        made: makes the features; calls its argument often.
        poll: called often while waiting; may raise to stop.
    """
    key = hashlib.sha256(f"scrimp/features/{VERSION}/{how}".encode()).hexdigest()
    known = _known(cache, key)
    if known is not None and len(known.y) == len(stored.y):
        return known
    with contextlib.suppress(OSError):
        cache.mkdir(mode=0o700, exist_ok=True)
    with turn(cache / f"{key}.lock", poll, lambda: bool(_files(cache, f"{key}.*"))) as alive:
        known = _known(cache, key)
        if known is not None and len(known.y) == len(stored.y):
            return known
        found = made(alive)
        with contextlib.suppress(OSError):  # a full disk costs only time
            _keep(cache, key, found)
    return found


def opened(stored: StoredPart, folder: Path, sha256: str, image: ImageInput | None) -> tuple[Extractor, Iterable[Any]]:
    """The extractor for a part's records, and the records."""
    if isinstance(stored.x, Texts) and image is None:
        return BertMean(folder, sha256), stored.x.texts()
    if isinstance(stored.x, np.ndarray) and image is not None and stored.x.shape[1] == image.numbers:
        return EfficientNet(folder, sha256, image), stored.x
    raise DataDamagedError("an extractor needs texts or images")


def _known(cache: Path, key: str) -> StoredPart | None:
    for path in _files(cache, f"{key}.*"):
        try:
            found = load_part(path, path.name.split(".")[1])
            with contextlib.suppress(OSError):
                os.utime(path)
            return found
        except DataDamagedError:
            remove_part(path)
    return None


def _keep(cache: Path, key: str, made: StoredPart) -> None:
    """Saves atomically: writes under another name first."""
    partial = cache / f"{secrets.token_hex(8)}.part"
    try:
        rename_part(partial, cache / f"{key}.{save_part(partial, made)}.arrow")
    finally:
        remove_part(partial)
    by_use = sorted(_files(cache, "*"), key=lambda path: path.stat().st_mtime_ns)
    for path in (*by_use[:-KEPT], *_left(cache)):
        remove_part(path)


def _left(cache: Path) -> list[Path]:
    """What killed processes left: partial files, and an index that got its name before its part did."""
    alone = [path for path in cache.glob("*.arrow.index") if not path.with_suffix("").exists()]
    return [path for path in (*cache.glob("*.part*"), *alone) if path.stat().st_mtime < time.time() - STALE_S]


def _files(cache: Path, pattern: str) -> list[Path]:
    """Cached parts; those of earlier releases are NPZ files."""
    return [path for kind in ("arrow", "npz") for path in cache.glob(f"{pattern}.{kind}")]
