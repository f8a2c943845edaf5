"""From a JobSpec and a data set's PUBLIC numbers to a plan: steps, sampling rate, divisor, and what there is to price.

Nothing here has seen the data. The plan's numbers go into the MechanismConfig, which decides both what runs and what is
charged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from app.catalogue import models, optimizers
from app.contracts.base import AccountName, Unit
from app.contracts.dataset_spec import DatasetSpec
from app.contracts.job_spec import AdaptiveNorm, Clipping, Evaluation, JobSpec, Model, token_ranks
from app.contracts.optimizers import PublicSideSettings
from app.errors import InvalidRequest
from app.privacy.mechanism import MIN_POISSON_BLOCK_STEPS, delayed_of
from app.privacy.numerics import Numerics, PublicSizes, numerics_of

if TYPE_CHECKING:
    from app.jobs.studies import StudyPlan

# Public data have no account: a job on them is priced all the same, and charged nothing (app.jobs.service).
ANY_FILTER = {"kind": "rdp", "order": 8.0}
LIKELY_GUESS = 6.0  # the loss of a guess among 400 tokens: below it hardly any model's losses fit under the bound


@dataclass(frozen=True)
class DatasetFacts:
    """What planning may know of a data set: all of it public."""

    id: str
    name: str
    spec: DatasetSpec
    records_train: int
    records_holdout: int
    features: int
    outputs: int
    filter: str | None  # None on public data: there is no account
    order: float | None
    cap_delta: float | None

    @property
    def rows(self) -> tuple[int, int]:
        """Declared users and items, where there are any."""
        features = self.spec.features
        if features.kind != "interactions":
            return (0, 0)
        return (features.users.rows if features.users else 0, features.items.rows)

    @property
    def unit(self) -> Unit:
        """Whose ε it is: that of what one record holds."""
        return "user" if self.spec.task.kind == "next_item" else self.spec.privacy.unit

    @property
    def is_sparse(self) -> bool:
        return self.spec.features.kind == "hashed_text"

    @property
    def is_private(self) -> bool:
        return self.spec.privacy.sensitivity == "private"

    @property
    def records_per_unit(self) -> int:
        """At most so many records share the protection of one unit."""
        return self.spec.privacy.max_records_per_user or 1

    @property
    def holdout_is_private(self) -> bool:
        return self.is_private and self.spec.holdout is not None and self.spec.holdout.kind != "public"

    @property
    def holdout_account(self) -> AccountName:
        """Who pays for scores: last items are those of the users who are trained on."""
        return "train" if self.spec.holdout is not None and self.spec.holdout.kind == "last_item" else "holdout"


@dataclass(frozen=True)
class Plan:
    """A job, fixed in advance.

    Attributes:
        steps: T.
        expected_batch_size: L, the divisor of every step.
        sample_rate: q = L / records.
        pricing: what app.privacy.pricing is asked; None for a job without privacy on public data.
        numerics: shapes and types that it is computed in.
    """

    spec: JobSpec
    facts: DatasetFacts
    steps: int
    expected_batch_size: int
    sample_rate: float
    pricing: dict[str, Any] | None
    numerics: Numerics
    warnings: tuple[str, ...] = ()
    study: StudyPlan | None = None  # of a job whose work is done by runs


def plan(spec: JobSpec, facts: DatasetFacts, side: DatasetFacts | None = None) -> Plan:
    """Checks a spec against its data set and fixes the plan.

    Args:
        side: the data set of its optimizer's side information, where it has any; the plan's spec names it by its id.

    Raises:
        InvalidRequest: with a pointer to what to change.
    """
    records = facts.records_train
    if spec.sampling.kind == "poisson":
        batch = spec.sampling.expected_batch_size
        if batch > records:
            detail = f"the batch is larger than the training part: at most {records} (its public record count)"
            raise InvalidRequest.at("/sampling/expected_batch_size", detail)
    else:
        batch = records
    _check_privacy(spec, facts)
    _check_model(spec, facts)
    _check_re_attention(spec, facts)
    _check_center(spec, facts)
    spec = _with_side(spec, facts, side)
    steps = _steps(spec, records, batch)
    unfit = optimizers.refusal(spec, steps)
    if unfit is not None:
        raise InvalidRequest.at(*unfit)
    if spec.privacy is not None and spec.sampling.kind == "poisson" and steps < MIN_POISSON_BLOCK_STEPS:
        least = f"a Poisson-sampled job has at least {MIN_POISSON_BLOCK_STEPS}, so that no single step's time is seen"
        raise InvalidRequest.at("/length", f"that is {steps} steps: {least}")
    _check_evaluation(spec, facts, steps)
    rate = 1.0 if spec.sampling.kind == "full_batch" else batch / records
    sizes = PublicSizes(records, facts.records_per_unit, facts.features, facts.outputs, facts.is_sparse)
    numerics = numerics_of(spec, sizes, facts.spec.features)
    pricing = _pricing(spec, facts, steps, batch, rate)
    return Plan(spec, facts, steps, batch, rate, pricing, numerics, _warnings(spec, facts))


def _steps(spec: JobSpec, records: int, batch: int) -> int:
    """T, computed once: floor(epochs · records / L), at least 1. Exact in the decimal number that was sent."""
    if spec.length.steps is not None:
        return spec.length.steps
    epochs = Fraction(repr(spec.length.epochs))
    steps = max(1, math.floor(epochs * records / batch))
    if steps > 10_000_000:
        raise InvalidRequest.at("/length/epochs", f"that is {steps} steps; at most 10000000")
    return steps


def _check_privacy(spec: JobSpec, facts: DatasetFacts) -> None:
    if facts.is_private and spec.privacy is None:
        raise InvalidRequest.at("/privacy", "this data set is private: give `target_epsilon` or `noise_multiplier`")
    if facts.is_private and spec.seed is not None:
        raise InvalidRequest.at("/seed", "a seed may be set on public data only: who knows it knows the noise")
    if facts.cap_delta is not None and spec.privacy and (spec.privacy.target_delta or 0.0) > facts.cap_delta:
        detail = f"at most the cap's own δ, {facts.cap_delta:g}: with a larger one ε would look smaller than it is"
        raise InvalidRequest.at("/privacy/target_delta", detail)
    if spec.clipping is not None and spec.clipping.kind == "adaptive" and facts.unit == "user":
        detail = "its count is of records, and this data set protects users: use `flat`, `automatic` or `per_layer`"
        raise InvalidRequest.at("/clipping/kind", detail)
    if facts.filter == "gdp" and spec.sampling.kind == "poisson":
        detail = 'this data set\'s ledger (filter `gdp`) admits full-batch jobs only: use {"kind": "full_batch"}'
        raise InvalidRequest.at("/sampling", detail)


def _check_model(spec: JobSpec, facts: DatasetFacts) -> None:
    features = facts.spec.features.kind
    refused = models.refusal(spec.model, facts.spec.task.kind, features, facts.features, facts.outputs, facts.rows)
    if refused is not None:
        raise InvalidRequest.at(*refused)
    if spec.clipping is not None and spec.clipping.engine == "opacus" and features == "hashed_text":
        raise InvalidRequest.at("/clipping/engine", "`opacus` forms dense gradients: use `bookkeeping` on hashed text")
    if spec.clipping is not None and spec.clipping.engine == "opacus" and spec.model.kind == "hf":
        raise InvalidRequest.at("/clipping/engine", "a Hugging Face model is clipped by `bookkeeping`")
    if spec.clipping is not None and spec.clipping.engine == "opacus" and features == "interactions":
        raise InvalidRequest.at("/clipping/engine", "interactions are clipped by `bookkeeping`")


def _with_side(spec: JobSpec, facts: DatasetFacts, side: DatasetFacts | None) -> JobSpec:
    if not isinstance(spec.optimizer, PublicSideSettings):
        return spec
    if side is None:
        raise InvalidRequest.at("/optimizer/public_dataset", "there is no such data set")
    refused = optimizers.side_refusal(facts.spec, side.spec, (facts.features, side.features), side.records_train)
    if refused is not None:
        raise InvalidRequest.at("/optimizer/public_dataset", refused)
    return spec.model_copy(update={"optimizer": spec.optimizer.model_copy(update={"public_dataset": side.id})})


def _check_evaluation(spec: JobSpec, facts: DatasetFacts, steps: int) -> None:
    if spec.evaluation is None:
        return
    if spec.evaluation.on == "holdout" and facts.spec.holdout is None:
        raise InvalidRequest.at("/evaluation", "this data set has no hold-out: leave the evaluation out")
    if spec.evaluation.points > steps:
        raise InvalidRequest.at("/evaluation/points", f"there are only {steps} steps")
    _check_groups(spec.evaluation, facts)
    _check_ranking(spec.evaluation, facts)
    apart = steps // spec.evaluation.points  # the shortest stretch between two of them
    if spec.sampling.kind == "poisson" and spec.evaluation.points > 1 and apart < MIN_POISSON_BLOCK_STEPS:
        detail = f"under Poisson sampling scores lie at least {MIN_POISSON_BLOCK_STEPS} steps apart: ask for fewer"
        raise InvalidRequest.at("/evaluation/points", detail)


def _check_ranking(evaluation: Evaluation, facts: DatasetFacts) -> None:
    where, ranking = "/evaluation/ranking", evaluation.ranking
    if ranking is None:
        if facts.spec.holdout is not None and facts.spec.holdout.kind == "last_item":
            raise InvalidRequest.at(where, 'last items are scored by their rank: give {"k": 10}')
        return
    if facts.spec.task.kind != "next_item":
        raise InvalidRequest.at(where, f"next items are ranked; this data set's task is `{facts.spec.task.kind}`")
    if ranking.k > facts.rows[1]:
        raise InvalidRequest.at(f"{where}/k", f"there are {facts.rows[1]} items")


def _check_groups(evaluation: Evaluation, facts: DatasetFacts) -> None:
    if "accuracy" in (evaluation.metrics or ()) and facts.spec.task.kind != "classification":
        raise InvalidRequest.at("/evaluation/metrics", "`accuracy` is of classes: this data set's task has none")
    where = "/evaluation/by_frequency" if evaluation.by_frequency else "/evaluation/groups"
    tokens = evaluation.by_frequency and facts.spec.task.kind == "language_model"
    if (evaluation.groups or evaluation.by_frequency) and not tokens and facts.spec.task.kind != "classification":
        raise InvalidRequest.at(where, "groups are of classes: this data set's task has none")
    if evaluation.by_frequency and not tokens and facts.is_private:
        detail = "how frequent a label is, is private: name `groups` of classes from public knowledge"
        raise InvalidRequest.at(where, detail)
    for name, places in (evaluation.groups or {}).items():
        if max(places) >= facts.outputs:
            raise InvalidRequest.at(f"{where}/{name}", f"there are {facts.outputs} classes, counted from 0")


def _pricing(spec: JobSpec, facts: DatasetFacts, steps: int, batch: int, rate: float) -> dict[str, Any] | None:
    if spec.privacy is None:
        return None
    clip, delayed = spec.clipping, delayed_of(spec.optimizer)
    return {
        "training": {
            "sampling": spec.sampling.kind,
            "sample_rate": rate,
            "steps": steps,
            "max_grad_norm": clip.max_grad_norm if clip else 1.0,
            "clipping": clip.kind if clip else "flat",
            "expected_batch_size": batch,
            "records_per_unit": facts.records_per_unit,
            **_adaptive(clip),
            **({"delayed": delayed.model_dump()} if delayed else {}),
        },
        "target_epsilon": spec.privacy.target_epsilon,
        "noise_multiplier": spec.privacy.noise_multiplier,
        "target_delta": spec.privacy.target_delta or facts.cap_delta or default_delta(facts.records_train),
        "releases": releases(spec.evaluation, facts, spec.model),
        **_frequencies(spec),
        "mean": _mean(spec, facts),
        "unit": facts.unit,
        "filter": {"kind": facts.filter, "order": facts.order} if facts.filter else ANY_FILTER,
    }


def _adaptive(clip: Clipping | None) -> dict[str, Any]:
    if clip is None or clip.kind != "adaptive":
        return {}
    return {"adaptive": (clip.adaptive or AdaptiveNorm()).model_dump()}


def _is_noisy(evaluation: Evaluation | None, facts: DatasetFacts) -> bool:
    """Whether scores are noisy sums, of a job that claims privacy. A public hold-out is scored exactly, free."""
    return evaluation is not None and (evaluation.on == "train" or facts.holdout_is_private)


def releases(evaluation: Evaluation | None, facts: DatasetFacts, model: Model) -> list[dict[str, Any]]:
    """The noisy sums that a private job's scores are."""
    if evaluation is None or not _is_noisy(evaluation, facts):
        return []
    classes = facts.spec.task.kind == "classification"
    return [
        {
            "what": what,
            "account": "train" if evaluation.on == "train" else facts.holdout_account,
            "noise_mu": evaluation.noise_mu,
            "sensitivity": sensitivity,
            "times": evaluation.points,
            "records_per_unit": facts.records_per_unit,
            "records": facts.records_train if evaluation.on == "train" else facts.records_holdout,
            **({"groups": evaluation.groups} if evaluation.groups else {}),
            **({"ranks": token_ranks(evaluation, model)} if token_ranks(evaluation, model) else {}),
            **({"cutoff": evaluation.ranking.k} if evaluation.ranking else {}),
        }
        for what, sensitivity in evaluation.sensitivities(classes=classes).items()
    ]


