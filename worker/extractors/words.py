"""Texts as hashed words, made once for a data set and cached like other extractors' features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from app.contracts.extractor import Words
from app.formats.hashing import hashed
from app.formats.stored import Csr, DataDamagedError, StoredPart, Texts
from worker.extractors.features import cached
from worker.extractors.turns import Poll

AT_ONCE = 1000  # texts; between them the attempt gives a sign of life


def hashed_words(
    stored: StoredPart,
    part_sha256: str,
    extractor_sha256: str,
    words: Words,
    cache: Path,
    poll: Callable[[], None] = lambda: None,
) -> StoredPart:
    """The part with sparse features (n, buckets) instead of its texts; a record's depend on its own text alone.

    Args:
        poll: called before each AT_ONCE records; may raise to stop.

    Raises:
        DataDamagedError: the part has no texts.
    """
    if not isinstance(stored.x, Texts):
        raise DataDamagedError("hashing words needs texts")
    texts = stored.x

    def made(poll: Poll) -> StoredPart:
        rest, pieces = texts.texts(), []
        for _ in range(0, len(stored.y), AT_ONCE):
            poll()
            pieces.append(hashed(list(islice(rest, AT_ONCE)), words))
        return replace(stored, x=_joined(pieces, words.buckets))

    return cached(stored, f"{part_sha256}/{extractor_sha256}/{words.model_dump_json()}", cache, made, poll)


def _joined(pieces: Sequence[Csr], buckets: int) -> Csr:
    """The rows of all pieces, of none too: a part may hold no record."""
    lengths = np.concatenate([np.zeros(1, dtype=np.int64), *(np.diff(each.indptr) for each in pieces)])
    indices = np.concatenate([np.zeros(0, dtype=np.int32), *(each.indices for each in pieces)])
    data = np.concatenate([np.zeros(0, dtype=np.float32), *(each.data for each in pieces)])
    return Csr(np.cumsum(lengths, dtype=np.int64), indices, data, (len(lengths) - 1, buckets))
