"""A finished model's usage: the Python snippet on its card."""

from __future__ import annotations

import torch

from app.contracts.dataset_spec import Features, Ids, Interactions
from app.contracts.extractor import ExtractorRef
from worker.models.base import Model
from worker.models.dropout import Dropout
from worker.models.networks import Network, Scaled
from worker.models.next_item import NextItem

_LOAD = """\
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
u, i = users({user!r}), items({item!r})
low, high = card["task"]["scale"]
rating = (low + high) / 2 + float(tensors["users"][u] @ tensors["items"][i])
"""
_RATING_BIAS = 'rating += float(tensors["user_bias"][u] + tensors["item_bias"][i])\n'
_NEXT = """\
import torch
from torch.nn.functional import layer_norm, linear, scaled_dot_product_attention
model, w = card["model"], {{name: torch.from_numpy(value) for name, value in tensors.items()}}
layer = lambda name, x: linear(x, w[name + ".weight"], w[name + ".bias"])
norm = lambda name, x: layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"])
ids = torch.tensor([1 + items(id) for id in {known}])[-model["max_length"]:]  # from the first to the latest
x = w["embedding.weight"][ids] + w["positions.weight"][:len(ids)]
{blocks}scores = w["{output}.weight"][1:] @ norm("norm", x)[-1]  # of the declared items, in their order
print(scores.topk(min(10, len(scores))).indices.tolist())  # rows of the best
"""
_RECURRENT = """\
import torch
model, w = card["model"], {{name: torch.from_numpy(value) for name, value in tensors.items()}}
network = torch.nn.{cell}(model["dim"], model["dim"], model["layers"], batch_first=True)
torch_name = lambda name: name.replace("inputs", "ih").replace("states", "hh").split(".")  # layers.0.inputs.weight
network.load_state_dict({{f"{{n[3]}}_{{n[2]}}_l{{n[1]}}": w[name] for name in w if len(n := torch_name(name)) == 4}})
ids = torch.tensor([1 + items(id) for id in {known}])[-model["max_length"]:]  # from the first to the latest
hidden = network(w["embedding.weight"][ids][None])[0][0, -1]
scores = w["{output}.weight"][1:] @ hidden.detach()  # of the declared items, in their order
print(scores.topk(min(10, len(scores))).indices.tolist())  # rows of the best
"""
_CELLS = {"gru_rec": "GRU", "lstm_rec": "LSTM"}
_BLOCKS = """\
for block in (f"blocks.{number}." for number in range(model["blocks"])):
    normal = norm(block + "attention_norm", x)
    heads = (layer(block + name, normal).unflatten(1, (model["heads"], -1)) for name in ("query", "key", "value"))
    q, k, v = (each.transpose(0, 1) for each in heads)
    x = x + layer(block + "merge", scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1).flatten(1))
    x = x + layer(block + "narrow", torch.relu(layer(block + "widen", norm(block + "norm", x))))
"""
_CORRECTED_BLOCKS = """\
error, options = float(w["errors.blocks"]), model["re_attention"]
linear_variance = lambda name, x, v: linear(v, w[name + ".weight"] ** 2 + error**2) + error**2 * (
    (x**2).sum(-1, keepdim=True) + 1)
def norm_variance(name, x, v):
    center = x - x.mean(-1, keepdim=True)
    s2 = (center**2).mean(-1, keepdim=True) + 1e-5
    return (v * (w[name + ".weight"] ** 2 + error**2) + error**2 * center**2) / s2 + error**2
seen = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
v = (w["errors.items"][ids] ** 2 + error**2)[:, None].expand(x.shape)  # of x, the noise's variance
heads = lambda x: x.unflatten(-1, (model["heads"], -1)).transpose(0, 1)
for block in (f"blocks.{number}." for number in range(model["blocks"])):
    normal, of_normal = norm(block + "attention_norm", x), norm_variance(block + "attention_norm", x, v)
    q, k, values = (heads(layer(block + name, normal)) for name in ("query", "key", "value"))
    of_keys = heads(linear_variance(block + "key", normal, of_normal)).mean(-1)
    exponent = (q**2).mean(-1)[:, :, None] * of_keys[:, None] / 2
    if options["mode"] == "logits":
        exponent = exponent - exponent.masked_fill(~seen, torch.inf).amin(-1, keepdim=True)
    exponent = exponent.clamp(max=options["max_exponent"])
    logits = q @ k.mT / q.shape[-1] ** 0.5 - exponent * (options["mode"] == "logits")
    a = torch.softmax(logits.masked_fill(~seen, -torch.inf), -1)
    a = a * torch.exp(-exponent) if options["mode"] == "paper" else a
    found = (a @ values).transpose(0, 1).flatten(1)
    weight = w[block + "value.weight"].unflatten(0, (model["heads"], -1))
    of_values = (a**2 @ of_normal) @ (weight**2 + error**2).mT + error**2 * (
        ((a @ normal) ** 2).sum(-1, keepdim=True) + 1)
    x = x + layer(block + "merge", found)
    v = v + linear_variance(block + "merge", found, of_values.transpose(0, 1).flatten(1))
    normal, of_normal = norm(block + "norm", x), norm_variance(block + "norm", x, v)
    wide, d = layer(block + "widen", normal), linear_variance(block + "widen", normal, of_normal)
    cumulative = torch.special.ndtr(wide / d.sqrt())
    density = torch.exp(-wide**2 / d / 2) / (2 * torch.pi) ** 0.5
    mean = wide * cumulative + d.sqrt() * density
    of_relu = ((wide**2 + d) * cumulative + wide * d.sqrt() * density - mean**2).clamp(min=0)
    x = x + layer(block + "narrow", torch.relu(wide))
    v = v + linear_variance(block + "narrow", mean, of_relu)
"""
_WITHIN = "print(min(max(rating, low), high))\n"


