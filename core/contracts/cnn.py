"""The shapes of convolutional networks for images of any declared size. Known without torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from core.contracts.base import Document

Preset = Literal["conv2", "conv5", "wrn16_4"]
Side = Annotated[int, Field(strict=True, ge=1, le=4096)]
MOST_NUMBERS = 2**28  # of one record in a pass: 1 GiB in float32
GROUPS = 16  # of each GroupNorm
WIDTHS = (64, 128, 256)  # channels of a wide residual network's three groups of blocks
BLOCKS_EACH = 2  # 16 layers: (16 − 4) / 6 blocks a group
FIRST = 16


class ImageSize(Document):
    """The size of a data set's images: height · width · channels numbers a record."""

    height: Side
    width: Side
    channels: Annotated[int, Field(strict=True, ge=1, le=64)]

    @property
    def numbers(self) -> int:
        """How many numbers one image has."""
        return self.height * self.width * self.channels

    @property
    def shown(self) -> str:
        """In words."""
        return f"{self.height} × {self.width} with {self.channels} channel{'s' if self.channels > 1 else ''}"


OWN_SIZE: dict[Preset, ImageSize] = {
    "conv2": ImageSize(height=28, width=28, channels=1),
    "conv5": ImageSize(height=32, width=32, channels=3),
    "wrn16_4": ImageSize(height=32, width=32, channels=3),
}
LEAST: dict[Preset, int] = {"conv2": 14, "conv5": 8, "wrn16_4": 4}  # pixels of a side


@dataclass(frozen=True)
class Convolution:
    """One convolution: channels in and out, the kernel's side, and the number of positions that it is applied at."""

    inputs: int
    outputs: int
    kernel: int
    places: int


@dataclass(frozen=True)
class Block:
    """A residual block: two convolutions with a kernel of 3, the first with a stride."""

    inputs: int
    outputs: int
    stride: int

    @property
    def has_shortcut(self) -> bool:
        """True if a convolution with a kernel of 1 brings the block's input to its output's shape."""
        return self.inputs != self.outputs or self.stride != 1


def blocks() -> Iterator[Block]:
    """The residual blocks of `wrn16_4`."""
    inputs = FIRST
    for group, outputs in enumerate(WIDTHS):
        for number in range(BLOCKS_EACH):
            yield Block(inputs, outputs, 2 if group > 0 and number == 0 else 1)
            inputs = outputs


def behind(preset: Preset, image: ImageSize) -> tuple[int, int]:
    """Height and width of what the convolutions leave; a network of this size needs both to be at least 1."""
    sides = (image.height, image.width)
    if preset == "conv2":
        first, second = (_pooled(sides[0]), _pooled(sides[1]))
        return first[1], second[1]
    if preset == "conv5":
        return sides[0] // 8, sides[1] // 8
    return (sides[0] + 3) // 4, (sides[1] + 3) // 4


def convolutions(preset: Preset, image: ImageSize) -> tuple[Convolution, ...]:
    """The network's convolutions, in their order."""
    height, width, channels = image.height, image.width, image.channels
    if preset == "conv2":
        tall, wide = (height - 2) // 2 + 1, (width - 2) // 2 + 1
        narrow = ((tall - 5) // 2 + 1) * ((wide - 5) // 2 + 1)
        return Convolution(channels, 16, 8, tall * wide), Convolution(16, 32, 4, narrow)
    if preset == "conv5":
        sizes = [(height >> at) * (width >> at) for at in range(4)]
        inputs = (channels, 32, 64, 64)
        return tuple(Convolution(i, o, 3, n) for i, o, n in zip(inputs, (32, 64, 64, 128), sizes, strict=True))
    return tuple(_residual(height, width, channels))


def _residual(height: int, width: int, channels: int) -> Iterator[Convolution]:
    yield Convolution(channels, FIRST, 3, height * width)
    for block in blocks():
        height, width = -(-height // block.stride), -(-width // block.stride)
        yield Convolution(block.inputs, block.outputs, 3, height * width)
        yield Convolution(block.outputs, block.outputs, 3, height * width)
        if block.has_shortcut:
            yield Convolution(block.inputs, block.outputs, 1, height * width)


def _pooled(side: int) -> tuple[int, int]:
    """A side behind each of conv2's two convolutions and their pools over 2 × 2."""
    first = (side - 2) // 2 + 1 - 1
    return first, (first - 4) // 2 + 1 - 1
