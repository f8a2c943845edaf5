"""Prints what one private step of the small flagship costs a pretended GPU, as JSON. Run by test_pretend_gpu.py.

Two passes of a tied transformer with two blocks, as the service runs them, and an update by DP-Adam.
"""

from __future__ import annotations

import json
import os

import torch

from tests.pretend_gpu import device

device.start(os.environ["PRETEND_GUARD"])
torch.set_num_threads(1)

from core.contracts.job_spec import TransformerRecModel  # noqa: E402 - after the device is there
from tests.bound.worst import engine_of  # noqa: E402
from worker.clipping.totals import Grid  # noqa: E402
from worker.data.placed import placed  # noqa: E402
from worker.models.base import Parameters  # noqa: E402
from worker.models.next_item import NextItem  # noqa: E402
from worker.noise import on_device  # noqa: E402
from worker.noise.gaussian import GaussianRelease  # noqa: E402
from worker.optimizers import pieces  # noqa: E402
from worker.optimizers.base import StepInfo  # noqa: E402
from worker.optimizers.descent import Descent  # noqa: E402
from worker.optimizers.dp_adam import DpAdam  # noqa: E402
from worker.optimizers.pieces import flattened  # noqa: E402
from worker.training.self_test import random_records  # noqa: E402

GPU = torch.device("cuda", 0)
KEY = bytes(range(32))
ROWS, PASSES = 64, 2


def main() -> None:
    """Prints the second step's counts."""
    torch.use_deterministic_algorithms(True)
    held = device.memory.held
    model = NextItem(300, TransformerRecModel(dim=64, max_length=50), rows_per_pass=ROWS, device=GPU)
    engine = engine_of(model, grid=Grid(ROWS * PASSES, ROWS), group=48)
    parameters = flattened(placed(model.init(KEY), GPU))
    optimizer, records = DpAdam(Descent(1e-3)), random_records(model, ROWS * PASSES, torch.Generator().manual_seed(0))
    release = GaussianRelease(KEY, noise_multiplier=1.0, max_grad_norm=0.5, expected_batch_size=ROWS)
    found: dict[str, int] = {"bytes a parameter": most_bytes(parameters, held)}
    state = optimizer.init(parameters)
    for step in (1, 2):
        device.counts.clear()
        device.equal_indices.clear()
        release.prepare(parameters, step)
        total = engine.private_sum(parameters, records)
        found["kernels a pass"] = device.counts["kernels"] // PASSES
        noised = release.release(total, step)
        parameters, state = optimizer.update(noised, state, parameters, StepInfo(step, 0.01))
    found["equal indices"] = max(device.equal_indices.values(), default=0)
    print(json.dumps(found | device.counts))


def most_bytes(parameters: Parameters, held: int) -> int:
    """The most memory of a release and an update by Adam beside the module, without passes: bytes a parameter."""
    whole = pieces.GPU_PIECE
    pieces.GPU_PIECE = 2048  # as small a part as it is of a large model
    release = GaussianRelease(KEY, noise_multiplier=1.0, max_grad_norm=0.5, expected_batch_size=ROWS)
    own, optimizer = flattened(parameters), DpAdam(Descent(1e-3))
    state = optimizer.init(own)
    on_device._require_same_bits(device.CUDA)  # which takes 4 MiB once, before a job's first pass
    device.memory.peak = device.memory.held
    held += sum(each.numel() * each.element_size() for each in parameters.values())  # twice here
    total = flattened({name: torch.zeros_like(value) for name, value in own.items()})
    release.prepare(own, 1)
    noised = release.release(total, 1)
    del total
    optimizer.update(noised, state, own, StepInfo(1, 0.01))
    pieces.GPU_PIECE = whole
    return round((device.memory.peak - held) / sum(each.numel() for each in own.values()))


if __name__ == "__main__":
    main()
