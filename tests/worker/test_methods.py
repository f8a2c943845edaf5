"""Which way a parameter takes: the public sizes at which it changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.worker.layers import Batch, Tensors
from worker.clipping import methods
from worker.clipping.accumulators import ParameterAccumulator
from worker.clipping.bookkeeping import Bookkeeping
from worker.clipping.methods import can_stay_factored, kept_bytes
from worker.clipping.scratch import Scratch
from worker.clipping.terms import Dense, Merged, Outer, Rows

ITEMS, DIM, LENGTH, ROWS = 3417, 64, 50, 96  # a recommender's output layer, and a pass


def merged(
    positions: int, p: int, q: int, *, n: int = 1, dtype: torch.dtype = torch.float32, tied: bool = False
) -> Merged:
    """Terms of these sizes, without their memory."""
    numbers = torch.zeros((), dtype=dtype)
    outer = Outer(numbers.expand(n, positions, p), numbers.expand(n, positions, q))
    rows = Rows(torch.zeros((), dtype=torch.int64).expand(n, positions), numbers.expand(n, positions, q), p)
    return Merged(outer, rows if tied else None, None)


@pytest.mark.parametrize(
    ("positions", "p", "q", "factored"),
    [
        (LENGTH, ITEMS, DIM, False),  # its sum in float64 takes longer than forming twice
        (8, ITEMS, DIM, True),
        (12, ITEMS, DIM, False),
        (LENGTH, DIM, DIM, False),
        (128, 768, 768, False),
        (64, 768, 768, True),
        (128, 768, 3072, True),  # wide layers: float64 takes twice the time, and no more
        (128, 50_257, 768, True),
        (16, 512, 2304, True),
        (16, 128, 576, True),
        (25, 128, 576, False),
        (1, ITEMS, DIM, True),
    ],
)
@pytest.mark.parametrize("tied", [False, True])
def test_the_cheaper_way_is_taken(positions: int, p: int, q: int, factored: bool, tied: bool) -> None:
    assert can_stay_factored(merged(positions, p, q, n=ROWS, tied=tied), divided=False) is factored


def test_what_is_neither_a_product_nor_a_choice() -> None:
    assert not can_stay_factored(Merged(None, None, Dense(torch.ones(1, 3))), divided=False)
    assert can_stay_factored(Merged(None, merged(3, 4, 5, tied=True).rows, None), divided=True)
    assert not can_stay_factored(merged(2, 4, 5), divided=True)
    wide = merged(LENGTH, ITEMS, DIM, dtype=torch.float64)  # float64 throughout: no product takes longer
    assert can_stay_factored(wide, divided=False)


@pytest.mark.parametrize("uses", [2, 5, 8, 20])
@pytest.mark.parametrize(("rows", "width"), [(1, 3), (1, 16), (3, 7), (3, 33), (5, 64)])
def test_uses_of_a_parameter_are_added_in_one_order_at_every_place(uses: int, rows: int, width: int) -> None:
    """torch's sum over a stack adds the last places by other code: 20 uses of 3 × 33 numbers had two results.

    Claim: a parameter's gradient depends on no place among its numbers
    Now: one order at every place
    """
    generator = torch.Generator().manual_seed(uses)
    numbers = torch.randn(uses, generator=generator) * 10.0 ** torch.randn(uses, generator=generator)
    wanted = numbers[0]
    for number in numbers[1:]:
        wanted = wanted + number
    gradients = [torch.full((rows, width), float(number)) for number in numbers]
    merged_uses = Merged.of([Dense(each) for each in gradients]).dense
    views = Dense(torch.stack(gradients, dim=1).flatten(0, 1)).of_views(uses)
    for term in (merged_uses, views):
        assert term is not None and torch.equal(term.gradients, wanted.expand(rows, width))


@pytest.mark.parametrize("kind", [Outer, Rows, Dense])
def test_a_term_of_a_record_is_that_of_its_views(kind: type[Outer | Rows | Dense]) -> None:
    """Its gradient is the sum of theirs."""
    records, views, positions = 3, 2, 4
    left, right = (torch.randn(records * views, positions, width, dtype=torch.float64) for width in (5, 2))
    term: Outer | Rows | Dense = Outer(left, right)
    if kind is Rows:
        term = Rows(torch.randint(5, (records * views, positions)), right, 5)
    elif kind is Dense:
        term = Dense(torch.bmm(left.mT, right))

    def gradients(of: Outer | Rows | Dense) -> Tensor:
        return Merged.of([of]).formed(torch.Size([5, 2]))

    wanted = gradients(term).unflatten(0, (records, views)).sum(dim=1)
    torch.testing.assert_close(gradients(term.of_views(views)), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("wide", ["left", "right"])
def test_what_underflow_takes_from_a_length_is_in_its_slack(wide: str) -> None:
    """Each of a wide factor's products is a little less than the smallest normal float32, and counts as 0."""
    many, one = torch.full((1, 2, 64), 1.08e-19), torch.ones(1, 2, 1)
    term = Outer(many, one) if wide == "left" else Outer(one, many)
    exact = torch.bmm(term.left.double().mT, term.right.double()).square().sum()
    assert torch.set_flush_denormal(True)
    try:
        measured = term.squares()
    finally:
        torch.set_flush_denormal(False)
    assert measured.squares < 0.5 * exact <= measured.squares + measured.slack


