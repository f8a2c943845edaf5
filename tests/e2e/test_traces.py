"""One job is one trace: from the request through relay, claim and attempt to the certificate, at an OTLP collector."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from app import tracing
from core.errors import ServiceError
from scripts.draw_trace import Collector, Span, picture
from tests.e2e.conftest import Service, csv_spec, job_of, seed_of, until, write_csv

WHOLE = {"claim", "attempt", "prepare", "train"}  # spans of work on private data


def test_a_job_is_one_trace(served: Callable[[str], Service], collector: Collector, tmp_path: Path) -> None:
    service = served("sqlite")
    with service.client() as client:
        dataset = client.create_dataset(csv_spec("traced"), write_csv(tmp_path / "d.csv", seed=seed_of("traced"))).id
        job = client.submit(job_of(dataset)).id
        assert "traceparent" not in json.dumps(service.get(f"/v1/jobs/{job}"))
    until(lambda: {"request", "attempt", "certificate"} <= {_kind(each) for each in collector.of_job(job)})
    spans = collector.of_job(job)
    by_id, named = {span.id: span for span in spans}, {_kind(span): span for span in spans}
    assert len({span.trace for span in spans}) == 1
    assert {name: by_id[span.parent].name if span.parent else None for name, span in named.items()} == {
        "request": None,
        "price": "POST /v1/jobs",
        "hold": "POST /v1/jobs",
        "notify": "POST /v1/jobs",
        "claim": "POST /v1/jobs",
        "attempt": "POST /v1/jobs",
        "prepare": "attempt",
        "train": "attempt",
        "certificate": "POST /v1/jobs",
    }
    assert {span.service for span in spans} == {"scrimp-api", "scrimp-relay", "scrimp-worker"}
    assert named["attempt"].attributes["scrimp.attempt"] == "1"
    _tells_no_more(named)
    _is_in_the_logs(service, job, named["request"].trace)
    assert picture(spans).count("<rect") == len(spans) + 4


def _kind(span: Span) -> str:
    return "request" if span.name == "POST /v1/jobs" else span.name


def _tells_no_more(named: dict[str, Span]) -> None:
    """Moments of an attempt are whole seconds, and attributes are ids and public numbers."""
    for name in WHOLE:
        assert named[name].began == int(named[name].began) and named[name].ended == int(named[name].ended), name
    keys = {key for span in named.values() for key in span.attributes}
    assert keys <= {
        f"scrimp.{each}" for each in ("job", "attempt", "worker", "dataset", "device", "steps", "request")
    } | {"http.response.status_code"}


def _is_in_the_logs(service: Service, job: str, trace: str) -> None:
    lines = [json.loads(line) for line in (service.home / "logs" / "api.log").read_text().splitlines()]
    (admitted,) = [line for line in lines if line["message"] == "admitted" and line["job"] == job]
    assert admitted["trace"] == trace


def test_off_by_default() -> None:  # and nothing is loaded: tests/architecture/test_walls.py
    tracing.configure("api", "")
    with tracing.span("nothing") as span, tracing.coarse("nothing", {}, parent=None):
        tracing.past("nothing", {}, tracing.wall())
    assert span is None and tracing.traceparent() is None and not tracing.is_on()


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ServiceError, match=r"scrimp\[otel\]"):
        tracing.configure("api", "http://127.0.0.1:4318")
