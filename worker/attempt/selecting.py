"""The best of a secret number of runs: one attempt of public length, of which one run leaves (decision 72).

Each run is the training loop itself, under keys of its own, with nobody listening. `most_runs` of them always run. How
many count is used in one place, `Best.offer`, whose work is the same whatever it is. The result leaves the public
`duration_s` after the first step, doubled until it is long enough.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal, Protocol

from torch import Tensor

from core.contracts.base import Document
from core.contracts.hpo import RandomSize
from core.errors import PrivacyError
from core.privacy.mechanism import MechanismConfig
from worker.attempt.link import SupervisorLink
from worker.attempt.rank_processes import Unheard
from worker.messages import Checkpoint, Resalt, Segment, Start, WarningCode
from worker.metrics.scores import Score
from worker.noise.hidden import hidden_rate, hidden_size, keys_of_run
from worker.optimizers.build import build_optimizer
from worker.telemetry import Telemetry, state_digest
from worker.training.batches import TrainingData
from worker.training.best import Best, Run
from worker.training.loop import Link as Loop
from worker.training.loop import Outcome, Training
from worker.training.plan import Plan
from worker.training.write_ahead import Replay

SLEEP_S = 0.05
LOST = "a selection was released under other keys; the charge covers no second release"


class Link(Protocol):
    """The supervisor, as a selection sees it. Each call may end the attempt by raising."""

    def loading(self) -> None:
        """Called often: tells that the attempt is alive, at a pace of its own."""
        ...

    def begin(self, first_step: int, last_step: int) -> bool:
        """Returns False once these steps are recorded as started; True if the state before is to be saved first."""
        ...

    def send(self, message: Document) -> None:
        """Sends a message."""
        ...


class Unseen:
    """The supervisor, as a run sees it: nothing is recorded, announced or saved."""

    def __init__(self, alive: Callable[[], None]) -> None:
        self._alive = alive

    def begin(self, first_step: int, last_step: int) -> bool:
        """The whole selection has begun."""
        return False

    def save(self, header: Checkpoint, pieces: Iterator[Tensor]) -> None:
        """Raises: a run's state must not leave."""
        raise PrivacyError("a run of a selection must not be saved")

    def fill(self, numbers: Tensor) -> None:
        """Raises: no run begins at a saved state."""
        raise PrivacyError("a run of a selection begins at its first step")

    def poll(self, step: int) -> None:
        """Raises if the attempt must stop."""
        self._alive()

    def mismatch(self, matched_step: int) -> Resalt:
        """Raises: a run has no record that it could contradict."""
        raise PrivacyError("a run of a selection has no record")


class Withheld(Telemetry):
    """A run's exit: it checks what the run would release as ever, and keeps it."""

    def __init__(self, mechanism: MechanismConfig, *, holdout_public: bool) -> None:
        super().__init__(Unheard(), mechanism, data_public=False, holdout_public=holdout_public)
        self.kept: list[Score] = []

    def noisy_metric(self, step: int, score: Score) -> None:
        """See Telemetry."""
        super().noisy_metric(step, score)
        self.kept.append(score)

    def public_metric(self, step: int, score: Score, on: Literal["train", "holdout"]) -> bool:
        """See Telemetry."""
        is_finite = super().public_metric(step, score, on)
        self.kept.append(score)
        return is_finite


def outcome_of(start: Start, plan: Plan, data: TrainingData, link: Loop, telemetry: Telemetry) -> Outcome:
    """The model to publish: of the one training, or of the best of several."""
    if start.spec.selection is None:
        replay = Replay(start.steps, start.segments, start.allowed_steps, plan.block_end)
        return Training(plan, data, replay, link, telemetry, start.saved).run()
    if not isinstance(link, SupervisorLink):
        raise PrivacyError("a selection has one process")
    return selected(start, plan, data, link, telemetry)


def selected(start: Start, plan: Plan, data: TrainingData, link: Link, telemetry: Telemetry) -> Outcome:
    """Runs one attempt of a selection, up to its releases: what `Training.run` is for one run.

    Raises:
        PrivacyError: what was charged is not what would run; or the result differs from one that left.
    """
    selection, score, mechanism = start.spec.selection, start.spec.evaluation, start.mechanism
    if selection is None or score is None or mechanism is None or mechanism.selection is None:
        raise PrivacyError("the best of several runs needs a mechanism that prices it, and a score")
    replay = Replay(start.steps, start.segments, start.allowed_steps, lambda _first, last: last)
    telemetry.digest(0, state_digest(0, {}))
    if replay.next_block(0) != (1, start.steps):
        raise PrivacyError(LOST)
    if link.begin(1, start.steps):
        raise PrivacyError("a selection has no state to save before it begins")
    began, keys = time.monotonic(), replay.keys(1)
    best = Best(hidden_size(keys, mechanism.selection.weights))
    for number in range(1, selection.most_runs + 1):
        run = _run(plan, data, mechanism, keys_of_run(keys, number), Unseen(link.loading))
        best.offer(run, run.value(score))
    winner = best.run
    _wait(began, selection, link)
    digest = state_digest(start.steps, winner.outcome.parameters)
    if replay.contradicts(start.steps, digest):
        raise PrivacyError(LOST)
    telemetry.digest(start.steps, digest)
    return replace(winner.outcome, warnings=_release(winner, start, telemetry))


def _run(plan: Plan, data: TrainingData, mechanism: MechanismConfig, keys: Segment, unseen: Unseen) -> Run:
    """One whole training under its own keys."""
    space = plan.spec.selection.space if plan.spec.selection is not None else None
    if space is None:
        raise PrivacyError("a run of a selection draws its learning rate from a space")
    rate = hidden_rate(keys, space)
    optimizer = build_optimizer(plan.spec.optimizer.model_copy(update={"learning_rate": rate}), plan.steps)
    exit_ = Withheld(mechanism, holdout_public=data.holdout_public)
    replay = Replay(plan.steps, (keys,), plan.steps, plan.block_end)
    outcome = Training(replace(plan, optimizer=optimizer), data, replay, unseen, exit_).run()
    return Run(rate, outcome, tuple(exit_.kept))


def _wait(began: float, selection: RandomSize, link: Link) -> None:
    """Returns at the public length's end, doubled until it is long enough: whole multiples of a short one would be a
    clock of all runs' arithmetic, which nobody pays for."""
    length, took = selection.duration_s, time.monotonic() - began
    while length < took:
        length *= 2
    moment = began + length
    while (left := moment - time.monotonic()) > 0.0:
        link.loading()
        time.sleep(min(left, SLEEP_S))


def _release(winner: Run, start: Start, telemetry: Telemetry) -> tuple[WarningCode, ...]:
    """Releases the best run's score and rate. Returns the warnings: also if an attempt before released the score."""
    warnings, step = list(winner.outcome.warnings), start.steps
    declared = start.spec.evaluation.on if start.spec.evaluation is not None else "holdout"
    for released in winner.scores:
        if released.noise_std == 0.0:
            telemetry.public_metric(step, released, declared)
        elif telemetry.may_release(released.name, step):
            telemetry.noisy_metric(step, released)
        elif not telemetry.was_released(released.name, step):
            warnings.append("evaluation-skipped")
    telemetry.learning_rate(step, winner.rate)
    return tuple(warnings)
