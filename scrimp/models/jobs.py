"""Answers about jobs, prices and studies. Written by scripts/write_specs.py."""

from __future__ import annotations

from typing import Any

from scrimp import behaviour
from scrimp.behaviour import Resource
from scrimp.models.data import Epsilon


class Artifact(Resource):
    """A file of a job. `damaged`: the stored file differs from the published one and cannot be downloaded."""

    name: str
    sha256: str
    size_bytes: int
    damaged: bool = False


class Charged(Resource):
    """What a settled job was charged on each account, in the filter's units, its trials' charges included; `share` is
    the charged part of its hold, on the account where that is larger.
    """

    train: int
    holdout: int
    share: float


class Choice(Resource):
    """A number that "auto" stood for, and why."""

    value: float
    because: str


class Egress(Resource):
    """A signed folder of a job's files with their proof.

    `number` counts the job's egresses; `approval` is what two persons must agree to, where the owner named persons.
    """

    id: str
    job: str
    number: int
    recipient: str
    reason: str
    status: str
    approval: str | None = None
    asked_by: str
    asked_at: str | None = None
    made_at: str | None = None
    problem: str | None = None
    sha256: str | None = None
    size_bytes: int | None = None


class Event(Resource):
    """An event of a job."""

    seq: int
    type: str
    data: dict[str, Any]
    at: str


class Fit(Resource):
    """The fit r(x) = Σ coefficients[k] xᵏ; `r_star` is r at the final trial's x."""

    fit_in: str
    curve: str
    coefficients: list[float] = []
    levels: list[dict[str, Any]] = []
    at_final: float
    r_star: float
    fallbacks: list[str] = []


class Forecast(Resource):
    """How many jobs of one price fit what is left: that many are admitted one after another, and not one more.

    `per_job` is the price on each account, in the filter's units; `share_per_job` its share of the budget, on the
    account where that is larger.
    """

    jobs_that_fit: int
    per_job: dict[str, int]
    share_per_job: float


class Histogram(Resource):
    """A histogram of records by class and score, as released.

    Attributes:
        cells: 256 counts of the first class, then 256 of the second, in bins of the score x, the model's second output
            less its first: 254 equal bins from −8 to 8, and an open one at each end. Noisy counts may be negative.
        noise_std: σ of the noise on each of the weighted sums from which `cells` follow; 0: exact.
        clip_ratios: what predicted probabilities undo (docs/choosing.md); null: they are 1/(1 + e⁻ˣ).
    """

    cells: list[float] = []
    noise_std: float
    clip_ratios: list[float] | None = None


class Metric(Resource):
    """A released number, with the std of its noise.

    `histogram`, in the list of a job's metrics: from which the last `auc` and what comes with it were computed.
    """

    name: str
    step: int
    on: str
    std: float
    released_by: str
    value: float
    histogram: Histogram | None = None


class Progress(Resource):
    """A job's progress: steps done and planned, and times in whole seconds."""

    step: int
    steps: int
    elapsed_s: float | None = None
    remaining_s: float | None = None


class Line(Resource):
    """A line of the bill. In a study's bill `count` is the number of releases or trainings that it sums."""

    what: str
    account: str
    count: int | None = None
    epsilon: Epsilon
    charge: int


class Memory(Resource):
    """About how many bytes each process of an attempt holds at its peak, on a processor; and what they are.

    Attributes:
        process_bytes: of the process that needs most; an attempt has `runtime.processes` of them.
        base_bytes: Python, torch and the libraries.
        model_bytes: the parameters, frozen ones too.
        totals_bytes: a step's sum over records, and what is added to it.
        noise_bytes: a step's noise, which becomes the noised gradient.
        optimizer_bytes: the optimizer's state; what it divides gradients by; public gradients.
        passes_bytes: a pass: layer outputs, their gradients, and formed gradients of single records. 0 for a job that
            asks for a GPU, whose memory holds them.
        records_bytes: the training records, where they are in memory, as many as have slots; and their places.
        answers_bytes: the answers of a job of statistics, as documents and as text.
    """

    process_bytes: int
    base_bytes: int
    model_bytes: int
    totals_bytes: int
    noise_bytes: int
    optimizer_bytes: int
    passes_bytes: int
    records_bytes: int
    answers_bytes: int = 0


class Numerics(Resource):
    """A job's number types and shapes: a function of public numbers, stored with the job and read by every attempt.

    Attributes:
        passes: the type of forward and backward passes.
        fp32_precision: how a GPU multiplies float32 in these passes. Norms and sums are by IEEE.
        sums: the type of sums over records. float32: `group` consecutive rows are added in float32, and the groups in
            float64 or as integers. So a network adds formed gradients and those of one position; the others are added
            in float64. Norms are in float64.
        group: how many rows float32 adds; all of the smaller rest of a pass.
        totals: "integers": each pass's sum is rounded to a multiple of `grid_unit`, and the multiples are added
            exactly, so neither their order nor the number of processes changes a bit. "float64": without privacy.
        rows_per_pass: P, the rows of every pass.
        rows_per_step: R, the rows of every step, empty ones included: those that a Poisson step has for its draw, or
            all slots of the training part. Of cyclic batches: the mean.
        positions: at most this many rows of an inner product belong to one record.
        sensitivity_slack: one unit changes a computed sum by at most this times C. The noise is scaled by it. As
            stored it leaves out the grid of integer totals, which depends on the number of trained numbers: an attempt
            adds it (`of_numbers`), and its report includes it.
        filling: the expected share of empty rows in a step.
        arithmetic: PLACES; the others are of jobs that earlier releases admitted. Private ones end `superseded`
            (decision 32); what else their documents held is left out.
    """

    passes: str
    fp32_precision: str = "ieee"
    sums: str = "float64"
    group: int = 48
    rows_per_pass: int
    rows_per_step: int | None = None
    positions: int
    sensitivity_slack: float
    filling: float
    totals: str = "float64"
    arithmetic: int = 1


