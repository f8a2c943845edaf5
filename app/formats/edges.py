"""A file of edges, two ids a row, as the lists of nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from app.formats import cell_blocks
from app.formats.cell_blocks import Cells
from app.formats.edge_lists import Lists
from app.formats.faults import Wanted
from app.formats.reader_records import WHOLE, Rows, Table
from core.contracts.dataset_spec import DatasetSpec, EdgeColumns
from core.parts.columns import UserCoder
from core.parts.nodes import number_of


class _Number:
    """An id as the number that stands for it."""

    def code(self, cell: Any) -> int:
        """See Coder."""
        return number_of(UserCoder().code(cell))


class Edges(Table):
    """Fills `lists`. A row is dropped for its own cells alone, where the declaration drops such rows."""

    def __init__(self, spec: DatasetSpec, columns: EdgeColumns, max_unpacked_bytes: int, lists: Lists) -> None:
        self._ends = [Wanted(getattr(columns, name), f"/features/edges/{name}") for name in ("source", "target")]
        super().__init__(spec.format, "edges_file", max_unpacked_bytes, self._ends[:1], self._ends[1])
        self.lists, self.drops_rows, self._undirected = lists, spec.wrong_rows == "drop", columns.undirected

    def usable_types(self, wanted: Wanted) -> set[str]:
        """See Table."""
        return WHOLE

    def add(self, block: Mapping[str, Cells], rows: Rows) -> None:
        """See Table."""
        wrong = np.zeros(len(rows), dtype=np.bool_)
        numbers = []
        for end in self._ends:
            values = block[end.name]
            coded, flags = cell_blocks.coded_numbers(values, _Number(), 0)
            self.faults.note(end, flags, rows, cell_blocks.cell_at(values))
            wrong |= flags != 0
            numbers.append(coded.astype(np.int64))
        self.count += len(rows)
        self.dropped += int(np.count_nonzero(wrong))
        source, target = (each[~wrong] for each in numbers)
        self.lists.add(source, target)
        if self._undirected:
            self.lists.add(target, source)

    def check(self) -> None:
        """Raises InvalidRequest with columns, counts and rows, if any cell cannot be used."""
        if not self.drops_rows:
            self.faults.refuse(self.file, self.wanted)

    def warnings(self) -> list[str]:
        """What was dropped, and which ids have no row. For the owner alone, once all nodes are read."""
        left = [f"{self.dropped} edges that cannot be used are left out"] if self.dropped else []
        absent = self.lists.unasked
        return left + ([f"{absent} ids that the edges give lists to are no rows of the nodes' file"] if absent else [])
