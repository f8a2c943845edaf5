"""EfficientNet-Lite that makes one vector from an image: frozen, in evaluation mode, one image at a time."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from core.contracts.extractor import EfficientNetManifest, ImageInput
from worker.extractors.extractor_files import loading, read_extractor
from worker.extractors.pixels import pixels, random_images

# Of Lite0: repeats, kernel, first stride, expansion, channels out.
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
# By how much a variant is wider and deeper.
SCALES = {"efficientnet_lite0": (1.0, 1.0), "efficientnet_lite1": (1.0, 1.1), "efficientnet_lite2": (1.1, 1.2)}
STEM, HEAD, UNIT = 32, 1280, 8
EPS = 1e-3


class SameConv(nn.Conv2d):
    """A convolution without bias, with ⌈size / stride⌉ output places per side. Odd padding puts its extra zero last."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Pads and convolves."""
        kernel, stride = self.kernel_size[0], self.stride[0]
        high, wide = (max((math.ceil(size / stride) - 1) * stride + kernel - size, 0) for size in x.shape[-2:])
        return super().forward(F.pad(x, (wide // 2, wide - wide // 2, high // 2, high - high // 2)))


class _Block(nn.Module):
    """Inverted bottleneck: widens, convolves channel by channel, narrows."""

    def __init__(self, kernel: int, stride: int, expansion: int, inputs: int, outputs: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.expand_conv = SameConv(inputs, wide, 1) if expansion != 1 else None
        self.bn0 = nn.BatchNorm2d(wide, eps=EPS) if expansion != 1 else None
        self.depthwise_conv = SameConv(wide, wide, kernel, stride, groups=wide)
        self.bn1 = nn.BatchNorm2d(wide, eps=EPS)
        self.project_conv, self.bn2 = SameConv(wide, outputs, 1), nn.BatchNorm2d(outputs, eps=EPS)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out = x
        if self.expand_conv is not None and self.bn0 is not None:
            out = F.relu6(self.bn0(self.expand_conv(out)))
        out = F.relu6(self.bn1(self.depthwise_conv(out)))
        narrow: Tensor = self.bn2(self.project_conv(out))
        return narrow + x if self.residual else narrow


class Encoder(nn.Module):
    """EfficientNet-Lite without its classifier: (1, 3, h, w) → (1, 1280).

    Tensors have the reference's names sans _. Stem, head, and the numbers of blocks of the first and last stage are
    those of Lite0 in every variant.
    """

    def __init__(self, kind: str = "efficientnet_lite0") -> None:
        super().__init__()
        width, depth = SCALES[kind]
        self.conv_stem, self.bn0 = SameConv(3, STEM, 3, 2), nn.BatchNorm2d(STEM, eps=EPS)
        blocks, inputs = [], STEM
        for at, (repeats, kernel, stride, expansion, channels) in enumerate(STAGES):
            outputs = _channels(channels * width)
            count = repeats if at in (0, len(STAGES) - 1) else math.ceil(repeats * depth)
            blocks.append(_Block(kernel, stride, expansion, inputs, outputs))
            blocks += [_Block(kernel, 1, expansion, outputs, outputs) for _ in range(count - 1)]
            inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.conv_head, self.bn1 = SameConv(inputs, HEAD, 1), nn.BatchNorm2d(HEAD, eps=EPS)

    def forward(self, x: Tensor) -> Tensor:
        """The mean over the last layer's places."""
        x = self.blocks(F.relu6(self.bn0(self.conv_stem(x))))
        return F.relu6(self.bn1(self.conv_head(x))).mean(dim=(2, 3))


def _channels(wanted: float) -> int:
    """The nearest multiple of UNIT, but not more than a tenth less than wanted."""
    channels = max(UNIT, int(wanted + UNIT / 2) // UNIT * UNIT)
    return channels if channels >= 0.9 * wanted else channels + UNIT


class EfficientNet:
    """image → the mean over the last layer's places, float32 (1280,).

    Guarantee: a record's features are a function of this record and the extractor's files alone. Batch norms use their
    frozen statistics, and each image goes through the encoder by itself.

    Args:
        folder: the extractor's.
        sha256: its manifest's, as admitted.
        image: how a record's numbers form an image.

    Raises:
        ExtractorMissingError: a file is missing or differs from the manifest, or the manifest differs.

    Source: Tan & Le 2019, "EfficientNet"; the Lite variant: Liu 2020 (TensorFlow's model garden).
    """

    def __init__(self, folder: Path, sha256: str, image: ImageInput) -> None:
        self._image = image
        with loading():
            manifest, files = read_extractor(folder, sha256)
            if not isinstance(manifest, EfficientNetManifest):
                raise ValueError("this is not an image extractor")
            self._manifest = manifest
            with torch.device("meta"):
                encoder = Encoder(manifest.kind)
            tensors = safetensors.torch.load(files["model.safetensors"])
            encoder.load_state_dict({name: tensors[name] for name in encoder.state_dict()}, assign=True)
            self._encoder = encoder.float().eval().requires_grad_(False)

    @property
    def features(self) -> int:
        """1280."""
        return self._manifest.features

    def __call__(self, record: NDArray[np.float32]) -> Tensor:
        x = pixels(record, self._image, self._manifest.image_size)
        with torch.no_grad():
            features: Tensor = self._encoder((x - self._manifest.mean) / self._manifest.std)[0]
            return features

    def examples(self, generator: np.random.Generator) -> list[NDArray[np.float32]]:
        """Images of random pixels from black to white."""
        return random_images(generator, self._image)
