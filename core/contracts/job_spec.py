"""JobSpec: an analyst's request. Each part is a discriminated union with one member per kind."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, StringConstraints, model_serializer, model_validator
from pydantic.json_schema import SkipJsonSchema

from core.contracts.architectures import task_of
from core.contracts.audit import Audit
from core.contracts.augmentation import Augmentation
from core.contracts.base import NO_NUL, DeltaValue, Document, EpsilonValue, NoiseMultiplier, is_none
from core.contracts.blocks import BlockChoice
from core.contracts.cnn import OWN_SIZE, ImageSize, Preset, convolutions
from core.contracts.dataset_spec import Features, NodeColumns
from core.contracts.extractor import ExtractorRef
from core.contracts.gcn import GcnModel
from core.contracts.governance import Use
from core.contracts.graph import GraphModel
from core.contracts.hf import HfModel, weights_file
from core.contracts.hpo import Auto, Hpo, RandomSize, Strategy
from core.contracts.kinds import KINDS, JobKind, kinds_with
from core.contracts.kinds import rule_of as rule_of_kind
from core.contracts.marginals import SyntheticColumns, SyntheticMethod, SyntheticRows, marginals
from core.contracts.metrics import METRICS, Metric, default_metric, rule_of
from core.contracts.model_settings import ImageForm, ModelSettings, RecordSizes
from core.contracts.optimizers import Dp2Settings, DpSgd, DpZo, Optimizer
from core.contracts.queries import Bins, Contingency, Filters, Queries
from core.contracts.runtime import Runtime
from core.contracts.sampling import CorrelatedNoise, Cyclic, FullBatch, Length, Poisson, Sampling
from core.contracts.table import Pairs, TableFeatures

# Bounds for clipping norms and losses: far from where floats lose digits or underflow, so that noise is not rounded
# off.
Bound = Annotated[float, Field(strict=True, ge=1e-6, le=1e6)]


class PrivateMean(Document):
    """Centres features, x − m, by their private mean over the training part,

        m = (Σ clip(x_i) + N(0, (max_norm / noise_mu)² I)) / records,

    where a record's part is clipped to `max_norm` in ℓ₂. m is released once a job; in a study, once for all trials. The
    release is a charge of its own, noise_mu² of μ²: at δ = 1e-5 the default is ε = 0.05. m is delivered with the
    weights, as the tensor `mean`; predictions subtract it. Public data without privacy get no noise. `max_norm`: about
    a record's length, from public knowledge. Refused: hashed text, protected users, public side information.

    Source: Sun, Suresh & Menon 2024, "The importance of feature preprocessing for differentially private linear
    optimization".
    """

    max_norm: Bound = 1.0
    noise_mu: Annotated[float, Field(strict=True, ge=1e-5, le=10.0)] = 0.0173


class LinearModel(ModelSettings):
    """One linear layer: logits = x Wᵀ (+ b) for classification, one output for regression.

    `bias` null: admission fills in true for regression, whose targets rarely lie around zero, and false for
    classification.

    With an `extractor`, x is the output of this frozen public model for each record: a linear probe. On texts the
    default is `hashed-words`. With `center`, a private mean of the training part is subtracted from x.
    """

    shallow: ClassVar[bool] = True
    kind: Literal["linear"] = "linear"
    extractor: ExtractorRef | None = None
    center: PrivateMean | None = None
    bias: bool | None = None
    init: Literal["zeros"] = "zeros"

    @property
    def has_bias(self) -> bool:
        """True if the layer adds b. An open choice is none: admission closes it before anything is priced."""
        return self.bias is True

    def held(self, sizes: RecordSizes) -> int:
        """See ModelSettings.held."""
        return 4 * sizes.outputs + (0 if self.is_sparse(sizes.sparse) else self.inputs(sizes.features))

    def inputs(self, features: int) -> int:
        """Returns d: the extractor's number of features, or the data set's."""
        return (self.extractor.features if self.extractor else None) or features

    def only_float64(self, *, sparse: bool) -> bool:
        """See ModelSettings.only_float64."""
        return self.is_sparse(sparse)

    def is_sparse(self, sparse: bool) -> bool:
        """Returns True if the inputs are hashed words: the data set's (`sparse`), or the extractor's."""
        return sparse or (self.extractor is not None and self.extractor.words is not None)


class GamModel(LinearModel):
    """An additive model of a table: the sum of one function of each column, and of named pairs of columns.

    Every number is cut into `bins` equal parts of its declared range, unless its column has bins of its own; the
    functions are steps, learned as a linear model. `pairs`: columns that act together, by name. The model's files have
    each function as a table.

    Source: Lou, Caruana & Gehrke 2012, "Intelligible models for classification and regression"; privately: Nori et al.
    2021, "Accuracy, interpretability, and differential privacy via explainable boosting" (by boosting).
    """

    kind: Literal["gam"] = "gam"  # type: ignore[assignment] # a linear model by another tag
    extractor: None = None
    center: None = None
    bins: Annotated[int, Field(strict=True, ge=2, le=256)] = 16
    pairs: Pairs = ()


def seen_by(model: ModelSettings, features: Features) -> Features:
    """Returns a data set's features as a model reads them: an additive model has maps of its own, a graph's has trees.

    Raises:
        ValueError: the columns do not allow these maps.
    """
    if isinstance(model, GcnModel) and isinstance(features, NodeColumns):
        return features.model_copy(update={"tree": model.tree})
    if not isinstance(model, GamModel) or not isinstance(features, TableFeatures):
        return features
    return features.additive(model.bins, model.pairs)


Activation = Literal["tanh", "relu"]
Dropout = Annotated[float, Field(strict=True, ge=0.0, le=0.9)]
InputScale = Annotated[float, Field(strict=True, gt=0.0, le=1e6)]


class MlpModel(ModelSettings):
    """Linear layers of these sizes with an activation between them, then one to the outputs.

    `dropout` is the share of each activation's numbers that a step leaves out, by masks that replay.

    `input_scale` first multiplies every feature: 1/255 for bytes. It is public, and nothing is fitted to the data.
    """

    kind: Literal["mlp"] = "mlp"
    hidden: Annotated[list[Annotated[int, Field(strict=True, ge=1, le=16_384)]], Field(min_length=1, max_length=16)]
    activation: Activation = "tanh"
    dropout: Dropout = 0.0
    input_scale: InputScale = 1.0

    def held(self, sizes: RecordSizes) -> int:
        """See ModelSettings.held."""
        return 4 * (sizes.features + sum(self.hidden) + sizes.outputs)


class CnnModel(ModelSettings):
    """A convolutional network from the literature on private training.

    `image`: left out, 28 × 28 with one channel for `conv2`, 32 × 32 with three for `conv5` and `wrn16_4`. `channels`
    gives their position in the array. `weight_standardization` is for `wrn16_4`.
    """

    kind: Literal["cnn"] = "cnn"
    preset: Preset
    image: ImageSize | None = None
    activation: Activation = "tanh"
    channels: Literal["first", "last"] = "first"
    input_scale: InputScale = 1.0
    weight_standardization: bool = False

    @property
    def size(self) -> ImageSize:
        """Of the images."""
        return self.image or OWN_SIZE[self.preset]

    def held(self, sizes: RecordSizes) -> int:
        """See ModelSettings.held."""
        return 2 * sizes.features + sum(
            6 * each.outputs * each.places + each.inputs * each.kernel**2 * (each.places + each.outputs)
            for each in convolutions(self.preset, self.size)
        )

    def peak(self) -> float:
        """See ModelSettings.peak: what a layer's backward pass no longer needs is given back."""
        return 0.65

    def positions(self) -> int:
        """See ModelSettings.positions."""
        return max(each.places for each in convolutions(self.preset, self.size))

    def pixels(self) -> ImageForm:
        """See ModelSettings.pixels."""
        size = self.size
        return ImageForm(size.height, size.width, size.channels, channels_last=self.channels == "last")


