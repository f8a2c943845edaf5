"""Augmentation: random views of a record, over which its gradient is averaged before it is clipped."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from core.contracts.base import Document

Pixels = Annotated[int, Field(strict=True, ge=1, le=1024)]


class TransformSettings(Document):
    """One random change of a record.

    Attributes:
        of_images: it changes images; otherwise texts.
    """

    of_images: ClassVar[bool] = True


class Crop(TransformSettings):
    """Moves an image by up to `padding` pixels, up or down and left or right. `fill`: what comes in is the image's own
    edge, mirrored, or zeros."""

    kind: Literal["crop"] = "crop"
    padding: Pixels
    fill: Literal["reflect", "zeros"] = "reflect"


class Flip(TransformSettings):
    """Mirrors an image left to right, with probability one half."""

    kind: Literal["flip"] = "flip"


class Erase(TransformSettings):
    """Sets a random square of `side` pixels to zero, in all channels."""

    kind: Literal["erase"] = "erase"
    side: Pixels


class DropWords(TransformSettings):
    """Leaves out each token of a text with probability `rate`, but never the first and the last one: a tokenizer's own
    marks. Of hashed words, each different word; the rest keeps the text's length of 1."""

    of_images: ClassVar[bool] = False
    kind: Literal["drop_words"] = "drop_words"
    rate: Annotated[float, Field(strict=True, gt=0.0, le=0.9)]


Transform = Annotated[Crop | Flip | Erase | DropWords, Field(discriminator="kind")]


class Augmentation(Document):
    """Each step takes `views` random views of each of its records. A record's gradient is the mean over its views,
    averaged before the clip: it weighs what it weighs without, so the price is the same. A step's passes cost `views`
    times as much. Scores are of the records as they are.

    `transforms` are applied one after the other, each with random numbers of its own.

    Source: De et al. 2022, "Unlocking high-accuracy differentially private image classification through scale"
    (augmentation multiplicity).
    """

    views: Annotated[int, Field(strict=True, ge=1, le=64)] = 1
    transforms: Annotated[tuple[Transform, ...], Field(max_length=4)] = ()

    @model_validator(mode="after")
    def _differ(self) -> Augmentation:
        kinds = [each.kind for each in self.transforms]
        if len(set(kinds)) != len(kinds):
            raise ValueError("give each kind of transform once at most")
        if self.views > 1 and not kinds:
            raise ValueError("without `transforms` all views are the same: give some, or leave `augmentation` out")
        return self

    @property
    def changes(self) -> bool:
        """True if a step sees anything but the records themselves."""
        return bool(self.transforms)
