"""Tries that a pass of a model that others wrote is one fixed list of operations, whatever the records hold.

torch's meta device has shapes and no numbers: reading a number there is an error, and so is a result whose shape
depends on one. A model that chooses its path by its inputs, such as a mixture of experts, would reveal something of
the records by its time. No family is trusted by its name; this is tried for each job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from core.errors import PrivacyError
from worker.clipping.examined import UnfitLayerError

META = torch.device("meta")


def require_static(module: nn.Module, losses: Callable[[nn.Module, Any], Tensor], records: Any) -> None:
    """Runs one pass forwards and backwards without numbers.

    Args:
        module: on the meta device, as are the records of a pass.

    Raises:
        UnfitLayerError: an operation needs a number; names the module in which it is.
    """
    inside: list[str] = []
    try:
        with _followed(module, inside), torch.enable_grad():
            losses(module, records).sum().backward()
    except (MemoryError, PrivacyError):
        raise  # the first says nothing about the model, the second names what is wrong
    except Exception as error:  # the library's own code may raise anything
        place = inside[-1] if inside else "the model"
        raise UnfitLayerError(place, f"a pass does not run without numbers: {type(error).__name__}") from None


@contextmanager
def _followed(module: nn.Module, inside: list[str]) -> Iterator[None]:
    """Keeps the names of the modules whose forward runs now in `inside`, the innermost last."""

    def enter(name: str, *_: Any) -> None:
        inside.append(name)

    def leave(*_: Any) -> None:
        inside.pop()

    handles = []
    for name, submodule in module.named_modules():
        text = f"{name or 'the model'} ({type(submodule).__name__})"
        handles += [submodule.register_forward_pre_hook(partial(enter, text)), submodule.register_forward_hook(leave)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
