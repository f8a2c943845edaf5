"""Equal tensors and metadata are equal bytes, in every process."""

from __future__ import annotations

import json

import safetensors.torch
import torch

from worker.models.tensors import saved

TENSORS = {"b": torch.arange(3.0), "a": torch.ones(2, 2)}


def test_metadata_are_sorted_and_the_file_is_still_one() -> None:
    metadata = {f"privacy.{name}": f"“{name}”" for name in "zyxwvutsrqponmlk"}
    content = saved(TENSORS, metadata)
    size = int.from_bytes(content[:8], "little")
    assert size % 8 == 0
    assert list(json.loads(content[8 : 8 + size])["__metadata__"]) == sorted(metadata)
    read = safetensors.torch.load(content)
    assert read.keys() == TENSORS.keys() and all(torch.equal(read[name], TENSORS[name]) for name in TENSORS)
    assert saved(TENSORS, {"format": "pt"}) == safetensors.torch.save(TENSORS, metadata={"format": "pt"})
