"""Extractors, randomly initialized, in the files of real ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

CONFIG: dict[str, Any] = {
    "model_type": "bert",
    "vocab_size": 12,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 16,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
}
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "good", "bad", "film", "##s", ",", "e", "##a"]


def write_extractor(folder: Path, seed: int = 0, **manifest: object) -> str:
    """Writes the files of a BERT; returns the extractor's SHA-256."""
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: _value(name, 0.5 * torch.randn(shape, generator=generator)) for name, shape in _shapes()}
    contents = {
        "config.json": json.dumps(CONFIG).encode(),
        "model.safetensors": safetensors.torch.save(tensors),
        "tokenizer.json": tokenizer_json().encode(),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    document = {
        "format": "scrimp-extractor/1",
        "kind": "transformers",
        "features": 8,
        "max_tokens": 16,
        "pooling": "mean",
        "normalize": True,
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()},
    }
    return _write_manifest(folder, document | manifest)


def write_former_extractor(folder: Path) -> str:
    """Writes the manifest of a kind that earlier releases ran; returns its SHA-256."""
    folder.mkdir(parents=True)
    document = {"format": "scrimp-extractor/1", "kind": "bert_mean", "features": 8, "max_tokens": 16}
    files = dict.fromkeys(("config.json", "model.safetensors", "vocab.txt"), "0" * 64)
    return _write_manifest(folder, document | {"normalize": True, "lowercase": True, "files": files})


def _write_manifest(folder: Path, document: dict[str, object]) -> str:
    text = json.dumps(document).encode()
    (folder / "extractor.json").write_bytes(text)
    return hashlib.sha256(text).hexdigest()


def tokenizer_json() -> str:
    """BERT's tokenizer over PIECES."""
    from tokenizers import BertWordPieceTokenizer

    made: str = BertWordPieceTokenizer({piece: at for at, piece in enumerate(PIECES)}).to_str()
    return made


def _shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and sizes of BERT's tensors, as transformers has them, without the pooler."""
    size, wide = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    yield "embeddings.word_embeddings.weight", (CONFIG["vocab_size"], size)
    yield "embeddings.position_embeddings.weight", (CONFIG["max_position_embeddings"], size)
    yield "embeddings.token_type_embeddings.weight", (CONFIG["type_vocab_size"], size)
    layers = {"embeddings.LayerNorm": (size,)}
    for block in (f"encoder.layer.{at}." for at in range(CONFIG["num_hidden_layers"])):
        squares = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense")
        layers |= {f"{block}{name}": (size, size) for name in squares}
        layers |= {f"{block}intermediate.dense": (wide, size), f"{block}output.dense": (size, wide)}
        layers |= {f"{block}{name}.LayerNorm": (size,) for name in ("attention.output", "output")}
    for name, shape in layers.items():
        yield f"{name}.weight", shape
        yield f"{name}.bias", shape[:1]


def _value(name: str, drawn: torch.Tensor) -> torch.Tensor:
    """What keeps texts apart: different words, and little else."""
    if "LayerNorm" in name or name.endswith("bias"):
        return 0.01 * drawn + name.endswith("LayerNorm.weight")
    return 4 * drawn if "word_embeddings" in name else drawn


def write_image_extractor(folder: Path) -> str:
    """Writes EfficientNet-Lite0 with random weights, at 32 pixels; returns the extractor's SHA-256."""
    from worker.extractors.efficientnet import Encoder, SameConv

    folder.mkdir(parents=True)
    torch.manual_seed(0)
    encoder = Encoder()
    for module in encoder.modules():
        if isinstance(module, SameConv):
            nn.init.kaiming_normal_(module.weight)  # else an image is lost on its way through so many layers
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean = 0.1 * torch.randn(module.num_features)
            module.running_var = 0.5 + torch.rand(module.num_features)
    weights = safetensors.torch.save(encoder.state_dict())
    (folder / "model.safetensors").write_bytes(weights)
    manifest: dict[str, object] = {
        "format": "scrimp-extractor/1",
        "kind": "efficientnet_lite0",
        "image_size": 32,
        "mean": 0.5,
        "std": 0.5,
    }
    files = {"model.safetensors": hashlib.sha256(weights).hexdigest()}
    return _write_manifest(folder, manifest | {"files": files})
