"""A job that asks for a GPU, on a service without one: it waits, says so, delays nobody, and is cancelled for free."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import Service, job_of, until
from tests.e2e.test_spine import finished, register, submit


@pytest.mark.parametrize("service", ["sqlite"], indirect=True)
def test_a_gpu_job_on_a_service_without_a_gpu(service: Service, tmp_path: Path) -> None:
    dataset = register(service, "no-gpu", tmp_path)
    spec = job_of(dataset, runtime={"device": "cuda"})
    with service.client() as client:
        warnings = client.quote(spec).warnings
        assert any("no GPU worker is alive" in each for each in warnings), warnings
        assert not any("GPU" in each for each in client.quote(job_of(dataset)).warnings)
    waiting = submit(service, spec)
    assert service.get(f"/v1/jobs/{waiting}")["waiting_for"] == "cuda"
    done = finished(service, submit(service, job_of(dataset)))
    assert done["status"] == "succeeded" and done["waiting_for"] is None, "later jobs pass by"
    assert [each["device"] for each in done["attempts"]] == ["cpu"]
    certificate = until(lambda: service.get(f"/v1/jobs/{done['id']}/certificate").get("certificate"))
    assert certificate["numerics"]["device"] == "cpu" and certificate["numerics"]["device_name"]
    (worker,) = (each for each in service.get("/v1/workers")["items"] if each["name"] == done["attempts"][0]["worker"])
    assert [each["kind"] for each in worker["devices"]] == ["cpu"]

    spent = service.get(f"/v1/datasets/{dataset}/ledger")["accounts"]["train"]["spent"]
    found = service.get(f"/v1/jobs/{waiting}")
    assert (found["status"], found["waiting_for"], found["attempts"]) == ("queued", "cuda", [])
    with service.client() as client:
        client.cancel(waiting)
    after = service.get(f"/v1/datasets/{dataset}/ledger")["accounts"]["train"]
    assert (after["spent"], after["held"]) == (spent, 0), "nothing is charged, and the hold is released"
    assert service.get(f"/v1/jobs/{waiting}")["status"] == "cancelled"
