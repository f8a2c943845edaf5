"""Loads a model's folder as a torch module of transformers' own class: offline, from safetensors, without pickle."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from core.contracts.architectures import ARCHITECTURES, canonical, task_of
from core.contracts.hf import HfModel, Lora, adapted, trains
from core.errors import PermanentError
from core.parts import model_folder
from core.parts.model_folder import NO_PARAMETERS, ModelFolder, UnfitModelError
from worker.models.hf.lora import adapt
from worker.models.hf.root_mean_square import plain_norms

# The names of settings of dropout, which is switched off: the library's would not replay.
DROPOUT = re.compile(r"drop")
# The keys read from config.json: those that define the model's function. Everything else keeps transformers' default,
# so that no file can turn on chunking, other outputs, or unknown code. For families outside the table these are the
# settings that transformers' own class of the family declares, less NEVER.
KEYS = frozenset(
    {"vocab_size", "bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings", "initializer_range"}
    | {"n_positions", "n_embd", "n_layer", "n_head", "n_inner", "activation_function", "layer_norm_epsilon"}
    | {"scale_attn_weights", "scale_attn_by_inverse_layer_idx"}
    | {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"}
    | {"hidden_act", "max_position_embeddings", "rms_norm_eps", "layer_norm_eps", "type_vocab_size", "head_dim"}
    | {"rope_theta", "rope_scaling", "rope_parameters", "attention_bias", "mlp_bias"}
    | {"rope_local_base_freq", "partial_rotary_factor", "original_max_position_embeddings"}
    | {"sliding_window", "use_sliding_window", "max_window_layers", "sliding_window_pattern", "layer_types"}
    | {"image_size", "patch_size", "num_channels", "qkv_bias"}
    | {"hidden_activation", "query_pre_attn_scalar", "final_logit_softcapping", "attn_logit_softcapping"}
)
NEVER = frozenset(
    {"use_cache", "is_decoder", "is_encoder_decoder", "add_cross_attention", "use_bidirectional_attention"}
)


class ModelMissingError(PermanentError):
    """The model is missing, differs from the admitted one, or cannot be loaded."""

    code = "model-missing"


def folder_of(root: Path, settings: HfModel) -> ModelFolder:
    """The folder that a job was admitted with.

    Raises:
        ModelMissingError: it is missing, or its content differs.
    """
    try:
        folder = model_folder.read(root, settings.path)
    except (OSError, UnfitModelError):
        raise ModelMissingError("the model is not in this worker's models root") from None
    if settings.sha256 is not None and folder.sha256 != settings.sha256:
        raise ModelMissingError("the model differs from the admitted one")
    return folder


def config_of(folder: ModelFolder, settings: HfModel, classes: tuple[str, ...]) -> Any:
    """The tuned model's configuration, as transformers has it."""
    architecture = folder.architecture
    made_of = _classes(folder.kind)
    keys = KEYS if folder.kind in ARCHITECTURES else _settings(made_of[0])
    document = {name: value for name, value in folder.config.items() if name in keys}
    document |= {"tie_word_embeddings": folder.tied} if architecture.task == "language_model" else {}
    if architecture.task == "classification":
        document |= {"id2label": dict(enumerate(classes)), "label2id": {name: at for at, name in enumerate(classes)}}
        document |= {"num_labels": len(classes), "problem_type": "single_label_classification"}
    if settings.tuning == "head" and architecture.task == "language_model":
        document["tie_word_embeddings"] = False
    config = made_of[0].from_dict(document)
    config.architectures = [made_of[1].__name__]
    return config


def _settings(config: type) -> frozenset[str]:
    """The settings that a file may decide: KEYS, and what a class of configurations declares itself, less NEVER."""
    mine = (each for each in config.__mro__ if each.__module__.startswith("transformers.models."))
    return KEYS | frozenset(name for each in mine for name in vars(each).get("__annotations__", {})) - NEVER


@dataclass(frozen=True)
class BaseClass:
    """transformers' own classes for a kind of encoder or language model without a head.

    Attributes:
        config, model: its configuration and its model.
        settings: the settings that a file may decide.
    """

    config: Any
    model: Any
    settings: frozenset[str]


def base_class(kind: str) -> BaseClass:
    """Takes seconds, once.

    Raises:
        ModelMissingError: transformers has no model of this kind.
    """
    _offline()
    import transformers  # noqa: PLC0415
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: PLC0415
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES  # noqa: PLC0415

    name = MODEL_MAPPING_NAMES.get(kind)
    if not isinstance(name, str) or kind not in CONFIG_MAPPING:
        raise ModelMissingError("transformers has no model of this type")
    config = CONFIG_MAPPING[kind]
    return BaseClass(config, getattr(transformers, name), _settings(config))


def load(folder: ModelFolder, settings: HfModel, classes: tuple[str, ...], dtype: torch.dtype) -> nn.Module:
    """The module to tune: weights from the folder, uninitialized adapters and classifiers, everything else frozen.

    Raises:
        ModelMissingError: the weights do not fit the model's class, or its positions depend on texts of before.
    """
    architecture, config = folder.architecture, config_of(folder, settings, classes)
    for name, value in list(vars(config).items()):
        if DROPOUT.search(name) and isinstance(value, int | float):
            setattr(config, name, 0.0)
    _check_shapes(folder, config)
    tensors = _tensors(folder, config, dtype)
    with quiet():
        model = _classes(folder.kind)[1].from_pretrained(
            None,
            config=config,
            state_dict=tensors,
            dtype=dtype,
            # Scores with a soft cap exist only in transformers' plain form of attention.
            attn_implementation="eager" if getattr(config, "attn_logit_softcapping", None) else "sdpa",
            output_loading_info=True,
        )
    loaded, report = model
    missing = {name for name in report["missing_keys"] if not name.startswith(architecture.head)}
    if missing or report["mismatched_keys"] or report["error_msgs"]:
        raise ModelMissingError("the model's weights do not fit its class")
    if remembers(loaded):
        raise ModelMissingError("the model's `dynamic` positions depend on other texts: use another model")
    loaded.config.pad_token_id = None  # otherwise transformers looks for it in every batch, only to warn
    if settings.gradient_checkpointing:
        for block in loaded.get_submodule(architecture.blocks.rstrip(".")):
            block.gradient_checkpointing = True
            block._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    return _tuned(loaded, folder, settings)


