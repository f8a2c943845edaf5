"""From a request to its priced plan: the spec with its open choices closed, the blocks that it reads, its price."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sqlalchemy.orm import Session

from app.catalogue import extractors, model_folders, models
from app.contracts.blocks import ALL, FIRST
from app.contracts.dataset_spec import LanguageModelTask
from app.contracts.job_spec import JobSpec
from app.contracts.optimizers import PublicSideSettings
from app.datasets.repository import check_there
from app.db.models import Dataset
from app.errors import Conflict, InvalidRequest
from app.grants import service as grants
from app.jobs import priors, repository, study_quotes
from app.jobs.planning import plan
from app.jobs.plans import DatasetFacts, Plan, StudyPlan
from app.jobs.pricing import PricingService
from app.jobs.rates import with_rate
from app.jobs.studies import plan_study
from app.keys.service import Caller
from app.privacy.prices import Price, StudyPrice, Units


def facts_for(session: Session, caller: Caller, dataset: Dataset, spec: JobSpec) -> DatasetFacts:
    """Reads the public facts of what a job reads: its data set, or the blocks that it names; for "all", all open ones.

    Raises:
        InvalidRequest: it names a block that is not there or not open.
        Conflict: `content-deleted`: nothing is left to train on.
    """
    facts, named = repository.dataset_facts(session, dataset), None if spec.blocks == ALL else spec.blocks
    blocks = repository.blocks_of(session, dataset, caller.id, named)
    if blocks is None:  # it never grew
        check_there(dataset)
        return without_blocks(facts, spec)
    if not blocks:
        _check_any(session, caller, dataset)
    if named is None:
        return facts.on(blocks)
    there = {each.label: each for each in blocks}
    for place, label in enumerate(named):
        if label not in there or label in named[:place]:
            every = repository.blocks_of(session, dataset, caller.id) or []
            still = ", ".join(each.label for each in every)
            why = "is named twice" if label in there else f"is not open; open are {still}"
            raise InvalidRequest.at(f"/blocks/{place}", f"block {label!r} {why}")
    return facts.on(there[label] for label in named)


def _check_any(session: Session, caller: Caller, dataset: Dataset) -> None:
    """Raises Conflict if no block of a data set is open."""
    if not repository.blocks_of(session, dataset, caller.id):
        raise Conflict("content-deleted", f"every block of {dataset.name!r} was retired or deleted")


def without_blocks(facts: DatasetFacts, spec: JobSpec) -> DatasetFacts:
    """Returns the facts of a data set that never grew, if the spec names no block of it.

    Raises:
        InvalidRequest: it does.
    """
    if spec.blocks not in (ALL, [FIRST]) or (spec.blocks != ALL and not facts.is_private):
        raise InvalidRequest.at("/blocks", "this data set has no blocks: leave `blocks` out")
    return facts


def side_facts(session: Session, caller: Caller, spec: JobSpec) -> DatasetFacts | None:
    """Reads the facts of the public data set with the optimizer's side information; the key must be allowed to train
    on it.

    Raises:
        NotFound, Forbidden: as for the job's own data set.
    """
    if not isinstance(spec.optimizer, PublicSideSettings):
        return None
    dataset, _ = grants.find(session, caller, spec.optimizer.public_dataset, "train")
    return repository.dataset_facts(session, dataset)


def pinned(spec: JobSpec, models_root: Path | None, facts: DatasetFacts) -> JobSpec:
    """Returns the spec with its extractor's or model's content and its open defaults filled in."""
    extracted = extractors.resolved(spec, models_root, facts.spec.features.kind)
    chosen = models.resolved(extracted, facts.spec.task.kind)
    task = facts.spec.task
    prompts = isinstance(task, LanguageModelTask) and task.prompt is not None
    return model_folders.resolved(chosen, models_root, facts.outputs, prompts=prompts)


def price_on_blocks(
    pricing: PricingService, spec: JobSpec, facts: DatasetFacts, side: DatasetFacts | None
) -> tuple[Plan, Price | StudyPrice]:
    """Returns the plan and its price on the blocks of `facts`, and names them in the spec. With "all" those that cannot
    pay are left out: a function of ledgers alone. Fewer records may cost more, so it repeats until all can pay.

    If none can pay, the one with the most left is named: its refusal says what would fit.
    """
    if spec.blocks != ALL or not facts.blocks:
        return price_plan(pricing, spec, facts, side)
    while True:
        planned, priced = _named(pricing, spec, facts, side)
        able = [each for each in facts.blocks if each.left.covers(_units(priced))]
        if len(able) == len(facts.blocks):
            return planned, priced
        if not able:
            richest = max(facts.blocks, key=lambda each: (each.left.train, each.left.holdout, each.id))
            return _named(pricing, spec, facts.on([richest]), side)
        facts = facts.on(able)


def _named(
    pricing: PricingService, spec: JobSpec, facts: DatasetFacts, side: DatasetFacts | None
) -> tuple[Plan, Price | StudyPrice]:
    labels = [each.label for each in facts.blocks]
    return price_plan(pricing, spec.model_copy(update={"blocks": labels}), facts, side)


def _units(priced: Price | StudyPrice) -> Units:
    return Units(train=priced.charge.train, holdout=priced.charge.holdout)


def price_plan(
    pricing: PricingService, spec: JobSpec, facts: DatasetFacts, side: DatasetFacts | None
) -> tuple[Plan, Price | StudyPrice]:
    """Returns the plan and its price; on public data the charge is nothing. A study's plan is that for its final trial
    at the longest T."""
    priced: Price | StudyPrice
    spec, why = priors.decided(spec, facts)
    if spec.hpo is not None:
        planned, priced = _price_study(pricing, plan_study(spec, facts, side))
    else:
        planned = plan(spec, facts, side)
        priced = Price.nothing() if planned.pricing is None else pricing.price(planned.pricing)
        planned = with_rate(planned, priced, why)
    return planned, priced if facts.is_private else priced.free()


def _price_study(pricing: PricingService, study: StudyPlan) -> tuple[Plan, StudyPrice]:
    planned = replace(study.longest, spec=study.spec, study=study)
    if study.pricing is None:
        return planned, study_quotes.unpriced(study)
    priced = pricing.price_study(study.pricing)
    return replace(planned, warnings=(*planned.warnings, *study_quotes.check_levels(study, priced))), priced
