"""Hugging Face models of the models root: admission pins a job to a folder's content."""

from __future__ import annotations

from pathlib import Path

from app.contracts.hf import HfModel, adapted, size
from app.contracts.job_spec import JobSpec
from app.errors import InvalidRequest
from app.formats import model_folder
from app.formats.model_folder import CONFIG, ModelFolder, UnfitModelError

LISTED = 20


def resolved(spec: JobSpec, models_root: Path | None, outputs: int) -> JobSpec:
    """The specification with its model pinned: content hash, kind and sizes filled in.

    Args:
        outputs: the number of the data set's classes, or 1.

    Raises:
        InvalidRequest: the model is missing, cannot be tuned as requested, or differs from the pinned one.
    """
    asked = spec.model
    if not isinstance(asked, HfModel):
        return spec
    found = _find(models_root, asked.path)
    of, tensors = found.architecture, found.tensors(asked, outputs)
    if asked.max_length > found.positions:
        raise InvalidRequest.at("/model/max_length", f"this model reads at most {found.positions} tokens")
    if asked.tuning == "bias" and not any(name.endswith(".bias") for name in tensors):
        raise InvalidRequest.at("/model/tuning", "this model has no biases")
    if asked.lora is not None and asked.lora.targets is not None:
        layers = {name.rpartition(".")[2] for name in adapted(of, asked.lora, tensors)}
        if unknown := set(asked.lora.targets) - layers:
            raise InvalidRequest.at("/model/lora/targets", f"its blocks have no layer {sorted(unknown)[0]!r}")
        if any(len(tensors[f"{name}.weight"]) != 2 for name in adapted(of, asked.lora, tensors)):
            raise InvalidRequest.at("/model/lora/targets", "LoRA adapts linear layers only")
    facts = {
        "sha256": found.sha256,
        "architecture": found.kind,
        "parameters": size(tensors),
        "trained": size(found.trained(asked, outputs)),
        "vocabulary": found.vocabulary,
        "pass_numbers": found.pass_numbers(asked),
    }
    for name, fact in facts.items():
        if getattr(asked, name) not in (None, fact):
            raise InvalidRequest.at(f"/model/{name}", f"the model in this folder has {fact}: leave this out")
    return spec.model_copy(update={"model": asked.model_copy(update=facts)})


def _find(models_root: Path | None, path: str) -> ModelFolder:
    if models_root is None:
        raise InvalidRequest.at("/model/path", "this service has no models root: an operator sets one")
    try:
        found = model_folder.read(models_root, path)
    except UnfitModelError as error:
        known = ", ".join(_known(models_root)) or "none"
        raise InvalidRequest.at("/model/path", f"{error}; models here: {known}") from None
    return found


def _known(models_root: Path) -> list[str]:
    """Folders with a config, at one level or two. Some may hold unsupported kinds."""
    found = [*models_root.glob(f"*/{CONFIG}"), *models_root.glob(f"*/*/{CONFIG}")]
    return sorted(each.parent.relative_to(models_root).as_posix() for each in found)[:LISTED]
