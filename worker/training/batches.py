"""The records that a job trains on and is scored on, and the rows that they take in each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from core.errors import PrivacyError
from worker.data.mapped import MappedRecords
from worker.data.passes import Batch, Occupants
from worker.data.record_units import Users
from worker.data.records import Records, SparseRecords
from worker.data.secret_slots import TOO_MANY, Block, Slotted, joined_slots
from worker.messages import Keys
from worker.metrics.scores import Groups
from worker.noise.secret_places import TRAIN, WHOLE_DATA, RandomOrder
from worker.statistics.base import Prepare
from worker.training.canaries import Canaries
from worker.training.plan import Plan, Randomness
from worker.training.side import PublicSide


@dataclass(frozen=True)
class TrainingData:
    """What an attempt has read.

    Attributes:
        train: the training records (private).
        holdout: the hold-out records, private unless `holdout_public`; None: there are none.
        holdout_public: scores on the hold-out are exact.
        users: each record's user, if users are the protected unit; None: each record is its own unit.
        blocks: by part (worker.noise.secret_places), the stored parts that `train` and `holdout` were joined from.
        side: public side information, for an optimizer that uses it.
        canaries: of an audited job: units after all of the records'.
    """

    train: Records
    holdout: Records | None
    holdout_public: bool
    users: Users | None = None
    blocks: Mapping[int, Sequence[Block]] = field(default_factory=dict)
    side: PublicSide | None = None
    canaries: Canaries | None = None


class _Draw(NamedTuple):
    """A step's rows, and its canaries."""

    batch: Slotted[Any]
    canaries: NDArray[np.int64]


class _Ahead(NamedTuple):
    """The draw of a step that has not begun, on another thread."""

    step: int
    randomness: Randomness
    draw: Future[_Draw | None]


@cache
def _drawing() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="draw")


