"""Public architectures, small: what users bring. Each maps (n, …) to (n, classes)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Architecture:
    """A module with the shape of one record."""

    make: Callable[[], nn.Module]
    record: tuple[int, ...]
    draw: Callable[[int, torch.Generator], Tensor] | None = None

    def example(self, n: int, seed: int = 0) -> Tensor:
        """Random records."""
        generator = torch.Generator().manual_seed(seed)
        if self.draw is not None:
            return self.draw(n, generator)
        return torch.randn(n, *self.record, generator=generator)


class Block(nn.Module):
    """A residual block with GroupNorm (He et al. 2016; Wu & He 2018)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(4, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(4, outputs)
        self.short = nn.Identity() if stride == 1 else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(h)) + self.short(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.ReLU(), nn.MaxPool2d(2))
        self.blocks = nn.Sequential(Block(8, 8, 1), Block(8, 16, 2))
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.stem(x))
        found: Tensor = self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return found


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v)
        found: Tensor = self.out(h.transpose(1, 2).reshape(n, t, d))
        return found


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, 2)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        made: Tensor = x + self.mlp(self.norm2(x))
        return made


class ViT(nn.Module):
    """Dosovitskiy et al. 2021, with a class token and learned positions used by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.token = nn.Parameter(0.1 * torch.randn(1, 1, 16))
        self.places = nn.Parameter(0.1 * torch.randn(1, 5, 16))
        self.layers = nn.Sequential(Layer(16), Layer(16))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.places
        found: Tensor = self.head(self.norm(self.layers(x)[:, 0]))
        return found


class UNet(nn.Module):
    """Ronneberger et al. 2015, two levels, with a pooled head."""

    def __init__(self) -> None:
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.SiLU())
        self.down2 = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU())
        self.up = nn.ConvTranspose2d(8, 4, 2, 2)
        self.join = nn.Conv2d(8, 4, 3, padding=1)
        self.head = nn.Conv2d(4, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.up(self.down2(F.max_pool2d(first, 2)))
        found: Tensor = self.head(F.silu(self.join(torch.cat([first, second], dim=1)))).mean(dim=(2, 3))
        return found


class Causal(nn.Module):
    def __init__(self, inputs: int, outputs: int, dilation: int) -> None:
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(inputs, outputs, 3, dilation=dilation))
        self.short = nn.Conv1d(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(F.relu(self.conv(F.pad(x, (self.pad, 0)))) + self.short(x))


class TCN(nn.Module):
    """Bai, Kolter & Koltun 2018: dilated causal convolutions, with weight norm."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Causal(2, 6, 1), Causal(6, 6, 2))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.blocks(x)[:, :, -1])
        return found


