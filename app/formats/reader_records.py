"""A reader's input and output: the wanted columns, and the features and label that it fills, block by block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

from app.formats import cell_blocks
from app.formats.cell_blocks import Cells
from app.formats.edge_lists import Lists
from app.formats.faults import Faults, Flags, Wanted
from app.formats.readers import reader_of
from app.formats.row_faults import Place, RowFault
from core.contracts.dataset_spec import (
    ClassificationTask,
    Columns,
    DatasetSpec,
    HashedText,
    Interactions,
    LanguageModelTask,
    NodeColumns,
    Tensor,
    Text,
)
from core.contracts.table import CategoryColumn, NumberColumn, TableFeatures
from core.errors import InvalidRequest
from core.parts.columns import ClassCoder, NamesCoder, NumberCoder, UserCoder, comma_number, unusable
from core.parts.nodes import ids_of, kept, number_of, stored_ids, stored_numbers
from core.parts.table_cells import CellCoder, ContentCoder, TextCellsCoder, TextContentCoder

HELD = 2**20  # cells, or characters of texts, that a block holds
TEXTS, WHOLE, NUMBERS, DAYS = {"text"}, {"text", "integer"}, {"integer", "float", "boolean"}, {"day"}
Rows = NDArray[np.int64]  # the numbers of a block's rows in the file, from 1 on, without the header


class Table:
    """One file for a reader: the reader calls `begin` with the file's column names, then `add` for each block of rows.

    Args:
        format: the file's format in error texts.
        file: "file", "holdout_file" or "edges_file": the file in error texts.
        max_unpacked_bytes: the most that a compressed file may claim to unpack to.
        features, label: the wanted columns.
    """

    drops_rows = False  # those that cannot be used
    began = False

    def __init__(
        self, format: str, file: str, max_unpacked_bytes: int, features: Sequence[Wanted], label: Wanted
    ) -> None:
        self.format, self.file, self.max_unpacked_bytes = format, file, max_unpacked_bytes
        self.features, self.label = features, label
        self.wanted = list(dict.fromkeys((*features, label)))
        self.count = self.dropped = 0
        self.faults = Faults()

    @property
    def names(self) -> list[str]:
        """The wanted columns' names, each once."""
        return list(dict.fromkeys(each.name for each in self.wanted))

    def add(self, block: Mapping[str, Cells], rows: Rows) -> None:
        """Adds the wanted columns of some rows."""
        raise NotImplementedError

    def usable_types(self, wanted: Wanted) -> set[str]:
        """Which types a typed format's column may have: text, integer, float, boolean, decimal, day."""
        raise NotImplementedError

    def begin(self, names: Sequence[str]) -> None:
        """Raises InvalidRequest if a name is repeated or a wanted one is missing."""
        self.began = True
        twice = [name for name, times in Counter(names).items() if times > 1]
        if twice:
            raise self.broken(f"column names must be unique; more than once: {_shown(twice)}")
        present = set(names)
        absent = [wanted for wanted in self.wanted if wanted.name not in present]
        if absent:
            errors = [
                {"pointer": each.pointer, "detail": f"there is no column {each.name!r}", "column": each.name}
                for each in absent[:20]
            ]
            message = f"The {self._noun} has no column {absent[0].name!r}; it has {_shown(names)}"
            raise InvalidRequest(message, errors, file=self.file)

    def broken(self, detail: str, rows: Sequence[RowFault] = ()) -> InvalidRequest:
        """An error of the whole file.

        Args:
            detail: quotes nothing of its content but names of columns, and no row's number.
            rows: the first that cannot be read.
        """
        message = f"The {self._noun} cannot be read as {self.format}: {detail}"
        errors = [{"pointer": f"/{self.file}", "detail": detail}, *(fault.entry for fault in rows)]
        return InvalidRequest(message, errors, file=self.file)

    def broken_row(self, number: int, reason: str, place: Place = "row") -> InvalidRequest:
        """An error of the whole file for one row or line of it, such as "is not JSON"."""
        return self.broken(f"a {place} {reason}", [RowFault(f"/{self.file}", number, reason, place)])

    def unsuited(self, wanted: Wanted, detail: str) -> InvalidRequest:
        """An error of a whole column."""
        return InvalidRequest.at(wanted.pointer, f"column {wanted.name!r} {detail}", column=wanted.name, file=self.file)

    def warnings(self) -> list[str]:
        """What was dropped, for the owner alone."""
        return []

    @property
    def _noun(self) -> str:
        return {"file": "data file", "holdout_file": "hold-out file", "edges_file": "file of edges"}[self.file]


