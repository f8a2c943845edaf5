"""Loads a model's folder as a torch module of transformers' own class: offline, from safetensors, without pickle."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from app.contracts.hf import HfModel, Lora, adapted, canonical, trains
from app.errors import PermanentError
from app.formats import model_folder
from app.formats.model_folder import NO_PARAMETERS, WEIGHTS, ModelFolder, UnfitModelError
from worker.models.hf.lora import adapt

# Switched off: the library's dropout would not replay.
DROPOUTS = (
    "attn_pdrop",
    "embd_pdrop",
    "resid_pdrop",
    "attention_dropout",
    "attention_probs_dropout_prob",
    "hidden_dropout_prob",
    "classifier_dropout",
)


# The keys read from config.json: those that define the model's function. Everything else keeps transformers' default,
# so that no file can turn on chunking, other outputs, or unknown code.
KEYS = frozenset(
    {"vocab_size", "bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings", "initializer_range"}
    | {"n_positions", "n_embd", "n_layer", "n_head", "n_inner", "activation_function", "layer_norm_epsilon"}
    | {"scale_attn_weights", "scale_attn_by_inverse_layer_idx"}
    | {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"}
    | {"hidden_act", "max_position_embeddings", "rms_norm_eps", "layer_norm_eps", "type_vocab_size", "head_dim"}
    | {"rope_theta", "rope_scaling", "rope_parameters", "attention_bias", "mlp_bias"}
)


class ModelMissingError(PermanentError):
    """The model is missing, differs from the admitted one, or cannot be loaded."""

    code = "model-missing"


def folder_of(root: Path, asked: HfModel) -> ModelFolder:
    """The folder that a job was admitted with.

    Raises:
        ModelMissingError: it is missing, or its content differs.
    """
    try:
        found = model_folder.read(root, asked.path)
    except (OSError, UnfitModelError):
        raise ModelMissingError("the model is not in this worker's models root") from None
    if asked.sha256 is not None and found.sha256 != asked.sha256:
        raise ModelMissingError("the model differs from the admitted one")
    return found


def config_of(folder: ModelFolder, asked: HfModel, classes: tuple[str, ...]) -> Any:
    """The tuned model's configuration, as transformers has it."""
    of = folder.architecture
    document = {name: value for name, value in folder.config.items() if name in KEYS}
    if of.task == "classification":
        document |= {"id2label": dict(enumerate(classes)), "label2id": {name: at for at, name in enumerate(classes)}}
        document |= {"num_labels": len(classes), "problem_type": "single_label_classification"}
    if asked.tuning == "head" and of.task == "language_model":
        document["tie_word_embeddings"] = False
    made = _classes(folder.kind)[0].from_dict(document)
    made.architectures = [_classes(folder.kind)[1].__name__]
    return made


def load(folder: ModelFolder, asked: HfModel, classes: tuple[str, ...], dtype: torch.dtype) -> nn.Module:
    """The module to tune: weights from the folder, uninitialized adapters and classifiers, everything else frozen.

    Raises:
        ModelMissingError: the weights do not fit the model's class.
    """
    of, config = folder.architecture, config_of(folder, asked, classes)
    for name in DROPOUTS:
        if hasattr(config, name):
            setattr(config, name, 0.0)
    tensors = _tensors(folder, config)
    _check_shapes(folder, config, tensors)
    with _quiet():
        model = _classes(folder.kind)[1].from_pretrained(
            None,
            config=config,
            state_dict=tensors,
            dtype=dtype,
            attn_implementation="sdpa",
            output_loading_info=True,
        )
    made, report = model
    missing = {name for name in report["missing_keys"] if not name.startswith(of.head)}
    if missing or report["mismatched_keys"] or report["error_msgs"]:
        raise ModelMissingError("the model's weights do not fit its class")
    made.config.pad_token_id = None  # otherwise transformers looks for it in every batch, only to warn
    if asked.gradient_checkpointing:
        for block in made.get_submodule(of.blocks.rstrip(".")):
            block.gradient_checkpointing = True
            block._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    return _tuned(made, folder, asked)