class MixerBlock(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.along = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        made: Tensor = x + self.along(self.norm2(x))
        return made


class Mixer(nn.Module):
    """Tolstikhin et al. 2021."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 8, 4, 4)
        self.blocks = nn.Sequential(MixerBlock(4, 8), MixerBlock(4, 8))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.blocks(self.patches(x).flatten(2).transpose(1, 2)).mean(dim=1))
        return found


SIZES = (5, 7, 3)


def cells(n: int, generator: torch.Generator) -> Tensor:
    """Columns of codes, then of numbers."""
    codes = [torch.randint(0, size, (n, 1), generator=generator).float() for size in SIZES]
    return torch.cat([*codes, torch.randn(n, 4, generator=generator)], dim=1)


class DeepFM(nn.Module):
    """Guo et al. 2017: a factorization machine and a deep part over one set of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ModuleList(nn.Embedding(size, 1) for size in SIZES)
        self.second = nn.ModuleList(nn.Embedding(size, 6) for size in SIZES)
        self.numbers = nn.Linear(4, 1)
        self.deep = nn.Sequential(nn.Linear(22, 16), nn.ReLU(), nn.Linear(16, 1))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        codes, numbers = x[:, :3].long(), x[:, 3:]
        linear = torch.stack([table(codes[:, at]) for at, table in enumerate(self.first)]).sum(dim=0)
        fields = torch.stack([table(codes[:, at]) for at, table in enumerate(self.second)], dim=1)
        pairs = 0.5 * (fields.sum(dim=1).square() - fields.square().sum(dim=1)).sum(dim=1, keepdim=True)
        deep = self.deep(torch.cat([fields.flatten(1), numbers], dim=1))
        found = linear + self.numbers(numbers) + pairs + deep + self.bias
        return torch.cat([torch.zeros_like(found), found], dim=1)


class TabTransformer(nn.Module):
    """Huang et al. 2020: columns of codes attend to each other; torch's own encoder layer, with its packed weights."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, 8) for size in SIZES)
        self.columns = nn.Parameter(0.1 * torch.randn(3, 8))
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Sequential(nn.Linear(28, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x: Tensor) -> Tensor:
        codes = x[:, :3].long()
        tokens = torch.stack([table(codes[:, at]) for at, table in enumerate(self.tables)], dim=1) + self.columns
        found: Tensor = self.head(torch.cat([self.encoder(tokens).flatten(1), self.norm(x[:, 3:])], dim=1))
        return found


class LSTM(nn.Module):
    """Hochreiter & Schmidhuber 1997, its cell written with Linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.states = nn.Linear(3, 32), nn.Linear(8, 32, bias=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(x.shape[0], 8)
        for at in range(x.shape[1]):
            i, f, g, o = (self.inputs(x[:, at]) + self.states(h)).chunk(4, dim=1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        found: Tensor = self.head(h)
        return found


class Sequence(nn.Module):
    """A transformer in torch's own order: time first, records second."""

    def __init__(self) -> None:
        super().__init__()
        self.rise = nn.Linear(3, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.layer(self.rise(x.transpose(0, 1))).mean(dim=0))
        return found


class DenseNet(nn.Module):
    """Huang et al. 2017, with BatchNorm's statistics frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(5, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(5)
        self.head = nn.Linear(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x, F.relu(self.first(x))], dim=1)
        x = torch.cat([x, F.relu(self.second(F.relu(self.norm(x))))], dim=1)
        found: Tensor = self.head(F.avg_pool2d(x, 2).amax(dim=(2, 3)))
        return found


class ConvNeXt(nn.Module):
    """Liu et al. 2022: depthwise convolutions, a scale for each channel, and LayerNorm over channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 2, 2)
        self.depth = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.norm = nn.LayerNorm(8)
        self.wide, self.narrow = nn.Linear(8, 16), nn.Linear(16, 8)
        self.scale = nn.Parameter(0.1 * torch.ones(8))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        h = self.norm(self.depth(x).permute(0, 2, 3, 1))
        x = x + (self.scale * self.narrow(F.gelu(self.wide(h)))).permute(0, 3, 1, 2)
        found: Tensor = self.head(x.mean((-2, -1)))
        return found


class WideAndDeep(nn.Module):
    """Cheng et al. 2016, with a crossing of columns by a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep = nn.Linear(7, 3), nn.Sequential(nn.Linear(7, 12), nn.Tanh(), nn.Linear(12, 5))
        self.cross = nn.Parameter(0.1 * torch.randn(5, 5, 3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.deep(x)
        pairs = (h[:, :, None] * h[:, None, :]).flatten(1)
        found: Tensor = self.wide(x) + pairs @ self.cross.flatten(0, 1)
        return found


ACCEPTED: dict[str, Architecture] = {
    "resnet": Architecture(ResNet, (3, 8, 8)),
    "vit": Architecture(ViT, (3, 8, 8)),
    "unet": Architecture(UNet, (1, 8, 8)),
    "tcn": Architecture(TCN, (2, 9)),
    "mixer": Architecture(Mixer, (1, 8, 8)),
    "deepfm": Architecture(DeepFM, (7,), cells),
    "tabtransformer": Architecture(TabTransformer, (7,), cells),
    "lstm": Architecture(LSTM, (4, 3)),
    "sequence": Architecture(Sequence, (4, 3)),
    "densenet": Architecture(lambda: DenseNet().eval(), (1, 6, 6)),
    "convnext": Architecture(ConvNeXt, (3, 8, 8)),
    "wide_and_deep": Architecture(WideAndDeep, (7,)),
}