def _check_re_attention(spec: JobSpec, facts: DatasetFacts) -> None:
    asked = spec.model.re_attention if spec.model.kind == "transformer_rec" else None
    if asked is None or asked.mode == "off":
        return
    if spec.privacy is None:
        detail = "it corrects for the noise of private training, and there is none: leave it `off`"
        raise InvalidRequest.at("/model/re_attention/mode", detail)
    features = facts.spec.features
    declared = features.kind == "interactions" and features.item_frequencies is not None
    if asked.frequencies == "public" and facts.is_private and not declared:
        detail = "this data set is private and declares no `features.item_frequencies`: ask for `noisy` ones"
        raise InvalidRequest.at("/model/re_attention/frequencies", detail)


def _check_center(spec: JobSpec, facts: DatasetFacts) -> None:
    if spec.model.kind != "linear" or spec.model.center is None:
        return
    where = "/model/center"
    if facts.spec.features.kind == "hashed_text":
        raise InvalidRequest.at(where, "hashed text is sparse, and would not be once it is centred")
    if facts.unit == "user":
        detail = "this data set protects users, and how many records they have together is private: it has no mean"
        raise InvalidRequest.at(where, detail)
    if isinstance(spec.optimizer, PublicSideSettings):
        raise InvalidRequest.at(where, "gradients of public side information are those of features as they are")


