"""Vision transformers as models of this project: a record is one image."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from core.contracts.extractor import ImageInput
from core.errors import PrivacyError
from core.parts.model_folder import PIXELS, ModelFolder, UnfitModelError
from worker.data.records import FeatureRecords
from worker.models.base import Parameters
from worker.models.hf.hf_loading import ModelMissingError
from worker.models.hf.hf_model import HfTuning

HALF = 0.5  # mean and deviation of pixels between 0 and 1 where the folder does not say them


@dataclass(frozen=True)
class HfImages(HfTuning):
    """A vision transformer with a fresh classifier, of which some tensors are trained."""

    @property
    def of_images(self) -> bool:
        """See HfTuning.of_images."""
        return True

    @property
    def features(self) -> int:  # type: ignore[override]
        """How many numbers one image has."""
        return self._image.numbers

    def record_losses(self, module: nn.Module, records: FeatureRecords) -> Tensor:  # type: ignore[override]
        """(n,): the class's cross-entropy; 0 for a record with a number that is not finite."""
        logits = module(pixel_values=self._pixels(records, self.dtype)).logits
        losses = self.losses((logits.float() if logits.itemsize < 4 else logits).mT, records.labels)
        return torch.where(torch.isfinite(records.private_norms), losses, 0.0)

    def evaluator(self, parameters: Parameters) -> Callable[[FeatureRecords], Tensor]:  # type: ignore[override]
        """Returns logits, float64 (K, P)."""
        module = self.filled(parameters)

        def evaluate(records: FeatureRecords) -> Tensor:
            with torch.no_grad():
                logits: Tensor = module(pixel_values=self._pixels(records, torch.float64)).logits
            return logits.double().mT

        return evaluate

    def _pixels(self, records: FeatureRecords, dtype: torch.dtype) -> Tensor:
        """(n, channels, height, width) as the model takes them: scaled, resized bilinearly, normalized."""
        form, (channels, *sides) = self._image, self.folder.image
        x = records.dense(dtype) * form.input_scale
        if form.layout == "last":
            x = x.unflatten(1, (form.height, form.width, form.channels)).movedim(-1, 1)
        else:
            x = x.unflatten(1, (form.channels, form.height, form.width))
        if sides != [form.height, form.width]:
            x = F.interpolate(x, size=tuple(sides), mode="bilinear", align_corners=False)
        # By plain numbers: a tensor of them would have to be copied to a GPU in each pass.
        pairs = zip(x.expand(-1, channels, -1, -1).unbind(1), *self._normal, strict=True)
        return torch.stack([(of_channel - mean) / deviation for of_channel, mean, deviation in pairs], dim=1)

    @property
    def _image(self) -> ImageInput:
        if self.spec.image is None:
            raise PrivacyError("a vision transformer needs the declared size of images")
        return self.spec.image

    @cached_property
    def _normal(self) -> tuple[list[float], list[float]]:
        return normalization(self.folder)


def normalization(folder: ModelFolder) -> tuple[list[float], list[float]]:
    """Mean and deviation of each channel, from the folder's `preprocessor_config.json`, or a half each.

    Raises:
        ModelMissingError: the file says something else.
    """
    channels = folder.image[0]
    try:
        document = json.loads(folder.content(PIXELS)) if PIXELS in folder.files else {}
        if document.get("do_normalize", True) is False:
            return [0.0] * channels, [1.0] * channels
        numbers = [_numbers(document.get(name), channels) for name in ("image_mean", "image_std")]
        if min(numbers[1]) <= 0.0:
            raise ValueError("deviations must be positive")
    except (OSError, ValueError, TypeError, AttributeError, RecursionError, UnfitModelError):
        raise ModelMissingError(f"the model's {PIXELS} cannot be used") from None
    return numbers[0], numbers[1]


def _numbers(value: object, channels: int) -> list[float]:
    """One number for each channel."""
    numbers = [HALF] * channels if value is None else value
    if not isinstance(numbers, list) or len(numbers) != channels:
        raise ValueError("there must be a number for each channel")
    floats = [float(each) for each in numbers]
    if not all(math.isfinite(each) and abs(each) < 1e4 for each in floats):
        raise ValueError("each must be finite")
    return floats
