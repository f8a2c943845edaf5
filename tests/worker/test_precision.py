"""TF32 in forward and backward passes: what is measured is what is added, and both are by IEEE.

A processor has no TF32. Here its products follow torch's switches as a GPU's do (tests/pretend_gpu/tf32.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from core.contracts.job_spec import MlpModel
from core.errors import PrivacyError
from core.privacy.numerics import Numerics, grid_slack, sensitivity_slack
from tests.bound.worst import CASES, MORE, C, Case, drawn, engine_of, flat, largest_change, network
from tests.pretend_gpu.tf32 import EmulatedTf32
from tests.worker.layers import Tensors
from worker.clipping import accumulators, bookkeeping, factors, precision, scratch, totals
from worker.clipping.accumulators import ParameterAccumulator
from worker.clipping.bookkeeping import Bookkeeping
from worker.clipping.build import unclipped_engine
from worker.clipping.precision import NotIeeeError, in_ieee, in_tf32, require_ieee
from worker.clipping.terms import Dense, Outer
from worker.clipping.totals import Grid, GridTotals
from worker.clipping.zeroth_order import Slope, ZerothOrder
from worker.data import lengths
from worker.models.linear import Linear
from worker.models.modules import ModuleModel
from worker.noise.directions import Directions
from worker.training.plan import _has_tf32
from worker.training.self_test import random_parameters, random_records

ROWS, GROUP = 4, 4
WORST = {
    name: (CASES | MORE)[name] for name in ("deep tanh", "transformer, last", "views, conv5", "divided, odd widths")
}


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedTf32]:
    """A process like an attempt's, whose products are all torch's, as on a GPU."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    for module in (accumulators, factors, lengths, scratch, totals):
        monkeypatch.setattr(module, "STEPS", None)
    with EmulatedTf32() as mode:
        yield mode
    assert torch.get_float32_matmul_precision() == "highest" and not torch.backends.cudnn.allow_tf32


def with_tf32(case: Case) -> Case:
    return replace(case, model=cast(Any, replace(cast(Any, case.model), tf32=True)))


# --- The bound ---


@pytest.mark.parametrize("sums", ["float64", "float32"])
@pytest.mark.parametrize("name", WORST)
def test_one_record_changes_a_sum_of_tf32_passes_by_at_most_c(name: str, sums: str, emulated: EmulatedTf32) -> None:
    """Neighbours of one, two and three records, at a gain of 30: that of one is its clipped gradient alone."""
    case = with_tf32(WORST[name])
    parameters, records = drawn(case)
    rows, numbers = case.model.rows_per_pass, sum(each.numel() for each in parameters.values())
    group = GROUP if sums == "float32" else None
    grid = Grid(len(records), rows)
    engine = engine_of(case.model, positions=case.positions, views=case.views, group=group, grid=grid)
    slack = sensitivity_slack(len(records), rows, case.positions, group) + grid_slack(len(records), rows, numbers, 1)
    assert slack < 1 + 1e-5
    assert 0.5 < largest_change(case, engine, parameters, records, (1, 2, 3)) <= slack
    assert emulated.rounded and not emulated.mixed and (emulated.exact or group is None or case.divided)


def test_passes_in_tf32_have_other_bits() -> None:
    """The same records' sum differs in the fourth digit, so the emulation is not idle."""
    case = network(MlpModel(hidden=[33, 7]))
    parameters, records = random_parameters(case.model, torch.Generator(), 1.0), drawn(case)[1]
    sums = [flat(engine_of(each.model).private_sum(parameters, records)) for each in (case, with_tf32(case))]
    assert 1e-6 < float((sums[0] - sums[1]).norm()) / float(sums[0].norm()) < 1e-2


def test_the_self_test_runs_as_the_job_s_passes_do_and_the_examination_by_ieee(emulated: EmulatedTf32) -> None:
    """Ranks compare what the self-test's passes compute: one that has another precision has other bits."""
    case = network(MlpModel(hidden=[33, 7]))
    parameters, records = random_parameters(case.model, torch.Generator(), 1.0), drawn(case)[1]
    few, engines = records.select(np.arange(3)), [engine_of(each.model) for each in (case, with_tf32(case))]
    ieee, tf32 = (engine.trace(parameters, few) for engine in engines)
    assert not torch.equal(ieee[0], tf32[0])  # losses
    emulated.rounded = 0
    cast(Bookkeeping[Any], engines[1]).examine(cast(Any, records), parameters)
    assert not emulated.rounded


@pytest.mark.parametrize("fault", ["a processor", "float64", "a linear model"])
def test_a_plan_has_tf32_on_a_gpu_alone(fault: str) -> None:
    """Whatever admission let through."""
    numerics = Numerics(
        passes="float32", fp32_precision="tf32", rows_per_pass=48, positions=1, sensitivity_slack=1.0, filling=0.0
    )
    model = replace(cast(Any, network(MlpModel(hidden=[33, 7])).model), device=torch.device("cuda"))
    assert _has_tf32(numerics, model)
    assert not _has_tf32(numerics.model_copy(update={"fp32_precision": "ieee"}), model)
    unfit = {
        "a processor": replace(model, device=torch.device("cpu")),
        "float64": replace(model, dtype=torch.float64),
        "a linear model": Linear(3, 2, device=torch.device("cuda"), dtype=torch.float32),
    }
    with pytest.raises(PrivacyError, match="TF32"):
        _has_tf32(numerics, unfit[fault])


