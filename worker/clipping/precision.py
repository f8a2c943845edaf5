"""How products of float32 are computed: TF32 in forward and backward passes where the job says so, IEEE elsewhere.

A GPU's TF32 rounds the factors of a product to 11 binary digits. What a pass computes may be rounded in any way: it is
what the engine measures, and what it adds (docs/theorems.md, "TF32 in passes"). Measuring and adding must not be:
the bound on a sum's sensitivity counts on float32's 24 digits. torch has one switch for the whole process, so these
switch it, and what measures or adds asks for it. A program's autocast, which rounds factors to 8 or 11 digits, is
refused.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from core.errors import PrivacyError

IEEE, TF32 = "highest", "high"  # torch's names


class NotIeeeError(PrivacyError):
    """Something measured or added while products of float32 were not computed in float32."""


@contextmanager
def in_tf32(allowed: bool) -> Iterator[None]:
    """A forward pass, and its backward pass by autograd. Without TF32 they run as the process does.

    Backward passes on a GPU run in a thread of autograd's, while this one waits: the switch is the process's.
    """
    if not allowed:
        yield
        return
    matrices, convolutions = _precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision(TF32)
    torch.backends.cudnn.allow_tf32 = True
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matrices)
        torch.backends.cudnn.allow_tf32 = convolutions


def in_ieee() -> AbstractContextManager[None]:
    """Measuring and adding, whatever the process does otherwise; also within a backward pass.

    It leaves convolutions alone: none of them measures or adds.
    """
    return _MEASURING


def require_ieee() -> None:
    """Call before products that measure or add.

    Raises:
        NotIeeeError: products of float32 may be rounded to fewer digits.
    """
    if _precision() != IEEE:
        raise NotIeeeError("norms and sums need products in float32, and torch may now round their factors")
    require_no_autocast()


def require_no_autocast() -> None:
    """Call before a pass, whose layers' rules would get tensors of two types.

    Raises:
        NotIeeeError: products of float32 are computed in a shorter type.
    """
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise NotIeeeError(
            "torch.autocast would round norms and sums, too: call the engine outside of it. "
            "torch.set_float32_matmul_precision speeds passes up"
        )


class _Measuring(AbstractContextManager[None]):
    """The process's switch while any of its threads measures or adds: the first turns it, the last turns it back. Each
    by itself would turn it back under the others."""

    def __init__(self) -> None:
        self._lock, self._threads, self._outside = threading.Lock(), 0, IEEE

    def __enter__(self) -> None:
        with self._lock:
            if self._threads == 0:
                self._outside = _precision()
            torch.set_float32_matmul_precision(IEEE)
            self._threads += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._threads -= 1
            if self._threads == 0:
                torch.set_float32_matmul_precision(self._outside)


_MEASURING = _Measuring()


def _precision() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # torch's two ways to switch were mixed
        raise NotIeeeError(
            "torch cannot say how it computes products of float32: set it by torch.set_float32_matmul_precision, not "
            "by fp32_precision of torch.backends"
        ) from None
