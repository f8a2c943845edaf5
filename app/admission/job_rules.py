"""The rules of a job: whether a specification goes with its data set's public numbers, and what it then computes.

Nothing here has seen the data. core.privacy.derive derives the mechanism, which decides both execution and charge.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, assert_never

from pydantic import ValidationError

from app.admission.facts import DatasetFacts
from app.admission.work import Statistics, Synthetic, Training, Work
from app.catalogue import model_kinds, optimizer_kinds
from app.hpo.rates import Resolved
from core.contracts import filter_names
from core.contracts.audit import WORDS, Audit
from core.contracts.augmentation import Augmentation, Crop, Erase, Transform
from core.contracts.base import LARGEST_EPSILON
from core.contracts.cnn import MOST_NUMBERS
from core.contracts.dataset_spec import (
    Interactions,
    LanguageModelTask,
    LastItemHoldout,
    NodeColumns,
)
from core.contracts.gcn import GcnModel
from core.contracts.governance import Use
from core.contracts.graph import GraphModel
from core.contracts.hf import HfModel
from core.contracts.job_spec import CnnModel, Evaluation, JobSpec, LinearModel, MlpModel, TransformerRecModel
from core.contracts.marginals import MOST_SYNTHETIC_ROWS, SYNTHETIC_BINS
from core.contracts.memory import IN_MEMORY_BYTES, in_memory, record_bytes
from core.contracts.metrics import rule_of
from core.contracts.model_settings import ImageForm, RecordSizes
from core.contracts.optimizers import AdaDps, Dp2Settings, PublicSideSettings, ScaleThenPrivatize
from core.contracts.queries import MOST_ROWS, Query
from core.contracts.sampling import Cyclic, Poisson
from core.errors import InvalidRequest
from core.privacy import derive
from core.privacy.best_of import NO_BEST
from core.privacy.gdp import epsilon_from_mu
from core.privacy.mechanism import MIN_POISSON_BLOCK_STEPS, MechanismConfig
from core.privacy.numerics import numerics_of, sizes_of
from core.privacy.price_requests import PlanRequest
from core.privacy.releases import READABLE, PlannedNoise, ScoreNoise

if TYPE_CHECKING:
    from core.statistics.plans import Asked
    from core.statistics.statistics_passes import Passes

MOST_CANARY_NUMBERS = 2**26  # of all canaries: an attempt holds them in memory, 4 bytes each
AUGMENTATION = "/augmentation"

PROBE = (
    "for classes of texts begin with a linear probe: `linear` with this encoder as its `extractor`, which has rules "
    "for all its numbers. An encoder tuned inside needs a searched rate: at the default, 0.001, it learned little more "
    "than the most frequent class (docs/language.md)"
)


@dataclass(frozen=True)
class Checked:
    """A job that goes with its data set, fixed in advance.

    Attributes:
        steps: T.
        expected_batch_size: L, the divisor of every step.
        sample_rate: q = L / records.
        pricing: the request to the pricing process; None for a job without privacy on public data.
        work: what it computes, by its kind.
        resolved: the learning rate that "auto" stands for; None if the job named one.
    """

    spec: JobSpec
    facts: DatasetFacts
    steps: int
    expected_batch_size: int
    sample_rate: float
    work: Work
    warnings: tuple[str, ...] = ()
    resolved: Resolved | None = None
    pricing: PlanRequest | None = None

    def scores(self, mechanism: MechanismConfig | None) -> tuple[ScoreNoise, ...]:
        """What the job will release besides a model, with its noise.

        Args:
            mechanism: at the job's price; None of a study, and without privacy.
        """
        return self.work.noise(mechanism, self.pricing.releases if self.pricing is not None else ())


def check(spec: JobSpec, facts: DatasetFacts, side: DatasetFacts | None = None) -> Checked:
    """Checks a job whose choices are closed against its data set.

    Args:
        side: the data set of its optimizer's side information, if any; the result's specification names it by id.

    Raises:
        InvalidRequest: with a pointer to what to change.
    """
    _check_use(spec, facts)
    match spec.kind:
        case "statistics":
            checked = _check_statistics(spec, facts)
        case "synthetic":
            checked = _check_synthetic(spec, facts)
        case "training":
            checked = _check_training(spec, facts, side)
        case _:
            assert_never(spec.kind)
    return replace(checked, pricing=derive.plan_request(checked.spec, facts.public))


def _check_training(spec: JobSpec, facts: DatasetFacts, side: DatasetFacts | None) -> Checked:
    records = facts.records_train
    batch = spec.sampling.batch(records)
    if batch > records:
        detail = f"the batch is larger than the training part: use at most {records} (its public record count)"
        raise InvalidRequest.at("/sampling/expected_batch_size", detail)
    if isinstance(spec.sampling, Cyclic) and spec.sampling.batches > records:
        detail = f"there are only {records} records: ask for at most as many batches"
        raise InvalidRequest.at("/sampling/batches", detail)
    _check_largest_batch(spec, records, facts.slots.train.units)
    _check_audit(spec, facts)
    _check_privacy(spec, facts)
    _check_selection(spec, facts)
    _check_processes(spec)
    _check_precision(spec)
    layers = _check_model(spec, facts)
    _check_class_weights(spec, facts)
    _check_re_attention(spec, facts)
    _check_center(spec, facts)
    _check_augmentation(spec, facts)
    spec = _with_side(spec, facts, side)
    steps = spec.length.total(spec.sampling.steps_an_epoch(records))
    if spec.privacy is not None and spec.sampling.is_sampled and steps < MIN_POISSON_BLOCK_STEPS:
        minimum = f"a Poisson-sampled job needs at least {MIN_POISSON_BLOCK_STEPS}, to hide single steps' times"
        raise InvalidRequest.at("/length", f"that is {steps} steps: {minimum}")
    _check_evaluation(spec, facts, steps)
    warnings = _warnings(spec, facts)
    unfit = optimizer_kinds.refusal(
        spec.optimizer, steps, noised=spec.privacy is not None, norm_adapts=spec.norm_adapts
    )
    if unfit is not None:
        raise InvalidRequest.at(*unfit)
    numerics = numerics_of(spec, sizes_of(spec, facts.sizes, facts.spec.features), facts.spec.features)
    work = Training(layers=layers, numerics=numerics, on_processors=spec.runtime.on_processors)
    return Checked(spec, facts, steps, batch, spec.sampling.rate(records), work, warnings)


def _check_statistics(spec: JobSpec, facts: DatasetFacts) -> Checked:
    """Checks queries and filters against the declaration."""
    question, passes = _asked(spec, facts, spec.queries or ())
    work = Statistics(
        asked=question, passes=passes, records=facts.records_train, columns_bytes=_columns_bytes(passes, facts)
    )
    return Checked(spec, facts, 1, facts.records_train, 1.0, work)


def _check_synthetic(spec: JobSpec, facts: DatasetFacts) -> Checked:
    """Closes what a synthetic job leaves out by what is declared, and checks its tables."""
    from core.statistics.statistics_columns import (  # noqa: PLC0415 - as _asked
        Column,
        UnknownColumn,
        column_of,
        declared_columns,
    )

    declared = declared_columns(facts.spec.features, facts.spec.task)
    columns = spec.columns or tuple(name for name, column in declared.items() if isinstance(column, Column))
    try:
        for name in columns:
            column_of(declared, name)
    except UnknownColumn as error:
        raise InvalidRequest.at("/columns", str(error)) from None
    if len(set(columns)) < max(len(columns), 2):
        raise InvalidRequest.at("/columns", "name two declared columns or more, none of them twice")
    if spec.target is not None and spec.target not in columns:
        raise InvalidRequest.at("/target", f"{spec.target!r} is none of the columns that are drawn")
    label, rows = facts.spec.task.label_column, _rows(spec, facts)
    closed = {"columns": columns, "target": spec.target or (label if label in columns else None), "rows": rows}
    settings = {"method": spec.method or "mixture", "bins": spec.bins or SYNTHETIC_BINS}
    spec = spec.model_copy(update=closed | settings)
    question, passes = _asked(spec, facts, spec.tables)
    work = Synthetic(
        asked=question,
        passes=passes,
        records=facts.records_train,
        columns_bytes=_columns_bytes(passes, facts),
        rows=rows,
        columns=len(columns),
    )
    return Checked(spec, facts, 1, facts.records_train, 1.0, work)


def _rows(spec: JobSpec, facts: DatasetFacts) -> int:
    """How many rows are drawn; of users, whose records are not declared, only a number says it."""
    if isinstance(spec.rows, int):
        return spec.rows
    if facts.unit == "user" or facts.records_train > MOST_SYNTHETIC_ROWS:
        raise InvalidRequest.at("/rows", f"give how many rows to draw: a number, at most {MOST_SYNTHETIC_ROWS:,}")
    return facts.records_train


def _asked(spec: JobSpec, facts: DatasetFacts, queries: tuple[Query, ...]) -> tuple[Asked, Passes]:
    """What one release of sums asks, and its passes over the slots."""
    _check_privacy(spec, facts)
    if spec.runtime.ranks > 1 or spec.runtime.device == "cuda" or spec.runtime.fp32_precision != "ieee":
        detail = (
            "statistics add integers on one processor: leave `runtime.processes`, `device` and `fp32_precision` out"
        )
        raise InvalidRequest.at("/runtime", detail)
    if facts.slots.train.rows > MOST_ROWS:
        detail = f"statistics add at most {MOST_ROWS:,} records exactly, and this data set has more slots: name blocks"
        raise InvalidRequest.at("/blocks", detail)
    from core.statistics.plans import Asked, Unfit  # noqa: PLC0415
    from core.statistics.statistics_columns import declared_columns  # noqa: PLC0415 - numpy is loaded when it is needed
    from core.statistics.statistics_passes import Passes, width_of  # noqa: PLC0415

    try:
        columns = declared_columns(facts.spec.features, facts.spec.task)
        question = Asked.of(queries, spec.where, columns)
    except Unfit as error:  # a synthetic job names columns, and no queries
        raise InvalidRequest.at(error.pointer if spec.queries else "/columns", error.detail) from None
    return question, Passes.over(facts.slots.train.rows, width_of(facts.spec.features))


def _columns_bytes(passes: Passes, facts: DatasetFacts) -> int:
    from core.statistics.statistics_passes import column_bytes  # noqa: PLC0415 - as _asked

    return column_bytes(passes.width, facts.slots.train.rows, of_users=facts.unit == "user")


def _check_largest_batch(spec: JobSpec, records: int, slots: int) -> None:
    largest = spec.sampling.largest_batch if isinstance(spec.sampling, Poisson) else None
    if largest is None:
        return
    pointer = "/sampling/largest_batch"
    if largest > slots:
        detail = f"no batch is larger than {slots}, the slots of the training part: use at most that many"
        raise InvalidRequest.at(pointer, detail)
    if spec.sampling.rate(records) >= 1.0:
        detail = (
            "a batch as large as the training part takes every record, and leaves nothing to cut: leave "
            '`largest_batch` out, use {"kind": "full_batch"}, or a smaller `expected_batch_size`'
        )
        raise InvalidRequest.at(pointer, detail)


def _check_use(spec: JobSpec, facts: DatasetFacts) -> None:
    """Checks what the job is for against what the owner declared."""
    rules = facts.spec.governance
    fault = rules.fault_of(spec.use or Use()) if rules is not None else None
    if fault is not None:
        raise InvalidRequest.at(*fault)


def _check_privacy(spec: JobSpec, facts: DatasetFacts) -> None:
    if facts.is_private and spec.privacy is None:
        raise InvalidRequest.at("/privacy", "this data set is private: give `target_epsilon` or `noise_multiplier`")
    if facts.is_private and spec.seed is not None:
        raise InvalidRequest.at(
            "/seed", "a seed is allowed on public data only, as it reveals the noise: leave `seed` out"
        )
    if facts.cap_delta is not None and spec.privacy and (spec.privacy.target_delta or 0.0) > facts.cap_delta:
        detail = f"must be at most the cap's δ, {facts.cap_delta:g}: a larger δ would make ε look too small"
        raise InvalidRequest.at("/privacy/target_delta", detail)
    if spec.norm_adapts and facts.unit == "user":
        detail = "`adaptive` counts records, but this data set protects users: use `flat`, `automatic` or `per_layer`"
        raise InvalidRequest.at("/clipping/kind", detail)
    if facts.filter is not None and not filter_names.rule_of(facts.filter).samples and spec.sampling.is_sampled:
        samplers = " or ".join(f"`{name}`" for name in filter_names.FILTERS if filter_names.rule_of(name).samples)
        detail = (
            f"this data set's ledger (filter `{facts.filter}`) admits full-batch jobs only: use "
            f'{{"kind": "full_batch"}}, or a data set whose owner chose the filter {samplers}, which admits '
            "Poisson-sampled jobs too; a filter never changes"
            + ("" if facts.spec.privacy.plan is None else ", but the owner may declare the plan `mixed`")
        )
        raise InvalidRequest.at("/sampling", detail)


def _check_processes(spec: JobSpec) -> None:
    if spec.runtime.shard == "none":
        return
    if spec.runtime.ranks == 1:
        detail = (
            f"`shard` '{spec.runtime.shard}' divides the optimizer's state among processes, and this job asks for "
            "one: give `runtime.processes` of at least 2, or leave `shard` out"
        )
        raise InvalidRequest.at("/runtime/shard", detail)
    if spec.runtime.device == "cuda":
        detail = f"`shard` '{spec.runtime.shard}' works on processors only: leave `runtime.device` out, or `shard`"
        raise InvalidRequest.at("/runtime/shard", detail)


def _check_precision(spec: JobSpec) -> None:
    """TF32 is what a GPU multiplies in a network's float32 passes."""
    if spec.runtime.fp32_precision == "ieee":
        return
    unfit = {
        "is of GPUs, and this job runs on processors: give `runtime.device` 'cuda'": spec.runtime.device != "cuda",
        f"is of passes in float32, and these are in {spec.runtime.dtype}": spec.runtime.dtype
        in ("float64", "bfloat16"),
        "is of networks, and this model has no matrices between its layers": spec.model.shallow,
        "is not of the engine 'opacus': leave `clipping.engine` out": (
            spec.clipping is not None and spec.clipping.engine == "opacus"
        ),
    }
    reason = next((reason for reason, is_unfit in unfit.items() if is_unfit), None)
    if reason is not None:
        raise InvalidRequest.at("/runtime/fp32_precision", f"TF32 {reason}; or leave `fp32_precision` out")


