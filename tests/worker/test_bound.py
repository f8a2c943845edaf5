"""The stated bound at its worst: deep and recurrent networks with large weights, over any number of records.

Adding or removing one record changes a clipped sum by at most C · slack, and a score's sums by at most their
sensitivity. Last bits that depend on neighbours, amplified by such networks, moved sums by several C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from app.contracts.job_spec import (
    Clipping,
    CnnModel,
    GruRecModel,
    LstmRecModel,
    MlpModel,
    Ranking,
    TransformerRecModel,
)
from app.privacy.mechanism import TrainingMechanism
from app.privacy.numerics import sensitivity_slack
from app.privacy.releases import SCORE, NoisyScore, NoisySum
from worker.clipping.bookkeeping import Bookkeeping
from worker.clipping.build import build_engine
from worker.clipping.engine import GradientEngine
from worker.data.passes import Cuttable, filled
from worker.data.records import Records
from worker.metrics.scores import _private_sums, _ranked
from worker.models.base import Model, Parameters
from worker.models.linear import Linear
from worker.models.matrix_factorization import MatrixFactorization
from worker.models.networks import Network
from worker.models.next_item import NextItem
from worker.training.self_test import random_parameters, random_records

C = 0.5
NUMBERS = (1, 2, 3, 4, 5, 7, 9, 13, 17, 20, 31, 32, 33)
FEW = (1, 2, 3, 4, 17)  # where a pass takes long


@dataclass(frozen=True)
class Case:
    """A model of the catalogue at its worst.

    Attributes:
        positions: rows that a record has in one product.
        numbers: of records.
    """

    model: Model
    positions: int = 1
    sparse: bool = False
    numbers: tuple[int, ...] = NUMBERS


def network(spec: Any, features: int = 33, dtype: torch.dtype = torch.float32) -> Case:
    convolves = spec.kind == "cnn"
    return Case(Network(features, 4, spec, dtype), 196 if convolves else 1, numbers=FEW if convolves else NUMBERS)


def next_items(spec: Any, dtype: torch.dtype = torch.float32) -> Case:
    return Case(NextItem(300, spec, dtype), 2 * spec.max_length, numbers=FEW)


DEEP = MlpModel(hidden=[128] * 16)
CASES = {
    "deep tanh": network(DEEP),
    "deep tanh, float64": network(DEEP, dtype=torch.float64),
    "deep tanh, odd widths": network(MlpModel(hidden=[33, 7, 30, 3, 31, 65])),
    "deep relu": network(MlpModel(hidden=[64] * 12, activation="relu")),
    "conv2": network(CnnModel(preset="conv2"), 784),
    "gru, length 200": next_items(GruRecModel(dim=16, layers=8, max_length=200, loss_positions="last")),
    "lstm": next_items(LstmRecModel(dim=16, layers=4, max_length=50)),
    "transformer": next_items(TransformerRecModel(dim=32, blocks=8, max_length=30)),
    "transformer, last": next_items(
        TransformerRecModel(dim=32, heads=2, blocks=4, max_length=30, loss_positions="last", tied=False)
    ),
    "linear": Case(Linear(33, 5, bias=True)),
    "linear, sparse": Case(Linear(500, 3), sparse=True),
    "regression": Case(Linear(7, 1)),
    "ratings": Case(MatrixFactorization(20, 30, 7, (1.0, 5.0))),
}


def engine_of(model: Model, kind: str = "flat", name: str = "bookkeeping") -> GradientEngine:
    training = {
        "sampling": "full_batch",
        "sample_rate": 1.0,
        "steps": 1,
        "noise_multiplier": 1.0,
        "max_grad_norm": C,
        "clipping": kind,
        "expected_batch_size": 32,
    }
    clipping = Clipping.model_validate({"kind": kind, "max_grad_norm": C, "engine": name})
    return build_engine(model, clipping, TrainingMechanism.model_validate(training))


def flat(parts: Parameters) -> Tensor:
    return torch.cat([each.flatten() for each in parts.values()])


def drawn(case: Case) -> tuple[Parameters, Records]:
    generator = torch.Generator().manual_seed(1)
    parameters = random_parameters(case.model, generator)
    return parameters, random_records(case.model, 34, generator, sparse=case.sparse)


def neighbours(records: Records, n: int) -> list[Records]:
    """The first n records without the last, and without the first."""
    everyone = np.arange(n)
    return [records.select(np.delete(everyone, at)) for at in sorted({n - 1, 0})]


def largest_change(case: Case, engine: GradientEngine, parameters: Parameters, records: Records) -> float:
    """max ‖S − S′‖ / C over pairs of neighbours."""
    largest = 0.0
    for n in case.numbers:
        whole = flat(engine.private_sum(parameters, records.select(np.arange(n))))
        for fewer in neighbours(records, n):
            moved = whole - flat(engine.private_sum(parameters, fewer))
            largest = max(largest, float(moved.norm()) / C)
    return largest


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


ON_TWO = ("deep tanh", "deep tanh, odd widths", "deep relu", "transformer", "linear")


@pytest.mark.parametrize(("name", "cores"), [*((name, 1) for name in CASES), *((name, 2) for name in ON_TWO)])
def test_one_record_changes_a_clipped_sum_by_at_most_c(name: str, cores: int, threads: Callable[[int], None]) -> None:
    threads(cores)
    case = CASES[name]
    slack = sensitivity_slack(34, case.model.rows_per_pass, case.positions)
    assert slack < 1.0 + 1e-6
    parameters, records = drawn(case)
    assert 0.5 < largest_change(case, engine_of(case.model), parameters, records) <= slack


@pytest.mark.parametrize("kind", ["automatic", "per_layer"])
@pytest.mark.parametrize("name", ["deep tanh", "gru, length 200"])
def test_other_kinds_of_clipping(name: str, kind: str) -> None:
    case = CASES[name]
    parameters, records = drawn(case)
    slack = sensitivity_slack(34, case.model.rows_per_pass, case.positions)
    assert largest_change(case, engine_of(case.model, kind), parameters, records) <= slack


def test_the_reference_engine() -> None:
    case = CASES["deep tanh"]
    parameters, records = drawn(case)
    assert largest_change(case, engine_of(case.model, name="opacus"), parameters, records) <= 1.0 + 1e-6


@pytest.mark.parametrize("rows", [48, 96, 144])
def test_any_whole_number_of_units_of_rows(rows: int) -> None:
    case = CASES["deep tanh, odd widths"]
    model = replace(case.model, rows_per_pass=rows)  # type: ignore[type-var]
    parameters, records = drawn(case)
    assert largest_change(case, engine_of(model), parameters, records) <= 1.0 + 1e-6


def test_without_the_filling_the_bound_falls() -> None:
    """What was before: passes of as many rows as there are records."""
    case = CASES["deep tanh"]
    parameters, records = drawn(case)
    largest = 0.0
    for n in (2, 3, 4, 5, 6, 7):
        sums = []
        for number in (n, n - 1):
            model = replace(case.model, rows_per_pass=number)  # type: ignore[type-var]
            sums.append(flat(engine_of(model).private_sum(parameters, records.select(np.arange(number)))))
        largest = max(largest, float((sums[0] - sums[1]).norm()) / C)
    assert largest > 1.5


# --- What sums round ---


class Coefficients(Cuttable["Coefficients"]):
    """Records whose gradients are what they hold: float64 (n, T)."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def piece(self, start: int, rows: int, dtype: torch.dtype) -> Coefficients:
        return Coefficients(filled(self.values, start, rows))


