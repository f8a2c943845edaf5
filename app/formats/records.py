"""A reader's input and output: the wanted columns, and the features and label that it fills."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

from app.contracts.dataset_spec import (
    ClassificationTask,
    Columns,
    DatasetSpec,
    HashedText,
    Interactions,
    LanguageModelTask,
    NextItemTask,
    RatingTask,
    RegressionTask,
    Tensor,
    Text,
)
from app.contracts.table import TableFeatures
from app.errors import InvalidRequest
from app.formats.columns import (
    Classes,
    Fault,
    Numbers,
    Prompts,
    Texts,
    Unlabelled,
    comma_number,
    fault,
    refuse,
    unusable,
)
from app.formats.readers import reader_of
from app.formats.tables import Cells

HELD = 2**20  # cells, or characters of texts, that a piece holds


@dataclass(frozen=True)
class Wanted:
    """A column (or array) of the file, and where the specification names it."""

    name: str
    pointer: str


class Table:
    """One file for a reader: the reader calls `begin` with the file's column names, then `add` for each record.

    Args:
        format: the file's format in error texts.
        file: "file" or "holdout_file": the file in error texts.
        max_unpacked_bytes: the most that a compressed file may claim to unpack to.
        features, label: the wanted columns.
    """

    def __init__(
        self, format: str, file: str, max_unpacked_bytes: int, features: Sequence[Wanted], label: Wanted
    ) -> None:
        self.format, self.file, self.max_unpacked_bytes = format, file, max_unpacked_bytes
        self.features, self.label = features, label
        self.count = 0

    def add(self, row: Sequence[Any], label: Any) -> None:
        """Adds one record: its feature cells in the specification's order, and its label. None for a missing one."""
        raise NotImplementedError

    def begin(self, names: Sequence[str]) -> None:
        """Raises InvalidRequest if a name is repeated or a wanted one is missing."""
        twice = [name for name, times in Counter(names).items() if times > 1]
        if twice:
            raise self.broken(f"column names must be unique; more than once: {_shown(twice)}")
        there = set(names)
        absent = [wanted for wanted in dict.fromkeys((*self.features, self.label)) if wanted.name not in there]
        if absent:
            errors = [
                {"pointer": each.pointer, "detail": f"there is no column {each.name!r}", "column": each.name}
                for each in absent[:20]
            ]
            message = f"The {self._noun} has no column {absent[0].name!r}; it has {_shown(names)}"
            raise InvalidRequest(message, errors, file=self.file)

    def broken(self, detail: str) -> InvalidRequest:
        """An error of the whole file. `detail` quotes nothing of its content but names of columns."""
        message = f"The {self._noun} cannot be read as {self.format}: {detail}"
        return InvalidRequest(message, [{"pointer": f"/{self.file}", "detail": detail}], file=self.file)

    def unsuited(self, wanted: Wanted, detail: str) -> InvalidRequest:
        """An error of a whole column."""
        return InvalidRequest.at(wanted.pointer, f"column {wanted.name!r} {detail}", column=wanted.name, file=self.file)

    @property
    def _noun(self) -> str:
        return "data file" if self.file == "file" else "hold-out file"


