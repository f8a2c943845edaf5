"""Fine-tuning a Hugging Face model: the job's specification, and which of the model's tensors it trains.

Tensors have the names that transformers' own classes give them. Quotes and the worker use the same tables.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from core.contracts.architectures import Architecture, task_of
from core.contracts.base import Document
from core.contracts.extractor import ImageInput, Sha256Hex
from core.contracts.model_settings import ImageForm, ModelSettings, RecordSizes

Tuning = Literal["full", "head", "last_block", "bias", "lora"]
Shapes = Mapping[str, tuple[int, ...]]
# Folders of a models root: `distilgpt2`, `HuggingFaceTB/SmolLM2-135M`. No part is `..` or hidden.
ModelPath = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}(/[A-Za-z0-9][A-Za-z0-9._-]{0,99}){0,3}$")
]
LayerName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_]{1,100}$")]
WEIGHTS, ADAPTER = "model.safetensors", "adapter_model.safetensors"  # the delivered files


class Lora(Document):
    """W x + (alpha/rank) B A x, with W frozen, A (rank, inputs) small Gaussians and B (outputs, rank) zeros.

    `targets`: the last parts of the names of the layers to adapt; left out, peft's default attention layers: `c_attn`,
    or `q_proj` and `v_proj`, or `query` and `value`; of Phi-3 `qkv_proj`.
    """

    rank: Annotated[int, Field(strict=True, ge=1, le=256)] = 8
    alpha: Annotated[float, Field(strict=True, gt=0.0, le=1e4)] = 16.0
    targets: Annotated[list[LayerName], Field(min_length=1, max_length=20)] | None = None


class HfModel(ModelSettings):
    """A Hugging Face model from a folder of the models root: causal language models (GPT-2, Llama, Mistral, Qwen,
    Gemma, Phi-3 and others) for task `language_model`, BERT and RoBERTa kinds for `classification` of texts, ViT and
    DeiT for `classification` of images.

    `tuning`: all parameters; the output layer alone (where it shares the embedding's matrix, it gets one of its own);
    the last block and the norm behind it; biases alone (Llama has none); or LoRA, 0.1 to 1 % of the parameters. Every
    tuning trains a classifier too. `full` has the noise of all parameters. The backward pass of `lora` goes through the
    model, that of `last_block` through the block, `head` has none; `bias` keeps no activation of a linear layer.

    A record is cut to `max_length` tokens and padded to that length. There is no dropout: its masks would have to
    replay. `gradient_checkpointing` recomputes each block's activations instead of keeping them: a third slower.

    `chat`, for data with prompts: the tokenizer's own chat template (`chat_template.jinja`, or `chat_template` in
    `tokenizer_config.json`), in Jinja's sandbox, without files or a clock, writes the prompt as the user's message and
    the answer as the assistant's. Otherwise the answer follows the prompt as it is. A template that is missing, fails
    on three public pairs or leaves the answer out is refused; a record that it refuses adds nothing.

    `image`, for ViT and DeiT: how a record's numbers form an image. It is resized bilinearly to the model's own size.

    `sha256` pins the folder's content. It and the fields after it are filled in when the job is admitted.
    """

    kind: Literal["hf"] = "hf"
    path: ModelPath
    tuning: Tuning = "lora"
    lora: Lora | None = None  # for tuning `lora` alone; null: its defaults
    max_length: Annotated[int, Field(strict=True, ge=2, le=4096)] = 128
    gradient_checkpointing: bool = False
    chat: bool = False
    image: ImageInput | None = None
    sha256: Sha256Hex | None = None
    architecture: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,60}$")] | None = None
    parameters: Annotated[int, Field(ge=1)] | None = None
    trained: Annotated[int, Field(ge=1)] | None = None
    vocabulary: Annotated[int, Field(ge=1)] | None = None
    patches: Annotated[int, Field(ge=1)] | None = None  # positions of an image
    pass_numbers: Annotated[int, Field(ge=1)] | None = None  # about how many numbers a pass holds for one record

    @model_validator(mode="after")
    def _adapts(self) -> HfModel:
        if self.lora is not None and self.tuning != "lora":
            raise ValueError("give `lora` only with tuning `lora`")
        return self

    def held(self, sizes: RecordSizes) -> int | None:
        """See ModelSettings.held."""
        return self.pass_numbers

    def peak(self) -> float:
        """See ModelSettings.peak: causal models score every token, and hold the scores more than once."""
        causal = self.architecture is not None and task_of(self.architecture) == "language_model"
        return 4.5 if causal else 1.0

    @property
    def most_tokens(self) -> int:
        """The most that is kept of a record's text; 0: records are images."""
        return 0 if self.image is not None else self.max_length + 1

    def positions(self) -> int:
        """See ModelSettings.positions."""
        return self.patches or 2 * self.max_length

    def pixels(self) -> ImageForm | None:
        """See ModelSettings.pixels."""
        image = self.image
        if image is None:
            return None
        return ImageForm(image.height, image.width, image.channels, channels_last=image.layout == "last")


