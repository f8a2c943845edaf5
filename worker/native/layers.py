"""The compiled parts of networks' layers: patches of convolutions, pooling over windows of 2 × 2, tanh.

As in worker.native.flat_steps, each answers whether it did the work. Where it did not, the caller does it by torch,
with the same numbers.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from core.native.library import INSTALLED, Library
from worker.native.threads import team

POINTER, COUNT = ctypes.c_void_p, ctypes.c_int64
Pair = tuple[int, ...]  # a height and a width


@dataclass(frozen=True)
class Kernel:
    """What a convolution's kernel sees; height first.

    Attributes:
        by_places: patches are (n, L, C·k) in memory, which is faster for wide kernels; else (n, C·k, L).

    >>> Kernel((3, 3), (1, 1), (1, 1), (2, 2)).places((8, 8))
    (4, 4)
    """

    size: Pair
    dilation: Pair
    padding: Pair
    stride: Pair
    by_places: bool = False

    def places(self, image: Pair) -> Pair:
        """How many places it has on an image of this height and width."""
        tall, wide = (
            (image[at] + 2 * self.padding[at] - self.dilation[at] * (self.size[at] - 1) - 1) // self.stride[at] + 1
            for at in (0, 1)
        )
        return tall, wide


class Layers:
    """The compiled parts of one library."""

    def __init__(self, library: Library) -> None:
        self.path, opened = library.number, library.opened
        self._patches, self._average, self._maximum = (
            opened.scrimp_patches,
            opened.scrimp_average,
            opened.scrimp_maximum,
        )
        self._average_back, self._maximum_back = opened.scrimp_average_back, opened.scrimp_maximum_back
        shape = [COUNT] * 3
        for function, pointers in (
            (self._average, 2),
            (self._average_back, 2),
            (self._maximum, 3),
            (self._maximum_back, 4),
        ):
            function.argtypes, function.restype = [ctypes.c_int, POINTER, *[POINTER] * pointers, *shape], None
        self._tanh = opened.scrimp_tanh
        self._tanh.argtypes, self._tanh.restype = [ctypes.c_int, POINTER, *[POINTER] * 2, COUNT], None
        self._patches.argtypes, self._patches.restype = [ctypes.c_int, POINTER, *[POINTER] * 4], None

    @classmethod
    def installed(cls) -> Self | None:
        """Those of this installation, if it has a library."""
        return None if INSTALLED is None else cls(INSTALLED)

    def patches(self, images: Tensor, kernel: Kernel) -> Tensor | None:
        """What the kernel sees at each of its L places, for images (n, C, h, w)."""
        if not _fit(images):
            return None
        records, channels, *size = images.shape
        places = kernel.places((size[0], size[1]))
        seen, padding = channels * kernel.size[0] * kernel.size[1], kernel.padding
        if min(places) < 1 or records == 0:
            return None
        shape = (places[0] * places[1], seen) if kernel.by_places else (seen, places[0] * places[1])
        out = images.new_empty(records, *shape)
        padded = images.new_empty(torch.get_num_threads(), channels, size[0] + 2 * padding[0], size[1] + 2 * padding[1])
        pairs = (*size, *kernel.size, *kernel.dilation, *padding, *kernel.stride, *places)
        numbers = (COUNT * 15)(records, channels, *pairs, kernel.by_places)
        self._patches(self.path, team(), out.data_ptr(), images.data_ptr(), padded.data_ptr(), numbers)
        return out

    def average(self, x: Tensor) -> Tensor | None:
        """Means over windows of 2 × 2 with stride 2, for x (n, c, h, w)."""
        if not _fit(x) or min(x.shape) < 1 or min(x.shape[2:]) < 2:
            return None
        out = x.new_empty(*x.shape[:2], x.shape[2] // 2, x.shape[3] // 2)
        self._average(self.path, team(), out.data_ptr(), x.data_ptr(), *_planes(x))
        return out

    def average_back(self, g: Tensor, shape: torch.Size) -> Tensor | None:
        """The gradient at x of this shape, from that at the means."""
        if not _fit(g):
            return None
        out = g.new_empty(shape)
        self._average_back(self.path, team(), out.data_ptr(), g.data_ptr(), *_planes(out))
        return out

    def maximum(self, x: Tensor) -> Tensor | None:
        """Maxima over windows of 2 × 2 at every place, for x (n, c, h, w)."""
        if not _fit(x) or min(x.shape) < 1 or min(x.shape[2:]) < 2:
            return None
        out = x.new_empty(*x.shape[:2], x.shape[2] - 1, x.shape[3] - 1)
        spare = x.new_empty(torch.get_num_threads(), 2, *x.shape[2:])
        self._maximum(self.path, team(), out.data_ptr(), x.data_ptr(), spare.data_ptr(), *_planes(x))
        return out

    def maximum_back(self, g: Tensor, x: Tensor) -> Tensor | None:
        """The gradient at x, from that at the maxima."""
        if not (_fit(g) and _fit(x)):
            return None
        out, spare = torch.empty_like(x), x.new_empty(torch.get_num_threads(), 4, *x.shape[2:])
        self._maximum_back(self.path, team(), out.data_ptr(), g.data_ptr(), x.data_ptr(), spare.data_ptr(), *_planes(x))
        return out

    def tanh(self, x: Tensor) -> Tensor | None:
        """See worker.models.activations."""
        if not _plain(x):
            return None
        out = torch.empty_like(x)
        self._tanh(self.path, team(), out.data_ptr(), x.data_ptr(), x.numel())
        return out


def _planes(x: Tensor) -> tuple[int, int, int]:
    return x.shape[0] * x.shape[1], x.shape[2], x.shape[3]


def _fit(x: Tensor) -> bool:
    return x.dim() == 4 and _plain(x)


def _plain(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.is_contiguous() and x.device.type == "cpu"


LAYERS = Layers.installed()
