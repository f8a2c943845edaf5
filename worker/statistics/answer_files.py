"""The files of a statistics job, from what it released: answers.json, and the same as rows in answers.csv."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator

from core.contracts.job_spec import JobSpec
from core.contracts.kinds import ANSWERS_FILE, ANSWERS_TABLE
from core.contracts.queries import Categories
from core.spreadsheets import plain
from core.statistics.answer import AnsweredQuery, AnswersFile
from core.statistics.plans import Asked
from worker.statistics.sums_release import Release

HEAD = ("query", "kind", "of", "cell", "value", "standard_error", "lower", "upper", "raw")


def contents(spec: JobSpec, question: Asked, release: Release) -> dict[str, bytes]:
    """Both files, by name."""
    answers = document(spec, question, release)
    return {ANSWERS_FILE: as_json(answers), ANSWERS_TABLE: as_csv(answers)}


def document(spec: JobSpec, question: Asked, release: Release) -> AnswersFile:
    """answers.json."""
    parts = zip(spec.queries or (), question.plans, release.noisy, release.stds, strict=True)
    return AnswersFile(
        where=spec.where,
        queries=tuple(
            AnsweredQuery(
                query=query,
                noise_std=std,
                threshold=plan.threshold(std),
                answers=tuple(plan.answers(noisy.numpy() / plan.unit, std)),
            )
            for query, plan, noisy, std in parts
        ),
    )


def as_json(answers: AnswersFile) -> bytes:
    """The document as text."""
    return (json.dumps(answers.model_dump(mode="json"), indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def as_csv(answers: AnswersFile) -> bytes:
    """One row for each answer."""
    text = io.StringIO(newline="")
    written = csv.writer(text, lineterminator="\n")
    written.writerow(HEAD)
    written.writerows(_rows(answers))
    return text.getvalue().encode()


def _rows(answers: AnswersFile) -> Iterator[list[object]]:
    for number, query in enumerate(answers.queries):
        for answer in query.answers:
            low, high = answer.interval or (None, None)
            numbers = [answer.value, answer.standard_error, low, high, answer.raw]
            cell = " | ".join(answer.cell)
            of_records = isinstance(query.query, Categories)  # a text that was in a file, and may be any
            yield [number, query.query.kind, answer.of or "", plain(cell) if of_records else cell, *numbers]
