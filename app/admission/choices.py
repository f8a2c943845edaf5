"""Closes what a specification leaves open, each choice by a rule with a reason. Nothing here has seen the data.

`completed`: a data set and ε are a whole job. One that names no `optimizer` gets the recipe of its kind of model, and
of its task if it names no model either; what it names stays (`quote.resolved` tells each choice):

    linear, gam             dp_sgd with momentum and a free step, full batch; T, C and rate by rule. Ranges of a
                            table's numbers are cut into bins (`gam`)
    mlp, cnn                the same, without the free step
    matrix_factorization    the settings of one public data set of ratings
    gru_rec and other       DP-Adam as it was measured on one public data set of sequences
    hf                      DP-Adam

`closed`: numbers in the place of "auto". T and C follow from app.hpo.rates; so does the learning rate, once the price
has fixed σ (`with_rate`). Of a search, with μ that of the whole total:

    levels     the ε's of 0.15 μ and 0.3 μ: three pilots at each take 34 % of μ²
    noise_mu   200/records, a deviation of half a percent of the records; at most 0.1 μ, at least 0.001
    space      r = ηT (times C) from a third of the rule's r at the lowest level to three times that at the whole total;
               without a rule η is within a factor of ten of the rate that the job names

In full batch σ = √T/μ. Under Poisson sampling σ follows from the limit μ ≈ q √(T (exp(1/σ²) − 1)), which is no
guarantee and no price, but good enough for where to look.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

from pydantic import ValidationError

from app.admission.facts import DatasetFacts
from app.admission.job_rules import Checked
from app.hpo.rates import (
    CALIBRATED,
    NETWORKS,
    NUMBERS,
    TABLES,
    USERS,
    Choice,
    Constants,
    Part,
    PublicNumbers,
    Resolved,
    Ruled,
    norm_of,
    rate_of,
    rounded,
    steps_of,
)
from app.hpo.tangents import CONV2, tangent_length
from core.contracts.dataset_spec import ClassificationTask, LastItemHoldout, RatingTask, RegressionTask
from core.contracts.hpo import (
    Auto,
    GridOracle,
    LinearScaling,
    PrivateCount,
    PrivateLoss,
    PrivateRanking,
    PrivateScore,
    PublicScore,
    Random,
    RandomK,
    RandomSize,
    ScoredSearch,
    Strategy,
)
from core.contracts.job_spec import (
    Clipping,
    CnnModel,
    Evaluation,
    GamModel,
    GruRecModel,
    JobSpec,
    LinearModel,
    MatrixFactorizationModel,
    MlpModel,
    Model,
    Ranking,
)
from core.contracts.metrics import Metric
from core.contracts.optimizers import (
    AdaDps,
    Dp2Settings,
    DpAdaGrad,
    DpAdam,
    DpAdamBc,
    DpRmsProp,
    DpSgd,
    DpZo,
    Optimizer,
    ScaleThenPrivatize,
    WarmupLinearSchedule,
)
from core.contracts.sampling import Cyclic, Length
from core.contracts.table import NumberColumn, TableFeatures, is_one_hot
from core.errors import InvalidRequest
from core.privacy import derive
from core.privacy.gdp import epsilon_from_mu, mu_from_epsilon
from core.privacy.prices import Price

WHERE = "/optimizer/learning_rate"
USUAL = "the usual number"
UNMEASURED = (
    "`auto` takes the nearest rule: no experiment tells a learning rate {}. Compare the score with that of a rate that "
    "you name"
)
USUAL_STEPS, USUAL_NORM = 50, 1.0  # where no rule is known
TWO_CLASSES = 2  # of a table: weights of them were measured
ADAPTIVE = DpAdamBc | DpRmsProp | DpAdaGrad | ScaleThenPrivatize | AdaDps
NAMED = "`strategy: auto` runs no search here, and the job keeps the learning rate that it names."
LEVELS = (0.15, 0.3)  # of the total's μ
MANY = 3  # pilots of a level; more of them are cheaper ones, so that all together take no more
DEVIATION = 0.005  # of the records: the noise of a score
MOST_OF_MU, LEAST_MU = 0.1, 1e-3  # a score's noise_mu, at most this part of the total's μ
LEAST_LEVEL, LEAST_RISE = 1e-4, 1.01  # of an ε, and from one to the next
BESIDE = 10.0  # the factor below and above a named rate, where no rule is known
LEAST_RATE, MOST_RATE = 1e-12, 1e12
AROUND = 3.0  # the factor below and above the rule's r
NO_GAIN = (
    f"A search is not expected to gain: two levels with three pilots each would take "
    f"{100 * MANY * sum(each**2 for each in LEVELS):.0f} % of μ², and a rate from public numbers takes none."
)
NEAREST = "There is no search: nothing was measured that says where to begin one. Name a rate to search around."

TARGET_STD = 0.01  # of a score's range: smaller differences between models are seldom real
# The most noise_mu of the score, in parts of the job's μ. The hold-out has an account of its own; on the training part
# the score is paid from the same total as the training: 4 % of μ².
OWN_SHARE, TRAIN_SHARE = 0.5, 0.2
LEAST_NOISE, USUAL_MU = 0.01, 0.1  # USUAL_MU: of a job that has no total
MOST_BALANCED = 10  # classes: the noise of macro-F1 grows with their number, that of accuracy alone does not
TOKEN_LOSS_BOUND = 10.0
BEST_RANKS = 10
RATINGS = "as one job on public ratings of films had it (examples/movielens-epsilon-3.json); nothing was compared"
SEQUENCES = "as measured on one public data set of sequences at ε = 8 (benchmarks/reports/reproduce/dpformer_games.md)"
LEARNS_MOST = "learns most at small ε, and has rules for all its numbers (docs/choosing.md)"
FEW_BINS, BINS, MANY_RECORDS = 8, 16, 100.0  # fewer bins where μ n is less than so much a column
LINEAR = "the recipe of linear models: momentum, and one more update for free"


@dataclass(frozen=True)
class Rule:
    """How a job's rate follows from T, σ and C.

    Attributes:
        batch: L.
        length, outputs, is_sparse, spread: see PublicNumbers.
        unmeasured: what the job has and no experiment had, though the rule is the same.
    """

    optimizer: Ruled
    constants: Constants
    batch: int
    length: float
    outputs: int
    is_sparse: bool
    spread: float | None = None
    unmeasured: tuple[str, ...] = ()
    scale: float = 1.0

    def numbers(self, steps: int, sigma: float, max_grad_norm: float) -> PublicNumbers:
        """What the rule depends on."""
        return PublicNumbers(
            steps=steps,
            expected_batch_size=self.batch,
            noise_multiplier=sigma,
            max_grad_norm=max_grad_norm,
            length=self.length,
            outputs=self.outputs,
            is_sparse=self.is_sparse,
            spread=self.spread,
            scale=self.scale,
        )

    def rate(self, steps: int, sigma: float, max_grad_norm: float) -> Choice:
        """Returns the rate for T steps at σ and C."""
        choice = rate_of(self.optimizer, self.numbers(steps, sigma, max_grad_norm), self.constants)
        if not self.unmeasured:
            return choice
        because = f"{choice.because}; not measured {' or '.join(self.unmeasured)}"
        return choice.model_copy(update={"because": because})


class Training(NamedTuple):
    """The optimizer of a kind of model, with what belongs to it."""

    optimizer: Optimizer
    because: str
    clipping: Clipping | None = None
    length: Length | None = None


def completed(spec: JobSpec, facts: DatasetFacts) -> tuple[JobSpec, tuple[Part, ...]]:
    """Returns the job with what it leaves out filled in from the declaration, and why: model, optimizer, scores, and
    numbers for "balanced" classes.

    Raises:
        InvalidRequest: its task has no default model, or the data set declares no shares.
    """
    weighted, weights = _with_class_weights(spec, facts)
    recipe, parts = _with_recipe(weighted, facts)
    return recipe, (*parts, *weights)


@dataclass(frozen=True)
class Closed:
    """A job whose choices are closed, but for the learning rate.

    Attributes:
        chosen: its T and C, and why these; None if it named both.
        why: why `strategy: auto` is no search here.
        warnings: of the search.
    """

    spec: JobSpec
    chosen: Resolved | None = None
    why: str | None = None
    warnings: tuple[str, ...] = ()


def closed(spec: JobSpec, facts: DatasetFacts) -> Closed:
    """Closes all that follows from public facts alone.

    Raises:
        InvalidRequest: a search has no rule, or its settings do not go together.
    """
    spec, resolved = with_numbers(spec, facts)
    spec, reasons = decided(spec, facts)
    spec, needless = _with_scores(spec, facts), _needless_search(spec, facts)
    if spec.study is not None:
        _check_search(spec, spec.study, facts)
        spec = settled(spec, spec.study, facts)
    if spec.selection is not None:
        spec = _with_own_rates(spec, spec.selection)
    return Closed(spec, resolved, reasons, needless)


def _with_own_rates(spec: JobSpec, hpo: RandomSize) -> JobSpec:
    """Names a rate where a selection names none, as each of its runs draws its own."""
    optimizer, (lower, upper) = spec.optimizer, hpo.space.rates
    if optimizer.learning_rate == "auto":
        optimizer = optimizer.model_copy(update={"learning_rate": math.sqrt(lower * upper)})
    return spec.model_copy(update={"optimizer": optimizer})


def _with_scores(spec: JobSpec, facts: DatasetFacts) -> JobSpec:
    """Names the scores of two classes where a private evaluation names none: `auc`, which tells of a rare class.

    Stored, so that an evaluation that names none, as older jobs have, keeps its meaning.
    """
    evaluation = spec.evaluation
    if evaluation is None or spec.privacy is None or not derive.is_noisy(evaluation, facts.public):
        return spec
    two_classes = facts.spec.task.is_classification and facts.outputs == TWO_CLASSES
    if not two_classes or evaluation.metrics or evaluation.groups or evaluation.by_frequency or evaluation.ranking:
        return spec
    return spec.model_copy(update={"evaluation": evaluation.model_copy(update={"metrics": ["auc"]})})


def with_numbers(spec: JobSpec, facts: DatasetFacts) -> tuple[JobSpec, Resolved | None]:
    """Returns the job with numbers as its T and C, and why these; None if it named both. Where no experiment tells,
    they are the usual ones, and the reason says so."""
    auto_steps = spec.length.steps == "auto"
    if spec.clipping is None and spec.privacy is not None and auto_steps:
        spec = spec.model_copy(update={"clipping": Clipping(max_grad_norm="auto")})
    auto_norm = spec.clipping is not None and spec.clipping.max_grad_norm == "auto"
    if not auto_steps and not auto_norm:
        return spec, None
    rule: Rule | str = f"for a `{spec.model.kind}` model"
    if isinstance(spec.model, LinearModel):
        measured = rule_of(spec, facts)
        rule = measured if isinstance(measured, Rule) else nearest_rule(spec, facts, measured) or measured
    norm = steps = None
    if auto_norm and spec.clipping is not None:
        norm = _usual(USUAL_NORM, rule) if isinstance(rule, str) else _norm(rule)
        spec = spec.model_copy(update={"clipping": spec.clipping.model_copy(update={"max_grad_norm": norm.value})})
    if auto_steps:
        steps = _steps(rule, spec, facts)
        spec = spec.model_copy(update={"length": Length(steps=int(steps.value))})
    return spec, Resolved(steps=steps, max_grad_norm=norm)


def _usual(value: float, because: str) -> Choice:
    return Choice(value=value, because=f"{USUAL}: no experiment tells one {because}")


def _norm(rule: Rule) -> Choice:
    """C: a user's k records are clipped to C/k each; the class of the largest weight is clipped like a plain record."""
    choice = norm_of(rule.length, rule.outputs, rule.constants)
    if rule.scale == 1.0:
        return choice
    because = f"{rule.scale:.3g}, a user's records times the largest class weight, times {choice.because}"
    return Choice(value=rounded(rule.scale * choice.value), because=because)