def _check_model(spec: JobSpec, facts: DatasetFacts) -> tuple[model_kinds.Layer, ...]:
    """Returns the model's layers."""
    features = facts.spec.features.kind
    refused = model_kinds.refusal(spec.model, facts.spec.task.kind, features, facts.features, facts.outputs, facts.rows)
    if refused is not None:
        raise InvalidRequest.at(*refused)
    if isinstance(spec.model, GcnModel) and isinstance(facts.spec.features, NodeColumns):
        _check_graph(spec, spec.model, facts.spec.features, facts)
    if spec.runtime.dtype == "float32" and spec.model.only_float64(sparse=facts.is_sparse):
        detail = "linear models of hashed text and matrix factorization train in float64: leave `runtime.dtype` out"
        raise InvalidRequest.at("/runtime/dtype", detail)
    return tuple(model_kinds.layers(spec.model, facts.features, facts.outputs, facts.rows))


def _check_graph(spec: JobSpec, model: GcnModel, nodes: NodeColumns, facts: DatasetFacts) -> None:
    """Which jobs' price covers that a node is read for others' gradients, and whose trees fit in memory."""
    if model.neighbours > nodes.keep:
        detail = f"this data set keeps {nodes.keep} of a node's list (`features.keep`): use at most that many"
        raise InvalidRequest.at("/model/neighbours", detail)
    if spec.privacy is not None and spec.sampling.is_sampled:
        detail = (
            "a node is read in batches that its own coin does not draw, so `poisson` sampling hides nothing of it: use "
            '{"kind": "full_batch"} or {"kind": "cyclic"}'
        )
        raise InvalidRequest.at("/sampling", detail)
    if spec.norm_adapts:
        detail = "`adaptive` counts records, and a node changes several: use `flat`, `automatic` or `per_layer`"
        raise InvalidRequest.at("/clipping/kind", detail)
    rows = max(facts.slots.train.rows, 0 if facts.slots.holdout is None else facts.slots.holdout.rows)
    size = record_bytes(facts.features, sparse=False, rating=False)
    if not in_memory(rows, size):
        detail = (
            f"the trees of {rows:,} nodes, {facts.features} numbers each, take {rows * size >> 20} MiB, and at most "
            f"{IN_MEMORY_BYTES >> 20} are held: use fewer `neighbours`, or one of the `hops`"
        )
        raise InvalidRequest.at("/model/neighbours", detail)


