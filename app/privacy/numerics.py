"""Numerics: a job's array shapes and number types, fixed at admission from public numbers alone.

A matrix product rounds a record's row differently for different numbers of rows, and deep networks amplify a last bit
to a change of order 1. So every pass over private records has one public number of rows, padded with rows of weight 0:
a record's numbers then depend on that record alone (docs/privacy.md, "A record's numbers are its own"). This module
bounds what rounding may still add to a sum's sensitivity, and the noise covers this bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import Field, model_validator

from app.contracts.base import Document
from app.contracts.dataset_spec import Features, Interactions
from app.contracts.job_spec import CnnModel, JobSpec, LinearModel, MatrixFactorizationModel, MlpModel
from app.contracts.model_settings import RecordSizes
from app.contracts.sampling import Poisson

PassType = Literal["bfloat16", "float32", "float64"]
SumType = Literal["float32", "float64"]
TotalType = Literal["float64", "integers"]
Draw = Literal["coins", "gaps"]
Arithmetic = Literal[1, 2]
SelfTest = Literal["passed", "one_record", "public_data"]
BYTES: dict[PassType, int] = {"bfloat16": 2, "float32": 4, "float64": 8}

ROW_UNIT = 48  # 16 for rows and 12 for columns: whole tiles of the products, so a row's position does not matter
FEW_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24)  # where 48 records of a large language model exceed PASS_BYTES
SMALL_ROWS = (8, 16)  # a network's pass, where a step has fewer records than 48: parts of tiles that pass the self-test
PASS_BYTES = 2**28  # a network's pass: larger passes leave the caches and are slower
CACHE_BYTES = 2**24  # a linear model's pass: both of its products find the features in the cache
MOST_ROWS = 4080  # a network's pass: more rows are no faster
MOST_LINEAR_ROWS = 65_520
IN_MEMORY_BYTES = 2**29  # of records_bound records: larger parts stay on disk, and passes read them from a map
KEPT_BYTES = 2**30  # a full batch's passes are kept up to this size
SPARSE_BYTES, RATING_BYTES = 2048, 24  # of a stored record
PASS_OVERHEAD = 8  # the fixed cost of a pass, in rows
SPARSE_ENTRIES = 32  # of a sparse row: a pass writes one number for each feature, as so many rows' entries take

UNIT_ROUNDOFF = 2.0**-53
UNIT_ROUNDOFF32 = 2.0**-24
# Records that float32 adds before float64 continues: rows of a pass that begin at a multiple of it.
GROUP = ROW_UNIT
DENSE_GROUP = 2 * ROW_UNIT  # of networks with wide linear layers: each group's product is added to all weights
SLACK_FLOOR = 2.0**-40  # the rounding of the factors themselves, with margin
# Sums of integers are exact. As floats, multiplied by their unit, they err by at most n·2⁻⁵³ of the sensitivity: less
# than this for n < 2²⁵. The noise of scores and means grows by this factor.
RELEASE_SLACK = 1.0 + 2.0**-28
# Totals in integers: a total has at most so many binary digits, so that 64 bits hold it; and one pass's sum so many,
# so that adding 1.5 · 2⁵² rounds it to a whole number.
TOTAL_BITS, PASS_BITS = 62, 51
MOST_GRID_SLACK = 0.01  # what rounding to the grid may add to the noise; above it totals are in float64
TOTAL_MARGIN = 1.01  # for the rounding of a pass's own sum
# A computed norm is raised to at least this share of Σ_t ‖a_t‖‖g_t‖, over √positions. This bounds products that cancel.
NORM_FLOOR = 1.0 / 16.0


class Numerics(Document):
    """A job's number types and shapes: a function of public numbers, stored with the job and read by every attempt.

    Attributes:
        passes: the type of forward and backward passes.
        sums: the type of sums over records. float32: `group` records of a randomly ordered batch are added in float32,
            and the groups in float64 or as integers. So a network adds formed gradients and those of one position; the
            others are added in float64. Norms are in float64.
        group: how many records float32 adds; all of the smaller rest of a pass.
        totals: how the sums of passes are added. "integers": each is rounded to a multiple of `grid_unit`, and the
            multiples are added exactly, so neither their order nor the number of processes changes a bit. "float64" is
            that of jobs stored before there was a choice, of jobs without privacy, and of attempts whose grid would
            raise the noise by more than MOST_GRID_SLACK (see `of_numbers`).
        rows_per_pass: P, the records of every pass, padding included.
        positions: at most this many rows of an inner product belong to one record.
        records_bound: at most this many training records are summed, synthetic ones of an audit among them;
            registration refuses larger data sets.
        sensitivity_slack: one unit changes a computed sum by at most this times C. The noise is scaled by it. As
            stored it leaves out the grid of integer totals, which depends on the number of trained numbers: an attempt
            adds it (`of_numbers`), and its report includes it.
        filling: the expected share of padding among a step's rows.
        draw: how Poisson batches are drawn from the sampler's key. "coins" is that of jobs stored before there was a
            choice: they continue as they began, so a replay draws the same batches.
        arithmetic: in which order norms and sums are computed, and which tanh networks take. 1 is that of jobs stored
            before there was a choice: a replay repeats their bits.
    """

    passes: PassType
    sums: SumType = "float64"
    group: Annotated[int, Field(ge=GROUP, multiple_of=GROUP)] = GROUP
    rows_per_pass: Annotated[int, Field(ge=1)]
    positions: Annotated[int, Field(ge=1)]
    records_bound: Annotated[int, Field(ge=1)]
    sensitivity_slack: Annotated[float, Field(ge=1.0)]
    filling: Annotated[float, Field(ge=0.0, le=1.0)]
    draw: Draw = "coins"
    totals: TotalType = "float64"
    arithmetic: Arithmetic = 1

    @model_validator(mode="after")
    def _pays(self) -> Numerics:
        if self.sums == "float32" and self.arithmetic == 1 and (self.rows_per_pass % GROUP or self.positions > 1):
            raise ValueError(f"float32 sums need passes of whole groups of {GROUP} records with one position each")
        if self.sensitivity_slack < self._slack_of(self.rows_per_pass, self.sums):
            raise ValueError("`sensitivity_slack` must cover the rounding of sums")
        return self

    def of_one_record(self) -> Numerics:
        """Returns the same numerics with passes of one record and float64 sums: sound on any machine, but slow. It sums
        more passes, so the slack of float64 sums grows."""
        slack = sensitivity_slack(self.records_bound, 1, self.positions)
        changes = {"rows_per_pass": 1, "sums": "float64", "sensitivity_slack": slack, "filling": 0.0}
        return self.model_copy(update=changes)

    def of_rows(self, rows: int) -> Numerics:
        """Returns the same numerics with passes of fewer rows. It sums more passes, so the slack grows. Passes that are
        not whole groups have float64 sums."""
        sums: SumType = self.sums if rows % GROUP == 0 else "float64"
        slack = max(self.sensitivity_slack, self._slack_of(rows, sums))
        return self.model_copy(update={"rows_per_pass": rows, "sums": sums, "sensitivity_slack": slack})

    def of_numbers(self, numbers: int) -> Numerics:
        """Returns the same numerics for a model with so many trained numbers: integer totals add the grid's slack.

        Where that would exceed MOST_GRID_SLACK, totals are in float64, whose rounding `sensitivity_slack` has already
        if each pass is added once. A network adds each group, so it sums in float64 then. All of this follows from
        public sizes.
        """
        if self.totals == "float64":
            return self
        rows = self.rows_per_pass
        # In float32 one more record changes two groups, and each is rounded to the grid: at least two, of P's unit.
        added = grid_slack(max(self.records_bound, rows) if self._in_groups else self.records_bound, rows, numbers)
        if added > MOST_GRID_SLACK:
            wide = self._of_wide_sums() if self._in_groups else self
            return wide.model_copy(update={"totals": "float64"})
        return self.model_copy(update={"sensitivity_slack": self.sensitivity_slack + added})

    def _slack_of(self, rows: int, sums: SumType) -> float:
        """The slack of passes of so many rows."""
        sizes = (self.records_bound, rows, self.positions)
        if self.arithmetic == 1:  # stored before float64 sums beside float32 ones were paid for
            return sensitivity_slack(*sizes, sums, self.group)
        return paid_slack(*sizes, sums, self.group)

    def _of_wide_sums(self) -> Numerics:
        slack = max(self.sensitivity_slack, sensitivity_slack(self.records_bound, self.rows_per_pass, self.positions))
        return self.model_copy(update={"sums": "float64", "sensitivity_slack": slack})

    @property
    def _in_groups(self) -> bool:
        return self.sums == "float32" and (self.group > GROUP or self.arithmetic > 1)


class NumericsReport(Document):
    """The numerics of an attempt, as shown in its `ready` event and its certificate.

    Attributes:
        physical_batch_size: records per pass: P, or 1 if the self-test found products that depend on other rows.
        self_test: "passed"; "one_record": each pass holds one record; "public_data": not tested.
    """

    device: str
    device_name: str
    passes: PassType
    sums: SumType = "float64"
    totals: TotalType = "float64"
    rows_per_pass: Annotated[int, Field(ge=1)]
    physical_batch_size: Annotated[int, Field(ge=1)]
    threads: Annotated[int, Field(ge=1)]
    torch: str
    self_test: SelfTest
    sensitivity_slack: Annotated[float, Field(ge=1.0)]


@dataclass(frozen=True)
class PublicSizes:
    """The facts about a data set that numerics depend on: all of them are public.

    Attributes:
        records: the declared size of the training part, in records, or in users where a record holds a whole user.
        records_per_unit: k, at most this many records per unit.
        features, outputs: the numbers of features and outputs of a record.
        sparse: True if the features are sparse.
    """

    records: int
    records_per_unit: int
    features: int
    outputs: int
    sparse: bool


def numerics_of(spec: JobSpec, sizes: PublicSizes, features: Features) -> Numerics:
    """Chooses the numerics of a job; see Numerics.

    Args:
        features: the declared features of the data set; for interactions they give the number of items.
    """
    items = features.items.rows if isinstance(features, Interactions) else 1
    # A record's views are rows of their own, and positions of one record.
    held = (spec.model.held(RecordSizes(sizes.features, sizes.outputs, sizes.sparse, items)) or PASS_BYTES) * spec.views
    passes, positions = pass_type(spec, sizes), spec.model.positions() * spec.views
    budget, most = (CACHE_BYTES, MOST_LINEAR_ROWS) if spec.model.shallow else (PASS_BYTES, MOST_ROWS)
    cap = _bounded(max(1, min(most // spec.views, budget // (held * BYTES[passes]))), spec.runtime.physical_batch_size)
    expected, spread = _batch(spec, sizes.records)
    per_unit = sizes.records_per_unit
    largest = _largest(spec)
    made, spread = (expected, spread) if largest is None else (float(largest), 0.0)
    small = () if spec.model.shallow else SMALL_ROWS
    rows = _cheapest_rows(cap, made * per_unit, spread * per_unit, _pass_overhead(spec, sizes), small)
    computed = _expected_passes(rows, made * per_unit, spread * per_unit) * rows
    trained = spec.audit.trained if spec.audit is not None else 0
    bound = (records_bound(sizes.records) + trained) * per_unit
    narrow = _sums_in_float32(spec, sizes, passes, rows, bound, sequences=isinstance(features, Interactions))
    sums: SumType = "float32" if narrow else "float64"
    group = DENSE_GROUP if sums == "float32" and isinstance(spec.model, MlpModel | CnnModel) else GROUP
    return Numerics(
        passes=passes,
        sums=sums,
        group=group,
        rows_per_pass=rows,
        positions=positions,
        records_bound=bound,
        sensitivity_slack=paid_slack(bound, rows, positions, sums, group),
        filling=max(0.0, 1.0 - expected * per_unit / computed),
        draw="gaps",
        totals="float64" if spec.privacy is None else "integers",
        arithmetic=2,
    )


def fewer_rows(rows: int) -> int | None:
    """Returns the next smaller P to try where a pass does not fit in memory: about half; None after 1.

    >>> fewer_rows(240), fewer_rows(48), fewer_rows(1)
    (96, 24, None)
    """
    if rows >= 2 * ROW_UNIT:
        return rows // 2 // ROW_UNIT * ROW_UNIT
    return max((each for each in FEW_ROWS if each <= rows // 2), default=None)


def pass_type(spec: JobSpec, sizes: PublicSizes) -> PassType:
    """Returns the type of passes: `auto` is float32, but float64 for models that allow nothing else."""
    if spec.model.only_float64(sparse=sizes.sparse):
        return "float64"
    return "float32" if spec.runtime.dtype == "auto" else spec.runtime.dtype


def _sums_in_float32(
    spec: JobSpec, sizes: PublicSizes, passes: PassType, rows: int, bound: int, *, sequences: bool
) -> bool:
    """Returns True if sums over records may be in float32 (elsewhere they save nothing, decision 19).

    So they are in float32 passes of a linear model, of whole groups, or of a private network, with one record per unit
    and one view of it.
    """
    model = spec.model
    width = model.inputs(sizes.features) if isinstance(model, LinearModel) else sizes.features
    if spec.sampling.takes_all and not in_memory(bound, record_bytes(width, sparse=sequences, rating=False)):
        return False  # a secret order of all records would take memory for each, and read the disk out of order
    one = sizes.records_per_unit == 1 and spec.views == 1
    own = spec.clipping is None or spec.clipping.engine == "bookkeeping"
    if isinstance(model, MatrixFactorizationModel) or not (own and one and passes == "float32"):
        return False
    return rows % GROUP == 0 if isinstance(model, LinearModel) else spec.privacy is not None


def records_bound(records: int) -> int:
    """Bounds the units in a training part whose public count is `records`: 2 · records + 64.

    Registration and every attempt refuse a data set with more.

    >>> records_bound(1000)
    2064
    """
    return 2 * records + 64


def in_memory(records: int, record_bytes: int) -> bool:
    """Returns True if a part of at most this many records is loaded whole; public sizes decide.

    >>> in_memory(records_bound(60_000), 4 * 784), in_memory(records_bound(1_000_000), 4 * 100)
    (True, False)
    """
    return records * record_bytes <= IN_MEMORY_BYTES


def record_bytes(features: int, *, sparse: bool, rating: bool) -> int:
    """Returns a stored record's size; a guess where it varies, which must not depend on the records.

    Args:
        features: the model's inputs.
        sparse: they are stored sparsely.
        rating: the record is a rating.
    """
    return RATING_BYTES if rating else SPARSE_BYTES if sparse else 4 * features


def sensitivity_slack(records: int, rows: int, positions: int, sums: SumType = "float64", group: int = GROUP) -> float:
    """Bounds ‖S − S′‖ / C for computed sums S, S′ over at most `records` records that differ in one unit.

    In the reals the sums differ by at most C. Each sum is computed from passes of P rows. A pass's product adds at most
    m = P · positions terms per coordinate, so it errs by at most γ_m Σ_i c_i s_i with s_i = Σ_t ‖a_it‖‖g_it‖. Norms are
    raised to at least s_i / R with R = 16 √positions (R = 1 for one position), so c_i s_i ≤ R C. Adding each pass's sum
    errs by u C n. The bound is 1 + 2 (n γ_m R + n u (n/P + 1)) + 2⁻⁴⁰.

    In float32, groups of g records are added in float32, and groups in float64. In a random order one more record
    changes two groups (docs/privacy.md). Four group sums err by at most γ′ g C each, γ′ = γ of g + 4 float32 roundings,
    and float64 adds P/48 + n/P sums: 1 + 4 g γ′ + 2 n u (P/48 + n/P + 3) + 2⁻⁴⁰. With more positions some parameters
    are added in float64: both bounds are paid.

    Args:
        records: n, the public bound on the number of summed records.
        rows: P.
        positions: how many rows of one product belong to a record.
        sums: the type of sums over records.
        group: g.
    """
    if sums == "float32":
        terms = (group + 4) * UNIT_ROUNDOFF32
        added = UNIT_ROUNDOFF * (max(1.0, rows / GROUP) + records / rows + 3.0)
        wide = 0.0 if positions == 1 else sensitivity_slack(records, rows, positions) - 1.0
        return 1.0 + 4.0 * group * terms / (1.0 - terms) + 2.0 * records * added * 1.01 + SLACK_FLOOR + wide
    ratio = 1.0 if positions == 1 else math.sqrt(positions) / NORM_FLOOR
    terms = rows * positions + 8
    gamma = terms * UNIT_ROUNDOFF / (1.0 - terms * UNIT_ROUNDOFF)
    added = UNIT_ROUNDOFF * (records / rows + 2.0)
    return 1.0 + 2.0 * records * (gamma * ratio + added) * 1.01 + SLACK_FLOOR


def paid_slack(records: int, rows: int, positions: int, sums: SumType = "float64", group: int = GROUP) -> float:
    """The slack of a job whose sums are of this type: divided gradients, and those of a C that float32 cannot hold, are
    added in float64 in any case. See sensitivity_slack."""
    return max(sensitivity_slack(records, rows, positions, sums, group), sensitivity_slack(records, rows, positions))


def grid_unit(records: int, rows: int, max_grad_norm: float) -> float:
    """Returns the unit of integer totals: the smallest power of two g with 1.01 · N C < 2⁶² g and 1.01 · P C < 2⁵¹ g.

    No sum over at most N = `records` records that are clipped to C then leaves 64 bits, and no pass's sum 52.

    >>> grid_unit(10**6, 48, 1.0) == 2.0**-42
    True
    """
    most = max(records, rows * 2 ** (TOTAL_BITS - PASS_BITS))
    return math.ldexp(1.0, math.frexp(TOTAL_MARGIN * most * max_grad_norm)[1] - TOTAL_BITS)


def grid_slack(records: int, rows: int, numbers: int) -> float:
    """Bounds how much rounding to the grid adds to ‖S − S′‖ / C, for a model with so many trained numbers.

    Each of at most N/P + 1 passes is off by at most g/2 in each number, so by √p g/2 in norm, on either side. g/C is at
    most twice the unit of C = 1.
    """
    return 1.01 * (records / rows + 1.0) * math.sqrt(numbers) * 2.0 * grid_unit(records, rows, 1.0)


def _batch(spec: JobSpec, records: int) -> tuple[float, float]:
    """Returns the expected number of units in a step and its standard deviation (in full batch: of a random split)."""
    if spec.sampling.takes_all:
        return float(records), math.sqrt(records)
    batch = spec.sampling.batch(records)
    return float(batch), math.sqrt(batch * max(0.0, 1.0 - batch / records))


def _largest(spec: JobSpec) -> int | None:
    """Returns the bound on a step's units for which all its steps make passes; None if there is none."""
    return spec.sampling.largest_batch if isinstance(spec.sampling, Poisson) else None


