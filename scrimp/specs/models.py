"""Models of a job. Written by scripts/write_specs.py from core/contracts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from scrimp.spec import Spec


class ImageSize(Spec):
    """The size of a data set's images: height · width · channels numbers a record."""

    height: Annotated[int, Field(ge=1, le=4096)]
    width: Annotated[int, Field(ge=1, le=4096)]
    channels: Annotated[int, Field(ge=1, le=64)]


class CnnModel(Spec):
    """A convolutional network from the literature on private training.

    `image`: left out, 28 × 28 with one channel for `conv2`, 32 × 32 with three for `conv5` and `wrn16_4`. `channels`
    gives their position in the array. `weight_standardization` is for `wrn16_4`.
    """

    kind: Literal["cnn"] = "cnn"
    preset: Literal["conv2", "conv5", "wrn16_4"]
    image: ImageSize | None = None
    activation: Literal["tanh", "relu"] = "tanh"
    channels: Literal["first", "last"] = "first"
    input_scale: Annotated[float, Field(gt=0.0, le=1000000.0)] = 1.0
    weight_standardization: bool = False


class ImageInput(Spec):
    """How a record's numbers form an image. Public; nothing is fitted to the data.

    `layout`: the position of the channels in the array; one channel becomes three. `input_scale` brings values to 0 …
    1.
    """

    height: Annotated[int, Field(ge=1, le=4096)]
    width: Annotated[int, Field(ge=1, le=4096)]
    channels: Literal[1, 3] = 3
    layout: Literal["first", "last"] = "last"
    input_scale: Annotated[float, Field(gt=0.0, le=1000000.0)] = 1.0


class Words(Spec):
    """Hashed n-grams of words, L2-normalized and sparse. Nothing is fitted to the texts."""

    buckets: Annotated[int, Field(ge=2, le=4194304)] = 32768
    binary: bool = True
    ngrams: tuple[Annotated[int, Field(ge=1, le=5)], Annotated[int, Field(ge=1, le=5)]] = (1, 1)


class ExtractorRef(Spec):
    """The extractor that a job uses. `sha256` pins its content; if left out, it is filled in when the job is admitted.

    `features`, how many numbers its vectors have, and `length`, about their norm, are filled in too. `image`: for an
    extractor of images. `words`: for the extractor `hashed-words`, which every service has; a linear model on texts
    uses it unless it names another one.
    """

    name: Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    image: ImageInput | None = None
    words: Words | None = None
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    features: Annotated[int, Field(ge=1, le=4194304)] | None = None
    length: Annotated[float, Field(ge=1e-06, le=1000000.0)] | None = None


class GamModel(Spec):
    """An additive model of a table: the sum of one function of each column, and of named pairs of columns.

    Every number is cut into `bins` equal parts of its declared range, unless its column has bins of its own; the
    functions are steps, learned as a linear model. `pairs`: columns that act together, by name. The model's files have
    each function as a table.

    Source: Lou, Caruana & Gehrke 2012, "Intelligible models for classification and regression"; privately: Nori et al.
    2021, "Accuracy, interpretability, and differential privacy via explainable boosting" (by boosting).
    """

    kind: Literal["gam"] = "gam"
    extractor: None = None
    center: None = None
    bias: bool | None = None
    init: Literal["zeros"] = "zeros"
    bins: Annotated[int, Field(ge=2, le=256)] = 16
    pairs: Annotated[
        list[
            tuple[
                Annotated[str, Field(min_length=1, max_length=200)], Annotated[str, Field(min_length=1, max_length=200)]
            ]
        ],
        Field(max_length=100),
    ] = []


class GcnModel(Spec):
    """A graph network: a node's class from its own columns and those of at most `neighbours` nodes at each hop.

    A layer reads a node's numbers beside the mean of its neighbours': `hops` such layers, then linear layers of the
    other sizes of `hidden`, with an activation between all. With one hop and no `hidden` it is linear.

    A node more or less changes the gradients of all nodes that read it, so each is clipped to C / (2 N − 1) with
    N = 1 + neighbours + … + neighbours^hops: few neighbours mean little noise.

    Source: Daigavane et al. 2021, "Node-level differentially private graph neural networks"; layers as in Hamilton,
    Ying & Leskovec 2017, "Inductive representation learning on large graphs".
    """

    kind: Literal["gcn"] = "gcn"
    hops: Literal[1, 2] = 1
    neighbours: Annotated[int, Field(ge=1, le=64)] = 4
    hidden: Annotated[list[Annotated[int, Field(ge=1, le=4096)]], Field(max_length=8)] = []
    activation: Literal["tanh", "relu"] = "tanh"


