"""The kinds of model: their use, their inputs, their layers. Known without torch, for quotes and admission."""

from __future__ import annotations

import math
from typing import Any, assert_never

from core.contracts.architectures import task_of
from core.contracts.base import Document
from core.contracts.cnn import FIRST, LEAST, MOST_NUMBERS, behind, blocks
from core.contracts.extractor import ExtractorRef
from core.contracts.gcn import GcnModel
from core.contracts.graph import GraphFacts, GraphModel
from core.contracts.hf import HfModel
from core.contracts.job_spec import (
    CnnModel,
    GamModel,
    GruRecModel,
    LinearModel,
    LstmRecModel,
    MatrixFactorizationModel,
    MlpModel,
    Model,
    RecommenderModel,
    RecurrentRecModel,
    TransformerRecModel,
)
from core.contracts.model_settings import RecordSizes

MAX_PARAMETERS = 50_000_000
MAX_TUNED = 200_000_000  # for a Hugging Face model
MAX_SCORES = 2**26  # for one record: positions · items


class Layer(Document):
    """One layer with parameters. The names of its tensors begin with `name`."""

    name: str
    kind: str
    shapes: dict[str, list[int]]

    @property
    def parameters(self) -> int:
        """How many numbers the layer holds."""
        return sum(math.prod(shape) for shape in self.shapes.values())


class ModelText(Document):
    """What the catalogue says of a kind of model. `takes`: kinds of features."""

    summary: str
    when_to_use: str
    tasks: tuple[str, ...] = ("classification", "regression")
    takes: tuple[str, ...]
    source: str


class Entry(ModelText):
    """A kind of model in the catalogue, with the class of its settings."""

    document: type[Model]

    @classmethod
    def of(cls, document: type[Model], *texts: Any, **members: Any) -> Entry:
        """Takes summary, when to use it, what it takes, source and, where they are others, tasks."""
        names = ("summary", "when_to_use", "takes", "source", "tasks")
        return cls(document=document, **dict(zip(names, texts, strict=False)), **members)


CATALOGUE: dict[str, Entry] = {
    "linear": Entry.of(
        LinearModel,
        "One linear layer from the features to the outputs, started at zero.",
        "The first thing to try: few parameters mean little noise. The only kind for hashed text, and the fastest.",
        ("hashed_text", "columns", "nodes", "table", "tensor", "text"),
        'Softmax or least-squares regression; privately on fixed features: Tramèr & Boneh 2021, "Differentially '
        'private learning needs better features (or much more data)".',
    ),
    "gam": Entry.of(
        GamModel,
        "An additive model of a table: a step function of each column, and of named pairs, which its card shows.",
        "Tables where people must see what the model learned, or where a number's effect is no line. It is "
        "`linear` with bins.",
        ("table",),
        'Lou, Caruana & Gehrke 2012, "Intelligible models for classification and regression".',
    ),
    "mlp": Entry.of(
        MlpModel,
        "Linear layers with an activation between them.",
        "Dense features with a non-linear relation to the label, and about ten thousand records or more.",
        ("columns", "nodes", "table", "tensor"),
        'Bounded activations: Papernot et al. 2021, "Tempered sigmoid activations for deep learning with differential '
        'privacy".',
    ),
    "cnn": Entry.of(
        CnnModel,
        "A convolutional network over images of a declared size: `conv2` and `conv5` are small, `wrn16_4` is a wide "
        "residual network with GroupNorm.",
        "Images, as a tensor of height · width · channels numbers a record: `image` gives the size if it is not the "
        "preset's own. Set `input_scale` to 1/255 for bytes. `wrn16_4` needs a GPU.",
        ("tensor",),
        "conv2: the MNIST model of TensorFlow Privacy's and Opacus' tutorials. conv5: the CIFAR-10 model of Opacus' "
        'examples. wrn16_4: De et al. 2022, "Unlocking high-accuracy differentially private image classification '
        'through scale".',
    ),
    "gcn": Entry.of(
        GcnModel,
        "A graph network over a node's columns and the means of those that it reads, one or two hops away.",
        "Nodes of a graph whose neighbours tell their class. Few `neighbours`: a node moves the gradients of all that "
        "read it, and noise grows with their number. Full batches, or `cyclic` ones.",
        ("nodes",),
        'Daigavane et al. 2021, "Node-level differentially private graph neural networks".',
    ),
    "graph": Entry.of(
        GraphModel,
        "A model of your own: a file that `scrimp.export_graph` wrote from a torch module.",
        "Where no other kind has your architecture. Linear layers, convolutions, embeddings and norms have rules of "
        "their own; anything else runs for each record alone. What mixes records is refused by name.",
        ("columns", "table", "tensor"),
        'Per-record gradients: Bu et al. 2023, "Differentially private optimization on large model at small cost".',
    ),
    "matrix_factorization": Entry.of(
        MatrixFactorizationModel,
        "A vector and a bias for each user and each item; a rating is predicted by their product.",
        "Ratings. Privately a small `dim`: each row of the model learns from few ratings.",
        ("interactions",),
        'Koren, Bell & Volinsky 2009, "Matrix factorization techniques for recommender systems".',
        tasks=("rating",),
    ),
    "transformer_rec": Entry.of(
        TransformerRecModel,
        "A causal transformer over a user's last items. It scores all items as the next one.",
        "Sequences of items. Privately `tied`: an item's row then learns from each occurrence, as input and as "
        "target. `loss_positions` `all` has the steadier gradients, `last` the faster steps.",
        ("interactions",),
        'Kang & McAuley 2018, "Self-attentive sequential recommendation"; privately with Phantom Clipping, DPFormer.',
        tasks=("next_item",),
    ),
    "gru_rec": Entry.of(
        GruRecModel,
        "Gated recurrent units over a user's last items. They score all items as the next one.",
        "Sequences of items, as a baseline: the state passes from item to item, which makes training slow.",
        ("interactions",),
        'Cho et al. 2014, "Learning phrase representations using RNN encoder-decoder"; for recommending, Hidasi et al. '
        '2016, "Session-based recommendations with recurrent neural networks".',
        tasks=("next_item",),
    ),
    "lstm_rec": Entry.of(
        LstmRecModel,
        "Long short-term memory over a user's last items. It scores all items as the next one.",
        "Sequences of items, as a baseline beside `gru_rec`; its cell has a third more parameters.",
        ("interactions",),
        'Hochreiter & Schmidhuber 1997, "Long short-term memory".',
        tasks=("next_item",),
    ),
    "hf": Entry.of(
        HfModel,
        "A Hugging Face model from a folder, tuned as a whole or in part: causal language models on next tokens, BERT "
        "and RoBERTa kinds as classifiers of texts, ViT and DeiT as classifiers of images.",
        "Texts and images, where a pretrained model is available. Privately LoRA, or the biases alone: few parameters "
        "mean little noise, and frozen parameters cost nothing.",
        ("text", "tensor"),
        'Li et al. 2022, "Large language models can be strong differentially private learners"; Yu et al. 2022, '
        '"Differentially private fine-tuning of language models"; Bu et al. 2022, "Bias-term only fine-tuning".',
        tasks=("language_model", "classification"),
    ),
}


