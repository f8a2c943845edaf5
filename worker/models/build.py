"""From a job's specification to its model."""

from __future__ import annotations

from pathlib import Path

import torch

from app.contracts.dataset_spec import Features, Task
from app.contracts.job_spec import JobSpec, RecommenderModel
from app.errors import PrivacyError
from app.privacy.numerics import Numerics
from worker.messages import Shape
from worker.models.base import Model
from worker.models.hf.loading import ModelMissingError, folder_of
from worker.models.hf.model import HfTuning
from worker.models.linear import Linear
from worker.models.matrix_factorization import MatrixFactorization
from worker.models.networks import Network
from worker.models.next_item import NextItem


def build_model(
    spec: JobSpec,
    shape: Shape,
    task: Task,
    features: Features,
    numerics: Numerics,
    models_root: Path | None = None,
) -> Model:
    """The model that a job trains on data of a public shape.

    Args:
        numerics: the job's: types and shapes of its passes.
        models_root: where Hugging Face models are.

    Raises:
        PrivacyError: admission let through what does not fit.
    """
    dtype: torch.dtype = getattr(torch, numerics.passes)
    rows = numerics.rows_per_pass
    if spec.model.kind == "linear":
        inputs = (spec.model.extractor.features if spec.model.extractor else None) or shape.features
        return Linear(inputs, shape.outputs, bias=spec.model.bias, rows_per_pass=rows)
    if spec.model.kind == "matrix_factorization":
        if task.kind != "rating" or features.kind != "interactions" or features.users is None:
            raise PrivacyError("matrix factorization is admitted for ratings only")
        users, items = features.users.rows, features.items.rows
        asked = spec.model
        return MatrixFactorization(users, items, asked.dim, task.scale, asked.bias, asked.init_std, rows)
    if isinstance(spec.model, RecommenderModel):
        if task.kind != "next_item" or features.kind != "interactions":
            raise PrivacyError("recommenders of next items are admitted for sequences only")
        return NextItem(features.items.rows, spec.model, dtype, rows)
    if spec.model.kind == "hf":
        return _hf(spec, task, dtype, rows, models_root)
    if shape.sparse:
        raise PrivacyError("this kind of model takes dense features")
    return Network(shape.features, shape.outputs, spec.model, dtype, rows)


def _hf(spec: JobSpec, task: Task, dtype: torch.dtype, rows: int, models_root: Path | None) -> HfTuning:
    if spec.model.kind != "hf" or task.kind not in ("classification", "language_model"):
        raise PrivacyError("Hugging Face models are admitted for texts only")
    if models_root is None:
        raise ModelMissingError("this worker has no models root")
    folder = folder_of(models_root, spec.model)
    classes = tuple(str(each) for each in task.classes) if task.kind == "classification" else ()
    return HfTuning(folder, spec.model, classes, dtype, rows)
