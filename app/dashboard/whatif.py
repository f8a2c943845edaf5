"""What else the same budget would buy: the specification of a job with one setting changed at a time.

Or the same specification on a data set with another number of training records. That number is typed by a person, and
the declared one is public: no quote depends on a private count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from core.contracts.job_spec import JobSpec

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


RECORDS = "/records"  # no setting of a job: a hypothetical number of training records
CHOICES = WEIGHED | {RECORDS: "n, training records"}
MAX_VALUES, MAX_RECORDS = 8, 10**12


@dataclass(frozen=True)
class Variation:
    """A specification with one setting changed; `pointer` is empty where there is nothing to put into the form.

    Attributes:
        records: the hypothetical number of training records; None: the declared one.
    """

    what: str
    pointer: str
    value: str
    spec: JobSpec
    records: int | None = None


def chosen(spec: JobSpec, pointer: str, values: str) -> list[Variation]:
    """Returns the specification itself, then with one setting at each value of a list.

    Raises:
        ValueError: the job has no such setting, or a value does not fit it. The text says what to do.
    """
    if pointer not in CHOICES:
        raise ValueError("choose a setting of the list")
    variations_of, texts = [Variation("as it is", "", "", spec)], values.replace(",", " ").split()
    if not 1 <= len(texts) <= MAX_VALUES:
        raise ValueError(f"type 1 to {MAX_VALUES} values, with spaces or commas between them")
    return variations_of + [_at(spec, pointer, text) for text in texts]


def _at(spec: JobSpec, pointer: str, text: str) -> Variation:
    name = CHOICES[pointer]
    try:
        value = int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise ValueError(f"“{text}” is not a number: type it like 256 or 0.5") from None
    if pointer == RECORDS:
        if not isinstance(value, int) or not 1 <= value <= MAX_RECORDS:
            raise ValueError(f"n is a whole number from 1 to 10¹²: {text} is not")
        return Variation(f"n {value}", "", "", spec, value)
    document = spec.request()
    outer, inner = pointer.split("/")[1:]
    parent = document.get(outer)
    if pointer == "/length/steps" and parent is None:
        parent = {"steps": "auto"}
    if not isinstance(parent, dict) or not (parent.get(inner) == "auto" or isinstance(parent.get(inner), int | float)):
        raise ValueError(f"this job does not set “{name}”: set it in the form first, or choose another setting")
    varied = _valid(document | {outer: {**parent, inner: value}})
    if varied is None:
        raise ValueError(f"{name} cannot be {text}: type another value")
    return Variation(f"{name} {text}", pointer, text, varied)


def variations(spec: JobSpec) -> Iterator[Variation]:
    """Yields the specification itself, then each weighed setting at half and at twice its value, where it is valid."""
    yield Variation("as it is", "", "", spec)
    document = spec.request()
    for pointer, name in WEIGHED.items():
        outer, inner = pointer.split("/")[1:]
        parent = document.get(outer)
        if not isinstance(parent, dict) or not isinstance(value := parent.get(inner), int | float):
            continue
        for factor in FACTORS:
            scaled = _scaled(value, factor)
            varied = _valid(document | {outer: {**parent, inner: scaled}})
            if varied is not None and scaled != value:
                yield Variation(f"{name} {scaled:g}", pointer, f"{scaled:g}", varied)


def _scaled(value: float, factor: float) -> float:
    """A multiple: a whole number stays one, and others keep three digits."""
    return max(1, round(value * factor)) if isinstance(value, int) else float(f"{value * factor:.3g}")


def _valid(document: dict[str, Any]) -> JobSpec | None:
    try:
        return JobSpec.model_validate(document)
    except ValidationError:
        return None
