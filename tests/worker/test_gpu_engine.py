"""The engine on a GPU: the same sums as on the CPU, up to the passes' own rounding. Skipped where there is none."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.worker.layers import CASES, Tensors, losses
from worker.clipping.bookkeeping import Bookkeeping
from worker.clipping.engine import Clip

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
