"""The kind of device that a job is planned for: settled at admission, by the workers that live then.

A pass's size, and with it the price and the bits, follow from the kind of device. So `auto` becomes a word of the plan
before it is priced, and a claim reads that alone. It looks at what workers have, and never at who runs or waits: a
job's plan depends on no other job.
"""

from __future__ import annotations

from collections.abc import Iterator

from app.hpo.rates import Part
from core.contracts.devices import Kind
from core.contracts.job_spec import JobSpec
from core.contracts.kinds import rule_of


def settled(spec: JobSpec, most_gpus: int) -> tuple[JobSpec, tuple[Part, ...]]:
    """Returns the job with the kind of device that `auto` stands for, and why; a job that names its own as it is.

    Args:
        most_gpus: that a living worker runs one job on.
    """
    if spec.runtime.device != "auto":
        return spec, ()
    reason = next(_on_processors(spec, most_gpus), None)
    several = f"{spec.runtime.ranks} GPUs for one job" if spec.runtime.ranks > 1 else "a GPU"
    kind: Kind = "cuda" if reason is None else "cpu"
    runtime = spec.runtime.model_copy(update={"device": kind})
    return spec.model_copy(update={"runtime": runtime}), (
        Part(name="device", value=kind, because=reason or f"a worker that lives now has {several}"),
    )


def _on_processors(spec: JobSpec, most_gpus: int) -> Iterator[str]:
    """The reasons why a job runs on processors."""
    if not rule_of(spec.kind).trains:
        yield "such a release adds integers on a processor"
    if spec.selection is not None:
        yield "each run of a selection is one process on a processor"
    if spec.runtime.shard != "none":
        yield "shards are of processors"
    if most_gpus == 0:
        yield "no worker that lives now has a GPU"
    if most_gpus < spec.runtime.ranks:
        yield f"no worker that lives now has {spec.runtime.ranks} GPUs for one job"