@dataclass(frozen=True)
class Taken:
    """Records of a block, in their order: one of `texts` and `matrix`.

    Attributes:
        matrix: (n, d) features, in their original type; or a table's cells, as they are stored.
        contents: (n, d) numbers for digests.
        y: (n,) class indices, or numbers.
        users: each record's user, where users are declared.
    """

    texts: list[str] | None
    matrix: NDArray[Any] | None
    contents: NDArray[Any] | None
    y: NDArray[np.int64] | NDArray[np.float64]
    users: list[str] | None

    def chosen(self, mask: NDArray[np.bool_]) -> Taken:
        """The records where the mask is True."""
        texts, users = (None if each is None else list(compress(each, mask)) for each in (self.texts, self.users))
        matrix, contents = (None if each is None else each[mask] for each in (self.matrix, self.contents))
        return Taken(texts, matrix, contents, self.y[mask], users)


class Records(Table):
    """The records of one file, handed on block by block: features and label. Once a cell cannot be used, nothing is
    handed on, since the file is refused; unless the declaration drops such rows.

    Whether a row is dropped is a function of its own cells and of the declaration.

    Attributes:
        sink: takes each block.
        lists: of nodes, where a file of edges has them.
    """

    def __init__(
        self,
        spec: DatasetSpec,
        file: str,
        max_unpacked_bytes: int,
        sink: Callable[[Taken], None] = lambda _: None,
        lists: Lists | None = None,
    ) -> None:
        if spec.format == "interactions":
            raise ValueError("interactions are read as pairs of ids (app.formats.interactions)")
        self._features = _features(spec)
        # A text that is its own label is read once, as the feature.
        pointer = "/task/prompt" if isinstance(spec.task, LanguageModelTask) else "/task/label"
        label = Wanted(spec.task.label_column, pointer) if spec.task.label_column else self._features[0]
        # The user's column is read after the features, for the data file alone.
        user = spec.privacy.user_column if file == "file" else None
        self._user = Wanted(user, "/privacy/user_column") if user else None
        self._graph = spec.features if isinstance(spec.features, NodeColumns) else None
        self._node, self._named = (
            Wanted(getattr(self._graph, name, ""), f"/features/{name}") for name in ("node", "neighbours")
        )
        self._nodes: list[NDArray[np.int64]] = []  # the numbers of the ids that are there
        self._lists = lists
        id_columns = [] if self._graph is None else [self._node, *([self._named] if lists is None else [])]
        wanted = [*self._features, *id_columns, *([self._user] if self._user else [])]
        super().__init__(spec.format, file, max_unpacked_bytes, wanted, label)
        self.spec, self.sink = spec, sink
        self.drops_rows = spec.wrong_rows == "drop"
        number = reader_of(spec.format).number
        if spec.csv is not None and spec.csv.decimal == ",":
            number = comma_number
        self._number = NumberCoder(number)
        self._coders: list[tuple[CellCoder, ContentCoder | None]] = []
        if isinstance(spec.features, TableFeatures):
            self._coders = [
                (CellCoder(each, number), ContentCoder(each, number) if isinstance(each, CategoryColumn) else None)
                for each in spec.features.columns
            ]
        self._text_coders = (
            [(TextCellsCoder(each), TextContentCoder(each)) for each in spec.features.texts]
            if isinstance(spec.features, TableFeatures)
            else []
        )
        self.classes = ClassCoder(spec.task.classes) if isinstance(spec.task, ClassificationTask) else None
        self.is_text = isinstance(spec.features, HashedText | Text)
        self._has_prompt = isinstance(spec.task, LanguageModelTask) and spec.task.prompt is not None

    def usable_types(self, wanted: Wanted) -> set[str]:
        """See Table."""
        if wanted == self.label and self.label is not self._features[0]:
            if self._has_prompt:
                return TEXTS
            return NUMBERS | TEXTS if self.classes is not None else NUMBERS
        if wanted == self._user or (self._graph and wanted in (self._node, self._named)):
            return WHOLE
        if self.is_text:
            return TEXTS
        numbers = NUMBERS | {"decimal"}
        return numbers | TEXTS | DAYS if isinstance(self.spec.features, TableFeatures) else numbers

    def add(self, block: Mapping[str, Cells], rows: Rows) -> None:
        """Adds the columns of some rows, and hands their records on."""
        wrong = np.zeros(len(rows), dtype=np.bool_)
        texts = matrix = contents = None
        if self.is_text:
            texts = self._texts(self._features[0], block, rows, wrong)
        elif self._coders:
            matrix, contents = self._table(block, rows, wrong)
        else:
            columns = [block[each.name] for each in self._features]
            matrix, flags = cell_blocks.numbers(columns, self._number)
            for place in np.flatnonzero(flags.any(axis=0)).tolist():
                self._note(self._features[place], flags[:, place], rows, wrong, columns[place])
            if self._graph is not None:
                matrix = np.concatenate([matrix, self._ids(self._graph, block, rows, wrong)], axis=1)
            contents = matrix
        y: NDArray[Any] = np.zeros(len(rows))
        if self._has_prompt:
            prompts = self._texts(self.label, block, rows, wrong)
            texts = [prompt + text for prompt, text in zip(prompts, texts or (), strict=True)]
            y = np.array([len(each.encode()) for each in prompts], dtype=np.float64)
        elif self.label is not self._features[0]:
            y = self._labels(block[self.label.name], rows, wrong)
        users = None if self._user is None else self._users(self._user, block[self._user.name], rows, wrong)
        self._hand_on(Taken(texts, matrix, contents, y, users), wrong)

    def add_tensor(self, matrix: NDArray[Any], labels: list[Any], users: list[Any] | None, rows: Rows) -> None:
        """Adds records of an array, (n, d), with their labels, and users where they are declared."""
        wrong = np.zeros(len(rows), dtype=np.bool_)
        array = self._features[0]
        bad = unusable(matrix)
        if bad.any():
            at, _ = np.nonzero(bad)
            flags = np.full(len(at), cell_blocks.FLAGS["not finite in 32 bits"])
            values = matrix[bad]
            self.faults.note(array, flags, rows[at], lambda place: values[place])
            wrong |= bad.any(axis=1)
        y = self._labels(cell_blocks.arrow_or_list(labels), rows, wrong)
        names = None
        if self._user is not None:
            names = self._users(self._user, cell_blocks.arrow_or_list(users or []), rows, wrong)
        self._hand_on(Taken(None, matrix, matrix, y, names), wrong)

    def check(self) -> None:
        """Raises InvalidRequest with columns, counts and rows, if any cell cannot be used."""
        if not self.drops_rows:
            self.faults.refuse(self.file, self.wanted)
        numbers = np.concatenate([np.zeros(0, dtype=np.int64), *self._nodes])
        if twice := len(numbers) - len(np.unique(numbers)):
            detail = f"{twice} rows have the id of another row, and a node has one: join them, or name them apart"
            raise self.unsuited(self._node, detail)
        if self.count == 0:
            raise self.broken("it holds no records" + (" that can be used" if self.dropped else ""))

    def warnings(self) -> list[str]:
        """What was dropped, by column. For the owner alone."""
        if not self.dropped:
            return []
        details = "; ".join(each["detail"] for each in self.faults.details(self.wanted))
        return [f"{self.dropped} rows that cannot be used are left out" + (f": {details}" if details else "")]

    def _hand_on(self, taken: Taken, wrong: NDArray[np.bool_]) -> None:
        if self.drops_rows and wrong.any():
            self.dropped += int(np.count_nonzero(wrong))
            taken = taken.chosen(~wrong)
        if self._graph is not None and taken.matrix is not None:
            self._nodes.append(ids_of(taken.matrix[:, len(self._features) :])[:, 0])
        self.count += len(taken.y)
        if len(taken.y) and (self.drops_rows or not self.faults):
            self.sink(taken)

    def _note(self, column: Wanted, flags: Flags, rows: Rows, wrong: NDArray[np.bool_], values: Cells) -> None:
        self.faults.note(column, flags, rows, cell_blocks.cell_at(values))
        wrong |= flags != 0

    def _texts(self, column: Wanted, block: Mapping[str, Cells], rows: Rows, wrong: NDArray[np.bool_]) -> list[str]:
        values = block[column.name]
        texts, flags = cell_blocks.texts(values)
        self._note(column, flags, rows, wrong, values)
        return texts

    def _users(self, column: Wanted, values: Cells, rows: Rows, wrong: NDArray[np.bool_]) -> list[str]:
        users, flags = cell_blocks.coded(values, UserCoder(), "")
        self._note(column, flags, rows, wrong, values)
        return users

    def _ids(
        self, graph: NodeColumns, block: Mapping[str, Cells], rows: Rows, wrong: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """Each node's number, and those of the first that it names, as they are stored."""
        nodes = self._users(self._node, block[self._node.name], rows, wrong)
        if self._lists is not None:
            own_numbers = np.array([number_of(each) for each in nodes], dtype=np.int64)
            return stored_numbers(np.concatenate([own_numbers[:, None], self._lists.of(own_numbers)], axis=1))
        values = block[self._named.name]
        lists, flags = cell_blocks.coded(values, NamesCoder(), [])
        self._note(self._named, flags, rows, wrong, values)
        numbers = [[number_of(node), *kept(node, each, graph.keep)] for node, each in zip(nodes, lists, strict=True)]
        return stored_ids(numbers, graph.keep)

    def _labels(self, values: Cells, rows: Rows, wrong: NDArray[np.bool_]) -> NDArray[Any]:
        y: NDArray[Any]
        if self.classes is None:
            y, flags = cell_blocks.number_column(values, self._number)
        else:
            y, flags = cell_blocks.coded_numbers(values, self.classes, 0)
        self._note(self.label, flags, rows, wrong, values)
        return y

    def _table(
        self, block: Mapping[str, Cells], rows: Rows, wrong: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """A table's cells as they are stored, and their contents for digests."""
        stored, contents = (np.empty((len(rows), len(self._coders))) for _ in range(2))
        for place, (coder, content) in enumerate(self._coders):
            values = block[coder.column.name]
            if isinstance(coder.column, NumberColumn):
                stored[:, place], flags = cell_blocks.number_column(values, coder, typed=False)
            else:
                codes, flags = cell_blocks.coded_numbers(values, coder, np.nan)
                stored[:, place] = codes
            contents[:, place] = (
                stored[:, place] if content is None else cell_blocks.coded_numbers(values, content, np.nan)[0]
            )
            self._note(self._features[place], flags, rows, wrong, values)
        for place, (texts, hashes) in enumerate(self._text_coders, len(self._coders)):
            values = block[texts.column.name]
            codes_of, flags = cell_blocks.coded(values, texts, texts.nothing)
            hashed, _ = cell_blocks.coded(values, hashes, hashes.nothing)
            stored = np.concatenate([stored, _matrix(codes_of, texts)], axis=1)
            contents = np.concatenate([contents, _matrix(hashed, hashes)], axis=1)
            self._note(self._features[place], flags, rows, wrong, values)
        return stored, contents


def _matrix(codes: list[Any], coder: TextCellsCoder) -> NDArray[np.float64]:
    return np.array(codes, dtype=np.float64).reshape(len(codes), coder.column.cells)


def _features(spec: DatasetSpec) -> list[Wanted]:
    match spec.features:
        case HashedText() | Text():
            return [Wanted(spec.features.column, "/features/column")]
        case Tensor():
            return [Wanted(spec.features.array, "/features/array")]
        case Columns():
            return [Wanted(name, f"/features/columns/{i}") for i, name in enumerate(spec.features.names)]
        case TableFeatures():
            members = (("columns", spec.features.columns), ("texts", spec.features.texts))
            return [Wanted(each.name, f"/features/{kind}/{i}") for kind, some in members for i, each in enumerate(some)]
        case Interactions():
            return []
        case _:
            assert_never(spec.features)


def _shown(names: Sequence[str]) -> str:
    return ", ".join(ascii(name[:60]) for name in names[:20]) + (", …" if len(names) > 20 else "")