def resolved(model: Model, task_kind: str) -> Model:
    """Returns the model with a linear one's intercept decided: by default regression has one.

    Admission calls this once, before pricing, so that price, plan, certificate and worker read the same choice.
    """
    if not isinstance(model, LinearModel) or model.bias is not None:
        return model
    return model.model_copy(update={"bias": task_kind == "regression"})


def layers(model: Model, features: int, outputs: int, rows: tuple[int, int] = (0, 0)) -> list[Layer]:
    """The layers that have parameters, in the order of the model's tensors.

    Args:
        model: the job's model specification.
        features: the data set's public number of features.
        outputs: its number of classes, or 1.
        rows: its declared numbers of users and items, for interactions.
    """
    stack: list[Layer]
    match model:
        case LinearModel():
            stack = [_dense("", model.inputs(features), outputs, bias=model.has_bias)]
        case MlpModel():
            sizes = [features, *model.hidden, outputs]
            apart = 3 if model.dropout else 2
            stack = [_dense(str(1 + apart * at), sizes[at], sizes[at + 1]) for at in range(len(sizes) - 1)]
        case CnnModel():
            stack = _convolutional(model, outputs)
        case GcnModel():
            stack = _graph(model, features, outputs)
        case MatrixFactorizationModel():
            stack = _factors(model, rows)
        case TransformerRecModel():
            stack = _recommender(model, rows[1], _transformer(model))
        case GruRecModel() | LstmRecModel():
            stack = _recommender(model, rows[1], _recurrent(model))
        case GraphModel():
            stack = [Layer(name="graph", kind="graph", shapes={"": [model.trained or 0]})]
        case HfModel():
            stack = [Layer(name=model.tuning, kind="hf", shapes={"": [model.trained or 0]})]
        case _:
            assert_never(model)
    return stack


def _graph(model: GcnModel, features: int, outputs: int) -> list[Layer]:
    sizes, stack = list(model.hidden), list[Layer]()
    if model.hops > 1:
        halves = (features - model.neighbours) // (1 + model.neighbours)
        stack = [_dense("0.linear", halves, sizes[0])]
        features = 2 * sizes.pop(0)
    sizes = [features, *sizes, outputs]
    start = len(stack)
    return [*stack, *(_dense(str(start + 2 * at), sizes[at], sizes[at + 1]) for at in range(len(sizes) - 1))]


