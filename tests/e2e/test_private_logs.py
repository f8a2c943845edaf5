"""A record leaves no trace in the logs of any process, which are JSON and name requests, jobs and attempts."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from scrimp.errors import ScrimpError
from tests.e2e.conftest import Service, csv_spec, job_of, until

# A word, a number and a name that stand nowhere else.
WORD, NUMBER, ADDRESS = "quixotterian", 27182.818284, "ada.lovelace@analytical.example"
NEEDLES = (WORD, "27182.81", ADDRESS, "lovelace")


def write_texts(path: Path) -> Path:
    """Two classes of texts; a record in fifty is the planted one, so that every sum depends on it."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "y"])
        for number in range(2000):
            label = number % 2
            planted = f"{WORD} {ADDRESS} {NUMBER}" if number % 50 == 0 else f"word{number}"
            rows.writerow([f"{'good' if label else 'bad'} {planted} {number}", label])
    return path


def lines_of(service: Service) -> dict[str, list[dict[str, Any]]]:
    """The log of each process, parsed; any line that is no JSON object fails."""
    logs = service.home / "logs"
    return {path.stem: [json.loads(line) for line in path.read_text().splitlines()] for path in logs.glob("*.log")}


def go_wrong(service: Service, dataset: str, job: str, tmp: Path) -> None:
    """Sends the record where it does not belong: broken files, wrong inputs, addresses, headers."""
    broken = tmp / "broken.csv"
    broken.write_text(f"text,y\n{WORD} {ADDRESS},{NUMBER}\n{WORD},1,2\n")
    with service.client() as client:
        for format_, name in (("csv", "broken-csv"), ("npz", "broken-npz"), ("parquet", "broken-parquet")):
            with pytest.raises(ScrimpError):
                client.create_dataset(text_spec(name) | {"format": format_}, broken)
        for records in ([{"text": 5}], [{"x": ADDRESS}], [WORD] * 5000):
            with pytest.raises(ScrimpError):
                client.predict(job, records)
    admin = (service.home / "admin.key").read_text().strip()
    with httpx.Client(
        base_url=f"http://127.0.0.1:{service.port}", headers={"Authorization": f"Bearer {admin}"}
    ) as http:
        for path in (f"/v1/jobs?q={WORD}", f"/v1/datasets/{ADDRESS}", f"/v1/{WORD}/{ADDRESS}", f"/dashboard?q={WORD}"):
            http.get(path, headers={"X-Request-Id": WORD, "User-Agent": ADDRESS})
        http.post("/v1/jobs", json=job_of(dataset, name=WORD, seed=ADDRESS), headers={"Idempotency-Key": WORD})
        http.post("/v1/jobs", content=WORD.encode() * 10, headers={"Idempotency-Key": ADDRESS})


def text_spec(name: str) -> dict[str, Any]:
    return csv_spec(name) | {"features": {"kind": "hashed_text", "column": "text", "buckets": 256}}


def test_a_planted_record_leaves_no_trace(served: Callable[[str], Service], tmp_path: Path) -> None:
    """In a service that other tests use as well: each line that they logged is JSON, too."""
    service = served("sqlite")
    with service.client() as client:
        dataset = client.create_dataset(text_spec("planted"), write_texts(tmp_path / "planted.csv")).id
        job = client.submit(job_of(dataset)).id
        ended = until(lambda: client.job(job).status in ("succeeded", "failed") and client.job(job))
        assert ended.status == "succeeded"
        predicted = client.predict(job, [f"good {WORD} {ADDRESS} {NUMBER}"])
    assert len(predicted) == 1
    go_wrong(service, dataset, job, tmp_path)
    until(
        lambda: any("succeeded" in each["message"] and each.get("job") == job for each in lines_of(service)["worker"])
    )
    found = lines_of(service)
    assert {"api", "relay", "worker"} <= set(found)
    texts = {path: path.read_text().lower() for path in [*(service.home / "logs").iterdir(), service.output]}
    assert [(path.name, needle) for path, text in texts.items() for needle in NEEDLES if needle in text] == []
    _names_everything(found, job)


def _names_everything(found: dict[str, list[dict[str, Any]]], job: str) -> None:
    """From the request to the certificate, each process names the job."""
    (admitted,) = [line for line in found["api"] if line["message"] == "admitted" and line["job"] == job]
    (access,) = [line for line in found["api"] if line.get("request") == admitted["request"] and "route" in line]
    assert (access["method"], access["route"], access["status"]) == ("POST", "/v1/jobs", 201)
    assert any(line.get("job") == job and "certificate" in line["message"] for line in found["relay"])
    attempt = [line for line in found["worker"] if line.get("job") == job]
    assert attempt and {line["attempt"] for line in attempt} == {"1"}
    assert any("prediction" in line for line in found["worker"])
    assert {line["process"] for lines in found.values() for line in lines} <= {"api", "relay", "worker", "attempt"}