def _check_class_weights(spec: JobSpec, facts: DatasetFacts) -> None:
    if spec.class_weights is None:
        return
    if not facts.spec.task.is_classification:
        raise InvalidRequest.at("/class_weights", "weights are of classes, and this data set's task has none")
    if len(spec.class_weights) != facts.outputs:
        detail = f"give a number for each of the {facts.outputs} classes, in the data set's order"
        raise InvalidRequest.at("/class_weights", detail)
    if not isinstance(spec.model, LinearModel | MlpModel | CnnModel | GcnModel | GraphModel):
        detail = f"`{spec.model.kind}` models take no weights of classes: leave `class_weights` out"
        raise InvalidRequest.at("/class_weights", detail)


def _with_side(spec: JobSpec, facts: DatasetFacts, side: DatasetFacts | None) -> JobSpec:
    if not isinstance(spec.optimizer, PublicSideSettings):
        return spec
    if side is None:
        raise InvalidRequest.at("/optimizer/public_dataset", "there is no such data set")
    refused = optimizer_kinds.side_refusal(facts.spec, side.spec, (facts.features, side.features), side.records_train)
    if refused is not None:
        raise InvalidRequest.at("/optimizer/public_dataset", refused)
    return spec.model_copy(update={"optimizer": spec.optimizer.model_copy(update={"public_dataset": side.id})})


