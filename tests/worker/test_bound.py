"""The stated bound at its worst: deep and recurrent networks with large weights, over any number of records.

Adding or removing one record changes a clipped sum by at most C · slack, and a score's sums by at most their
sensitivity. Last bits that depend on neighbours, amplified by such networks, moved sums by several C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from core.contracts.extractor import ImageInput
from core.parts.stored_records import StoredPart, Texts
from core.privacy.numerics import sensitivity_slack
from core.privacy.releases import NoisySum
from tests.bound.worst import (
    CASES,
    FEW,
    MORE,
    SCORES,
    C,
    drawn,
    engine_of,
    flat,
    largest_change,
    scores,
    sums_of,
    worst_ranking,
    worst_score,
    worst_sum,
)
from tests.by_night import but
from tests.worker.extractor import write_extractor, write_image_extractor
from worker.clipping.bookkeeping import Bookkeeping
from worker.data.loaded_parts import records_of
from worker.data.passes import EMPTY, Cuttable, gathered
from worker.data.secret_slots import Slotted
from worker.extractors.features import extracted
from worker.models.linear import Linear
from worker.training.self_test import random_parameters, random_records


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


ON_TWO = ("deep tanh", "deep tanh, odd widths", "deep relu", "transformer", "linear")
# By night: "lstm" here, and "gru, float64" below, walk the paths of a length of 200; "transformer, last" has the layers
# of "transformer".
LONG = ("gru, length 200", "transformer")
HERE = {*((name, 1) for name in CASES if name not in LONG), ("deep tanh", 2)}


@pytest.mark.parametrize(
    ("name", "cores"), but([*((name, 1) for name in CASES), *((name, 2) for name in ON_TWO)], HERE.__contains__)
)
def test_one_record_changes_a_clipped_sum_by_at_most_c(name: str, cores: int, threads: Callable[[int], None]) -> None:
    """Claim: one record changes a clipped sum by at most C · slack: tanh network 16 × 128, float32
    Now: at most 1 + 10⁻⁶
    """
    threads(cores)
    assert CASES[name].slack < 1.0 + 1e-6
    assert 0.5 < worst_sum(CASES[name]) <= CASES[name].slack


@pytest.mark.parametrize("name", MORE)
def test_one_unit_changes_a_clipped_sum_by_at_most_c(name: str) -> None:
    """Larger networks, narrower types, users of several records, and gradients that are divided before the clip.

    Claim: the same for conv5, re-attention, bfloat16, users of k records, divided gradients
    Now: at most 1 + 10⁻⁵
    """
    assert MORE[name].slack < 1.0 + 1e-5
    assert 0.5 < worst_sum(MORE[name]) <= MORE[name].slack


@pytest.mark.parametrize("kind", ["automatic", "per_layer"])
@pytest.mark.parametrize(
    "name", but(["deep tanh", "gru, float64", "gru, length 200"], lambda name: name != "gru, length 200")
)
def test_other_kinds_of_clipping(name: str, kind: str) -> None:
    case = (CASES | MORE)[name]
    parameters, records = drawn(case)
    found = largest_change(case, engine_of(case.model, kind), parameters, records, (2, 4, 17))
    assert found <= case.slack


def test_the_reference_engine() -> None:
    case = CASES["deep tanh"]
    parameters, records = drawn(case)
    assert largest_change(case, engine_of(case.model, name="opacus"), parameters, records, FEW) <= 1.0 + 1e-6


@pytest.mark.parametrize("rows", [4, 7, 28, 33, 36, 48, 96, 144])
def test_any_number_of_rows(rows: int) -> None:
    case = CASES["deep tanh, odd widths"]
    model = replace(case.model, rows_per_pass=rows)  # type: ignore[type-var]
    parameters, records = drawn(case)
    assert largest_change(case, engine_of(model), parameters, records) <= 1.0 + 1e-6


def test_without_the_filling_the_bound_falls() -> None:
    """What was before: passes of as many rows as there are records.

    Claim: the same with passes of as many rows as there are records, as a control
    Now: more than 1.5 C, so that the test can see it
    """
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

    def piece(self, places: NDArray[np.int64], dtype: torch.dtype) -> Coefficients:
        return Coefficients(gathered(self.values, places))


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
    """Claim: what sums round is paid for
    Now: the slack, of public rows alone: no number of records is in it
    """
    records = 2**13 if positions > 4 else 2**18 if rows > 480 else 2**16
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


SCORED = [(name, what) for name, case in CASES.items() for what in SCORES if scores(case, what)]
ROUNDED = 1 + 1e-12


@pytest.mark.parametrize(("name", "what"), but(SCORED, lambda case: case[0] not in LONG))
def test_one_record_changes_a_score_s_sums_by_at_most_their_sensitivity(name: str, what: str) -> None:
    """Claim: one record changes a `loss` score's sums by at most its sensitivity: GRU of 8 layers
    Now: at most 1
    """
    assert worst_score(CASES[name], what) <= ROUNDED


@pytest.mark.parametrize("name", ["re-attention, logits", "deep tanh, bfloat16", "gru, float64"])
def test_the_loss_of_other_kinds_too(name: str) -> None:
    assert worst_score(MORE[name], "loss") <= ROUNDED


@pytest.mark.parametrize("name", but([*LONG, "transformer, last"], lambda name: name not in LONG))
def test_one_user_changes_a_ranking_s_sums_by_at_most_one(name: str) -> None:
    """Claim: one user changes HIT's sum by at most 1, float64
    Now: at most 1
    """
    assert worst_ranking(CASES[name]) <= ROUNDED


@pytest.mark.parametrize(
    "name", but(["deep tanh", "deep tanh, odd widths", "transformer, last"], lambda name: name != "deep tanh")
)
def test_scores_on_two_threads(name: str, threads: Callable[[int], None]) -> None:
    threads(2)
    numbers = (2, 3, 17)
    assert worst_score(CASES[name], "loss", numbers) <= ROUNDED
    if name == "transformer, last":
        assert worst_ranking(CASES[name], numbers) <= ROUNDED


# --- Extractors ---


@pytest.mark.parametrize("kind", ["texts", "images"])
def test_one_record_changes_a_sum_behind_an_extractor_by_at_most_c(kind: str, tmp_path: Path) -> None:
    """Features are made anew of each set of records.

    Claim: the same behind an extractor
    Now: at most 1 + slack
    """
    generator = np.random.default_rng(0)
    if kind == "texts":
        image, sha256 = None, write_extractor(tmp_path / "e")
        x: Any = [" ".join(generator.choice(["a", "good", "bad", "films"], size)) for size in (1, 3, 30, 2, 9)]
    else:
        image, sha256 = ImageInput(height=9, width=7), write_image_extractor(tmp_path / "e")
        x = generator.random((5, image.numbers), dtype=np.float32)
    parameters: dict[str, Tensor] = {}
    y = np.arange(5, dtype=np.int64) % 3

    def summed(at: list[int]) -> Tensor:
        part = StoredPart(Texts.of([x[i] for i in at]) if image is None else x[at], y[at])
        made = records_of(extracted(part, f"{at}", tmp_path / "e", sha256, tmp_path / "c", lambda: None, image))
        model = Linear(8 if image is None else 1280, 3, bias=True)
        if not parameters:
            parameters.update(random_parameters(model, torch.Generator().manual_seed(1)))
        occupants = np.full(5, EMPTY)
        occupants[at] = np.arange(len(at))
        return flat(engine_of(model).private_sum(parameters, Slotted(made, occupants)))

    for n in (2, 3, 5):
        whole, everyone = summed(list(range(n))), list(range(n))
        for fewer in (everyone[1:], everyone[:-1]):
            assert 0.0 < float((whole - summed(fewer)).norm()) <= C * sensitivity_slack(34, 48, 1)


def test_scores_of_groups_are_exact_sums() -> None:
    """Of 40,000 records: halves of a millionth are added up without a rounding.

    Claim: scores are exact sums
    Now: sums of integers
    """
    groups = {"some": (0, 1), "other": (2,)}
    release = NoisySum.model_validate(
        {"account": "holdout", "noise_mu": 0.5, "records": 9, "what": "loss", "sensitivity": 3.0, "groups": groups}
    )
    model = Linear(3, 4, bias=True)
    generator = torch.Generator().manual_seed(2)
    parameters, records = random_parameters(model, generator, 1.0), random_records(model, 40_000, generator)
    half = np.arange(20_000)
    whole, *parts = (
        sums_of(release, model, parameters, some)
        for some in (records, records.select(half), records.select(half + 20_000))
    )
    assert torch.equal(whole, parts[0] + parts[1])
