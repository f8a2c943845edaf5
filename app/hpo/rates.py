"""A learning rate from public numbers, for `learning_rate: auto`.

The noise of a job's T steps leaves a standard deviation κ in each output of a linear model (docs/choosing.md):

    κ = η √T σ C ‖x‖ m_T / ((1 − β) L)          DP-SGD with momentum β
    κ = η √T ‖x‖ · 1.06                         DP-Adam, where noise dominates: a coordinate moves by 1.06 η √T
    κ = η √T σ C ‖x‖ m_T / (L (σC/L + γ))       DPAdamWOSM: DP-SGD at the rate η(1 − β)/((1 − βᵗ)(σC/L + γ))

The rate is the one whose κ is a constant, or the largest at which training settles, if that is less: heavy ball is
stable for η λ < 2 (1 + β), and the largest curvature λ is about ‖x‖²/(a K) of what the clip leaves. Public data sets
calibrated the constants (benchmarks/reports/reproduce/rate.md). Nothing here has seen the data.

Of a declared table, most of ‖x‖ is common to all records, whose numbers lie in a part of their ranges. There curvature
is large and takes noise back, so noise counts by the part that differs between records.

A network near its start is a linear model of its tangent features: J, the length of an output's gradient, is in the
place of ‖x‖ (app.hpo.tangents). That is reasoning, which benchmarks/reports/reproduce/rate_networks.md measures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import ConfigDict, Field

from core.contracts.base import Document, is_none
from core.contracts.optimizers import DpAdam, DpAdamWosm, DpSgd

SUMMED = 1_000  # as many steps are summed one by one, without cancellation
Ruled = DpSgd | DpAdam | DpAdamWosm  # the optimizers with a rule
FRESH = 0.4  # C as a part of a fresh gradient's length
LEAST_STEPS, MOST_STEPS, MARGIN = 100, 800, 4.0  # T, and how far below settling the rate shall be
STEPS_EVIDENCE = "calibrated on eleven public tables"
ADAM_DRIFT = 1.06  # of η √T: how far noise alone moves a coordinate under DP-Adam, simulated


@dataclass(frozen=True)
class Constants:
    """What public data sets calibrated, with c = max(1, ‖g‖/C) for a record's gradient before the first step.

    Attributes:
        kappa, most_clipped: κ = kappa · √min(c, most_clipped). Clipped gradients stay long, and bear more noise.
        dense, words: a, for dense features and for hashed words, whose directions share less. The bound grows like
            c^power.
        fresh: C by "auto", as a part of a fresh gradient's length.
        adam_dense, adam_words: κ of DP-Adam, which sees no C.
        symbol: of the length.
        evidence, adam_evidence, steps_evidence: what stands behind the rates of DP-SGD, of DP-Adam, and T and C.
    """

    kappa: float
    most_clipped: float
    dense: float
    words: float
    adam_dense: float = 3.2
    adam_words: float = 0.8
    fresh: float = FRESH
    power: float = 1.5
    symbol: str = "‖x‖"
    evidence: str = "calibrated on nine public data sets"
    steps_evidence: str = STEPS_EVIDENCE
    adam_evidence: str = "calibrated on six public data sets"

    def kappa_at(self, clipping: float) -> float:
        """κ at c."""
        return self.kappa * math.sqrt(min(clipping, self.most_clipped))


CALIBRATED = Constants(kappa=0.92, most_clipped=6.0, dense=0.45, words=4.4)
# Of declared tables, scored by AUC (benchmarks/reports/tables.md).
TABLES = replace(CALIBRATED, kappa=0.54, evidence=STEPS_EVIDENCE)
# Where a user has several records, nothing is fitted: each is clipped as one alone.
USERS = replace(TABLES, evidence=f"{STEPS_EVIDENCE}, and held where users have several records on four")
# Of a target on its declared range as [−1, 1]: outputs must be right to a tenth of it, and a record that is learned is
# clipped no longer, so that clipping does not flatten the curvature.
NUMBERS = replace(
    CALIBRATED,
    kappa=0.16,
    most_clipped=1.0,
    dense=0.5,
    words=0.5,
    fresh=0.12,
    power=0.0,
    evidence="calibrated on four public tables",
    steps_evidence="calibrated on four public tables",
)
# One κ for each optimizer is fitted; the rest is the linear model's (benchmarks/reports/reproduce/rate_networks.md).
NETWORKS = replace(
    CALIBRATED,
    kappa=0.46,
    adam_dense=1.6,
    adam_words=1.6,
    symbol="J",
    evidence=(
        "stated reasoning with one fitted constant, measured on 38 cells of seven public data sets: with a cell's set "
        "left out of the fit, 0.4 points under the best rate in the mean"
    ),
    adam_evidence=(
        "stated reasoning with one fitted constant, measured on 24 cells of seven public data sets: with a cell's set "
        "left out of the fit, 1.0 points under the best rate in the mean"
    ),
)


@dataclass(frozen=True)
class PublicNumbers:
    """What a rate depends on.

    Attributes:
        steps: T.
        expected_batch_size: L, the divisor of every step.
        noise_multiplier: σ; 0 without privacy.
        max_grad_norm: C.
        length: about ‖x‖, with the 1 of a bias; of a network, J.
        outputs: K, the number of classes; 1 for a number.
        is_sparse: the features are hashed words.
        spread: the part of the length that differs between records, where noise stays; None: all of it.
        scale: by how much a unit's gradient may be longer than a plain record's: a user's k records, each clipped to
            C/k, times the largest weight of a class. The curvature may grow as much.
    """

    steps: int
    expected_batch_size: int
    noise_multiplier: float
    max_grad_norm: float
    length: float
    outputs: int = 1
    is_sparse: bool = False
    spread: float | None = None
    scale: float = 1.0

    @property
    def noise_std(self) -> float:
        """σC/L, of each coordinate of a noised gradient."""
        return self.noise_multiplier * self.max_grad_norm / self.expected_batch_size

    @property
    def noisy_length(self) -> float:
        """The length that carries noise into an output."""
        return self.length if self.spread is None else self.spread

    @property
    def clipping(self) -> float:
        """c = max(1, ‖g‖/C) of a record before the first step."""
        return max(1.0, self.scale * first_norm(self.length, self.outputs) / self.max_grad_norm)


def first_norm(length: float, outputs: int) -> float:
    """‖g‖ of a record before the first step: √(1 − 1/K) ‖x‖; for a number ‖x‖, with a residual of 1."""
    return (math.sqrt(1.0 - 1.0 / outputs) if outputs > 1 else 1.0) * length


class Choice(Document):
    """A number that "auto" stood for, and why."""

    value: float
    because: str


class Part(Document):
    """A part of a job that its request left out, what stands there, and why."""

    name: Literal["model", "optimizer", "scores", "class weights", "device"]
    value: str
    because: str


class Resolved(Document):
    """What "auto" stood for, and why.

    Attributes:
        parts: what stands in the place of members that the request left out.
        learning_rate, because: None and empty if the job names its rate.
        steps, max_grad_norm: T and C; None if the job names them.
    """

    learning_rate: float | None = None
    because: str = ""
    steps: Choice | None = Field(default=None, exclude_if=is_none)
    max_grad_norm: Choice | None = Field(default=None, exclude_if=is_none)
    parts: tuple[Part, ...] = Field(default=(), exclude_if=lambda parts: not parts)

    @property
    def told(self) -> tuple[tuple[str, float | str, str], ...]:
        """Name, value and reason of each choice, for readers."""
        rate = None if self.learning_rate is None else Choice(value=self.learning_rate, because=self.because)
        numbers = (("steps", self.steps), ("clipping norm", self.max_grad_norm), ("learning rate", rate))
        told_numbers = tuple((name, number.value, number.because) for name, number in numbers if number is not None)
        return (*((part.name, part.value, part.because) for part in self.parts), *told_numbers)


class Rated(Document):
    """What a job's stored quote says of its learning rate."""

    model_config = ConfigDict(extra="ignore")

    resolved: Resolved | None = None


