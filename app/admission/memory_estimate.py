"""What a process of a job's attempt holds in memory, by public numbers, against the limit that the operator set.

`least_bytes`, which no attempt can do without, decides who is refused. `estimate` is shown in the quote, with a warning
where it exceeds the limit: it is calibrated on the peaks of real attempts (benchmarks/bench_memory.py), not proved.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from app.catalogue.model_kinds import Layer, layers
from core.contracts.base import Document
from core.contracts.graph import GraphModel
from core.contracts.hf import HfModel
from core.contracts.job_spec import JobSpec, LinearModel, MatrixFactorizationModel, TransformerRecModel
from core.contracts.memory import in_memory, record_bytes
from core.contracts.model_settings import RecordSizes
from core.contracts.optimizers import DpZo
from core.contracts.sampling import Cyclic
from core.errors import InvalidRequest
from core.privacy.numerics import BYTES, DENSE_GROUP, KEPT_BYTES, PASS_BYTES, Numerics, PublicSizes

NUMBER_BYTES = 8  # parameters are in float64, totals in float64 or int64
MIB = 2**20
# Measured, see benchmarks/reports/memory.md.
BASE_BYTES = 205 * MIB  # Python, torch and the libraries that an attempt has loaded, in memory of its own
TRANSFORMERS_BYTES = 140 * MIB  # and the library of Hugging Face models
OVERHEAD = 1.12  # what the allocator keeps of what was given back, but for passes
LINEAR_SCRATCH, LINEAR_DIVIDED = 5, 9  # a linear model's products, in multiples of its numbers
SLOT_BYTES = 39  # at most, while an injection is drawn: random words, their order, the record in each slot
SORTED_SLOT_BYTES = 8  # of a part that is stored in the order of its slots
GROUP_BYTES = 2  # a slot's cyclic group


class MemoryEstimate(Document):
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


def of_release(sums: int, noise: int, passes: int, answers: int, *, records: int) -> MemoryEstimate:
    """The memory of a job that has no model and is one release."""
    total = BASE_BYTES + math.ceil(OVERHEAD * (sums + noise + answers + records)) + passes
    return MemoryEstimate(
        process_bytes=total,
        base_bytes=BASE_BYTES,
        model_bytes=0,
        totals_bytes=sums,
        noise_bytes=noise,
        optimizer_bytes=0,
        passes_bytes=passes,
        records_bytes=records,
        answers_bytes=answers,
    )


def estimate(spec: JobSpec, sizes: PublicSizes, rows: tuple[int, int], numerics: Numerics) -> MemoryEstimate:
    """The memory of a process of the job's attempts.

    Args:
        spec: with its model's content filled in.
        rows: the declared numbers of users and items; 0 where there are none.
        numerics: the job's.
    """
    trained = layers(spec.model, sizes.features, sizes.outputs, rows)
    numbers, largest = _size(trained), _largest_tensor(trained)
    vector = NUMBER_BYTES * numbers
    shards = spec.runtime.ranks if spec.runtime.shard == "optimizer" else 1
    optimizer, linear = spec.optimizer, isinstance(spec.model, LinearModel)
    shard_totals = vector // shards if shards > 1 else 0  # a rank's totals are copied out of all
    divided = 0
    if optimizer.divides:
        divided = vector + (LINEAR_DIVIDED * vector if linear else 2 * NUMBER_BYTES * largest)
    observed = 2 * vector if optimizer.observes else 0
    noises = 2 if spec.noise is not None else 1 if spec.privacy is not None else 0
    buffers = (
        spec.model.held(RecordSizes(sizes.features, sizes.outputs, sizes.sparse, rows[1])) or PASS_BYTES
    ) * spec.views
    of_pass = 0 if spec.runtime.device == "cuda" else numerics.rows_per_pass * buffers * BYTES[numerics.passes]
    slopes = isinstance(optimizer, DpZo)  # one number is summed and noised; a moved copy takes the totals' place
    noises, totals = (0, vector if linear else NUMBER_BYTES * largest) if slopes else (noises, vector + shard_totals)
    scratch = LINEAR_SCRATCH * vector if linear else 2 * NUMBER_BYTES * largest
    if numerics.group == DENSE_GROUP and not optimizer.divides:  # products go to the totals piece by piece
        scratch = 0
    parts = {
        "model_bytes": vector + _module_bytes(spec, numbers, numerics),
        "totals_bytes": totals if slopes else totals + scratch,
        "noise_bytes": noises * vector // shards,
        "optimizer_bytes": optimizer.state_numbers * vector // shards + divided + observed,
        "passes_bytes": math.ceil(spec.model.peak() * of_pass),
        "records_bytes": _records_bytes(spec, sizes, numerics),
    }
    passes = parts["passes_bytes"]
    base = BASE_BYTES + (TRANSFORMERS_BYTES if isinstance(spec.model, HfModel) else 0)
    total = base + math.ceil(OVERHEAD * (sum(parts.values()) - passes)) + passes
    return MemoryEstimate(process_bytes=total, base_bytes=base, **parts)


def _module_bytes(spec: JobSpec, trained: int, numerics: Numerics) -> int:
    """A network's module has the parameters once more, in the type of passes; and the frozen ones."""
    if isinstance(spec.model, LinearModel | MatrixFactorizationModel):
        return 0
    numbers = (spec.model.parameters or trained) if isinstance(spec.model, HfModel | GraphModel) else trained
    return BYTES[numerics.passes] * numbers