def _steps(rule: Rule | str, spec: JobSpec, facts: DatasetFacts) -> Choice:
    if not spec.sampling.takes_all:
        return _usual(USUAL_STEPS, f"for `{spec.sampling.kind}` batches")
    if spec.privacy is not None and spec.privacy.target_epsilon is None:
        return _usual(USUAL_STEPS, "where each step costs ε, as with a `noise_multiplier`")
    measured = rule_of(spec, facts)
    if isinstance(rule, str) or not isinstance(spec.optimizer, Ruled):
        return _usual(USUAL_STEPS, measured if isinstance(measured, str) else str(rule))
    _, mu = total_of(spec, facts)
    norm = spec.clipping.norm if spec.clipping is not None else 1.0
    numbers = rule.numbers(steps=1, sigma=1.0, max_grad_norm=norm)
    return steps_of(rule.optimizer, numbers, math.inf if mu is None else mu, rule.constants)


def with_rate(checked: Checked, priced: Price, job: Closed) -> Checked:
    """Returns the job with a number as its learning rate, and with the reason if it was "auto".

    Args:
        job: the same one as it was closed.

    Raises:
        InvalidRequest: no rule is known for such a job, or its rate does not go with the weight decay.
    """
    spec, reason, numbers = checked.spec, job.why, job.chosen
    if spec.optimizer.learning_rate != "auto":
        named_norm = checked if reason is None else replace(checked, warnings=(*checked.warnings, f"{NAMED} {reason}"))
        return replace(named_norm, resolved=numbers)
    measured = rule_of(spec, checked.facts)
    rule = measured if isinstance(measured, Rule) else nearest_rule(spec, checked.facts, measured)
    if rule is None:
        raise InvalidRequest.at(WHERE, f"no rule for `auto` is known {measured}: give a number (docs/choosing.md)")
    if isinstance(measured, str):
        checked = replace(checked, warnings=(*checked.warnings, UNMEASURED.format(measured)))
    training = priced.mechanism.training if priced.mechanism else None
    sigma, norm = (training.noise_multiplier, training.max_grad_norm) if training else (0.0, 1.0)
    choice = rule.rate(checked.steps, sigma, norm)
    try:
        optimizer = type(spec.optimizer).model_validate(spec.optimizer.model_dump() | {"learning_rate": choice.value})
    except ValidationError as error:
        why = error.errors()[0]["msg"].removeprefix("Value error, ")
        detail = f"`auto` means {choice.value:g} here ({choice.because}); {why}: give a number"
        raise InvalidRequest.at(WHERE, detail) from None
    because = choice.because if reason is None else f"{choice.because}. {reason}"
    resolved = (numbers or Resolved()).model_copy(update={"learning_rate": choice.value, "because": because})
    return replace(checked, spec=spec.model_copy(update={"optimizer": optimizer}), resolved=resolved)