def settled(momentum: float, steps: int, *, free_step: bool = False) -> float:
    """m_T: the root mean square, over the steps, of the share 1 − βᵏ of its whole effect that a step's noise has at the
    end, after k updates. A free step repeats the last update, and adds (1 − β) βᵏ⁻¹.

    >>> round(settled(0.9, 30), 2), settled(0.0, 5)
    (0.75, 1.0)
    """
    if steps <= SUMMED:
        again = (1.0 - momentum) * free_step
        shares = (1.0 - momentum**k + again * momentum ** (k - 1) for k in range(1, steps + 1))
        return math.sqrt(sum(each**2 for each in shares) / steps)
    if momentum == 0.0:
        return math.sqrt((steps + 3.0 * free_step) / steps)
    # Each share is 1 − a βᵏ, and at least 1 − β: geometric sums, as T may be in the millions.
    a = 1.0 - (1.0 - momentum) * free_step / momentum
    lag = momentum * (1.0 - momentum**steps) / (1.0 - momentum)
    twice = momentum**2 * (1.0 - momentum ** (2 * steps)) / (1.0 - momentum**2)
    return max(math.sqrt(max(0.0, (steps - 2.0 * a * lag + a * a * twice) / steps)), 1.0 - momentum)


def averaged(beta: float, steps: int) -> float:
    """m_T of a bias-corrected average: the shares Σ_{k ≥ s} (1 − β) βᵏ⁻ˢ/(1 − βᵏ) of a step's noise at the end. First
    steps count for more than one, as later averages divide by less.

    >>> round(averaged(0.9, 50), 2), averaged(0.0, 5)
    (1.02, 1.0)
    """
    if steps > SUMMED:  # as many groups of steps, whose noise decays alike
        beta, steps = beta ** (steps / SUMMED), SUMMED
    share = total = 0.0
    for step in range(steps, 0, -1):
        share = beta * share + (1.0 - beta) / (1.0 - beta**step)
        total += share**2
    return math.sqrt(total / steps)


