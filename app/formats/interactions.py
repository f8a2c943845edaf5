"""Interaction tables: users, items, and ratings or times. Ids become rows of public lists, declared beforehand.

    inter     RecBole's: tab-separated, a header of name:type, no quoting
    dat       MovieLens's: user::item::rating::timestamp, no header
    csv, tsv  one header row
    parquet   ids as texts or whole numbers

For ratings no time is read, for sequences no rating, and for neither any other column.
"""

from __future__ import annotations

import csv
import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.contracts.dataset_spec import DatasetSpec, Interactions, NextItemTask, RatingTask
from app.contracts.declared_ids import Ids
from app.errors import InvalidRequest
from app.formats import csv_file
from app.formats.columns import Fault, Numbers, fault, refuse, text_number
from app.formats.ids import IdColumn
from app.formats.records import Table, Wanted
from app.formats.sealed import Named
from app.formats.sequences import History
from app.formats.stored import Pairs, StoredPart
from app.formats.unpacking import opened

DAT_COLUMNS = ("user_id", "item_id", "rating", "timestamp")
MAX_LINE_BYTES = 1 << 20
INTER_NUMBERS, INTER_IDS = ("float",), ("token",)


class Ratings(Table):
    """The ratings of one file, filled by a reader like any other records.

    Memory: 8 bytes of indices, 8 of the rating and 16 of references a record, and each distinct id once.
    """

    def __init__(self, task: RatingTask, features: Interactions, users: Ids, file: str, max_bytes: int) -> None:
        wanted = [Wanted(task.user, "/task/user"), Wanted(task.item, "/task/item")]
        super().__init__(features.layout, file, max_bytes, wanted, Wanted(task.rating, "/task/rating"))
        self.task, self.layout = task, features.layout
        self.dropped = 0
        drop = features.unknown == "drop"
        self._columns = (
            IdColumn(task.user, "/task/user", users, drop),
            IdColumn(task.item, "/task/item", features.items, drop),
        )
        self._sizes = (users.rows, features.items.rows)
        self._rows = (array("i"), array("i"))
        self._texts: tuple[list[str], list[str]] = ([], [])
        self._distinct: dict[str, str] = {}
        number = float if features.layout == "parquet" else text_number
        self._ratings = Numbers([task.rating], ["/task/rating"], number)

    def add(self, row: Sequence[Any], label: Any) -> None:
        """Adds one rating; counts unusable cells."""
        found = [column.find(cell) for column, cell in zip(self._columns, row, strict=True)]
        if found[0] is None or found[1] is None:
            self.dropped += 1
            return
        self.count += 1
        for (index, text), rows, texts in zip((found[0], found[1]), self._rows, self._texts, strict=True):
            rows.append(index)
            texts.append(self._distinct.setdefault(text, text))
        self._ratings.add((label,))

    def check(self) -> None:
        """Raises InvalidRequest with columns and counts, if any cell cannot be used."""
        refuse([*self._columns[0].faults(), *self._columns[1].faults(), *self._rating_faults()], self.file)
        if self.count == 0:
            raise self.broken("it holds no records" + (" with declared ids" if self.dropped else ""))

    def part(self) -> StoredPart:
        """The records, ready to be stored."""
        users, items = (np.frombuffer(rows, dtype=np.int32) for rows in self._rows)
        return StoredPart(x=Pairs(users, items, self._sizes), y=self.targets())

    def targets(self) -> NDArray[np.float64]:
        """The ratings, in the order of the records."""
        return self._ratings.values()[:, 0]

    def contents(self) -> Iterator[bytes]:
        """The content of each rating's digest: the ids as texts and the rating, in any file format."""
        for user, item, rating in zip(*self._texts, self.targets().tolist(), strict=True):
            one, other = user.encode(), item.encode()
            yield b"i" + struct.pack("<QQ", len(one), len(other)) + one + other + struct.pack("<d", rating + 0.0)

    def _rating_faults(self) -> list[Fault]:
        if found := self._ratings.faults():
            return found
        low, high = self.task.scale
        ratings = self.targets()
        outside = int(np.count_nonzero((ratings < low) | (ratings > high)))
        return fault("/task/rating", self.task.rating, {"outside the declared scale": outside})


def read(path: Named, records: Ratings | History) -> None:
    """Reads an interaction table of any supported format."""
    if records.layout == "parquet":
        from app.formats import parquet_file  # noqa: PLC0415 - pyarrow, for Parquet alone

        parquet_file.read_rows(path, records)
    elif records.layout == "dat":
        _read_dat(path, records)
    elif records.layout == "inter":
        csv_file.read(path, records, header=_untyped, delimiter="\t", quoting=csv.QUOTE_NONE)
    else:
        csv_file.read(path, records, delimiter="\t" if records.layout == "tsv" else ",")


def _untyped(header: list[str], table: Table) -> list[str]:
    """RecBole's name:type as names; ids must be tokens, and a rating or a time a float."""
    typed = [name.rpartition(":") for name in header]
    if not all(name and type_ for name, _, type_ in typed):
        raise table.broken("its first line must name each column as name:type")
    types = {name: type_ for name, _, type_ in typed}
    for wanted in (*table.features, table.label):
        right = INTER_NUMBERS if wanted == table.label else INTER_IDS
        if types.get(wanted.name, right[0]) not in right:
            raise table.unsuited(wanted, f"must be of type {right[0]!r} here")
    return [name for name, _, _ in typed]


def _read_dat(path: Named, records: Table) -> None:
    records.begin(DAT_COLUMNS)
    places = [DAT_COLUMNS.index(each.name) for each in (*records.features, records.label)]
    wrong, first, number = 0, 0, 0
    with opened(path, records) as file:
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise records.broken(f"line {number} is longer than {MAX_LINE_BYTES} bytes")
            cells = line.rstrip(b"\r\n").decode(errors="surrogateescape").split("::")
            if len(cells) in (len(DAT_COLUMNS) - 1, len(DAT_COLUMNS)) and max(places) < len(cells):
                user, item, label = (cells[place] for place in places)
                records.add((user, item), label)
            elif line.strip():
                wrong += 1
                first = first or number
    if wrong:
        raise records.broken(
            f"{wrong} lines are not user::item::rating or user::item::rating::timestamp; the first such line is {first}"
        )


def new_records(spec: DatasetSpec, file: str, max_unpacked_bytes: int) -> Ratings | History:
    """Raises InvalidRequest if the specification does not describe interactions."""
    task, features = spec.task, spec.features
    if isinstance(features, Interactions):
        if isinstance(task, NextItemTask):
            return History(task, features, file, max_unpacked_bytes)
        if isinstance(task, RatingTask) and features.users is not None:
            return Ratings(task, features, features.users, file, max_unpacked_bytes)
    raise InvalidRequest.at("/task", "an interaction table needs a task of kind 'rating' or 'next_item'")
