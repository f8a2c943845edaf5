"""The training loop: sample, clip, noise, update. Each block ends with a digest; its releases follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from app.errors import PrivacyError
from worker.clipping.engine import Clip
from worker.data.mapped import MappedRecords
from worker.data.passes import Batch, Occupants
from worker.data.placed import CPU, placed
from worker.data.ranks import RanksError
from worker.data.records import Records, SparseRecords
from worker.data.shards import Shards
from worker.data.slots import TOO_MANY, Block, Slotted, joined_slots
from worker.data.units import Users
from worker.messages import Keys, Resalt, WarningCode
from worker.metrics.scores import public_training_loss
from worker.models.base import Parameters
from worker.noise.gaussian import NoisedGradient
from worker.noise.order import HOLDOUT, TRAIN, WHOLE_DATA, RandomOrder
from worker.optimizers.base import Observing, Optimizer, Preconditioned, State, StepInfo
from worker.optimizers.pieces import flattened
from worker.optimizers.sharded import Sharded, sharded
from worker.statistics.base import Noise, Prepare
from worker.telemetry import Telemetry, state_digest
from worker.training.canaries import Canaries, model_of
from worker.training.plan import Plan
from worker.training.replay import Replay
from worker.training.side import PublicSide


class Link(Protocol):
    """The supervisor, as the loop sees it. Each call may end the attempt by raising."""

    def begin(self, first_step: int, last_step: int) -> None:
        """Returns once these steps are recorded as started."""
        ...

    def poll(self, step: int) -> None:
        """Called between steps; raises if the attempt must stop."""
        ...

    def mismatch(self, matched_step: int) -> Resalt:
        """Reports that a replay differs, and waits for fresh keys."""
        ...


@dataclass(frozen=True)
class Position:
    """The state after `step`; the next step changes its tensors in place. `norm`: C of the next step, if it adapts.

    Where the optimizer's state is sharded, it is of the numbers that this rank owns.
    """

    step: int
    parameters: Parameters
    state: State
    norm: float | None = None

    def digest(self, optimizer: Optimizer) -> str:
        """See state_digest: of the whole state, whoever keeps it."""
        norm = {} if self.norm is None else {"max_grad_norm": torch.tensor([self.norm], dtype=torch.float64)}
        state = optimizer.whole_state(self.state) if isinstance(optimizer, Sharded) else self.state
        return state_digest(self.step, self.parameters, state, norm)

    def copy(self) -> Position:
        """The same state in memory of its own."""
        return replace(self, parameters=flattened(self.parameters), state=_copied(self.state))


@dataclass(frozen=True)
class Outcome:
    """The model to publish, after `steps` steps. `private_passes`: how many this rank's batches had. `canaries`: what
    the canaries left, of an audited job."""

    steps: int
    parameters: Parameters
    warnings: tuple[WarningCode, ...]
    private_passes: int = 0
    canaries: Tensor | None = None


class Training:
    """One attempt of one job.

    Args:
        plan: what to do.
        train: the training records (private).
        users: each record's user, if users are the protected unit; None: each record is its own unit.
        blocks: by part (worker.noise.order), the stored parts that `train` and `holdout` were joined from.
        holdout: the hold-out records, private unless `telemetry` knows them to be public; None: there are none.
        holdout_public: scores on the hold-out are exact.
        replay: what earlier attempts recorded.
        side: public side information, for an optimizer that uses it.
        canaries: of an audited job: units after all of the records'.
    """

    def __init__(
        self,
        plan: Plan,
        train: Records,
        holdout: Records | None,
        *,
        users: Users | None = None,
        blocks: Mapping[int, Sequence[Block]] = MappingProxyType({}),
        holdout_public: bool,
        replay: Replay,
        link: Link,
        telemetry: Telemetry,
        side: PublicSide | None = None,
        canaries: Canaries | None = None,
    ) -> None:
        self._plan, self._holdout, self._holdout_public = plan, holdout, holdout_public
        self._replay, self._link, self._telemetry = replay, link, telemetry
        self._users, self._blocks, self._side, self._canaries = users, blocks, side, canaries
        self._optimizer: Optimizer = plan.optimizer
        self._shards: Shards | None = None
        self._prepared = False  # the statistics before the first step are released, and the records prepared by them
        self._prepares: list[Prepare] = []  # by these, one after the other
        self._handed_out: Parameters = {}
        self._injections: dict[int, tuple[Keys, Occupants]] = {}  # of whole parts, under the job's first keys
        self._private_units = len(train if users is None else users)
        if plan.slots is not None:
            most = plan.slots.train
            if self._private_units > most.units or len(train) > most.rows:
                raise PrivacyError(TOO_MANY)
        self._given = train
        self._use(train)
        self._groups = plan.scores.groups_in(plan.model, train, holdout)
        self._matched: Position | None = None
        self._matched_step = -1
        self._warnings: list[WarningCode] = []
        self._private_passes = 0
        self._rekey(1)

    def run(self) -> Outcome:
        """Trains to the end.

        Raises:
            PrivacyError, or any error by which the link ends the attempt.
        """
        position = self._close_block(self._initial())
        while (block := self._replay.next_block(position.step)) is not None:
            first, last = block
            self._link.begin(first, last)
            if self._replay.keys(first) != self._keys:
                self._rekey(first)
            for step in range(first, last + 1):
                self._link.poll(step)
                position = self._step(step, position)
            position = self._close_block(position)
        return self._finish(position)

    def _step(self, step: int, at: Position) -> Position:
        self._release.prepare(at.parameters, step, shards=self._shards)  # another thread makes its noise meanwhile
        batch, canaries = self._sample(step)
        at = self._observed(step, at)
        norms = self._plan.norms(step) if at.norm is None else (at.norm,)
        (noised, norm), *others = [self._noised(step, query, C, at, batch, canaries) for query, C in enumerate(norms)]
        info = StepInfo(step, self._release.noise_variance(norms[0]), *(second for second, _ in others))
        parameters, state = self._optimizer.update(noised, at.state, at.parameters, info)
        return Position(step, parameters, state, norm)

    def _noised(
        self,
        step: int,
        query: int,
        max_grad_norm: float,
        at: Position,
        batch: Batch[Any],
        canaries: NDArray[np.int64] | None,
    ) -> tuple[NoisedGradient, float | None]:
        """One query of a step's batch and canaries; and C of the next step, if it adapts.

        Divisors come from the state before the step.
        """
        plan, optimizer, model = self._plan, self._optimizer, model_of(at.parameters)
        plan.begin_passes(self._keys, step)
        divisors = optimizer.divisors(at.state, step, query) if isinstance(optimizer, Preconditioned) else None
        clip = Clip(max_grad_norm, None if divisors is None else model_of(divisors))
        private_count = None
        if plan.adaptive_norm is None or self._counts is None or at.norm is None:
            private_sum = plan.engine.private_sum(model, batch, clip)
        else:
            private_sum, private_count = plan.adaptive_norm.engine.private_sum_and_count(model, batch, clip)
        if self._canaries is not None:
            plan.begin_public_passes(step)  # their masks and views are no record's: a record's are secret
            self._canaries.add_to(private_sum, model, canaries, clip)
        noised = self._release.release(private_sum, step, query, max_grad_norm, self._shards)
        if plan.adaptive_norm is None or self._counts is None or private_count is None:
            return noised, None
        return noised, plan.adaptive_norm.after(max_grad_norm, self._counts.release(private_count, step))

    def _observed(self, step: int, at: Position) -> Position:
        """With public side information: the state after it has seen this step's public gradient."""
        optimizer = self._optimizer
        if not isinstance(optimizer, Observing):
            return at
        if self._side is None:
            raise PrivacyError("this optimizer needs a public data set as side information, and the job has none")
        self._plan.begin_public_passes(step)
        return replace(at, state=optimizer.observe(self._side.gradient(at.parameters, step), at.state))

    def _sample(self, step: int) -> tuple[Batch[Any], NDArray[np.int64] | None]:
        """The step's rows, and its canaries; None: all of them. A step without records is still a step.

        Coins are tossed for all slots, so that no draw takes as long as there are records. The numbers from that of the
        units on belong to no record, and those from that of the slots on to canaries.
        """
        drawn = self._sampler.draw(step)
        if drawn is None:
            self._private_passes += self._passes(self._everything_rows)
            return self._everything, None
        inside, present = np.searchsorted(drawn, [self._slots, self._private_units])
        numbers = drawn[:present] if self._users is None else self._users.records(drawn[:present])
        batch = self._in_rows(step, numbers, self._plan.rows_of(int(inside)))
        self._private_passes += self._passes(len(batch))
        return batch, drawn[inside:] - self._slots

    def _in_rows(self, step: int, numbers: NDArray[np.int64], rows: int | None) -> Slotted[Any]:
        """This rank's rows of a step that takes these records; of public ones in their order."""
        plan = self._plan
        if self._order is None or rows is None:
            batch = Slotted(self._drawn, numbers)
        else:
            order = self._order.of(step, max(rows, len(numbers)))
            batch = Slotted.injected(self._drawn, order, rows, numbers)
        return batch.own(plan.numerics.rows_per_pass, plan.ranks)

    def _passes(self, rows: int) -> int:
        return -(-rows // self._plan.numerics.rows_per_pass)

    def _close_block(self, position: Position) -> Position:
        """Compares the state with its record, then releases what may leave. Returns the position to continue from."""
        digest = position.digest(self._optimizer)
        if not self._plan.ranks.agree(bytes.fromhex(digest)):
            raise RanksError("the ranks of this attempt reached different states")
        if self._replay.contradicts(position.step, digest):
            return self._restore()
        # Only what is recorded can be contradicted, so a state is kept only while records follow it.
        self._matched = position.copy() if self._replay.records_after(position.step) else None
        self._matched_step = position.step
        self._telemetry.digest(position.step, digest)
        if self._plan.public and position.step > 0:
            loss = public_training_loss(self._plan.model, position.parameters, self._train)
            self._note(self._telemetry.public_metric(position.step, loss, "train"), "metric-not-finite")
        if position.step in self._plan.evaluation_steps and position.step < self._replay.end:
            self._evaluate(position, position.parameters)
        return position

    def _restore(self) -> Position:
        """Discards the differing state: goes back to the last one that matched, under fresh keys."""
        matched_step = self._matched_step
        self._replay = self._replay.resalted(self._link.mismatch(matched_step), matched_step)
        if matched_step <= 0:  # the first state is made and recorded again, and so are a full batch's orders
            self._use(self._given)
            for prepare in self._prepares:
                self._use(prepare(self._train))
            return self._close_block(self._initial())
        matched, self._matched = self._matched, None  # the next step changes it
        if matched is None:
            raise PrivacyError("a replay contradicted a record that did not exist when its block began")
        self._telemetry.restored(matched_step)
        return matched

    def _finish(self, position: Position) -> Outcome:
        parameters = self._optimizer.finish(position.state, position.parameters, position.step)
        self._evaluate(position, parameters)
        self._note(position.step == self._plan.steps, "steps-short")
        canaries = self._left(parameters)
        parameters = model_of(parameters)
        finite = all(
            bool(torch.isfinite(value.float()).all()) for value in parameters.values()
        )  # in float32, as published
        self._note(finite, "parameters-not-finite")
        published = placed({**parameters, **self._handed_out}, CPU)
        return Outcome(position.step, published, tuple(self._warnings), self._private_passes, canaries)

    def _left(self, parameters: Parameters) -> Tensor | None:
        """What is published of the canaries. Rank 0 alone publishes."""
        if self._canaries is None or self._plan.ranks.rank > 0:
            return None
        return self._canaries.left(self._plan.initial(self._replay.initial_keys), parameters)

    def _evaluate(self, position: Position, parameters: Parameters) -> None:
        """Scores the model: exactly on public data, else by a noisy sum that is still paid for. Also releases C."""
        plan, step = self._plan, position.step
        if plan.ranks.rank > 0:  # rank 0 alone releases; a score changes no later step
            return
        if position.norm is not None:
            self._telemetry.clipping_norm(step, position.norm)
        scores = plan.scores
        part, scored = (TRAIN, self._train) if scores.on == "train" else (HOLDOUT, self._holdout)
        if scores.points == 0 or scored is None:
            return
        if plan.public if scores.on == "train" else self._holdout_public:
            for score in scores.exact(plan.model, parameters, scored, self._groups):
                self._note(self._telemetry.public_metric(step, score, scores.on), "metric-not-finite")
            return
        rows = self._whole(scored, part)
        for index, declared in enumerate(scores.declared):
            if self._telemetry.may_release(declared.metric, step):
                key = plan.release_key(self._replay.keys(step))
                self._telemetry.noisy_metric(step, scores.noisy(index, key, step, plan.model, parameters, rows))
            else:
                self._note(self._telemetry.was_released(declared.metric, step), "evaluation-skipped")

    def _release_before(self) -> None:
        """Once per job: releases the statistics of the unchanged training part that come before its first step."""
        plan = self._plan
        for each in plan.before:
            if each.charged and self._replay.begins_again:
                raise PrivacyError(
                    "this statistic was already released under other keys; the charge does not cover a second release"
                )
        if self._prepared:
            return
        key, data_public = plan.release_key(self._replay.initial_keys), self._telemetry.data_public
        made = [
            each.release(self._whole(self._train, TRAIN), Noise(key, index), data_public=data_public)
            for index, each in enumerate(plan.before)
        ]
        self._prepared = True
        for released in made:
            self._handed_out |= released.tensors
            if released.prepare is not None:
                self._holdout = None if self._holdout is None else released.prepare(self._holdout)
                self._prepares.append(released.prepare)
                self._use(released.prepare(self._train))
                if self._canaries is not None:
                    self._canaries.prepare(released.prepare)

    def _use(self, train: Records) -> None:
        """Sets the training records; if every step takes them all, in their slots."""
        plan = self._plan
        self._train: Records = train
        if plan.sampling != "full_batch":
            self._drawn: Any = plan.resident(train)
            return
        kept: Any = plan.resident(train)
        if plan.keeps_passes and plan.even_words and isinstance(kept, SparseRecords):
            kept = kept.even()
        rows = self._whole(kept, TRAIN).own(plan.numerics.rows_per_pass, plan.ranks)
        self._everything_rows = len(rows)
        self._everything: Batch[Any] = rows
        if plan.keeps_passes and not isinstance(train, MappedRecords):
            self._everything = rows.prepared(plan.numerics.rows_per_pass, plan.model.dtype, plan.device)

    def _whole(self, records: Any, part: int) -> Slotted[Any]:
        """All records of a part: private ones in their slots, for all steps and scores of the job.

        Slots are those that the part is stored in the order of, or the job's own secret ones.
        """
        plan, keys = self._plan, self._replay.initial_keys
        slots, order = plan.slots_of(part), plan.order(keys)
        if order is None:
            return Slotted(records, np.arange(len(records)))
        if slots is None:
            raise PrivacyError("nothing bounds the records of this part: its owner must state slots")
        if len(records) > slots.rows:
            raise PrivacyError(TOO_MANY)
        known = self._injections.get(part)
        if known is None or known[0] != keys:  # drawn once, and not for each score
            known = keys, self._injection(records, part, slots.rows, order)
            self._injections[part] = known
        return Slotted(records, known[1])

    def _injection(self, records: Any, part: int, rows: int, order: RandomOrder) -> Occupants:
        blocks = self._blocks.get(part, ())
        if all(each.slots is None for each in blocks):
            return Slotted.injected(records, order.of(WHOLE_DATA, rows, part), rows).occupants
        return joined_slots(blocks, lambda most, block: order.of(WHOLE_DATA, most, part, block))

    def _initial(self) -> Position:
        self._release_before()
        parameters = self._plan.initial(self._replay.initial_keys)
        if self._canaries is not None:
            parameters |= self._canaries.initial(parameters)
        parameters = flattened(parameters)
        if self._plan.sharded:
            self._shards = Shards.of(parameters, self._plan.ranks)
            self._optimizer = sharded(self._plan.optimizer, self._shards)
        adaptive = self._plan.adaptive_norm
        norm = adaptive.first if adaptive else None
        return Position(0, parameters, self._optimizer.init(parameters), norm)

    def _rekey(self, step: int) -> None:
        """Sets the sampler and the noise of the segment that applies to a step."""
        self._keys = self._replay.keys(step)
        slots = self._plan.slots
        self._slots = self._private_units if slots is None else slots.train.units
        after = self._canaries.units if self._canaries is not None else 0
        self._sampler = self._plan.sampler(self._keys, self._slots + after)
        self._order = self._plan.order(self._keys)
        self._release = self._plan.gradient_release(self._keys, max(1, self._keys.from_step))
        self._counts = self._plan.count_release(self._keys)

    def _note(self, fine: bool, warning: WarningCode) -> None:
        if not fine and warning not in self._warnings:
            self._warnings.append(warning)


def _copied(state: State) -> State:
    """The state in memory of its own; each slot stays one flat tensor."""
    slots: dict[str, State] = {}
    for name, value in state.items():
        slots.setdefault(name.rpartition("/")[0], {})[name] = value
    return {name: value for slot in slots.values() for name, value in flattened(slot).items()}
