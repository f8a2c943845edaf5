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

FOLDER = Path(__file__).resolve().parents[1] / "pretend_gpu"
ROOT = FOLDER.parents[1]
FILES = [f"tests/worker/{name}.py" for name in ("test_gpu", "test_noise_ahead", "test_gpu_engine")]
# It has no sparse tensors and no lazy layers, and a process that is started does not see it.
NOT_THERE = ("sparse", "conv2d", "group", "ranks_on_gpus", "the_worker_finds_it")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device: make gpu"),
    pytest.mark.skipif(shutil.which("g++") is None or sys.platform != "linux", reason="there is no g++ for Linux"),
]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder, home = tmp_path_factory.mktemp("pretend"), Path(torch.__file__).parent
    made = []
    for name in ("guard", "hooks"):
        made.append(folder / f"{name}.so")
        command = ["g++", "-O0", "-std=c++20", "-shared", "-fPIC", f"-I{home}/include", f"-L{home}/lib"]
        command += [str(FOLDER / f"{name}.cpp"), "-o", str(made[-1]), "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{home}/lib"]
        subprocess.run(command, check=True, timeout=300)
    return made


def run(libraries: list[Path], *command: str) -> str:
    environment = os.environ | {
        "LD_PRELOAD": " ".join(map(str, libraries)),
        "PRETEND_GUARD": str(libraries[0]),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=500
    )
    return done.stdout + done.stderr


@pytest.mark.timeout(600)
def test_what_needs_a_gpu_passes_on_a_pretended_one(libraries: list[Path]) -> None:
    chosen = " and ".join(f"not {each}" for each in NOT_THERE)
    plugins = ("-p", "tests.pretend_gpu.plugin", "-p", "no:randomly", "-p", "no:xdist", "-p", "no:cacheprovider")
    printed = run(libraries, "-m", "pytest", *plugins, "-q", "-m", "gpu", "-k", chosen, *FILES)
    summary = re.search(r"^(\d+) passed(.*)$", printed, re.MULTILINE)
    assert summary and int(summary[1]) >= 11 and "failed" not in summary[2] and "error" not in summary[2], printed
    assert "equal indices" in printed and "at worker/noise" not in printed, printed


# Of a step of two passes of a small transformer with two blocks and Adam, on a device that computes like CUDA.
MOST = {
    "waits": 1,
    "pageable copies": 0,
    "waits of streams": 3,  # the copying stream's for the step's begin, and one for each pass
    "equal indices": 1000,
    "kernels a pass": 500,
    "bytes a parameter": 60,
}


@pytest.mark.timeout(600)
def test_what_a_step_costs_it(libraries: list[Path]) -> None:
    printed = run(libraries, "-m", "tests.pretend_gpu.counted")
    found = json.loads(printed.splitlines()[-1])
    assert {name: max(found.get(name, 0), most) for name, most in MOST.items()} == MOST, found


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