def _records_bytes(spec: JobSpec, sizes: PublicSizes, numerics: Numerics) -> int:
    """As many records as there are slots, once more as passes that are kept; and their places."""
    model, slots = spec.model, sizes.slots.rows
    sparse = model.is_sparse(sizes.sparse) if isinstance(model, LinearModel) else sizes.sparse
    features = model.inputs(sizes.features) if isinstance(model, LinearModel) else sizes.features
    tokens = model.most_tokens if isinstance(model, HfModel) else 0
    record = record_bytes(features, sparse=sparse, rating=isinstance(model, MatrixFactorizationModel), tokens=tokens)
    loaded = in_memory(slots, record)
    places = 0 if spec.privacy is None else _places_bytes(spec, sizes, numerics, loaded=loaded)
    if not loaded:
        return places
    copies = 1
    if spec.sampling.takes_all:
        width = features * BYTES[numerics.passes]
        copies += sparse or slots * width <= KEPT_BYTES
    return copies * slots * record + places


def _places_bytes(spec: JobSpec, sizes: PublicSizes, numerics: Numerics, *, loaded: bool) -> int:
    """Those of a whole part where a full batch, a score or a statistic takes it, and of a step's draw."""
    takes_part = spec.sampling.takes_all or (spec.evaluation is not None and spec.evaluation.on == "train")
    if isinstance(spec.model, LinearModel):
        takes_part = takes_part or spec.model.center is not None
    elif isinstance(spec.model, TransformerRecModel):
        takes_part = takes_part or spec.model.re_attention.mode != "off"
    part = (SLOT_BYTES if loaded else SORTED_SLOT_BYTES) * sizes.slots.rows if takes_part else 0
    step = 0 if spec.sampling.takes_all else SLOT_BYTES * (numerics.rows_per_step or 0)
    groups = GROUP_BYTES * sizes.slots.units if isinstance(spec.sampling, Cyclic) else 0
    return max(part, step) + groups


def _size(stack: Sequence[Layer]) -> int:
    return sum(each.parameters for each in stack)


def _largest_tensor(stack: list[Layer]) -> int:
    return max((math.prod(shape) for each in stack for shape in each.shapes.values()), default=0)


def least_bytes(numbers: int, *, on_processors: bool) -> int:
    """A lower bound for a model with so many trained numbers: all of them as parameters; and as a step's totals, if the
    job asks for a processor, because on a GPU those lie there. Passes and the optimizer's state come on top.
    """
    replicas = 2 if on_processors else 1
    return replicas * NUMBER_BYTES * numbers


def check(trained: Sequence[Layer], limit_bytes: int | None, *, on_processors: bool) -> None:
    """Raises InvalidRequest if no attempt can hold the job's model.

    Args:
        trained: the model's layers.
        limit_bytes: of an attempt; None: what the worker's machine has, which is not known here.
        on_processors: the job asks for no GPU.
    """
    numbers = _size(trained)
    require(
        least_bytes(numbers, on_processors=on_processors),
        limit_bytes,
        "/model",
        f"the model's {numbers:,} trained numbers alone take",
        "train a smaller model",
    )


def require(needed: int, limit_bytes: int | None, pointer: str, part: str, instead: str) -> None:
    """Raises InvalidRequest if what a job needs at least is more than an attempt has.

    Args:
        part: a sentence's beginning, before the number.
        instead: what to change.
    """
    if limit_bytes is not None and needed > limit_bytes:
        detail = (
            f"{part} {-(-needed // MIB):,} MiB of memory, and an attempt has {limit_bytes // MIB:,} MiB: {instead}, or "
            "ask the operator to raise SCRIMP_ATTEMPT_MEMORY_BYTES"
        )
        raise InvalidRequest.at(pointer, detail)


def warning(memory: MemoryEstimate, limit_bytes: int | None) -> str | None:
    """What a quote says where the estimate exceeds the operator's limit; None where it does not."""
    if limit_bytes is None or memory.process_bytes <= limit_bytes:
        return None
    return (
        f"an attempt's process will need about {-(-memory.process_bytes // MIB):,} MiB of memory (`memory`), and may "
        f"use {limit_bytes // MIB:,} MiB: the job may end out of memory"
    )