class MatrixFactorizationModel(ModelSettings):
    """Ratings: f = middle of the scale + ⟨p_u, q_i⟩ (+ biases), squared error. p and q start as small Gaussians."""

    shallow: ClassVar[bool] = True
    kind: Literal["matrix_factorization"] = "matrix_factorization"
    dim: Annotated[int, Field(strict=True, ge=1, le=1024)] = 8
    bias: bool = True
    init_std: Annotated[float, Field(strict=True, ge=1e-6, le=10.0)] = 0.1

    def held(self, sizes: RecordSizes) -> int:
        """See ModelSettings.held."""
        return 6 * self.dim

    def only_float64(self, *, sparse: bool) -> bool:
        """See ModelSettings.only_float64."""
        return True


class RecommenderModel(ModelSettings):
    """Predicts the next item from a user's last `max_length` items.

    `tied`: items are scored by their embeddings. `loss_positions`: the loss is the mean over all positions, or the loss
    at the last position alone.
    """

    dim: Annotated[int, Field(strict=True, ge=1, le=1024)] = 64
    max_length: Annotated[int, Field(strict=True, ge=1, le=1024)] = 50
    tied: bool = True
    loss_positions: Literal["all", "last"] = "all"
    dropout: Dropout = 0.0

    def held(self, sizes: RecordSizes) -> int:
        """See ModelSettings.held."""
        return self.held_by_layers() + 2 * (sizes.items + 1) * (self.max_length if self.loss_positions == "all" else 1)

    def peak(self) -> float:
        """See ModelSettings.peak: scores, their softmax and gradients, beside formed gradients of layers."""
        return 2.0 if self.loss_positions == "all" else 1.35

    @abstractmethod
    def held_by_layers(self) -> int:
        """What `held` counts besides the items' scores."""

    def positions(self) -> int:
        """See ModelSettings.positions."""
        return 2 * self.max_length


