"""Where parsed records go: split into parts, and bounded by user, as they arrive."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.formats import users
from app.formats.asked import WrittenFile
from app.formats.slot_order import SlotWriter
from core.disk import Room
from core.parts import unit_digests
from core.parts.digests import Keys, in_holdout
from core.parts.layout import Layout
from core.parts.part_files import remove_part
from core.parts.part_pieces import chosen, without_last
from core.parts.part_reader import PartFile
from core.parts.part_writer import PartWriter
from core.parts.sealed import DataKey
from core.parts.stored_records import StoredPart
from core.parts.unit_digests import Saved

SPOOL = "spool"


@dataclass(frozen=True)
class Piece:
    """Consecutive records of a file.

    Attributes:
        split: (n, 2) words that split the hold-out off, and choose among a user's records: digests of records as they
            were sent, or of users. None: neither is declared.
    """

    part: StoredPart
    users: Sequence[str] | None = None
    split: NDArray[np.uint64] | None = None


@dataclass(frozen=True)
class Parts:
    """What was written.

    Attributes:
        written: each part's file, by the part's name.
        units, rows: each part's protected units, and its records. Private.
        all_units: those of the whole file.
        over: records of users who had too many, those of earlier blocks counted.
        returning: users of earlier blocks.
        row_squares: Σ (records of a user)² over the kept ones; None where a record is a unit.
    """

    layout: Layout
    written: dict[str, WrittenFile]
    units: dict[str, int]
    rows: dict[str, int]
    all_units: int
    over: int = 0
    returning: int = 0
    row_squares: int | None = None


class Split:
    """Writes parts into a folder; each record's side depends on that record alone.

    Args:
        name: of the part, or of the one for training.
        fraction: of the hold-out; None: there is none.
        last_item: holds out each sequence's last item instead.
        room: what the parts leave of the disk.
        slots: from the layout, how many slots the parts have whose records are stored in the order of slots.
        key: seals the parts.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        fraction: float | None,
        room: Room,
        *,
        last_item: bool = False,
        slots: Callable[[Layout], Mapping[str, int]] = lambda _: {},
        key: DataKey | None = None,
    ) -> None:
        self.room, self._key, self._folder, self._fraction, self._last_item = room, key, folder, fraction, last_item
        self._slots = slots
        self._names = (name, "holdout") if last_item or fraction is not None else (name,)
        self._writers: dict[str, PartWriter | SlotWriter] = {}
        self._users: dict[str, set[int]] = {}
        self._layout: Layout | None = None

    def add(self, piece: Piece) -> None:
        """Writes records to their parts."""
        if self._layout is None:
            self._layout = Layout.of(piece.part)
            slots = self._slots(self._layout)
            self._writers = {name: self._writer(name, self._layout, slots.get(name)) for name in self._names}
            self._users = {name: set() for name in self._names}
        for name, part in self._sides(piece):
            self._writers[name].add(part)
            if part.user is not None and not self._last_item:
                self._users[name].update(np.unique(part.user).tolist())

    def close(self) -> Parts:
        """Ends the parts.

        Raises:
            ValueError: nothing was added.
        """
        if self._layout is None:
            raise ValueError("a part needs records")
        rows = {name: writer.rows for name, writer in self._writers.items()}
        written = {name: WrittenFile(file=self._path(name).name, sha256=self._writers[name].close()) for name in rows}
        counted = self._layout.users and not self._last_item
        units = {name: len(self._users[name]) for name in rows} if counted else rows
        all_units = rows["holdout"] if self._last_item else sum(units.values())
        return Parts(self._layout, written, units, rows, all_units)

    def abandon(self) -> None:
        """Closes what is open, after an error."""
        for writer in self._writers.values():
            writer.__exit__(None, None, None)

    def _writer(self, name: str, layout: Layout, slots: int | None) -> PartWriter | SlotWriter:
        if slots is None:
            return PartWriter(self._path(name), layout, room=self.room, key=self._key)
        return SlotWriter(self._path(name), layout, slots, room=self.room, key=self._key)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.arrow"

    def _sides(self, piece: Piece) -> list[tuple[str, StoredPart]]:
        part = piece.part
        if self._last_item:
            return [(self._names[0], without_last(part)), ("holdout", part)]
        if self._fraction is None:
            return [(self._names[0], part)]
        is_holdout = in_holdout(_split_of(piece), self._fraction)
        return [(self._names[0], chosen(part, ~is_holdout)), ("holdout", chosen(part, is_holdout))]


