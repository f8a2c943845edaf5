"""A job: of training, statistics or synthetic rows. Written by scripts/write_specs.py from core/contracts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from scrimp.spec import Spec
from scrimp.specs.models import (
    CnnModel,
    GamModel,
    GcnModel,
    GraphModel,
    GruRecModel,
    HfModel,
    LinearModel,
    LstmRecModel,
    MatrixFactorizationModel,
    MlpModel,
    TransformerRecModel,
)
from scrimp.specs.optimizers import (
    AdaDps,
    Dp2AdaGrad,
    Dp2RmsProp,
    Dp2Yogi,
    DpAdaGrad,
    DpAdam,
    DpAdamBc,
    DpAdamWosm,
    DpRmsProp,
    DpSgd,
    DpZo,
    PdaDpmd,
    ScaleThenPrivatize,
)
from scrimp.specs.studies import Auto, LinearScaling, Random, RandomSize


class AdaptiveNorm(Spec):
    """C follows a quantile of the gradients' norms: C ← C · exp(−η (b̃ − γ)) after each step.

    b̃ is the share of records whose norm is at most C, from a count with noise of std ½ · count_noise_multiplier. Count
    and gradient are charged as one mechanism: the gradient's noise is slightly larger for it.

    `count_noise_multiplier`: null takes the larger of expected_batch_size / 10 (Andrew et al.) and 5σ.
    """

    target_quantile: Annotated[float, Field(ge=0.01, le=0.99)] = 0.5
    learning_rate: Annotated[float, Field(gt=0.0, le=1.0)] = 0.2
    count_noise_multiplier: Annotated[float, Field(ge=0.2, le=1000000000000.0)] | None = None


class Audit(Spec):
    """The job trains `canaries` synthetic units beside its records, each in or out by a public coin. Its certificate
    says how much privacy loss they show at least. The price does not change.

    `kind` `gradients` tests noise and clipping of what is summed. A canary is a gradient that clipping leaves at C,
    along a coordinate of its own in a tensor beside the model, which stays the same to the bit: the most that one unit
    can do. It costs time and memory of 1.5 `canaries` more parameters. Refused with public gradients and
    `runtime.shard`.

    `kind` `records` tests passes, gradients and clipping of the model itself. A canary is a random record of the data
    set's own form (features and a label, a rating, a sequence of items, a text; where users are protected, a user whose
    k records are the same), by SHAKE-256 of the job's id. It costs accuracy: half of them are trained on beside the
    records, and the quote warns of the share. Refused where they are more than the declared records. It finds less.

    Both are refused with studies, public data and `largest_batch`.
    """

    canaries: Annotated[int, Field(ge=100, le=100000)]
    kind: Literal["gradients", "records"] = "gradients"


class Crop(Spec):
    """Moves an image by up to `padding` pixels, up or down and left or right. `fill`: what comes in is the image's own
    edge, mirrored, or zeros.
    """

    kind: Literal["crop"] = "crop"
    padding: Annotated[int, Field(ge=1, le=1024)]
    fill: Literal["reflect", "zeros"] = "reflect"


class DropWords(Spec):
    """Leaves out each token of a text with probability `rate`, but never the first and the last one: a tokenizer's own
    marks. Of hashed words, each different word; the rest keeps the text's length of 1.
    """

    kind: Literal["drop_words"] = "drop_words"
    rate: Annotated[float, Field(gt=0.0, le=0.9)]


class Erase(Spec):
    """Sets a random square of `side` pixels to zero, in all channels."""

    kind: Literal["erase"] = "erase"
    side: Annotated[int, Field(ge=1, le=1024)]


class Flip(Spec):
    """Mirrors an image left to right, with probability one half."""

    kind: Literal["flip"] = "flip"


class Augmentation(Spec):
    """Each step takes `views` random views of each of its records. A record's gradient is the mean over its views,
    averaged before the clip: it weighs what it weighs without, so the price is the same. A step's passes cost `views`
    times as much. Scores are of the records as they are.

    `transforms` are applied one after the other, each with random numbers of its own.

    Source: De et al. 2022, "Unlocking high-accuracy differentially private image classification through scale"
    (augmentation multiplicity).
    """

    views: Annotated[int, Field(ge=1, le=64)] = 1
    transforms: Annotated[
        list[Annotated[Crop | Flip | Erase | DropWords, Field(discriminator="kind")]], Field(max_length=4)
    ] = []


class Categories(Spec):
    """Which values of a column of texts are frequent, and how many records each has: those whose noisy count reaches a
    public threshold (docs/decisions/0077), at most 10,000. A text that no record has is among them in one release of a
    thousand.

    The threshold is √(2 ln(512 D)) standard errors, D the number of texts that the declaration allows: 6.0 for five
    digits, 15.2 for 24 printable characters. So declare values as narrowly as is known. A count near it is rather too
    large, and its interval holds less often than 95 %.
    """

    weight: Annotated[float, Field(ge=0.001, le=1000.0)] = 1.0
    kind: Literal["categories"] = "categories"
    column: Annotated[str, Field(min_length=1, max_length=200)]


class Clipping(Spec):
    """flat: g / max(1, ‖g‖/C);  automatic: C g / (‖g‖ + 0.01);  per_layer: each of m layers' part flat, to C/√m;
    adaptive: flat, with a C that begins at `max_grad_norm` and moves between steps.

    `max_grad_norm`: C, or "auto": a number from public facts, which admission puts in its place (app.hpo.rates).
    """

    kind: Literal["flat", "automatic", "per_layer", "adaptive"] = "flat"
    max_grad_norm: Annotated[float, Field(ge=1e-06, le=1000000.0)] | Literal["auto"] = 1.0
    adaptive: AdaptiveNorm | None = None


class Contingency(Spec):
    """How many records each pair of values or bins of two columns has. `bins`: of numbers without declared bins."""

    weight: Annotated[float, Field(ge=0.001, le=1000.0)] = 1.0
    kind: Literal["contingency"] = "contingency"
    columns: tuple[
        Annotated[str, Field(min_length=1, max_length=200)], Annotated[str, Field(min_length=1, max_length=200)]
    ]
    bins: Annotated[int, Field(ge=2, le=1000)] | None = None


class CorrelatedNoise(Spec):
    """Step t adds z_t − decay · z_{t−1}: each step takes back a part of the noise of the step before.

    z_{t−1} is made again from its key, so nothing is kept. What a record adds in one step shows in later ones too, and
    z is scaled up for that: by the root of (1 + λᵇ) / ((1 − λ²)(1 − λᵇ)), for λ = `decay` and records that take part
    every b steps. For λᵇ near 0 the noise of a sum of many steps falls by √((1 − λ)/(1 + λ)), and each step's grows. It
    pays where b is well above 1/(1 − λ): with `cyclic` sampling of at least 2/(1 − λ) batches; in full batch the
    factors cancel. It costs no memory, and twice the time to make noise. Refused: Poisson sampling, `adaptive`
    clipping, `dp2_*`, `hpo`; "auto" has no rule for its rate.

    Source: Kalinin, McKenna, Pagh & Lampert 2026, "DP-λCGD: efficient noise correlation for differentially private
    model training".
    """

    kind: Literal["correlated"] = "correlated"
    decay: Annotated[float, Field(gt=0.0, le=0.999)]


class Count(Spec):
    """How many records there are."""

    weight: Annotated[float, Field(ge=0.001, le=1000.0)] = 1.0
    kind: Literal["count"] = "count"


class Covariance(Spec):
    """The covariance matrix of the columns, over the records that have a value in each of them."""

    weight: Annotated[float, Field(ge=0.001, le=1000.0)] = 1.0
    columns: Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(min_length=2, max_length=50)]
    kind: Literal["covariance"] = "covariance"


class Cyclic(Spec):
    """Each record belongs to one of `batches` secret groups, drawn once, and step t takes group t mod `batches`.

    A record takes part once in every `batches` steps, and each time is charged whole: nothing is won by the draw. So
    the price is exact, under either filter, and `noise` may be correlated.
    """

    kind: Literal["cyclic"] = "cyclic"
    batches: Annotated[int, Field(ge=2, le=65535)]


class Ranking(Spec):
    """HIT and NDCG at k of each user's last item among all declared items, given the items before it.

    With the last item at rank ρ: HIT@k = [ρ ≤ k], NDCG@k = [ρ ≤ k] / log₂(ρ + 1). An item with the same
    score counts as better. `leave_out_seen`: earlier items of the user are not ranked, except the last item itself.
    """

    k: Annotated[int, Field(ge=1, le=10000)] = 10
    leave_out_seen: bool = False


class Evaluation(Spec):
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
    noise_mu: Annotated[float, Field(ge=1e-05, le=10.0)] = 0.05
    points: Annotated[int, Field(ge=1, le=1000)] = 1
    metrics: (
        Annotated[list[Literal["accuracy", "auc", "macro_f1", "loss", "r_squared"]], Field(min_length=1, max_length=5)]
        | None
    ) = None
    loss_bound: Annotated[float, Field(ge=1e-06, le=1000000.0)] = 1.0
    groups: (
        Annotated[
            dict[
                Annotated[str, Field(pattern="^[a-z0-9_-]{1,40}$")],
                Annotated[list[Annotated[int, Field(ge=0, lt=10000)]], Field(min_length=1, max_length=10000)],
            ],
            Field(min_length=1, max_length=50),
        ]
        | None
    ) = None
    by_frequency: bool = False
    ranking: Ranking | None = None


class FullBatch(Spec):
    """Every record takes part in every step."""

    kind: Literal["full_batch"] = "full_batch"


class Histogram(Spec):
    """How many records each value or bin of a column has.

    A number needs `edges` (the edges between bins: [18, 65] makes three), or `bins`, so many equal parts of its
    declared range, or declared bins. Numbers beyond the range are in the first or the last bin.
    """

    weight: Annotated[float, Field(ge=0.001, le=1000.0)] = 1.0
    kind: Literal["histogram"] = "histogram"
    column: Annotated[str, Field(min_length=1, max_length=200)]
    edges: Annotated[list[Annotated[float, Field(ge=-1e30, le=1e30)]], Field(min_length=1, max_length=999)] | None = (
        None
    )
    bins: Annotated[int, Field(ge=2, le=1000)] | None = None


class JobPrivacy(Spec):
    """Either a target ε, to which σ is calibrated, or σ, from which ε follows."""

    target_epsilon: Annotated[float, Field(ge=0.0001, le=100.0)] | None = None
    noise_multiplier: Annotated[float, Field(ge=0.1, le=100000.0)] | None = None
    target_delta: Annotated[float, Field(ge=1e-15, lt=0.01)] | None = None


class Length(Spec):
    """steps, or epochs: floor(epochs · records / expected_batch_size), at least 1.

    `steps` "auto", the default of a job: a number from public facts, which admission puts in its place (app.hpo.rates).
    """

    steps: Annotated[int, Field(ge=1, le=10000000)] | Literal["auto"] | None = None
    epochs: Annotated[float, Field(gt=0.0, le=10000000.0)] | None = None


class Mean(Spec):
    """The mean of each column: a noisy sum of centred values over a noisy count of the records that have one."""

    weight: Annotated[float, Field(ge=0.001, le=1000.0)] = 1.0
    columns: Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(min_length=1, max_length=50)]
    kind: Literal["mean"] = "mean"


class Poisson(Spec):
    """Each record takes part in a step independently, with probability expected_batch_size / records.

    A step computes as many rows as no draw exceeds, or `largest_batch` records' where that is given: of a larger draw
    so many are chosen, uniformly. A record may then take another's place and change the sum by 2 C. The price counts
    that with the chance of a larger draw of all slots. About 1.05 L + 7.5 √L, L = expected_batch_size, costs nothing
    that shows. Look at the charge, not at σ: an `rdp` filter of order α weighs a rare replaced record by
    e^{(α − 1) D}. Studies and audits refuse it.
    """

    kind: Literal["poisson"] = "poisson"
    expected_batch_size: Annotated[int, Field(ge=1)]
    largest_batch: Annotated[int, Field(ge=1)] | None = None


class Quantile(Spec):
    """Quantiles of a number, from a tree of counts over 1,024 equal parts of its declared range (and scale)."""

    weight: Annotated[float, Field(ge=0.001, le=1000.0)] = 1.0
    kind: Literal["quantile"] = "quantile"
    column: Annotated[str, Field(min_length=1, max_length=200)]
    q: Annotated[list[Annotated[float, Field(gt=0.0, lt=1.0)]], Field(min_length=1, max_length=100)]


class Runtime(Spec):
    """Settings that change speed and memory, never the mechanism.

    `device`: `cuda` waits for a worker with a GPU, `cpu` runs on any worker's processors. `auto` is settled at
    admission, and the quote says why: `cuda` if a worker that lives then has as many GPUs as the job asks for
    processes, busy or not; else `cpu`. A job stays on its kind of device.

    `processes` (ranks) share each step. With `cuda` each has a GPU of its own, on a cluster that has so many. `auto`:
    every GPU that the cluster has free at the claim, at most 8, and one process elsewhere. `threads` of each: `auto`
    divides the processors of the machine where the job first becomes ready. At one number of threads the model is the
    same to the bit for every number of processes.

    `shard`: `optimizer` divides the optimizer's state among the processes, on processors, to the same bits: W processes
    with Adam need 16 + 24/W bytes a number trained instead of 40.
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    physical_batch_size: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    dtype: Literal["auto", "bfloat16", "float32", "float64"] = "auto"
    fp32_precision: Literal["ieee", "tf32"] = "ieee"
    processes: Literal["auto"] | Annotated[int, Field(ge=1, le=8)] = 1
    threads: Literal["auto"] | Annotated[int, Field(ge=1, le=64)] = "auto"
    shard: Literal["none", "optimizer"] = "none"
    max_duration_s: Annotated[float, Field(gt=0.0, le=100000000.0)] | None = None


