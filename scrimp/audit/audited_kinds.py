"""The audited kinds: one job each, all on the audit's own data sets.

A canary's target is so far away that its gradient is clipped to C in every step and points along its own coordinate.
Each coordinate of the released weights is then a Gaussian mechanism of its own with sensitivity C, whatever the
optimizer does with it. The audit therefore needs σ alone: μ = √T/σ.

The kind `network` is another test: jobs on two neighbouring data sets, of which the audit guesses which one each job
trained on (scrimp.audit.planting.plant_neighbours).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

# Where a data set's canaries lie: sparse words, words of users with several records each, a dense array, or nodes of a
# graph; or two data sets that differ in one record.
Layout = Literal["words", "users", "array", "graph", "neighbours"]
Released = Literal["weight", "0.weight", "mean", "scores", "output"]
STEPS, SIGMA = 4, 1.0  # μ = 2: rates of a few per cent are the most informative
SCORE_POINTS, SCORE_MU = 11, 3.0  # μ² = 99 of a cap of ε = 100
ONE, SAMPLED = 1.0, 10  # C; the least number of Poisson steps
USER_RECORDS = 4

Spec = Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """One thing to audit.

    Attributes:
        name: its name in the report.
        optimizer: its job's optimizer; `learning_rate` is in units of 1/L if `scaled`.
        layout: the layout of its canaries.
        released: where the audit looks for their traces: model weights, the mean of features, noisy scores, or a
            network's output.
        sample_rate: q; 1: full batch.
        scaled: the rate is multiplied by L, because g̃ is a sum over L. False for methods without a scale.
        on, metric, points: for scores: the scored part of the data, the metric, and how often.
        rows_per_pass: the most rows of a pass; None: as many as the service chooses.
    """

    name: str
    optimizer: Spec = field(default_factory=lambda: {"kind": "dp_sgd"})
    clipping: Spec = field(default_factory=lambda: {"kind": "flat", "max_grad_norm": ONE})
    layout: Layout = "words"
    released: Released = "weight"
    model: Spec = field(default_factory=lambda: {"kind": "linear", "bias": False})
    sample_rate: float = 1.0
    steps: int = STEPS
    noise_multiplier: float = SIGMA
    scaled: bool = True
    learning_rate: float = 1.0
    on: Literal["holdout", "train"] = "holdout"
    metric: Literal["accuracy", "loss"] = "loss"
    points: int = SCORE_POINTS
    rows_per_pass: int | None = None

    @property
    def of_scores(self) -> bool:
        """Returns True if the audit reads noisy scores."""
        return self.released == "scores"

    @property
    def of_presence(self) -> bool:
        """Returns True if the audit guesses which of two neighbouring data sets each job trained on."""
        return self.layout == "neighbours"

    @property
    def has_side(self) -> bool:
        """Returns True if it needs public records."""
        return self.optimizer["kind"] in ("ada_dps", "pda_dpmd")

    @property
    def delayed(self) -> bool:
        return str(self.optimizer["kind"]).startswith("dp2_")

    @property
    def comparable(self) -> bool:
        """Returns True if its noise lies on the words' coordinates, like other jobs' noise, and moves a weight up as
        often as down."""
        return self.released == "weight" and self.layout != "array"


def _rescaling(kind: str) -> Kind:
    """An optimizer that divides by second moments: its rate has no scale."""
    return Kind(kind, {"kind": kind}, scaled=False)


def _delayed(kind: str, variant: str) -> Kind:
    """Phases that move a weight equally far: η C equals the plain steps'."""
    settings = {"kind": kind, "variant": variant, "max_grad_norm_adaptive": ONE, "delay": 2}
    return Kind(f"{kind} {variant}", settings)


def _clipped(kind: str) -> Kind:
    return Kind(f"clip {kind}", clipping={"kind": kind, "max_grad_norm": ONE})


def _scores(name: str, **changes: Any) -> Kind:
    """The weights are hardly trained and mostly noise: a canary's loss is far above its bound."""
    settings: dict[str, Any] = {"steps": 2 * SCORE_POINTS, "scaled": False, "learning_rate": 1e4}
    return Kind(name, released="scores", noise_multiplier=1e5, **settings, **changes)


