"""Cuts records of a part, and joins them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from core.parts.stored_records import Csr, Features, Pairs, Sequences, SlotColumn, StoredPart, Texts

Which = NDArray[np.bool_] | NDArray[np.int64] | slice


def chosen(part: StoredPart, mask: NDArray[np.bool_]) -> StoredPart:
    """The part's records where the mask is True."""
    return _with(part, _rows(part.x, mask), mask)


def taken(part: StoredPart, numbers: NDArray[np.int64]) -> StoredPart:
    """The part's records with these numbers, in their order; a number may occur more than once."""
    return _with(part, _rows(part.x, numbers), numbers)


def cut(part: StoredPart, start: int, end: int) -> StoredPart:
    """Records start … end − 1, mostly as views."""
    return _with(part, _slice(part.x, start, end), slice(start, end))


def joined(parts: Sequence[StoredPart]) -> StoredPart:
    """Records of one layout, one after the other; at least one piece."""
    if len(parts) == 1:
        return parts[0]
    users = [each.user for each in parts if each.user is not None]
    columns = [each.slot for each in parts if each.slot is not None]
    slot = SlotColumn(np.concatenate([each.numbers for each in columns]), columns[0].slots) if columns else None
    return StoredPart(
        x=_joined([each.x for each in parts]),
        y=np.concatenate([each.y for each in parts]),
        user=np.concatenate(users) if users else None,
        slot=slot,
    )


def without_last(part: StoredPart) -> StoredPart:
    """The same users, each without the last item.

    Raises:
        TypeError: the records are not sequences.
    """
    if not isinstance(part.x, Sequences):
        raise TypeError("only sequences have a last item")
    stays = np.ones(len(part.x.items), dtype=np.bool_)
    stays[part.x.ends - 1] = False
    ends = part.x.ends - np.arange(1, len(part.x.ends) + 1)
    return replace(part, x=Sequences(part.x.items[stays], ends, part.x.size))


def _with(part: StoredPart, x: Features, which: Which) -> StoredPart:
    """Some of a part's records, whose features are `x`."""
    user = None if part.user is None else part.user[which]
    slot = None if part.slot is None else replace(part.slot, numbers=part.slot.numbers[which])
    return StoredPart(x=x, y=part.y[which], user=user, slot=slot)


def _rows(x: Features, at: NDArray[np.bool_] | NDArray[np.int64]) -> Features:
    """The records where a mask is True, or with these numbers."""
    if isinstance(x, Pairs):
        return Pairs(x.users[at], x.items[at], x.sizes)
    if isinstance(x, np.ndarray):
        return x[at]
    lengths = np.diff(_ends(x), prepend=0)
    entries, ends = _entries(lengths, at), np.cumsum(lengths[at], dtype=np.int64)
    if isinstance(x, Texts):
        return Texts(x.utf8[entries], ends)
    if isinstance(x, Sequences):
        return Sequences(x.items[entries], ends, x.size)
    return _csr(x.indices[entries], x.data[entries], ends, x.shape[1])


def _entries(
    lengths: NDArray[np.int64], at: NDArray[np.bool_] | NDArray[np.int64]
) -> NDArray[np.bool_] | NDArray[np.int64]:
    """Which entries of lists with these lengths belong to the records: a mask for a mask, else numbers in order."""
    if at.dtype == np.bool_:
        mask: NDArray[np.bool_] = np.repeat(at.astype(np.bool_), lengths)
        return mask
    counts, starts = lengths[at], (np.cumsum(lengths) - lengths)[at]
    firsts = np.repeat(starts - (np.cumsum(counts) - counts), counts)
    entries: NDArray[np.int64] = firsts + np.arange(len(firsts))
    return entries


def _slice(x: Features, start: int, end: int) -> Features:
    if isinstance(x, Pairs):
        return Pairs(x.users[start:end], x.items[start:end], x.sizes)
    if isinstance(x, np.ndarray):
        return x[start:end]
    ends = _ends(x)
    first = int(ends[start - 1]) if start else 0
    ends = ends[start:end] - first
    within = slice(first, first + int(ends[-1]) if len(ends) else first)
    if isinstance(x, Texts):
        return Texts(x.utf8[within], ends)
    if isinstance(x, Sequences):
        return Sequences(x.items[within], ends, x.size)
    return _csr(x.indices[within], x.data[within], ends, x.shape[1])


def _joined(all_x: Sequence[Features]) -> Features:
    first = all_x[0]
    if isinstance(first, np.ndarray):
        return np.concatenate([x for x in all_x if isinstance(x, np.ndarray)])
    if isinstance(first, Pairs):
        pairs = [x for x in all_x if isinstance(x, Pairs)]
        return Pairs(np.concatenate([x.users for x in pairs]), np.concatenate([x.items for x in pairs]), first.sizes)
    offset, ends = 0, []
    for x in all_x:
        row_ends = _ends(x)
        ends.append(row_ends + offset)
        offset += int(row_ends[-1]) if len(row_ends) else 0
    together = np.concatenate(ends)
    if isinstance(first, Texts):
        return Texts(np.concatenate([x.utf8 for x in all_x if isinstance(x, Texts)]), together)
    if isinstance(first, Sequences):
        return Sequences(np.concatenate([x.items for x in all_x if isinstance(x, Sequences)]), together, first.size)
    matrices = [x for x in all_x if isinstance(x, Csr)]
    columns, values = (np.concatenate([getattr(x, name) for x in matrices]) for name in ("indices", "data"))
    return _csr(columns, values, together, first.shape[1])


def _ends(x: Features) -> NDArray[np.int64]:
    """Where each record of varying length ends."""
    if isinstance(x, Csr):
        ends: NDArray[np.int64] = x.indptr[1:] - x.indptr[0]
        return ends
    if isinstance(x, Sequences | Texts):
        return x.ends
    raise TypeError("these records have one length")


def _csr(columns: NDArray[np.int32], values: NDArray[np.float32], ends: NDArray[np.int64], width: int) -> Csr:
    indptr = np.concatenate((np.zeros(1, dtype=np.int64), ends))
    return Csr(indptr, columns, values, (len(ends), width))