def rule_of(spec: JobSpec, facts: DatasetFacts) -> Rule | str:
    """Returns the rule for a job's learning rate; where nothing like it was tried, says where: "for regression"."""
    model, optimizer = spec.model, spec.optimizer
    if not isinstance(model, LinearModel | MlpModel | CnnModel):
        return f"for a `{model.kind}` model"
    if not isinstance(optimizer, Ruled):
        return f"for the optimizer `{optimizer.kind}`"
    length = tangent_length(model, _inputs(model, facts), _length(model, facts))
    untried = _untried(spec, facts)
    if length is None or untried is not None:
        return untried or f"for the network `{getattr(model, 'preset', model.kind)}`"
    return _rule(spec, facts, model, optimizer, length)


def nearest_rule(spec: JobSpec, facts: DatasetFacts, untried: str) -> Rule | None:
    """Returns the rule of the jobs that are most like one that no experiment had; None where a rate cannot follow.

    Optimizers that divide by moments take DP-Adam's rate, others DP-SGD's. A network of unknown J counts as `conv2`. A
    target without a range has no unit that a rate could be in.

    Args:
        untried: what no experiment had, as `rule_of` says it.
    """
    model, optimizer = spec.model, spec.optimizer
    if not isinstance(model, LinearModel | MlpModel | CnnModel):
        return None
    if not facts.spec.task.is_classification and _target(facts) is None:
        return None
    if isinstance(optimizer, DpZo):  # its steps are along one direction, √d times as long
        return None
    if not isinstance(optimizer, Ruled):
        shared = {"schedule": optimizer.schedule, "averaging": optimizer.averaging}
        optimizer = DpAdam(**shared) if isinstance(optimizer, ADAPTIVE) else DpSgd(**shared)
    length = tangent_length(model, _inputs(model, facts), _length(model, facts))
    if length is None and isinstance(model, CnnModel):
        factor, power = CONV2[model.activation]
        length = factor * math.pow(_length(model, facts) * model.input_scale, power)
    if length is None:
        return None
    rule = _rule(spec, facts, model, optimizer, length)
    return replace(rule, unmeasured=(*rule.unmeasured, untried))


