"""A run's state in a file: noised numbers, and how many steps are charged. No key is in it.

The file is replaced before steps begin, and counts those that are about to begin. So a run that ends without a word has
paid for them: they are lost when it is resumed, and never taken again for nothing. Fresh keys serve the rest.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scrimp.engine.errors import MisusedError
from worker.models.base import Parameters
from worker.optimizers.base import State

PLAN, AT = "plan", "at"


@dataclass(frozen=True)
class Saved:
    """Where a run stands.

    Attributes:
        step: the state is that after so many updates.
        started: so many steps are charged.
    """

    step: int
    started: int
    parameters: Parameters
    state: State


def write(path: Path, plan: str, saved: Saved) -> None:
    """Replaces the file at once, and waits until it is on disk."""
    at = json.dumps({"step": saved.step, "started": saved.started})
    arrays: dict[str, NDArray[Any]] = {PLAN: np.array(plan), AT: np.array(at)}
    arrays |= {f"parameters/{name}": _numbers(value) for name, value in saved.parameters.items()}
    arrays |= {f"state/{name}": _numbers(value) for name, value in saved.state.items()}
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as out:
            np.savez(out, allow_pickle=False, **arrays)
            out.flush()
            os.fsync(out.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read(path: Path, plan: str, device: torch.device) -> Saved | None:
    """The state in the file; None if there is none.

    Raises:
        MisusedError: it is of a run with other numbers.
    """
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as arrays:
        if str(arrays[PLAN]) != plan:
            raise MisusedError(f"{path.name} is of a run with another model, plan or number of records")
        at = json.loads(str(arrays[AT]))
        parts: dict[str, dict[str, Tensor]] = {"parameters": {}, "state": {}}
        for key in arrays.files:
            part, _, name = key.partition("/")
            if part in parts:
                parts[part][name] = torch.from_numpy(arrays[key]).to(device)
    return Saved(int(at["step"]), int(at["started"]), parts["parameters"], parts["state"])


def _numbers(value: Tensor) -> NDArray[Any]:
    return value.detach().cpu().numpy()
