"""Turns stored parts into records: loads them by hash and checks them against the data set's public shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray

from core.errors import PrivacyError
from core.parts.damage import DataDamagedError
from core.parts.layout import Layout
from core.parts.part_files import load_part, open_part
from core.parts.part_reader import PartFile
from core.parts.stored_records import Csr, Features, Pairs, Sequences, StoredPart, Texts
from core.privacy.mechanism import MechanismConfig
from worker.data.joined import AnyPart, Loaded, Rows
from worker.data.mapped import MappedDense, MappedRecords
from worker.data.ratings import RatingRecords
from worker.data.record_units import Users
from worker.data.records import DenseRecords, Records, SparseRecords
from worker.data.secret_slots import Block
from worker.data.sequence_records import SequenceRecords
from worker.messages import Part, Shape


@dataclass(frozen=True)
class MappedPart:
    """A part that stays on disk; see Rows.

    Attributes:
        file: the part.
        declared: checks records that were read from it, and makes their declared features.
    """

    file: PartFile
    declared: Callable[[StoredPart], StoredPart]

    @cached_property
    def layout(self) -> Layout:
        """Of the declared features."""
        return Layout.of(self.rows(np.empty(0, dtype=np.int64)))

    def __len__(self) -> int:
        return len(self.file)

    def rows(self, numbers: NDArray[np.int64]) -> StoredPart:
        """See PartFile.rows."""
        return self.declared(self.file.rows(numbers))

    def announce(self, numbers: NDArray[np.int64]) -> None:
        """See PartFile.announce."""
        self.file.announce(numbers)

    def column(self, name: str) -> NDArray[Any]:
        """See PartFile.column."""
        return self.file.column(name)


def open_stored(
    part: Part,
    shape: Shape,
    as_declared: Callable[[StoredPart], StoredPart] = lambda stored: stored,
    *,
    again: bool = False,
) -> AnyPart:
    """Opens one stored part, to be read by passes; a part of before as `load_stored` loads it. Arguments are the same.

    Args:
        again: see PartFile.

    Raises:
        DataDamagedError: a file is missing, or the index is not the registered one.
    """
    file = open_part(part.path, part.sha256, part.key, again=again)
    if file is None:
        return load_stored(part, shape, as_declared)

    def declared(stored: StoredPart) -> StoredPart:
        part = as_declared(stored)
        check(part, shape)
        return part

    return MappedPart(file, declared)


def load_stored(
    part: Part, shape: Shape, as_declared: Callable[[StoredPart], StoredPart] = lambda stored: stored
) -> StoredPart:
    """Loads one stored part.

    Its number of records is private and is not compared with anything.

    Args:
        part: path, SHA-256 and data key.
        shape: the data set's public sizes.
        as_declared: makes the declared features of a table's cells (core.parts.table_cells.scaled).

    Raises:
        DataDamagedError: the file is missing, differs from the registered one, or does not have this shape.
    """
    stored = as_declared(load_part(part.path, part.sha256, part.key))
    check(stored, shape)
    return stored


def records_of(stored: AnyPart) -> Records:
    """A part as records of its kind."""
    return _in_memory(stored) if isinstance(stored, StoredPart) else _mapped(stored)


def _mapped(part: Rows) -> Records:
    match part.layout.kind:
        case "dense":
            return MappedDense(part, _in_memory)
        case "texts":
            raise PrivacyError("training on texts needs an extractor")
        case "sparse" | "pairs" | "sequences":
            return MappedRecords(part, _in_memory)


def _in_memory(stored: StoredPart) -> Any:
    """Records in memory."""
    labels = torch.from_numpy(stored.y)
    if isinstance(stored.x, Texts):
        raise PrivacyError("training on texts needs an extractor")
    if isinstance(stored.x, Pairs):
        users, items = (torch.from_numpy(rows.astype(np.int64)) for rows in (stored.x.users, stored.x.items))
        return RatingRecords(users, items, labels)
    if isinstance(stored.x, Sequences):
        return SequenceRecords(stored.x.items, np.append(0, stored.x.ends)[:-1], stored.x.ends, labels)
    if isinstance(stored.x, Csr):
        matrix = scipy.sparse.csr_matrix((stored.x.data, stored.x.indices, stored.x.indptr), shape=stored.x.shape)
        return SparseRecords(matrix, labels)
    return DenseRecords(torch.from_numpy(stored.x), labels)


def users_of(stored: AnyPart, mechanism: MechanismConfig | None) -> Users | None:
    """The users of a part's records, if users are the protected unit. Of a part on disk it reads all chunks, and keeps
    numbers of a few bytes a record; where a record is a whole user, nothing.

    Raises:
        PrivacyError: the mechanism protects another unit than the data set's, or fewer records per user than the part
            has.
    """
    layout = Layout.of(stored) if isinstance(stored, StoredPart) else stored.layout
    if mechanism is not None and (mechanism.unit == "user") != layout.users:
        raise PrivacyError("the mechanism protects another unit than the data set's")
    if isinstance(stored, StoredPart):
        numbers = stored.user
    else:  # a sequence on disk is all of its user's records
        numbers = stored.column("user") if layout.users and layout.kind != "sequences" else None
    if numbers is None:
        return None
    return Users(numbers, mechanism.training.records_per_unit if mechanism else len(numbers))


def block_of(stored: AnyPart, rows: int | None) -> Block:
    """A part's share of a full batch: in the slots that it was stored with, if it was stored in their order.

    Args:
        rows: what its declaration states.
    """
    part = Loaded(stored) if isinstance(stored, StoredPart) else stored
    slots = part.layout.slots
    return Block(len(part), rows, None) if slots is None else Block(len(part), slots, partial(_slots_of, part, slots))


def _slots_of(part: Rows, slots: int) -> NDArray[np.int64]:
    """The slots of a part's records. Of a part on disk it reads all chunks.

    Raises:
        DataDamagedError: they do not ascend, or are not the part's.
    """
    numbers = part.column("slot")
    if not (_within(numbers, slots) and bool((np.diff(numbers) > 0).all())):
        raise DataDamagedError("the records of a stored part are not in the order of its slots")
    return numbers


def check(stored: StoredPart, shape: Shape) -> None:
    """Raises DataDamagedError if a part's columns or labels do not fit the data set."""
    records, features = stored.shape
    classes = shape.outputs > 1
    fits = (
        stored.sparse == shape.sparse
        and features == shape.features
        and len(stored.y) == records
        and (stored.user is None or (stored.user.dtype == np.int64 and stored.user.shape == stored.y.shape))
        and stored.y.dtype == (np.int64 if classes else np.float64)
        and _declared(stored.x)
        and not (classes and records and (stored.y.min() < 0 or stored.y.max() >= shape.outputs))
    )
    if not fits:
        raise DataDamagedError("a stored part of the data set does not have the data set's shape")


def _declared(x: Features) -> bool:
    """Returns True if all user and item rows are in the declared lists."""
    if isinstance(x, Pairs):
        same = len(x.users) == len(x.items)
        return same and _within(x.users, x.sizes[0]) and _within(x.items, x.sizes[1])
    if isinstance(x, Sequences):
        lengths = np.diff(x.ends, prepend=0)
        return lengths.sum() == len(x.items) and _within(lengths, len(x.items) + 1) and _within(x.items, x.size)
    return True


def _within(rows: NDArray[Any], size: int) -> bool:
    return not len(rows) or bool(rows.min() >= 0 and rows.max() < size)
