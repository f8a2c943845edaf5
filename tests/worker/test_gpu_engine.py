"""The engine on a GPU: the same sums as on the CPU, up to the passes' own rounding. Skipped where there is none."""

from __future__ import annotations

import copy

import pytest
import torch

from core.privacy.numerics import grid_slack, sensitivity_slack
from tests.worker.layers import CASES, Tensors, losses
from worker.clipping import totals
from worker.clipping.bookkeeping import Bookkeeping
from worker.clipping.engine import Clip, ClippingKind
from worker.clipping.gpu_check import require_same
from worker.clipping.precision import in_ieee, in_tf32
from worker.clipping.totals import Grid

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


@pytest.mark.parametrize("kind", ["flat", "automatic", "per_layer"])
@pytest.mark.parametrize("name", ["mlp", "linear over positions", "conv2d", "group norm", "tied", "tied, last"])
def test_cpu_and_gpu_agree(name: str, kind: str) -> None:
    case = CASES[name]
    module, batch = case.module(), case.batch(7)
    sums, counts = [], []
    for device in ("cpu", "cuda"):
        there = copy.deepcopy(module).to(device)
        engine = Bookkeeping(there, losses, rows=12, kind=kind, max_grad_norm=0.3)
        parameters = {n: p.detach() for n, p in there.named_parameters()}
        total, count = engine.private_sum_and_count(
            parameters, Tensors(*(each.to(device) for each in batch)), Clip(0.3)
        )
        assert all(value.device.type == device and value.dtype == torch.float64 for value in total.values())
        sums.append(torch.cat([value.cpu().flatten() for value in total.values()]))
        counts.append(count.cpu())
    assert float((sums[0] - sums[1]).norm()) <= 1e-9 * float(sums[0].norm())
    assert torch.equal(counts[0], counts[1])


def test_a_gpu_clips_as_the_processor() -> None:
    require_same.__wrapped__(torch.device("cuda", 0))


@pytest.mark.parametrize("rows", [12, 100], ids=["groups that are filled", "a rest"])
@pytest.mark.parametrize("name", ["mlp", "tied, last"])
@pytest.mark.parametrize("kind", ["flat", "per_layer"])
@pytest.mark.parametrize("most", [totals.GPU_CHUNK_BYTES, 2**10], ids=["at once", "piece by piece"])
def test_sums_of_groups_agree_too(
    name: str, rows: int, kind: ClippingKind, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Integer totals of groups that float32 adds; products of groups piece by piece, too."""
    monkeypatch.setattr(totals, "GPU_CHUNK_BYTES", most)
    case = CASES[name]
    module, batch = case.module().float(), case.batch(rows)
    batch = tuple(each.float() if each.is_floating_point() else each for each in batch)
    sums = []
    for device in ("cpu", "cuda"):
        there = copy.deepcopy(module).to(device)
        grid = Grid(rows, rows)
        engine = Bookkeeping(there, losses, rows=rows, kind=kind, max_grad_norm=0.3, grid=grid, group=6)
        parameters = {n: p.detach().double() for n, p in there.named_parameters()}
        total = engine.private_sum(parameters, Tensors(*(each.to(device) for each in batch)))
        sums.append(torch.cat([value.cpu().flatten() for value in total.values()]))
    assert float((sums[0] - sums[1]).norm()) <= 1e-5 * float(sums[0].norm())


@pytest.mark.parametrize("positions", [1, 2], ids=["products of groups", "Gram matrices"])
def test_a_record_of_tf32_passes_is_at_most_c_long(positions: int) -> None:
    """Numbers that TF32 rounds by as much as it can: up where they are added, down where they are measured."""
    a = 1 + 2.0**-11
    x = torch.full((1, positions, 64), a + (2.0**-20 if positions == 1 else 0.0), device="cuda")
    module = torch.nn.Linear(64, 64, bias=False).to("cuda")
    parameters = {name: each.detach().double() for name, each in module.named_parameters()}
    engine = Bookkeeping[tuple[torch.Tensor, ...]](
        module,
        lambda module, batch: (a * module(batch[0])).flatten(1).sum(dim=1),
        rows=4,
        kind="flat",
        max_grad_norm=0.5,
        grid=Grid(8, 4),
        group=4,
        tf32=True,
    )
    paid = sensitivity_slack(8, 4, positions, 4) + grid_slack(8, 4, 64 * 64, 1)
    for norm in (0.5, 0.55, 0.6, 0.7, 0.8):
        total = engine.private_sum(parameters, Tensors(x, torch.zeros(1, device="cuda")), Clip(norm))
        assert 1 - 1e-4 < float(total["weight"].norm()) / norm <= paid


@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0), reason="this card has no TF32"
)
def test_the_switch_is_one() -> None:
    one = torch.full((64, 64), 1 + 2.0**-11, device="cuda")
    with in_tf32(True):
        rounded = one @ one
        with in_ieee():
            exact = one @ one
    assert torch.equal(exact, one @ one)
    assert 1e-4 < float((exact / rounded - 1).abs().max()) < 1e-2
