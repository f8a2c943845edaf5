"""A finished model from its files, for `scrimp.load_model`. The forward passes are the worker's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import safetensors.torch
from pydantic import Field, TypeAdapter, ValidationError
from safetensors import SafetensorError

from core.contracts.dataset_spec import Columns, Features, Interactions, NextItemTask, Task
from core.contracts.graph import GraphModel
from core.contracts.hf import HfModel
from core.contracts.job_spec import Model as Requested
from core.contracts.table import TableFeatures
from core.errors import InvalidRequest, PermanentError
from core.parts.damage import DataDamagedError
from core.parts.graph_program import GRAPH, Program, UnfitGraphError
from core.parts.graph_rules import places_of
from core.parts.inputs import checked
from core.privacy.numerics import BYTES, PASS_BYTES, ROW_UNIT, PassType
from worker.extractors.extractor_files import ExtractorMissingError
from worker.messages import Shape
from worker.models import graph_network
from worker.models.base import Model
from worker.models.build import build_model
from worker.models.graph_network import GraphNetwork
from worker.models.hf.hf_loading import ModelMissingError
from worker.models.model_files import CARD
from worker.predicting.predict import Answer, Predictor

REQUESTED: TypeAdapter[Requested] = TypeAdapter(Annotated[Requested, Field(discriminator="kind")])
TASK: TypeAdapter[Task] = TypeAdapter(Task)
FEATURES: TypeAdapter[Features] = TypeAdapter(Features)
# Kinds whose cards hold the settings themselves, and not a member `model`.
OWN_MEMBERS = {"linear": ("bias", "extractor"), "matrix_factorization": ("dim", "bias")}


class UnreadableModelError(ValueError):
    """A folder holds no model that can be loaded, or a file in it differs from its card."""


@dataclass(frozen=True)
class LoadedModel:
    """A finished model.

    Attributes:
        card: model.json.
    """

    card: Mapping[str, Any]
    _predictor: Predictor

    def predict(self, records: Iterable[Any], top: int = 10) -> list[Answer]:
        """One answer for each record; see scrimp.loading.LoadedModel.

        Raises:
            ValueError: a record does not fit the model, or the models root lacks the model's extractor.
        """
        if isinstance(records, str | bytes | Mapping):
            raise ValueError("give a list of records, not a single one")
        predictor = self._predictor
        plain_records = [_plain(each, predictor.task, predictor.features) for each in records]
        try:
            rows = checked(plain_records, predictor.task, predictor.features, _width(predictor))
        except InvalidRequest as error:
            (first, *_) = error.members["errors"]
            raise ValueError(f"{first['pointer'].removeprefix('/')}: {first['detail']}") from None
        try:
            return predictor.answers(rows, top) if rows else []
        except (ExtractorMissingError, ModelMissingError) as error:
            raise UnreadableModelError(_needed(predictor.models_root, error)) from None


def load(folder: Path, card: dict[str, Any], weights: bytes, models_root: Path | None) -> LoadedModel:
    """Builds a model from its card and weights: the extension `load_model` of the client.

    Args:
        folder: where the card was; a whole Hugging Face model's other files are there too.
        card: a member `format` says what it is; the files have the hashes that it has.
        models_root: the folder of extractors and of the models that adapters were tuned from.

    Raises:
        UnreadableModelError: a file is damaged, or the models root lacks what the model needs.
        KeyError: the card lacks a member.
    """
    try:
        return LoadedModel(card, _predictor(folder, card, weights, models_root))
    except (DataDamagedError, SafetensorError):
        raise UnreadableModelError(f"a file in {folder} differs from its card: fetch the model again") from None
    except (ExtractorMissingError, ModelMissingError) as error:
        raise UnreadableModelError(_needed(models_root, error)) from None
    except ValidationError:
        raise UnreadableModelError(f"{folder / CARD} does not describe its model: fetch it again") from None


def _predictor(folder: Path, card: dict[str, Any], weights: bytes, root: Path | None) -> Predictor:
    requested = _requested(card)
    task, features = TASK.validate_python(card["task"]), FEATURES.validate_python(card["features"])
    is_whole = isinstance(requested, HfModel) and requested.tuning != "lora"
    if isinstance(requested, HfModel) and is_whole:  # the folder holds the whole model, frozen tensors included
        requested = requested.model_copy(update={"path": folder.resolve().name, "sha256": None})
    sizes = {"features": card["inputs"], "outputs": card["outputs"], "sparse": False}
    shape = Shape(records_train=1, records_holdout=0, **sizes)
    passes: PassType = card.get("passes") or ("float64" if card["kind"] in OWN_MEMBERS else "float32")
    models = folder.resolve().parent if is_whole else root
    rows = _rows(requested, passes)
    if isinstance(requested, GraphModel):
        model: Model = _graph(folder, requested, shape, weights)
        return Predictor.of(replace(model, rows_per_pass=rows), weights, requested, task, features, root)
    model = build_model(requested, shape, task, features, passes, rows, models)
    return Predictor.of(model, weights, requested, task, features, root)


def _graph(folder: Path, requested: GraphModel, shape: Shape, weights: bytes) -> GraphNetwork:
    """A user's own model, from the graph beside its weights. Its file is a stranger's: it is read by the same rules."""
    try:
        program = Program.model_validate_json((folder / GRAPH).read_bytes())
        program.require_ordered()
        places_of(program)
        tensors = graph_network.published(program, safetensors.torch.load(weights))
        return GraphNetwork(shape.features, shape.outputs, requested, program=program, tensors=tensors)
    except FileNotFoundError:
        raise UnreadableModelError(f"{folder} has no {GRAPH}, which is the model's graph: fetch it again") from None
    except (UnfitGraphError, ValueError, KeyError):
        raise UnreadableModelError(f"{folder / GRAPH} does not describe the model: fetch it again") from None


def _requested(card: dict[str, Any]) -> Requested:
    """The job's settings of the model."""
    members = OWN_MEMBERS.get(card["kind"])
    settings = card["model"] if members is None else {name: card.get(name) for name in members}
    return REQUESTED.validate_python(settings | {"kind": card["kind"]})