def _bounded(most: int, asked: Literal["auto"] | int) -> int:
    """Returns the largest P allowed: the requested one, rounded up to ROW_UNIT where that fits."""
    if asked == "auto" or asked >= most:
        return most
    return asked if most < ROW_UNIT else -(-asked // ROW_UNIT) * ROW_UNIT


def _pass_overhead(spec: JobSpec, sizes: PublicSizes) -> int:
    """Returns the fixed cost of a pass, in rows."""
    model = spec.model
    if not isinstance(model, LinearModel) or not model.is_sparse(sizes.sparse):
        return -(-PASS_OVERHEAD // spec.views)
    return max(PASS_OVERHEAD, model.inputs(sizes.features) // SPARSE_ENTRIES)


@lru_cache(maxsize=1024)  # tens of milliseconds, and a study's trials and a form's quotes ask alike
def _cheapest_rows(cap: int, expected: float, spread: float, overhead: int, small: tuple[int, ...]) -> int:
    """Returns the P up to the cap with the least expected cost of passes, padding and their overhead included.

    Args:
        small: further P, for steps that mostly are one such pass.
    """
    allowed: list[int]
    if cap >= ROW_UNIT:
        allowed = [*(each for each in small if expected + spread <= each), *range(ROW_UNIT, cap + 1, ROW_UNIT)]
    else:
        allowed = [each for each in FEW_ROWS if each <= cap]
    return min(allowed, key=lambda rows: _expected_passes(rows, expected, spread) * (rows + overhead))


def _expected_passes(rows: int, expected: float, spread: float) -> float:
    """Returns E⌈K/P⌉ for K ~ N(expected, spread²), at least 1: Σ_j P(K > j P)."""
    spread = max(spread, 1e-9)
    first = max(0, math.floor((expected - 6.0 * spread) / rows))
    last = max(first, math.ceil((expected + 6.0 * spread) / rows))
    if last - first > 64:  # with this many passes the last one's end is practically uniform
        return max(1.0, expected / rows + 0.5)
    tails = (math.erfc((at * rows - expected) / (spread * math.sqrt(2.0))) / 2.0 for at in range(first, last + 1))
    return max(1.0, first + sum(tails))
