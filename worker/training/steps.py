"""One step: clip, add, noise, update. The loop of a job takes its steps here, and so does `scrimp.engine`.

A step knows neither jobs nor records' storage. It gets rows, and whatever an engine and a release were built from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from worker.clipping.adaptive import AdaptiveNorm
from worker.clipping.engine import Clip, GradientEngine
from worker.data.passes import Batch
from worker.data.shards import Shards
from worker.models.base import Parameters
from worker.noise.gaussian import CountRelease, GradientRelease, NoisedGradient
from worker.optimizers.base import Optimizer, Preconditioned, State, StepInfo


@dataclass(frozen=True)
class Query:
    """One noisy sum of a step.

    Attributes:
        number: within the step.
        max_grad_norm: C.
        divisors: of gradients before the clip; None: nothing is divided.
    """

    step: int
    number: int
    max_grad_norm: float
    batch: Batch[Any]
    divisors: Parameters | None = None

    @property
    def clip(self) -> Clip:
        """How it clips."""
        return Clip(self.max_grad_norm, self.divisors)


def nothing_public(_total: Parameters, _model: Parameters, _query: Query) -> None:
    """Adds nothing to a sum."""


def whole(parameters: Parameters) -> Parameters:
    """The parameters: all of them are the model's."""
    return parameters


@dataclass(frozen=True)
class Means:
    """What a step is taken with: everything that is drawn is drawn from keys that these hold.

    Attributes:
        engine: clips and adds.
        release: adds the noise.
        begin: begins a query's passes: masks, and views of records.
        adaptive, counts: how the norm adapts, and the noise on its counts; None: it does not.
        add_public: adds what is no record's to the sum: canaries.
        model_of: the model's own among the parameters.
        shards: the numbers that this rank owns; None: all of them.
    """

    engine: GradientEngine
    release: GradientRelease
    begin: Callable[[int], None]
    adaptive: AdaptiveNorm | None = None
    counts: CountRelease | None = None
    add_public: Callable[[Parameters, Parameters, Query], None] = nothing_public
    model_of: Callable[[Parameters], Parameters] = whole
    shards: Shards | None = None


class Noised(NamedTuple):
    """A query's noised mean gradient; and C of the next step, if it adapts."""

    gradient: NoisedGradient
    norm: float | None


class Taken(NamedTuple):
    """The state after a step; and C of the next one, if it adapts."""

    parameters: Parameters
    state: State
    norm: float | None


def noised(query: Query, parameters: Parameters, means: Means) -> Noised:
    """Σ clip_C(g_i) over the query's rows, with noise, over L. The only way from records to a gradient."""
    model, step, count = means.model_of(parameters), query.step, None
    means.begin(step)
    if means.adaptive is None:
        total = means.engine.private_sum(model, query.batch, query.clip)
    else:
        total, count = means.adaptive.engine.private_sum_and_count(model, query.batch, query.clip)
    means.add_public(total, model, query)
    gradient = means.release.release(total, step, query.number, query.max_grad_norm, means.shards)
    if means.adaptive is None or means.counts is None or count is None:
        return Noised(gradient, None)
    return Noised(gradient, means.adaptive.after(query.max_grad_norm, means.counts.release(count, step)))


def take(
    step: int,
    batch: Batch[Any],
    at: tuple[Parameters, State],
    norms: tuple[float, ...],
    optimizer: Optimizer,
    means: Means,
) -> Taken:
    """One step of an optimizer, in place. Divisors come from the state before it.

    Args:
        at: the parameters, and the optimizer's state.
        norms: C of each query.
    """
    parameters, state = at
    divides = optimizer if isinstance(optimizer, Preconditioned) else None
    sums = []
    for number, norm in enumerate(norms):
        divisors = None if divides is None else divides.divisors(state, step, number)
        own_divisors: dict[str, Tensor] | None = None if divisors is None else means.model_of(dict(divisors))
        sums.append(noised(Query(step, number, norm, batch, own_divisors), parameters, means))
    first, *rest_sums = sums
    info = StepInfo(step, means.release.noise_variance(norms[0]), *(each.gradient for each in rest_sums))
    parameters, state = optimizer.update(first.gradient, state, parameters, info)
    return Taken(parameters, state, first.norm)