def _check_evaluation(spec: JobSpec, facts: DatasetFacts, steps: int) -> None:
    if spec.evaluation is None:
        return
    if spec.evaluation.on == "holdout" and facts.spec.holdout is None:
        raise InvalidRequest.at("/evaluation", "this data set has no hold-out: leave the evaluation out")
    if spec.evaluation.on == "holdout" and facts.holdout_is_private and facts.slots.holdout is None:
        detail = (
            "this data set was registered before there were slots, and nothing bounds its hold-out: ask its owner to "
            "state slots (`scrimp datasets slots`), or leave the evaluation out"
        )
        raise InvalidRequest.at("/evaluation", detail)
    if spec.evaluation.points > steps:
        raise InvalidRequest.at("/evaluation/points", f"there are only {steps} steps: ask for at most as many points")
    _check_groups(spec.evaluation, facts)
    _check_ranking(spec.evaluation, facts)
    apart = steps // spec.evaluation.points  # the shortest stretch between two of them
    if spec.sampling.is_sampled and spec.evaluation.points > 1 and apart < MIN_POISSON_BLOCK_STEPS:
        detail = f"under Poisson sampling scores must be at least {MIN_POISSON_BLOCK_STEPS} steps apart: ask for fewer"
        raise InvalidRequest.at("/evaluation/points", detail)


