"""Texts as hashed words, made once for a data set and cached like other extractors' features."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from core.contracts.extractor import Words
from core.parts.damage import DataDamagedError
from core.parts.hashing import hashed
from core.parts.part_reader import PartFile
from core.parts.stored_records import Csr, StoredPart, Texts
from worker.extractors.feature_lock import Poll
from worker.extractors.features import Kept, cached, pieces_of

AT_ONCE = 1000  # texts; between them the attempt gives a sign of life


def hashed_words(
    stored: StoredPart | PartFile,
    part_sha256: str,
    extractor_sha256: str,
    words: Words,
    cache: Path,
    poll: Callable[[], None] = lambda: None,
    storage: Kept = Kept(),
) -> StoredPart | PartFile:
    """The part with sparse features (n, buckets) instead of its texts; a record's depend on its own text alone.

    Args:
        poll: called before each AT_ONCE records; may raise to stop.

    Raises:
        DataDamagedError: the part has no texts.
    """

    def made(poll: Poll) -> Iterator[StoredPart]:
        for piece in pieces_of(stored, AT_ONCE):
            if not isinstance(piece.x, Texts):
                raise DataDamagedError("hashing words needs texts")
            if len(piece.y):
                poll()
            texts = list(piece.x.texts())
            yield replace(piece, x=hashed(texts, words) if texts else _none(words.buckets), y=piece.y.copy())

    return cached(stored, f"{part_sha256}/{extractor_sha256}/{words.model_dump_json()}", cache, made, poll, storage)


def _none(buckets: int) -> Csr:
    """The features of no record: how many a part holds must not decide if a job fails."""
    nothing = np.zeros(0, dtype=np.int32)
    return Csr(np.zeros(1, dtype=np.int64), nothing, nothing.astype(np.float32), (0, buckets))
