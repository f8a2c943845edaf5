"""Writes tensors so that equal tensors and metadata are equal bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping

import safetensors.torch
from torch import Tensor

ALIGNED = 8  # bytes: the header is padded with spaces to a multiple


def saved(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """A safetensors file whose metadata are sorted by name.

    The library writes them in an order that differs between processes. A replay compares the file's SHA-256.
    """
    content = safetensors.torch.save(dict(tensors), metadata=dict(metadata))
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header["__metadata__"] = dict(sorted(metadata.items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNED)
    return len(text).to_bytes(8, "little") + text + content[8 + size :]