def test_formed_gradients_are_kept_where_there_is_room() -> None:
    numbers, room = ITEMS * DIM, methods.ROOM_BYTES
    size = ROWS * numbers * 4
    of_pass = merged(LENGTH, ITEMS, DIM, n=ROWS)
    assert kept_bytes(of_pass, numbers, room) == size == kept_bytes(of_pass, numbers, size)
    assert kept_bytes(of_pass, numbers, size - 1) == 0
    assert kept_bytes(merged(12, ITEMS, DIM, n=ROWS), numbers, room) == 0  # more than four times its factors
    assert kept_bytes(merged(12, DIM, DIM, n=ROWS), DIM * DIM, room) == ROWS * DIM * DIM * 4  # but few
    assert kept_bytes(Merged(None, None, Dense(torch.ones(2, 3))), 3, room) == 0  # it is there already


class Layers(nn.Module):
    """Layers over positions."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.each = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.each:
            x = torch.tanh(layer(x))
        return x.sum(dim=(1, 2))


def test_parameters_share_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the backward pass. The sums keep their bits."""
    torch.manual_seed(0)
    module, batch = Layers(4), Tensors(torch.randn(5, 30, 4), torch.zeros(5))
    each = 6 * 16 * 4
    kept: list[int] = []

    class Watched(ParameterAccumulator):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            kept.append(self.kept_bytes)

    monkeypatch.setattr("worker.clipping.bookkeeping.ParameterAccumulator", Watched)
    parameters = {name: value.detach().double() for name, value in module.named_parameters()}
    found = []
    for room, wanted in ((4 * each, [each] * 4), (2 * each, [each] * 2 + [0] * 2)):
        monkeypatch.setattr("worker.clipping.bookkeeping.ROOM_BYTES", room)
        kept.clear()
        own = Layers(4)
        clipped: Bookkeeping[Batch] = Bookkeeping(
            own, lambda m, batch: m(batch[0]), rows=6, kind="flat", max_grad_norm=1.0
        )
        found.append(clipped.private_sum(parameters, batch))
        assert kept == wanted
    assert all(torch.equal(found[0][name], found[1][name]) for name in parameters)


@pytest.mark.parametrize(("p", "q"), [(7, 2), (16, 2), (100, 3)])
@pytest.mark.parametrize("keep", [0, 1])
def test_a_tall_product_is_that_of_its_transpose(p: int, q: int, keep: int) -> None:
    """Old content counts only if it is kept."""
    torch.manual_seed(p)
    term, factors = Outer(torch.randn(5, 3, p), torch.randn(5, 3, q)), torch.rand(5, dtype=torch.float64)
    wanted = torch.einsum("n,ntp,ntq->pq", factors, term.left.double(), term.right.double())
    total = torch.full((p, q), 1.0 if keep else torch.nan, dtype=torch.float64)
    term.add_to(total, factors, Scratch(), keep)
    torch.testing.assert_close(total, wanted + keep, rtol=1e-12, atol=1e-12)