def _check_selection(spec: JobSpec, facts: DatasetFacts) -> None:
    """Which jobs may be the best of a secret number of runs (decision 72)."""
    if spec.selection is None:
        return
    if facts.filter is not None and not filter_names.rule_of(facts.filter).samples:
        raise InvalidRequest.at("/hpo/strategy", NO_BEST)
    centers = isinstance(spec.model, LinearModel) and spec.model.center is not None
    noisy = isinstance(spec.model, TransformerRecModel) and spec.model.re_attention.noise_mu is not None
    clip = spec.clipping.kind if spec.clipping is not None else "flat"
    score, runtime = spec.evaluation, spec.runtime
    unfit: dict[str, tuple[str, bool]] = {
        "/privacy": ("public data have no price: try each rate in a job of its own", spec.privacy is None),
        "/sampling/kind": ("it has a price for `full_batch` alone", spec.sampling.kind != "full_batch"),
        "/evaluation": ("the runs are compared by one score: give an `evaluation`", score is None),
        "/evaluation/points": ("only the best run's score leaves: use 1", score is not None and score.points != 1),
        "/clipping/kind": ("an adaptive norm would be a release of each run", clip == "adaptive"),
        "/model": (
            "releases before the first step are not part of a run: leave `center` and `noisy` out",
            centers or noisy,
        ),
        "/optimizer/kind": (
            "choose an optimizer whose steps have one query and no public data",
            isinstance(spec.optimizer, Dp2Settings | PublicSideSettings),
        ),
        "/audit": ("canaries would be part of each run: leave `audit` out", spec.audit is not None),
        "/runtime/max_duration_s": (
            "nothing leaves before `duration_s`, and a time limit spends the whole hold: allow more",
            (runtime.max_duration_s or math.inf) <= spec.selection.duration_s,
        ),
        "/runtime": ("its runs are one process on a processor", (runtime.processes, runtime.device) != (1, "cpu")),
    }
    for pointer, (reason, is_unfit) in unfit.items():
        if is_unfit:
            raise InvalidRequest.at(pointer, f"`random_size`: {reason}")
    _, rate = spec.selection.space.rates
    try:
        type(spec.optimizer).model_validate(spec.optimizer.model_dump() | {"learning_rate": rate})
    except ValidationError as error:
        detail = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise InvalidRequest.at("/hpo/space", f"at its upper end, where η is {rate:.3g}: {detail}") from None


def _check_ranking(evaluation: Evaluation, facts: DatasetFacts) -> None:
    pointer, ranking = "/evaluation/ranking", evaluation.ranking
    if ranking is None:
        if isinstance(facts.spec.holdout, LastItemHoldout):
            raise InvalidRequest.at(pointer, 'last items are scored by rank: give a ranking such as {"k": 10}')
        return
    if not facts.spec.task.record_is_user:
        raise InvalidRequest.at(
            pointer, f"`ranking` needs the task `next_item`; this data set's task is `{facts.spec.task.kind}`"
        )
    if ranking.k > facts.rows[1]:
        raise InvalidRequest.at(f"{pointer}/k", f"there are only {facts.rows[1]} items: lower k")


