"""The tests that need a GPU pass on a device that pretends to be one.

It runs in a process of its own, as its guard has to be loaded before torch.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.by_night import but
from tests.pretend_gpu.within import built, environment

ROOT = Path(__file__).resolve().parents[2]
FILES = [f"tests/worker/{name}.py" for name in ("test_gpu", "test_noise_ahead", "test_gpu_engine")]
# It has no sparse tensors and no lazy layers, and a process that is started does not see it.
NOT_THERE = ("sparse", "conv2d", "group", "ranks_on_gpus", "the_worker_finds_it")
# Left to the night: the bound of a transformer, which takes a third of the time. By day tests/bound takes it on the
# processor, and three other models here.
BY_NIGHT = "transformer"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device: make gpu"),
    pytest.mark.skipif(shutil.which("g++") is None or sys.platform != "linux", reason="there is no g++ for Linux"),
]


@pytest.fixture(scope="module")
def libraries() -> list[Path]:
    return built()


def run(libraries: list[Path], *command: str) -> str:
    path = {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    by = {"cwd": ROOT, "env": environment(libraries) | path, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, *command], check=False, timeout=1100, **by)  # type: ignore[call-overload]
    return str(done.stdout + done.stderr)


@pytest.mark.parametrize("left_out", but([BY_NIGHT, "nothing"], lambda left_out: left_out == BY_NIGHT))
def test_what_needs_a_gpu_passes_on_a_pretended_one(libraries: list[Path], left_out: str) -> None:
    marked = "gpu and not nightly" if left_out == BY_NIGHT else "gpu"
    chosen = " and ".join(f"not {name}" for name in (*NOT_THERE, left_out))
    plugins = ("-p", "tests.pretend_gpu.plugin", "-p", "no:randomly", "-p", "no:xdist", "-p", "no:cacheprovider")
    printed = run(libraries, "-m", "pytest", *plugins, "-q", "-m", marked, "-k", chosen, *FILES)
    summary = re.search(r"^(\d+) passed(.*)$", printed, re.MULTILINE)
    assert summary and int(summary[1]) >= 11 and "failed" not in summary[2] and "error" not in summary[2], printed
    assert "equal indices" in printed and "at worker/noise" not in printed, printed


# Of a step of two passes of a small transformer with two blocks and Adam, on a device that computes like CUDA.
MOST = {
    "waits": 1,
    "pageable copies": 0,
    "waits of streams": 3,  # the copying stream's for the step's begin, and one for each pass
    "equal indices": 1000,
    "kernels a pass": 200,
    "bytes a parameter": 48,
}


def test_what_a_step_costs_it(libraries: list[Path]) -> None:
    printed = run(libraries, "-m", "tests.pretend_gpu.counted")
    found = json.loads(printed.splitlines()[-1])
    assert {name: max(found.get(name, 0), most) for name, most in MOST.items()} == MOST, found


@pytest.mark.nightly  # a kit for who has a GPU; by day the device's own tests, above
def test_the_first_hour_is_rehearsed(tmp_path: Path) -> None:
    """The kit for a machine with a GPU, in small sizes. Its self-test, places and noise find nothing to refuse."""
    known = {"SCRIMP_PRETEND_GPU": "1", "PYTHON": sys.executable, "OUT": str(tmp_path), "ROW": "MLP"}
    command = ["sh", "scripts/gpu_hour.sh"]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | known, capture_output=True, text=True, check=False, timeout=1100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = (tmp_path / "hour.txt").read_text()
    assert "Refused: nothing" in report and "deep relu: listed operations alone" in report
    assert "the processor's bits" in report and "softmax over 1,500 columns: it repeats" in report
    assert "MLP" in (tmp_path / "speed.txt").read_text()


MISTAKES = {
    "torch.ones(3, device='cuda') + torch.ones(3)": "same device",
    "whole.to('cuda') @ whole.to('cuda')": "not implemented for integers",
    "torch.histc(torch.ones(3, device='cuda'))": "deterministic implementation",
    "torch.ones(3, device='cuda').numpy()": "can't convert cuda",
    "(torch.full((1,), 3.0, device='cuda') / 7.0).cpu() == torch.tensor(3.0) / 7.0": "tensor([False])",
    "(torch.full((1,), 3.0, device='cuda') / torch.full((), 7.0, device='cuda')).cpu() == torch.tensor(3.0) / 7.0": (
        "tensor([True])"
    ),
}
EVALUATED = """
import os, torch
from tests.pretend_gpu import device
device.start(os.environ["PRETEND_GUARD"])
torch.use_deterministic_algorithms(True)
whole = torch.ones(3, 3, dtype=torch.int64)
for expression in {}:
    try:
        print("->", eval(expression))
    except (RuntimeError, TypeError) as error:
        print("->", error)
"""


def test_it_shows_what_a_gpu_would(libraries: list[Path]) -> None:
    lines = [each for each in run(libraries, "-c", EVALUATED.format(list(MISTAKES))).splitlines() if each[:2] == "->"]
    assert len(lines) == len(MISTAKES)
    for (expression, says), printed in zip(MISTAKES.items(), lines, strict=True):
        assert says in printed, expression
