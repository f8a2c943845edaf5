"""What else the same budget would buy: the specification of a job with one setting changed at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from app.contracts.job_spec import JobSpec

FACTORS = (0.5, 2.0)
# What a person weighs against each other, by JSON pointer.
WEIGHED = {
    "/privacy/target_epsilon": "ε",
    "/privacy/noise_multiplier": "σ",
    "/length/steps": "steps",
    "/length/epochs": "epochs",
    "/sampling/expected_batch_size": "batch",
    "/evaluation/noise_mu": "score's noise_mu",
    "/hpo/runs_per_level": "trials per level",
    "/hpo/runs": "trials",
}


@dataclass(frozen=True)
class Variation:
    """A specification with one setting changed; `pointer` is empty for the one that is asked about."""

    what: str
    pointer: str
    value: str
    spec: JobSpec


def variations(spec: JobSpec) -> Iterator[Variation]:
    """Yields the specification itself, then each weighed setting at half and at twice its value, where it is valid."""
    yield Variation("as it is", "", "", spec)
    document = spec.model_dump(mode="json")
    for pointer, name in WEIGHED.items():
        outer, inner = pointer.split("/")[1:]
        held = document.get(outer)
        before = held.get(inner) if isinstance(held, dict) else None
        if not isinstance(before, int | float):
            continue
        for factor in FACTORS:
            after = _scaled(before, factor)
            varied = _valid(document | {outer: {**document[outer], inner: after}})
            if varied is not None and after != before:
                yield Variation(f"{name} {after:g}", pointer, f"{after:g}", varied)


def _scaled(value: float, factor: float) -> float:
    """A multiple: a whole number stays one, and others keep three digits."""
    return max(1, round(value * factor)) if isinstance(value, int) else float(f"{value * factor:.3g}")


def _valid(document: dict[str, Any]) -> JobSpec | None:
    try:
        return JobSpec.model_validate(document)
    except ValidationError:
        return None
