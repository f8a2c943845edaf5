"""Interaction tables: users, items, and ratings or times. Ids become rows of public lists, declared beforehand.

    inter     RecBole's: tab-separated, a header of name:type, no quoting
    dat       MovieLens's: user::item::rating::timestamp, no header
    csv, tsv  one header row
    parquet   ids as texts or whole numbers

For ratings no time is read, for sequences no rating, and for neither any other column.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Mapping
from itertools import compress
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

from app.formats import csv_file, parquet_file
from app.formats.arrow_batches import MOST_ROWS
from app.formats.cell_blocks import FLAGS, Cells, arrow_or_list, cell_at, coded, number_column
from app.formats.faults import Flags, Wanted
from app.formats.reader_records import WHOLE, Rows, Table
from app.formats.row_faults import RowFault
from app.formats.unpacking import opened
from core.contracts.dataset_spec import Interactions, NextItemTask, RatingTask
from core.contracts.declared_ids import Ids
from core.parts.columns import Coder, NumberCoder, text_number
from core.parts.id_rows import IdCoder
from core.parts.sealed import Named
from core.parts.stored_records import Pairs, StoredPart

DAT_COLUMNS = ("user_id", "item_id", "rating", "timestamp")
MAX_LINE_BYTES = 1 << 20
INTER_NUMBERS, INTER_IDS = ("float",), ("token",)


class Interacted(Table):
    """Rows with a user, an item and a number. A row with an undeclared id is refused, or dropped.

    Args:
        task: names the columns.
        label: the column of the number.
    """

    def __init__(
        self, task: RatingTask | NextItemTask, features: Interactions, label: str, file: str, max_bytes: int
    ) -> None:
        wanted = [Wanted(task.user, "/task/user"), Wanted(task.item, "/task/item")]
        kind = "rating" if isinstance(task, RatingTask) else "time"
        super().__init__(features.layout, file, max_bytes, wanted, Wanted(label, f"/task/{kind}"))
        self.layout = features.layout
        self._drops_unknown = features.unknown == "drop"
        self._number = NumberCoder(float if features.layout == "parquet" else text_number)

    def usable_types(self, wanted: Wanted) -> set[str]:
        """See Table."""
        return {"integer", "float"} if wanted == self.label else WHOLE

    def ids(self, wanted: Wanted, coder: Coder, block: Mapping[str, Cells], rows: Rows) -> tuple[list[Any], Flags]:
        """The codes of a column of ids; None, and noted, where there is none."""
        cells = block[wanted.name]
        codes, flags = coded(cells, coder, None)
        noted = np.where(flags == FLAGS["not declared"], 0, flags) if self._drops_unknown else flags
        self.faults.note(wanted, noted, rows, cell_at(cells))
        return codes, flags

    def numbers(self, block: Mapping[str, Cells], rows: Rows, stays: NDArray[np.bool_]) -> NDArray[np.float64]:
        """The numbers of the rows that are kept."""
        self.dropped += int(np.count_nonzero(~stays))
        cells = block[self.label.name]
        values, flags = number_column(cells, self._number)
        self.faults.note(self.label, np.where(stays, flags, 0), rows, cell_at(cells))
        return values[stays]

    def check(self) -> None:
        """Raises InvalidRequest with columns, counts and rows, if any cell cannot be used."""
        self.faults.refuse(self.file, self.wanted)


class Ratings(Interacted):
    """The ratings of one file.

    Memory: 8 bytes of indices, 8 of the rating and 16 of references a record, and each distinct id once.
    """

    def __init__(self, task: RatingTask, features: Interactions, users: Ids, file: str, max_bytes: int) -> None:
        super().__init__(task, features, task.rating, file, max_bytes)
        self._scale = task.scale
        self._coders = (IdCoder(users), IdCoder(features.items))
        self._sizes = (users.rows, features.items.rows)
        self._rows = (array("i"), array("i"))
        self._texts: tuple[list[str], list[str]] = ([], [])
        self._distinct: dict[str, str] = {}
        self._ratings = array("d")

    def add(self, block: Mapping[str, Cells], rows: Rows) -> None:
        """Adds ratings."""
        coded_ids = [self.ids(*each, block, rows) for each in zip(self.features, self._coders, strict=True)]
        stays = (coded_ids[0][1] == 0) & (coded_ids[1][1] == 0)
        for (codes, _), indices, texts in zip(coded_ids, self._rows, self._texts, strict=True):
            for index, text in compress(codes, stays):
                indices.append(index)
                texts.append(self._distinct.setdefault(text, text))
        ratings = self.numbers(block, rows, stays)
        self.count += len(ratings)
        low, high = self._scale
        flags = np.where((ratings < low) | (ratings > high), FLAGS["outside the declared scale"], np.int8(0))
        self.faults.note(self.label, flags, rows[stays], lambda place: ratings[place])
        self._ratings.frombytes(ratings.tobytes())

    def check(self) -> None:
        """See Interacted."""
        super().check()
        if self.count == 0:
            raise self.broken("it holds no records" + (" with declared ids" if self.dropped else ""))

    def part(self) -> StoredPart:
        """The records, ready to be stored."""
        users, items = (np.frombuffer(rows, dtype=np.int32) for rows in self._rows)
        return StoredPart(x=Pairs(users, items, self._sizes), y=np.frombuffer(self._ratings))

    def contents(self) -> Iterator[bytes]:
        """The content of each rating's digest: the ids as texts and the rating, in any file format."""
        for user, item, rating in zip(*self._texts, self._ratings, strict=True):
            one, other = user.encode(), item.encode()
            yield b"i" + struct.pack("<QQ", len(one), len(other)) + one + other + struct.pack("<d", rating + 0.0)


def read(path: Named, table: Interacted) -> None:
    """Reads an interaction table of any supported format."""
    match table.layout:
        case "parquet":
            parquet_file.read(path, table)
        case "dat":
            _read_dat(path, table)
        case "inter":
            csv_file.read(path, table, csv_file.Dialect("\t", quotes=False, header=_untyped))
        case "tsv":
            csv_file.read(path, table, csv_file.Dialect("\t"))
        case "csv":
            csv_file.read(path, table)
        case _:
            assert_never(table.layout)


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


def _read_dat(path: Named, table: Table) -> None:
    table.begin(DAT_COLUMNS)
    places = {name: DAT_COLUMNS.index(name) for name in table.names}
    wrong, first, number = 0, 0, 0
    block, rows = list[list[str]](), list[int]()

    def hand_on() -> None:
        columns = {name: arrow_or_list([cells[place] for cells in block]) for name, place in places.items()}
        table.add(columns, np.array(rows))
        block.clear()
        rows.clear()

    with opened(path, table) as file:
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise table.broken_row(number, f"is longer than {MAX_LINE_BYTES} bytes", "line")
            cells = line.rstrip(b"\r\n").decode(errors="surrogateescape").split("::")
            if len(cells) in (len(DAT_COLUMNS) - 1, len(DAT_COLUMNS)) and max(places.values()) < len(cells):
                block.append(cells)
                rows.append(number)
                if len(block) >= MOST_ROWS:
                    hand_on()
            elif line.strip():
                wrong += 1
                first = first or number
    if block:
        hand_on()
    if wrong:
        form = "user::item::rating or user::item::rating::timestamp"
        fault = RowFault(f"/{table.file}", first, f"is not {form}", "line")
        raise table.broken(f"{wrong} lines are not {form}; the first such line follows", [fault])