def _factors(model: MatrixFactorizationModel, rows: tuple[int, int]) -> list[Layer]:
    names = (("user", rows[0]), ("item", rows[1]))
    biases = [Layer(name=f"{name}_bias", kind="embedding", shapes={"": [size]}) for name, size in names]
    factors = [Layer(name=f"{name}s", kind="embedding", shapes={"": [size, model.dim]}) for name, size in names]
    return factors + (biases if model.bias else [])


def _convolutional(model: CnnModel, outputs: int) -> list[Layer]:
    channels, (tall, wide) = model.size.channels, behind(model.preset, model.size)
    if model.preset == "conv2":
        flat = _dense("8", 32 * tall * wide, 32)
        return [_conv("1", channels, 16, 8), _conv("4", 16, 32, 4), flat, _dense("10", 32, outputs)]
    if model.preset == "wrn16_4":
        return _residual(channels, outputs)
    sizes = [channels, 32, 64, 64, 128]
    stack = [_conv(str(1 + 3 * at), sizes[at], sizes[at + 1], 3) for at in range(4)]
    return [*stack, _dense("14", 128, outputs)]


def _residual(channels: int, outputs: int) -> list[Layer]:
    stack, last = [_conv("1", channels, FIRST, 3, bias=False)], FIRST
    for at, block in enumerate(blocks(), start=2):
        stack += [_norm(f"{at}.norm1", block.inputs, "group_norm")]
        stack += [_conv(f"{at}.conv1", block.inputs, block.outputs, 3, bias=False)]
        stack += [_norm(f"{at}.norm2", block.outputs, "group_norm")]
        stack += [_conv(f"{at}.conv2", block.outputs, block.outputs, 3, bias=False)]
        if block.has_shortcut:
            stack += [_conv(f"{at}.shortcut", block.inputs, block.outputs, 1, bias=False)]
        last = block.outputs
    end = 2 + len(list(blocks()))
    return [*stack, _norm(str(end), last, "group_norm"), _dense(str(end + 4), last, outputs)]


def _recommender(model: RecommenderModel, items: int, between: list[Layer]) -> list[Layer]:
    """Row 0 of the item table is padding. An untied output is a layer of its own."""
    table = {"weight": [items + 1, model.dim]}
    stack = [Layer(name="embedding", kind="embedding", shapes=table), *between]
    return stack if model.tied else [*stack, Layer(name="output", kind="item_loss", shapes=table)]


def _transformer(model: TransformerRecModel) -> list[Layer]:
    dim = model.dim
    stack = [Layer(name="positions", kind="positions", shapes={"weight": [model.max_length, dim]})]
    for block in (f"blocks.{number}." for number in range(model.blocks)):
        stack += [_norm(block + "attention_norm", dim), _norm(block + "norm", dim)]
        stack += [_dense(block + name, dim, dim) for name in ("query", "key", "value", "merge", "widen", "narrow")]
    return [*stack, _norm("norm", dim)]


def _recurrent(model: RecurrentRecModel) -> list[Layer]:
    names = [f"layers.{number}.{name}" for number in range(model.layers) for name in ("inputs", "states")]
    return [_dense(name, model.dim, model.gates * model.dim) for name in names]


def _norm(name: str, features: int, kind: str = "layer_norm") -> Layer:
    return Layer(name=name, kind=kind, shapes={"weight": [features], "bias": [features]})


def _dense(name: str, inputs: int, outputs: int, *, bias: bool = True) -> Layer:
    return Layer(name=name, kind="linear", shapes={"weight": [outputs, inputs]} | ({"bias": [outputs]} if bias else {}))


def _conv(name: str, inputs: int, outputs: int, kernel: int, *, bias: bool = True) -> Layer:
    shapes = {"weight": [outputs, inputs, kernel, kernel]} | ({"bias": [outputs]} if bias else {})
    return Layer(name=name, kind="conv2d", shapes=shapes)


def refusal(
    model: Model, task_kind: str, features_kind: str, features: int, outputs: int, rows: tuple[int, int] = (0, 0)
) -> tuple[str, str] | None:
    """Why a model does not fit a data set, as (pointer, detail); None if it fits. From public numbers."""
    entry = CATALOGUE[model.kind]
    if task_kind not in entry.tasks:
        wanted = " or ".join(f"`{kind}`" for kind in entry.tasks)
        return "/model/kind", f"a `{model.kind}` model needs a task of kind {wanted}; this data set's is `{task_kind}`"
    if isinstance(model, LinearModel) and (wrong := _no_input(model.extractor, features_kind, features)):
        return wrong
    if features_kind not in entry.takes:
        wanted = " or ".join(f"`{kind}`" for kind in entry.takes)
        return "/model/kind", f"a `{model.kind}` model needs features of kind {wanted}; these are `{features_kind}`"
    if isinstance(model, HfModel) and model.architecture and task_of(model.architecture) != task_kind:
        return "/model/path", f"a `{model.architecture}` model cannot be tuned on tasks of kind `{task_kind}`"
    if wrong := _no_records(model, features_kind, features, outputs):
        return wrong
    return _too_large(model, features, outputs, rows)


