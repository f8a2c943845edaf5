"""A worker process for each device: its command line, its settings, and what a wrong name gets."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.dashboard.page import templates
from app.system.workers import WorkerView
from core.contracts.devices import Device
from core.ids import now
from scrimp.cli import app
from scrimp_server import serve
from scrimp_server.children import Child, stop
from tests.processes import until
from worker.attempt.device_survey import DevicesError, chosen

GPUS = tuple(
    Device(kind="cuda", index=index, name="A GPU", memory_bytes=2**34, capability="9.0", driver="550.54", cuda="12.8")
    for index in (0, 1)
)


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ("auto", [("worker-cuda0", "cuda:0", "scrimp,scrimp-cuda"), ("worker-cuda1", "cuda:1", "scrimp,scrimp-cuda")]),
        ("cuda:1", [("worker", "cuda:1", "scrimp,scrimp-cuda")]),
        ("cpu", [("worker", "cpu", "scrimp")]),
    ],
)
def test_each_device_has_a_process(
    monkeypatch: pytest.MonkeyPatch, devices: str, expected: list[tuple[str, str, str]]
) -> None:
    monkeypatch.setenv("SCRIMP_DEVICES", devices)
    monkeypatch.setattr(serve, "on_this_machine", lambda setting: chosen(setting, GPUS))
    lines = serve.worker_lines()
    assert [(each.name, each.settings["SCRIMP_DEVICES"], each.arguments[-1]) for each in lines] == expected
    assert all(each.arguments[-2] == "--queues" for each in lines)


def test_a_missing_gpu_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(setting: str) -> tuple[Device, ...]:
        raise DevicesError("this machine has no cuda:7: torch can use cpu")

    monkeypatch.setattr(serve, "on_this_machine", missing)
    with pytest.raises(serve.ServeError, match="no cuda:7"):
        serve.worker_lines()


def test_a_wrong_name_is_refused() -> None:
    refused = CliRunner().invoke(app, ["worker", "--devices", "tpu:0"])
    assert refused.exit_code == 2 and "is not auto, cpu, cuda" in refused.output


def test_a_child_has_its_settings(tmp_path: Path) -> None:
    told = tmp_path / "told"
    writes = f"new.write_text(os.environ['SCRIMP_DEVICES']); new.rename({str(told)!r})"  # there, it is whole
    code = f"import os, pathlib; new = pathlib.Path({str(tmp_path / 'new')!r}); {writes}"
    child = Child("worker", [sys.executable, "-c", code], None, settings={"SCRIMP_DEVICES": "cuda:1"})
    assert child.tend() is None
    until(told.exists)
    stop([child], 10.0)
    assert told.read_text() == "cuda:1" and child.last_words() == ""


def test_the_dashboard_shows_devices() -> None:
    worker = WorkerView(
        name="host:1",
        host="host",
        pid=1,
        started_at=now(),
        seen_at=now(),
        alive=True,
        sandbox=None,
        runs="jobs",
        devices=[GPUS[1]],
        gpus=1,
        skew_s=0.0,
        job=None,
    )
    page = templates().get_template("_workers.html")
    shown = page.render(workers=[worker, worker.model_copy(update={"devices": None})], viewer=None)
    assert "cuda:1" in shown and "capability 9.0" in shown and "driver 550.54" in shown and "not known" in shown
    assert "scrimp worker" in page.render(workers=[], viewer=None)