def _rule(
    spec: JobSpec, facts: DatasetFacts, model: LinearModel | MlpModel | CnnModel, optimizer: Ruled, length: float
) -> Rule:
    largest_weight = max(spec.class_weights) if isinstance(spec.class_weights, list) else 1.0
    return Rule(
        optimizer=optimizer,
        constants=_constants(model, facts),
        batch=spec.sampling.batch(facts.records_train),
        length=length,
        outputs=facts.outputs,
        is_sparse=isinstance(model, LinearModel) and model.is_sparse(facts.is_sparse),
        spread=facts.spec.features.spread(facts.features) if _is_table(model, facts) else None,
        unmeasured=_unmeasured(spec),
        scale=facts.records_per_unit * largest_weight,
    )


def _target(facts: DatasetFacts) -> tuple[float, float] | None:
    """The declared range of a number that is predicted."""
    return facts.spec.task.range if isinstance(facts.spec.task, RegressionTask) else None


def _is_table(model: Model, facts: DatasetFacts) -> bool:
    return isinstance(model, LinearModel) and model.extractor is None and isinstance(facts.spec.features, TableFeatures)


def _constants(model: Model, facts: DatasetFacts) -> Constants:
    if not isinstance(model, LinearModel):
        return NETWORKS
    if not facts.spec.task.is_classification:
        return NUMBERS
    if not _is_table(model, facts):
        return CALIBRATED
    return TABLES if facts.records_per_unit == 1 else USERS


def _unmeasured(spec: JobSpec) -> tuple[str, ...]:
    optimizer, dropout = spec.optimizer, getattr(spec.model, "dropout", 0.0)
    has = {
        "with `averaging`": optimizer.averaging is not None,
        "with a `schedule`": optimizer.schedule.kind != "constant",
        "with `dropout`": dropout > 0.0,
        "with `augmentation`": spec.augmentation is not None,
    }
    return tuple(name for name, is_present in has.items() if is_present)


