"""Measures the bytes that a parameter takes in training: an MLP of 20 million, DpAdam, passes of 48 records.

    python benchmarks/training_memory.py

Prints what is held between steps, and the peak of three steps, beyond the process before it made the model: module,
parameters, moments, totals, noise and activations. Steps are those of a job: the noise is announced, then released.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from benchmarks.environment import as_in_an_attempt  # noqa: E402

if __name__ == "__main__":
    as_in_an_attempt()

import torch  # noqa: E402

from benchmarks.bench_engine import Private, network  # noqa: E402
from benchmarks.memory import forget_peak, resident_mib  # noqa: E402
from core.contracts.job_spec import MlpModel  # noqa: E402
from worker.optimizers.base import StepInfo  # noqa: E402
from worker.optimizers.descent import Descent  # noqa: E402
from worker.optimizers.dp_adam import DpAdam  # noqa: E402

STEPS = 3
ROWS = 48


def main() -> None:
    torch.set_num_threads(1)
    before = resident_mib("VmRSS")
    private = Private(network(MlpModel(hidden=[4096, 4096], activation="relu"), 784, ROWS))
    optimizer, parameters = DpAdam(Descent(0.01)), private.parameters
    state = optimizer.init(parameters)
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what making the model left behind
    held = resident_mib("VmRSS") - before
    forget_peak()
    for step in range(1, STEPS + 1):
        private.release.prepare(parameters, step)
        total = private.engine.private_sum(parameters, private.batch)
        noised = private.release.release(total, step)
        del total
        optimizer.update(noised, state, parameters, StepInfo(step, 0.01))
        del noised
    numbers = sum(each.numel() for each in parameters.values())
    peak = resident_mib("VmHWM") - before
    between, most = (each * 2**20 / numbers for each in (held, peak))
    print(f"{numbers:,} parameters: {between:.1f} bytes each between steps, {most:.1f} at most")


if __name__ == "__main__":
    main()
