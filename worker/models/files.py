"""A model as files: safetensors for the weights, and a card in JSON that says what they are and how to use them."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from app.contracts.dataset_spec import Features, Interactions, Task
from worker.attempt.messages import ArtifactFile
from worker.models.base import Model, Parameters
from worker.models.dropout import Dropout
from worker.models.matrix_factorization import MatrixFactorization
from worker.models.networks import Network, Scaled

WEIGHTS = "model.safetensors"
CARD = "model.json"

_LOAD = """\
import json, numpy as np
from pathlib import Path
from safetensors.numpy import load_file
card, tensors = json.loads(Path("model.json").read_text()), load_file("model.safetensors")
"""
_TEXT = """\
from sklearn.feature_extraction.text import HashingVectorizer
spec = card["features"]
vectorizer = HashingVectorizer(n_features=spec["buckets"], binary=spec["binary"], ngram_range=tuple(spec["ngrams"]),
                               alternate_sign=False, norm="l2")
x = vectorizer.transform(["a text"])
"""
_DENSE = """\
x = np.zeros((1, card["inputs"]), dtype=np.float32)  # one row: {row}
"""
_NETWORK = """\
import torch
from torch.nn import *
network = Sequential(
{layers}
)
network.load_state_dict({{name: torch.from_numpy(value) for name, value in tensors.items()}})
x = (torch.as_tensor(x, dtype=torch.float32) * {scale}){reshape}
outputs = network(x).detach().numpy()
"""
_CLASSES = 'print(card["task"]["classes"][int(outputs[0].argmax())])\n'
_NUMBER = "print(float(outputs[0, 0]))\n"
_ROWS = {
    "numbered": '{side} = lambda id: int(id) - card["features"]["{side}"]["first"]  # the row of an id\n',
    "listed": '{side} = card["features"]["{side}"]["ids"].index  # the row of an id, a text\n',
    "hashed": """\
import hashlib
def {side}(id):  # the row of an id, a text
    return int.from_bytes(hashlib.sha256(id.encode()).digest()[:8], "big") % card["features"]["{side}"]["buckets"]
""",
}
_RATING = """\
u, i = users("1"), items("1")
low, high = card["task"]["scale"]
rating = (low + high) / 2 + float(tensors["users"][u] @ tensors["items"][i])
"""
_RATING_BIAS = 'rating += float(tensors["user_bias"][u] + tensors["item_bias"][i])\n'
_WITHIN = "print(min(max(rating, low), high))\n"


def save_model(
    folder: Path,
    model: Model,
    parameters: Parameters,
    task: Task,
    features: Features,
) -> tuple[ArtifactFile, ...]:
    """Writes model.safetensors (float32) and model.json.

    Args:
        folder: an existing folder.
        parameters: what the optimizer finished with: functions of noised gradients.
        task, features: the data set's, public.

    Returns:
        both files, with their SHA-256.

    Raises:
        OSError: they can not be written.
    """
    tensors = {name: value.to(torch.float32).contiguous() for name, value in parameters.items()}
    card = model_card(model, {name: list(value.shape) for name, value in tensors.items()}, task, features)
    return (
        _write(folder / WEIGHTS, safetensors.torch.save(tensors, metadata={"format": "pt"})),
        _write(folder / CARD, json.dumps(card, indent=2, ensure_ascii=False).encode() + b"\n"),
    )


def model_card(
    model: Model,
    tensors: dict[str, list[int]],
    task: Task,
    features: Features,
) -> dict[str, Any]:
    """What the weights are: kind, inputs, outputs, the data set's task and features, and a snippet that uses them."""
    asked: dict[str, Any] = {"bias": "bias" in tensors}
    if isinstance(model, MatrixFactorization):
        asked = {"dim": model.dim, "bias": model.bias}
    if isinstance(model, Network):
        asked = {"model": model.spec.model_dump(mode="json")}
    return {
        "format": "scrimp-model/1",
        "kind": _kind(model),
        "weights": WEIGHTS,
        "inputs": model.features,
        "outputs": model.outputs,
        **asked,
        "tensors": tensors,
        "task": task.model_dump(mode="json"),
        "features": features.model_dump(mode="json"),
        "usage": _usage(model, "bias" in tensors or "user_bias" in tensors, features),
    }


def _usage(model: Model, bias: bool, features: Features) -> str:
    if isinstance(features, Interactions):
        return _rating_usage(features, bias)
    row = 'the values of card["features"]["columns"], in that order'
    inputs = _TEXT
    if features.kind != "hashed_text":
        rows = {"columns": row, "text": "what the extractor of the job's specification makes of a text"}
        inputs = _DENSE.format(row=rows.get(features.kind, "one record of the array, flattened"))
    outputs = f'outputs = np.asarray(x @ tensors["weight"].T){" + tensors[" + repr("bias") + "]" if bias else ""}\n'
    if isinstance(model, Network):
        outputs = _network_usage(model)
    return _LOAD + inputs + outputs + (_CLASSES if model.classification else _NUMBER)


def _kind(model: Model) -> str:
    if isinstance(model, MatrixFactorization):
        return "matrix_factorization"
    return model.spec.kind if isinstance(model, Network) else "linear"


def _rating_usage(features: Interactions, bias: bool) -> str:
    sides = (("users", features.users), ("items", features.items))
    rows = "".join(_ROWS[ids.kind].format(side=side) for side, ids in sides)
    return _LOAD + rows + _RATING + (_RATING_BIAS if bias else "") + _WITHIN


def _network_usage(network: Network) -> str:
    """The layers as torch's own constructors, which is how torch prints them."""
    first, *layers = network.module().children()
    if not isinstance(first, Scaled):
        raise TypeError("a network begins with its inputs' scale and shape")
    reshape = f".unflatten(1, {first.shape})" if first.shape else ""
    in_use = [torch.nn.Identity() if isinstance(layer, Dropout) else layer for layer in layers]
    lines = "\n".join(f"    {layer}," for layer in (torch.nn.Identity(), *in_use))
    return _NETWORK.format(layers=lines, scale=first.scale, reshape=reshape + ".movedim(-1, 1)" * first.channels_last)


def _write(path: Path, content: bytes) -> ArtifactFile:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    for folder in (path.parent, path.parent.parent, path.parent.parent.parent):  # the entries, too, survive a power cut
        _sync(folder)
    digest = hashlib.sha256(content).hexdigest()
    return ArtifactFile(name=path.name, path=str(path.resolve()), sha256=digest, size_bytes=len(content))


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
