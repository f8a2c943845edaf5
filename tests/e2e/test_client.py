"""A job as an object, on a real service: its model answers as the service does (its stream: test_events.py)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import pytest
from typer.testing import CliRunner

import scrimp
from scrimp.cli import app
from scrimp.cli.predict import AT_ONCE
from tests.e2e.conftest import Service, job_of
from tests.e2e.test_spine import register

mpl.use("agg")
STRANGER = "A" * 43 + "="


@pytest.fixture
def service(served: Callable[[str], Service]) -> Service:
    return served("sqlite")


def test_a_job_from_submission_to_answers(service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = register(service, "job-object", tmp_path)
    with service.client() as client:
        job = client.jobs.submit(scrimp.JobSpec.model_validate(job_of(dataset, name="the object"))).wait(progress=True)
        said = capsys.readouterr().out.splitlines()
        assert said[-1].startswith("the object  succeeded  30/30  accuracy")
        metrics = job.metrics().frame()
        assert metrics["step"][metrics["name"] == "auc"].tolist() == [10, 20, 30]
        assert job.plot().get_title() == "the object"
        trusted = next(client.signing_keys()).public_key
        assert job.certificate(trusted).certificate["job"] == job.id
        with pytest.raises(scrimp.ScrimpError, match="is not signed by the key"):
            job.certificate(STRANGER)
        records = [dict.fromkeys(("x0", "x1", "x2", "x3", "x4"), value) for value in (1.0, -2.0)]
        here, there = job.model(tmp_path / "model").predict(records), job.predict(records)
        for mine, theirs in zip(here, there, strict=True):
            assert mine["class"] == theirs["class"]
            assert mine["probabilities"] == pytest.approx(theirs["probabilities"], rel=1e-5)

        _check_that_a_printed_certificate_is_read(service, job.id, trusted, tmp_path)
        _check_that_a_late_fault_keeps_the_answers(service, job.id, records, tmp_path)


def _check_that_a_printed_certificate_is_read(service: Service, job: str, trusted: str, folder: Path) -> None:
    """`scrimp certificates show JOB > FILE` writes what the commands of a certificate read."""
    (key := folder / "signing_key.pub").write_text(trusted + "\n")
    for options in ([], ["--envelope"]):
        shown = CliRunner().invoke(app, ["certificates", "show", job, *options, *_connection(service)])
        (file := folder / "printed.json").write_text(shown.stdout)
        for checked in ("verify", "recompute"):
            done = CliRunner().invoke(app, ["certificates", checked, str(file), "--public-key", str(key)])
            assert done.exit_code == 0, done.output


def _connection(service: Service) -> list[str]:
    key = (service.home / "admin.key").read_text().strip()
    return ["--url", f"http://127.0.0.1:{service.port}", "--key", key]


def _check_that_a_late_fault_keeps_the_answers(
    service: Service, job: str, records: list[dict[str, float]], folder: Path
) -> None:
    """The second thousand holds a record that the service refuses."""
    rows = [*records * (AT_ONCE // 2), {"x0": 1.0}]
    (file := folder / "many.json").write_text(json.dumps({"records": rows}))
    done = CliRunner().invoke(app, ["predict", job, str(file), *_connection(service)])
    assert (done.exit_code, len(done.stdout.splitlines())) == (1, AT_ONCE)
    assert "1,000 of 1,001 are answered; the part from record 1,000 on failed" in done.stderr
    assert "/records/0" in done.stderr, "of that part"