class ReAttention(Document):
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
    noise_mu: Annotated[float, Field(strict=True, ge=1e-5, le=10.0)] | None = None
    scale: Annotated[float, Field(strict=True, ge=1e-6, le=1e3)] = 1.0
    max_exponent: Annotated[float, Field(strict=True, gt=0.0, le=50.0)] = 10.0

    @model_validator(mode="after")
    def _priced(self) -> ReAttention:
        if (self.noise_mu is not None) != (self.mode != "off" and self.frequencies == "noisy"):
            raise ValueError("give `noise_mu` with `frequencies` 'noisy' and a `mode` other than 'off', and only then")
        return self


class TransformerRecModel(RecommenderModel):
    """Causal self-attention over item embeddings. `dropout` follows the embedding and each half of a block."""

    kind: Literal["transformer_rec"] = "transformer_rec"
    heads: Annotated[int, Field(strict=True, ge=1, le=64)] = 1
    blocks: Annotated[int, Field(strict=True, ge=1, le=24)] = 2
    re_attention: ReAttention = ReAttention()

    @model_validator(mode="after")
    def _divides(self) -> TransformerRecModel:
        if self.dim % self.heads:
            raise ValueError("`heads` must divide `dim`")
        return self

    def held_by_layers(self) -> int:
        """See RecommenderModel.held_by_layers."""
        corrected = self.re_attention.mode != "off"  # weights, logits, exponents, and a variance for each output
        layers = self.max_length * self.dim * (6 + 20 * self.blocks) * (2 if corrected else 1)
        return layers + 2 * self.blocks * self.heads * self.max_length**2 * (4 if corrected else 1)


class RecurrentRecModel(RecommenderModel):
    """`layers` recurrent layers over item embeddings. `dropout` follows the embedding and each layer."""

    gates: ClassVar[int]  # of a cell: its matrices have this many times `dim` outputs
    layers: Annotated[int, Field(strict=True, ge=1, le=8)] = 1

    def held_by_layers(self) -> int:
        """See RecommenderModel.held_by_layers."""
        return self.max_length * self.dim * (2 + 4 * self.gates * self.layers + 8 * self.layers)


class GruRecModel(RecurrentRecModel):
    """Gated recurrent units."""

    gates: ClassVar[int] = 3
    kind: Literal["gru_rec"] = "gru_rec"


class LstmRecModel(RecurrentRecModel):
    """Long short-term memory."""

    gates: ClassVar[int] = 4
    kind: Literal["lstm_rec"] = "lstm_rec"


