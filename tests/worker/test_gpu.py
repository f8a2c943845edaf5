"""What only a GPU can show: an attempt on it from start to end, its waits, its kernels. Skipped where there is none."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from core.contracts.job_spec import TransformerRecModel
from core.privacy.numerics import GROUP, sensitivity_slack
from tests.bound.worst import CASES, engine_of, slotted
from tests.worker.support import Supervisor, dense, run_child, run_thread, spec, start_of, stored_part
from worker.attempt.device_survey import found
from worker.clipping.engine import Clip
from worker.clipping.linear_clipping import LinearClipping
from worker.data.passes import EMPTY
from worker.data.placed import placed, resident
from worker.data.secret_slots import Slotted
from worker.messages import Digest, Finished, Ready
from worker.models.linear import Linear
from worker.models.next_item import NextItem
from worker.noise.gaussian import GaussianRelease
from worker.optimizers.base import StepInfo
from worker.optimizers.descent import Descent
from worker.optimizers.dp_adam import DpAdam
from worker.training.self_test import random_parameters, random_records

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
GPU = torch.device("cuda", 0)
SHAPE = {"records_train": 80, "records_holdout": 20, "features": 5, "outputs": 3, "sparse": False}


@pytest.fixture(autouse=True)
def deterministic() -> Any:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def supervised(folder: Path, **changes: Any) -> Supervisor:
    folder.mkdir()
    x, y = dense(100, 5, 3)
    parts = {
        "train": stored_part(folder / "train.npz", x[:80], y[:80]),
        "holdout": stored_part(folder / "holdout.npz", x[80:], y[80:]),
    }
    start = start_of(spec(model={"kind": "mlp", "hidden": [8]}), SHAPE, parts=parts, output_dir=folder)
    return Supervisor(start | {"device": "cuda"} | changes)


def test_an_attempt_runs_on_it_and_replays_bit_for_bit(tmp_path: Path) -> None:
    supervisor = supervised(tmp_path / "one")
    assert isinstance(run_thread(supervisor).last, Finished)
    (ready,) = supervisor.of(Ready)
    assert ready.device == "cuda" and ready.numerics.device_name == torch.cuda.get_device_name(0)
    assert ready.numerics.self_test == "passed"
    again = supervised(tmp_path / "two")
    run_thread(again)
    first, second = ([each.digest for each in of.seen if each.kind == "digest"] for of in (supervisor, again))
    assert first == second


@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0), reason="this card has no TF32"
)
def test_an_attempt_in_tf32_says_so_replays_and_makes_another_model(tmp_path: Path) -> None:
    digests = []
    for name, precision in (("ieee", "ieee"), ("one", "tf32"), ("two", "tf32")):
        asked = spec(model={"kind": "mlp", "hidden": [8]}, runtime={"device": "cuda", "fp32_precision": precision})
        supervisor = supervised(tmp_path / name, spec=asked)
        assert isinstance(run_thread(supervisor).last, Finished)
        (ready,) = supervisor.of(Ready)
        assert (ready.numerics.fp32_precision, ready.numerics.self_test) == (precision, "passed")
        digests.append([each.digest for each in supervisor.of(Digest)])
    assert digests[0] != digests[1] == digests[2]


TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two CUDA devices")


@pytest.mark.parametrize("gpus", [("0", "0"), pytest.param(("0", "1"), marks=TWO_GPUS)], ids=["shared", "own"])
def test_ranks_on_gpus_make_the_model_of_one(tmp_path: Path, gpus: tuple[str, ...]) -> None:
    """Their integers are added on the host. With one GPU both ranks share it, which the service never does."""
    digests = []
    for name, seen in (("one", gpus[:1]), ("two", gpus)):
        runtime = {"processes": len(seen), "physical_batch_size": 48, "threads": 1}
        asked = spec(model={"kind": "mlp", "hidden": [8]}, runtime=runtime)
        gang = supervised(tmp_path / name, spec=asked, processes=len(seen), gpus=list(seen))
        assert isinstance(run_child(gang).last, Finished)
        (ready,) = gang.of(Ready)
        assert ready.device == "cuda" and len(set(ready.processes)) == len(seen)
        digests.append([each.digest for each in gang.of(Digest)])
    assert digests[0] == digests[1]


@pytest.mark.parametrize("name", ["deep tanh, odd widths", "transformer, last", "linear", "linear, sparse", "ratings"])
def test_one_unit_changes_a_clipped_sum_by_at_most_c(name: str) -> None:
    """The stated bound with the GPU's kernels, at a gain of 30."""
    case = CASES[name]
    model = replace(case.model, device=GPU)  # type: ignore[type-var]
    generator = torch.Generator().manual_seed(1)
    parameters = placed(random_parameters(model, generator), GPU)
    records = random_records(model, 34, generator, sparse=case.sparse)
    engine = engine_of(model, positions=case.positions)
    for n in (1, 2, 4, 17, 33):
        whole, fewer = (engine.private_sum(parameters, slotted(records, np.arange(each))) for each in (n + 1, n))
        change = torch.cat([(whole[each] - fewer[each]).flatten() for each in whole]).norm()
        assert float(change) <= 0.5 * case.slack


