"""Server-sent events over the real service: live, resumed, and through the death of the API."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

import scrimp
from scrimp import specs
from tests.by_night import but
from tests.conftest import BACKINGS
from tests.e2e.conftest import Service, job_of
from tests.e2e.test_spine import register


def read(service: Service, job: str, after: int = 0, stop_at: int | None = None) -> list[dict[str, Any]]:
    """Events of a stream until it ends, or until one has the sequence number `stop_at`."""
    headers = {
        "Authorization": f"Bearer {(service.home / 'admin.key').read_text().strip()}",
        "Accept": "text/event-stream",
        "Last-Event-ID": str(after),
    }
    found: list[dict[str, Any]] = []
    url = f"http://127.0.0.1:{service.port}/v1/jobs/{job}/events"
    with httpx.stream("GET", url, headers=headers, timeout=300, trust_env=False) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        last_id = None
        for line in answer.iter_lines():
            if line.startswith("id: "):
                last_id = int(line[4:])
            if line == "event: end":
                return found
            if line.startswith("data: "):
                found.append(json.loads(line[6:]))
                assert found[-1]["seq"] == last_id
                if last_id == stop_at:
                    return found
    return found


def test_a_stream_is_live_whole_and_resumable(service: Service, tmp_path: Path) -> None:
    dataset = register(service, "events", tmp_path)
    with service.client() as client:
        job = client.submit(job_of(dataset)).id
    live = read(service, job)
    assert [event["seq"] for event in live] == list(range(1, len(live) + 1))
    assert [event["type"] for event in live][:2] == ["queued", "attempt_started"]
    assert [event["type"] for event in live][-2:] == ["succeeded", "certificate_issued"]
    assert read(service, job, after=5) == live[5:]
    # A browser comes back after the end: it is told that there is nothing more.
    assert read(service, job, after=len(live)) == []
    with service.client() as client:
        listed = client._http.get(f"/v1/jobs/{job}/events").json()["items"]
    assert listed == live


@pytest.mark.parametrize("service", but(BACKINGS, lambda backing: backing == "sqlite"), indirect=True)
def test_readers_resume_after_the_api_was_killed(service: Service, tmp_path: Path) -> None:
    """The client takes its stream up by itself; another reader says which event it had last."""
    dataset = register(service, "events-killed", tmp_path)
    typed = scrimp.JobSpec(
        dataset=dataset,
        optimizer=specs.DpSgd(learning_rate=0.1),
        privacy=specs.JobPrivacy(target_epsilon=0.5),
        length=specs.Length(steps=2000),
    )
    first: list[dict[str, Any]] = []
    seen = []
    with service.client() as client:
        job = client.jobs.submit(typed)
        for event in job.stream():
            seen.append(event.seq)
            if event.seq == 4:
                first = read(service, job.id, stop_at=4)
                service.kill_api()
        rest = read(service, job.id, after=first[-1]["seq"])
        assert [event["seq"] for event in first + rest] == seen == list(range(1, len(seen) + 1))
        assert rest[-1]["type"] == "certificate_issued" and job.status == "succeeded"
        assert [each.seq for each in job.events()] == seen
    if isinstance(service, Service):
        again = r"api was killed by SIGKILL; starting again in 0\.5 s"
        assert re.search(again, service.output.read_text())
