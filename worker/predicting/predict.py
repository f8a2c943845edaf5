"""A finished model applied to inputs from outside: post-processing of released numbers, at no privacy cost.

classification   {"class": …, "probabilities": {class: p} of the best `top`}
regression       {"value": f}, in the target's unit;  rating: within the scale
next_item        {"items": [{"item": id, "row": of the declared list, "score": …}]}, the best `top`
language_model   worker.predicting.language
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_never

import numpy as np
import safetensors.torch
import scipy.sparse
import torch
from torch import Tensor

from core.contracts.dataset_spec import (
    ClassificationTask,
    Columns,
    Features,
    HashedText,
    Interactions,
    RatingTask,
    Task,
    Text,
)
from core.contracts.dataset_spec import Tensor as TensorFeatures
from core.contracts.extractor import ExtractorRef
from core.contracts.job_spec import LinearModel
from core.contracts.job_spec import Model as Requested
from core.contracts.metrics import ClipRatios
from core.contracts.table import TableFeatures
from core.errors import PrivacyError
from core.parts.damage import DataDamagedError
from core.parts.hashing import hashed
from core.parts.inputs import finite, item_name
from core.parts.stored_records import Csr, StoredPart, Texts
from core.parts.table_cells import in_unit
from core.privacy.numerics import numerics_of
from worker.data.ratings import RatingRecords
from worker.data.records import DenseRecords, Records, SparseRecords
from worker.data.sequence_records import SequenceRecords
from worker.extractors.extractor_files import ExtractorMissingError
from worker.extractors.features import opened
from worker.messages import Predict
from worker.models.base import Model, Parameters, answers
from worker.models.build import build_model
from worker.models.hf.hf_model import HfTuning
from worker.models.hf.tuned_files import trained_tensors
from worker.models.linear import CLIP_RATIOS
from worker.models.next_item import NextItem
from worker.predicting.language import continuations, tokens_of
from worker.statistics.center import TENSOR, centered

Answer = dict[str, Any]


@dataclass(frozen=True)
class Predictor:
    """A finished model with its weights.

    Attributes:
        parameters: float64, with the private mean of its features where it takes centred ones.
        extractor: makes its inputs, if there is one.
        models_root: the folder of extractors.
    """

    model: Model
    parameters: Parameters
    task: Task
    features: Features
    extractor: ExtractorRef | None = None
    models_root: Path | None = None

    @classmethod
    def of(
        cls, model: Model, weights: bytes, requested: Requested, task: Task, features: Features, root: Path | None
    ) -> Predictor:
        """A model with the weights of its published file.

        Args:
            requested: the job's settings of the model.
        """
        extractor = requested.extractor if isinstance(requested, LinearModel) else None
        return cls(model, _parameters(model, weights), task, features, extractor, root)

    def answers(self, records: list[Any], top: int) -> list[Answer]:
        """One answer for each record.

        Args:
            records: as core.parts.inputs parsed them.
            top: how many classes, items or tokens to return.

        Raises:
            ExtractorMissingError: the extractor is missing.
        """
        model, parameters = self.model, self.parameters
        if isinstance(model, HfTuning) and not model.classes:
            return continuations(model, parameters, records, top)
        if isinstance(model, NextItem) and isinstance(self.features, Interactions):
            return _next_items(model, parameters, records, self.features, top)
        if isinstance(model, HfTuning) and not model.of_images:
            tokens = tokens_of(model, records)
        else:
            tokens = self._records(records)
        if TENSOR in parameters:
            tokens = centered(tokens, parameters[TENSOR])
        outputs = model.forward(parameters, tokens)
        if isinstance(self.task, ClassificationTask):
            answer_list = answers(outputs, _clip_ratios(parameters))
            shares = torch.softmax(answer_list.mT, dim=1)
            return [_classes(f, p, self.task, top) for f, p in zip(outputs.mT, shares, strict=True)]
        values = outputs[0]
        if isinstance(self.task, RatingTask):
            values = values.clamp(*self.task.scale)
        return [{"value": finite(value)} for value in in_unit(values.double().numpy(), self.task).tolist()]

    def _records(self, records: list[Any]) -> Records:
        """The inputs as records of their kind; labels are ignored."""
        labels = torch.zeros(len(records), dtype=torch.int64 if self.model.classification else torch.float64)
        if self.extractor is not None and self.extractor.words is not None:
            return _sparse(hashed(records, self.extractor.words), labels)
        if self.extractor is not None:
            return DenseRecords(self._extracted(records, self.extractor), labels)
        match self.features:
            case Interactions():
                users, items = torch.tensor(records, dtype=torch.int64).unbind(dim=1)
                return RatingRecords(users, items, labels)
            case HashedText():
                return _sparse(hashed(records, self.features), labels)
            case Text():
                raise PrivacyError("texts can be read only by an extractor")
            case Columns() | TableFeatures() | TensorFeatures():
                return DenseRecords(torch.tensor(records, dtype=torch.float32), labels)
            case _:
                assert_never(self.features)

    def _extracted(self, records: list[Any], extractor: ExtractorRef) -> Tensor:
        if self.models_root is None or extractor.sha256 is None:
            raise ExtractorMissingError("this worker has no models root")
        x = Texts.of(records) if isinstance(self.features, Text) else np.asarray(records, dtype=np.float32)
        part = StoredPart(x, np.zeros(len(records)))
        extract, inputs = opened(part, self.models_root / extractor.name, extractor.sha256, extractor.image)
        return torch.stack([extract(each) for each in inputs])


def predicted(request: Predict) -> list[Answer]:
    """One answer for each record.

    Raises:
        DataDamagedError: the weights are missing or differ from the published file.
        ExtractorMissingError, ModelMissingError: this worker lacks the job's extractor or the model that it tuned.
    """
    root = Path(request.models_root) if request.models_root else None
    on_processor = request.spec.runtime.model_copy(update={"device": "cpu"})  # a GPU's passes are larger
    spec = request.spec.model_copy(update={"runtime": on_processor})
    numerics = numerics_of(spec, request.shape.public_sizes(None), request.features)
    # Nothing here is private, so passes need no padding rows.
    rows = min(numerics.rows_per_pass, len(request.records))
    requested = request.spec.model
    model = build_model(requested, request.shape, request.task, request.features, numerics.passes, rows, root)
    weights = published(Path(request.weights.path), request.weights.sha256)
    return Predictor.of(model, weights, requested, request.task, request.features, root).answers(
        request.records, request.top
    )


def published(path: Path, sha256: str) -> bytes:
    """The content of a published file.

    Raises:
        DataDamagedError: it is missing or differs from the published one.
    """
    content = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(content).hexdigest() != sha256:
        raise DataDamagedError("the model's file differs from the published one")
    return content


def _parameters(model: Model, weights: bytes) -> Parameters:
    """The weights in float64, in the model's own order, without the other published tensors."""
    tensors = safetensors.torch.load(weights)
    if isinstance(model, HfTuning):
        return trained_tensors(model, tensors)
    tensors = {name: value.double() for name, value in tensors.items()}
    if isinstance(model, NextItem) and model.effective_errors is not None:
        model.effective_errors.restore(float(tensors["errors.blocks"]), tensors["errors.items"])
    return tensors


