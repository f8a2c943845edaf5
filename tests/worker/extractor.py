"""Extractors, randomly initialized, in the files of real ones."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import safetensors.torch
import torch
from torch import nn

CONFIG = {
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
    """Writes the files; returns the extractor's SHA-256."""
    from worker.extractors.bert import Encoder, _file_name

    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        _file_name(name): _value(name, 0.5 * torch.randn(value.shape, generator=generator))
        for name, value in Encoder(CONFIG).state_dict().items()
    }
    contents = {
        "config.json": json.dumps(CONFIG).encode(),
        "model.safetensors": safetensors.torch.save(tensors),
        "vocab.txt": "".join(piece + "\n" for piece in PIECES).encode(),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    document = {
        "format": "scrimp-extractor/1",
        "kind": "bert_mean",
        "features": 8,
        "max_tokens": 16,
        "normalize": True,
        "lowercase": True,
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()},
    }
    text = json.dumps(document | manifest).encode()
    (folder / "extractor.json").write_bytes(text)
    return hashlib.sha256(text).hexdigest()


def _value(name: str, drawn: torch.Tensor) -> torch.Tensor:
    """What keeps texts apart: different words, and little else."""
    if "norm" in name or name.endswith("bias"):
        return 0.01 * drawn + name.endswith("norm.weight")
    return 4 * drawn if name.startswith("words") else drawn


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
    manifest = {"format": "scrimp-extractor/1", "kind": "efficientnet_lite0", "image_size": 32, "mean": 0.5, "std": 0.5}
    text = json.dumps(manifest | {"files": {"model.safetensors": hashlib.sha256(weights).hexdigest()}}).encode()
    (folder / "extractor.json").write_bytes(text)
    return hashlib.sha256(text).hexdigest()