def _rows(requested: Requested, passes: PassType) -> int:
    """How many records a pass holds: a fixed number, since the model is built before any record is known."""
    numbers = requested.pass_numbers if isinstance(requested, HfModel | GraphModel) else None
    return max(1, min(ROW_UNIT, PASS_BYTES // ((numbers or 1) * BYTES[passes])))


def _width(predictor: Predictor) -> int:
    """How many numbers one record has."""
    image = predictor.extractor.image if predictor.extractor else None
    return image.numbers if image else predictor.model.features


def _plain(record: Any, task: Task, features: Features) -> Any:
    """A record in JSON's types, as the service takes it."""
    if isinstance(record, np.ndarray):
        record = record.ravel().tolist() if not isinstance(features, Interactions) else record.tolist()
    if isinstance(record, Mapping):
        return {
            name: [_plain(node, task, features) for node in each] if isinstance(each, list) else _cell(each)
            for name, each in record.items()
        }
    if isinstance(record, list | tuple):
        record = [_cell(each) for each in record]
        if isinstance(features, TableFeatures) and len(record) == len(features.columns):
            return {column.name: cell for column, cell in zip(features.columns, record, strict=True)}
        if isinstance(features, Columns) and len(record) == len(features.names):
            return dict(zip(features.names, record, strict=True))
        if isinstance(features, Interactions) and not isinstance(task, NextItemTask) and len(record) == 2:
            return {"user": record[0], "item": record[1]}
    return _cell(record)


def _cell(value: Any) -> Any:
    """A NumPy number as a number of Python; anything else unchanged."""
    return value.item() if isinstance(value, np.generic) else value


def _needed(models_root: Path | None, error: PermanentError) -> str:
    place = "give `models_root`, or set SCRIMP_MODELS_ROOT" if models_root is None else f"looked in {models_root}"
    return f"the model needs another one to work: {error} ({place})"
