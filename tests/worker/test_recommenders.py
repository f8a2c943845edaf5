"""Recommenders under the clipping engine: exact, at most C, and learning."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from core.errors import PrivacyError
from tests.worker.layers import Tensors
from tests.worker.test_re_attention import errors
from worker.clipping.bookkeeping import Bookkeeping
from worker.models import item_loss
from worker.models.initial import keyed_normals
from worker.models.item_loss import ItemLoss
from worker.models.recommenders import TransformerRec
from worker.models.recurrent import GruLayer, LstmLayer, RecurrentRec

KEY = bytes(range(32))


def sequences(n: int, length: int, items: int) -> tuple[Tensor, Tensor]:
    """Sequences of different lengths, one of them empty: users without a second item."""
    ids = torch.randint(1, items, (n, length + 1), generator=torch.Generator().manual_seed(0))
    lengths = torch.arange(n)[:, None] % (length + 2)
    ids = ids * (torch.arange(length + 1) < lengths)
    return ids[:, :-1] * (ids[:, 1:] != 0), ids[:, 1:]


def drawn(module: Any) -> Any:
    """The module with its first parameters: a new one's embedding is memory that nobody has written."""
    for parameter, value in zip(module.parameters(), keyed_normals(module, KEY).values(), strict=True):
        parameter.data.copy_(value)
    return module


SEQUENCES = sequences(9, 5, 13)
CASES: list[tuple[str, Any, Any]] = [
    ("tied, all", lambda: TransformerRec(13, 8, 2, 2, 5), SEQUENCES),
    ("tied, last", lambda: TransformerRec(13, 8, 2, 2, 5, positions="last"), SEQUENCES),
    ("untied, all", lambda: TransformerRec(13, 8, 2, 2, 5, tied=False), SEQUENCES),
    ("logits, all", lambda: TransformerRec(13, 8, 2, 2, 5, errors=errors("logits", 9.0, 12)), SEQUENCES),
    (
        "logits, last",
        lambda: TransformerRec(13, 8, 2, 2, 5, positions="last", errors=errors("logits", 9.0, 12)),
        SEQUENCES,
    ),
    ("paper, all", lambda: TransformerRec(13, 8, 1, 2, 5, errors=errors("paper", 9.0, 12)), SEQUENCES),
    ("gru, all", lambda: RecurrentRec(13, 8, GruLayer, 2), SEQUENCES),
    ("gru, last", lambda: RecurrentRec(13, 8, GruLayer, 1, positions="last"), SEQUENCES),
    ("gru, untied", lambda: RecurrentRec(13, 8, GruLayer, 1, tied=False), SEQUENCES),
    ("gru, wide", lambda: RecurrentRec(13, 60, GruLayer, 1), SEQUENCES),
    ("lstm, all", lambda: RecurrentRec(13, 8, LstmLayer, 2), SEQUENCES),
    ("lstm, last", lambda: RecurrentRec(13, 8, LstmLayer, 1, positions="last"), SEQUENCES),
]


@pytest.mark.parametrize(("name", "make", "batch"), CASES, ids=[each[0] for each in CASES])
def test_recommenders_are_summed_exactly(name: str, make: Any, batch: tuple[Tensor, Tensor]) -> None:
    module = make().double()
    parameters = keyed_normals(module, KEY)
    parameters = {each: value * 3 for each, value in parameters.items()}
    wanted = {each: torch.zeros_like(value) for each, value in parameters.items()}
    for parameter, value in zip(module.parameters(), parameters.values(), strict=True):
        parameter.data.copy_(value)
    for at in range(len(batch[0])):
        one = (batch[0][at : at + 1], batch[1][at : at + 1])
        found = torch.autograd.grad(module.record_losses(module, one).sum(), list(module.parameters()))
        norm = float(torch.cat([each.flatten() for each in found]).norm())
        wanted = {n: t + g / max(1.0, norm / 0.2) for (n, t), g in zip(wanted.items(), found, strict=True)}
    engine = Bookkeeping(module, module.record_losses, rows=12, kind="flat", max_grad_norm=0.2)
    assert engine.fallbacks == ()
    got = engine.private_sum(parameters, Tensors(*batch))
    one, two = (torch.cat([each.flatten() for each in parts.values()]) for parts in (got, wanted))
    assert float((one - two).norm()) <= 1e-10 * float(two.norm())


@pytest.mark.parametrize(("cell", "reference"), [(GruLayer, nn.GRU), (LstmLayer, nn.LSTM)])
def test_cells_are_torch_s(cell: Any, reference: Any) -> None:
    torch.manual_seed(0)
    layer, wanted = cell(8), reference(8, 8, batch_first=True)
    values = (layer.inputs.weight, layer.states.weight, layer.inputs.bias, layer.states.bias)
    for parameter, value in zip(wanted.parameters(), values, strict=True):
        parameter.data.copy_(value)
    x = torch.randn(3, 7, 8)
    torch.testing.assert_close(layer(x), wanted(x)[0])


@pytest.mark.parametrize("make", [lambda: TransformerRec(13, 8, 1, 2, 5), lambda: RecurrentRec(13, 8, GruLayer, 2)])
def test_what_comes_later_is_not_seen(make: Any) -> None:
    ids = torch.tensor([[3, 5, 7, 0, 0], [3, 5, 7, 9, 1]])
    hidden = drawn(make())(ids)
    torch.testing.assert_close(hidden[0, :3], hidden[1, :3])


def test_the_last_position_is_each_sequence_s_own() -> None:
    """Sequences of any length: the loss at the last position is that of all positions at the last item."""
    ids, targets = SEQUENCES
    every, last = (drawn(TransformerRec(13, 8, 2, 2, 5, positions=each).double()) for each in ("all", "last"))
    losses = last.record_losses(last, (ids, targets))
    places = (ids != 0).sum(dim=1).clamp(min=1) - 1
    alone = torch.zeros_like(targets)
    alone[torch.arange(len(ids)), places] = targets[torch.arange(len(ids)), places]
    torch.testing.assert_close(losses, every.record_losses(every, (ids, alone)))
    assert {loss == 0.0 for loss in losses.tolist()} == {True, False}


@pytest.mark.parametrize("chunk", [1, 8 * 13 * 7, 2**21])  # rows of a product: one, six of thirty, all
def test_the_item_loss_is_the_cross_entropy(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(item_loss, "CHUNK_BYTES", chunk)
    layer = ItemLoss(13, 4).double()
    layer.weight.data.normal_()
    hidden = torch.randn(6, 5, 4, dtype=torch.float64, requires_grad=True)
    targets = SEQUENCES[1][:6]
    share = torch.linspace(1, 2, 6, dtype=torch.float64)
    plain = torch.nn.functional.cross_entropy(
        layer.scores(hidden).flatten(0, 1), targets.flatten(), ignore_index=0, reduction="none"
    ).view(6, 5).sum(dim=1) / (targets != 0).sum(dim=1).clamp(min=1)
    losses = layer(hidden, targets)
    torch.testing.assert_close(losses, plain)
    inputs = [hidden, layer.weight]
    found, wanted = (torch.autograd.grad((each * share).sum(), inputs) for each in (losses, plain))
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two)
    with pytest.raises(PrivacyError):
        layer.noted()