def rate_of(optimizer: Ruled, numbers: PublicNumbers, constants: Constants = CALIBRATED) -> Choice:
    """The rate of a linear model, or of a network's tangent features.

    >>> of = PublicNumbers(steps=50, expected_batch_size=20_000, noise_multiplier=26.4, max_grad_norm=1.0, length=1.0)
    >>> rate_of(DpSgd(momentum=0.9), of).value
    1.71
    """
    root, x = math.sqrt(numbers.steps * optimizer.schedule.mean_square), constants.symbol
    at = f"at {_numbers(numbers, x)}"
    if isinstance(optimizer, DpAdam):
        kappa = constants.adam_words if numbers.is_sparse else constants.adam_dense
        rate = kappa / (ADAM_DRIFT * root * numbers.length)
        return _choice(rate, f"κ = {kappa:.3g} = η √T {x} · {ADAM_DRIFT:g} {at}; {constants.adam_evidence}")
    a = constants.words if numbers.is_sparse else constants.dense
    highest, evidence = most_rate(optimizer, numbers, constants), constants.evidence
    if isinstance(optimizer, DpAdamWosm):
        unit, unit_text, built = (
            numbers.noise_std + optimizer.eps,
            "(σC/L + γ)",
            averaged(optimizer.beta, numbers.steps),
        )
        bound, evidence = f"{unit_text} 2 (1 + β)/(1 − β)", f"{evidence}, with `dp_sgd`, which this is at such a rate"
    else:
        unit, unit_text, bound = 1.0 - optimizer.momentum, "(1 − β)", "2 (1 + β)"
        built = settled(optimizer.momentum, numbers.steps, free_step=optimizer.free_step)
    kappa = constants.kappa_at(numbers.clipping)
    noise = root * numbers.noise_multiplier * numbers.max_grad_norm * numbers.noisy_length * built
    rate = kappa * unit * numbers.expected_batch_size / noise if noise > 0.0 else math.inf
    because = f"κ = {kappa:.3g} = η √T σ C {x} m_T / ({unit_text} L)"
    if rate > highest:
        rate, because = highest, f"more would not settle: {a:g} · {bound} K c^{constants.power:g} / {x}²"
    return _choice(rate, f"{because} {at}; {evidence}")


