"""The self-test of an attempt: kernels that round by neighbours are found, and what follows is sound."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.worker.support import Supervisor, dense, plan_of, records, run_thread, spec, start_of, stored_part
from worker.attempt.messages import BlockStart, Failed, Finished, Ready
from worker.training import self_test
from worker.training.plan import Plan, build_plan

SHAPE = {"records_train": 80, "records_holdout": 20, "features": 5, "outputs": 3, "sparse": False}
MLP = {"kind": "mlp", "hidden": [16, 16]}
BIT = 1.0 + 2.0**-22
linear = torch.nn.functional.linear


def by_place(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Every third row is rounded otherwise."""
    scale = torch.where(torch.arange(len(x)) % 3 == 2, BIT, 1.0).to(x.dtype)
    return linear(x, weight, bias) * scale[:, None]


def by_number(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """All rows are rounded otherwise where an even number of them holds anything."""
    used = int((x.detach() != 0).any(dim=1).sum())
    return linear(x, weight, bias) * (BIT if used % 2 == 0 else 1.0)


def by_values(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """All rows are rounded otherwise where one of them is large."""
    return linear(x, weight, bias) * (BIT if float(x.detach().abs().max()) > 100.0 else 1.0)


def by_shape(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As real kernels do: by how many rows there are, fillings included."""
    return linear(x, weight, bias) * (BIT if len(x) % 96 else 1.0)


def by_chance() -> Callable[..., Tensor]:
    calls = itertools.count()

    def rounded(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return linear(x, weight, bias) * (BIT if next(calls) % 5 == 0 else 1.0)

    return rounded


def start(**changes: Any) -> dict[str, Any]:
    return start_of(spec(model=MLP, **changes), SHAPE)


def one_record_plan(of: dict[str, Any]) -> Plan:
    asked = Supervisor(of).message()
    return build_plan(
        asked.spec,
        asked.mechanism,
        asked.shape,
        asked.task,
        asked.features,
        steps=asked.steps,
        data_public=False,
        holdout_public=False,
        one_record=True,
    )


@pytest.mark.parametrize("engine", ["bookkeeping", "opacus"])
def test_honest_kernels_pass(engine: str) -> None:
    plan = plan_of(start(clipping={"engine": engine}))
    assert self_test.holds(plan) and self_test.holds(one_record_plan(start(clipping={"engine": engine})))


@pytest.mark.parametrize(
    "model",
    [
        {"kind": "linear", "bias": True},
        {"kind": "mlp", "hidden": [33, 7, 3], "dropout": 0.5},
        {"kind": "mlp", "hidden": [64] * 8, "activation": "relu"},
    ],
)
def test_models_of_dense_features_pass(model: dict[str, Any]) -> None:
    assert self_test.holds(plan_of(start_of(spec(model=model), SHAPE)))
    sparse = SHAPE | {"sparse": True, "features": 400}
    if model["kind"] == "linear":
        assert self_test.holds(plan_of(start_of(spec(model=model), sparse)))


@pytest.mark.parametrize("kernel", [by_place, by_number, by_values])
def test_kernels_that_round_by_neighbours_are_found(
    kernel: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.nn.functional, "linear", kernel)
    assert not self_test.holds(plan_of(start()))
    plan = one_record_plan(start())
    assert self_test.holds(plan) or kernel is by_values  # the large record is rounded otherwise, which is its own
    assert plan.numerics.rows_per_pass == 1 and plan.model.rows_per_pass == 1


def test_a_kernel_that_rounds_by_the_number_of_rows_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes have one number of rows, so that it is right to pass: and the bound holds."""
    monkeypatch.setattr(torch.nn.functional, "linear", by_shape)
    plan = plan_of(start())
    assert self_test.holds(plan)
    x, y = dense(33, 5, 3)
    parameters = self_test.random_parameters(plan.model, torch.Generator().manual_seed(3))
    for n in range(1, 34):
        sums = [
            torch.cat([each.flatten() for each in plan.engine.private_sum(parameters, records(x[:m], y[:m])).values()])
            for m in (n, n - 1)
        ]
        assert float((sums[0] - sums[1]).norm()) <= plan.numerics.sensitivity_slack


def attempt(tmp_path: Any) -> tuple[Supervisor, Any]:
    x, y = dense(100, 5, 3)
    parts = {
        "train": stored_part(tmp_path / "train.npz", x[:80], y[:80]),
        "holdout": stored_part(tmp_path / "holdout.npz", x[80:], y[80:]),
    }
    supervisor = Supervisor(start_of(spec(model=MLP), SHAPE, parts=parts, output_dir=tmp_path))
    return supervisor, run_thread(supervisor)


def test_an_attempt_says_what_it_computes_in(tmp_path: Any) -> None:
    supervisor, ended = attempt(tmp_path)
    assert ended.status == 0 and ended.last.warnings == ()
    (said,) = [each.numerics for each in supervisor.of(Ready)]
    assert (said.device, said.passes, said.sums, said.self_test) == ("cpu", "float32", "float64", "passed")
    assert said.rows_per_pass == said.physical_batch_size == 96 and said.torch == torch.__version__.split("+")[0]
    assert said.threads == torch.get_num_threads() and 1.0 < said.sensitivity_slack < 1.0 + 1e-6


def test_an_attempt_goes_on_with_one_record_a_pass(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.functional, "linear", by_place)
    supervisor, ended = attempt(tmp_path)
    assert ended.status == 0 and isinstance(ended.last, Finished)
    assert ended.last.warnings == ("one-record-passes",)
    (said,) = [each.numerics for each in supervisor.of(Ready)]
    assert (said.self_test, said.rows_per_pass, said.physical_batch_size) == ("one_record", 1, 1)


def test_an_attempt_on_a_machine_that_repeats_nothing_ends_before_anything_ran(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.nn.functional, "linear", by_chance())
    supervisor, ended = attempt(tmp_path)
    assert ended.status == 1 and isinstance(ended.last, Failed) and ended.last.code == "numerics"
    assert not supervisor.of(BlockStart) and not supervisor.of(Ready)


def test_public_data_are_not_tested(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "holds", lambda plan: pytest.fail("a test that nobody needs"))
    x, y = dense(80, 5, 3)
    parts = {"train": stored_part(tmp_path / "train.npz", x, y)}
    job = spec(model=MLP, privacy=None, evaluation=None)
    supervisor = Supervisor(start_of(job, SHAPE, public=True, parts=parts, output_dir=tmp_path))
    assert run_thread(supervisor).status == 0
    assert [each.numerics.self_test for each in supervisor.of(Ready)] == ["public_data"]
    assert np.array_equal(x, dense(80, 5, 3)[0])