def _check_groups(evaluation: Evaluation, facts: DatasetFacts) -> None:
    for metric in evaluation.metrics or ():
        rule = rule_of(metric)
        if rule.task not in (None, facts.spec.task.kind):
            raise InvalidRequest.at("/evaluation/metrics", f"`{metric}` needs a data set whose task is `{rule.task}`")
        if metric == "r_squared" and getattr(facts.spec.task, "range", None) is None:
            detail = "`r_squared` needs the target's range (`task.range`), which bounds what a record adds to it"
            raise InvalidRequest.at("/evaluation/metrics", detail)
        if rule.classes not in (None, facts.outputs):
            detail = f"`{metric}` needs {rule.classes} classes, and this data set has {facts.outputs}"
            raise InvalidRequest.at("/evaluation/metrics", detail)
        if rule.most_classes is not None and facts.outputs > rule.most_classes:
            detail = f"`{metric}` is for at most {rule.most_classes} classes, and this data set has {facts.outputs}"
            raise InvalidRequest.at("/evaluation/metrics", f"{detail}: name `accuracy`, with `groups` of classes")
    pointer = "/evaluation/by_frequency" if evaluation.by_frequency else "/evaluation/groups"
    tokens = evaluation.by_frequency and isinstance(facts.spec.task, LanguageModelTask)
    if (evaluation.groups or evaluation.by_frequency) and not tokens and not facts.spec.task.is_classification:
        raise InvalidRequest.at(pointer, "groups need a data set whose task is `classification`")
    if evaluation.by_frequency and not tokens and facts.is_private:
        detail = "label frequencies are private here: name `groups` of classes from public knowledge"
        raise InvalidRequest.at(pointer, detail)
    for name, places in (evaluation.groups or {}).items():
        if max(places) >= facts.outputs:
            raise InvalidRequest.at(f"{pointer}/{name}", f"there are {facts.outputs} classes, counted from 0")


def _check_re_attention(spec: JobSpec, facts: DatasetFacts) -> None:
    settings = spec.model.re_attention if isinstance(spec.model, TransformerRecModel) else None
    if settings is None or settings.mode == "off":
        return
    if spec.privacy is None:
        detail = "re-attention corrects for the noise of private training, and this job has none: leave it `off`"
        raise InvalidRequest.at("/model/re_attention/mode", detail)
    features = facts.spec.features
    declared = isinstance(features, Interactions) and features.item_frequencies is not None
    if settings.frequencies == "public" and facts.is_private and not declared:
        detail = "this data set is private and declares no `features.item_frequencies`: ask for `noisy` ones"
        raise InvalidRequest.at("/model/re_attention/frequencies", detail)


def _check_center(spec: JobSpec, facts: DatasetFacts) -> None:
    if not isinstance(spec.model, LinearModel) or spec.model.center is None:
        return
    pointer = "/model/center"
    if spec.model.is_sparse(facts.is_sparse):
        raise InvalidRequest.at(pointer, "hashed text cannot be centred: it would no longer be sparse")
    if facts.unit == "user":
        detail = "cannot centre: this data set protects users, and their number of records is private"
        raise InvalidRequest.at(pointer, detail)
    if isinstance(spec.optimizer, PublicSideSettings):
        raise InvalidRequest.at(
            pointer, "cannot combine `center` with a public-data optimizer: its public gradients use uncentred features"
        )


def _warnings(spec: JobSpec, facts: DatasetFacts) -> tuple[str, ...]:
    """Warns of an audit that costs accuracy, of correlated noise that gains nothing, of an encoder that is tuned where
    a probe learns more, and of scores that clipping makes less informative than they seem."""
    return (*_audit_cost(spec, facts), *_gainless_noise(spec), *_tuned_encoder(spec, facts), *_of_scores(spec, facts))


def _tuned_encoder(spec: JobSpec, facts: DatasetFacts) -> tuple[str, ...]:
    is_text = facts.spec.features.kind == "text" and facts.spec.task.is_classification
    return (PROBE,) if is_text and spec.privacy is not None and spec.model.kind == "hf" else ()


def _gainless_noise(spec: JobSpec) -> tuple[str, ...]:
    apart = spec.sampling.batches if isinstance(spec.sampling, Cyclic) else 1
    if spec.noise is None or apart * (1.0 - spec.noise.decay) >= 2.0 - 1e-9:
        return ()
    return (
        "correlated noise gains little here: records take part again before a step's noise is taken back. Use "
        f"`cyclic` batches, at least {math.ceil(2.0 / (1.0 - spec.noise.decay) - 1e-9)} of them",
    )


def _of_scores(spec: JobSpec, facts: DatasetFacts) -> tuple[str, ...]:
    if spec.evaluation is None or spec.privacy is None or not derive.is_noisy(spec.evaluation, facts.public):
        return ()
    return (*_unreadable(spec, facts), *_beyond_bound(spec.evaluation, facts))


BESIDE_TRAINING = 0.5  # of μ: what a score on the training part's own account is thought to take at most