def _check_shapes(folder: ModelFolder, config: Any, tensors: dict[str, Tensor]) -> None:
    """Checks names and sizes of the file's tensors against the class, before any memory is allocated for them.

    Raises:
        ModelMissingError: they differ.
    """
    of = folder.architecture
    try:
        with torch.device("meta"):
            skeleton = _classes(folder.kind)[1](config)
    except Exception:  # a config may make transformers raise anything
        raise ModelMissingError("the model's config does not fit its class") from None
    wanted = {name: tuple(value.shape) for name, value in skeleton.state_dict(keep_vars=True).items()}
    known = {canonical(of, name): tuple(value.shape) for name, value in tensors.items()}
    mine = {name: shape for name, shape in known.items() if name.startswith((of.body, of.head))}
    strange = [name for name, shape in mine.items() if wanted.get(name) != shape and not NO_PARAMETERS.search(name)]
    if strange:
        raise ModelMissingError("the model's tensors do not fit its class")


def _tuned(model: nn.Module, folder: ModelFolder, asked: HfModel) -> nn.Module:
    of = folder.architecture
    _plain_norms(model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trains(of, asked.tuning, folder.blocks - 1, name))
    if asked.tuning == "lora":
        lora = asked.lora or Lora()
        layers = adapted(of, lora, [name for name, _ in model.named_parameters()])
        adapt(model, layers, lora, transposed=of.transposed)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ModelMissingError("there is nothing to train in this model")
    return model.train()


def _plain_norms(model: nn.Module) -> None:
    """Replaces Llama's RMSNorm by torch's: the same function, but Llama's always computes in float32."""
    for name, layer in list(model.named_modules()):
        if type(layer).__name__ == "LlamaRMSNorm":
            plain = nn.RMSNorm(layer.weight.shape, eps=layer.variance_epsilon, device="meta")
            plain.weight = layer.weight
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, plain)


def _tensors(folder: ModelFolder, config: Any) -> dict[str, Tensor]:
    of = folder.architecture
    try:
        with folder.copy(WEIGHTS) as weights:
            found = safetensors.torch.load_file(weights)
    except (OSError, ValueError, UnfitModelError, safetensors.SafetensorError):
        raise ModelMissingError("the model's weights cannot be read") from None
    head = f"{of.head}weight"
    if of.task == "classification":  # the classifier starts fresh, even if the file has one
        return {name: value for name, value in found.items() if not name.startswith(of.head)}
    if not config.tie_word_embeddings and head not in found:
        embedding = next(name for name in (of.embedding, of.embedding.removeprefix(of.body)) if name in found)
        found[head] = found[embedding].clone()
    return found


def _classes(kind: str) -> tuple[Any, Any]:
    """transformers' classes for a kind: its configuration, and its model for the task. Takes seconds, once."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    from transformers import masking_utils  # noqa: PLC0415
    from transformers.models.bert import configuration_bert, modeling_bert  # noqa: PLC0415
    from transformers.models.gpt2 import configuration_gpt2, modeling_gpt2  # noqa: PLC0415
    from transformers.models.llama import configuration_llama, modeling_llama  # noqa: PLC0415
    from transformers.models.roberta import configuration_roberta, modeling_roberta  # noqa: PLC0415

    if hasattr(masking_utils, "find_packed_sequence_indices"):
        # It reads a number in each pass, for which a GPU would have to be waited for. Our positions always count from
        # 0 in each text, so that its answer is always this one.
        masking_utils.find_packed_sequence_indices = _not_packed
    return {
        "gpt2": (configuration_gpt2.GPT2Config, modeling_gpt2.GPT2LMHeadModel),
        "llama": (configuration_llama.LlamaConfig, modeling_llama.LlamaForCausalLM),
        "bert": (configuration_bert.BertConfig, modeling_bert.BertForSequenceClassification),
        "roberta": (configuration_roberta.RobertaConfig, modeling_roberta.RobertaForSequenceClassification),
    }[kind]


def _not_packed(position_ids: Tensor) -> None:
    """No row of a pass holds several texts."""


@contextmanager
def _quiet() -> Iterator[None]:
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