@dataclass(frozen=True)
class Earlier:
    """The blocks of a data set before this one.

    Attributes:
        place: of this one, from 0 on.
        people: their files of people, whose records count.
    """

    place: int = 0
    people: tuple[Saved, ...] = ()


@dataclass
class Bounded:
    """Keeps at most `most` records of each user, over all blocks. Records wait in a file until every user's are known.

    In memory: 24 bytes a record, about four times that in `close`, and each user's name once. `seal` seals the file.
    """

    split: Split
    folder: Path
    most: int
    keys: Keys
    seal: DataKey | None = None
    earlier: Earlier = Earlier()
    _numbers: dict[str, int] = field(default_factory=dict)
    _of: list[NDArray[np.int64]] = field(default_factory=list)
    _words: list[NDArray[np.uint64]] = field(default_factory=list)
    _writer: PartWriter | None = None
    _people: tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]] | None = None

    def save_people(self, path: Path) -> str:
        """Writes the file of the people that were added; after `close`. Returns its hash."""
        if self._people is None:
            raise ValueError("people are known once all records are")
        return unit_digests.save_people(path, *self._people, self.seal)

    def add(self, piece: Piece) -> None:
        """Keeps records until `close`."""
        if self._writer is None:
            room = self.split.room
            self._writer = PartWriter(
                self.folder / SPOOL, Layout.of(piece.part), room=room, key=self.seal, temporary=True
            )
        self._writer.add(piece.part)
        self._of.append(users.numbered(piece.users or (), self._numbers))
        self._words.append(_split_of(piece))

    def close(self) -> Parts:
        """Writes the records that stay to their parts.

        Raises:
            ValueError: nothing was added.
        """
        if self._writer is None:
            raise ValueError("a part needs records")
        spool = PartFile(self.folder / SPOOL, self._writer.close(), self.seal.key if self.seal else None)
        numbers, words = np.concatenate(self._of), np.concatenate(self._words)
        names = list(self._numbers)
        digests = unit_digests.of_users(names, self.keys)
        people = unit_digests.known(digests, self.earlier.people)
        stays = users.kept(numbers, words, self.most - people.kept)
        sides = users.sides(names, self.keys)
        new = unit_digests.FIRST_NUMBER * (self.earlier.place + 1) + np.arange(len(names))
        people_numbers = np.where(people.numbers < 0, new, people.numbers)
        counts = np.bincount(numbers[stays], minlength=len(names))
        self._people = (digests, people_numbers, counts)
        start = 0
        for part in spool.chunks():
            end = start + len(part.y)
            block_numbers, within = numbers[start:end], stays[start:end]
            left = chosen(replace(part, user=people_numbers[block_numbers]), within)
            side = sides[block_numbers[within]]
            self.split.add(Piece(left, split=side))
            start = end
        remove_part(self.folder / SPOOL)
        parts = self.split.close()
        over, returning = np.count_nonzero(~stays), np.count_nonzero(people.numbers >= 0)
        return replace(parts, over=int(over), returning=int(returning), row_squares=int(np.sum(counts**2)))

    def abandon(self) -> None:
        """Closes what is open, after an error."""
        if self._writer is not None:
            self._writer.__exit__(None, None, None)
        self.split.abandon()


def _split_of(piece: Piece) -> NDArray[np.uint64]:
    if piece.split is None:
        raise ValueError("a split needs digests")
    return piece.split