class GraphModel(Spec):
    """A model of the user's own: a file that `scrimp.export_graph` wrote from a torch module.

    `upload` names a file that the key uploaded, by its SHA-256; `path` one of the models root. Give one of them.

    A record's numbers are the graph's one input, in the shape that the file says. The output has a number for each
    class, or one for regression. Training begins at the file's weights; those with `requires_grad=False` stay.

    What mixes records, such as BatchNorm in training mode, is refused by name.

    `sha256` pins the file's content. It and the other facts are filled in when the job is admitted.
    """

    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    parameters: Annotated[int, Field(ge=1)] | None = None
    trained: Annotated[int, Field(ge=1)] | None = None
    inputs: Annotated[int, Field(ge=1)] | None = None
    outputs: Annotated[int, Field(ge=1)] | None = None
    places: Annotated[int, Field(ge=1)] | None = None
    pass_numbers: Annotated[int, Field(ge=1)] | None = None
    kind: Literal["graph"] = "graph"
    path: (
        Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,99}(/[A-Za-z0-9][A-Za-z0-9._-]{0,99}){0,3}$")] | None
    ) = None
    upload: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None


class GruRecModel(Spec):
    """Gated recurrent units."""

    dim: Annotated[int, Field(ge=1, le=1024)] = 64
    max_length: Annotated[int, Field(ge=1, le=1024)] = 50
    tied: bool = True
    loss_positions: Literal["all", "last"] = "all"
    dropout: Annotated[float, Field(ge=0.0, le=0.9)] = 0.0
    layers: Annotated[int, Field(ge=1, le=8)] = 1
    kind: Literal["gru_rec"] = "gru_rec"


class Lora(Spec):
    """W x + (alpha/rank) B A x, with W frozen, A (rank, inputs) small Gaussians and B (outputs, rank) zeros.

    `targets`: the last parts of the names of the layers to adapt; left out, peft's default attention layers: `c_attn`,
    or `q_proj` and `v_proj`, or `query` and `value`; of Phi-3 `qkv_proj`.
    """

    rank: Annotated[int, Field(ge=1, le=256)] = 8
    alpha: Annotated[float, Field(gt=0.0, le=10000.0)] = 16.0
    targets: (
        Annotated[list[Annotated[str, Field(pattern="^[A-Za-z0-9_]{1,100}$")]], Field(min_length=1, max_length=20)]
        | None
    ) = None


class HfModel(Spec):
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
    path: Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,99}(/[A-Za-z0-9][A-Za-z0-9._-]{0,99}){0,3}$")]
    tuning: Literal["full", "head", "last_block", "bias", "lora"] = "lora"
    lora: Lora | None = None
    max_length: Annotated[int, Field(ge=2, le=4096)] = 128
    gradient_checkpointing: bool = False
    chat: bool = False
    image: ImageInput | None = None
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    architecture: Annotated[str, Field(pattern="^[A-Za-z0-9_-]{1,60}$")] | None = None
    parameters: Annotated[int, Field(ge=1)] | None = None
    trained: Annotated[int, Field(ge=1)] | None = None
    vocabulary: Annotated[int, Field(ge=1)] | None = None
    patches: Annotated[int, Field(ge=1)] | None = None
    pass_numbers: Annotated[int, Field(ge=1)] | None = None


class PrivateMean(Spec):
    """Centres features, x − m, by their private mean over the training part,

        m = (Σ clip(x_i) + N(0, (max_norm / noise_mu)² I)) / records,

    where a record's part is clipped to `max_norm` in ℓ₂. m is released once a job; in a study, once for all trials. The
    release is a charge of its own, noise_mu² of μ²: at δ = 1e-5 the default is ε = 0.05. m is delivered with the
    weights, as the tensor `mean`; predictions subtract it. Public data without privacy get no noise. `max_norm`: about
    a record's length, from public knowledge. Refused: hashed text, protected users, public side information.

    Source: Sun, Suresh & Menon 2024, "The importance of feature preprocessing for differentially private linear
    optimization".
    """

    max_norm: Annotated[float, Field(ge=1e-06, le=1000000.0)] = 1.0
    noise_mu: Annotated[float, Field(ge=1e-05, le=10.0)] = 0.0173


