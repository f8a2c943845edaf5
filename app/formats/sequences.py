"""Interaction tables as sequences: each user's items in the order of time. One record is one user."""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.contracts.dataset_spec import Interactions, NextItemTask
from app.formats.columns import Fault, Numbers, fault, refuse, text_number
from app.formats.ids import IdColumn, id_text, is_missing
from app.formats.records import Table, Wanted
from app.formats.stored import Sequences, StoredPart


class History(Table):
    """The rows of one file, grouped by user.

    A user's record is a function of this user's rows alone. Rows with the same time are ordered by a hash of user and
    item, since their places in the file are not part of the data. A user without a row with a declared item is not a
    record.

    Memory: 16 bytes of numbers and 8 of references a row, and each distinct id once.
    """

    def __init__(self, task: NextItemTask, features: Interactions, file: str, max_bytes: int) -> None:
        wanted = [Wanted(task.user, "/task/user"), Wanted(task.item, "/task/item")]
        super().__init__(features.layout, file, max_bytes, wanted, Wanted(task.time, "/task/time"))
        self.layout, self._size = features.layout, features.items.rows
        self.dropped = 0
        self._least, self._core = task.min_length, task.core
        self._items = IdColumn(task.item, "/task/item", features.items, features.unknown == "drop")
        self._bad_users = {"missing": 0, "not an id": 0}
        number = float if features.layout == "parquet" else text_number
        self._times = Numbers([task.time], ["/task/time"], number)
        self._users: dict[str, int] = {}
        self._user_of, self._item_of = array("i"), array("i")
        self._texts: list[str] = []
        self._distinct: dict[str, str] = {}

    @property
    def users(self) -> Sequence[str]:
        """All users with a declared item."""
        return list(self._users)

    def add(self, row: Sequence[Any], label: Any) -> None:
        """Adds one row; counts unusable cells."""
        user, found = id_text(row[0]), self._items.find(row[1])
        if user is None:
            self._bad_users["missing" if is_missing(row[0]) else "not an id"] += 1
        if user is None or found is None:
            self.dropped += 1
            return
        item, text = found
        self._user_of.append(self._users.setdefault(user, len(self._users)))
        self._item_of.append(item)
        self._texts.append(self._distinct.setdefault(text, text))
        self._times.add((label,))

    def check(self) -> None:
        """Raises InvalidRequest with columns and counts, if any cell cannot be used."""
        refuse([*self._user_faults(), *self._items.faults(), *self._times.faults()], self.file)
        if not self._users:
            raise self.broken("it holds no records" + (" with declared ids" if self.dropped else ""))
        self._order = self._ordered()
        self._present = np.unique(self._users_of(self._order))
        if not len(self._present):
            raise self.broken("no user has as many rows as `min_length` or `core` requires: lower them")

    def part(self) -> StoredPart:
        """Users in the order of their first row in the file. A sequence is its own label, and its own user."""
        items: NDArray[np.int32] = np.frombuffer(self._item_of, dtype=np.int32)[self._order]
        n = len(self._present)
        return StoredPart(Sequences(items, self._ends(), self._size), np.zeros(n), np.arange(n))

    def contents(self) -> Iterator[bytes]:
        """The content of each record's digest: the user, then items and times in their order, as declared."""
        times, order, start, names = self._times.values()[:, 0], self._order.tolist(), 0, list(self._users)
        for user, end in zip((names[each] for each in self._present), self._ends().tolist(), strict=True):
            parts = [b"s", _framed(user)]
            for row in order[start:end]:
                parts += [_framed(self._texts[row]), struct.pack("<d", times[row])]
            yield b"".join(parts)
            start = end

    def _users_of(self, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        users: NDArray[np.int32] = np.frombuffer(self._user_of, dtype=np.int32)[rows]
        return users

    def _ends(self) -> NDArray[np.int64]:
        """The ends of the present users' rows."""
        return np.cumsum(np.bincount(self._users_of(self._order))[self._present], dtype=np.int64)

    def _kept(self) -> NDArray[np.bool_]:
        """The rows of users with enough of them; for a core, of items with enough too."""
        users, items = (np.frombuffer(rows, dtype=np.int32) for rows in (self._user_of, self._item_of))
        kept = np.bincount(users)[users] >= self._least
        while self._core is not None:
            counts = [np.bincount(of, weights=kept)[of] for of in (users, items)]
            rest = kept & (counts[0] >= self._core) & (counts[1] >= self._core)
            if (rest == kept).all():
                break
            kept = rest
        return kept

    def _ordered(self) -> NDArray[np.int64]:
        """The kept rows, ordered by user, time, and the hash where both are equal."""
        users, times = np.frombuffer(self._user_of, dtype=np.int32), self._times.values()[:, 0]
        order = np.lexsort((times, users))
        alike = (np.diff(users[order]) == 0) & (np.diff(times[order]) == 0)
        tied = order[np.append(alike, False) | np.append(False, alike)]
        ranks: NDArray[np.uint64] = np.zeros(len(users), dtype=np.uint64)
        names = list(self._users)
        for row in tied.tolist():
            content = _framed(names[users[row]]) + _framed(self._texts[row])
            ranks[row] = int.from_bytes(hashlib.sha256(content).digest()[:8], "big")
        order = np.lexsort((ranks, times, users)) if len(tied) else order
        return order[self._kept()[order]]

    def _user_faults(self) -> list[Fault]:
        wanted = self.features[0]
        return fault(wanted.pointer, wanted.name, self._bad_users)


def _framed(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded
