"""A model as files: weights in safetensors, and a JSON card that describes them and how to use them."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch

from core.contracts.dataset_spec import Features, Task
from core.contracts.extractor import ExtractorRef
from core.contracts.hf import WEIGHTS, weights_file
from core.contracts.shape_function import ShapeFunction
from core.contracts.stored_documents import ArtifactFile
from core.contracts.table import TableFeatures
from core.disk import sync
from core.parts.graph_program import GRAPH
from core.parts.shape_functions import shape_functions
from worker.models.base import Model, Parameters
from worker.models.card import Privacy, readme
from worker.models.graph_network import GraphNetwork
from worker.models.hf.hf_model import HfTuning
from worker.models.hf.tuned_files import tuned_files
from worker.models.linear import Linear
from worker.models.modules import ModuleModel
from worker.models.snippet import usage
from worker.models.tensors import saved

CARD, README = "model.json", "README.md"


def save_model(
    folder: Path,
    model: Model,
    parameters: Parameters,
    task: Task,
    features: Features,
    extractor: ExtractorRef | None = None,
    privacy: Privacy | None = None,
) -> tuple[ArtifactFile, ...]:
    """Writes model.safetensors (float32), model.json and README.md; for Hugging Face models, files for transformers or
    peft. All of them say what the job's certificate claims.

    Args:
        folder: an existing folder.
        parameters: the optimizer's final parameters: functions of noised gradients.
        task, features: the data set's, public.
        extractor: the job's, if the model takes its features.
        privacy: what the files say about it; None where no privacy is claimed.

    Returns:
        the files, with their SHA-256.

    Raises:
        OSError: they cannot be written.
    """
    everything = parameters | (model.constants if isinstance(model, ModuleModel | Linear) else {})
    tensors = {name: value.to(torch.float32).contiguous() for name, value in everything.items()}
    metadata = {"format": "pt"} | ({} if privacy is None else privacy.metadata())
    library = None
    if isinstance(model, HfTuning):
        files = tuned_files(model, parameters, metadata)
        library = "peft" if model.spec.tuning == "lora" else "transformers"
    else:
        files = {WEIGHTS: saved(tensors, metadata)}
    if isinstance(model, GraphNetwork):
        files[GRAPH] = model.program.model_dump_json(exclude_none=False).encode() + b"\n"
    shapes = {name: list(value.shape) for name, value in tensors.items()}
    card = model_card(model, shapes, task, features, extractor)
    shapes_of = _shape_functions(model, tensors, task, features)
    if shapes_of:
        card["shape_functions"] = [each.model_dump(mode="json") for each in shapes_of]
    card["privacy"] = None if privacy is None else privacy.model_dump(mode="json")
    card["files"] = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    files[CARD] = json.dumps(card, indent=2, ensure_ascii=False).encode() + b"\n"
    files[README] = readme(card["kind"], card["weights"], privacy, library, shapes_of)
    return tuple(write_file(folder / name, content) for name, content in files.items())


def _shape_functions(
    model: Model, tensors: dict[str, torch.Tensor], task: Task, features: Features
) -> list[ShapeFunction]:
    """Those of a linear model of a table."""
    if not isinstance(model, Linear) or not isinstance(features, TableFeatures) or "mean" in tensors:
        return []
    return shape_functions(tensors["weight"].double().numpy(), features, task)


def model_card(
    model: Model,
    tensors: dict[str, list[int]],
    task: Task,
    features: Features,
    extractor: ExtractorRef | None = None,
) -> dict[str, Any]:
    """Describes the weights: kind, inputs, outputs, the data set's task and features, and a snippet that uses them."""
    return {
        "format": "scrimp-model/1",
        "kind": model.kind,
        "weights": weights_file(model.spec) if isinstance(model, HfTuning) else WEIGHTS,
        "inputs": model.features,
        "outputs": model.outputs,
        "passes": str(model.dtype).removeprefix("torch."),
        **model.requested(),
        "tensors": tensors,
        "task": task.model_dump(mode="json"),
        "features": features.model_dump(mode="json"),
        "extractor": extractor.model_dump(mode="json") if extractor else None,
        "usage": usage(model, task, features, extractor, centered="mean" in tensors),
    }


def write_file(path: Path, content: bytes) -> ArtifactFile:
    """Writes an artifact through to the disk; raises OSError if it cannot."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    sync(path.parent)  # the directory entry survives a power cut too; the supervisor syncs the folders above
    digest = hashlib.sha256(content).hexdigest()
    return ArtifactFile(name=path.name, path=str(path.resolve()), sha256=digest, size_bytes=len(content))
