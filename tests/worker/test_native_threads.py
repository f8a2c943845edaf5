"""Compiled work has the same bits on any number of torch's threads, and puts pieces on all of them."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from core.native.library import PATHS, Library
from tests.worker.native import opened
from worker.clipping import totals
from worker.clipping.engine import Clip
from worker.clipping.totals import Formed, Grid, GridTotals
from worker.native import threads
from worker.native.flat_steps import AdamStep, Steps
from worker.native.layers import Kernel, Layers
from worker.native.linear_steps import ClipNumbers, LinearSteps
from worker.noise.native import Native

THREADS = range(1, 8)
N = 5 * 32_768 + 7  # numbers: more than one piece, and no whole number of them
ADAM = AdamStep(0.0, 0.9, 0.1, 0.99, 0.01, 0.1, 0.01, 1e-8, 0.1, 1.0)


@pytest.fixture(scope="module", params=PATHS)
def library(request: pytest.FixtureRequest) -> Library:
    return opened(request.param)


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


def updated(steps: Steps) -> list[Tensor]:
    theta, m, v, direction = (random(N + at, dtype=torch.float64)[:N].abs() for at in range(4))
    assert steps.adam(direction, theta, m, v, ADAM) and steps.descend(theta, direction, 0.9, 0.1)
    return [theta, m, v]


def scaled(steps: Steps) -> list[Tensor]:
    numbers, factors = random(700, 257), random(700, dtype=torch.float64)
    wide, narrow = torch.empty(700, 257, dtype=torch.float64), torch.empty(700, 257)
    squares, of_rows = (torch.empty(size, dtype=torch.float64) for size in (700, 100))
    assert steps.widen(wide, numbers, factors) and steps.narrow(narrow, numbers, factors)
    ids = torch.arange(7).expand(100, 7).contiguous()
    assert steps.squares(squares, numbers)
    assert steps.squares_of_rows(of_rows, ids, ids // 2, numbers.view(100, 7, 257))
    measured = steps.squares_of_products(numbers, numbers[:, :19].contiguous(), (0.1, 0.2), 1e9)
    outs = [torch.empty(700, 257), torch.empty(700, 257)]
    assert measured is not None and steps.scaled(outs, numbers, numbers, factors)
    gathered = steps.gather(numbers, torch.arange(700).flip(0), random(700) > 0)
    assert gathered is not None
    return [wide, narrow, squares, of_rows, *measured, *outs, gathered]


def released(library: Library) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(-(2**63), 2**63 - 1, (N,), generator=generator)
    words[[3, 40_000, N - 1]] = 2**63 - 1  # only exact arithmetic decides these
    out = torch.empty(N, dtype=torch.float64)
    undecided = Native(library).release(words, random(N, dtype=torch.float64), out, 2.0, 2.0**-10, 7.0)
    assert {3, 40_000, N - 1} <= set(undecided.tolist()) and sorted(undecided.tolist()) == undecided.tolist()
    return [out, torch.from_numpy(undecided)]


def linear(library: Library) -> list[Tensor]:
    steps, rows, classes = LinearSteps(library), 9001, 10
    out, norms = torch.empty(rows, classes, dtype=torch.float64), torch.empty(rows, dtype=torch.float64)
    labels = torch.arange(rows) % classes
    lengths, present = random(rows, dtype=torch.float64).abs(), random(rows) > 0
    outputs = random(classes, rows)
    assert steps.clip(out, norms, outputs, labels, lengths, present, ClipNumbers(1.0, 1.0, 0.01, 1.0, 1e9))
    groups, total = random(40, 7, 1001), torch.empty(7, 1001, dtype=torch.float64)
    assert steps.add_groups(total, groups)
    labels[rows - 1] = classes
    with pytest.raises(IndexError):
        steps.clip(out.clone(), norms, outputs, labels, lengths, present, ClipNumbers(1.0, 1.0, 0.01, 1.0, 1e9))
    return [out, norms, total]


def layers(library: Library) -> list[Tensor]:
    of, x = Layers(library), random(30, 8, 31, 29)
    kernels = [Kernel((5, 4), (1, 1), (2, 1), (1, 2), by_places) for by_places in (True, False)]
    means, maxima = of.average(x), of.maximum(x)
    assert means is not None and maxima is not None
    back = [of.average_back(means, x.shape), of.maximum_back(maxima, x), of.tanh(x)]
    made = [means, maxima, *back, *(of.patches(x, kernel) for kernel in kernels)]
    return [each for each in made if each is not None]


def summed(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    monkeypatch.setattr(totals, "STEPS", steps)
    made = GridTotals(
        {"w": torch.zeros(300, 513), "v": torch.zeros(N), "u": torch.zeros(5003)}, Clip(1.0), Grid(999, 240)
    )
    made.add_products("w", random(230, 300), random(230, 513), 96)
    made.add("v", random(N, dtype=torch.float64))
    made.add_formed([Formed("u", random(230, 5003), random(230), 48)])
    return list(made.finish().values())


WORK: dict[str, Callable[[Library, pytest.MonkeyPatch], list[Tensor]]] = {
    "updates": lambda library, patch: updated(Steps(library)),
    "scaled numbers and lengths": lambda library, patch: scaled(Steps(library)),
    "totals": lambda library, patch: summed(Steps(library), patch),
    "released numbers": lambda library, patch: released(library),
    "linear models": lambda library, patch: linear(library),
    "layers": lambda library, patch: layers(library),
}


@pytest.mark.parametrize("name", WORK)
def test_any_number_of_threads_makes_the_same_bits(
    library: Library, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    for count in THREADS:
        torch.set_num_threads(count)
        made.append(WORK[name](library, monkeypatch))
        assert torch.get_num_threads() == count
    alone = [each.numpy().tobytes() for each in made[0]]
    assert len(alone) > 1
    for others in made[1:]:
        assert [each.numpy().tobytes() for each in others] == alone


def test_without_openmp_one_thread_does_all(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(3)
    wanted = WORK["scaled numbers and lengths"](library, monkeypatch)
    nobody = ctypes.pointer(threads._Team(None, 3))
    monkeypatch.setattr("worker.native.flat_steps.team", lambda: nobody)
    found = WORK["scaled numbers and lengths"](library, monkeypatch)
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))


def test_without_its_products_torch_makes_the_same_totals(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(library)
    wanted = summed(steps, monkeypatch)
    monkeypatch.setattr(steps, "_sgemm", None)
    assert all(torch.equal(a, b) for a, b in zip(wanted, summed(steps, monkeypatch), strict=True))


TWO_THREADS = """
import os, torch
from worker.native.flat_steps import STEPS
torch.set_num_threads(2)
out = torch.empty(400, dtype=torch.float64)
before = len(os.listdir("/proc/self/task"))
assert STEPS.squares(out, torch.ones(400, 4096))
print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.skipif(threads.of_torch("GOMP_parallel") is None, reason="torch has no OpenMP here")
def test_it_takes_the_threads_of_torch() -> None:
    """In a process of its own, which has none before: importing starts none."""
    done = subprocess.run([sys.executable, "-c", TWO_THREADS], capture_output=True, text=True, check=True)
    assert int(done.stdout) == 1
