"""A finished model applied to inputs from outside: post-processing of released numbers, at no privacy cost.

classification   {"class": …, "probabilities": {class: p} of the best `top`}
regression       {"value": f};  rating: within the scale
next_item        {"items": [{"item": id, "row": of the declared list, "score": …}]}, the best `top`
language_model   worker.predicting.language
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import scipy.sparse
import torch
from torch import Tensor

from app.contracts.dataset_spec import ClassificationTask, Interactions, RatingTask
from app.errors import PrivacyError
from app.formats.hashing import hashed
from app.formats.inputs import finite, item_name
from app.formats.stored import Csr, DataDamagedError, StoredPart, Texts
from app.privacy.numerics import numerics_of
from worker.data.parts import records_of
from worker.data.ratings import RatingRecords
from worker.data.records import DenseRecords, Records, SparseRecords
from worker.data.sequences import SequenceRecords
from worker.extractors.features import opened
from worker.extractors.files import ExtractorMissingError
from worker.messages import Part, Predict
from worker.models.base import Model, Parameters
from worker.models.build import build_model
from worker.models.hf.files import trained_tensors
from worker.models.hf.model import HfTuning
from worker.models.hf.tokens import Tokens
from worker.models.next_item import NextItem
from worker.predicting.language import continuations
from worker.training.center import TENSOR, center_of, centered

Answer = dict[str, Any]


def predicted(asked: Predict) -> list[Answer]:
    """One answer for each record.

    Raises:
        DataDamagedError: the weights are missing or differ from the published file.
        ExtractorMissingError, ModelMissingError: this worker lacks the job's extractor or the model that it tuned.
    """
    root = Path(asked.models_root) if asked.models_root else None
    numerics = numerics_of(asked.spec, asked.shape.public_sizes(None), asked.features)
    # Nothing here is private, so passes need no padding rows.
    numerics = numerics.model_copy(update={"rows_per_pass": min(numerics.rows_per_pass, len(asked.records))})
    model = build_model(asked.spec, asked.shape, asked.task, asked.features, numerics, root)
    parameters = _weights(asked.weights, model)
    if isinstance(model, HfTuning) and not model.classes:
        return continuations(model, parameters, asked.records, asked.top)
    if isinstance(model, NextItem) and isinstance(asked.features, Interactions):
        return _next_items(model, parameters, asked.records, asked.features, asked.top)
    records = _tokens(model, asked) if isinstance(model, HfTuning) else _records(asked)
    if center_of(asked.spec) is not None:
        records = centered(records, parameters[TENSOR])
    outputs = model.forward(parameters, records)
    if isinstance(asked.task, ClassificationTask):
        return [_classes(each, asked.task, asked.top) for each in torch.softmax(outputs, dim=0).mT]
    values = outputs[0]
    if isinstance(asked.task, RatingTask):
        values = values.clamp(*asked.task.scale)
    return [{"value": finite(value)} for value in values.tolist()]


def _weights(file: Part, model: Model) -> Parameters:
    """The weights in float64, in the model's own order, without the other published tensors."""
    path = Path(file.path)
    content = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise DataDamagedError("the model's file differs from the published one")
    tensors = safetensors.torch.load(content)
    if isinstance(model, HfTuning):
        return trained_tensors(model, tensors)
    tensors = {name: value.double() for name, value in tensors.items()}
    if isinstance(model, NextItem) and model.effective_errors is not None:
        model.effective_errors.restore(float(tensors["errors.blocks"]), tensors["errors.items"])
    return tensors


def _records(asked: Predict) -> Records:
    """The inputs as records of their kind; labels are ignored."""
    given, features = asked.records, asked.features
    labels = torch.zeros(len(given), dtype=torch.int64 if asked.shape.outputs > 1 else torch.float64)
    extractor = asked.spec.model.extractor if asked.spec.model.kind == "linear" else None
    if extractor is not None and extractor.words is not None:
        return _sparse(hashed(given, extractor.words), labels)
    if extractor is not None:
        if asked.models_root is None or extractor.sha256 is None:
            raise ExtractorMissingError("this worker has no models root")
        x = Texts.of(given) if features.kind == "text" else np.asarray(given, dtype=np.float32)
        part = StoredPart(x, np.zeros(len(given)))
        extract, inputs = opened(part, Path(asked.models_root) / extractor.name, extractor.sha256, extractor.image)
        return DenseRecords(torch.stack([extract(each) for each in inputs]), labels)
    if features.kind == "interactions":
        users, items = torch.tensor(given, dtype=torch.int64).unbind(dim=1)
        return RatingRecords(users, items, labels)
    if features.kind == "hashed_text":
        return _sparse(hashed(given, features), labels)
    if features.kind == "text":
        raise PrivacyError("texts can be read only by an extractor")
    return DenseRecords(torch.tensor(given, dtype=torch.float32), labels)


def _sparse(csr: Csr, labels: Tensor) -> Records:
    return SparseRecords(scipy.sparse.csr_matrix((csr.data, csr.indices, csr.indptr), shape=csr.shape), labels)


def _tokens(model: HfTuning, asked: Predict) -> Records:
    """The texts as the model's tokens; labels are ignored."""
    part = StoredPart(Texts.of(asked.records), np.zeros(len(asked.records), dtype=np.int64))
    return records_of(Tokens(model.folder, model.spec.max_length).of_part(part, lambda: None))


def _classes(probabilities: Tensor, task: ClassificationTask, top: int) -> Answer:
    if not bool(torch.isfinite(probabilities).all()):
        return {"class": None, "probabilities": {}}
    best = probabilities.topk(min(top, len(probabilities)))
    named = {str(task.classes[at]): p for at, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)}
    return {"class": task.classes[int(probabilities.argmax())], "probabilities": named}


def _next_items(model: NextItem, parameters: Parameters, given: list[Any], of: Interactions, top: int) -> list[Answer]:
    ends = np.cumsum([len(each) for each in given])
    rows = np.asarray([row for each in given for row in each], dtype=np.int32)
    scores = model.next_scores(parameters, SequenceRecords(rows, np.append(0, ends)[:-1], ends))
    best = scores.topk(min(top, scores.shape[1]), dim=1)
    return [
        {
            "items": [
                {"item": item_name(of.items, row), "row": row, "score": finite(s)} for row, s in zip(*each, strict=True)
            ]
        }
        for each in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