Model = (
    LinearModel
    | GamModel
    | MlpModel
    | CnnModel
    | GcnModel
    | GraphModel
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

    b̃ is the share of records whose norm is at most C, from a count with noise of std ½ · count_noise_multiplier. Count
    and gradient are charged as one mechanism: the gradient's noise is slightly larger for it.

    `count_noise_multiplier`: null takes the larger of expected_batch_size / 10 (Andrew et al.) and 5σ.
    """

    target_quantile: Annotated[float, Field(strict=True, ge=0.01, le=0.99)] = 0.5
    learning_rate: Annotated[float, Field(strict=True, gt=0.0, le=1.0)] = 0.2
    count_noise_multiplier: Annotated[float, Field(strict=True, ge=0.2, le=1e12)] | None = None


class Clipping(Document):
    """flat: g / max(1, ‖g‖/C);  automatic: C g / (‖g‖ + 0.01);  per_layer: each of m layers' part flat, to C/√m;
    adaptive: flat, with a C that begins at `max_grad_norm` and moves between steps.

    `max_grad_norm`: C, or "auto": a number from public facts, which admission puts in its place (app.hpo.rates).

    """

    kind: Literal["flat", "automatic", "per_layer", "adaptive"] = "flat"
    max_grad_norm: Bound | Literal["auto"] = 1.0
    adaptive: AdaptiveNorm | None = None  # for kind `adaptive` alone; null: its defaults
    # "opacus", a reference that computes the same sums, is of jobs that earlier releases admitted.
    engine: SkipJsonSchema[Literal["bookkeeping", "opacus"]] = "bookkeeping"

    @model_validator(mode="after")
    def _adapts(self) -> Clipping:
        if self.adaptive is not None and self.kind != "adaptive":
            raise ValueError("give `adaptive` only with clipping of kind 'adaptive'")
        return self

    @property
    def norm(self) -> float:
        """C; raises ValueError if it is still "auto"."""
        if self.max_grad_norm == "auto":
            raise ValueError("`max_grad_norm` is still auto")
        return self.max_grad_norm


GroupName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]{1,40}$")]
# Indices into the data set's list of classes.
ClassPlaces = Annotated[
    list[Annotated[int, Field(strict=True, ge=0, lt=10_000)]], Field(min_length=1, max_length=10_000)
]


class Ranking(Document):
    """HIT and NDCG at k of each user's last item among all declared items, given the items before it.

    With the last item at rank ρ: HIT@k = [ρ ≤ k], NDCG@k = [ρ ≤ k] / log₂(ρ + 1). An item with the same
    score counts as better. `leave_out_seen`: earlier items of the user are not ranked, except the last item itself.
    """

    k: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 10
    leave_out_seen: bool = False


class Evaluation(Document):
    """A score on the hold-out or on the training part, at `points` evenly spaced steps, the last one included.

    On private data each score is a ratio of noisy sums with noise std sensitivity/noise_mu. The scored part's account
    is charged points · noise_mu² for each of `metrics`. auc, the default for two classes: one histogram of scores by
    class (sensitivity 1), from which AUC, average precision, accuracy, recall and precision follow, and how well
    probabilities are calibrated. macro_f1: one histogram of true and predicted classes
    (sensitivity 1), with accuracy, balanced accuracy, the largest class's share and the recall of each class, by its
    place in the data set's list. accuracy, the default for more classes or `groups`: correct predictions (sensitivity
    1). loss, the default for all other tasks: squared errors clipped to [0, loss_bound] (sensitivity
    loss_bound); for classes, next items and next tokens the cross-entropy, clipped alike. r_squared, for regression
    with a declared range: R², and RMSE in the target's unit, from one release that pays for the target's variance too
    (sensitivity √2). On a public hold-out all scores are exact and free.

    `ranking`: scores next items by HIT@k and NDCG@k instead, from one release with sensitivity 1. Held-out last items
    belong to the users who are trained on, so the training account is charged.

    `groups` adds scores for groups of classes: group name → indices into the data set's list of classes. On private
    data a score becomes a histogram over the groups. A record is in one cell: the price stays, and every cell gets the
    noise. `by_frequency`, on public data: classes with 2ᵏ … 2ᵏ⁺¹ − 1 training records form a group. For a language
    model: tokens, by their counts in public training data or a public hold-out; where scores are noisy, by their ids,
    which tokenizers assign roughly from frequent to rare. Losses are then per token, each clipped to `loss_bound`; a
    record's tokens share its weight, so the price stays here too.
    """

    on: Literal["holdout", "train"] = "holdout"
    noise_mu: Annotated[float, Field(strict=True, ge=1e-5, le=10.0)] = 0.05
    points: Annotated[int, Field(strict=True, ge=1, le=1000)] = 1
    metrics: Annotated[list[Metric], Field(min_length=1, max_length=len(METRICS))] | None = None
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
                raise ValueError("a class may be in one group at most, and only once")
        for histogram in sorted({"auc", "macro_f1"} & set(self.metrics or ())):
            if self.groups is not None or self.by_frequency:
                raise ValueError(f"`{histogram}` has no groups: name `accuracy`, or leave the groups out")
            if "accuracy" in (self.metrics or ()):
                raise ValueError(f"`{histogram}` comes with accuracy: leave `accuracy` out")
        if {"auc", "macro_f1"} <= set(self.metrics or ()):
            raise ValueError("`auc` and `macro_f1` both release accuracy: name one of them")
        if self.metrics is not None and len(set(self.metrics)) != len(self.metrics):
            raise ValueError("`metrics` must not repeat a name")
        if self.metrics is not None and self.ranking is not None:
            raise ValueError("give either `metrics` or `ranking`")
        return self

    @property
    def _first(self) -> Metric:
        return (self.metrics or [default_metric(classes=True)])[0]

    @property
    def compared_by(self) -> str:
        """The name of the score that compares the trials of a study."""
        return f"ndcg@{self.ranking.k}" if self.ranking is not None else self._first

    @property
    def larger_is_better(self) -> bool:
        """True if a larger score is a better one."""
        return self.ranking is not None or rule_of(self._first).larger_is_better

    def sensitivities(self, *, classes: bool) -> dict[Metric | Literal["ranking"], float]:
        """The scored quantities, each with the most that one record weighs in it."""
        if self.ranking is not None:
            return {"ranking": 1.0}
        names: list[Metric] = self.metrics or [default_metric(classes=classes)]
        return {name: rule_of(name).bound or self.loss_bound for name in names}


def token_ranks(evaluation: Evaluation | None, model: Model) -> int | None:
    """How many tokens are grouped by id for noisy losses; None if losses are not grouped so."""
    if evaluation is None or not evaluation.by_frequency or not isinstance(model, HfModel):
        return None
    return model.vocabulary if model.architecture and task_of(model.architecture) == "language_model" else None


# Of each class, in the data set's order.
ClassWeights = (
    Annotated[list[Annotated[float, Field(strict=True, ge=1e-3, le=1e3)]], Field(min_length=2, max_length=10_000)]
    | Literal["balanced"]
)
# What admission chooses for a request that leaves `optimizer` out, where these are left out too.
COMPLETED = frozenset(("model", "optimizer", "clipping", "length", "evaluation"))


class JobSpec(Document):
    """A job: of kind `training`, `statistics` or `synthetic`.

    A training job has a data set, a model, an optimizer, privacy, length and evaluation.

    A data set and ε are a whole job: without `optimizer`, admission chooses it, and with it what else is left out of
    model, clipping, length and evaluation (app.admission.choices). `quote.resolved` says what and why. With an
    `optimizer`, `model` is `linear` by default, and nothing is scored unless `evaluation` says so.

    `class_weights`: a record's loss is multiplied by its class's number, before its gradient is clipped; no score is.
    "balanced": 1/(K share) of the data set's declared `task.shares`, which admission puts in its place.

    A job of kind `statistics` has `queries` on declared columns, and filters (`where`): one Gaussian release pays for
    all of them. It has no model, and none of the members that say how one is trained.

    A job of kind `synthetic` draws rows that have about the two-way tables of the records: of `columns` (null: all that
    are declared), as many as `rows` (null or "declared": the declared number of records). Its one Gaussian release
    pays for the tables. `target`: the column that the others are to predict (null: the label, if it is among them).
    `bins`: of numbers without declared ones (null: 16). `method`: "mixture" (null) is the only one.
    """

    kind: JobKind = Field(default="training", exclude_if=lambda kind: kind == "training")
    dataset: Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=NO_NUL)]
    name: Annotated[str, StringConstraints(max_length=200, pattern=NO_NUL)] = ""
    # No default in the schema: what a job leaves out depends on its task.
    model: Model = Field(default_factory=LinearModel, discriminator="kind")
    optimizer: Optimizer = Field(default_factory=DpSgd, discriminator="kind")
    # Which blocks of the data set it reads and pays on, by their labels; "all": those that can pay, as it is priced.
    blocks: BlockChoice = Field(default="all", exclude_if=lambda blocks: blocks == "all")
    privacy: JobPrivacy | None
    clipping: Clipping | None = None  # default: flat, at a C that is "auto" where `steps` are, else at 1.0
    sampling: Sampling = FullBatch()
    noise: CorrelatedNoise | None = Field(default=None, exclude_if=lambda noise: noise is None)  # null: independent
    # null: 1 for each class
    class_weights: ClassWeights | None = Field(default=None, exclude_if=lambda weights: weights is None)
    # null: a step sees each of its records once, as it is
    augmentation: Augmentation | None = Field(default=None, exclude_if=lambda augmentation: augmentation is None)
    length: Length = Length(steps="auto")
    evaluation: Evaluation | None = None
    runtime: Runtime = Runtime()
    # Which of a key's queued jobs starts first: that of the highest priority, then the oldest. It never passes another
    # key's job, and at most the key's `max_priority` is allowed.
    priority: Annotated[int, Field(strict=True, ge=-10, le=10)] = Field(default=0, exclude_if=lambda level: level == 0)
    # What it is for; the data set's owner may require it (`governance.requires`).
    use: Use | None = Field(default=None, exclude_if=is_none)
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    hpo: Hpo | None = None
    audit: Audit | None = Field(default=None, exclude_if=lambda audit: audit is None)
    queries: Queries | None = Field(default=None, exclude_if=is_none)
    where: Filters = Field(default=(), exclude_if=lambda filters: not filters)
    columns: SyntheticColumns | None = Field(default=None, exclude_if=is_none)
    target: str | None = Field(default=None, exclude_if=is_none)
    rows: SyntheticRows | None = Field(default=None, exclude_if=is_none)
    method: SyntheticMethod | None = Field(default=None, exclude_if=is_none)
    bins: Bins | None = Field(default=None, exclude_if=is_none)

    @model_serializer(mode="wrap")
    def _without_foreign(self, write: SerializerFunctionWrapHandler) -> Any:
        """Leaves out what only other kinds have."""
        foreign = rule_of_kind(self.kind).foreign
        return {name: value for name, value in write(self).items() if name not in foreign}

    @model_validator(mode="before")
    @classmethod
    def _of_one_kind(cls, document: Any) -> Any:
        """Refuses members of other kinds: they would say nothing."""
        if not isinstance(document, dict) or document.get("kind", "training") not in KINDS:
            return document
        kind: JobKind = document.get("kind", "training")
        rule = rule_of_kind(kind)
        for name in rule.foreign:
            # An empty list or null says nothing: clients that know all members send them.
            if document.get(name) not in (None, [], ()):
                owner = kinds_with(name)[0]
                raise ValueError(f'`{name}` is of jobs of kind "{owner}", and this one\'s is "{kind}"')
        if rule.needs is not None and not document.get(rule.needs[0]):
            raise ValueError(f'a job of kind "{kind}" needs `{rule.needs[0]}`, such as {rule.needs[1]}')
        return document

    def request(self) -> dict[str, object]:
        """The specification as JSON, without what it leaves to admission."""
        document = self.model_dump(mode="json")
        fields_set = self.model_fields_set
        if "optimizer" in fields_set or not rule_of_kind(self.kind).trains:
            return document
        return {name: value for name, value in document.items() if name not in COMPLETED or name in fields_set}

    @property
    def delivers(self) -> str:
        """The name of the file that a finished job delivers, such as its model's weights."""
        return rule_of_kind(self.kind).delivers or weights_file(self.model)

    @property
    def tables(self) -> tuple[Contingency, ...]:
        """What a synthetic job measures; none before admission has closed `columns`."""
        return marginals(self.columns or (), self.target, self.bins)

    @property
    def views(self) -> int:
        """How many views of each record a step takes."""
        return self.augmentation.views if self.augmentation is not None else 1

    @property
    def study(self) -> Strategy | None:
        """The search whose trials are jobs, if this job is one that admission has closed."""
        return None if isinstance(self.hpo, Auto | RandomSize) else self.hpo

    @property
    def selection(self) -> RandomSize | None:
        """The search whose runs are all within this one job, if it is one."""
        return self.hpo if isinstance(self.hpo, RandomSize) else None

    @property
    def is_gaussian(self) -> bool:
        """True if what it releases are plain Gaussians, which every filter can count."""
        return not self.sampling.is_sampled and self.selection is None

    @property
    def norm_adapts(self) -> bool:
        """True if the clipping norm moves between steps."""
        return self.clipping is not None and self.clipping.kind == "adaptive"

    @model_validator(mode="after")
    def _consistent(self) -> JobSpec:
        if self.privacy is None and self.clipping is not None:
            raise ValueError(
                "give `clipping` only with a private job: with `privacy` null there is no clipping and no noise"
            )
        if self.runtime.dtype == "bfloat16" and not isinstance(self.model, HfModel):
            raise ValueError("`runtime.dtype` 'bfloat16' is for Hugging Face models only")
        return self

    @model_validator(mode="after")
    def _noise_is_priced(self) -> JobSpec:
        """Refuses what no theorem here prices."""
        delayed = self.optimizer if isinstance(self.optimizer, Dp2Settings) else None
        if isinstance(self.sampling, Cyclic) and delayed is not None and delayed.variant == "extra_query":
            raise ValueError("`cyclic` sampling has no price for steps of two queries: use `delayed` or `full_batch`")
        truncates = isinstance(self.sampling, Poisson) and self.sampling.largest_batch is not None
        if truncates and self.privacy is None:
            raise ValueError("give `largest_batch` only with a private job: without noise no batch is hidden")
        if self.hpo is not None and (self.noise is not None or truncates or isinstance(self.sampling, Cyclic)):
            raise ValueError(
                "a study divides its total by steps: use no `noise`, `cyclic` sampling or `largest_batch` with `hpo`"
            )
        if isinstance(self.optimizer, DpZo):
            self._slopes_are_priced()
        if self.noise is None:
            return self
        if self.privacy is None:
            raise ValueError("give `noise` only with a private job: with `privacy` null there is no noise")
        if isinstance(self.sampling, Poisson):
            raise ValueError(
                "correlated `noise` has no price under Poisson sampling: a step shows what earlier batches had; use "
                "`cyclic` sampling"
            )
        if delayed is not None or self.norm_adapts:
            raise ValueError("correlated `noise` needs one clipping norm and one query for all steps")
        return self

    def _slopes_are_priced(self) -> None:
        """Refuses what a step has no meaning or no price for if it sums one slope of each record."""
        clip = self.clipping or Clipping()
        unfit = {
            "`clipping` is `flat` or `automatic`": clip.kind not in ("flat", "automatic"),
            "`clipping.engine` stays out, as no gradient is clipped": clip.engine == "opacus",
            "correlated `noise` stays out, as each step's is along another direction": self.noise is not None,
            "`augmentation` stays out": self.augmentation is not None,
            "`audit` stays out, as canaries are added to gradients": self.audit is not None,
            "`runtime.shard` stays out, as nothing is kept": self.runtime.shard != "none",
        }
        reason = next((name for name, is_used in unfit.items() if is_used), None)
        if reason is not None:
            raise ValueError(f"`dp_zo` sums one slope of each record: {reason}")
