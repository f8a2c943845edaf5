"""The fork server of `tests.e2e.faulty_worker`: an attempt is the real one, but for the fault that its job's name
begins with. A fork has its fault alone; a job with another name has none."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.parts import nodes
from tests.by_place import ByPlace
from worker.attempt import child, fork_server
from worker.clipping.engine import Clip
from worker.messages import Start
from worker.noise.gaussian import GaussianRelease
from worker.noise.secret_places import TRAIN, RandomOrder
from worker.telemetry import Telemetry
from worker.training import loop, steps
from worker.training.plan import Plan

HONEST_ATTEMPT, HONEST_INIT, HONEST_RUN = child.run_attempt, GaussianRelease.__init__, loop.Training.run
SHARED_KEY = bytes(range(1, 33))


def noise_times(share: float) -> None:
    def init(self: GaussianRelease, key: bytes | None, *, noise_multiplier: float, **settings: Any) -> None:
        HONEST_INIT(self, key, noise_multiplier=share * noise_multiplier, **settings)

    GaussianRelease.__init__ = init  # type: ignore[method-assign]


def shared_noise() -> None:
    def init(self: GaussianRelease, key: bytes | None, **settings: Any) -> None:
        HONEST_INIT(self, SHARED_KEY, **settings)

    GaussianRelease.__init__ = init  # type: ignore[method-assign]


def twice_the_clip() -> None:
    """Gradients are clipped to 2 C, and the noise is made for C."""

    def clip(max_grad_norm: float, *rest: Any, **more: Any) -> Clip:
        return Clip(2.0 * max_grad_norm, *rest, **more)

    if vars(steps).get("Clip") is not Clip:
        raise AssertionError("steps no longer clip by this name: the fault would be none")
    vars(steps)["Clip"] = clip


def uncharged_scores() -> None:
    """Twice as many scores as the mechanism declares, each with fresh noise."""

    def steps(self: Plan) -> tuple[int, ...]:
        points = 2 * self.scores.points
        return tuple(-(-self.steps * k // points) for k in range(1, points + 1))

    def may_release(self: Telemetry, name: str, step: int) -> bool:
        return name in self._declared and (name, step) not in self._released

    Plan.evaluation_steps = property(steps)  # type: ignore[assignment,method-assign]
    Telemetry.may_release = may_release  # type: ignore[method-assign]


def by_place() -> None:
    """Odd rows of a pass are computed otherwise, once the self-test has passed."""

    def run(self: loop.Training) -> loop.Outcome:
        with ByPlace(self._plan.numerics.rows_per_pass):
            return HONEST_RUN(self)

    loop.Training.run = run  # type: ignore[method-assign]


def in_order(_self: RandomOrder, step: int, count: int, part: int = TRAIN) -> NDArray[np.int64]:
    """Drawn records stand one after the other, in the data set's order."""
    return np.arange(count)


def by_place_and_packed() -> None:
    by_place()
    RandomOrder.of = in_order  # type: ignore[method-assign]


def a_reader_too_many() -> None:
    """Nodes are read by one more than is charged."""
    honest = nodes.children
    vars(nodes)["children"] = lambda ids, neighbours: honest(ids, neighbours + 1)


FAULTS = {
    "a-reader-too-many": a_reader_too_many,
    "less-noise": partial(noise_times, 0.8),
    "half-noise": partial(noise_times, 0.5),
    "hardly-any-noise": partial(noise_times, 0.01),
    "shared-noise": shared_noise,
    "twice-the-clip": twice_the_clip,
    "uncharged-scores": uncharged_scores,
    "by-place": by_place,
    "by-place-and-packed": by_place_and_packed,
}


def run_attempt(channel: Any, link: Any, start: Start, *ranks: Any) -> None:
    plant = FAULTS.get(start.spec.name.partition(":")[0])
    if plant is not None:
        plant()
    HONEST_ATTEMPT(channel, link, start, *ranks)


if __name__ == "__main__":
    vars(child)["run_attempt"] = run_attempt
    fork_server.main(int(sys.argv[1]), int(sys.argv[2]))