def _untried(spec: JobSpec, facts: DatasetFacts) -> str | None:
    """Returns what no experiment had, of the models and optimizers with a rule."""
    is_linear = isinstance(spec.model, LinearModel)
    clipping = spec.clipping.kind if spec.clipping is not None else "flat"
    if not facts.spec.task.is_classification and not (is_linear and _target(facts)):
        return "for regression" if not is_linear else "for regression without the target's range (`task.range`)"
    of_tables = isinstance(spec.optimizer, DpSgd) and facts.spec.task.is_classification and _is_table(spec.model, facts)
    if facts.records_per_unit > 1 and not of_tables:
        return "where a user has several records, but for classes of a declared table with `dp_sgd`"
    if clipping != "flat" and not (is_linear and clipping == "per_layer"):  # a linear model is one layer
        return f"for `{clipping}` clipping"
    if spec.privacy is None and not is_linear:
        return "for a network without privacy"
    alternatives = {
        "for `cyclic` batches": isinstance(spec.sampling, Cyclic),
        "with `class_weights`": spec.class_weights is not None and not (of_tables and facts.outputs == TWO_CLASSES),
        "with correlated noise": spec.noise is not None,
    }
    return next((name for name, is_present in alternatives.items() if is_present), None)


def _inputs(model: LinearModel | MlpModel | CnnModel, facts: DatasetFacts) -> int:
    return model.inputs(facts.features) if isinstance(model, LinearModel) else facts.features


def _length(model: LinearModel | MlpModel | CnnModel, facts: DatasetFacts) -> float:
    """About ‖x‖ of what the model reads."""
    extractor = model.extractor if isinstance(model, LinearModel) else None
    if extractor is not None:
        return extractor.length or math.sqrt(_inputs(model, facts)) / 2.0
    return facts.spec.features.length(facts.features)


def decided(spec: JobSpec, facts: DatasetFacts) -> tuple[JobSpec, str | None]:
    """Returns the job that `strategy: auto` stands for, and why it is no search; other jobs as they are.

    Raises:
        InvalidRequest: no rule is known, and the job does not say what a search needs.
    """
    if not isinstance(spec.hpo, Auto):
        return spec, None
    why_not = rule_of(spec, facts)
    if isinstance(why_not, Rule):
        return spec.model_copy(update={"hpo": None}), NO_GAIN
    if spec.optimizer.learning_rate == "auto" and nearest_rule(spec, facts, why_not) is not None:
        return spec.model_copy(update={"hpo": None}), NEAREST
    delta, mu = total_of(spec, facts)
    if mu is None:
        detail = (
            f"no rule gives the learning rate {why_not}, and a search divides a total: give `target_epsilon`, or name "
            "a learning rate and leave `hpo` out"
        )
        raise InvalidRequest.at("/hpo/strategy", detail)
    if spec.optimizer.learning_rate == "auto":
        detail = f"no rule gives the learning rate {why_not}, and a search begins at a rate: name one"
        raise InvalidRequest.at("/optimizer/learning_rate", detail)
    if not _divides(*_levels(mu, delta, MANY)):
        detail = f"no rule gives the learning rate {why_not}, and the total is too small for a search: leave `hpo` out"
        raise InvalidRequest.at("/hpo", detail)
    return spec.model_copy(update={"hpo": LinearScaling(score=_score_for(facts))}), None


def _needless_search(spec: JobSpec, facts: DatasetFacts) -> tuple[str, ...]:
    """Warns of a private search where a rule gives the rate: one run was ahead of it in all measured cells."""
    has_rule = spec.hpo is not None and facts.is_private and isinstance(rule_of(spec, facts), Rule)
    return (f"{NO_GAIN} Take `strategy: auto`, or leave `hpo` out.",) if has_rule else ()


def _check_search(spec: JobSpec, hpo: Strategy, facts: DatasetFacts) -> None:
    if spec.audit is not None:
        detail = "a study is not audited: its trials share one price. Audit a job with the point that it finds"
        raise InvalidRequest.at("/audit", f"{detail}: leave `audit` out")
    if isinstance(hpo, GridOracle) and facts.is_private:
        detail = "`grid_oracle` is for public data only: it spends the whole budget on every point, unaccounted"
        raise InvalidRequest.at("/hpo/strategy", detail)
    if isinstance(spec.optimizer, Dp2Settings) and spec.optimizer.learning_rate == "auto":
        detail = "a study keeps the ratio of `learning_rate_adaptive` to `learning_rate`: give a number"
        raise InvalidRequest.at("/optimizer/learning_rate", detail)
    if spec.privacy is not None and spec.privacy.target_epsilon is None:
        detail = "a study divides a total among its trials: give `target_epsilon`"
        raise InvalidRequest.at("/privacy/noise_multiplier", detail)
    if isinstance(hpo, LinearScaling) and spec.privacy is None:
        raise InvalidRequest.at("/privacy", "linear scaling needs privacy: give `target_epsilon`")
    if spec.sampling.is_sampled and hpo.space.steps is not None:
        detail = "Poisson sampling fixes every trial's T and σ in advance: give `length`, and leave `space.steps` out"
        raise InvalidRequest.at("/hpo/space/steps", detail)
    if isinstance(hpo, ScoredSearch | GridOracle) and not isinstance(hpo, LinearScaling) and spec.evaluation:
        raise InvalidRequest.at("/evaluation", f"trials of `{hpo.strategy}` only have their score: leave it out")
    if hpo.space.max_grad_norm is not None and spec.privacy is None:
        raise InvalidRequest.at("/hpo/space/max_grad_norm", "without privacy nothing is clipped: leave it out")