def _unreadable(spec: JobSpec, facts: DatasetFacts) -> Iterator[str]:
    """Warns of scores that their noise makes meaningless, with the noise_mu or the ε that would do."""
    for score in derive.scores_of(spec.evaluation, facts.public, spec.model):
        for part in score.planned:
            limit = READABLE * score.sensitivity
            if part.std > limit * (1.0 + 1e-9):
                enough = _enough(spec, facts, score.noise_mu * part.std, limit)
                noise = f"is released with noise of about ± {part.std:.2g}"
                yield PlannedNoise(f"{part.name} {noise}, too much to tell models apart: {enough}")


def _enough(spec: JobSpec, facts: DatasetFacts, of_one: float, limit: float) -> str:
    """Says what makes a score readable: a noise_mu that the job's ε can pay, or else the ε that can.

    Args:
        of_one: the std of the noise at noise_mu = 1; it is proportional to 1 / noise_mu.
        limit: the largest std that is readable.
    """
    wanted, privacy = 0.4 * limit, spec.privacy
    delta, total = facts.total(privacy.target_epsilon, privacy.target_delta) if privacy is not None else (0.0, None)
    if total is None:
        return f"noise_mu = {of_one / wanted:.2g} gives ± {wanted:.2g}"
    is_beside = spec.evaluation is not None and "train" in (spec.evaluation.on, facts.holdout_account)
    share = BESIDE_TRAINING if is_beside else 1.0
    smallest = of_one / (share * total)
    if smallest <= limit:
        noise_mu = min(of_one / wanted, share * total * (1.0 - 5e-3))  # three digits, and no more than ε pays
        return f"noise_mu = {noise_mu:.3g} gives ± {of_one / noise_mu:.2g}"
    needed = epsilon_from_mu(of_one / limit / share, delta)
    if needed > LARGEST_EPSILON:
        return f"too few records score it, no ε up to {LARGEST_EPSILON:g} gives ± {limit:.2g}"
    return f"at this ε it is at least ± {smallest:.2g}, and ± {limit:.2g} takes ε = {needed:.2g}"


def _beyond_bound(evaluation: Evaluation, facts: DatasetFacts) -> tuple[str, ...]:
    """Warns of a bound that clips likely losses."""
    bound = evaluation.sensitivities(classes=facts.outputs > 1).get("loss")
    clipped = facts.spec.task.clipped(bound, facts.rows[1]) if bound is not None else None
    return (clipped,) if clipped is not None else ()


def _check_audit(spec: JobSpec, facts: DatasetFacts) -> None:
    """Which jobs can be audited by canaries of their own."""
    if spec.audit is None:
        return
    refusal = _audit_refusal(spec, facts)
    if refusal is not None:
        raise InvalidRequest.at("/audit", f"{refusal}: leave `audit` out")
    if spec.audit.kind == "gradients":
        _check_gradient_canaries(spec)
    else:
        _check_record_canaries(spec, spec.audit, facts)


def _audit_cost(spec: JobSpec, facts: DatasetFacts) -> tuple[str, ...]:
    """Warns of canaries that the model trains on."""
    if spec.audit is None or not spec.audit.trained:
        return ()
    included, unit = spec.audit.canaries / 2.0, "user" if facts.unit == "user" else "record"
    share = 100.0 * included / (included + facts.records_train)
    return (
        f"about half of the {spec.audit.canaries} canaries train like {unit}s, beside {facts.records_train} declared "
        f"ones: {share:.2g} % of what the model learns from is random, so its scores will be lower. Canaries of kind "
        "`gradients` leave the model as it is",
    )


def _audit_refusal(spec: JobSpec, facts: DatasetFacts) -> str | None:
    if not facts.is_private or spec.privacy is None:
        return "canaries test what a certificate claims, and a job on public data has none"
    if spec.model.reach > 1:
        return "canaries are records of their own, and no node reads them or is read by them"
    if isinstance(spec.sampling, Poisson) and spec.sampling.largest_batch is not None:
        return "with `largest_batch` canaries would take records' places in a full batch"
    return None


def _check_gradient_canaries(spec: JobSpec) -> None:
    refusal = None
    if isinstance(spec.optimizer, PublicSideSettings):
        refusal = f"`{spec.optimizer.kind}` takes public gradients, which have no coordinate of a canary"
    elif spec.runtime.shard != "none":
        refusal = "`runtime.shard` divides tensors among processes, and the canaries' belongs to all of them"
    if refusal is not None:
        detail = f'{refusal}: ask for canaries of kind "records", or leave `audit` out'
        raise InvalidRequest.at("/audit", detail)


