"""The one release of a statistics job: integer sums over all slots, and the noise that was charged for.

A record's part is a function of its own cells; integers add up the same in every order and place. So the sums need no
injection into slots. Every pass reads and computes on as many rows, of which those without a record are masked: how
many records there are cuts and sizes no array.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.contracts.table import CELL_VALUES
from core.errors import PrivacyError
from core.parts.stored_records import StoredPart
from core.privacy.mechanism import MechanismConfig
from core.statistics.plans import Asked, CategoriesPlan
from core.statistics.statistics_columns import Cells, Integers
from core.statistics.statistics_passes import Passes
from worker.data.joined import AnyPart, Loaded, Rows
from worker.statistics.base import Noise
from worker.statistics.frequent_values import frequent_values
from worker.statistics.slot_columns import fill, reserve

NOBODYS = b"of no job: a release of nothing."  # a key of 32 bytes


@dataclass(frozen=True)
class Release:
    """What leaves: for each query its noisy sums, float64, in integers of 1/unit, and the std of the noise.

    Attributes:
        stds: in units of 1; 0 on public data without privacy.
    """

    noisy: tuple[Tensor, ...]
    stds: tuple[float, ...]

    @property
    def state(self) -> dict[str, Tensor]:
        """What the digest of the job's one step is over."""
        return {f"query.{number}": noisy for number, noisy in enumerate(self.noisy)}


def private_sums(
    question: Asked, part: AnyPart, slots: int, width: int, between: Callable[[], None] = lambda: None
) -> list[Integers]:
    """The sums of each query over a part's records: exact, and private.

    Args:
        slots: N. So many rows are passed over, in passes of a public number of rows.
        width: how many numbers of a record the declaration names; 0: labels alone are read.
        between: called before each pass; it may raise to stop.

    Raises:
        PrivacyError: the part has more records than slots, or its records are no rows of `width` numbers.
    """
    rows: Rows = Loaded(part) if isinstance(part, StoredPart) else part
    if len(rows) > slots:
        raise PrivacyError("a part has more records than slots")
    records = _Records(rows, slots, width)
    passes = Passes.over(slots, width)
    totals = question.nothing(passes.slots)
    for number in range(passes.count):
        between()
        start = number * passes.rows
        totals = question.added(totals, records.cells(start, passes.rows), start)
    return totals


def rehearse(question: Asked, passes: Passes, mechanism: MechanismConfig | None, slots: int) -> Release:
    """A whole release of no records, under a key that no job has. It takes at least the memory that the real one takes
    of so many slots, so that an attempt which lacks it ends before it has read a record."""
    columns = reserve(passes.width, slots, mechanism)
    empty = Cells(
        np.zeros((passes.rows, passes.width), dtype=np.float32),
        np.zeros(passes.rows, dtype=np.float64),
        np.zeros(passes.rows, dtype=np.bool_),
    )
    totals = question.added(question.nothing(passes.slots), empty, 0)
    for plan, total in zip(question.plans, totals, strict=True):
        if isinstance(plan, CategoriesPlan):
            total[:, 0] = np.arange(1, len(total) + 1) % CELL_VALUES  # as many values as there can be
    released = release(question, totals, mechanism, NOBODYS, rehearsal=True)
    del columns
    return released


class _Records:
    """A part's records by their numbers, as rows of a pass."""

    def __init__(self, rows: Rows, slots: int, width: int) -> None:
        self._rows, self._width = rows, width
        self._labels: NDArray[np.float64] | None = None
        if width == 0:  # no query reads features without a name: their sizes may not be public
            self._labels = np.ones(slots)
            fill(rows, "y", self._labels)

    def cells(self, start: int, size: int) -> Cells:
        """The records from `start` on in `size` rows. A row without one reads another record, which is not present: a
        pass reads as many records whatever n is."""
        count, numbers = len(self._rows), np.arange(start, start + size, dtype=np.int64)
        if count == 0:
            return Cells(
                np.zeros((size, self._width), dtype=np.float32), np.zeros(size), np.zeros(size, dtype=np.bool_)
            )
        is_present, cells_read = numbers < count, numbers % count
        if self._labels is not None:
            return Cells(np.zeros((size, 0), dtype=np.float32), self._labels[cells_read], is_present)
        taken = self._rows.rows(cells_read)
        if not isinstance(taken.x, np.ndarray) or taken.x.shape[1:] != (self._width,):
            raise PrivacyError("the part's records are not those that were declared")
        return Cells(taken.x, taken.y.astype(np.float64), is_present)


def release(
    question: Asked,
    sums: list[Integers],
    mechanism: MechanismConfig | None,
    key: bytes | None,
    *,
    rehearsal: bool = False,
) -> Release:
    """Adds to each query's sums the noise of its share; the result is bit for bit the same for the same sums and key.

    Args:
        mechanism: the stored one; None on public data without privacy.
        key: 32 bytes of purpose "release".
        rehearsal: no value of a query of categories is below its threshold.

    Raises:
        PrivacyError: the mechanism has other queries, or a sum is beyond 2⁵³.
    """
    stds = (0.0,) * len(sums) if mechanism is None else mechanism.noise_stds()
    if len(stds) != len(sums):
        raise PrivacyError("the job's queries and its stored mechanism differ")
    noisy = list[Tensor]()
    for number, (private, std, plan) in enumerate(zip(sums, stds, question.plans, strict=True)):
        if len(private) and int(np.abs(private).max()) > 2**53:
            raise PrivacyError("a sum is beyond what float64 holds exactly")
        if mechanism is not None and key is None:
            raise PrivacyError("noise needs a key")
        if isinstance(plan, CategoriesPlan):
            own_key = None if mechanism is None else key
            noisy.append(frequent_values(plan, private, std, own_key, number, rehearsal=rehearsal))
            continue
        exact = torch.from_numpy(private.astype(np.float64))
        if key is not None and mechanism is not None:
            exact = Noise(key, number).add(exact, std * plan.unit)
        noisy.append(exact)
    return Release(tuple(noisy), stds)
