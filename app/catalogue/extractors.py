"""The extractors of the models root. Their manifests hold all that a quote needs, without torch."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from core.contracts.extractor import (
    FORMER,
    HASHED_WORDS,
    MANIFEST,
    MANIFESTS,
    ExtractorName,
    ExtractorRef,
    FormerManifest,
    Manifest,
    Words,
)
from core.contracts.job_spec import LinearModel, Model
from core.errors import InvalidRequest, Unavailable

MAX_MANIFEST_BYTES = 1 << 16
# The name of the way in which words are hashed: change it whenever features could change.
WORDS_SHA256 = hashlib.sha256(b"scrimp/hashed-words/1").hexdigest()
_NAME: TypeAdapter[str] = TypeAdapter(ExtractorName)


@dataclass(frozen=True)
class Extractor:
    """A folder under the models root with a manifest. `sha256`: the manifest's, which holds the files' hashes."""

    name: str
    folder: Path
    sha256: str
    manifest: Manifest

    @property
    def takes(self) -> str:
        """The kind of features that it reads."""
        return self.manifest.takes


class FormerKindError(Exception):
    """The extractor is of a kind that earlier releases ran."""


def find(models_root: Path | None, name: str) -> Extractor | None:
    """The extractor with this name; None if there is none, or if its folder leads out of the models root.

    Raises:
        FormerKindError: only earlier releases have its kind.
    """
    if models_root is None:
        return None
    try:
        root, folder = models_root.resolve(), (models_root / _NAME.validate_python(name)).resolve(strict=True)
        if folder.parent != root:
            return None
        with (folder / MANIFEST).open("rb") as file:
            content = file.read(MAX_MANIFEST_BYTES)
        manifest = MANIFESTS.validate_json(content)
    except (OSError, ValidationError):
        return None
    if isinstance(manifest, FormerManifest):
        raise FormerKindError(FORMER)
    return Extractor(name, folder, hashlib.sha256(content).hexdigest(), manifest)


def every(models_root: Path | None) -> list[Extractor]:
    """All extractors that a job can name, by name.

    Raises:
        Unavailable: the service's user may not read the models root.
    """
    if models_root is None or not models_root.is_dir():
        return []
    try:
        names = sorted(entry.name for entry in models_root.iterdir())
    except PermissionError:
        raise Unavailable(
            "the service's user may not read the models root: an operator lets every user read it (chmod -R o+rX)"
        ) from None
    usable = []
    for name in names:
        with contextlib.suppress(FormerKindError):
            usable.append(find(models_root, name))
    return [each for each in usable if each is not None]


def resolved(model: Model, models_root: Path | None, features_kind: str = "") -> Model:
    """The model with its extractor pinned: content hash and number of features filled in.

    Args:
        features_kind: the data set's; a linear model on `text` hashes words if it names no extractor.

    Raises:
        InvalidRequest: there is no such extractor, it differs from the pinned one, or only earlier releases have its
            kind.
        Unavailable: as `every`.
    """
    if not isinstance(model, LinearModel):
        return model
    reference = model.extractor
    if reference is None and features_kind == "text":
        reference = ExtractorRef(name=HASHED_WORDS)
    if reference is None:
        return model
    if reference.name == HASHED_WORDS:
        return model.model_copy(update={"extractor": _of_words(reference)})
    try:
        extractor = find(models_root, reference.name)
    except FormerKindError as error:
        raise InvalidRequest.at("/model/extractor/name", str(error)) from None
    if extractor is None:
        names = ", ".join(each.name for each in every(models_root)) or "none"
        raise InvalidRequest.at("/model/extractor/name", f"there is no such extractor here; there are: {names}")
    if reference.sha256 not in (None, extractor.sha256):
        raise InvalidRequest.at("/model/extractor/sha256", f"the extractor with this name has {extractor.sha256}")
    if reference.features not in (None, extractor.manifest.features):
        raise InvalidRequest.at(
            "/model/extractor/features", f"this extractor makes {extractor.manifest.features} features"
        )
    if (reference.image is not None) != (extractor.takes == "tensor"):
        detail = (
            ("say how records are images")
            if reference.image is None
            else ("this extractor does not read images: leave `image` out")
        )
        raise InvalidRequest.at("/model/extractor/image", detail)
    manifest = extractor.manifest
    facts = {"sha256": extractor.sha256, "features": manifest.features, "length": manifest.length}
    return model.model_copy(update={"extractor": reference.model_copy(update=facts)})


def _of_words(reference: ExtractorRef) -> ExtractorRef:
    words = reference.words or Words()
    if reference.image is not None:
        raise InvalidRequest.at("/model/extractor/image", "this extractor does not read images: leave `image` out")
    if reference.sha256 not in (None, WORDS_SHA256):
        raise InvalidRequest.at("/model/extractor/sha256", f"the extractor with this name has {WORDS_SHA256}")
    if reference.features not in (None, words.buckets):
        raise InvalidRequest.at("/model/extractor/features", f"this extractor makes {words.buckets} features")
    return reference.model_copy(
        update={"words": words, "sha256": WORDS_SHA256, "features": words.buckets, "length": 1.0}
    )
