"""The Python snippet on a finished model's card: `scrimp.load_model`; plain numpy for linear models, but for tables."""

from __future__ import annotations

from typing import assert_never

from core.contracts.dataset_spec import (
    Columns,
    Features,
    HashedText,
    Interactions,
    NextItemTask,
    NodeColumns,
    RegressionTask,
    Task,
    Tensor,
    Text,
)
from core.contracts.declared_ids import Ids
from core.contracts.extractor import ExtractorRef
from core.contracts.table import TableFeatures
from worker.models.base import Model
from worker.models.hf.hf_model import HfTuning
from worker.models.linear import Linear

MOST_COLUMNS = 20  # more are not written out
_MANY_COLUMNS = 'dict.fromkeys(model.card["features"]["columns"], 0.0)'

_LOADED = """\
import scrimp  # pip install 'scrimp[worker{extra}]'
model = scrimp.load_model(".")  # the folder of these files{needs}
print(model.predict([{record}]))
"""
_NUMPY = """\
import json, numpy as np
from pathlib import Path
from safetensors.numpy import load_file
card, tensors = json.loads(Path("model.json").read_text()), load_file("model.safetensors")
"""
_TEXT = """\
from sklearn.feature_extraction.text import HashingVectorizer
spec = {settings}
vectorizer = HashingVectorizer(n_features=spec["buckets"], binary=spec["binary"], ngram_range=tuple(spec["ngrams"]),
                               alternate_sign=False, norm="l2")
x = vectorizer.transform(["a text"])
"""
_DENSE = """\
x = np.zeros((1, card["inputs"]), dtype=np.float32)  # one row: {row}
"""
_CLASSES = 'print(card["task"]["classes"][int(outputs[0].argmax())])\n'
_NUMBER = "print(float(outputs[0, 0]))\n"


def usage(
    model: Model, task: Task, features: Features, extractor: ExtractorRef | None = None, *, centered: bool = False
) -> str:
    """Python code that loads a model from the files next to its card, and applies it to one input of the reader's.

    Args:
        task, features: the data set's.
        extractor: makes the model's inputs, if there is one.
        centered: the model takes features minus the mean that lies with its weights.
    """
    words = extractor is not None and extractor.words is not None
    if isinstance(model, Linear) and (words or extractor is None) and not _mapped(task, features):
        return _linear(model, features, extractor, centered=centered)
    tuned = model.spec if isinstance(model, HfTuning) else None
    needs = "; SCRIMP_MODELS_ROOT holds its extractor" if extractor is not None else ""
    if tuned is not None and tuned.tuning == "lora":
        needs = "; SCRIMP_MODELS_ROOT holds the model that was tuned"
    record = _record(model, task, features, extractor)
    return _LOADED.format(extra=",hf" if tuned else "", needs=needs, record=record)


def _mapped(task: Task, features: Features) -> bool:
    """Returns True if inputs or outputs are on declared maps, which `scrimp.load_model` knows."""
    return isinstance(features, TableFeatures) or (isinstance(task, RegressionTask) and task.range is not None)


def _linear(model: Linear, features: Features, extractor: ExtractorRef | None, *, centered: bool) -> str:
    row = 'the values of card["features"]["columns"], in that order'
    words = extractor.words if extractor is not None else None
    inputs = _TEXT.format(settings='card["features"]' if words is None else 'card["extractor"]["words"]')
    if words is None and not isinstance(features, HashedText):
        inputs = _DENSE.format(row=row if isinstance(features, Columns) else "one record of the array, flattened")
    if centered:
        inputs += 'x = x - tensors["mean"]\n'
    bias = ' + tensors["bias"]' if model.bias else ""
    outputs = f'outputs = np.asarray(x @ tensors["weight"].T){bias}\n'
    return _NUMPY + inputs + outputs + (_CLASSES if model.classification else _NUMBER)


def _record(model: Model, task: Task, features: Features, extractor: ExtractorRef | None) -> str:
    """One record of the data set's kind, as Python code."""
    match features:
        case HashedText() | Text():
            return '"a text"'
        case Columns():
            few = len(features.columns) <= MOST_COLUMNS
            node = repr(dict.fromkeys(features.columns, 0.0)) if few else _MANY_COLUMNS
            if isinstance(features, NodeColumns) and features.tree is not None:
                node = f"{node} | {{{features.neighbours!r}: [{node}]}}"
            return node
        case TableFeatures():
            return repr({each.name: each.example for each in features.columns})
        case Tensor():
            image = extractor.image if extractor else None
            return f"[0.0] * {image.numbers if image else model.features}"
        case Interactions():
            item = _id_of(features.items)
            users = features.users or features.items
            return repr([item] if isinstance(task, NextItemTask) else {"user": _id_of(users), "item": item})
        case _:
            assert_never(features)


def _id_of(ids: Ids) -> str:
    """One declared id."""
    if ids.kind == "hashed":
        return "an id"
    return str(ids.first) if ids.kind == "numbered" else ids.ids[0]
