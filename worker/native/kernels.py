"""What this installation's compiled parts make of a step."""

from __future__ import annotations

from typing import get_args

from core.native.library import INSTALLED
from core.privacy.numerics import Kernels

ABSENT = (
    "the compiled parts of a step are absent: a network's step takes two to three times as long, with the same bits"
)
CURE = "python -m core.native.build, with a C compiler or after `pip install ziglang`; then start the workers again"


def kernels() -> Kernels:
    """The instructions of this installation's compiled parts; "python": it has none."""
    path = "python" if INSTALLED is None else INSTALLED.path
    path_chosen: Kernels = next(each for each in get_args(Kernels) if each == path)
    return path_chosen