def settled(spec: JobSpec, hpo: Strategy, facts: DatasetFacts) -> JobSpec:
    """Returns a study's spec with numbers in the place of every "auto" of its search."""
    delta, mu = total_of(spec, facts)
    if hpo.space.learning_rate == "auto":
        space = hpo.space.model_copy(update={"learning_rate": rates_of(spec, hpo, facts, mu, delta)})
        hpo = hpo.model_copy(update={"space": space})
    if isinstance(hpo, LinearScaling) and hpo.levels == "auto" and mu is not None:
        hpo = hpo.model_copy(update={"levels": levels_of(mu, delta, hpo.runs_per_level)})
    score = None if isinstance(hpo, Random) else hpo.score
    if score is not None and not isinstance(score, PublicScore) and score.noise_mu == "auto":
        hpo = hpo.model_copy(
            update={"score": score.model_copy(update={"noise_mu": score_mu(score, facts, mu, spec.model.reach)})}
        )
    return spec.model_copy(update={"hpo": hpo})


def levels_of(mu: float, delta: float, runs_per_level: int = MANY) -> list[float]:
    """Returns the ε's of two levels, for a total of μ at δ.

    Raises:
        InvalidRequest: the total is too small for them.
    """
    low, high = _levels(mu, delta, runs_per_level)
    if not _divides(low, high):
        raise InvalidRequest.at("/hpo/levels", "the total is too small to divide into levels by itself: give `levels`")
    return [low, high]


def _levels(mu: float, delta: float, runs_per_level: int) -> tuple[float, float]:
    low, high = (rounded(epsilon_from_mu(each * mu * _shrunk(runs_per_level), delta)) for each in LEVELS)
    return low, high


def _divides(low: float, high: float) -> bool:
    """Returns True if pilots can have these levels."""
    return low >= LEAST_LEVEL and high >= low * LEAST_RISE


def score_mu(score: PrivateScore, facts: DatasetFacts, mu: float | None, reach: int = 1) -> float:
    """Returns a score's noise_mu; μ is None without privacy. `reach`: of ModelSettings."""
    records = facts.records_train if score.on == "train" else facts.records_holdout
    wanted = facts.records_per_unit * reach / (DEVIATION * max(records or 0, 1))
    return rounded(max(LEAST_MU, min(wanted, MOST_OF_MU * mu if mu is not None else 1.0)))


def rates_of(spec: JobSpec, hpo: Strategy, facts: DatasetFacts, mu: float | None, delta: float) -> tuple[float, float]:
    """Returns the bounds of η; μ is None without privacy.

    Raises:
        InvalidRequest: no rule is known, and no rate is named to search around.
    """
    rule = rule_of(spec, facts)
    if isinstance(rule, str):
        return _around_named(spec, rule)
    clip = (spec.clipping or Clipping()).norm if spec.privacy is not None else 1.0
    planned = spec.length.total(spec.sampling.steps_an_epoch(facts.records_train))
    steps, norms = hpo.space.steps or (planned, planned), hpo.space.max_grad_norm or (clip, clip)
    products = []  # ηTC by the rule, at each end of the privacy of trials and of T and C
    for steps_tried, length, norm in product({_least_mu(hpo, mu, delta), mu}, set(steps), set(norms)):
        sigma = _sigma(spec, facts, length, steps_tried) if steps_tried is not None else 0.0
        products.append(rule.rate(length, sigma, norm).value * length * norm)
    lowest = min(products) / (AROUND * steps[0] * norms[0])
    highest = max(products) * AROUND / (steps[1] * norms[1])
    if highest < AROUND**2 * lowest:  # T or C alone span more than that
        middle = math.sqrt(lowest * highest)
        lowest, highest = middle / AROUND, middle * AROUND
    return rounded(lowest), rounded(highest)


