"""The files of a statistics job, from what it released: answers.json, and the same as rows in answers.csv."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

from app.contracts.job_spec import JobSpec
from app.statistics.answer import Answer
from app.statistics.plans import Asked
from worker.statistics.release import Release

HEAD = ("query", "kind", "of", "cell", "value", "standard_error", "lower", "upper", "raw")


def document(spec: JobSpec, asked: Asked, release: Release) -> dict[str, Any]:
    """answers.json: each query as asked, the std of its noise on each released number, and its answers."""
    return {
        "version": 1,
        "where": [each.model_dump(mode="json") for each in spec.where],
        "queries": [
            {
                "query": query.model_dump(mode="json"),
                "noise_std": std,
                "answers": [each.model_dump(mode="json") for each in plan.answers(noisy.numpy() / plan.unit, std)],
            }
            for query, plan, noisy, std in zip(
                spec.queries or (), asked.plans, release.noisy, release.stds, strict=True
            )
        ],
    }


def as_json(found: dict[str, Any]) -> bytes:
    """The document as text."""
    return (json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def as_csv(found: dict[str, Any]) -> bytes:
    """One row for each answer."""
    text = io.StringIO(newline="")
    written = csv.writer(text, lineterminator="\n")
    written.writerow(HEAD)
    written.writerows(_rows(found))
    return text.getvalue().encode()


def _rows(found: dict[str, Any]) -> Iterator[list[Any]]:
    for number, query in enumerate(found["queries"]):
        for each in map(Answer.model_validate, query["answers"]):
            low, high = each.interval or (None, None)
            numbers = [each.value, each.standard_error, low, high, each.raw]
            yield [number, query["query"]["kind"], each.of or "", " | ".join(each.cell), *numbers]
