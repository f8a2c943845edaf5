"""Every pass, clipped sum and update of the catalogue on torch's meta device, which has shapes and no numbers.

It raises an error for a tensor on another device, for `.item()` and whatever else reads a number, and for a shape that
depends on numbers. So what runs there can run on a GPU without waiting for it. Named exceptions, which need numbers:
the noise's words, the settlement of doubtful roundings, digests, and scores. Sparse products have no meta
kernels: tests/worker/test_placed.py compares them with SciPy's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from core.contracts.job_spec import GruRecModel, LstmRecModel, MlpModel, TransformerRecModel
from core.privacy.numerics import GROUP
from tests.bound.worst import CASES, MORE, Case, engine_of, network, next_items
from tests.by_night import but
from tests.worker import optimizing
from tests.worker.support import key
from worker.clipping.build import unclipped_engine
from worker.clipping.engine import Clip, CountingEngine
from worker.clipping.linear_clipping import LinearClipping, LinearGradient
from worker.clipping.zeroth_order import Slope, ZerothOrder
from worker.data.placed import passes_on, placed
from worker.data.secret_slots import Slotted
from worker.models.base import Model, Parameters
from worker.models.linear import Linear
from worker.models.modules import ModuleModel
from worker.noise.directions import ALONG, Directions
from worker.noise.secret_places import RandomOrder
from worker.optimizers.base import Observing, Preconditioned, StepInfo
from worker.optimizers.pieces import flattened
from worker.training.self_test import random_records

META = torch.device("meta")
KEY = bytes.fromhex(key("init"))
SHORT: dict[str, Any] = {"dim": 8, "layers": 2, "max_length": 4}
# Long recurrences repeat the same operations: shorter ones do.
EVERY = (
    CASES
    | MORE
    | {
        "gru, length 200": next_items(GruRecModel(**SHORT, loss_positions="last")),
        "gru, float64": next_items(GruRecModel(**SHORT), torch.float64),
        "lstm": next_items(LstmRecModel(**SHORT)),
        "transformer": next_items(TransformerRecModel(dim=32, blocks=2, max_length=30)),
        "dropout": network(MlpModel(hidden=[16, 8], dropout=0.5)),
    }
)
# By day one of each kind of layer, narrow type and engine; by night all of them.
BY_DAY = {
    *("conv2", "deep tanh, bfloat16", "divided, linear", "dropout", "linear", "lstm", "ratings"),
    *("re-attention, paper", "regression", "transformer, last", "users, linear"),
}
OTHER_CLIPS = ("dropout", "conv2", "lstm", "transformer, last", "linear", "ratings")
MODULES = [name for name, case in EVERY.items() if isinstance(case.model, ModuleModel)]
DENSE = [name for name, case in EVERY.items() if not case.sparse]


class OnMeta(TorchDispatchMode):
    """Notes operations on numbers of another device, except where passes are made from records."""

    def __init__(self) -> None:
        super().__init__()
        self.elsewhere: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        flat = [each for each in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        devices = {each.device.type for each in flat if each.dim() > 0}
        if len(devices) > 1 and "copy" not in str(func):
            self.elsewhere.add(str(func))
        return out


@pytest.fixture(autouse=True)
def on_meta() -> Iterator[OnMeta]:
    with OnMeta() as mode:
        yield mode
    assert mode.elsewhere == set(), "operations on tensors of two devices"


def shapes(total: Parameters, parameters: Parameters) -> None:
    """A sum has its parameters' names, shapes and device."""
    assert {name: value.shape for name, value in total.items()} == {n: p.shape for n, p in parameters.items()}
    assert all(value.device == META and value.dtype == torch.float64 for value in total.values())


def drawn(model: Model, *, sparse: bool = False) -> tuple[Parameters, Any]:
    parameters = placed(replace(model, device=torch.device("cpu")).init(KEY), META)  # type: ignore[type-var]
    rows = min(model.rows_per_pass, 48)
    return parameters, random_records(model, rows + 3, torch.Generator().manual_seed(1), sparse=sparse)


def on(case: Case) -> Model:
    model: Model = replace(case.model, device=META)  # type: ignore[type-var]
    if getattr(model, "effective_errors", None) is not None:
        errors = model.effective_errors  # type: ignore[attr-defined]
        errors.restore(0.01, torch.linspace(0.005, 0.25, model.items + 1))  # type: ignore[attr-defined]
    return model