# --- What is formed in the backward pass is added as it was measured ---


class Scaled(nn.Module):
    """y = w ⊙ x: without a rule, so its forward runs again for each record."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


FORMED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolution": (lambda: nn.Conv2d(2, 3, 3), (2, 7, 7)),
    "a layer without a rule": (lambda: Scaled(5), (9, 5)),
    "linear over many positions": (lambda: nn.Linear(3, 2), (40, 3)),
}


@pytest.mark.parametrize("name", FORMED)
def test_formed_gradients_are_measured_as_formed(name: str, emulated: EmulatedTf32) -> None:
    """One record's clipped gradient is C long to five digits; TF32's have three."""
    make, shape = FORMED[name]
    torch.manual_seed(0)
    engine, parameters = crafted(make(), lambda m, b: m(b[0]).square().flatten(1).sum(dim=1))
    for seed in range(5):
        x = torch.randn(1, *shape, generator=torch.Generator().manual_seed(seed)) + 1.0
        moved = one_record_moves(engine, parameters, x, 1e-3)
        assert 1 - 1e-4 < moved <= SLACK
    assert emulated.rounded


# --- Planted faults ---

SLACK = sensitivity_slack(2 * ROWS, ROWS, 64, GROUP) + grid_slack(2 * ROWS, ROWS, 10_000, 1)
Losses = Callable[[nn.Module, Any], Tensor]


def crafted(module: nn.Module, losses: Losses) -> tuple[Bookkeeping[Any], dict[str, Tensor]]:
    parameters = {name: each.detach().double().clone() for name, each in module.named_parameters()}
    grid = Grid(2 * ROWS, ROWS)
    engine = Bookkeeping[Any](
        module, losses, rows=ROWS, kind="flat", max_grad_norm=C, grid=grid, group=GROUP, tf32=True
    )
    return engine, parameters


def one_record_moves(engine: Bookkeeping[Any], parameters: dict[str, Tensor], x: Tensor, norm: float) -> float:
    """‖S − S′‖ / C for the record x (1, …) alone: S′ is 0."""
    total = engine.private_sum(parameters, Tensors(x, torch.zeros(1)), bookkeeping.Clip(norm))
    return float(flat(total).norm()) / norm


def record_of(width: int, shape: tuple[int, ...], *, up: bool) -> Tensor:
    """Records of numbers that TF32 rounds up, or down, by the most that it can: by 2⁻¹¹ of them."""
    return torch.full((1, *shape, width), 1 + 2.0**-11 + (2.0**-20 if up else 0.0))


def worst_of(fault: str) -> float:
    """How far the record moves a sum at its worst for a fault: of gradients at two places, measured by Gram matrices
    in float32; or at one, added by products in float32."""
    of_gram, largest = fault == "measuring", 0.0
    torch.manual_seed(0)
    a = 1 + 2.0**-11
    module = nn.Linear(64, 64, bias=False)
    engine, parameters = crafted(module, lambda m, b: (a * m(b[0])).flatten(1).sum(dim=1))
    x = record_of(64, (2,) if of_gram else (), up=not of_gram)
    for norm in (0.5, 0.55, 0.6, 0.7, 0.8):
        largest = max(largest, one_record_moves(engine, parameters, x, norm))
    return largest


def under_tf32(method: Callable[..., Any]) -> Callable[..., Any]:
    """The same, with TF32 switched on meanwhile."""

    def faulty(*args: Any, **kwargs: Any) -> Any:
        with in_tf32(True):
            return method(*args, **kwargs)

    return faulty


@pytest.mark.parametrize("fault", ["measuring", "adding"])
def test_a_fault_on_one_side_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulation around measuring alone, or adding alone, moves a sum by more than is paid."""
    assert worst_of(fault) <= SLACK
    if fault == "measuring":
        monkeypatch.setattr(ParameterAccumulator, "measured", under_tf32(ParameterAccumulator.measured))
        assert_refused(fault)
        monkeypatch.setattr(accumulators, "require_ieee", lambda: None)
    else:
        monkeypatch.setattr(GridTotals, "add_products", under_tf32(GridTotals.add_products))
        assert_refused(fault)
        monkeypatch.setattr(totals, "require_ieee", lambda: None)
    assert worst_of(fault) > SLACK + 1e-4


def assert_refused(fault: str) -> None:
    with pytest.raises(NotIeeeError):
        worst_of(fault)


