"""The training loop: sample, clip, noise, update. Each block ends with a digest; its releases follow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.errors import PrivacyError
from worker.data.placed import CPU, placed
from worker.data.ranks import RanksDifferError
from worker.data.shards import Shards
from worker.messages import Checkpoint, Resalt, WarningCode
from worker.metrics.scores import public_training_loss
from worker.models.base import Parameters
from worker.noise.secret_places import HOLDOUT, TRAIN
from worker.optimizers.base import Observing, Optimizer
from worker.optimizers.pieces import flattened
from worker.optimizers.sharded import Sharded, sharded
from worker.statistics.base import Noise
from worker.telemetry import Telemetry, state_digest
from worker.training.batches import Batches, TrainingData
from worker.training.canaries import model_of
from worker.training.plan import Plan
from worker.training.position import Position
from worker.training.steps import Means, Query, take
from worker.training.write_ahead import Replay


class Link(Protocol):
    """The supervisor, as the loop sees it. Each call may end the attempt by raising."""

    def begin(self, first_step: int, last_step: int) -> bool:
        """Returns False once these steps are recorded as started; True if the state before is to be saved first."""
        ...

    def save(self, header: Checkpoint, pieces: Iterator[Tensor]) -> None:
        """Gives the state to whoever keeps it for later attempts."""
        ...

    def fill(self, numbers: Tensor) -> None:
        """Replaces a flat tensor by the next numbers of the saved state. What cannot be read stays as it was."""
        ...

    def poll(self, step: int) -> None:
        """Called between steps; raises if the attempt must stop."""
        ...

    def mismatch(self, matched_step: int) -> Resalt:
        """Reports that a replay differs, and waits for fresh keys."""
        ...


@dataclass(frozen=True)
class Outcome:
    """The model to publish, after `steps` steps. `private_passes`: how many this rank's batches had. `canaries`: what
    the canaries left, of an audited job."""

    steps: int
    parameters: Parameters
    warnings: tuple[WarningCode, ...]
    private_passes: int = 0
    canaries: Tensor | None = None


@dataclass(frozen=True)
class Matched:
    """The last state that equals its record. `position`: None where no record follows, so that none can contradict."""

    step: int
    position: Position | None = None


class Training:
    """One attempt of one job.

    Args:
        plan: what to do.
        data: what to do it with.
        replay: what earlier attempts recorded.
        saved: the checkpoint that one of them left; None: training begins at the first step.
    """

    def __init__(
        self,
        plan: Plan,
        data: TrainingData,
        replay: Replay,
        link: Link,
        telemetry: Telemetry,
        saved: Checkpoint | None = None,
    ) -> None:
        self._saved = saved
        self._plan, self._data, self._replay, self._link, self._telemetry = plan, data, replay, link, telemetry
        self._optimizer: Optimizer = plan.optimizer
        self._batches = Batches(plan, data, replay.initial_keys)
        self._released: Parameters | None = None  # by the statistics before the first step; None: not yet
        self._matched = Matched(-1)
        self._warnings: list[WarningCode] = []
        self._rekey(1)

    def run(self) -> Outcome:
        """Trains to the end.

        Raises:
            PrivacyError, or any error by which the link ends the attempt.
        """
        position = self._close_block(self._resumed() or self._initial())
        while (block := self._replay.next_block(position.step)) is not None:
            first, last = block
            while self._link.begin(first, last):
                self._save(position)
            if self._replay.keys(first) != self._randomness.keys:
                self._rekey(first)
            for step in range(first, last + 1):
                self._link.poll(step)
                position = self._step(step, position)
            position = self._close_block(position)
        return self._finish(position)

    def _save(self, at: Position) -> None:
        """Gives the state to the supervisor: whoever goes on from it reaches the same bits."""
        header = Checkpoint(step=at.step, before=self._digest_before(), warnings=tuple(self._warnings))
        self._link.save(header, at.pieces(self._optimizer))

    def _resumed(self) -> Position | None:
        """The state of the checkpoint, if it is the recorded one to the bit; None: training begins at the first step.

        Any other state would meet noise that was used on the recorded one.
        """
        saved = self._saved
        if saved is None or not self._replay.has_digest(saved.step):
            return None
        initial = self._initial()
        if saved.before != self._digest_before():
            return None
        position = initial.filled(saved.step, self._optimizer, self._link.fill)
        if self._replay.contradicts(saved.step, position.digest(self._optimizer)):
            return None
        self._warnings = list(saved.warnings)
        return position

    def _digest_before(self) -> str:
        """Of what was released before the first step: passes and the published model have it."""
        return state_digest(0, self._released or {})

    def _step(self, step: int, at: Position) -> Position:
        randomness, plan = self._randomness, self._plan
        randomness.gradients.prepare(
            plan.summed(at.parameters), step, shards=self._shards
        )  # another thread makes its noise meanwhile
        batch, canaries = self._batches.sample(step, randomness)
        at = self._observed(step, at)
        norms = plan.norms(step) if at.norm is None else (at.norm,)
        taken = take(step, batch, (at.parameters, at.state), norms, self._optimizer, self._means(canaries))
        return Position(step, *taken)

    def _means(self, canaries: NDArray[np.int64] | None) -> Means:
        """What a step is taken with. `canaries`: those drawn; None: all of them."""
        plan, randomness = self._plan, self._randomness
        return Means(
            engine=plan.engine,
            release=randomness.gradients,
            begin=partial(plan.begin_passes, randomness.keys),
            adaptive=plan.adaptive_norm,
            counts=randomness.counts,
            add_public=partial(self._add_canaries, canaries),
            model_of=model_of,
            shards=self._shards,
        )

    def _add_canaries(
        self, drawn: NDArray[np.int64] | None, total: Parameters, model: Parameters, query: Query
    ) -> None:
        if self._data.canaries is not None:
            self._plan.begin_public_passes(query.step)  # their masks and views are no record's: a record's are secret
            self._data.canaries.add_to(total, model, drawn, query.clip)

    def _observed(self, step: int, at: Position) -> Position:
        """With public side information: the state after it has seen this step's public gradient."""
        optimizer = self._optimizer
        if not isinstance(optimizer, Observing):
            return at
        side = self._data.side
        if side is None:
            raise PrivacyError("this optimizer needs a public data set as side information, and the job has none")
        self._plan.begin_public_passes(step)
        return replace(at, state=optimizer.observe(side.gradient(at.parameters, step), at.state))

    def _close_block(self, position: Position) -> Position:
        """Compares the state with its record, then releases what may leave. Returns the position to continue from."""
        digest = position.digest(self._optimizer)
        if not self._plan.ranks.agree(bytes.fromhex(digest)):
            raise RanksDifferError("the ranks of this attempt reached different states")
        if self._replay.contradicts(position.step, digest):
            return self._restore()
        # Only what is recorded can be contradicted, so a state is kept only while records follow it.
        position_kept = position.copy() if self._replay.records_after(position.step) else None
        self._matched = Matched(position.step, position_kept)
        self._telemetry.digest(position.step, digest)
        if self._plan.public and position.step > 0:
            self._telemetry.flush()
            loss = public_training_loss(self._plan.model, position.parameters, self._batches.train)
            self._note(self._telemetry.public_metric(position.step, loss, "train"), "metric-not-finite")
        if position.step in self._plan.evaluation_steps and position.step < self._replay.end:
            self._evaluate(position, position.parameters)
        return position

    def _restore(self) -> Position:
        """Discards the differing state: goes back to the last one that matched, under fresh keys."""
        matched = self._matched
        self._replay = self._replay.resalted(self._link.mismatch(matched.step), matched.step)
        if matched.step <= 0:  # the first state is made and recorded again, and so are a full batch's orders
            self._batches.rekey(self._replay.initial_keys)
            return self._close_block(self._initial())
        self._matched = Matched(matched.step)  # the next step changes the state
        if matched.position is None:
            raise PrivacyError("a replay contradicted a record that did not exist when its block began")
        self._telemetry.restored(matched.step)
        return matched.position

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
        published = placed({**parameters, **(self._released or {})}, CPU)
        return Outcome(position.step, published, tuple(self._warnings), self._batches.private_passes, canaries)

    def _left(self, parameters: Parameters) -> Tensor | None:
        """Returns the canaries' released tensors, on rank 0 alone."""
        canaries = self._data.canaries
        if canaries is None or self._plan.ranks.rank > 0:
            return None
        return canaries.left(self._plan.initial(self._replay.initial_keys), parameters)

    def _evaluate(self, position: Position, parameters: Parameters) -> None:
        """Scores the model: exactly on public data, else by a noisy sum that is still paid for. Also releases C."""
        plan, step = self._plan, position.step
        self._telemetry.flush()
        if plan.ranks.rank > 0:  # rank 0 alone releases; a score changes no later step
            return
        if position.norm is not None:
            self._telemetry.clipping_norm(step, position.norm)
        scores = plan.scores
        part, scored = (TRAIN, self._batches.train) if scores.on == "train" else (HOLDOUT, self._batches.holdout)
        if scores.points == 0 or scored is None:
            return
        if plan.public if scores.on == "train" else self._data.holdout_public:
            for score in scores.exact(plan.model, parameters, scored, self._batches.groups):
                self._note(self._telemetry.public_metric(step, score, scores.on), "metric-not-finite")
            return
        rows = self._batches.whole(scored, part)
        for index, declared in enumerate(scores.declared):
            if self._telemetry.may_release(declared.metric, step):
                key = plan.release_key(self._replay.keys(step))
                self._telemetry.noisy_metric(step, scores.noisy(index, key, step, plan.model, parameters, rows))
            else:
                self._note(self._telemetry.was_released(declared.metric, step), "evaluation-skipped")

    def _release_before(self) -> None:
        """Once per job: releases the statistics of the unchanged training part that come before its first step."""
        plan = self._plan
        for statistic in plan.before:
            if statistic.charged and self._replay.begins_again:
                raise PrivacyError(
                    "this statistic was already released under other keys; the charge does not cover a second release"
                )
        if self._released is not None:
            return
        key, data_public = plan.release_key(self._replay.initial_keys), self._telemetry.data_public
        batches = self._batches
        releases = [
            each.release(batches.whole(batches.train, TRAIN), Noise(key, index), data_public=data_public)
            for index, each in enumerate(plan.before)
        ]
        self._released = {}
        for release in releases:
            self._released |= release.tensors
            if release.prepare is not None:
                batches.prepare(release.prepare)

    def _initial(self) -> Position:
        self._release_before()
        parameters = self._plan.initial(self._replay.initial_keys)
        if self._data.canaries is not None:
            parameters |= self._data.canaries.initial(parameters)
        parameters = flattened(parameters)
        if self._plan.sharded:
            self._optimizer = sharded(self._plan.optimizer, Shards.of(parameters, self._plan.ranks))
        adaptive = self._plan.adaptive_norm
        norm = adaptive.first if adaptive else None
        return Position(0, parameters, self._optimizer.init(parameters), norm)

    @property
    def _shards(self) -> Shards | None:
        """The numbers that this rank owns, where the optimizer's state is sharded."""
        return self._optimizer.shards if isinstance(self._optimizer, Sharded) else None

    def _rekey(self, step: int) -> None:
        """Sets the randomness of the segment that applies to a step."""
        self._randomness = self._plan.randomness(self._replay.keys(step), self._batches.units)

    def _note(self, fine: bool, warning: WarningCode) -> None:
        if not fine and warning not in self._warnings:
            self._warnings.append(warning)