class Sum(Spec):
    """The sum of each column. A number beyond its declared range counts as the range's end."""

    weight: Annotated[float, Field(ge=0.001, le=1000.0)] = 1.0
    columns: Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(min_length=1, max_length=50)]
    kind: Literal["sum"] = "sum"


class Use(Spec):
    """What a job is for: a purpose of the data set's, and the number of the permit under which it runs."""

    purpose: Annotated[str, Field(min_length=1, max_length=200, pattern="^[^\\x00]*$")] | None = None
    permit: Annotated[str, Field(min_length=1, max_length=100, pattern="^[^\\x00]*$")] | None = None


class Variance(Spec):
    """The variance of each column, divided by the number of records that have a value."""

    weight: Annotated[float, Field(ge=0.001, le=1000.0)] = 1.0
    columns: Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(min_length=1, max_length=50)]
    kind: Literal["variance"] = "variance"


class Where(Spec):
    """A filter: records whose cell is one of these values (`in`), or within [lowest, highest] (`between`).

    Every query of the job counts only the records that pass all filters. A missing number or day passes none; a missing
    category is the value `other`, where its declaration says so, and `in` may name that.
    """

    column: Annotated[str, Field(min_length=1, max_length=200)]
    one_of: (
        Annotated[
            list[
                Annotated[int, Field(ge=-9007199254740992, le=9007199254740992)] | Annotated[str, Field(max_length=200)]
            ],
            Field(min_length=1, max_length=10000),
        ]
        | None
    ) = Field(default=None, alias="in")
    between: (
        tuple[
            Annotated[float, Field(ge=-1e30, le=1e30)] | Annotated[str, Field(pattern="^\\d{4}-\\d{2}-\\d{2}$")],
            Annotated[float, Field(ge=-1e30, le=1e30)] | Annotated[str, Field(pattern="^\\d{4}-\\d{2}-\\d{2}$")],
        ]
        | None
    ) = None