class Single(nn.Module):
    """One number, in a layer of each kind: its gradient of a record is Σ_t c_t."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.layer = nn.Embedding(1, 1) if kind == "rows" else nn.Linear(1, 1, bias=kind == "bias")
        if kind == "bias":
            self.layer.weight.requires_grad_(False)

    def forward(self, c: Tensor) -> Tensor:
        if self.kind == "rows":
            outputs: Tensor = self.layer(torch.zeros(c.shape, dtype=torch.long))[..., 0]
            return outputs
        one = torch.ones(*c.shape, 1, dtype=c.dtype) if c.shape[1] > 1 else torch.ones(len(c), 1, dtype=c.dtype)
        return self.layer(one)[..., 0].view(c.shape)  # type: ignore[no-any-return]


def drifting(records: int, positions: int) -> Tensor:
    """The first half brings a sum to the edge of a binade, and one record decides on which side; all others then bring
    +3u, −u, −u, −u, of which a sum that is rounded at each addition keeps the first alone on one side."""
    half = records // 2
    u = half * 2.0**-54
    large = torch.zeros(half, positions, dtype=torch.float64)
    large[:, 0] = 0.5
    large[0, 0], large[1, 0] = 1.0 - 2.0**-30, 2.0**-30
    pattern = torch.tensor([3 * u, -u, -u, -u], dtype=torch.float64)
    if positions >= 4:
        return torch.cat([large, pattern.repeat(positions // 4).expand(records - half, -1)])
    return torch.cat([large, pattern[:, None].repeat((records - half) // 4, 1)])


@pytest.mark.parametrize(
    ("kind", "rows", "positions"),
    [("bias", 4080, 1), ("weight", 4080, 1), ("bias", 480, 1), ("weight", 480, 4), ("rows", 480, 4), ("rows", 96, 48)],
)
def test_what_a_sum_over_many_passes_rounds_is_paid(kind: str, rows: int, positions: int) -> None:
    records = 2**13 if positions > 4 else 2**18
    module = Single(kind).double()
    engine: Bookkeeping[Any] = Bookkeeping(
        module,
        lambda m, r: (m(r.values) * r.values).sum(dim=1),
        rows=rows,
        kind="flat",
        max_grad_norm=1.0,
        dtype=torch.float64,
    )
    name = "layer.bias" if kind == "bias" else "layer.weight"
    parameters = {name: dict(module.named_parameters())[name].detach().clone()}
    all_of_them = drifting(records, positions)
    whole, fewer = (engine.private_sum(parameters, Coefficients(c))[name] for c in (all_of_them, all_of_them[1:]))
    assert float((whole - fewer).norm()) <= sensitivity_slack(records, rows, positions)


# --- Scores ---


SCORES = {
    "accuracy": {"what": "accuracy"},
    "loss": {"what": "loss", "sensitivity": 8.0},
}


def sums_of(release: NoisyScore, model: Model, parameters: Parameters, records: Records) -> np.ndarray:
    return np.array(_private_sums(release, model, parameters, records))


@pytest.mark.parametrize(
    ("name", "what"),
    [(name, what) for name, case in CASES.items() for what in SCORES if what == "loss" or case.model.classification],
)
def test_one_record_changes_a_score_s_sums_by_at_most_their_sensitivity(name: str, what: str) -> None:
    case = CASES[name]
    release = SCORE.validate_python({"account": "holdout", "noise_mu": 0.5, "records": 34} | SCORES[what])
    parameters, records = drawn(case)
    for n in case.numbers:
        whole = sums_of(release, case.model, parameters, records.select(np.arange(n)))
        for fewer in neighbours(records, n):
            moved = np.linalg.norm(whole - sums_of(release, case.model, parameters, fewer))
            assert moved <= release.sensitivity * (1 + 1e-12)


@pytest.mark.parametrize("name", ["gru, length 200", "transformer", "transformer, last"])
def test_one_user_changes_a_ranking_s_sums_by_at_most_one(name: str) -> None:
    case, ranking = CASES[name], Ranking(k=100)
    parameters, records = drawn(case)

    def ranked(some: Records) -> np.ndarray:
        return np.array([float(each.sum()) for each in _ranked(ranking, case.model, parameters, some)])

    for n in case.numbers:
        whole = ranked(records.select(np.arange(n)))
        for fewer in neighbours(records, n):
            assert np.abs(whole - ranked(fewer)).max() <= 1.0 + 1e-12


def test_scores_of_groups_are_exact_sums() -> None:
    """Of 40,000 records: halves of a millionth are added up without a rounding."""
    groups = {"some": (0, 1), "other": (2,)}
    release = NoisySum.model_validate(
        {"account": "holdout", "noise_mu": 0.5, "records": 9, "what": "loss", "sensitivity": 3.0, "groups": groups}
    )
    model = Linear(3, 4, bias=True)
    generator = torch.Generator().manual_seed(2)
    parameters, records = random_parameters(model, generator, 1.0), random_records(model, 40_000, generator)
    whole = sums_of(release, model, parameters, records)
    half = np.arange(20_000)
    parts = [sums_of(release, model, parameters, records.select(at)) for at in (half, half + 20_000)]
    assert np.array_equal(whole, parts[0] + parts[1])
