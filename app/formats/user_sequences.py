"""Interaction tables as sequences: each user's items in the order of time. One record is one user."""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from app.formats.cell_blocks import Cells
from app.formats.interactions import Interacted, Ratings
from app.formats.reader_records import Rows
from core.contracts.dataset_spec import DatasetSpec, Interactions, NextItemTask, RatingTask
from core.errors import InvalidRequest
from core.parts.id_rows import AnyId, IdCoder
from core.parts.stored_records import Sequences, StoredPart


class History(Interacted):
    """The rows of one file, grouped by user.

    A user's record is a function of this user's rows alone. Rows with the same time are ordered by a hash of user and
    item, since their places in the file are not part of the data. A user without a row with a declared item is not a
    record.

    Memory: 16 bytes of numbers and 8 of references a row, and each distinct id once.
    """

    def __init__(self, task: NextItemTask, features: Interactions, file: str, max_bytes: int) -> None:
        super().__init__(task, features, task.time, file, max_bytes)
        self._size = features.items.rows
        self._least, self._core = task.min_length, task.core
        self._items = IdCoder(features.items)
        self._times = array("d")
        self._users: dict[str, int] = {}
        self._user_of, self._item_of = array("i"), array("i")
        self._texts: list[str] = []
        self._distinct: dict[str, str] = {}

    @property
    def users(self) -> Sequence[str]:
        """All users with a declared item."""
        return list(self._users)

    def add(self, block: Mapping[str, Cells], rows: Rows) -> None:
        """Adds rows."""
        users, wrong_users = self.ids(self.features[0], AnyId(), block, rows)
        items, wrong_items = self.ids(self.features[1], self._items, block, rows)
        good = (wrong_users == 0) & (wrong_items == 0)
        for user, (item, text) in compress(zip(users, items, strict=True), good):
            self._user_of.append(self._users.setdefault(user, len(self._users)))
            self._item_of.append(item)
            self._texts.append(self._distinct.setdefault(text, text))
        self._times.frombytes(self.numbers(block, rows, good).tobytes())

    def check(self) -> None:
        """See Interacted."""
        super().check()
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
        times, order, start, names = np.frombuffer(self._times), self._order.tolist(), 0, list(self._users)
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
        good = np.bincount(users)[users] >= self._least
        while self._core is not None:
            counts = [np.bincount(ids, weights=good)[ids] for ids in (users, items)]
            rows = good & (counts[0] >= self._core) & (counts[1] >= self._core)
            if (rows == good).all():
                break
            good = rows
        return good

    def _ordered(self) -> NDArray[np.int64]:
        """The kept rows, ordered by user, time, and the hash where both are equal."""
        users, times = np.frombuffer(self._user_of, dtype=np.int32), np.frombuffer(self._times)
        order = np.lexsort((times, users))
        same_time = (np.diff(users[order]) == 0) & (np.diff(times[order]) == 0)
        tied = order[np.append(same_time, False) | np.append(False, same_time)]
        ranks: NDArray[np.uint64] = np.zeros(len(users), dtype=np.uint64)
        names = list(self._users)
        for row in tied.tolist():
            content = _framed(names[users[row]]) + _framed(self._texts[row])
            ranks[row] = int.from_bytes(hashlib.sha256(content).digest()[:8], "big")
        order = np.lexsort((ranks, times, users)) if len(tied) else order
        return order[self._kept()[order]]


def _framed(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def new_records(spec: DatasetSpec, file: str, max_unpacked_bytes: int) -> Ratings | History:
    """Raises InvalidRequest if the specification does not describe interactions."""
    task, features = spec.task, spec.features
    if isinstance(features, Interactions):
        if isinstance(task, NextItemTask):
            return History(task, features, file, max_unpacked_bytes)
        if isinstance(task, RatingTask) and features.users is not None:
            return Ratings(task, features, features.users, file, max_unpacked_bytes)
    raise InvalidRequest.at("/task", "an interaction table needs a task of kind 'rating' or 'next_item'")
