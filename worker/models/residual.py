"""Wide residual networks with GroupNorm, for images.

    x ↦ x + conv(act(norm(conv(act(norm(x))))))        blocks; a convolution with a kernel of 1 where shapes differ

Source: Zagoruyko & Komodakis 2016, "Wide residual networks" (WRN-16-4); privately De et al. 2022, "Unlocking
high-accuracy differentially private image classification through scale": GroupNorm in place of BatchNorm, which mixes
records, and weight standardization (Qiao et al. 2019).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from core.contracts.cnn import FIRST, GROUPS, Block, blocks

EPS = 1e-4  # under the root: a constant filter has no direction


class StandardizedConv2d(nn.Conv2d):
    """A convolution with each filter shifted to mean 0 and scaled to length 1. A separate class, so a rule applies."""

    def standardized(self) -> tuple[Tensor, Tensor]:
        """The filters ŵ, (outputs, numbers), and the lengths s, (outputs, 1), by which they were divided."""
        flat = self.weight.flatten(1)
        centred = flat - flat.mean(dim=1, keepdim=True)
        scale = (centred.square().sum(dim=1, keepdim=True) + EPS).sqrt()
        return centred / scale, scale

    def forward(self, x: Tensor) -> Tensor:
        """The convolution with standardized filters."""
        weight = self.standardized()[0].view_as(self.weight)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation)


class ResidualBlock(nn.Module):
    """See the module's docstring.

    Args:
        shape: its channels and stride.
        act: the activation's class.
        conv: the class of its convolutions.
    """

    def __init__(self, shape: Block, act: Callable[[], nn.Module], conv: type[nn.Conv2d]) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(GROUPS, shape.inputs)
        self.conv1 = conv(shape.inputs, shape.outputs, 3, stride=shape.stride, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(GROUPS, shape.outputs)
        self.conv2 = conv(shape.outputs, shape.outputs, 3, padding=1, bias=False)
        self.shortcut: nn.Module | None = None
        if shape.has_shortcut:
            self.shortcut = conv(shape.inputs, shape.outputs, 1, stride=shape.stride, bias=False)
        self.act = act()

    def forward(self, x: Tensor) -> Tensor:
        """(n, outputs, h / stride, w / stride)."""
        ready = self.act(self.norm1(x))
        skipped = x if self.shortcut is None else self.shortcut(ready)
        output: Tensor = skipped + self.conv2(self.act(self.norm2(self.conv1(ready))))
        return output


def wide_residual(
    channels: int, behind: tuple[int, int], outputs: int, act: Callable[[], nn.Module], *, standardized: bool
) -> list[nn.Module]:
    """WRN-16-4's layers, for images (n, channels, h, w).

    Args:
        behind: height and width behind the last block, over which it takes the mean.
        act: the activation's class.
        standardized: filters are standardized.
    """
    conv: type[nn.Conv2d] = StandardizedConv2d if standardized else nn.Conv2d
    layers: list[nn.Module] = [conv(channels, FIRST, 3, padding=1, bias=False)]
    last = FIRST
    for block in blocks():
        layers.append(ResidualBlock(block, act, conv))
        last = block.outputs
    return [*layers, nn.GroupNorm(GROUPS, last), act(), nn.AvgPool2d(behind), nn.Flatten(), nn.Linear(last, outputs)]
