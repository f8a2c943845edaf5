"""What a job's attempt holds in memory at least, by public numbers, against the limit that the operator set."""

from __future__ import annotations

from app.catalogue.models import layers
from app.contracts.job_spec import JobSpec
from app.errors import InvalidRequest
from app.jobs.plans import DatasetFacts

NUMBER_BYTES = 8  # parameters are in float64, totals in float64 or int64
MIB = 2**20


def least_bytes(spec: JobSpec, numbers: int) -> int:
    """A lower bound for a model with so many trained numbers: all of them as parameters; and as a step's totals, if the
    job asks for a processor, because on a GPU those lie there. Passes and the optimizer's state come on top.
    """
    held = 2 if spec.runtime.on_processors else 1
    return held * NUMBER_BYTES * numbers


def check(spec: JobSpec, facts: DatasetFacts, limit_bytes: int | None) -> None:
    """Raises InvalidRequest if no attempt can hold the job's model.

    Args:
        spec: with its model's content filled in.
        limit_bytes: of an attempt; None: what the worker's machine has, which is not known here.
    """
    if limit_bytes is None:
        return
    numbers = sum(each.parameters for each in layers(spec.model, facts.features, facts.outputs, facts.rows))
    least = least_bytes(spec, numbers)
    if least > limit_bytes:
        detail = (
            f"the model's {numbers:,} trained numbers alone take {-(-least // MIB):,} MiB of memory, and an attempt "
            f"has {limit_bytes // MIB:,} MiB: train a smaller model, or ask the operator to raise "
            "SCRIMP_ATTEMPT_MEMORY_BYTES"
        )
        raise InvalidRequest.at("/model", detail)
