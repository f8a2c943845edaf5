"""Tiny models of every kind, randomly initialized, in folders as the Hugging Face hub has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

WORDS = ["<s>", "<pad>", "</s>", "<unk>", *(f"w{number}" for number in range(28))]
VOCABULARY = len(WORDS)
WINDOWED = ["sliding_attention", "full_attention"]
SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_positions": 12, "n_embd": 8, "n_layer": 2, "n_head": 2, "bos_token_id": 0, "eos_token_id": 2},
    "llama": {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    | {"intermediate_size": 12, "max_position_embeddings": 12, "bos_token_id": 0, "eos_token_id": 2},
    "roberta": {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
    | {"max_position_embeddings": 14, "type_vocab_size": 1, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
    "bert": {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
    | {"max_position_embeddings": 12, "pad_token_id": 1},
}
LLAMA_LIKE: dict[str, Any] = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 12,
    "max_position_embeddings": 16,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 1,
}
GEMMA: dict[str, Any] = LLAMA_LIKE | {"head_dim": 4}
# Families beside the first four. Windows are shorter than the texts of the tests.
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": LLAMA_LIKE | {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
    "qwen3": LLAMA_LIKE | {"head_dim": 6},
    "mistral": LLAMA_LIKE | {"sliding_window": 3},
    "phi3": LLAMA_LIKE | {"sliding_window": 3},
    "gemma": GEMMA,
    "gemma2": GEMMA | {"sliding_window": 3, "query_pre_attn_scalar": 4},
    "gemma3_text": GEMMA | {"sliding_window": 3, "query_pre_attn_scalar": 4, "layer_types": WINDOWED},
}
VIT: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
VIT |= {"image_size": 6, "patch_size": 3, "num_channels": 3}
IMAGES: dict[str, dict[str, Any]] = {"vit": VIT, "deit": VIT}
# Outside the table: the files' names and sizes say where the parts are.
OTHERS: dict[str, dict[str, Any]] = {
    "mixtral": LLAMA_LIKE,
    "phi": LLAMA_LIKE | {"num_key_value_heads": 2},
    "gpt_neox": {name: value for name, value in LLAMA_LIKE.items() if name != "num_key_value_heads"},
}


def write(folder: Path, kind: str, **changes: Any) -> Path:
    """A model's folder: config.json, model.safetensors, tokenizer.json."""
    folder.mkdir(parents=True)
    model = made(kind, **changes)
    model.config.save_pretrained(folder)
    tensors = {name: value for name, value in model.state_dict().items() if not shared(model, name)}
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if kind in IMAGES:
        return folder
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(kind)))
    return folder


def made(kind: str, **changes: Any) -> Any:
    """A model of its kind with all weights drawn at random, norms and biases too."""
    from transformers import AutoConfig, AutoModelForCausalLM, BertModel, DeiTModel, RobertaModel, ViTModel

    classes: dict[str, Any] = {"bert": BertModel, "roberta": RobertaModel, "vit": ViTModel, "deit": DeiTModel}
    sizes = (SIZES | FAMILIES | OTHERS | IMAGES)[kind]
    words = {} if kind in IMAGES else {"vocab_size": VOCABULARY}
    config = AutoConfig.for_model(kind, **(words | sizes | changes))
    model = classes[kind](config) if kind in classes else AutoModelForCausalLM.from_config(config)
    model.config.architectures = [type(model).__name__]
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn(value.shape, generator=generator), alpha=0.2)
    return model


def shared(model: nn.Module, name: str) -> bool:
    """Whether this tensor is another one's, which the file holds."""
    return name == "lm_head.weight" and bool(getattr(model, "config", None).tie_word_embeddings)  # type: ignore[union-attr]


def tokenizer(kind: str) -> dict[str, Any]:
    """Words between spaces; BERT kinds put a text between <s> and </s>."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    made = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if kind in ("bert", "roberta"):
        made.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
        )
    document: dict[str, Any] = json.loads(made.to_str())
    return document
