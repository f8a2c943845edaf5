"""From a job's specification to its model."""

from __future__ import annotations

from pathlib import Path

import torch

from app.contracts.dataset_spec import Features, Task
from app.contracts.job_spec import JobSpec, RecommenderModel
from app.errors import PrivacyError
from worker.attempt.messages import Shape
from worker.models.base import Model
from worker.models.hf.loading import ModelMissingError, folder_of
from worker.models.hf.model import HfTuning
from worker.models.linear import Linear
from worker.models.matrix_factorization import MatrixFactorization
from worker.models.networks import Network
from worker.models.next_item import NextItem


def build_model(spec: JobSpec, shape: Shape, task: Task, features: Features, models_root: Path | None = None) -> Model:
    """The model that a job trains on data of a public shape.

    Args:
        models_root: where Hugging Face models are.

    Raises:
        PrivacyError: admission let through what does not fit.
    """
    if spec.model.kind == "linear":
        inputs = (spec.model.extractor.features if spec.model.extractor else None) or shape.features
        return Linear(inputs, shape.outputs, bias=spec.model.bias)
    if spec.model.kind == "matrix_factorization":
        if task.kind != "rating" or features.kind != "interactions" or features.users is None:
            raise PrivacyError("matrix factorization is admitted for ratings only")
        users, items = features.users.rows, features.items.rows
        asked = spec.model
        return MatrixFactorization(users, items, asked.dim, task.scale, bias=asked.bias, init_std=asked.init_std)
    if isinstance(spec.model, RecommenderModel):
        if task.kind != "next_item" or features.kind != "interactions":
            raise PrivacyError("recommenders of next items are admitted for sequences only")
        kinks = spec.model.kind == "transformer_rec"
        return NextItem(features.items.rows, spec.model, _pass_type(spec, kinks=kinks))
    if spec.model.kind == "hf":
        return _hf(spec, task, models_root)
    if shape.sparse:
        raise PrivacyError("this kind of model takes dense features")
    network = spec.model
    kinks = network.activation == "relu" or (network.kind == "cnn" and network.preset == "conv2")
    return Network(shape.features, shape.outputs, network, _pass_type(spec, kinks=kinks))


def _hf(spec: JobSpec, task: Task, models_root: Path | None) -> HfTuning:
    if spec.model.kind != "hf" or task.kind not in ("classification", "language_model"):
        raise PrivacyError("Hugging Face models are admitted for texts only")
    if models_root is None:
        raise ModelMissingError("this worker has no models root")
    folder = folder_of(models_root, spec.model)
    classes = tuple(str(each) for each in task.classes) if task.kind == "classification" else ()
    rows = spec.runtime.physical_batch_size
    dtype = _pass_type(spec, kinks=folder.has_kinks)
    return HfTuning(folder, spec.model, classes, dtype, None if rows == "auto" else rows)


def _pass_type(spec: JobSpec, *, kinks: bool) -> torch.dtype:
    """Of the passes. By itself float64 where privacy is claimed and the network has kinks (ReLU, max pooling).

    At a kink, how float32 rounds a record's pass, which depends on its neighbours, could change its gradient by up to
    2C; in float64 records are a hundred million times less often that close to one.
    """
    if spec.runtime.dtype != "auto":
        return getattr(torch, spec.runtime.dtype)  # type: ignore[no-any-return]
    return torch.float64 if kinks and spec.privacy is not None else torch.float32
