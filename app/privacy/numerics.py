"""Numerics: the shapes and types that a job computes in, fixed at admission from public numbers alone.

A matrix product rounds a record's row by how many rows there are, and deep networks turn a last bit into a change of
order 1. So every pass over private records has one public number of rows, filled up with rows of weight 0: a record's
numbers are then its own (docs/privacy.md, "A record's numbers are its own"). What rounding may still add to the
sensitivity of a sum is bounded here, and paid for in the noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, model_validator

from app.contracts.base import Document
from app.contracts.dataset_spec import Features
from app.contracts.job_spec import CnnModel, JobSpec, MlpModel, RecommenderModel

PassType = Literal["bfloat16", "float32", "float64"]
SelfTest = Literal["passed", "one_record", "public_data"]
BYTES: dict[PassType, int] = {"bfloat16": 2, "float32": 4, "float64": 8}

ROW_UNIT = 48  # 16 for rows and 12 for columns: whole tiles of the products, so that a row's place does not matter
FEW_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24)  # where 48 records of a large language model exceed PASS_BYTES
PASS_BYTES = 2**28  # of a network's pass: larger ones leave the caches and are slower
CACHE_BYTES = 2**24  # of a pass of a linear model: both of its products find the features in the cache
MOST_ROWS = 4080  # of a network's pass: more are no faster
MOST_LINEAR_ROWS = 65_520
PASS_OVERHEAD = 8  # what a pass costs beside its rows, in rows

UNIT_ROUNDOFF = 2.0**-53
SLACK_FLOOR = 2.0**-40  # the factors' own roundings, with room
# Sums of integers are exact; as floats, multiplied by their unit, they err by at most n·2⁻⁵³ of the sensitivity: less
# than this for n < 2²⁵. The noise of scores and means grows by it.
RELEASE_SLACK = 1.0 + 2.0**-28
# A norm is taken as at least this share of Σ_t ‖a_t‖‖g_t‖, over √positions: the products that cancel are bounded by it.
NORM_FLOOR = 1.0 / 16.0


class Numerics(Document):
    """What a job is computed in. A function of public numbers, stored with the job and read back by every attempt.

    Attributes:
        passes: the type of forward and backward passes.
        sums: that of norms and of sums over records.
        rows_per_pass: P, the records of every pass, fillings included.
        positions: at most so many rows of an inner product are one record's.
        records_bound: at most so many training records are summed: a data set with more is not registered.
        sensitivity_slack: one unit changes a computed sum by at most this times C. The noise is scaled by it.
        filling: the expected share of a step's rows that only fill up.
    """

    passes: PassType
    sums: Literal["float64"] = "float64"
    rows_per_pass: Annotated[int, Field(ge=1)]
    positions: Annotated[int, Field(ge=1)]
    records_bound: Annotated[int, Field(ge=1)]
    sensitivity_slack: Annotated[float, Field(ge=1.0)]
    filling: Annotated[float, Field(ge=0.0, le=1.0)]

    @model_validator(mode="after")
    def _pays(self) -> Numerics:
        if self.sensitivity_slack < sensitivity_slack(self.records_bound, self.rows_per_pass, self.positions):
            raise ValueError("the slack of the sensitivity covers what sums may round")
        return self

    def of_one_record(self) -> Numerics:
        """The same with passes of one record: sound on any machine, and slow. More passes are added up, so that there
        is more to pay."""
        slack = sensitivity_slack(self.records_bound, 1, self.positions)
        return self.model_copy(update={"rows_per_pass": 1, "sensitivity_slack": slack, "filling": 0.0})


class NumericsReport(Document):
    """What an attempt ran in, as its `ready` event and its certificate say it.

    Attributes:
        physical_batch_size: records a pass: P, or 1 where the self-test found that products depend on neighbours.
        self_test: "passed"; "one_record" where passes hold one record each; "public_data" is not tested.
    """

    device: str
    device_name: str
    passes: PassType
    sums: Literal["float64"] = "float64"
    rows_per_pass: Annotated[int, Field(ge=1)]
    physical_batch_size: Annotated[int, Field(ge=1)]
    threads: Annotated[int, Field(ge=1)]
    torch: str
    self_test: SelfTest
    sensitivity_slack: Annotated[float, Field(ge=1.0)]


@dataclass(frozen=True)
class PublicSizes:
    """What numerics may know of a data set: all of it public.

    Attributes:
        records: of the training part, as declared; of users where a record is all of one.
        records_per_unit: k, at most so many records of each unit.
        features, outputs: of a record.
        sparse: its features are.
    """

    records: int
    records_per_unit: int
    features: int
    outputs: int
    sparse: bool


def numerics_of(spec: JobSpec, sizes: PublicSizes, features: Features) -> Numerics:
    """The numerics of a job; see Numerics.

    Args:
        features: the data set's, as declared: of interactions, how many items there are.
    """
    held, positions = _held_numbers(spec, sizes, features), _positions(spec)
    passes = pass_type(spec)
    linear = spec.model.kind in ("linear", "matrix_factorization")
    budget, most = (CACHE_BYTES, MOST_LINEAR_ROWS) if linear else (PASS_BYTES, MOST_ROWS)
    cap = _bounded(max(1, min(most, budget // (held * BYTES[passes]))), spec.runtime.physical_batch_size)
    expected, spread = _batch(spec, sizes.records)
    per_unit = sizes.records_per_unit
    rows = _cheapest_rows(cap, expected * per_unit, spread * per_unit)
    computed = _expected_passes(rows, expected * per_unit, spread * per_unit) * rows
    bound = records_bound(sizes.records) * per_unit
    return Numerics(
        passes=passes,
        rows_per_pass=rows,
        positions=positions,
        records_bound=bound,
        sensitivity_slack=sensitivity_slack(bound, rows, positions),
        filling=max(0.0, 1.0 - expected * per_unit / computed),
    )


def pass_type(spec: JobSpec) -> PassType:
    """`auto` is float32. Linear models and matrix factorization are computed in float64."""
    if spec.model.kind in ("linear", "matrix_factorization"):
        return "float64"
    return "float32" if spec.runtime.dtype == "auto" else spec.runtime.dtype


def records_bound(records: int) -> int:
    """How many units a training part may hold whose public count is `records`: twice that, and 64 for small ones.

    A data set with more is refused when it is registered, and by every attempt.
    """
    return 2 * records + 64


def sensitivity_slack(records: int, rows: int, positions: int) -> float:
    """A bound of ‖S − S′‖ / C for computed sums S, S′ over at most `records` records that differ in one unit.

    In the reals the sums differ by at most C. Each is computed from passes of P rows: a pass's product adds up at most
    m = P · positions terms a coordinate, and errs by at most γ_m Σ_i c_i s_i with s_i = Σ_t ‖a_it‖‖g_it‖, of which
    c_i s_i ≤ R C with R = 16 √positions, as norms are taken as at least s_i / R (1 where there is one position). Adding
    the passes' sums errs by u C n for each of them. The bound is 1 + 2 (n γ_m R + n u (n/P + 1)) + 2⁻⁴⁰.

    Args:
        records: n, the public bound on what is summed.
        rows: P.
        positions: of a record in one product.
    """
    ratio = 1.0 if positions == 1 else math.sqrt(positions) / NORM_FLOOR
    terms = rows * positions + 8
    gamma = terms * UNIT_ROUNDOFF / (1.0 - terms * UNIT_ROUNDOFF)
    added = UNIT_ROUNDOFF * (records / rows + 2.0)
    return 1.0 + 2.0 * records * (gamma * ratio + added) * 1.01 + SLACK_FLOOR


def _batch(spec: JobSpec, records: int) -> tuple[float, float]:
    """The expected number of units of a step, and its standard deviation (of a split, where all take part)."""
    if spec.sampling.kind == "full_batch":
        return float(records), math.sqrt(records)
    batch = spec.sampling.expected_batch_size
    return float(batch), math.sqrt(batch * max(0.0, 1.0 - batch / records))


def _bounded(most: int, asked: Literal["auto"] | int) -> int:
    """The largest P that is allowed: what was asked for, in whole units of rows where they fit."""
    if asked == "auto" or asked >= most:
        return most
    return asked if most < ROW_UNIT else -(-asked // ROW_UNIT) * ROW_UNIT


def _cheapest_rows(cap: int, expected: float, spread: float) -> int:
    """The P up to the cap whose passes cost least in expectation, with the rows that fill up and PASS_OVERHEAD."""
    allowed = range(ROW_UNIT, cap + 1, ROW_UNIT) if cap >= ROW_UNIT else [each for each in FEW_ROWS if each <= cap]
    return min(allowed, key=lambda rows: _expected_passes(rows, expected, spread) * (rows + PASS_OVERHEAD))


def _expected_passes(rows: int, expected: float, spread: float) -> float:
    """E⌈K/P⌉ for K ~ N(expected, spread²), at least 1: Σ_j P(K > j P)."""
    spread = max(spread, 1e-9)
    first = max(0, math.floor((expected - 6.0 * spread) / rows))
    last = max(first, math.ceil((expected + 6.0 * spread) / rows))
    if last - first > 64:  # so many passes that where the last one ends is as good as uniform
        return expected / rows + 0.5
    tails = (math.erfc((at * rows - expected) / (spread * math.sqrt(2.0))) / 2.0 for at in range(first, last + 1))
    return max(1.0, first + sum(tails))


def _positions(spec: JobSpec) -> int:
    """At most so many rows of one product belong to one record; a tied matrix is used twice."""
    model = spec.model
    if isinstance(model, RecommenderModel):
        return 2 * model.max_length
    if model.kind == "hf":
        return 2 * model.max_length
    if isinstance(model, CnnModel):
        return max(positions for _, _, _, positions in CONVOLUTIONS[model.preset])
    return 1


# Of each convolution: channels in and out, the kernel's side, and how many places it is applied at.
CONVOLUTIONS: dict[str, tuple[tuple[int, int, int, int], ...]] = {
    "conv2": ((1, 16, 8, 14 * 14), (16, 32, 4, 5 * 5)),
    "conv5": ((3, 32, 3, 32 * 32), (32, 64, 3, 16 * 16), (64, 64, 3, 8 * 8), (64, 128, 3, 4 * 4)),
}


def _held_numbers(spec: JobSpec, sizes: PublicSizes, features: Features) -> int:
    """How many numbers a pass holds of one record, about: layers' outputs and the gradients there, and scores."""
    model = spec.model
    if model.kind == "hf":
        return model.pass_numbers or PASS_BYTES
    if model.kind == "matrix_factorization":
        return 6 * model.dim
    if isinstance(model, RecommenderModel):
        return _of_recommender(spec, features.items.rows if features.kind == "interactions" else 1)
    if isinstance(model, MlpModel):
        return 4 * (sizes.features + sum(model.hidden) + sizes.outputs)
    if isinstance(model, CnnModel):
        return 2 * sizes.features + sum(
            6 * outputs * places + inputs * kernel**2 * (places + outputs)
            for inputs, outputs, kernel, places in CONVOLUTIONS[model.preset]
        )
    inputs = (model.extractor.features if model.extractor else None) or sizes.features
    return 4 * sizes.outputs + (0 if sizes.sparse else inputs)


def _of_recommender(spec: JobSpec, items: int) -> int:
    model = spec.model
    if not isinstance(model, RecommenderModel):
        raise TypeError("no recommender")
    length, scored = model.max_length, model.max_length if model.loss_positions == "all" else 1
    scores = 2 * (items + 1) * scored
    if model.kind == "transformer_rec":
        corrected = model.re_attention.mode != "off"  # weights, logits, exponents, and a variance beside each output
        layers = length * model.dim * (6 + 20 * model.blocks) * (2 if corrected else 1)
        attention = 2 * model.blocks * model.heads * length**2 * (4 if corrected else 1)
        return layers + attention + scores
    gates, layers = (3 if model.kind == "gru_rec" else 4), getattr(model, "layers", 1)
    return length * model.dim * (2 + 4 * gates * layers + 8 * layers) + scores