def _no_records(model: Model, features_kind: str, features: int, outputs: int) -> tuple[str, str] | None:
    """Why a data set's records are not what a model of texts or images reads."""
    if isinstance(model, HfModel):
        return _no_tuning(model, features_kind, features)
    if isinstance(model, GraphModel):
        wrong = _no_graph(model.facts, features, outputs)
        return None if wrong is None else ("/model/path" if model.upload is None else "/model/upload", wrong)
    return _no_image(model, features) if isinstance(model, CnnModel) else None


def _no_graph(model: GraphFacts, features: int, outputs: int) -> str | None:
    """Why a graph does not read a data set's records, or holds too much of one."""
    if model.inputs is not None and model.inputs != features:
        return f"the graph reads {model.inputs} numbers; this data set's records have {features}"
    if model.outputs is not None and model.outputs != outputs:
        return f"the graph gives {model.outputs} numbers for a record; this data set needs {outputs}"
    if model.pass_numbers is not None and model.pass_numbers > MOST_NUMBERS:
        return f"a pass would hold {model.pass_numbers} numbers for one record; at most {MOST_NUMBERS} are allowed"
    return None


def _no_tuning(model: HfModel, features_kind: str, features: int) -> tuple[str, str] | None:
    """Why a Hugging Face model cannot read a data set's features."""
    if (features_kind == "tensor") != (model.image is not None):
        detail = "models of images need features of kind `tensor`, and models of texts `text`"
        return "/model/path", f"{detail}; this data set's are `{features_kind}`"
    if model.image is not None and model.image.numbers != features:
        detail = f"this image has {model.image.numbers} numbers; this data set's records have {features}"
        return "/model/image", detail
    return None


def _no_image(model: CnnModel, features: int) -> tuple[str, str] | None:
    """Why images of this size do not suit a convolutional network, or this data set."""
    size, smallest = model.size, LEAST[model.preset]
    if features != size.numbers:
        detail = f"images of {size.shown} have {size.numbers} numbers; this data set's records have {features}"
        pointer = "/model/image" if model.image else "/model/preset"
        return pointer, f"{detail}: give `image` as height, width and channels"
    if min(size.height, size.width) < smallest or min(behind(model.preset, size)) < 1:
        return (
            "/model/image",
            f"`{model.preset}` needs at least {smallest} × {smallest} pixels; these images are {size.shown}",
        )
    if model.weight_standardization and model.preset != "wrn16_4":
        return "/model/weight_standardization", "only `wrn16_4` has weight standardization: leave it out"
    numbers = model.held(RecordSizes(features, 1, False, 1))
    if numbers > MOST_NUMBERS:
        detail = (
            f"a pass would hold {numbers} numbers for one image, {numbers * 4 >> 20} MiB; at most "
            f"{MOST_NUMBERS} are allowed"
        )
        return "/model/image", detail
    return None


def _no_input(extractor: ExtractorRef | None, features_kind: str, features: int) -> tuple[str, str] | None:
    """Why an extractor, or the lack of one, does not fit a data set's features."""
    image = extractor.image if extractor else None
    fits = features_kind == ("tensor" if image else "text") if extractor else features_kind != "text"
    if not fits:
        detail = "texts need an extractor, and extractors read features of kind `text`, or `tensor` for images"
        return "/model/extractor", f"{detail} (GET /v1/extractors); this data set's are `{features_kind}`"
    if image and image.numbers != features:
        return (
            "/model/extractor/image",
            f"this image has {image.numbers} numbers; this data set's records have {features}",
        )
    return None


def _too_large(model: Model, features: int, outputs: int, rows: tuple[int, int]) -> tuple[str, str] | None:
    if isinstance(model, RecommenderModel):
        scores = (model.max_length if model.loss_positions == "all" else 1) * (rows[1] + 1)
        if scores > MAX_SCORES:
            detail = "shorten it, or compute the loss at the `last` position only"
            return "/model/max_length", f"a record would have {scores} scores, at most {MAX_SCORES}: {detail}"
    parameters = sum(layer.parameters for layer in layers(model, features, outputs, rows))
    limit = MAX_TUNED if isinstance(model, HfModel) else MAX_PARAMETERS
    if not isinstance(model, LinearModel) and parameters > limit:
        return "/model", f"the model has {parameters} parameters; at most {limit} are allowed"
    return None
