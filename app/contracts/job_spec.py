"""JobSpec: what an analyst asks for. Each part is a discriminated union, made for many kinds."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from app.contracts.base import NO_NUL, DeltaValue, Document, EpsilonValue, NoiseMultiplier, Steps
from app.contracts.extractor import ExtractorRef
from app.contracts.hf import ARCHITECTURES, HfModel
from app.contracts.hpo import Hpo
from app.contracts.optimizers import Optimizer

# Of clipping norms and loss bounds: far from where floats lose digits or underflow, so that noise is noise.
Bound = Annotated[float, Field(strict=True, ge=1e-6, le=1e6)]


class PrivateMean(Document):
    """Features are centred, x − m, by their own private mean over the training part,

        m = (Σ clip(x_i) + N(0, (max_norm / noise_mu)² I)) / records,

    where a record counts for at most `max_norm` in ℓ₂. It is released once a run and charged by itself, noise_mu² of
    μ²: at δ = 1e-5 the default is ε = 0.05. m is handed out with the weights. On public data without privacy there is
    no noise.

    Source: Sun, Suresh & Menon 2024, "The importance of feature preprocessing for differentially private linear
    optimization".
    """

    max_norm: Bound = 1.0
    noise_mu: Annotated[float, Field(strict=True, ge=1e-5, le=10.0)] = 0.0173


class LinearModel(Document):
    """One linear layer: logits = x Wᵀ (+ b) for classification, one output for regression.

    With an `extractor` x is what this frozen, public model makes of each record: a linear probe. With `center` it is
    less a private mean of the training part.
    """

    kind: Literal["linear"] = "linear"
    extractor: ExtractorRef | None = None
    center: PrivateMean | None = None
    bias: bool = False
    init: Literal["zeros"] = "zeros"


Activation = Literal["tanh", "relu"]
Dropout = Annotated[float, Field(strict=True, ge=0.0, le=0.9)]
InputScale = Annotated[float, Field(strict=True, gt=0.0, le=1e6)]


class MlpModel(Document):
    """Linear layers of these sizes with an activation between them, then one to the outputs.

    `dropout` is the share of each activation's numbers that a step leaves out, by masks that replay.

    `input_scale` multiplies every feature first: 1/255 for bytes. It is public, and nothing is fitted to the data.
    """

    kind: Literal["mlp"] = "mlp"
    hidden: Annotated[list[Annotated[int, Field(strict=True, ge=1, le=16_384)]], Field(min_length=1, max_length=16)]
    activation: Activation = "tanh"
    dropout: Dropout = 0.0
    input_scale: InputScale = 1.0


class CnnModel(Document):
    """A convolutional network from the literature on private training, made for one size of image.

    `conv2`: 28 × 28, one channel. `conv5`: 32 × 32, three channels; `channels` says where they stand in the array.
    """

    kind: Literal["cnn"] = "cnn"
    preset: Literal["conv2", "conv5"]
    activation: Activation = "tanh"
    channels: Literal["first", "last"] = "first"
    input_scale: InputScale = 1.0


class MatrixFactorizationModel(Document):
    """Ratings: f = middle of the scale + ⟨p_u, q_i⟩ (+ biases), squared error. p and q start as small Gaussians."""

    kind: Literal["matrix_factorization"] = "matrix_factorization"
    dim: Annotated[int, Field(strict=True, ge=1, le=1024)] = 8
    bias: bool = True
    init_std: Annotated[float, Field(strict=True, ge=1e-6, le=10.0)] = 0.1


class RecommenderModel(Document):
    """The next item from a user's `max_length` last ones.

    `tied`: items are scored by their embeddings. `loss_positions`: the loss is the mean over all positions, or that of
    the last one alone.
    """

    dim: Annotated[int, Field(strict=True, ge=1, le=1024)] = 64
    max_length: Annotated[int, Field(strict=True, ge=1, le=1024)] = 50
    tied: bool = True
    loss_positions: Literal["all", "last"] = "all"
    dropout: Dropout = 0.0


class ReAttention(Document):
    """Takes from attention what the noise in rare items' embeddings adds to it: S_i ← S_i / exp(‖q‖² σ_i² / 2d).

    σ_i² is the variance of key i, propagated from effective errors: `scale` · σ/L of each weight, and of item i's
    embedding `scale` · σ/(L p_i), where p_i is the share of users in whose sequences it is. σ/L is the noise of one
    step's gradient, where C is 1; `scale` turns it into units of parameters.

    `logits` subtracts the exponents before the softmax, from the smallest one on; `paper` divides after it, and what
    is left does not add up to 1. Exponents are at most `max_exponent`.

    `frequencies`: `public` are the data set's `features.item_frequencies`, or counted where the data are public;
    `noisy` are counted once, with noise of std √max_length / noise_mu, which the job is charged for.
    """

    mode: Literal["off", "logits", "paper"] = "off"
    frequencies: Literal["public", "noisy"] = "public"
    noise_mu: Annotated[float, Field(strict=True, ge=1e-5, le=10.0)] | None = None
    scale: Annotated[float, Field(strict=True, ge=1e-6, le=1e3)] = 1.0
    max_exponent: Annotated[float, Field(strict=True, gt=0.0, le=50.0)] = 10.0

    @model_validator(mode="after")
    def _priced(self) -> ReAttention:
        if (self.noise_mu is not None) != (self.mode != "off" and self.frequencies == "noisy"):
            raise ValueError("`noise_mu` goes with `frequencies` of kind `noisy`, and `mode` is not `off`")
        return self


class TransformerRecModel(RecommenderModel):
    """Causal self-attention over item embeddings. `dropout` is after the embedding and after each half of a block."""

    kind: Literal["transformer_rec"] = "transformer_rec"
    heads: Annotated[int, Field(strict=True, ge=1, le=64)] = 1
    blocks: Annotated[int, Field(strict=True, ge=1, le=24)] = 2
    re_attention: ReAttention = ReAttention()

    @model_validator(mode="after")
    def _divides(self) -> TransformerRecModel:
        if self.dim % self.heads:
            raise ValueError("`heads` divides `dim`")
        return self


class RecurrentRecModel(RecommenderModel):
    """Recurrent cells over item embeddings, `layers` of them. `dropout` is after the embedding and after each layer."""

    layers: Annotated[int, Field(strict=True, ge=1, le=8)] = 1


class GruRecModel(RecurrentRecModel):
    """Gated recurrent units."""

    kind: Literal["gru_rec"] = "gru_rec"


class LstmRecModel(RecurrentRecModel):
    """Long short-term memory."""

    kind: Literal["lstm_rec"] = "lstm_rec"


Model = (
    LinearModel
    | MlpModel
    | CnnModel
    | MatrixFactorizationModel
    | TransformerRecModel
    | GruRecModel
    | LstmRecModel
    | HfModel
)


class JobPrivacy(Document):
    """Either a target ε, to which σ is calibrated, or σ, from which ε follows."""

    target_epsilon: EpsilonValue | None = None
    noise_multiplier: NoiseMultiplier | None = None
    target_delta: DeltaValue | None = None  # default: the cap's δ

    @model_validator(mode="after")
    def _one_of(self) -> JobPrivacy:
        if (self.target_epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("give either `target_epsilon` or `noise_multiplier`")
        return self


class AdaptiveNorm(Document):
    """C follows a quantile of the gradients' norms: C ← C · exp(−η (b̃ − γ)) after each step.

    b̃ is the share of records whose norm is at most C, by a count with noise of std ½ · count_noise_multiplier. The
    count is charged with the gradient, as one mechanism: the gradient's noise is a little larger for it.

    `count_noise_multiplier`: null takes the larger of expected_batch_size / 10 (Andrew et al.'s) and 5σ.
    """

    target_quantile: Annotated[float, Field(strict=True, ge=0.01, le=0.99)] = 0.5
    learning_rate: Annotated[float, Field(strict=True, gt=0.0, le=1.0)] = 0.2
    count_noise_multiplier: Annotated[float, Field(strict=True, ge=0.2, le=1e12)] | None = None


class Clipping(Document):
    """flat: g / max(1, ‖g‖/C);  automatic: C g / (‖g‖ + 0.01);  per_layer: each of m layers' part flat, to C/√m;
    adaptive: flat, with a C that begins at `max_grad_norm` and moves between steps.

    Engines give the same sums. `bookkeeping` never forms per-record gradients where it need not; `opacus` forms them
    all, with Opacus' GradSampleModule: a reference to compare with, slower and larger.
    """

    kind: Literal["flat", "automatic", "per_layer", "adaptive"] = "flat"
    max_grad_norm: Bound = 1.0
    adaptive: AdaptiveNorm | None = None  # of kind `adaptive` alone; null: its defaults
    engine: Literal["bookkeeping", "opacus"] = "bookkeeping"

    @model_validator(mode="after")
    def _adapts(self) -> Clipping:
        if self.adaptive is not None and self.kind != "adaptive":
            raise ValueError("`adaptive` belongs to clipping of kind `adaptive`")
        return self


class FullBatch(Document):
    kind: Literal["full_batch"] = "full_batch"


class Poisson(Document):
    kind: Literal["poisson"] = "poisson"
    expected_batch_size: Annotated[int, Field(strict=True, ge=1)]


class Length(Document):
    """steps, or epochs: floor(epochs · records / expected_batch_size), at least 1."""

    steps: Steps | None = None
    epochs: Annotated[float, Field(strict=True, gt=0.0, le=1e7)] | None = None

    @model_validator(mode="after")
    def _one_of(self) -> Length:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give either `steps` or `epochs`")
        return self


GroupName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]{1,40}$")]
# Places in the data set's list of classes.
ClassPlaces = Annotated[
    list[Annotated[int, Field(strict=True, ge=0, lt=10_000)]], Field(min_length=1, max_length=10_000)
]


class Ranking(Document):
    """HIT and NDCG at k of each user's last item among all declared ones, given the items before it.

    With the last item at rank ρ: HIT@k = [ρ ≤ k], NDCG@k = [ρ ≤ k] / log₂(ρ + 1). An item with the same score counts as
    better. `leave_out_seen`: items that the user had before are not ranked, unless it is the last one again.
    """

    k: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 10
    leave_out_seen: bool = False


class Evaluation(Document):
    """A score on the hold-out, or on the training part itself, at `points` evenly spaced steps, the last one included.

    On private data each is a ratio of noisy sums with noise std sensitivity/noise_mu, charged to the account of what is
    scored: points · noise_mu² for each of `metrics`. accuracy, the default of classification: correct predictions
    (sensitivity 1). loss, the default of all else: squared errors clipped to [0, loss_bound] (sensitivity loss_bound);
    of classes, next items and next tokens their cross-entropies, clipped so. On a public hold-out all scores are exact
    and free.

    `ranking`: next items are scored by HIT@k and NDCG@k instead, of one release with sensitivity 1. Where last items
    are held out they are those of the users who are trained on: the training account is charged.

    `groups` asks for scores of groups of classes too: by name, the places of their classes in the data set's list. On
    private data a score becomes a histogram over the groups, of which a record is in one cell: the price stays, and
    the noise is on every cell. `by_frequency`, on public data: classes with 2ᵏ … 2ᵏ⁺¹ − 1 training
    records are one group. Of a language model: tokens, by their counts in public training data or a public hold-out;
    where scores are noisy, by their ids, which tokenizers give out about from frequent to rare. Losses are then those
    of tokens, each clipped to `loss_bound`; a record's tokens share its weight, so that the price stays here too.
    """

    on: Literal["holdout", "train"] = "holdout"
    noise_mu: Annotated[float, Field(strict=True, ge=1e-5, le=10.0)] = 0.05
    points: Annotated[int, Field(strict=True, ge=1, le=1000)] = 1
    metrics: Annotated[list[Literal["accuracy", "loss"]], Field(min_length=1, max_length=2)] | None = None
    loss_bound: Bound = 1.0
    groups: Annotated[dict[GroupName, ClassPlaces], Field(min_length=1, max_length=50)] | None = None
    by_frequency: bool = False
    ranking: Ranking | None = None

    @model_validator(mode="after")
    def _disjoint(self) -> Evaluation:
        if self.groups is not None and self.by_frequency:
            raise ValueError("give either `groups` or `by_frequency`")
        if self.groups is not None:
            places = [place for group in self.groups.values() for place in group]
            if len(set(places)) != len(places):
                raise ValueError("a class is in one group at most, and once")
        if self.metrics is not None and len(set(self.metrics)) != len(self.metrics):
            raise ValueError("each of `metrics` is named once")
        if self.metrics is not None and self.ranking is not None:
            raise ValueError("give either `metrics` or `ranking`")
        return self

    @property
    def compared_by(self) -> str:
        """The name of the score by which a trial of a search is compared."""
        return f"ndcg@{self.ranking.k}" if self.ranking is not None else (self.metrics or ["accuracy"])[0]

    def sensitivities(self, *, classes: bool) -> dict[Literal["accuracy", "loss", "ranking"], float]:
        """What is scored, with what one record weighs in it at most."""
        if self.ranking is not None:
            return {"ranking": 1.0}
        names = self.metrics or (["accuracy"] if classes else ["loss"])
        return {name: 1.0 if name == "accuracy" else self.loss_bound for name in names}


def token_ranks(evaluation: Evaluation | None, model: Model) -> int | None:
    """How many tokens there are that noisy losses are grouped by the ids of; None: they are not."""
    if evaluation is None or not evaluation.by_frequency or not isinstance(model, HfModel):
        return None
    causal = model.architecture is not None and ARCHITECTURES[model.architecture].task == "language_model"
    return model.vocabulary if causal else None


class Runtime(Document):
    """What can change speed and memory, never the mechanism."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    # Records a pass at most; rounded up to whole units of rows, and bounded by the automatic size. Memory only.
    physical_batch_size: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    # Of forward and backward passes. auto: float32; float64 for linear models and ratings. Norms, sums and noise are in
    # float64. bfloat16: of Hugging Face models alone.
    dtype: Literal["auto", "bfloat16", "float32", "float64"] = "auto"
    # How long it may run, waiting not counted; of a search each run. Past it the job fails and its whole hold is spent.
    max_duration_s: Annotated[float, Field(gt=0.0, le=1e8)] | None = None


class JobSpec(Document):
    dataset: Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=NO_NUL)]
    name: Annotated[str, StringConstraints(max_length=200, pattern=NO_NUL)] = ""
    model: Annotated[Model, Field(discriminator="kind")] = LinearModel()
    optimizer: Annotated[Optimizer, Field(discriminator="kind")]
    privacy: JobPrivacy | None
    clipping: Clipping | None = None  # default: flat at 1.0 on private data
    sampling: Annotated[FullBatch | Poisson, Field(discriminator="kind")] = FullBatch()
    length: Length
    evaluation: Evaluation | None = None
    runtime: Runtime = Runtime()
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    hpo: Hpo | None = None

    @model_validator(mode="after")
    def _consistent(self) -> JobSpec:
        if self.privacy is None and self.clipping is not None:
            raise ValueError(
                "`clipping` belongs to a private job: with `privacy` null there is no clipping and no noise"
            )
        if self.model.kind == "linear" and self.runtime.dtype == "float32":
            raise ValueError("a linear model is trained in float64: leave `runtime.dtype` out")
        if self.runtime.dtype == "bfloat16" and self.model.kind != "hf":
            raise ValueError("`runtime.dtype` bfloat16 is for Hugging Face models")
        return self
