"""A record's numbers as an encoder's image."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from core.contracts.extractor import ImageInput


def pixels(record: NDArray[np.float32], form: ImageInput, side: int) -> Tensor:
    """(1, 3, side, side), values between 0 and 1: resized bilinearly; one channel becomes three."""
    first = form.layout == "first"
    shape = (form.channels, form.height, form.width) if first else (form.height, form.width, form.channels)
    x = torch.from_numpy(np.ascontiguousarray(record, dtype=np.float32)).view(shape) * form.input_scale
    x = (x if first else x.permute(2, 0, 1)).expand(3, -1, -1)[None]
    if x.shape[2:] == (side, side):
        return x
    with torch.no_grad():
        return F.interpolate(x, (side, side), mode="bilinear", align_corners=False, antialias=True)


def random_images(generator: np.random.Generator, form: ImageInput) -> list[NDArray[np.float32]]:
    """Three images of random pixels from black to white."""
    return [(generator.random(form.numbers) / form.input_scale).astype(np.float32) for _ in range(3)]
