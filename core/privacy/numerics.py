"""Numerics: a job's array shapes and number types, fixed at admission from public numbers alone.

Every sum over private records has one public number of rows, and is cut into passes of P rows. A record sits in one of
these rows; the others are empty (docs/theorems.md, "A record has a place of its own"). So neighbouring data sets differ
in one row. This module bounds what rounding may still add to a sum's sensitivity, and the noise covers this bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from core.contracts.base import Document, is_ieee, is_none
from core.contracts.dataset_spec import Features, Interactions
from core.contracts.job_spec import CnnModel, JobSpec, LinearModel, MatrixFactorizationModel, MlpModel
from core.contracts.model_settings import RecordSizes
from core.contracts.optimizers import DpZo, PublicSideSettings
from core.contracts.runtime import Fp32Precision
from core.contracts.sampling import Cyclic, Poisson
from core.contracts.slots import PartSlots
from core.contracts.table import TableFeatures
from core.privacy.slot_numbers import rows_of_step

PassType = Literal["bfloat16", "float32", "float64"]
SumType = Literal["float32", "float64"]
TotalType = Literal["float64", "integers"]
SelfTest = Literal["passed", "one_record", "public_data", "not_needed"]
Kernels = Literal["avx512", "avx2", "plain", "python"]
BYTES: dict[PassType, int] = {"bfloat16": 2, "float32": 4, "float64": 8}

ROW_UNIT = 48  # a linear model's float32 groups: whole tiles of its products
TILE_ROWS = 16
NETWORK_ROWS = (1, 2, 3, 4, 6, *range(8, 96, 4))  # a network's pass below 96 rows; above, a multiple of 16
PASS_BYTES = 2**28  # a network's pass: larger passes leave a processor's caches and are slower
GPU_PASS_BYTES = 2**34  # a pass on a GPU, which is fast on many rows at once; smaller where that does not fit
CACHE_BYTES = 2**24  # a linear model's pass: both of its products find the features in the cache
MOST_ROWS = 4080  # a network's pass: more rows are no faster
MOST_LINEAR_ROWS = 65_520
KEPT_BYTES = 2**30  # a full batch's passes are kept up to this size
PASS_OVERHEAD = 8  # the fixed cost of a pass, in rows
SPARSE_SAVES = 3  # a sparse row's entry takes as long as so many dense numbers
SPARSE_ENTRIES = 32  # of a sparse row: a pass writes one number for each feature, as so many rows' entries take

UNIT_ROUNDOFF = 2.0**-53
UNIT_ROUNDOFF32 = 2.0**-24
GROUP = ROW_UNIT  # records that float32 adds before float64 or integers continue
DENSE_GROUP = 2 * ROW_UNIT  # of networks with wide linear layers: each group's product is added to all weights
SLACK_FLOOR = 2.0**-40  # the rounding of the factors themselves, with margin
RELEASE_FLOOR = 2.0**-28  # of the noise of scores and means
# Totals in integers: a total has at most so many binary digits, so that 64 bits hold it; and one pass's sum so many,
# so that adding 1.5 · 2⁵² rounds it to a whole number.
TOTAL_BITS, PASS_BITS = 62, 51
TOTAL_MARGIN = 1.01  # for the rounding of a pass's own sum
# A computed norm is raised to at least this share of Σ_t ‖a_t‖‖g_t‖, over √positions. This bounds products that cancel.
NORM_FLOOR = 1.0 / 16.0
OLD_MEMBERS = ("records_bound", "draw")  # of documents of releases before `Arithmetic.PLACES`


class Arithmetic(IntEnum):
    """What releases did that admitted jobs; a private job runs with PLACES alone. Stored as these numbers.

    TORCH_TANH: sums over records in an order by their count, and torch's tanh.
    POLYNOMIAL_TANH: networks compute tanh as a ratio of polynomials (decision 31).
    PLACES: every record has a place of its own (decision 32).
    """

    TORCH_TANH = 1
    POLYNOMIAL_TANH = 2
    PLACES = 3


class Numerics(Document):
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

    passes: PassType
    fp32_precision: Fp32Precision = Field(default="ieee", exclude_if=is_ieee)
    sums: SumType = "float64"
    group: Annotated[int, Field(ge=GROUP, multiple_of=GROUP)] = GROUP
    rows_per_pass: Annotated[int, Field(ge=1)]
    rows_per_step: Annotated[int, Field(ge=1)] | None = Field(default=None, exclude_if=is_none)
    positions: Annotated[int, Field(ge=1)]
    sensitivity_slack: Annotated[float, Field(ge=1.0)]
    filling: Annotated[float, Field(ge=0.0, le=1.0)]
    totals: TotalType = "float64"
    arithmetic: Arithmetic = Arithmetic.TORCH_TANH

    @model_validator(mode="before")
    @classmethod
    def _without_old_members(cls, document: Any) -> Any:
        if isinstance(document, dict) and document.get("arithmetic", Arithmetic.TORCH_TANH) != Arithmetic.PLACES:
            return {name: value for name, value in document.items() if name not in OLD_MEMBERS}
        return document

    @model_validator(mode="after")
    def _covers_its_sums(self) -> Numerics:
        if self.arithmetic is not Arithmetic.PLACES:
            return self
        if self.rows_per_step is None:
            raise ValueError("numerics with places need `rows_per_step`")
        group = self.group if self.sums == "float32" else None
        smallest = sensitivity_slack(self.rows_per_step, self.rows_per_pass, self.positions, group)
        if self.sensitivity_slack < smallest:
            raise ValueError(f"`sensitivity_slack` must cover the rounding of sums: at least {smallest}")
        return self

    def of_rows(self, rows: int) -> Numerics:
        """Returns the same numerics with passes of fewer rows. Their sums round less, so the slack covers them."""
        if rows > self.rows_per_pass:
            raise ValueError("the slack covers passes of at most `rows_per_pass` rows")
        return self.model_copy(update={"rows_per_pass": rows})

    def of_numbers(self, numbers: int, rows: int, records_per_unit: int) -> Numerics:
        """Returns the same numerics for a model with so many trained numbers: integer totals add the grid's slack.

        Args:
            rows: the most rows of one sum.
            records_per_unit: k.
        """
        if self.totals == "float64":
            return self
        added = grid_slack(rows, self.rows_per_pass, numbers, records_per_unit)
        return self.model_copy(update={"sensitivity_slack": self.sensitivity_slack + added})


class NumericsReport(Document):
    """The numerics of an attempt, as shown in its `ready` event and its certificate.

    Attributes:
        rows_per_step: R; None in attempts of earlier releases.
        physical_batch_size: rows per pass: P, or 1 if the self-test found an operation whose rows depend on each other.
        self_test: "passed"; "one_record": each pass holds one record; "public_data": not tested;
            "not_needed": the job adds integers alone, which no order or place changes.
        kernels: the instructions of the worker's compiled parts of a step; "python": it has none, which makes steps
            slower and changes no bit. None in attempts of earlier releases.
        packages, code: see worker.attempt.code_release; None in attempts of earlier releases.
    """

    device: str
    device_name: str
    passes: PassType
    fp32_precision: Fp32Precision = Field(default="ieee", exclude_if=is_ieee)
    sums: SumType = "float64"
    totals: TotalType = "float64"
    rows_per_pass: Annotated[int, Field(ge=1)]
    rows_per_step: Annotated[int, Field(ge=1)] | None = Field(default=None, exclude_if=is_none)
    physical_batch_size: Annotated[int, Field(ge=1)]
    threads: Annotated[int, Field(ge=1)]
    torch: str
    self_test: SelfTest
    sensitivity_slack: Annotated[float, Field(ge=1.0)]
    kernels: Kernels | None = Field(default=None, exclude_if=is_none)
    packages: str | None = Field(default=None, exclude_if=is_none)
    code: str | None = Field(default=None, exclude_if=is_none)


@dataclass(frozen=True)
class PublicSizes:
    """The facts about a data set that numerics depend on: all of them are public.

    Attributes:
        records: the declared size of the training part, in records, or in users where a record holds a whole user.
        records_per_unit: k, at most this many records per unit.
        features, outputs: the numbers of features and outputs of a record.
        sparse: True if the features are sparse.
        slots: the places of the training part.
    """

    records: int
    records_per_unit: int
    features: int
    outputs: int
    sparse: bool
    slots: PartSlots


def has_sparse_rows(spec: JobSpec, features: Features) -> bool:
    """Returns True if a linear model reads a table's records as sparse rows: each has a public number of entries.

    Where they are few. Engines and audits that form dense records, private means and types that a job names stay dense.
    """
    model, plain = spec.model, spec.clipping is None or spec.clipping.engine == "bookkeeping"
    if not isinstance(model, LinearModel) or not isinstance(features, TableFeatures):
        return False
    plain = plain and model.extractor is None and model.center is None and spec.audit is None
    plain = plain and not isinstance(spec.optimizer, PublicSideSettings) and spec.runtime.dtype == "auto"
    return plain and SPARSE_SAVES * features.entries <= features.width


def sizes_of(spec: JobSpec, sizes: PublicSizes, features: Features) -> PublicSizes:
    """Returns a data set's sizes as a job's model reads them: a table's records may be sparse rows."""
    return replace(sizes, sparse=True) if has_sparse_rows(spec, features) else sizes