def _frequencies(spec: JobSpec) -> dict[str, Any]:
    """The histogram of items that a job releases first, where it does."""
    asked = spec.model.re_attention if spec.model.kind == "transformer_rec" else None
    if asked is None or asked.noise_mu is None or spec.model.kind != "transformer_rec":
        return {}
    return {"frequencies": {"noise_mu": asked.noise_mu, "max_items": spec.model.max_length}}


def _mean(spec: JobSpec, facts: DatasetFacts) -> dict[str, Any] | None:
    """The mean of features that a job is centred by, where it is."""
    asked = spec.model.center if spec.model.kind == "linear" else None
    return None if asked is None else {**asked.model_dump(), "records": facts.records_train}


def _warnings(spec: JobSpec, facts: DatasetFacts) -> tuple[str, ...]:
    """Where a clipped score would say less than it seems to."""
    task, classes = facts.spec.task, facts.outputs > 1
    if spec.evaluation is None or spec.privacy is None or not _is_noisy(spec.evaluation, facts):
        return ()
    bound = spec.evaluation.sensitivities(classes=classes).get("loss")
    if bound is None:
        return ()
    if task.kind == "rating" and bound < (largest := (task.scale[1] - task.scale[0]) ** 2):
        return (f"squared errors above loss_bound = {bound:g} count as that; they reach {largest:g}",)
    if task.kind == "language_model" and bound < LIKELY_GUESS:
        return (f"losses above loss_bound = {bound:g} count as that; a guess among V tokens has ln V, 10.8 for 50,257",)
    among = {"next_item": facts.rows[1], "classification": facts.outputs}.get(task.kind, 1)
    if bound < (guess := math.log(among)):
        what = "items" if task.kind == "next_item" else "classes"
        return (f"losses above loss_bound = {bound:g} count as that; a guess among all {what} has {guess:.3g}",)
    return ()


def default_delta(records: int) -> float:
    """The largest 10⁻ᵏ ≤ 1/records (and within the contract's bounds)."""
    exponent = max(3, len(str(records)) - (records == 10 ** (len(str(records)) - 1)))
    return float(f"1e-{min(exponent, 15)}")
