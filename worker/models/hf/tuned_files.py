"""A tuned model as files that transformers loads, or adapters that peft loads."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from core.contracts.hf import ADAPTER, Lora
from core.parts.model_folder import BESIDE, CONFIG, TOKENIZER, WEIGHTS, ModelFolder, UnfitModelError
from worker.models.base import Parameters
from worker.models.hf.hf_loading import config_of
from worker.models.hf.hf_model import HfTuning
from worker.models.hf.lora import PEFT, adapter_config, adapter_tensors
from worker.models.tensors import saved

ADAPTER_CONFIG = "adapter_config.json"


def tuned_files(model: HfTuning, parameters: Parameters, metadata: dict[str, str]) -> dict[str, bytes]:
    """The files by name: for LoRA the adapter's configuration and tensors, else the whole model, config and tokenizer.

    Weights are in float32; `metadata` is their file's header.
    """
    architecture = model.folder.architecture
    if model.spec.tuning == "lora":
        config = adapter_config(architecture, model.spec.lora or Lora(), model.spec.path)
        return {ADAPTER: _tensors(adapter_tensors(parameters), metadata), ADAPTER_CONFIG: _json(config)}
    document = json.loads(config_of(model.folder, model.spec, model.classes).to_json_string())
    return {
        WEIGHTS: _tensors(_whole(model, parameters), metadata),
        CONFIG: _json({**document, "dtype": "float32"}),
        **dict(_handed_on(model.folder)),
    }


def trained_tensors(model: HfTuning, tensors: dict[str, Tensor]) -> Parameters:
    """The tensors in a job's weights file that the job trained."""
    by_name = {name.removeprefix(PEFT): value for name, value in tensors.items()}
    return {name: by_name[name].double() for name in model.folder.trained(model.spec, model.outputs)}


def _whole(model: HfTuning, parameters: Parameters) -> dict[str, Tensor]:
    """All tensors. A shared tensor appears once, under its first name."""
    return dict(model.filled(parameters).named_parameters())


def _handed_on(folder: ModelFolder) -> Iterator[tuple[str, bytes]]:
    """The other files of the model's folder. Changed files are left out, so that the paid model is not lost."""
    for name in (TOKENIZER, *BESIDE):
        if name in folder.files:
            with contextlib.suppress(OSError, UnfitModelError):
                yield name, folder.content(name)


def _tensors(tensors: dict[str, Tensor], metadata: dict[str, str]) -> bytes:
    plain = {name: value.detach().to(torch.float32).contiguous() for name, value in tensors.items()}
    return saved(plain, metadata)


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, indent=2, sort_keys=True).encode() + b"\n"