class Batches:
    """The job's records, as its statistics have prepared them, and each step's rows of them.

    Args:
        keys: the job's first ones, which order whole parts.

    Attributes:
        train, holdout: the prepared records.
        private_passes: how many this rank's batches had.

    Raises:
        PrivacyError: there are more records or units than slots.
    """

    def __init__(self, plan: Plan, data: TrainingData, keys: Keys) -> None:
        self._plan, self._data = plan, data
        self._private_units = len(data.train if data.users is None else data.users)
        limit = None if plan.slots is None else plan.slots.train
        if limit is not None and (self._private_units > limit.units or len(data.train) > limit.rows):
            raise PrivacyError(TOO_MANY)
        # The units that the sampler draws from, whether or not a record is there.
        self._slots = self._private_units if limit is None else limit.units
        self.holdout = data.holdout
        self.private_passes = 0
        self._ahead: _Ahead | None = None
        self._prepares: list[Prepare] = []  # by these, one after the other
        self.rekey(keys)

    @property
    def units(self) -> int:
        """How many numbers the sampler draws from: the slots, then the canaries."""
        canaries = self._data.canaries
        return self._slots + (canaries.units if canaries is not None else 0)

    @cached_property
    def groups(self) -> Groups:
        """The groups that are scored; those by frequency are counted once, in public records as they were read."""
        return self._plan.scores.groups_in(self._plan.model, self._data.train, self._data.holdout)

    def rekey(self, keys: Keys) -> None:
        """Orders whole parts by these keys from now on, and prepares the training records anew."""
        self._order = self._plan.order(keys)
        self._injections: dict[int, Occupants] = {}  # of whole parts: drawn once, and not for each score
        self._use(self._data.train)
        for transform in self._prepares:
            self._use(transform(self.train))

    def prepare(self, transform: Prepare) -> None:
        """Transforms all records, canaries included, by a released statistic."""
        self.holdout = None if self.holdout is None else transform(self.holdout)
        self._prepares.append(transform)
        self._use(transform(self.train))
        if self._data.canaries is not None:
            self._data.canaries.prepare(transform)

    def sample(self, step: int, randomness: Randomness) -> tuple[Batch[Any], NDArray[np.int64] | None]:
        """The step's rows, and its canaries; None: all of them. A step without records is still a step.

        Coins are tossed for all slots, so that no draw takes as long as there are records. Another thread tosses the
        next step's meanwhile, where the job has several: its keys and its number decide them, and no state. The numbers
        from that of the units on belong to no record, and those from that of the slots on to canaries.
        """
        taken = self._drawn_before(step, randomness)
        if taken is None:
            self.private_passes += self._passes(self._full_rows)
            return self._everything(), None
        if step < self._plan.steps and torch.get_num_threads() > 1:
            later = _drawing().submit(self._draw, step + 1, randomness)
            self._ahead = _Ahead(step + 1, randomness, later)
        batch, canaries = taken
        self.private_passes += self._passes(len(batch))
        return batch, canaries

    def _drawn_before(self, step: int, randomness: Randomness) -> _Draw | None:
        """The step's draw: made while the step before it was computed, or now. A draw of other keys is dropped."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.step == step and ahead.randomness is randomness:
            return ahead.draw.result()
        return self._draw(step, randomness)

    def _draw(self, step: int, randomness: Randomness) -> _Draw | None:
        """A function of the step, its keys and the records alone; None: all of them."""
        drawn = randomness.sampler.draw(step)
        if drawn is None:
            return None
        inside, present = np.searchsorted(drawn, [self._slots, self._private_units])
        users = self._data.users
        numbers = drawn[:present] if users is None else users.records(drawn[:present])
        batch = self._in_rows(step, numbers, self._plan.rows_of(int(inside)), randomness.order)
        return _Draw(batch, drawn[inside:] - self._slots)

    def whole(self, records: Any, part: int) -> Slotted[Any]:
        """All records of a part: private ones in their slots, for all steps and scores of the job.

        Slots are those that the part is stored in the order of, or the job's own secret ones.
        """
        slots, order = self._plan.slots_of(part), self._order
        if order is None:
            return Slotted(records, np.arange(len(records)))
        if slots is None:
            raise PrivacyError("nothing bounds the records of this part: its owner must state slots")
        if len(records) > slots.rows:
            raise PrivacyError(TOO_MANY)
        if part not in self._injections:
            self._injections[part] = self._injection(records, part, slots.rows, order)
        return Slotted(records, self._injections[part])

    def _injection(self, records: Any, part: int, rows: int, order: RandomOrder) -> Occupants:
        blocks = self._data.blocks.get(part, ())
        if all(each.slots is None for each in blocks):
            return Slotted.injected(records, order.of(WHOLE_DATA, rows, part), rows).occupants
        return joined_slots(blocks, lambda count, block: order.of(WHOLE_DATA, count, part, block))

    def _in_rows(
        self, step: int, numbers: NDArray[np.int64], rows: int | None, order: RandomOrder | None
    ) -> Slotted[Any]:
        """This rank's rows of a step that takes these records; of public ones in their order."""
        plan = self._plan
        if order is None or rows is None:
            batch = Slotted(self._drawn, numbers)
        else:
            batch = Slotted.injected(self._drawn, order.of(step, max(rows, len(numbers))), rows, numbers)
        return batch.own(plan.numerics.rows_per_pass, plan.ranks)

    def _passes(self, rows: int) -> int:
        return -(-rows // self._plan.numerics.rows_per_pass)

    def _use(self, train: Records) -> None:
        """Sets the training records; if every step takes them all, in their slots."""
        plan = self._plan
        self._ahead = None  # it was of other records
        self.train: Records = train
        if plan.sampling != "full_batch":
            self._drawn: Any = plan.resident(train)
            return
        records: Any = plan.resident(train)
        if plan.keeps_passes and plan.even_rows and isinstance(records, SparseRecords):
            records = records.even()
        self._full: Any = self.whole(records, TRAIN).own(plan.numerics.rows_per_pass, plan.ranks)
        self._full_rows, self._is_prepared = len(self._full), False

    def _everything(self) -> Batch[Any]:
        """The rows of every step, in passes that are made at the first one: keys or a transform may replace the rows
        before it. The passes take the rows' place: a device would hold both."""
        plan = self._plan
        if not self._is_prepared and plan.keeps_passes and not isinstance(self.train, MappedRecords):
            self._full = self._full.prepared(plan.numerics.rows_per_pass, plan.model.dtype, plan.device)
        self._is_prepared = True
        everything: Batch[Any] = self._full
        return everything
