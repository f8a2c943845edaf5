"""A frozen feature extractor: a public model that turns each record into a vector, and the manifest of its files."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StringConstraints, TypeAdapter, model_validator

from core.contracts.base import Document

MANIFEST = "extractor.json"
HASHED_WORDS = "hashed-words"
FORMER = (
    "this extractor is of kind `bert_mean`, which releases before 2026-11-24 ran: use such a release for the same "
    "bits, or add it again under another name for new jobs (scripts/add_extractor.py)"
)
ExtractorName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Sha256Hex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


Side = Annotated[int, Field(strict=True, ge=1, le=4096)]
ImageSize = Annotated[int, Field(ge=32, le=1024)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Deviation = Annotated[float, Field(gt=0.0, le=1.0)]
Pooling = Literal["mean", "cls", "last"]


class ImageInput(Document):
    """How a record's numbers form an image. Public; nothing is fitted to the data.

    `layout`: the position of the channels in the array; one channel becomes three. `input_scale` brings values to 0 …
    1.
    """

    height: Side
    width: Side
    channels: Literal[1, 3] = 3
    layout: Literal["first", "last"] = "last"
    input_scale: Annotated[float, Field(strict=True, gt=0.0, le=1e6)] = 1.0

    @property
    def numbers(self) -> int:
        """How many numbers one image has."""
        return self.height * self.width * self.channels


class Words(Document):
    """Hashed n-grams of words, L2-normalized and sparse. Nothing is fitted to the texts."""

    buckets: Annotated[int, Field(strict=True, ge=2, le=2**22)] = 32768
    binary: bool = True
    ngrams: tuple[Annotated[int, Field(ge=1, le=5)], Annotated[int, Field(ge=1, le=5)]] = (1, 1)

    @model_validator(mode="after")
    def _ordered(self) -> Words:
        if self.ngrams[0] > self.ngrams[1]:
            raise ValueError("`ngrams` must be [shortest, longest]")
        return self


class ExtractorRef(Document):
    """The extractor that a job uses. `sha256` pins its content; if left out, it is filled in when the job is admitted.

    `features`, how many numbers its vectors have, and `length`, about their norm, are filled in too. `image`: for an
    extractor of images. `words`: for the extractor `hashed-words`, which every service has; a linear model on texts
    uses it unless it names another one.
    """

    name: ExtractorName
    image: ImageInput | None = None
    words: Words | None = None
    sha256: Sha256Hex | None = None
    features: Annotated[int, Field(ge=1, le=2**22)] | None = None
    length: Annotated[float, Field(ge=1e-6, le=1e6)] | None = None

    @model_validator(mode="after")
    def _suits(self) -> ExtractorRef:
        if self.words is not None and self.name != HASHED_WORDS:
            raise ValueError(f"`words` are settings of the extractor {HASHED_WORDS!r}")
        return self


class EncoderImages(Document):
    """An encoder's images: resized bilinearly to `size` pixels a side; then x ↦ (x − mean) / std in each channel."""

    size: ImageSize
    mean: tuple[Share, Share, Share] = (0.5, 0.5, 0.5)
    std: tuple[Deviation, Deviation, Deviation] = (0.5, 0.5, 0.5)


class FormerManifest(Document):
    """`extractor.json` of kind `bert_mean`: a BERT of this project's own code, which is gone.

    It is read only to say so (`FORMER`). transformers' BERT gives other last bits, and a pinned job's features must not
    move.
    """

    model_config = ConfigDict(extra="ignore")

    kind: Literal["bert_mean"]


class EfficientNetManifest(Document):
    """`extractor.json`: EfficientNet-Lite0, 1 or 2 without its classifier. Features are the spatial mean of the last
    layer.

    Attributes:
        features: 1280.
        image_size: images are resized bilinearly to this many pixels a side.
        mean, std: x ↦ (x − mean) / std, for values between 0 and 1.
        files: name → SHA-256: model.safetensors.
    """

    format: Literal["scrimp-extractor/1"] = "scrimp-extractor/1"
    kind: Literal["efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2"] = "efficientnet_lite0"
    features: Literal[1280] = 1280
    image_size: ImageSize = 224
    mean: Share
    std: Deviation
    files: dict[FileName, Sha256Hex]

    @model_validator(mode="after")
    def _whole(self) -> EfficientNetManifest:
        if set(self.files) != {"model.safetensors"}:
            raise ValueError("`files` must be model.safetensors")
        return self

    @property
    def takes(self) -> str:
        """The kind of features that it reads."""
        return "tensor"

    @property
    def length(self) -> float:
        """A typical norm of its vectors: measured on Fashion-MNIST, 64 pixels a side."""
        return 60.0


class EncoderManifest(Document):
    """`extractor.json`: any encoder or language model that transformers has, and how its hidden states become a vector.

    The manifest's SHA-256 identifies the extractor: the manifest holds the SHA-256 of every file.
    scripts/add_extractor.py writes it.

    Attributes:
        features: the width of its hidden states.
        max_tokens: of a text, the tokenizer's own marks included; longer texts are cut. None: it reads images.
        image: how it reads images. None: it reads texts.
        pooling: the mean of all hidden states, the first one (`cls`), or the last one.
        layer: the block whose hidden states are taken, counted from 1; None: the model's output.
        normalize: scale vectors to length 1.
        typical_length: about how long its vectors are, on public examples.
        files: name → SHA-256: config.json and model.safetensors, for texts tokenizer.json too.
    """

    format: Literal["scrimp-extractor/1"] = "scrimp-extractor/1"
    kind: Literal["transformers"] = "transformers"
    features: Annotated[int, Field(ge=1, le=65_536)]
    max_tokens: Annotated[int, Field(ge=1, le=8192)] | None = None
    image: EncoderImages | None = None
    pooling: Pooling
    layer: Annotated[int, Field(ge=1, le=1000)] | None = None
    normalize: bool
    typical_length: Annotated[float, Field(ge=1e-6, le=1e6)] = 1.0
    files: dict[FileName, Sha256Hex]

    @model_validator(mode="after")
    def _whole(self) -> EncoderManifest:
        if (self.max_tokens is None) == (self.image is None):
            raise ValueError("give `max_tokens` for texts or `image` for images, one of them")
        if set(self.files) != {"config.json", "model.safetensors", *([] if self.image else ["tokenizer.json"])}:
            raise ValueError("`files` must be config.json, model.safetensors and, for texts, tokenizer.json")
        return self

    @property
    def takes(self) -> str:
        """The kind of features that it reads."""
        return "text" if self.image is None else "tensor"

    @property
    def length(self) -> float:
        """A typical norm of its vectors."""
        return 1.0 if self.normalize else self.typical_length


Manifest = EfficientNetManifest | EncoderManifest
MANIFESTS: TypeAdapter[Manifest | FormerManifest] = TypeAdapter(
    Annotated[Manifest | FormerManifest, Field(discriminator="kind")]
)