@pytest.mark.parametrize("where", ["resident", "copied"])
def test_one_record_changes_a_sum_in_float32_by_at_most_c(where: str) -> None:
    """With the GPU's products of groups; one more record takes a row of its own."""
    model = Linear(33, 5, bias=True, rows_per_pass=2 * GROUP, dtype=torch.float32, device=GPU)
    generator = torch.Generator().manual_seed(1)
    parameters = placed(random_parameters(model, generator), GPU)
    records = random_records(model, 200, generator)
    engine = LinearClipping(model, "flat", 0.5, sums="float32")
    slack = sensitivity_slack(200, 2 * GROUP, 1, GROUP)

    kept = resident(records, 0 if where == "resident" else 2**62, GPU)

    def total(n: int, occupant: int) -> torch.Tensor:
        batch = Slotted(kept, np.insert(np.arange(n), n // 2, occupant))
        return torch.cat([each.flatten() for each in engine.private_sum(parameters, batch).values()])

    for n in (1, GROUP - 1, GROUP, 2 * GROUP, 199):
        change = total(n, n) - total(n, EMPTY)
        assert float(change.norm()) <= 0.5 * slack


@pytest.mark.parametrize("where", ["resident", "copied"])
def test_a_step_waits_for_it_at_most_once(where: str) -> None:
    model = NextItem(300, TransformerRecModel(dim=16, max_length=12), device=GPU)
    parameters = placed(model.init(bytes(range(32))), GPU)
    engine, optimizer = engine_of(model), DpAdam(Descent(1e-3))
    records = random_records(model, 40, torch.Generator().manual_seed(0))
    batch = resident(records, 0 if where == "resident" else 2**62, GPU)
    release = GaussianRelease(bytes(range(32)), noise_multiplier=1.0, max_grad_norm=0.5, expected_batch_size=40)
    state = optimizer.init(parameters)

    def step(number: int) -> None:
        nonlocal parameters, state
        release.prepare(parameters, number)
        noised = release.release(engine.private_sum(parameters, batch, Clip(0.5)), number)
        parameters, state = optimizer.update(noised, state, parameters, StepInfo(number, 0.01))

    for number in (1, 2, 3):
        step(number)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as waits:
            warnings.simplefilter("always")
            step(4)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len([each for each in waits if "synchroniz" in str(each.message)]) <= 1


def test_the_worker_finds_it() -> None:
    gpus = found()
    assert [each.name for each in gpus] == [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())]
    assert gpus[0].capability and gpus[0].memory_bytes and gpus[0].cuda == torch.version.cuda
