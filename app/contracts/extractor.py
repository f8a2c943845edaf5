"""A frozen feature extractor: a public model that makes a vector of each record, and what describes its files."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, TypeAdapter, model_validator

from app.contracts.base import Document

MANIFEST = "extractor.json"
ExtractorName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Sha256Hex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


Side = Annotated[int, Field(strict=True, ge=1, le=4096)]


class ImageInput(Document):
    """How a record's numbers are an image. Public, and nothing is fitted to the data.

    `layout`: where the channels stand in the array; one channel becomes three. `input_scale` brings values to 0 … 1.
    """

    height: Side
    width: Side
    channels: Literal[1, 3] = 3
    layout: Literal["first", "last"] = "last"
    input_scale: Annotated[float, Field(strict=True, gt=0.0, le=1e6)] = 1.0

    @property
    def numbers(self) -> int:
        return self.height * self.width * self.channels


class ExtractorRef(Document):
    """Which extractor a job uses. `sha256` pins its content; left out, it is filled in when the job is admitted.

    `features` is filled in too: the length of its vectors. `image`: for an extractor of images.
    """

    name: ExtractorName
    image: ImageInput | None = None
    sha256: Sha256Hex | None = None
    features: Annotated[int, Field(ge=1, le=65_536)] | None = None


class BertManifest(Document):
    """`extractor.json`: a BERT encoder whose last hidden states are averaged over a text's tokens.

    Its SHA-256 is the extractor's: it holds those of all files. Written by scripts/add_extractor.py.

    Attributes:
        features: the encoder's hidden size.
        max_tokens: longer texts are cut, [CLS] and [SEP] included.
        normalize: vectors are brought to length 1.
        lowercase: texts are, and lose their accents.
        files: name → SHA-256: config.json, model.safetensors and vocab.txt.
    """

    format: Literal["scrimp-extractor/1"] = "scrimp-extractor/1"
    kind: Literal["bert_mean"] = "bert_mean"
    features: Annotated[int, Field(ge=1, le=65_536)]
    max_tokens: Annotated[int, Field(ge=3, le=8192)]
    normalize: bool
    lowercase: bool
    files: dict[FileName, Sha256Hex]

    @model_validator(mode="after")
    def _whole(self) -> BertManifest:
        if set(self.files) != {"config.json", "model.safetensors", "vocab.txt"}:
            raise ValueError("files are config.json, model.safetensors and vocab.txt")
        return self


class EfficientNetManifest(Document):
    """`extractor.json`: EfficientNet-Lite0 without its classifier, averaged over the places of the last layer.

    Attributes:
        features: 1280.
        image_size: images are brought to so many pixels a side, bilinearly.
        mean, std: x ↦ (x − mean) / std, of values between 0 and 1.
        files: name → SHA-256: model.safetensors.
    """

    format: Literal["scrimp-extractor/1"] = "scrimp-extractor/1"
    kind: Literal["efficientnet_lite0"] = "efficientnet_lite0"
    features: Literal[1280] = 1280
    image_size: Annotated[int, Field(ge=32, le=1024)] = 224
    mean: Annotated[float, Field(ge=0.0, le=1.0)]
    std: Annotated[float, Field(gt=0.0, le=1.0)]
    files: dict[FileName, Sha256Hex]

    @model_validator(mode="after")
    def _whole(self) -> EfficientNetManifest:
        if set(self.files) != {"model.safetensors"}:
            raise ValueError("files are model.safetensors")
        return self


Manifest = Annotated[BertManifest | EfficientNetManifest, Field(discriminator="kind")]
MANIFESTS: TypeAdapter[BertManifest | EfficientNetManifest] = TypeAdapter(Manifest)
TAKES = {"bert_mean": "text", "efficientnet_lite0": "tensor"}  # the kind of features