class JobSpec(Spec):
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

    kind: Literal["training", "statistics", "synthetic"] = "training"
    dataset: Annotated[str, Field(min_length=1, max_length=100, pattern="^[^\\x00]*$")]
    name: Annotated[str, Field(max_length=200, pattern="^[^\\x00]*$")] = ""
    model: Annotated[
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
        | HfModel,
        Field(discriminator="kind"),
    ] = Field(default_factory=LinearModel)
    optimizer: Annotated[
        DpSgd
        | DpAdam
        | DpAdamBc
        | DpAdamWosm
        | DpZo
        | DpRmsProp
        | DpAdaGrad
        | Dp2RmsProp
        | Dp2AdaGrad
        | Dp2Yogi
        | ScaleThenPrivatize
        | AdaDps
        | PdaDpmd,
        Field(discriminator="kind"),
    ] = Field(default_factory=DpSgd)
    blocks: (
        Literal["all"]
        | Annotated[
            list[Annotated[str, Field(pattern="^[a-z0-9][a-z0-9._-]{0,62}$")]], Field(min_length=1, max_length=1000)
        ]
    ) = "all"
    privacy: JobPrivacy | None
    clipping: Clipping | None = None
    sampling: Annotated[FullBatch | Poisson | Cyclic, Field(discriminator="kind")] = FullBatch()
    noise: CorrelatedNoise | None = None
    class_weights: (
        Annotated[list[Annotated[float, Field(ge=0.001, le=1000.0)]], Field(min_length=2, max_length=10000)]
        | Literal["balanced"]
        | None
    ) = None
    augmentation: Augmentation | None = None
    length: Length = Length(steps="auto")
    evaluation: Evaluation | None = None
    runtime: Runtime = Runtime()
    priority: Annotated[int, Field(ge=-10, le=10)] = 0
    use: Use | None = None
    seed: Annotated[int, Field(ge=0, lt=9223372036854775808)] | None = None
    hpo: Annotated[LinearScaling | Random | RandomSize | Auto, Field(discriminator="strategy")] | None = None
    audit: Audit | None = None
    queries: (
        Annotated[
            list[
                Annotated[
                    Count | Histogram | Contingency | Mean | Sum | Variance | Covariance | Quantile | Categories,
                    Field(discriminator="kind"),
                ]
            ],
            Field(min_length=1, max_length=100),
        ]
        | None
    ) = None
    where: Annotated[list[Where], Field(max_length=20)] = []
    columns: (
        Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(min_length=2, max_length=400)] | None
    ) = None
    target: str | None = None
    rows: Literal["declared"] | Annotated[int, Field(ge=1, le=1000000)] | None = None
    method: Literal["mixture"] | None = None
    bins: Annotated[int, Field(ge=2, le=1000)] | None = None


class StudySpec(JobSpec):
    """A private study: a training job with an `hpo` block."""

    hpo: Annotated[LinearScaling | Random | RandomSize | Auto, Field(discriminator="strategy")]