def _around_named(spec: JobSpec, why_not: str) -> tuple[float, float]:
    """Returns the bounds around the rate that the job names; see rates_of."""
    rate = spec.optimizer.learning_rate
    if rate == "auto":
        detail = (
            f"no rule gives the learning rate {why_not}: give the bounds as [least, most], or name a rate to begin at"
        )
        raise InvalidRequest.at("/hpo/space/learning_rate", detail)
    return max(rounded(rate / BESIDE), LEAST_RATE), min(rounded(rate * BESIDE), MOST_RATE)


def total_of(spec: JobSpec, facts: DatasetFacts) -> tuple[float, float | None]:
    """Returns the job's δ, and the μ of its total; None if it has no total."""
    privacy = spec.privacy
    return facts.total(privacy.target_epsilon, privacy.target_delta) if privacy is not None else facts.total(None, None)


def _least_mu(hpo: Strategy, mu: float | None, delta: float) -> float | None:
    """Returns about the least μ that a trial has; None without privacy."""
    if mu is None:
        return None
    if isinstance(hpo, LinearScaling):
        if hpo.levels != "auto":
            return mu_from_epsilon(hpo.levels[0], delta)
        return LEVELS[0] * _shrunk(hpo.runs_per_level) * mu
    return mu / math.sqrt(hpo.runs) if isinstance(hpo, RandomK) else mu


def _shrunk(runs_per_level: int) -> float:
    """Returns the factor on the levels' μ with which more pilots than three take no more."""
    return math.sqrt(MANY / max(MANY, runs_per_level))


def _sigma(spec: JobSpec, facts: DatasetFacts, steps: int, mu: float) -> float:
    """Returns about the σ of a trial with this much privacy."""
    if not spec.sampling.is_sampled:
        return math.sqrt(steps) / mu
    ratio = mu / (spec.sampling.rate(facts.records_train) * math.sqrt(steps))
    return 1.0 / math.sqrt(math.log1p(ratio**2))


def _score_for(facts: DatasetFacts) -> PrivateScore:
    """Returns the score that fits the task."""
    if facts.spec.task.record_is_user:
        return PrivateRanking()
    return PrivateCount() if facts.spec.task.is_classification else PrivateLoss()


def _with_recipe(spec: JobSpec, facts: DatasetFacts) -> tuple[JobSpec, tuple[Part, ...]]:
    """Returns the job with its model, optimizer and scores, and why these; a job that names an optimizer as it is.

    Raises:
        InvalidRequest: its task has no default model.
    """
    fields_set = spec.model_fields_set
    if "optimizer" in fields_set:
        return spec, ()
    model, evaluation, parts = spec.model, spec.evaluation, list[Part]()
    if "model" not in fields_set:
        model, because = _model(spec, facts)
        parts.append(Part(name="model", value=model.kind, because=because))
    training = _training(model)
    parts.append(Part(name="optimizer", value=training.optimizer.kind, because=training.because))
    clips = training.clipping is not None and "clipping" not in fields_set and spec.privacy is not None
    lasts = training.length is not None and "length" not in fields_set
    if "evaluation" not in fields_set:
        evaluation, scores_part = _scores(spec, model, facts)
        parts.append(scores_part)
    completed = {
        "model": model,
        "optimizer": training.optimizer,
        "clipping": training.clipping if clips else spec.clipping,
        "length": training.length if lasts else spec.length,
        "evaluation": evaluation,
    }
    return spec.model_copy(update=completed), tuple(parts)


def _with_class_weights(spec: JobSpec, facts: DatasetFacts) -> tuple[JobSpec, tuple[Part, ...]]:
    """Returns the job with numbers for "balanced" classes: w_c = 1/(K share_c), so that Σ share_c w_c = 1.

    Raises:
        InvalidRequest: the data set declares no shares.
    """
    if spec.class_weights != "balanced":
        return spec, ()
    task = facts.spec.task
    if not isinstance(task, ClassificationTask) or task.shares is None:
        detail = (
            "the data set declares no `task.shares`, and counts of private records are not public: give a number for "
            "each class, from public knowledge"
        )
        raise InvalidRequest.at("/class_weights", detail)
    weights = [float(f"{1.0 / (len(task.shares) * share):.4g}") for share in task.shares]
    listed = ", ".join(f"{weight:g}" for weight in weights)
    because = "1/(K share) of the declared shares"
    if len(weights) == TWO_CLASSES:
        because += (
            "; a threshold on the probabilities gives more balanced accuracy, and costs nothing (docs/choosing.md)"
        )
    part = Part(name="class weights", value=listed, because=because)
    return spec.model_copy(update={"class_weights": [min(max(each, 1e-3), 1e3) for each in weights]}), (part,)