def _sparse(csr: Csr, labels: Tensor) -> Records:
    return SparseRecords(scipy.sparse.csr_matrix((csr.data, csr.indices, csr.indptr), shape=csr.shape), labels)


def _clip_ratios(parameters: Parameters) -> ClipRatios | None:
    """What the answers of two classes undo, as it lies with the weights; models of earlier releases have none."""
    if CLIP_RATIOS not in parameters:
        return None
    first, second = parameters[CLIP_RATIOS].tolist()
    return first, second


def _classes(outputs: Tensor, probabilities: Tensor, task: ClassificationTask, top: int) -> Answer:
    """The class of the largest output: weights of classes move it, and not the probabilities."""
    if not bool(torch.isfinite(probabilities).all()):
        return {"class": None, "probabilities": {}}
    best = probabilities.topk(min(top, len(probabilities)))
    by_class = {str(task.classes[at]): p for at, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)}
    return {"class": task.classes[int(outputs.argmax())], "probabilities": by_class}


def _next_items(
    model: NextItem, parameters: Parameters, records: list[Any], declared: Interactions, top: int
) -> list[Answer]:
    ends = np.cumsum([len(each) for each in records])
    rows = np.asarray([row for each in records for row in each], dtype=np.int32)
    scores = model.next_scores(parameters, SequenceRecords(rows, np.append(0, ends)[:-1], ends))
    best = scores.topk(min(top, scores.shape[1]), dim=1)
    return [
        {
            "items": [
                {"item": item_name(declared.items, row), "row": row, "score": finite(s)}
                for row, s in zip(*each, strict=True)
            ]
        }
        for each in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
