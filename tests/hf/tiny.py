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
SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_positions": 12, "n_embd": 8, "n_layer": 2, "n_head": 2, "bos_token_id": 0, "eos_token_id": 2},
    "llama": {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    | {"intermediate_size": 12, "max_position_embeddings": 12, "bos_token_id": 0, "eos_token_id": 2},
    "roberta": {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
    | {"max_position_embeddings": 14, "type_vocab_size": 1, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
    "bert": {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
    | {"max_position_embeddings": 12, "pad_token_id": 1},
}


def write(folder: Path, kind: str, **changes: Any) -> Path:
    """A model's folder: config.json, model.safetensors, tokenizer.json."""
    folder.mkdir(parents=True)
    model = made(kind, **changes)
    model.config.save_pretrained(folder)
    tensors = {name: value for name, value in model.state_dict().items() if not shared(model, name)}
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(kind)))
    return folder


def made(kind: str, **changes: Any) -> Any:
    """A model of its kind with all weights drawn at random, norms and biases too."""
    from transformers import AutoConfig, BertModel, GPT2LMHeadModel, LlamaForCausalLM, RobertaModel

    classes: dict[str, Any] = {"gpt2": GPT2LMHeadModel, "llama": LlamaForCausalLM, "bert": BertModel}
    config = AutoConfig.for_model(kind, **({"vocab_size": VOCABULARY} | SIZES[kind] | changes))
    model = classes.get(kind, RobertaModel)(config)
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