# Nearly all records are drawn, so the audit knows where packed ones would stand. Passes are small, so that many
# records stand at a pass's end. ε is small, so that a few dozen right guesses contradict it.
NETWORK = Kind(
    "network",
    layout="neighbours",
    released="output",
    model={"kind": "mlp", "hidden": [32], "activation": "relu"},
    sample_rate=0.999,
    steps=SAMPLED,
    noise_multiplier=30.0,
    learning_rate=0.01,
    rows_per_pass=128,
)
KINDS: tuple[Kind, ...] = (
    Kind("dp_sgd"),
    Kind("dp_sgd momentum", {"kind": "dp_sgd", "momentum": 0.5, "free_step": True}),
    _rescaling("dp_adam"),
    _rescaling("dp_adambc"),
    _rescaling("dp_adamwosm"),
    _rescaling("dp_rmsprop"),
    _rescaling("dp_adagrad"),
    _delayed("dp2_rmsprop", "delayed"),
    _delayed("dp2_rmsprop", "extra_query"),
    _delayed("dp2_rmsprop", "noise_first"),
    _delayed("dp2_adagrad", "delayed"),
    _delayed("dp2_yogi", "delayed"),
    Kind("scale_then_privatize adam", {"kind": "scale_then_privatize", "base": "adam"}, scaled=False),
    Kind("scale_then_privatize rmsprop", {"kind": "scale_then_privatize", "base": "rmsprop"}, scaled=False),
    Kind("ada_dps", {"kind": "ada_dps", "eps": 1.0}),
    Kind("pda_dpmd", {"kind": "pda_dpmd", "horizon": 8}),
    _clipped("automatic"),
    _clipped("adaptive"),
    _clipped("per_layer"),
    Kind(
        "center",
        model={"kind": "linear", "bias": False, "center": {"max_norm": 1.0, "noise_mu": 2.0}},
        layout="array",
        released="mean",
        noise_multiplier=1e5,
    ),
    Kind("poisson", sample_rate=0.5, steps=SAMPLED, noise_multiplier=1.0),
    Kind("poisson dp_adam", {"kind": "dp_adam"}, sample_rate=0.5, steps=SAMPLED, noise_multiplier=1.0, scaled=False),
    Kind(
        "poisson adaptive",
        clipping={"kind": "adaptive", "max_grad_norm": ONE},
        sample_rate=0.5,
        steps=SAMPLED,
        noise_multiplier=1.0,
    ),
    # The claim of a node is reached where it is read: by one other, as `neighbours` says.
    Kind("gcn", layout="graph", released="0.weight", model={"kind": "gcn", "hops": 1, "neighbours": 1}),
    Kind("users", layout="users"),
    Kind("users poisson", layout="users", sample_rate=0.5, steps=SAMPLED, noise_multiplier=1.0),
    _scores("score loss"),
    _scores("score accuracy", metric="accuracy"),
    _scores("score loss on train", on="train"),
    _scores("score loss of users", layout="users"),
    NETWORK,
    # A step has one number for all records and coordinates, so weights are no mechanisms of their own. Losses are about
    # 10¹¹: by the default φ a slope would be rounding alone. About half of the directions tell odd rows from even ones.
    replace(
        NETWORK,
        name="network dp_zo",
        optimizer={"kind": "dp_zo", "phi": 0.3},
        learning_rate=0.001,
        steps=4 * NETWORK.steps,
        noise_multiplier=2.0 * NETWORK.noise_multiplier,
    ),
)
QUICK = ("dp_sgd", "dp_adam", "clip adaptive", "poisson", "users", "score loss", "network")


def chosen(names: str) -> list[Kind]:
    """The kinds in a comma-separated list of names, or in `all` or `quick`.

    Raises:
        ValueError: a name does not exist.
    """
    if names in ("all", "quick"):
        return [kind for kind in KINDS if names == "all" or kind.name in QUICK]
    by_name = {kind.name: kind for kind in KINDS}
    wanted = list(dict.fromkeys(name.strip() for name in names.split(",")))
    unknown = [name for name in wanted if name not in by_name]
    if unknown:
        raise ValueError(f"there is no kind {unknown[0]!r}; choose from all, quick, {', '.join(by_name)}")
    return [by_name[name] for name in wanted]