@pytest.mark.parametrize("fault", ["measuring", "adding"])
def test_a_forgotten_switch_is_refused(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a backward pass in TF32; and where the process itself has it on."""
    monkeypatch.setattr(bookkeeping, "in_ieee", nullcontext)
    around: AbstractContextManager[None] = nullcontext() if fault == "measuring" else in_tf32(True)
    with around:
        assert_refused(fault)


def calls() -> dict[str, Callable[[], Any]]:
    """Everything that measures or adds by products."""
    outer = Outer(torch.ones(2, 1, 3), torch.ones(2, 1, 4))
    formed = Dense(torch.ones(2, 3, 4))
    one, weights = torch.Size((3, 4)), torch.ones(2)
    total = torch.zeros(3, 4, dtype=torch.float64)
    grid = GridTotals({"w": total}, bookkeeping.Clip(1.0), Grid(2, 2))
    return {
        "lengths": lambda: ParameterAccumulator([outer], one).measured(),
        "squares": lambda: ParameterAccumulator([outer], one).squares(),
        "a sum": lambda: ParameterAccumulator([outer], one).add_to(total, weights),
        "formed again": lambda: list(ParameterAccumulator([formed], one, group=2).formed_parts(weights)),
        "products of groups": lambda: grid.add_products("w", torch.ones(2, 3), torch.ones(2, 4), 2),
        "formed of groups": lambda: grid.add_formed([totals.Formed("w", torch.ones(2, 12), weights, 2)]),
        "groups on a GPU": lambda: list(totals.products_of_groups(torch.ones(2, 3), torch.ones(2, 4), 2)),
    }


@pytest.mark.parametrize("name", calls())
def test_whatever_measures_or_adds_refuses_tf32(name: str) -> None:
    with in_tf32(True), in_ieee():
        calls()[name]()
    with in_tf32(True), pytest.raises(NotIeeeError):
        calls()[name]()


# --- The switch ---


@pytest.mark.parametrize("precision_of_process", ["high", "medium"])
def test_a_process_that_has_it_on_measures_and_adds_by_ieee(precision_of_process: str) -> None:
    """The program's passes keep what it asked torch for.

    Claim: one record's part of a sum is at most C long, in a program that lets torch round the factors of products
    Now: at most 1 + 10⁻⁵: `scrimp.engine` measures and adds by IEEE
    """
    try:
        torch.set_float32_matmul_precision(precision_of_process)
        assert max(worst_of("measuring"), worst_of("adding")) <= SLACK
        assert torch.get_float32_matmul_precision() == precision_of_process
    finally:
        torch.set_float32_matmul_precision("highest")


def test_a_pass_that_fails_leaves_the_switch_as_it_was() -> None:
    def losses(module: nn.Module, batch: Any) -> Tensor:
        assert precision._precision() == "high" and torch.backends.cudnn.allow_tf32
        raise ArithmeticError

    engine, parameters = crafted(nn.Linear(3, 2), losses)
    with pytest.raises(ArithmeticError):
        engine.private_sum(parameters, Tensors(torch.ones(2, 3), torch.zeros(2)))
    require_ieee()
    assert not torch.backends.cudnn.allow_tf32


def test_a_mix_of_torch_s_switches_is_refused() -> None:
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        with pytest.raises(NotIeeeError, match="set_float32_matmul_precision"):
            require_ieee()
    finally:
        torch.set_float32_matmul_precision("highest")


def test_other_engines_switch_it_for_their_passes_alone(emulated: EmulatedTf32) -> None:
    """Slopes, which are clipped as numbers; and gradients of public records."""
    model = cast(ModuleModel, with_tf32(network(MlpModel(hidden=[33, 7]))).model)
    generator = torch.Generator().manual_seed(1)
    parameters, records = random_parameters(model, generator), random_records(model, 5, generator)
    slopes = ZerothOrder(model, Slope(0.01, "flat", C), Directions(1), Grid(6, model.rows_per_pass))
    whole, fewer = (slopes.private_sum(parameters, records.select(np.arange(n)))["along"] for n in (5, 4))
    assert float((whole - fewer).abs()) <= C * (1 + 1e-6)
    assert emulated.rounded and not emulated.exact
    unclipped_engine(model).private_sum(parameters, records)
    assert not emulated.exact


@pytest.mark.parametrize("what", ["a pass", "measuring"])
def test_a_program_s_autocast_is_refused(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It rounds the factors of products in float32 to 8 digits, whatever torch's switch says.

    Claim: one record's part of a sum is at most C long, in a program that trains under `torch.autocast`
    Now: `scrimp.engine` refuses it
    """
    if what == "measuring":
        monkeypatch.setattr(bookkeeping, "require_no_autocast", lambda: None)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(NotIeeeError, match="outside of it"):
        worst_of("measuring")


def test_a_thread_that_has_measured_leaves_the_switch_to_another_that_measures() -> None:
    try:
        torch.set_float32_matmul_precision("high")
        one, another = in_ieee(), in_ieee()
        one.__enter__()
        another.__enter__()
        one.__exit__(None, None, None)
        require_ieee()
        another.__exit__(None, None, None)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