class Outcome(Resource):
    """What a job is expected to reach: points of AUC below the same model without privacy. Half of the kept runs of
    like shape were between `low` and `high`.
    """

    what: str
    epsilon: float
    records: int
    below: float
    low: float
    high: float


class Outlook(Resource):
    """A job beside the same with more ε, or more records."""

    outcomes: list[Outcome] = []
    because: str


class ReadBlock(Resource):
    """A block that a job reads, with its declared number of records. A data set that never grew is its block first."""

    label: str
    records: int


class Part(Resource):
    """A part of a job that its request left out, what stands there, and why."""

    name: str
    value: str
    because: str


class Resolved(behaviour.Resolved):
    """What "auto" stood for, and why.

    Attributes:
        parts: what stands in the place of members that the request left out.
        learning_rate, because: None and empty if the job names its rate.
        steps, max_grad_norm: T and C; None if the job names them.
    """

    learning_rate: float | None = None
    because: str = ""
    steps: Choice | None = None
    max_grad_norm: Choice | None = None
    parts: list[Part] = []


class ScoreNoise(Resource):
    """A score that a job will release, and about the largest std of the noise on it.

    Attributes:
        threshold: of categories: the noisy count from which they are told.
    """

    name: str
    std: float
    threshold: float | None = None


class Start(Resource):
    """When a job would start that is submitted now, if nobody submits more and jobs take as long as the caller's own
    and visible ones did.
    """

    claims_before: int
    at_least: bool = False
    in_s: float | None = None


class Quote(behaviour.Quote):
    """A price. `mechanism` is the event tree of each account, for accountants."""

    noise_multiplier: float | None = None
    sample_rate: float
    steps: int
    expected_batch_size: int
    mechanism: dict[str, Any] | None = None
    epsilon: Epsilon | None = None
    comparison: dict[str, float | None] | None = None
    charge: dict[str, Any]
    lines: list[Line] = []
    scores: list[ScoreNoise] = []
    model: dict[str, Any] | None = None
    numerics: Numerics | None = None
    fits: bool | None = None
    remaining_after: dict[str, Any] | None = None
    largest_epsilon_that_fits: float | None = None
    jobs_that_fit: int | None = None
    hpo: dict[str, Any] | None = None
    estimated_duration_s: float | None = None
    start: Start | None = None
    declaration: int | None = None
    warnings: list[str] = []
    memory: Memory | None = None
    resolved: Resolved | None = None
    reads: list[ReadBlock] = []
    outlook: Outlook | None = None


class Study(Resource):
    """A study: its progress and decisions. `procedure` is the ε of the whole study. `final_run` is the ε of the final
    trial, whose model is delivered, by itself. `seed` reproduces the study's draws.
    """

    strategy: str
    seed: str
    runs: int
    ended: int
    fit: Fit | None = None
    chosen: int | None = None
    procedure: Epsilon | None = None
    final_run: Epsilon | None = None
    keeps_weights: bool


class Job(behaviour.Job):
    """A job. `epsilon_spent` is its planned ε, also if it stopped early: `charged` tells how much of its hold it cost.
    `metrics` has each metric's last value; `GET …/metrics` has all values.
    """

    id: str
    name: str
    dataset: str
    status: str
    waiting_for: str | None = None
    spec: dict[str, Any]
    quote: Quote
    progress: Progress
    epsilon_spent: Epsilon | None = None
    charged: Charged | None = None
    attempts: list[dict[str, Any]] = []
    metrics: dict[str, Metric]
    failure: dict[str, Any] | None = None
    warnings: list[str] = []
    artifacts: list[Artifact] = []
    tags: list[str] = []
    notes: str = ""
    study: Study | None = None
    parent: str | None = None
    declaration: int = 1
    created_at: str
    started_at: str | None = None
    finished_at: str | None = None


class SweepPoint(Resource):
    """One combination. If the study is not possible, `final` is null, `reason` explains it, and
    `smallest_total_epsilon` is the least total that works, if there is one.
    """

    total_epsilon: float
    levels: list[float] = []
    runs_per_level: int
    runs: int
    final: Epsilon | None = None
    smallest_total_epsilon: float | None = None
    reason: str | None = None


class Sweep(Resource):
    """The points, ordered by levels, then by trials, then by total, each in the order of the request."""

    points: list[SweepPoint] = []


class Trial(Resource):
    """A trial of a study. `r` is the total step size ηT, times C if the study varies C. `mu` and `epsilon` cover its
    training alone.
    """

    job: str
    number: int
    role: str
    level: int | None = None
    status: str
    learning_rate: float
    steps: int
    max_grad_norm: float | None = None
    r: float
    mu: float | None = None
    epsilon: Epsilon | None = None
    charge: dict[str, Any]
    score: dict[str, Any] | None = None
    chosen: bool


class Trials(Resource):
    """The trials so far, by number; `study` is null if the job is not a study."""

    items: list[Trial] = []
    study: Study | None = None
