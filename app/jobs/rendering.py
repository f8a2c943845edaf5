"""A job's document as JSON text, from its row: for the routes that are polled.

A stored specification is sent as it is stored, without a Python object of it. Quotes that are the same text are checked
and completed once a process: a quote names no job, so repeated jobs share one. The rest are `JobView.members`, without
a checked object for each part.
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

from app.admission.quote import Quote
from app.jobs.schemas import JobSource, JobView, held_by
from app.lifecycle.queue.presence import GpuWorkers
from core.contracts.base import Epsilon
from core.privacy.prices import Units

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
    spec, quoted = columns.spec, _quoted(columns.quote)
    if columns.study is not None or columns.status == "queued":  # what they wait for depends on both documents
        documents = {name: json.loads(getattr(columns, name)) for name in JobView.texts()}
        columns = SimpleNamespace(**vars(columns) | documents)
    members = to_json(JobView.members(JobSource(columns, quoted.epsilon, quoted.charge, details, gpus)))
    return b'%s,"spec":%s,"quote":%s}' % (members[:-1], spec.encode(), quoted.document)


def page_json(documents: Iterable[bytes], next_page: str | None) -> bytes:
    """The document of a page of jobs."""
    return b'{"items":[%s],"next":%s}' % (b",".join(documents), to_json(next_page))
