"""Prices before they are paid, typed: quotes, and what studies would leave."""

from __future__ import annotations

from typing import Any

from scrimp.administered import Resource
from scrimp.rows import facts


class Epsilon(Resource):
    """A privacy loss with its meaning: never an ε without its δ, unit, relation and accountant."""

    value: float
    delta: float
    accountant: str
    unit: str = "example"
    relation: str = "add_or_remove_one"


class SweepPoint(Resource):
    """What one combination leaves for a study's final trial; `final` is null if no such study is possible."""

    total_epsilon: float
    levels: list[float]
    runs_per_level: int
    runs: int
    final: Epsilon | None = None
    smallest_total_epsilon: float | None = None
    reason: str | None = None


class Sweep(Resource):
    """What each combination of totals, levels and trials would leave."""

    points: list[SweepPoint]


class Line(Resource):
    """One line of a quote's bill."""

    what: str
    account: str
    charge: int
    epsilon: Epsilon | None = None


class ScoreNoise(Resource):
    """A score that a job will release, and about the largest std of the noise on it."""

    name: str
    std: float


class Choice(Resource):
    """A number that "auto" stands for, and why."""

    value: float
    because: str


class Part(Resource):
    """A part of a job that its request left out, what stands there, and why."""

    name: str
    value: str
    because: str


class Resolved(Resource):
    """What "auto" stands for, and why; None where the job names a number."""

    learning_rate: float | None = None
    because: str = ""
    steps: Choice | None = None
    max_grad_norm: Choice | None = None
    parts: tuple[Part, ...] = ()

    @property
    def told(self) -> list[tuple[str, str, str]]:
        """Name, value and reason of each choice."""
        rate = None if self.learning_rate is None else Choice(value=self.learning_rate, because=self.because)
        numbers = {"steps": self.steps, "clipping norm": self.max_grad_norm, "learning rate": rate}
        chosen = [(name, f"{each.value:g}", each.because) for name, each in numbers.items() if each is not None]
        return [(part.name, part.value, part.because) for part in self.parts] + chosen


class Start(Resource):
    """When a job would start that is submitted now; `in_s` is null if no job that the key may see has ended yet."""

    claims_before: int
    at_least: bool = False
    in_s: float | None = None


class Memory(Resource):
    """About how many bytes each process of an attempt will hold at its peak, in whole and by what they are."""

    process_bytes: int


class Numerics(Resource):
    """How many rows each step computes, records and empty ones; null for jobs that earlier releases priced."""

    rows_per_pass: int
    rows_per_step: int | None = None


class ReadBlock(Resource):
    """A block that a job reads, with its declared number of records."""

    label: str
    records: int


class Quote(Resource):
    """A price, before it is paid. `epsilon` is null on public data. `reads`: the blocks that the job reads; a data set
    that never grew is its block first."""

    noise_multiplier: float | None = None
    sample_rate: float | None = None
    steps: int
    expected_batch_size: int | None = None
    epsilon: Epsilon | None = None
    comparison: dict[str, Any] | None = None
    charge: dict[str, Any] | None = None
    lines: list[Line] = []
    scores: list[ScoreNoise] = []
    fits: bool | None = None
    remaining_after: dict[str, Any] | None = None
    largest_epsilon_that_fits: float | None = None
    jobs_that_fit: int | None = None
    hpo: dict[str, Any] | None = None
    estimated_duration_s: float | None = None
    start: Start | None = None
    memory: Memory | None = None
    numerics: Numerics | None = None
    warnings: list[str] = []
    resolved: Resolved | None = None
    reads: list[ReadBlock] = []

    def _repr_html_(self) -> str:
        epsilon = "public data" if self.epsilon is None else f"ε = {self.epsilon.value:.4g}, δ = {self.epsilon.delta:g}"
        answer = "fits" if self.fits else "does not fit"
        bill = [(each.what, None if each.epsilon is None else f"ε = {each.epsilon.value:.4g}") for each in self.lines]
        more = [("jobs like it that fit", self.jobs_that_fit), *(("warning", each) for each in self.warnings)]
        return facts([("privacy", epsilon), ("steps", self.steps), *bill, ("budget", answer), *more])