class LinearModel(Spec):
    """One linear layer: logits = x Wᵀ (+ b) for classification, one output for regression.

    `bias` null: admission fills in true for regression, whose targets rarely lie around zero, and false for
    classification.

    With an `extractor`, x is the output of this frozen public model for each record: a linear probe. On texts the
    default is `hashed-words`. With `center`, a private mean of the training part is subtracted from x.
    """

    kind: Literal["linear"] = "linear"
    extractor: ExtractorRef | None = None
    center: PrivateMean | None = None
    bias: bool | None = None
    init: Literal["zeros"] = "zeros"


class LstmRecModel(Spec):
    """Long short-term memory."""

    dim: Annotated[int, Field(ge=1, le=1024)] = 64
    max_length: Annotated[int, Field(ge=1, le=1024)] = 50
    tied: bool = True
    loss_positions: Literal["all", "last"] = "all"
    dropout: Annotated[float, Field(ge=0.0, le=0.9)] = 0.0
    layers: Annotated[int, Field(ge=1, le=8)] = 1
    kind: Literal["lstm_rec"] = "lstm_rec"


class MatrixFactorizationModel(Spec):
    """Ratings: f = middle of the scale + ⟨p_u, q_i⟩ (+ biases), squared error. p and q start as small Gaussians."""

    kind: Literal["matrix_factorization"] = "matrix_factorization"
    dim: Annotated[int, Field(ge=1, le=1024)] = 8
    bias: bool = True
    init_std: Annotated[float, Field(ge=1e-06, le=10.0)] = 0.1


class MlpModel(Spec):
    """Linear layers of these sizes with an activation between them, then one to the outputs.

    `dropout` is the share of each activation's numbers that a step leaves out, by masks that replay.

    `input_scale` first multiplies every feature: 1/255 for bytes. It is public, and nothing is fitted to the data.
    """

    kind: Literal["mlp"] = "mlp"
    hidden: Annotated[list[Annotated[int, Field(ge=1, le=16384)]], Field(min_length=1, max_length=16)]
    activation: Literal["tanh", "relu"] = "tanh"
    dropout: Annotated[float, Field(ge=0.0, le=0.9)] = 0.0
    input_scale: Annotated[float, Field(gt=0.0, le=1000000.0)] = 1.0


class ReAttention(Spec):
    """Removes from attention the bias due to noise in rare items' embeddings: S_i ← S_i / exp(‖q‖² σ_i² / 2d).

    σ_i² is the variance of key i, propagated from effective errors: `scale` · σ/L for each weight, and `scale` · σ/(L
    p_i) for item i's embedding, where p_i is the share of users whose sequences contain it. σ/L is the noise of one
    step's gradient at C = 1; `scale` turns it into units of parameters.

    `logits` subtracts the exponents before the softmax, relative to the smallest one. `paper` divides after it, and the
    result does not add up to 1. Exponents are at most `max_exponent`.

    `frequencies`: `public` takes the data set's `features.item_frequencies`, or counts on public data. `noisy` counts
    once, with noise of std √max_length / noise_mu; the job is charged for it.
    """

    mode: Literal["off", "logits", "paper"] = "off"
    frequencies: Literal["public", "noisy"] = "public"
    noise_mu: Annotated[float, Field(ge=1e-05, le=10.0)] | None = None
    scale: Annotated[float, Field(ge=1e-06, le=1000.0)] = 1.0
    max_exponent: Annotated[float, Field(gt=0.0, le=50.0)] = 10.0


class TransformerRecModel(Spec):
    """Causal self-attention over item embeddings. `dropout` follows the embedding and each half of a block."""

    dim: Annotated[int, Field(ge=1, le=1024)] = 64
    max_length: Annotated[int, Field(ge=1, le=1024)] = 50
    tied: bool = True
    loss_positions: Literal["all", "last"] = "all"
    dropout: Annotated[float, Field(ge=0.0, le=0.9)] = 0.0
    kind: Literal["transformer_rec"] = "transformer_rec"
    heads: Annotated[int, Field(ge=1, le=64)] = 1
    blocks: Annotated[int, Field(ge=1, le=24)] = 2
    re_attention: ReAttention = ReAttention()