def _check_record_canaries(spec: JobSpec, audit: Audit, facts: DatasetFacts) -> None:
    if audit.canaries > facts.records_train:
        detail = (
            f"{audit.canaries} canaries of kind `records` are more than the {facts.records_train} declared "
            f"{'users' if facts.unit == 'user' else 'records'}: the model would learn mostly noise. Ask for at most as "
            'many, or for the kind "gradients"'
        )
        raise InvalidRequest.at("/audit/canaries", detail)
    numbers = _canary_numbers(spec, facts)
    if audit.canaries * numbers > MOST_CANARY_NUMBERS:
        detail = (
            f"{audit.canaries} canaries of {numbers} numbers each do not fit in an attempt's memory: ask for at most "
            f"{MOST_CANARY_NUMBERS // numbers}"
        )
        raise InvalidRequest.at("/audit/canaries", detail)


def _canary_numbers(spec: JobSpec, facts: DatasetFacts) -> int:
    """How many numbers an attempt keeps of one synthetic record, at most."""
    model = spec.model
    if isinstance(model, LinearModel):
        return WORDS if model.is_sparse(facts.is_sparse) else model.inputs(facts.features)
    length = getattr(model, "max_length", 1)  # of a recommender's or a language model's sequences
    return int(length) + 1 if facts.spec.task.of_interactions else max(int(length) + 1, facts.features)


def _check_augmentation(spec: JobSpec, facts: DatasetFacts) -> None:
    """Where a record's views are averaged exactly, and its transforms fit what the model reads."""
    if spec.augmentation is None:
        return
    _check_viewed(spec, facts)
    form = spec.model.pixels()
    for place, transform in enumerate(spec.augmentation.transforms):
        _check_transform(transform, form, f"{AUGMENTATION}/transforms/{place}")
    _check_views(spec, spec.augmentation, facts)


def _check_viewed(spec: JobSpec, facts: DatasetFacts) -> None:
    model = spec.model
    if isinstance(model, CnnModel) or (isinstance(model, HfModel) and facts.spec.task.is_classification):
        return
    if isinstance(model, LinearModel) and model.is_sparse(facts.is_sparse):
        _check_undivided(spec)
        return
    needs = (
        "augmentation is for `cnn` models, `hf` models that classify images or texts, and `linear` models of hashed "
        "words"
    )
    if isinstance(model, LinearModel) and model.extractor is not None:
        detail = f"an extractor's features are made once for each record, so a record has one view: {needs}"
    elif facts.spec.task.of_interactions:
        detail = f"no transform of ratings and sequences of items is known: {needs}"
    elif isinstance(model, HfModel):
        detail = f"a language model would learn to write the changed text: {needs}"
    else:
        detail = f"a `{model.kind}` model does not know which of a record's numbers are pixels or words: {needs}"
    raise InvalidRequest.at(AUGMENTATION, detail)


def _check_undivided(spec: JobSpec) -> None:
    """The norm of a linear model's mean over views has a rule for undivided gradients alone."""
    if isinstance(spec.optimizer, Dp2Settings | ScaleThenPrivatize | AdaDps):
        detail = (
            f"`{spec.optimizer.kind}` divides gradients before the clip, and a linear model's views have no rule for "
            "that: use `dp_sgd` or `dp_adam`, or leave `augmentation` out"
        )
        raise InvalidRequest.at("/optimizer/kind", detail)


def _check_transform(transform: Transform, form: ImageForm | None, pointer: str) -> None:
    if transform.of_images != (form is not None):
        fitting = "`drop_words`" if form is None else "`crop`, `flip` and `erase`"
        reads = "texts" if form is None else "images"
        raise InvalidRequest.at(f"{pointer}/kind", f"this model reads {reads}: use {fitting}")
    if form is None:
        return
    side = min(form.height, form.width)
    if isinstance(transform, Crop) and transform.padding >= side:
        raise InvalidRequest.at(f"{pointer}/padding", f"images of {side} pixels move by at most {side - 1}: lower it")
    if isinstance(transform, Erase) and transform.side > side:
        raise InvalidRequest.at(f"{pointer}/side", f"the images have {side} pixels: erase at most as many")


def _check_views(spec: JobSpec, augmentation: Augmentation, facts: DatasetFacts) -> None:
    """A pass holds all views of a record at once."""
    activations = spec.model.held(RecordSizes(facts.features, facts.outputs, facts.is_sparse, 1))
    if activations is not None and activations <= MOST_NUMBERS < activations * augmentation.views:
        detail = (
            f"a pass would hold {activations * augmentation.views} numbers for the views of one record; at "
            f"most {MOST_NUMBERS} are "
            f"allowed: ask for at most {MOST_NUMBERS // activations} views"
        )
        raise InvalidRequest.at(f"{AUGMENTATION}/views", detail)
