"""A job's document as JSON text, from its row: for the routes that are polled.

A stored specification is sent as it is stored, without a Python object of it. Quotes that are the same text are checked
and completed once a process: a quote names no job, so repeated jobs share one. The rest is written from the columns,
without a checked object for each part. A test compares the documents with those of `JobView`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from pydantic_core import to_json
from sqlalchemy import Row

from app.admission.forecast import Quote
from app.contracts.base import Epsilon
from app.jobs.schemas import ChargedView, held_by, members, progress_of, shown_status, spent_by, tags_of
from app.lifecycle.queue.presence import GpuWorkers
from app.privacy.prices import Units

REMEMBERED = 2048  # some 4 KiB each


@dataclass(frozen=True)
class _Quoted:
    """A quote's document, and what the rest of the job's document takes from it."""

    document: bytes
    epsilon: Epsilon | None
    charge: Units


@lru_cache(REMEMBERED)
def _quoted(text: str) -> _Quoted:
    quote = Quote.model_validate(json.loads(text))
    return _Quoted(quote.model_dump_json().encode(), quote.epsilon, held_by(quote))


def job_json(job: Row[Any] | SimpleNamespace, details: dict[str, list[Any]], gpus: GpuWorkers) -> bytes:
    """A job's document.

    Args:
        job: its columns, with `spec` and `quote` as stored text (`repository.SHOWN_AS_TEXT`).
    """
    columns = SimpleNamespace(**job._mapping) if isinstance(job, Row) else job
    quoted = _quoted(columns.quote)
    if columns.study is not None or columns.status == "queued":  # what they wait for depends on both documents
        read = SimpleNamespace(**vars(columns) | {"spec": json.loads(columns.spec), "quote": json.loads(columns.quote)})
        rest = to_json(members(read, quoted.epsilon, quoted.charge, details, gpus))
    else:
        rest = to_json(_members(columns, quoted, details))
    return b'%s,"spec":%s,"quote":%s}' % (rest[:-1], columns.spec.encode(), quoted.document)


def _members(job: SimpleNamespace, quoted: _Quoted, details: dict[str, list[Any]]) -> dict[str, Any]:
    """As `members`, for a job that neither is queued nor a study."""
    attempts = details["attempts"]
    return {
        "id": job.id,
        "name": job.name,
        "dataset": job.dataset_id,
        "status": job.status,
        "waiting_for": None,
        "progress": progress_of(job, attempts),
        "epsilon_spent": spent_by(job, quoted.epsilon),
        "charged": ChargedView.of(job, quoted.charge, details["settlements"]),
        "attempts": [
            {
                "number": each.number,
                "worker": each.worker,
                "status": shown_status(each),
                "device": each.device,
                "started_at": each.started_at,
                "ended_at": each.ended_at,
            }
            for each in attempts
        ],
        "metrics": {
            each.name: {
                "name": each.name,
                "step": each.step,
                "value": each.value,
                "std": each.std,
                "on": each.on,
                "released_by": each.released_by,
            }
            for each in details["metrics"]
        },
        "failure": job.failure,
        "warnings": job.warnings,
        "artifacts": [
            {
                "name": each.name,
                "sha256": each.sha256,
                "size_bytes": each.size_bytes,
                "damaged": each.damaged_at is not None,
            }
            for each in details["artifacts"]
        ],
        "tags": tags_of(job),
        "notes": job.notes,
        "study": None,
        "parent": job.parent_id,
        "declaration": job.declaration,
        "created_at": job.created_at.replace(microsecond=0),
        "started_at": job.started_at,
        "finished_at": job.finished_at,
    }


def page_json(documents: Iterable[bytes], next_page: str | None) -> bytes:
    """The document of a page of jobs."""
    return b'{"items":[%s],"next":%s}' % (b",".join(documents), to_json(next_page))