def _model(spec: JobSpec, facts: DatasetFacts) -> tuple[Model, str]:
    match facts.spec.task.kind:
        case "rating":
            return MatrixFactorizationModel(dim=4), RATINGS
        case "next_item":
            return GruRecModel(dim=32, max_length=8, dropout=0.2), f"the best of the models compared there, {SEQUENCES}"
        case "language_model":
            detail = 'a language model begins at a pretrained one: name its folder, {"kind": "hf", "name": …}'
            raise InvalidRequest.at("/model", detail)
        case _:
            features = facts.spec.features
            if isinstance(features, TableFeatures) and _has_numbers_to_bin(features):
                return _additive(spec, facts, len(features.columns))
            return LinearModel(), LEARNS_MOST


def _has_numbers_to_bin(features: TableFeatures) -> bool:
    """Returns True if a number has no bins, and each such number has a range to divide."""
    numbers = [each for each in features.columns if isinstance(each, NumberColumn) and not is_one_hot(each)]
    return bool(numbers) and all(each.range is not None for each in numbers)


def _additive(spec: JobSpec, facts: DatasetFacts, columns: int) -> tuple[Model, str]:
    """A model with numbers in bins, fewer of them where the noise is large: μ n a column."""
    _, mu = total_of(spec, facts)
    signal = math.inf if mu is None else mu * facts.records_train / columns
    bins = FEW_BINS if signal < MANY_RECORDS else BINS
    because = (
        f"numbers in {bins} bins of their ranges follow curves, which gained 3 points of AUC on eleven public tables; "
        f"{FEW_BINS} bins where μ n is below {MANY_RECORDS:g} a column, {BINS} elsewhere "
        "(benchmarks/reports/tables.md)"
    )
    return GamModel(bins=bins), because


def _training(model: Model) -> Training:
    match model.kind:
        case "linear" | "gam":
            return Training(DpSgd(momentum=0.9, free_step=True), LINEAR)
        case "mlp" | "cnn":
            return Training(DpSgd(momentum=0.9), "the optimizer whose rates were measured for networks")
        case "matrix_factorization":
            optimizer = DpSgd(learning_rate=20.0, momentum=0.9, weight_decay=5e-4)
            return Training(optimizer, RATINGS, Clipping(), Length(steps=50))
        case "gru_rec" | "lstm_rec" | "transformer_rec":
            # The rates are those of the GRU and of the tied transformer.
            rate = 0.06 if model.kind == "transformer_rec" else 0.12
            adam = DpAdam(learning_rate=rate, weight_decay=1e-5, schedule=WarmupLinearSchedule())
            return Training(adam, SEQUENCES, Clipping(kind="automatic"), Length(steps=30))
        case _:
            return Training(
                DpAdam(learning_rate=1e-3), "the usual number for few trained parameters; no experiment chose it"
            )


def _scores(spec: JobSpec, model: Model, facts: DatasetFacts) -> tuple[Evaluation, Part]:
    """The scores of a task, on the hold-out if there is one: its own account pays, or nobody."""
    task, on = facts.spec.task, "holdout" if facts.spec.holdout is not None else "train"
    metrics: list[Metric] | None = None
    bound, ranking = 1.0, None
    if task.is_classification and facts.outputs == TWO_CLASSES:
        metrics = ["auc"]
    elif task.is_classification and facts.outputs <= MOST_BALANCED:
        metrics = ["macro_f1"]
    elif isinstance(task, RegressionTask) and task.range is not None:
        metrics = ["r_squared"]
    elif isinstance(task, RatingTask):
        bound = float((task.scale[1] - task.scale[0]) ** 2)
    elif task.kind == "language_model":
        bound = TOKEN_LOSS_BOUND
    elif task.record_is_user:
        ranking = Ranking(k=min(BEST_RANKS, facts.rows[1]))
    evaluation = Evaluation.model_validate(
        {"on": on, "metrics": metrics, "loss_bound": bound, "ranking": ranking, "noise_mu": LEAST_NOISE}
    )
    part = "hold-out" if on == "holdout" else "training part"
    released = derive.scores_of(evaluation, facts.public, model)
    planned = [noise.std / each.sensitivity for each in released for noise in each.planned]
    if spec.privacy is None or not planned:
        return evaluation, Part(name="scores", value=f"on the {part}", because="exact, as it is public")
    own_account = on == "holdout" and not isinstance(facts.spec.holdout, LastItemHoldout)
    _, mu = total_of(spec, facts)
    budget_mu = (OWN_SHARE if own_account else TRAIN_SHARE) * (mu if mu is not None else USUAL_MU)
    wanted = LEAST_NOISE * max(planned) / TARGET_STD
    noise_mu = float(f"{max(min(wanted, budget_mu), LEAST_NOISE):.2g}")
    because = f"noise of {TARGET_STD:g} of a score's range, if that costs at most {budget_mu:.2g} of μ"
    scores_part = Part(name="scores", value=f"on the {part}, noise_mu = {noise_mu:g}", because=because)
    return evaluation.model_copy(update={"noise_mu": noise_mu}), scores_part
