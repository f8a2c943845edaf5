"""Which parts of data sets are loaded whole, and which stay on disk: public sizes decide, at registration and in every
attempt."""

from __future__ import annotations

IN_MEMORY_BYTES = 2**29  # of all slots' records: larger parts stay on disk, and passes read them from a map
SPARSE_BYTES, RATING_BYTES = 2048, 24  # of a stored record
TOKEN_BYTES = 4


def in_memory(records: int, record_bytes: int) -> bool:
    """Returns True if a part of at most this many records is loaded whole; public sizes decide.

    >>> in_memory(63_064, 4 * 784), in_memory(2_000_000, 4 * 100)
    (True, False)
    """
    return records * record_bytes <= IN_MEMORY_BYTES


def record_bytes(features: int, *, sparse: bool, rating: bool, tokens: int = 0) -> int:
    """Returns a stored record's size; a guess where it varies, which must not depend on the records.

    Args:
        features: the model's inputs.
        sparse: they are stored sparsely.
        rating: the record is a rating.
        tokens: the most that a model reads of a text; 0: records are no texts that it tokenizes.
    """
    if tokens:
        return TOKEN_BYTES * tokens
    return RATING_BYTES if rating else SPARSE_BYTES if sparse else 4 * features