def numerics_of(spec: JobSpec, sizes: PublicSizes, features: Features) -> Numerics:
    """Chooses the numerics of a job; see Numerics.

    Args:
        features: the declared features of the data set; for interactions they give the number of items.
    """
    items = features.items.rows if isinstance(features, Interactions) else 1
    # A record's views are rows of their own, and positions of one record.
    numbers = (
        spec.model.held(RecordSizes(sizes.features, sizes.outputs, sizes.sparse, items)) or PASS_BYTES
    ) * spec.views
    passes, positions = pass_type(spec, sizes), spec.model.positions() * spec.views
    if isinstance(spec.optimizer, DpZo):  # a record adds one number
        positions = 1
    budget, largest = (CACHE_BYTES, MOST_LINEAR_ROWS) if spec.model.shallow else (PASS_BYTES, MOST_ROWS)
    if spec.runtime.device == "cuda":
        budget = GPU_PASS_BYTES
    cap = max(1, min(largest // spec.views, budget // (numbers * BYTES[passes])))
    if spec.runtime.physical_batch_size != "auto":
        cap = min(cap, spec.runtime.physical_batch_size)
    rows_per_step = _rows_per_step(spec, sizes)
    rows = cheapest_rows(cap, rows_per_step, _pass_overhead(spec, sizes), linear=spec.model.shallow)
    k = sizes.records_per_unit
    narrow = _sums_in_float32(spec, passes)
    group = DENSE_GROUP if narrow and isinstance(spec.model, MlpModel | CnnModel) else GROUP
    computed = -(-rows_per_step // rows) * rows
    return Numerics(
        passes=passes,
        fp32_precision=spec.runtime.fp32_precision,
        sums="float32" if narrow else "float64",
        group=group,
        rows_per_pass=rows,
        rows_per_step=rows_per_step,
        positions=positions,
        sensitivity_slack=sensitivity_slack(most_rows(spec, sizes), rows, positions, group if narrow else None),
        filling=max(0.0, 1.0 - spec.sampling.batch(sizes.records) * k / computed),
        totals="float64" if spec.privacy is None else "integers",
        arithmetic=Arithmetic.PLACES,
    )


def most_rows(spec: JobSpec, sizes: PublicSizes) -> int:
    """Returns the most rows of one sum. An audit's synthetic records are a sum of their own, added in float64: that
    rounds the records' once more, so these count twice."""
    rows = _drawn_rows(spec, sizes) if spec.sampling.is_sampled else sizes.slots.rows
    trained = spec.audit.trained if spec.audit is not None else 0
    return 2 * rows + trained * sizes.records_per_unit if trained else rows


def release_slack(rows: int) -> float:
    """By how much the noise of a score or a mean over so many rows grows.

    Sums of integers are exact. As floats, multiplied by their unit, they err by two roundings on either side: by at
    most 4 · 2⁻⁵³ · rows of the sensitivity.

    >>> release_slack(1000) == 1.0 + 2.0**-28, release_slack(2**30) > 1.0 + 2.0**-21
    (True, True)
    """
    return 1.0 + max(RELEASE_FLOOR, 5.0 * rows * UNIT_ROUNDOFF)


def fewer_rows(rows: int) -> int | None:
    """Returns the next smaller P to try where a pass does not fit in memory: about half; None after 1.

    >>> fewer_rows(240), fewer_rows(48), fewer_rows(1)
    (96, 24, None)
    """
    if rows >= 2 * ROW_UNIT:
        return rows // 2 // ROW_UNIT * ROW_UNIT
    return rows // 2 or None


def pass_type(spec: JobSpec, sizes: PublicSizes) -> PassType:
    """Returns the type of passes: `auto` is float32, but float64 for models that allow nothing else."""
    if spec.model.only_float64(sparse=sizes.sparse):
        return "float64"
    return "float32" if spec.runtime.dtype == "auto" else spec.runtime.dtype


def _sums_in_float32(spec: JobSpec, passes: PassType) -> bool:
    """Returns True if sums over rows are in float32, by groups: in float32 passes of a linear model of one view, or of
    a private network that our own engine clips (elsewhere they save nothing, decision 19). Divided gradients are added
    in float64: a job that always divides does not pay for the rounding of float32. Nor does one that adds slopes."""
    model, keeps_books = spec.model, spec.clipping is None or spec.clipping.engine == "bookkeeping"
    wide = isinstance(model, MatrixFactorizationModel) or isinstance(spec.optimizer, DpZo)
    wide = wide or (spec.privacy is not None and spec.optimizer.divides_always)
    if wide or not keeps_books or passes != "float32":
        return False
    return spec.views == 1 if isinstance(model, LinearModel) else spec.privacy is not None


def sensitivity_slack(rows: int, rows_per_pass: int, positions: int, group: int | None = None) -> float:
    """Bounds ‖S − S′‖ / C for computed sums S, S′ that differ in the records of one unit, but for the grid's rounding.

    In the reals the sums differ by at most C. The unit's k records sit in k rows, and each weighs at most C/k; passes
    and groups without them have the same bits. A pass's product adds at most m = P · positions + 8 terms a coordinate,
    so it errs by at most γ_m Σ_i c_i s_i with s_i = Σ_t ‖a_it‖‖g_it‖. Norms are raised to at least s_i / R with
    R = 16 √positions (R = 1 for one position), so c_i s_i ≤ R C/k. Adding its groups in float64 errs by u (P/48 + 2) of
    P C/k. Two passes (one on either side) for each record:

        2 · 1.01 · P (γ_m R + u (P/48 + 2))

    In float32 a group of g rows errs by at most γ′ g C/k, γ′ = γ of g + 4 float32 roundings: 2 g γ′. Both are paid, as
    some parameters are added in float64. The total, of at most N rows, is an integer that becomes a float64 once:
    2 · 1.01 · N u, on both sides. Last comes 2⁻⁴⁰.

    Args:
        rows: N, the most rows of one sum.
        rows_per_pass: P.
        positions: how many rows of one product belong to a record.
        group: g; None: all sums are in float64.
    """
    terms = rows_per_pass * positions + 8
    gamma = terms * UNIT_ROUNDOFF / (1.0 - terms * UNIT_ROUNDOFF)
    ratio = 1.0 if positions == 1 else math.sqrt(positions) / NORM_FLOOR
    wide = rows_per_pass * (gamma * ratio + UNIT_ROUNDOFF * (rows_per_pass / GROUP + 2.0))
    narrow = 0.0
    if group is not None:
        roundings = (group + 4) * UNIT_ROUNDOFF32
        narrow = group * roundings / (1.0 - roundings)
    return 1.0 + 2.0 * (narrow + 1.01 * (wide + rows * UNIT_ROUNDOFF)) + SLACK_FLOOR


def grid_unit(rows: int, rows_per_pass: int, max_grad_norm: float) -> float:
    """Returns the unit of integer totals: the smallest power of two g with 1.01 · N C < 2⁶² g and 1.01 · P C < 2⁵¹ g.

    No sum over at most N = `rows` records that are clipped to C then leaves 64 bits, and no pass's sum 52.

    >>> grid_unit(10**6, 48, 1.0) == 2.0**-42
    True
    """
    range_rows = max(rows, rows_per_pass * 2 ** (TOTAL_BITS - PASS_BITS))
    return math.ldexp(1.0, math.frexp(TOTAL_MARGIN * range_rows * max_grad_norm)[1] - TOTAL_BITS)


def grid_slack(rows: int, rows_per_pass: int, numbers: int, records_per_unit: int) -> float:
    """Bounds how much rounding to the grid adds to ‖S − S′‖ / C, for a model with so many trained numbers.

    Each of at most k groups that hold the unit's records is off by at most g/2 in each number, so by √p g/2 in norm, on
    either side: k √p g. g/C is at most twice the unit of C = 1.
    """
    return records_per_unit * math.sqrt(numbers) * 2.0 * grid_unit(rows, rows_per_pass, 1.0)


def _rows_per_step(spec: JobSpec, sizes: PublicSizes) -> int:
    """Returns R; without privacy the records that a step takes in the mean."""
    if spec.privacy is None:
        return max(1, spec.sampling.batch(sizes.records) * sizes.records_per_unit)
    if spec.sampling.is_sampled:
        return _drawn_rows(spec, sizes)
    if isinstance(spec.sampling, Cyclic):
        return min(-(-sizes.slots.units * sizes.records_per_unit // spec.sampling.batches), sizes.slots.rows)
    return sizes.slots.rows


def _drawn_rows(spec: JobSpec, sizes: PublicSizes) -> int:
    """Returns the rows of a Poisson step: those of its `largest_batch`, or so many that no draw exceeds them."""
    k, largest_batch = (
        sizes.records_per_unit,
        spec.sampling.largest_batch if isinstance(spec.sampling, Poisson) else None,
    )
    if largest_batch is not None:
        return min(largest_batch * k, sizes.slots.rows)
    return rows_of_step(sizes.slots, spec.sampling.rate(sizes.records), k)


def _pass_overhead(spec: JobSpec, sizes: PublicSizes) -> int:
    """Returns the fixed cost of a pass, in rows."""
    model = spec.model
    if not isinstance(model, LinearModel) or not model.is_sparse(sizes.sparse):
        return -(-PASS_OVERHEAD // spec.views)
    return max(PASS_OVERHEAD, model.inputs(sizes.features) // SPARSE_ENTRIES)


@lru_cache(1024)  # it tries thousands, and a service's plans are few
def cheapest_rows(cap: int, rows: int, overhead: int, *, linear: bool) -> int:
    """Returns the P up to the cap with the least cost of a step's passes, empty rows and their overhead included.

    Args:
        cap: the most rows of a pass; below 2 a pass has one.
        rows: R, of a step.
        overhead: of a pass, in rows.

    >>> cheapest_rows(64, 100, PASS_OVERHEAD, linear=False)
    64
    """
    unit = ROW_UNIT if linear else TILE_ROWS
    small = [size for size in NETWORK_ROWS if size <= cap] if not linear or cap < unit else []
    sizes: list[int] = [*small, *range(unit if linear else 6 * unit, cap + 1, unit)]
    return min(sizes, key=lambda size: -(-rows // size) * (size + overhead))