@dataclass(frozen=True)
class Taken:
    """Records as a reader found them, in their order: one of `texts` and `matrix`.

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


class Records(Table):
    """The records of one file, handed on in pieces while it is read: features and label. Counts unusable cells; once
    there is one, nothing is handed on, since the file is refused.

    Attributes:
        sink: takes each piece.
    """

    def __init__(
        self, spec: DatasetSpec, file: str, max_unpacked_bytes: int, sink: Callable[[Taken], None] = lambda _: None
    ) -> None:
        if spec.format == "interactions":
            raise ValueError("interactions are read as pairs of ids (app.formats.interactions)")
        features = _features(spec)
        # A text that is its own label is read once, as the feature.
        pointer = "/task/prompt" if isinstance(spec.task, LanguageModelTask) else "/task/label"
        label = Wanted(spec.task.label_column, pointer) if spec.task.label_column else features[0]
        # The user's column is read after the features, for the data file alone.
        user = spec.privacy.user_column if file == "file" else None
        wanted = [*features, Wanted(user, "/privacy/user_column")] if user else features
        super().__init__(spec.format, file, max_unpacked_bytes, wanted, label)
        self.spec, self.sink = spec, sink
        self._held = 0  # cells or characters since the last piece
        self.users = Texts(user, "/privacy/user_column") if user else None
        names, pointers = [each.name for each in features], [each.pointer for each in features]
        number = reader_of(spec.format).number
        if spec.csv is not None and spec.csv.decimal == ",":
            number = comma_number
        self.cells = Cells(spec.features, number) if isinstance(spec.features, TableFeatures) else None
        self.tensor: NDArray[Any] | None = None  # an NPZ file's features arrive as blocks of an array
        self._bad_numbers = 0  # in its blocks
        self.texts = Texts(names[0], pointers[0]) if isinstance(spec.features, HashedText | Text) else None
        self.numbers = Numbers(names, pointers, number)
        self.labels: Classes | Numbers | Prompts | Unlabelled
        match spec.task:
            case LanguageModelTask():
                self.labels = Prompts(spec.task.prompt, pointer) if spec.task.prompt else Unlabelled()
            case ClassificationTask():
                self.labels = Classes(self.label.name, self.label.pointer, spec.task.classes)
            case RegressionTask() | RatingTask() | NextItemTask():
                self.labels = Numbers([self.label.name], [self.label.pointer], number)
            case _:
                assert_never(spec.task)

    def add(self, row: Sequence[Any], label: Any) -> None:
        """Adds one record's cells; counts unusable ones."""
        self.count += 1
        if self.users is not None:
            *row, user = row
            self.add_user(user)
        (self.texts or self.cells or self.numbers).add(row)
        self.add_label(label)
        self._held += len(row[0] or "") + 1 if self.texts is not None and isinstance(row[0], str) else len(row)
        self._held += len(label) if isinstance(self.labels, Prompts) and isinstance(label, str) else 0
        if self._held >= HELD:
            self.hand_on()

    def add_tensor(self, rows: NDArray[Any]) -> None:
        """Adds records of an array, (n, d); their labels and users were added before."""
        self.tensor = rows
        self._bad_numbers += int(unusable(rows).sum())
        self.count += len(rows)
        self.hand_on()

    def hand_on(self) -> None:
        """Hands the records since the last piece to the sink."""
        self._held = 0
        texts = None if self.texts is None else self.texts.take()
        matrix = contents = None
        if self.cells is not None:
            matrix, contents = self.cells.take()
        elif texts is None:
            matrix = contents = self.numbers.take() if self.tensor is None else self.tensor
        users = None if self.users is None else self.users.take()
        if self._faulty:
            self.labels.take()
            return
        y: NDArray[Any]
        if isinstance(self.labels, Prompts):
            texts, y = self.labels.before(texts or [])
        else:
            y = self.labels.take()
        if len(y):
            self.sink(Taken(texts, matrix, contents, y[:, 0] if y.ndim > 1 else y, users))

    def add_user(self, user: Any) -> None:
        """A whole number equals its text: 7 and "7" are one user."""
        if self.users is not None:
            text = str(user) if isinstance(user, int) and not isinstance(user, bool) else user
            self.users.add((text or None,))

    def add_label(self, label: Any) -> None:
        """Adds one label."""
        self.labels.add((label,) if isinstance(self.labels, Numbers) else label)

    def check(self) -> None:
        """Hands on the last piece. Raises InvalidRequest with columns and counts, if any cell cannot be used."""
        if self.count == 0:
            raise self.broken("it holds no records")
        refuse(self._faults(), self.file)
        if self.tensor is None:
            self.hand_on()

    @property
    def _faulty(self) -> bool:
        """True if the records that were handed on have an unusable cell: the file will be refused."""
        features = self.texts or self.cells or self.numbers
        return features.faulty or self.labels.faulty or self._bad_numbers > 0 or (self.users or features).faulty

    def _faults(self) -> list[Fault]:
        users = self.users.faults() if self.users else []
        return [*self._feature_faults(), *self.labels.faults(), *users]

    def _feature_faults(self) -> list[Fault]:
        if self.tensor is not None:
            name = self.features[0]
            return fault(name.pointer, name.name, {"not finite in 32 bits": self._bad_numbers})
        return (self.texts or self.cells or self.numbers).faults()


def _features(spec: DatasetSpec) -> list[Wanted]:
    match spec.features:
        case HashedText() | Text():
            return [Wanted(spec.features.column, "/features/column")]
        case Tensor():
            return [Wanted(spec.features.array, "/features/array")]
        case Columns() | TableFeatures():
            return [Wanted(name, f"/features/columns/{i}") for i, name in enumerate(spec.features.names)]
        case Interactions():
            return []
        case _:
            assert_never(spec.features)


def _shown(names: Sequence[str]) -> str:
    return ", ".join(ascii(name[:60]) for name in names[:20]) + (", …" if len(names) > 20 else "")