def norm_of(length: float, outputs: int, constants: Constants = CALIBRATED) -> Choice:
    """C of a linear model: a part of its gradients' length before the first step. More of it is noise for records that
    are learned; with less, clipping only normalises.

    >>> norm_of(1.0, 2).value
    0.283
    """
    first = first_norm(length, outputs)
    share = "√(1 − 1/K) " if outputs > 1 else ""
    because = f"{constants.fresh:g} of a fresh gradient, {share}{constants.symbol} ≈ {first:.3g}"
    return _choice(constants.fresh * first, f"{because}; {constants.steps_evidence}")


def steps_of(optimizer: Ruled, numbers: PublicNumbers, mu: float, constants: Constants = CALIBRATED) -> Choice:
    """T of a linear model in full batch, where steps cost no ε: so many that the noise bounds the rate, not settling.

    ηT = κ μ n (1 − β)/(C ‖x‖) whatever T is, so η falls with T; below a quarter of the rate that settles nothing is
    gained by more.

    Args:
        numbers: its steps and noise are not read.
        mu: of the training; infinite without privacy.

    >>> of = PublicNumbers(steps=1, expected_batch_size=20_000, noise_multiplier=1.0, max_grad_norm=1.0, length=3.0)
    >>> steps_of(DpSgd(momentum=0.9), of, 0.27).value
    100.0
    """
    range_text = f"between {LEAST_STEPS} and {MOST_STEPS}"
    if isinstance(optimizer, DpAdam):
        return Choice(value=LEAST_STEPS, because="the least of the rule for `dp_sgd`; no experiment had `dp_adam`")
    if isinstance(optimizer, DpAdamWosm):
        return steps_of(DpSgd(momentum=optimizer.beta), numbers, mu, constants)
    kappa = constants.kappa_at(numbers.clipping)
    unrounded = (
        kappa
        * mu
        * numbers.expected_batch_size
        * (1.0 - optimizer.momentum)
        / (numbers.max_grad_norm * numbers.noisy_length)
    )
    wanted = MARGIN * unrounded / most_rate(optimizer, numbers, constants)
    steps = math.ceil(min(max(wanted, LEAST_STEPS), MOST_STEPS))
    because = f"the rate that noise allows is at most 1/{MARGIN:g} of the one that settles; {range_text}"
    return Choice(value=steps, because=f"{because}; {constants.steps_evidence}")


def most_rate(optimizer: DpSgd | DpAdamWosm, numbers: PublicNumbers, constants: Constants = CALIBRATED) -> float:
    """The largest η that settles; of DPAdamWOSM once its bias correction is over, after some 1/(1 − β) steps."""
    if isinstance(optimizer, DpAdamWosm):
        unit = (numbers.noise_std + optimizer.eps) / (1.0 - optimizer.beta)
        return unit * most_rate(DpSgd(momentum=optimizer.beta), numbers, constants)
    a = constants.words if numbers.is_sparse else constants.dense
    bound = (
        a * 2.0 * (1.0 + optimizer.momentum) * numbers.outputs * numbers.clipping**constants.power / numbers.length**2
    )
    return float(bound) / numbers.scale


def rounded(value: float) -> float:
    """Three digits."""
    return float(f"{value:.3g}")


def _choice(value: float, because: str) -> Choice:
    return Choice(value=rounded(value), because=because)


def _numbers(numbers: PublicNumbers, symbol: str) -> str:
    spread = "" if numbers.spread is None else f"{numbers.spread:.3g} of it between records, "
    return (
        f"T = {numbers.steps}, L = {numbers.expected_batch_size}, σ = {numbers.noise_multiplier:.4g}, C "
        f"= {numbers.max_grad_norm:g}, "
        f"{symbol} ≈ {numbers.length:.3g}, {spread}K = {numbers.outputs}, c = {numbers.clipping:.3g}"
    )
