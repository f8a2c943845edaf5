"""Attempts as a second user through the real service, which is no root: jobs, ranks, features and predictions."""

from __future__ import annotations

import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.conftest import SERVED, Service, csv_spec, job_of, until, write_csv
from tests.e2e.test_spine import finished, submit
from tests.processes import alive
from tests.worker import second_user as users
from tests.worker.extractor import write_extractor
from tests.worker.second_user import ATTEMPTS, CAPABLE, SERVICE, as_service, home_of_service

MLP = {"kind": "mlp", "hidden": [16]}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    users.require_root()
    with home_of_service() as home, tempfile.TemporaryDirectory(prefix="second-user-tmp-") as temporary:
        Path(temporary).chmod(0o1777)
        settings = SERVED | {
            "SCRIMP_ATTEMPT_UID": str(ATTEMPTS.uid),
            "SCRIMP_ATTEMPT_GID": str(ATTEMPTS.gid),
            "SCRIMP_WORKER_PROCESSES": "2",
            "HOME": str(home),
            "TMPDIR": temporary,
        }
        made = Service(home, settings, as_service(*CAPABLE))
        yield made.start()
        assert made.stop() == 0


def attempts(service: Service) -> list[tuple[int, int]]:
    """Real, effective and saved users of the processes of attempts that are confined."""
    seen = []
    for each in service.descendants():
        with suppress(psutil.Error):  # it ended meanwhile
            if each.name() == "scrimp-attempt" and alive(each) and (uids := each.uids()).real != SERVICE:
                seen.append(uids)
    return seen


@pytest.mark.nightly  # by day features, below, and tests/worker/test_second_user.py
@pytest.mark.slow
def test_jobs_of_a_second_user(service: Service, tmp_path: Path) -> None:
    until(lambda: service.get("/readyz")["checks"]["attempts"] == "ok")
    (worker,) = service.get("/v1/workers")["items"]
    assert worker["sandbox"]["uid"] == ATTEMPTS.uid
    with service.client() as client:
        dataset = client.create_dataset(csv_spec("second"), write_csv(tmp_path / "s.csv")).id
    changes: dict[str, Any] = {"model": MLP, "length": {"steps": 400}, "privacy": {"target_epsilon": 4.0}}
    jobs = []
    for processes in (1, 2):
        runtime = {"runtime": {"processes": processes, "physical_batch_size": 240}}
        jobs.append(submit(service, job_of(dataset, name=f"on {processes}", **changes | runtime)))
        seen = until(lambda: len(found := attempts(service)) >= processes and found)  # noqa: B023 - at once
        assert set(seen) == {(ATTEMPTS.uid,) * 3}
        ended = finished(service, jobs[-1])
        assert ended["status"] == "succeeded", ended["failure"]
        folder = service.home / "storage" / "jobs" / jobs[-1]
        files = [each for each in folder.rglob("*") if each.is_file()]
        assert {each.name for each in files} >= {"model.safetensors", "model.json"}
        assert {(each.stat().st_uid, stat.S_IMODE(each.stat().st_mode)) for each in files} == {(SERVICE, 0o600)}
    with service.client() as client:
        answers = client.predict(jobs[1], [{f"x{i}": value for i in range(5)} for value in (5.0, -5.0)])
    assert [each["class"] for each in answers] == [1, 0]


@pytest.mark.slow
def test_features_of_a_second_user_are_not_kept(service: Service, tmp_path: Path) -> None:
    write_extractor(service.models / "words")
    texts = [f"{'good good good' if i % 2 else 'bad bad bad'} {i},{i % 2}" for i in range(400)]
    (tmp_path / "t.csv").write_text("x,y\n" + "\n".join(texts) + "\n")
    declared = csv_spec("texts", records=400, cap={"epsilon": 20.0, "delta": 1e-5}) | {
        "features": {"kind": "text", "column": "x"}
    }
    with service.client() as client:
        dataset = client.create_dataset(declared, tmp_path / "t.csv").id
    model = {"kind": "linear", "extractor": {"name": "words"}}
    job = submit(service, job_of(dataset, model=model, length={"steps": 12}, privacy={"target_epsilon": 8.0}))
    ended = finished(service, job)
    assert ended["status"] == "succeeded", ended["failure"]
    folder = service.home / "storage" / "datasets" / dataset
    assert not list(folder.rglob("features/*")), "who deletes the data set could not remove them"
    assert {each.stat().st_uid for each in folder.rglob("*")} == {SERVICE}
    with service.client() as client:
        assert [each["class"] for each in client.predict(job, ["bad bad bad", "good good good"])] == [0, 1]


@pytest.mark.slow
def test_models_that_the_service_may_not_read_are_said(service: Service) -> None:
    """Root copied them with a mask of 077: the answer was 500, "an unexpected error"."""
    mode = stat.S_IMODE(service.models.stat().st_mode)
    service.models.chmod(0o700)
    try:
        answer = service.get("/v1/extractors")
    finally:
        service.models.chmod(mode)
    assert (answer["status"], answer["type"]) == (503, "/problems/unavailable")
    assert "an operator lets every user read it" in answer["detail"]
