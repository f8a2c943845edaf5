"""A part's features: made once by a frozen extractor, and kept beside the data set's parts.

The cache is as private as the data: a folder of mode 0700 within the data set's own, so that it goes with it. It is
keyed by the part's SHA-256, the extractor's and this module's version; a file's name holds its own SHA-256.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.formats.stored import DataDamagedError, StoredPart, Texts, load_part, save_part
from worker.extractors.bert import BertMean

VERSION = 1  # part of the key: raise it when features could come out differently


def extracted(
    stored: StoredPart, part_sha256: str, folder: Path, extractor_sha256: str, cache: Path, poll: Callable[[], None]
) -> StoredPart:
    """The part with float32 features (n, d) in place of its texts.

    Args:
        stored: a part of texts.
        folder, extractor_sha256: the extractor's, as admitted.
        cache: where features are kept.
        poll: called before each record; may raise to stop.

    Raises:
        ExtractorMissingError, DataDamagedError.
    """
    if not isinstance(stored.x, Texts):
        raise DataDamagedError("an extractor takes texts")
    key = hashlib.sha256(f"scrimp/features/{VERSION}/{part_sha256}/{extractor_sha256}".encode()).hexdigest()
    known = _known(cache, key)
    if known is not None and len(known.y) == len(stored.y):
        return known
    extractor = BertMean(folder, extractor_sha256)
    x: NDArray[np.float32] = np.empty((len(stored.y), extractor.features), dtype=np.float32)
    for row, text in enumerate(stored.x.texts()):
        poll()
        x[row] = extractor(text).numpy()
    made = replace(stored, x=x)
    with contextlib.suppress(OSError):  # a full disk costs time, no more
        _keep(cache, key, made)
    return made


def _known(cache: Path, key: str) -> StoredPart | None:
    for path in cache.glob(f"{key}.*.npz"):
        try:
            return load_part(path, path.name.split(".")[1])
        except DataDamagedError:
            path.unlink(missing_ok=True)
    return None


def _keep(cache: Path, key: str, made: StoredPart) -> None:
    """Whole or not at all: written under another name first."""
    cache.mkdir(mode=0o700, exist_ok=True)
    partial = cache / f"{secrets.token_hex(8)}.part"
    try:
        partial.replace(cache / f"{key}.{save_part(partial, made)}.npz")
    finally:
        partial.unlink(missing_ok=True)