CLIPPED = [
    *((name, "flat") for name in DENSE),
    *((name, kind) for name in OTHER_CLIPS for kind in ("automatic", "per_layer")),
]


@pytest.mark.parametrize(("name", "kind"), but(CLIPPED, lambda case: case[0] in BY_DAY))
def test_clipped_sums(name: str, kind: str) -> None:
    case = EVERY[name]
    model = on(case)
    parameters, records = drawn(model)
    if isinstance(model, ModuleModel) and model.masks is not None:
        model.masks.begin(KEY, 1)
    engine = engine_of(model, kind, positions=case.positions, per_unit=case.per_unit)
    clip = Clip(0.5, {n: torch.ones_like(p) for n, p in parameters.items()}) if case.divided else None
    shapes(engine.private_sum(parameters, records, clip), parameters)
    if kind == "flat" and isinstance(engine, CountingEngine):
        total, count = engine.private_sum_and_count(parameters, records)
        shapes(total, parameters)
        assert count.device == META and count.shape == (1,)


@pytest.mark.parametrize("name", but([each for each in DENSE if not EVERY[each].divided], BY_DAY.__contains__))
def test_sums_of_slopes(name: str) -> None:
    model = on(EVERY[name])
    parameters, records = drawn(model)
    engine = ZerothOrder(model, Slope(1e-3, "flat", 0.5, EVERY[name].per_unit), Directions(1))
    shapes(engine.private_sum(parameters, records), {ALONG: torch.zeros(1)})


@pytest.mark.parametrize("features", [33, 784])
def test_sums_in_float32(features: int) -> None:
    """Float32 adds groups of 48 rows, in passes copied to the device and in passes kept there."""
    model = Linear(features, 5, bias=True, rows_per_pass=2 * GROUP, dtype=torch.float32, device=META)
    parameters, records = drawn(model)
    batch = Slotted(records, RandomOrder(KEY).of(1, len(records)))
    engine = LinearClipping(model, "flat", 0.5, sums="float32")
    for each in (batch, batch.prepared(model.rows_per_pass, model.dtype, META)):
        total, count = engine.private_sum_and_count(parameters, each)
        shapes(total, parameters)
        assert count.device == META
    shapes(LinearGradient(model, "float32").private_sum(parameters, records), parameters)


@pytest.mark.parametrize("name", but(DENSE, BY_DAY.__contains__))
def test_sums_without_clipping(name: str) -> None:
    model = on(EVERY[name])
    parameters, records = drawn(model)
    if isinstance(model, ModuleModel) and model.masks is not None:
        model.masks.begin(KEY, 1)
    shapes(unclipped_engine(model).private_sum(parameters, records), parameters)


@pytest.mark.parametrize("name", optimizing.OPTIMIZERS)
@pytest.mark.parametrize("flat", [True, False])
def test_updates(name: str, flat: bool) -> None:
    """In place, of one flat tensor as the loop has them, and of tensors of their own."""
    optimizer = optimizing.OPTIMIZERS[name]()
    parameters = placed(optimizing.parameters(), META)
    parameters = flattened(parameters) if flat else parameters
    state = optimizer.init(parameters)
    for step, noised in enumerate(optimizing.gradients(7), start=1):
        there = type(noised)(placed(noised, META))
        if isinstance(optimizer, Observing):
            state = optimizer.observe(dict(there), state)
        if isinstance(optimizer, Preconditioned):
            divisors = optimizer.divisors(state, step, 0)
            assert divisors is None or all(each.device == META for each in divisors.values())
        parameters, state = optimizer.update(there, state, parameters, StepInfo(step, 0.09, there))
        assert all(each.device == META for each in parameters.values())
        assert all(each.device == META for each in state.values() if each.dim() > 0)


@pytest.mark.parametrize("name", but([each for each in MODULES if not EVERY[each].divided], BY_DAY.__contains__))
def test_outputs(name: str) -> None:
    """Scores: the passes. Their means and ranks are read, and so wait for the device."""
    model = on(EVERY[name])
    parameters, records = drawn(model)
    evaluate = model.evaluator(parameters)
    for each in passes_on(META, records, model.rows_per_pass, torch.float64):
        assert evaluate(each.records).device == META