def usage(
    model: Model, bias: bool, features: Features, extractor: ExtractorRef | None = None, *, centered: bool = False
) -> str:
    """Python code that loads a model from the files next to its card, and applies it to one input of the reader's.

    Args:
        bias: the model has a bias.
        features: the data set's.
        extractor: the job's, if the model takes its features.
        centered: the model takes features minus the mean that lies with its weights.
    """
    if isinstance(model, NextItem) and isinstance(features, Interactions):
        return _next_usage(model, features)
    if isinstance(features, Interactions):
        return _rating_usage(features, bias)
    row = 'the values of card["features"]["columns"], in that order'
    words = extractor is not None and extractor.words is not None
    inputs = _TEXT.format(settings='card["extractor"]["words"]' if words else 'card["features"]')
    if features.kind != "hashed_text" and not words:
        if features.kind == "table":
            row = (
                'the columns of card["features"] in their order: a number or day clipped to its range and scaled to '
                "[-1, 1], a category as 1 or 0 for each value"
            )
        row = row if features.kind in ("columns", "table") else "one record of the array, flattened"
        inputs = _DENSE.format(row='what card["extractor"] makes of a record' if extractor is not None else row)
    if centered:
        inputs += 'x = x - tensors["mean"]\n'
    outputs = f'outputs = np.asarray(x @ tensors["weight"].T){" + tensors[" + repr("bias") + "]" if bias else ""}\n'
    if isinstance(model, Network):
        outputs = _network_usage(model)
    return _LOAD + inputs + outputs + (_CLASSES if model.classification else _NUMBER)


def _next_usage(model: NextItem, features: Interactions) -> str:
    output = "embedding" if model.spec.tied else "output"
    rows = _ROWS[features.items.kind].format(side="items")
    known, cell = [_id_of(features.items)], _CELLS.get(model.spec.kind)
    if cell:
        return _LOAD + rows + _RECURRENT.format(cell=cell, known=known, output=output)
    blocks = _CORRECTED_BLOCKS if model.effective_errors else _BLOCKS
    return _LOAD + rows + _NEXT.format(known=known, output=output, blocks=blocks)


def _rating_usage(features: Interactions, bias: bool) -> str:
    users, items = features.users or features.items, features.items
    rows = "".join(_ROWS[ids.kind].format(side=side) for side, ids in (("users", users), ("items", items)))
    rating = _RATING.format(user=_id_of(users), item=_id_of(items))
    return _LOAD + rows + rating + (_RATING_BIAS if bias else "") + _WITHIN


def _id_of(ids: Ids) -> str:
    """One declared id."""
    if ids.kind == "hashed":
        return "an id"
    return str(ids.first) if ids.kind == "numbered" else ids.ids[0]


def _network_usage(network: Network) -> str:
    """The layers as torch constructors, in the form that torch prints."""
    first, *layers = network.module().children()
    if not isinstance(first, Scaled):
        raise TypeError("a network must start with its inputs' scale and shape")
    reshape = f".unflatten(1, {first.shape})" if first.shape else ""
    in_use = [torch.nn.Identity() if isinstance(layer, Dropout) else layer for layer in layers]
    lines = "\n".join(f"    {layer}," for layer in (torch.nn.Identity(), *in_use))
    return _NETWORK.format(layers=lines, scale=first.scale, reshape=reshape + ".movedim(-1, 1)" * first.channels_last)
