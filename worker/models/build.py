"""From a job's specification to its model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import assert_never

import torch

from core.contracts.dataset_spec import (
    ClassificationTask,
    Features,
    Interactions,
    LanguageModelTask,
    NextItemTask,
    RatingTask,
    Task,
)
from core.contracts.gcn import GcnModel
from core.contracts.graph import GraphModel
from core.contracts.hf import HfModel
from core.contracts.job_spec import (
    CnnModel,
    GruRecModel,
    LinearModel,
    LstmRecModel,
    MatrixFactorizationModel,
    MlpModel,
    TransformerRecModel,
)
from core.contracts.job_spec import Model as Requested
from core.errors import PrivacyError
from core.privacy.numerics import PassType
from worker.data.placed import CPU
from worker.messages import Shape
from worker.models.base import Model
from worker.models.graph_network import GraphNetwork, graph_of
from worker.models.hf.hf_loading import ModelMissingError, folder_of
from worker.models.hf.hf_model import HfTuning
from worker.models.hf.images import HfImages
from worker.models.linear import Linear
from worker.models.matrix_factorization import MatrixFactorization
from worker.models.networks import Network
from worker.models.next_item import NextItem


def build_model(
    requested: Requested,
    shape: Shape,
    task: Task,
    features: Features,
    passes: PassType,
    rows: int,
    models_root: Path | None = None,
    device: torch.device = CPU,
) -> Model:
    """The model that a job trains on data of a public shape.

    Args:
        requested: the job's settings of it.
        passes: the type of its passes.
        rows: the number of records of each.
        models_root: the folder of Hugging Face models and graphs, or the file of an uploaded graph.
        device: of its passes.

    Raises:
        PrivacyError: admission let an unsuitable model through.
    """
    dtype: torch.dtype = getattr(torch, passes)
    model: Model
    match requested:
        case LinearModel() as asked:
            model = Linear(asked.inputs(shape.features), shape.outputs, asked.has_bias, dtype=dtype)
        case MatrixFactorizationModel() as asked:
            if not isinstance(task, RatingTask) or not isinstance(features, Interactions) or features.users is None:
                raise PrivacyError("matrix factorization needs a data set of ratings")
            users, items = features.users.rows, features.items.rows
            model = MatrixFactorization(users, items, asked.dim, task.scale, asked.bias, asked.init_std)
        case TransformerRecModel() | GruRecModel() | LstmRecModel() as asked:
            if not isinstance(task, NextItemTask) or not isinstance(features, Interactions):
                raise PrivacyError("next-item recommenders need a data set of sequences")
            model = NextItem(features.items.rows, asked, dtype=dtype)
        case HfModel() as asked:
            model = _hf(asked, task, dtype, models_root)
        case GraphModel() as asked:
            if models_root is None:
                raise ModelMissingError("this worker has no models root")
            program, tensors = graph_of(models_root, asked)
            model = GraphNetwork(shape.features, shape.outputs, asked, dtype=dtype, program=program, tensors=tensors)
        case MlpModel() | CnnModel() | GcnModel() as asked:
            if shape.sparse:
                raise PrivacyError("this kind of model needs dense features")
            model = Network(shape.features, shape.outputs, asked, dtype=dtype)
        case _:
            assert_never(requested)
    return replace(model, rows_per_pass=rows, device=device)


def _hf(settings: HfModel, task: Task, dtype: torch.dtype, models_root: Path | None) -> HfTuning:
    if not isinstance(task, ClassificationTask | LanguageModelTask):
        raise PrivacyError("Hugging Face models need a data set of texts")
    if models_root is None:
        raise ModelMissingError("this worker has no models root")
    folder = folder_of(models_root, settings)
    classes = tuple(str(each) for each in task.classes) if isinstance(task, ClassificationTask) else ()
    if folder.of_images:
        return HfImages(folder, settings, classes, dtype=dtype)
    prompts = isinstance(task, LanguageModelTask) and task.prompt is not None
    return HfTuning(folder, settings, classes, dtype=dtype, prompts=prompts)
