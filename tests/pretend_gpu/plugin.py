"""`pytest -p tests.pretend_gpu.plugin -m gpu`: what needs a GPU runs on the pretended one.

Attempts run on threads of the test's own process, and each of these enters the device's mode.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from tests.pretend_gpu import device

device.start(os.environ["PRETEND_GUARD"])
torch.set_num_threads(1)

from tests.worker import support  # noqa: E402 - after the device is there
from worker.attempt.child import serve  # noqa: E402


def _on_it(*arguments: Any, **named: Any) -> Any:
    with device.Mode():
        return serve(*arguments, **named)


support.serve = _on_it  # type: ignore[attr-defined]


def pytest_sessionfinish() -> None:
    """Prints the most equal indices of each deterministic scatter: CUDA adds them one after the other."""
    for place, most in device.equal_indices.most_common(5):
        print(f"equal indices: {most} at {place}")