def trains(architecture: Architecture, tuning: Tuning, last_block: int, name: str) -> bool:
    """Returns True if a tensor of the model itself is trained. All of LoRA's own tensors are trained too.

    Args:
        last_block: its number, from 0.
    """
    if tuning == "full":
        return True
    if name.startswith(architecture.head) and (architecture.task == "classification" or tuning == "head"):
        return True
    if tuning == "last_block":
        norm = bool(architecture.norm) and name.startswith(architecture.norm)
        # BERT's pooler lies between the last block and the classifier.
        return norm or name.startswith((f"{architecture.blocks}{last_block}.", f"{architecture.body}pooler."))
    return tuning == "bias" and name.endswith(".bias")


def adapted(architecture: Architecture, lora: Lora, names: Iterable[str]) -> list[str]:
    """The layers that get a LoRA, by the names of their tensors."""
    targets = set(lora.targets or architecture.targets)
    layers = (name.removesuffix(".weight") for name in names if name.endswith(".weight"))
    return [layer for layer in layers if layer.rpartition(".")[2] in targets and layer.startswith(architecture.blocks)]


def trained(architecture: Architecture, settings: HfModel, shapes: Shapes, blocks: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all trained tensors.

    Args:
        shapes: the shapes of all the model's tensors by canonical names, output layers included.
        blocks: how many blocks the model has.
    """
    trained_shapes = {
        name: shape for name, shape in shapes.items() if trains(architecture, settings.tuning, blocks - 1, name)
    }
    if settings.tuning == "lora":
        lora = settings.lora or Lora()
        for layer in adapted(architecture, lora, shapes):
            outputs, inputs = shapes[f"{layer}.weight"][:: -1 if architecture.transposed else 1]
            trained_shapes[f"{layer}.lora_A.weight"] = (lora.rank, inputs)
            trained_shapes[f"{layer}.lora_B.weight"] = (outputs, lora.rank)
    return trained_shapes


def weights_file(model: ModelSettings) -> str:
    """The delivered file that holds the trained tensors of a job's model."""
    return ADAPTER if isinstance(model, HfModel) and model.tuning == "lora" else WEIGHTS


def rank_groups(vocabulary: int) -> dict[str, range]:
    """Groups tokens by their ids, by name: up to 255, 1,023, 4,095, and so on.

    Tokenizers for GPT-2 and Llama number tokens in the order of their merges, roughly from frequent to rare in the
    texts that they were made from. This is public knowledge. Single bytes come before them; in SentencePiece (Llama 2)
    single characters come last, including frequent ones.
    """
    edges = [0, *(256 * 4**k for k in range(12) if 256 * 4**k < vocabulary), vocabulary]
    return {f"rank-{low}-{end - 1}": range(low, end) for low, end in itertools.pairwise(edges)}


def size(shapes: Shapes) -> int:
    """How many numbers tensors with these shapes hold."""
    return sum(math.prod(shape) for shape in shapes.values())
