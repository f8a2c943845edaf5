"""A job as an object, on a real service: its model answers as the service does (its stream: test_events.py)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import matplotlib as mpl
import pandas as pd
import pytest
import uvicorn
from typer.testing import CliRunner

import scrimp
from scrimp.cli import app
from scrimp.record_files import AT_ONCE, RecordFile
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

        _check_that_an_owner_s_file_is_answered(service, job, tmp_path)
        _check_that_a_printed_certificate_is_read(service, job.id, trusted, tmp_path)
        _check_that_a_late_fault_keeps_the_answers(service, job.id, records, tmp_path)


def _check_that_an_owner_s_file_is_answered(service: Service, job: scrimp.JobHandle, folder: Path) -> None:
    """Other columns are ignored and ids carried through, from CSV to Parquet; a wrong cell is named by its line."""
    names = ["patient_id", "x4", "ward", "x3", "x2", "x1", "x0"]
    (own := folder / "own.csv").write_text(f"{';'.join(names)}\n007;1;A;1;1;1;1\n008;-2;B;-2;-2;-2;-2\n")
    arguments = ["predict", job.id, str(own), "--keep", "patient_id", "--to", str(folder / "out.parquet")]
    done = CliRunner().invoke(app, [*arguments, *_connection(service)])
    assert done.exit_code == 0, done.output
    rows = RecordFile.read(folder / "out.parquet").rows
    again = job.predict_file(folder / "own.csv", keep=["patient_id"])
    frame = pd.read_csv(own, sep=";")
    assert [row["patient_id"] for row in rows] == ["007", "008"]
    assert [row["class"] for row in rows] == [row["class"] for row in again]
    assert job.predict(frame) == [{name: row[name] for name in ("class", "probabilities")} for row in again]
    own.write_text(own.read_text().replace("-2;B", "2O;B"))
    with pytest.raises(scrimp.InvalidRequest, match=r"own\.csv, line 3  column 'x4' must be a number.* and is '2O'"):
        job.predict_file(own)


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


def test_no_request_goes_out_on_a_connection_that_the_service_is_about_to_close(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service closes an idle connection after `timeout_keep_alive`; a busy one may, seconds before it reads."""
    closes_s = uvicorn.Config("none").timeout_keep_alive
    clock = SimpleNamespace(monotonic=time.monotonic)
    monkeypatch.setattr("httpcore._sync.http11.time", clock)

    def connection(client: scrimp.Client) -> object:
        return client._http.get("/healthz").extensions["network_stream"].get_extra_info("client_addr")

    with service.client() as client:
        first = connection(client)
        assert connection(client) == first
        clock.monotonic = lambda: time.monotonic() + closes_s - 2.0
        assert connection(client) != first
