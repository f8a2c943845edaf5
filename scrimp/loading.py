"""`scrimp.load_model`: a finished model from its files.

Linear models and MLPs need numpy alone (scrimp.linear). All others are built by the worker's code, the extension
`load_model`, which needs torch. Importing `scrimp` loads neither.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from scrimp.errors import MissingPackage
from scrimp.extensions import extension

FORMAT = "scrimp-model/1"
CARD = "model.json"
NEEDED = {"torch": "worker", "safetensors": "worker", "mpmath": "worker", "opacus": "worker"} | dict.fromkeys(
    ("transformers", "tokenizers"), "hf"
)
Answer = dict[str, Any]


class LoadedModel(Protocol):
    """A finished model.

    Attributes:
        card: model.json.
    """

    @property
    def card(self) -> Mapping[str, Any]: ...

    def predict(self, records: Iterable[Any], top: int = 10) -> list[Answer]:
        """One answer for each record, as the service gives: classes, values, items or next tokens (docs/models.md).

        Args:
            records: for columns: objects, or rows of numbers in the columns' order; for tensors: arrays of any shape;
                texts; (user, item) pairs or objects; items' ids of each user, oldest first. NumPy arrays or lists.
                For tables the cells as they are in a file, before any scaling; None for a missing one.
            top: how many classes, items or tokens to return.

        Raises:
            ValueError: a record does not fit the model, or the models root lacks the model's extractor.
        """
        ...


class UnreadableModelError(ValueError):
    """A folder holds no model that can be loaded, or a file in it differs from its card."""


def load_model(folder: str | Path, models_root: str | Path | None = None) -> LoadedModel:
    """Loads a finished model: `scrimp.load_model(folder).predict(records)`.

    Args:
        folder: the job's files, as `scrimp jobs fetch JOB --to FOLDER` writes them: model.json and the weights.
        models_root: the folder of extractors, and of the models that adapters were tuned from; default: the
            environment's SCRIMP_MODELS_ROOT.

    Raises:
        ValueError: the folder holds no model, or a file in it differs from its card.
        ImportError: numpy, torch or transformers is not installed; the text says what to install.
    """
    root = models_root or os.environ.get("SCRIMP_MODELS_ROOT")
    folder = Path(folder)
    card, weights = checked(folder)
    try:
        if _is_plain(card):
            return _linear(card, weights)
        return _by_the_worker(folder, card, weights, Path(root) if root else None)
    except KeyError:
        raise UnreadableModelError(f"{folder / CARD} does not describe its model: fetch it again") from None


def checked(folder: Path) -> tuple[dict[str, Any], bytes]:
    """A model's card and the content of its weights' file; all files have the hashes that the card says.

    Raises:
        ValueError: the folder holds no model, or a file in it differs from its card.
    """
    card = _card(folder)
    try:
        return card, _checked_files(folder, card)
    except KeyError:
        raise UnreadableModelError(f"{folder / CARD} does not describe its model: fetch it again") from None


def _card(folder: Path) -> dict[str, Any]:
    try:
        card = json.loads((folder / CARD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise UnreadableModelError(f"{folder} has no {CARD}: give the folder that `scrimp jobs fetch` wrote") from None
    if not isinstance(card, dict) or card.get("format") != FORMAT:
        raise UnreadableModelError(f"{folder / CARD} is not the card of a model")
    return card


def _checked_files(folder: Path, card: dict[str, Any]) -> bytes:
    """The content of the weights' file. Checks every file that the card has a hash of; older cards have none."""
    weights = str(card["weights"])
    content = b""
    for name, sha256 in (card.get("files") or {weights: None}).items():
        path = folder / name
        file_bytes = path.read_bytes() if path.is_file() else None
        if file_bytes is None or (sha256 is not None and hashlib.sha256(file_bytes).hexdigest() != sha256):
            raise UnreadableModelError(f"a file in {folder} differs from its card: fetch the model again")
        content = file_bytes if name == weights else content
    return content


def _is_plain(card: dict[str, Any]) -> bool:
    """Says if numpy alone computes the model: linear or an MLP, of numbers, of a table's cells or of hashed words."""
    if card["kind"] not in ("linear", "mlp"):
        return False
    extractor = card.get("extractor")
    if extractor is not None:
        return extractor.get("words") is not None
    return card["features"]["kind"] in ("columns", "table", "tensor", "hashed_text")


def _linear(card: dict[str, Any], weights: bytes) -> LoadedModel:
    try:
        from scrimp import linear
    except ModuleNotFoundError as error:
        raise MissingPackage("load_model", str(error.name), "scrimp-client[model]") from error
    try:
        return linear.Model(card, linear.tensors(weights))
    except linear.NoTensorsError:
        raise UnreadableModelError("the weights' file differs from its card: fetch the model again") from None


def _by_the_worker(folder: Path, card: dict[str, Any], weights: bytes, root: Path | None) -> LoadedModel:
    try:
        load = extension("load_model")
        if load is None:
            raise MissingPackage(f"a model of kind {card['kind']!r}", "the worker's code", "scrimp[worker]")
        model: LoadedModel = load(folder, card, weights, root)
    except ModuleNotFoundError as error:
        extra = NEEDED.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise MissingPackage("load_model", str(error.name), f"scrimp[{extra}]") from error
    return model