def remembers(model: nn.Module) -> bool:
    """Whether rotary positions of some layers depend on texts of before: the type `dynamic` grows with the longest one.

    transformers' modules decide by this attribute: a type, or one for each kind of layer. `longrope` changes in a pass
    too, but by the length of that pass's texts alone.
    """
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        if any("dynamic" in str(each) for each in (kinds.values() if isinstance(kinds, dict) else [kinds])):
            return True
    return False


def _check_shapes(folder: ModelFolder, config: Any) -> None:
    """Checks names and sizes of the files' tensors against the class, before any memory is allocated for them.

    Raises:
        ModelMissingError: they differ.
    """
    architecture = folder.architecture
    try:
        with torch.device("meta"):
            skeleton = _classes(folder.kind)[1](config)
    except Exception:  # a config may make transformers raise anything
        raise ModelMissingError("the model's config does not fit its class") from None
    wanted = {name: tuple(value.shape) for name, value in skeleton.state_dict(keep_vars=True).items()}
    fresh = architecture.task == "classification"  # its own head, whatever the file has
    mine = {
        name: shape for name, shape in folder.shapes.items() if name.startswith((architecture.body, architecture.head))
    }
    compared = {name: shape for name, shape in mine.items() if not (fresh and name.startswith(architecture.head))}
    strange = [name for name, shape in compared.items() if wanted.get(name) != shape and not NO_PARAMETERS.search(name)]
    if strange:
        raise ModelMissingError("the model's tensors do not fit its class")


def _tuned(model: nn.Module, folder: ModelFolder, settings: HfModel) -> nn.Module:
    architecture = folder.architecture
    plain_norms(model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trains(architecture, settings.tuning, folder.blocks - 1, name))
    if settings.tuning == "lora":
        lora = settings.lora or Lora()
        layers = adapted(architecture, lora, [name for name, _ in model.named_parameters()])
        adapt(model, layers, lora, transposed=architecture.transposed)
    trainable = {name: tuple(value.shape) for name, value in model.named_parameters() if value.requires_grad}
    if not trainable:
        raise ModelMissingError("there is nothing to train in this model")
    if architecture.task == "language_model" and trainable != folder.trained(settings, 1):
        raise ModelMissingError("the tensors to train differ from those that the job was admitted with")
    return model.train()


def _tensors(folder: ModelFolder, config: Any, dtype: torch.dtype) -> dict[str, Tensor]:
    """The files' tensors in the passes' type, by canonical names. Several files are read one after the other."""
    architecture, loaded = folder.architecture, dict[str, Tensor]()
    try:
        for name in folder.weights:
            with folder.copy(name) as weights:
                tensors = safetensors.torch.load_file(weights)
            while tensors:
                tensor, value = tensors.popitem()
                loaded[canonical(architecture, tensor)] = value.to(dtype) if value.is_floating_point() else value
    except (OSError, ValueError, UnfitModelError, safetensors.SafetensorError):
        raise ModelMissingError("the model's weights cannot be read") from None
    head = f"{architecture.head}weight"
    if architecture.task == "classification":  # the classifier starts fresh, even if the file has one
        return {name: value for name, value in loaded.items() if not name.startswith(architecture.head)}
    if config.tie_word_embeddings:
        loaded.pop(head, None)
    elif head not in loaded:
        loaded[head] = loaded[architecture.embedding].clone()
    return loaded


def _classes(kind: str) -> tuple[Any, Any]:
    """transformers' own classes for a kind: its configuration, and its model for the task. Takes seconds, once.

    Raises:
        ModelMissingError: transformers has no language model of this kind.
    """
    _offline()
    import transformers  # noqa: PLC0415
    from transformers import masking_utils  # noqa: PLC0415
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: PLC0415
    from transformers.models.auto.modeling_auto import (  # noqa: PLC0415
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
        MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    )

    if hasattr(masking_utils, "find_packed_sequence_indices"):
        # It reads a number in each pass, for which a GPU would have to be waited for. Our positions always count from
        # 0 in each text, so that its answer is always this one.
        masking_utils.find_packed_sequence_indices = _not_packed
    classifiers = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
    if kind in ARCHITECTURES and ARCHITECTURES[kind].reads == "image":
        classifiers = MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
    name = (classifiers if task_of(kind) == "classification" else MODEL_FOR_CAUSAL_LM_MAPPING_NAMES).get(kind)
    name = name[0] if isinstance(name, tuple) else name
    if not isinstance(name, str) or kind not in CONFIG_MAPPING:
        raise ModelMissingError("transformers has no language model of this type")
    return CONFIG_MAPPING[kind], getattr(transformers, name)


def _offline() -> None:
    """Set before transformers is first imported: no download, and no threads of the tokenizer's own."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _not_packed(position_ids: Tensor) -> None:
    """No row of a pass holds several texts."""


@contextmanager
def quiet() -> Iterator[None]:
    """Silences transformers' progress bar and report, which go to the terminal."""
    from transformers.utils import logging  # noqa: PLC0415

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        logging.enable_progress_bar()
