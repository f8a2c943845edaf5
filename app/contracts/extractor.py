"""A frozen feature extractor: a public model that makes a vector of each record, and what describes its files."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from app.contracts.base import Document

MANIFEST = "extractor.json"
ExtractorName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Sha256Hex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


class ExtractorRef(Document):
    """Which extractor a job uses. `sha256` pins its content; left out, it is filled in when the job is admitted.

    `features` is filled in too: the length of its vectors.
    """

    name: ExtractorName
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
