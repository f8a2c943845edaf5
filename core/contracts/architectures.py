"""Where the parts of a Hugging Face model are: a table for families that are tested, and a rule for other ones.

Known without torch. Whether a model's gradients are right is not decided here but by the worker, which tries each
model on random public records before it reads private ones (worker.clipping.examined).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Architecture:
    """Where the parts of a kind of model are.

    Attributes:
        task: the kind of data set's task that it is tuned on.
        body: the name prefix of all but the output layers. A file may leave it out.
        blocks: the name of a block's tensors, before the block's number.
        norm: the norm behind the last block; "" if there is none.
        head: the output layers.
        embedding: the matrix of the tokens, (vocabulary, d).
        targets: the layers that LoRA adapts by default, as in peft where it has a default.
        transposed: its linear layers hold (inputs, outputs).
        numbers: the names in config.json for the number of blocks, of positions, and d.
        widths: the names in config.json for the numbers of attention heads and of a feed-forward layer's units.
        tied: True if its output layer is the embedding's matrix where config.json does not say.
        places: the tensor of learned positions, (positions, d); "" if there is none.
        reads: what a record is.
    """

    task: Literal["language_model", "classification"]
    body: str
    blocks: str
    norm: str
    head: str
    embedding: str
    targets: tuple[str, ...]
    transposed: bool = False
    numbers: tuple[str, str, str] = ("num_hidden_layers", "max_position_embeddings", "hidden_size")
    widths: tuple[str, str] = ("num_attention_heads", "intermediate_size")
    tied: bool = False
    places: str = ""
    reads: Literal["tokens", "image"] = "tokens"


def _like_llama(targets: tuple[str, ...] = ("q_proj", "v_proj"), *, tied: bool = False) -> Architecture:
    """Most decoders since Llama have its names."""
    return Architecture(
        "language_model",
        "model.",
        "model.layers.",
        "model.norm.",
        "lm_head.",
        "model.embed_tokens.weight",
        targets,
        tied=tied,
    )


def _like_bert(body: str) -> Architecture:
    return Architecture(
        "classification",
        body,
        f"{body}encoder.layer.",
        "",
        "classifier.",
        f"{body}embeddings.word_embeddings.weight",
        ("query", "value"),
        places=f"{body}embeddings.position_embeddings.weight",
    )


def _like_vit(body: str) -> Architecture:
    return Architecture(
        "classification",
        body,
        f"{body}layers.",
        f"{body}layernorm.",
        "classifier.",
        f"{body}embeddings.patch_embeddings.projection.weight",
        ("q_proj", "v_proj"),
        numbers=("num_hidden_layers", "image_size", "hidden_size"),
        places=f"{body}embeddings.position_embeddings",
        reads="image",
    )


ARCHITECTURES: dict[str, Architecture] = {
    "gpt2": Architecture(
        "language_model",
        "transformer.",
        "transformer.h.",
        "transformer.ln_f.",
        "lm_head.",
        "transformer.wte.weight",
        ("c_attn",),
        transposed=True,
        numbers=("n_layer", "n_positions", "n_embd"),
        widths=("n_head", "n_inner"),
        tied=True,
        places="transformer.wpe.weight",
    ),
    "llama": _like_llama(),
    "mistral": _like_llama(),
    "qwen2": _like_llama(),
    "qwen3": _like_llama(),
    "phi3": _like_llama(("qkv_proj",)),
    "gemma": _like_llama(tied=True),
    "gemma2": _like_llama(tied=True),
    "gemma3_text": _like_llama(tied=True),
    "bert": _like_bert("bert."),
    "roberta": _like_bert("roberta."),
    "vit": _like_vit("vit."),
    "deit": _like_vit("deit."),
}

# The names in files of vision transformers from before transformers 5, and its own.
OLD_NAMES = (
    (re.compile(r"(^|\.)encoder\.layer\.(\d+)\."), r"\1layers.\2."),
    (re.compile(r"\.attention\.attention\.(query|key|value)\."), r".attention.\1."),
    (re.compile(r"\.attention\.query\."), ".attention.q_proj."),
    (re.compile(r"\.attention\.key\."), ".attention.k_proj."),
    (re.compile(r"\.attention\.value\."), ".attention.v_proj."),
    (re.compile(r"\.attention\.output\.dense\."), ".attention.o_proj."),
    (re.compile(r"\.intermediate\.dense\."), ".mlp.fc1."),
    (re.compile(r"(\d)\.output\.dense\."), r"\1.mlp.fc2."),
)
NUMBERED = re.compile(r"^((?:[A-Za-z_]\w*\.)+?)(\d+)\.")
# The names in config.json for the same number in different families.
BLOCKS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
POSITIONS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length")
WIDTH = ("hidden_size", "n_embd", "d_model", "dim")
HEADS = ("num_attention_heads", "n_head", "n_heads")
INNER = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "inner_dim")
OUTPUTS = ("lm_head.", "embed_out.", "output.")
# The attention layers that LoRA adapts by default: the first group of which a block has all.
ATTENTION = (("q_proj", "v_proj"), ("qkv_proj",), ("query_key_value",), ("c_attn",), ("query", "value"), ("Wqkv",))


def task_of(kind: str) -> str:
    """The kind of task that models of this kind are tuned on: those outside the table predict next tokens."""
    architecture = ARCHITECTURES.get(kind)
    return architecture.task if architecture else "language_model"


def layout_of(kind: str, config: Mapping[str, Any], shapes: Shapes) -> Architecture | None:
    """The parts of a language model outside the table, read off its file's names and sizes; None if they are not there.

    Args:
        kind: the `model_type` of its config.
        shapes: the shapes of its file's tensors, by the file's names.
    """
    if kind in ARCHITECTURES:
        return ARCHITECTURES[kind]
    classes = config.get("architectures")
    if not isinstance(classes, list) or not any(
        isinstance(each, str) and each.endswith("ForCausalLM") for each in classes
    ):
        return None
    numbers = tuple(_named(config, names) for names in (BLOCKS, POSITIONS, WIDTH))
    blocks = _blocks(shapes, config.get(numbers[0]))
    matrix = (config.get("vocab_size"), config.get(numbers[2]))
    square = [name for name, shape in shapes.items() if shape == matrix and blocks and not name.startswith(blocks)]
    inside = [name for name in square if not name.startswith(OUTPUTS)]
    if not blocks or len(inside) != 1:
        return None
    body = blocks.partition(".")[0] + "."
    heads = [name.rpartition(".")[0] + "." for name in square if name.startswith(OUTPUTS)]
    return Architecture(
        "language_model",
        body,
        blocks,
        _last_norm(body, blocks, shapes),
        heads[0] if heads else OUTPUTS[0],
        inside[0],
        _targets(blocks, shapes),
        numbers=(numbers[0], numbers[1], numbers[2]),
        widths=(_named(config, HEADS), _named(config, INNER)),
        tied=not heads,
    )


def canonical(architecture: Architecture, name: str) -> str:
    """A tensor's name in transformers' class. Files may lack the prefix, and old files use gamma and beta."""
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
    for old, new in OLD_NAMES if architecture.reads == "image" else ():
        name = old.sub(new, name)
    return (
        name
        if name.startswith((architecture.body, architecture.head, "lm_head.", "cls.", "score."))
        else architecture.body + name
    )


def _named(config: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """The first of these names that the config has, or the first one."""
    return next((name for name in names if name in config), names[0])


def _blocks(shapes: Shapes, count: object) -> str:
    """The prefix under which all blocks are numbered, that with the most tensors; "" if there is none."""
    numbers_of: dict[str, set[int]] = {}
    tensors: dict[str, int] = {}
    for name in shapes:
        if (match := NUMBERED.match(name)) and len(match[2]) < 6:
            numbers_of.setdefault(match[1], set()).add(int(match[2]))
            tensors[match[1]] = tensors.get(match[1], 0) + 1
    complete = [
        name for name, numbers in numbers_of.items() if len(numbers) == count and max(numbers) == len(numbers) - 1
    ]
    return max(complete, key=lambda name: tensors[name], default="")


def _last_norm(body: str, blocks: str, shapes: Shapes) -> str:
    """The norm behind the blocks: among the body's vectors outside the blocks, that with the shortest name."""
    outside = [name for name, shape in shapes.items() if name.startswith(body) and not name.startswith(blocks)]
    vectors = {name.rpartition(".")[0] for name in outside if len(shapes[name]) == 1}
    return min((f"{each}." for each in vectors), key=lambda name: (len(name), name), default="")


def _targets(blocks: str, shapes: Shapes) -> tuple[str, ...]:
    layers = {name.split(".")[-2] for name in shapes if name.startswith(blocks) and name.endswith(".weight")}
    return next((group for group in ATTENTION if layers.issuperset(group)), ())
