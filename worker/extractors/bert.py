"""A BERT encoder that makes one vector from a text: frozen, in evaluation mode, one text at a time.

It reads only safetensors, JSON and a vocabulary. No code and no pickle from an extractor ever runs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from app.contracts.extractor import BertManifest
from worker.extractors.files import loading, read_extractor
from worker.extractors.wordpiece import WordPiece


class Encoder(nn.Module):
    """BERT without its pooler; _file_name maps its tensors to the reference's names.

    It has no dropout layers, so there is nothing to switch off.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        size, eps = int(config["hidden_size"]), float(config["layer_norm_eps"])
        self.words = nn.Embedding(int(config["vocab_size"]), size)
        self.positions = nn.Embedding(int(config["max_position_embeddings"]), size)
        self.types = nn.Embedding(int(config["type_vocab_size"]), size)
        self.norm = nn.LayerNorm(size, eps=eps)
        heads, wide = int(config["num_attention_heads"]), int(config["intermediate_size"])
        self.blocks = nn.ModuleList(_Block(size, heads, wide, eps) for _ in range(int(config["num_hidden_layers"])))

    def forward(self, ids: Tensor) -> Tensor:
        """The last hidden states, (T, d), of one text's ids (T,)."""
        x: Tensor = self.norm(self.words(ids) + self.positions.weight[: len(ids)] + self.types.weight[0])
        for block in self.blocks:
            x = block(x)
        return x


class _Block(nn.Module):
    def __init__(self, size: int, heads: int, wide: int, eps: float) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.merge = (nn.Linear(size, size) for _ in range(4))
        self.widen, self.narrow = nn.Linear(size, wide), nn.Linear(wide, size)
        self.attention_norm, self.norm = nn.LayerNorm(size, eps=eps), nn.LayerNorm(size, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        layers = (self.query, self.key, self.value)
        q, k, v = (layer(x).unflatten(1, (self.heads, -1)).transpose(0, 1) for layer in layers)
        weights = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1)
        x = self.attention_norm(x + self.merge((weights @ v).transpose(0, 1).flatten(1)))
        made: Tensor = self.norm(x + self.narrow(F.gelu(self.widen(x))))
        return made


# The reference's layer names.
_EMBEDDINGS = {
    "words": "word_embeddings",
    "positions": "position_embeddings",
    "types": "token_type_embeddings",
    "norm": "LayerNorm",
}
_BLOCK = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "merge": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "widen": "intermediate.dense",
    "narrow": "output.dense",
    "norm": "output.LayerNorm",
}


class BertMean:
    """text → the mean of its tokens' last hidden states, float32 (d,); scaled to length 1 if the manifest says so.

    Guarantee: a record's features are a function of this record and the extractor's files alone. Each text goes through
    the encoder by itself and unpadded. In a batch, rounding would depend on the neighbours. That is small, but summed
    over all records it can exceed what the noise covers.

    Args:
        folder: the extractor's.
        sha256: its manifest's, as admitted.

    Raises:
        ExtractorMissingError: a file is missing or differs from the manifest, or the manifest differs.

    Source: Reimers & Gurevych 2019, "Sentence-BERT" (mean pooling).
    """

    def __init__(self, folder: Path, sha256: str) -> None:
        with loading():
            manifest, files = read_extractor(folder, sha256)
            if not isinstance(manifest, BertManifest):
                raise ValueError("this is not a text extractor")
            self._manifest = manifest
            config = json.loads(files["config.json"])
            # Otherwise it would fail at the first text that is long enough or has such a piece, which would be private.
            _check_sizes(manifest, config, files["vocab.txt"].decode())
            self._encoder = _loaded(config, files["model.safetensors"])
            self._tokens = WordPiece(
                files["vocab.txt"].decode(), lowercase=manifest.lowercase, max_tokens=manifest.max_tokens
            )

    @property
    def features(self) -> int:
        """d."""
        return self._manifest.features

    def __call__(self, text: str) -> Tensor:
        with torch.no_grad():
            vector = self._encoder(torch.tensor(self._tokens.ids(text))).mean(dim=0)
            return F.normalize(vector, dim=0) if self._manifest.normalize else vector

    def examples(self, generator: np.random.Generator) -> list[str]:
        """Random texts: one short, one of half the tokens that are read, one too long."""
        words, most = self._tokens.words, self._manifest.max_tokens
        return [" ".join(generator.choice(words, size)) for size in (2, most // 2, 2 * most)]


def _check_sizes(manifest: BertManifest, config: dict[str, Any], vocabulary: str) -> None:
    if manifest.max_tokens > int(config["max_position_embeddings"]) or manifest.features != int(config["hidden_size"]):
        raise ValueError("the manifest's sizes are not the encoder's")
    if len(vocabulary.rstrip("\n").split("\n")) > int(config["vocab_size"]):
        raise ValueError("the vocabulary has pieces that the encoder does not know")


def _loaded(config: dict[str, Any], weights: bytes) -> Encoder:
    if config.get("hidden_act") != "gelu" or config.get("position_embedding_type", "absolute") != "absolute":
        raise ValueError("this kind of encoder is not supported")
    encoder = Encoder(config)
    tensors = {name.removeprefix("bert."): value.float() for name, value in safetensors.torch.load(weights).items()}
    encoder.load_state_dict({name: tensors[_file_name(name)] for name in encoder.state_dict()})
    return encoder.eval().requires_grad_(False)


def _file_name(name: str) -> str:
    """blocks.0.query.weight → encoder.layer.0.attention.self.query.weight"""
    *block, layer, kind = name.split(".")
    if not block:
        return f"embeddings.{_EMBEDDINGS[layer]}.{kind}"
    number = block[1]
    return f"encoder.layer.{number}.{_BLOCK[layer]}.{kind}"
