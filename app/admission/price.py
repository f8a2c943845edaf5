"""A checked job at its price: the blocks that can pay, the choices that a price decides, the quote, what would fit."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from app.admission.choices import closed, with_rate
from app.admission.facts import DatasetFacts
from app.admission.filter_order import order_of
from app.admission.job_rules import Checked, check
from app.admission.quote import ModelQuote, StoredQuote, blocks_read, search_quote
from app.admission.request import Resolved
from app.admission.study import CheckedStudy, check_levels, check_study, stored, unpriced
from app.db.database import Database
from app.hpo.rates import Resolved as ResolvedNumbers
from app.hpo.stored_study import StoredStudy
from app.pricing.service import PricingService
from core.contracts.job_spec import JobSpec
from core.contracts.kinds import rule_of
from core.errors import BudgetError
from core.privacy.prices import Price, StudyPrice, Units
from core.privacy.releases import PlannedNoise

LEAST_NOISE_MU = 1e-5  # of a job's specification


@dataclass(frozen=True)
class Priced:
    """A job at its price. A study's is checked as its final trial at the longest T.

    Attributes:
        price: on public data the charge is nothing.
        study: set if the job is a study.
        division: a study as it is stored.
    """

    checked: Checked
    price: Price | StudyPrice
    study: CheckedStudy | None = None
    division: StoredStudy | None = None

    @property
    def units(self) -> Units:
        """The charge on each account."""
        return Units(train=self.price.charge.train, holdout=self.price.charge.holdout)

    @property
    def quote(self) -> StoredQuote:
        """The quote as it is stored."""
        checked, priced = self.checked, self.price
        sigma, events, search = None, None, None
        if isinstance(priced, StudyPrice):
            sigma, events = priced.runs[-1].noise_multiplier, priced.events
            search = search_quote(self.study, priced) if self.study is not None else None
        elif priced.mechanism is not None:
            sigma, events = priced.mechanism.training.noise_multiplier, priced.mechanism.events
        return StoredQuote(
            noise_multiplier=sigma,
            sample_rate=checked.sample_rate,
            steps=checked.steps,
            expected_batch_size=checked.expected_batch_size,
            mechanism=events,
            epsilon=priced.epsilon,
            comparison=priced.comparison,
            charge=priced.charge,
            lines=priced.lines,
            model=None if checked.work.layers is None else ModelQuote.of(checked.work.layers),
            numerics=checked.work.numerics,
            hpo=search,
            warnings=checked.warnings,
            resolved=checked.resolved,
            reads=blocks_read(checked.facts),
            planned_noise=tuple(each for each in checked.warnings if isinstance(each, PlannedNoise)),
        )


def price(pricing: PricingService, resolved: Resolved) -> Priced:
    """Checks and prices a job on the blocks that it reads, and names them in the specification.

    With "all" those that cannot pay are left out: a function of ledgers alone. Fewer records may cost more, so it
    repeats until all can pay. If none can pay, the one with the most left is named: its refusal says what would fit.

    Raises:
        InvalidRequest: with a pointer to what to change; also if no attempt has the memory.
    """
    facts, names = resolved.facts, resolved.spec.blocks == "all" and bool(resolved.facts.blocks)
    while True:
        labels = {"blocks": [each.label for each in facts.blocks]} if names else {}
        priced = price_one(pricing, resolved.spec.model_copy(update=labels), facts, resolved.side)
        able = [each for each in facts.blocks if each.left.covers(priced.units)]
        if not names or len(able) == len(facts.blocks) or len(facts.blocks) == 1:
            break
        facts = facts.on(
            able or [max(facts.blocks, key=lambda block: (block.left.train, block.left.holdout, block.id))]
        )
    checked = priced.checked
    if resolved.recipe:
        numbers = (checked.resolved or ResolvedNumbers()).model_copy(update={"parts": resolved.recipe})
        priced = replace(priced, checked=replace(checked, resolved=numbers))
    checked.work.require_memory(resolved.request.limits.memory_bytes)
    return priced


def price_one(pricing: PricingService, spec: JobSpec, facts: DatasetFacts, side: DatasetFacts | None) -> Priced:
    """Closes, checks and prices a job on exactly these records."""
    if not rule_of(spec.kind).trains:
        release = check(spec, facts)
        amount = Price.nothing() if release.pricing is None else pricing.price(release.pricing)
        return Priced(release, amount if facts.is_private else amount.free())
    job = closed(spec, facts)
    if job.spec.study is None:
        checked = check(job.spec, facts, side)
        cost = Price.nothing() if checked.pricing is None else pricing.price(checked.pricing)
        return Priced(with_rate(checked, cost, job), cost if facts.is_private else cost.free())
    study = check_study(job.spec, facts, side)
    total = unpriced(study) if study.pricing is None else pricing.price_study(study.pricing)
    warnings = (*study.longest.warnings, *check_levels(study, total), *job.warnings)
    longest = replace(study.longest, spec=study.spec, resolved=job.chosen, warnings=warnings)
    total = total if facts.is_private else total.free()
    return Priced(longest, total, study, stored(study, total))


def explain(refusal: BudgetError, db: Database, pricing: PricingService, resolved: Resolved, priced: Priced) -> None:
    """Adds the largest ε that still fits to a refusal, and the block that cannot pay."""
    refused = refusal.members.pop("dataset")
    for block in priced.checked.facts.blocks:
        if block.id == refused:
            refusal.members["block"] = block.label
            refusal.message = f"block {block.label!r}: {refusal.message}"
    left = Units.model_validate(refusal.members["remaining"])
    largest = largest_that_fits(pricing, resolved, priced, left)
    refusal.members["largest_epsilon_that_fits"] = largest
    # Rounded down: the printed value must fit.
    remark = (
        f"the largest target_epsilon that fits is {math.floor(largest * 1e4) / 1e4}"
        if largest
        else "no ε above 0.0001 fits what is left"
    )
    noise = largest_noise_mu(refusal, left, priced)
    if noise is not None:
        refusal.members["largest_noise_mu_that_fits"] = noise
        remark = f"the score must have more noise: evaluation.noise_mu at most {noise:g}"
    refusal.message = "; ".join(filter(None, (refusal.message, remark, order_for(db, pricing, priced))))
    refusal.args = (refusal.message,)


def order_for(db: Database, pricing: PricingService, priced: Priced) -> str | None:
    """What `order_of` says of a job that trains once."""
    checked, epsilon = priced.checked, priced.price.epsilon
    if epsilon is None or priced.study is not None:
        return None
    batch, epochs = checked.expected_batch_size, checked.steps * checked.sample_rate
    return order_of(db, pricing, checked.facts, priced.units, epsilon.value, batch, epochs)


def largest_noise_mu(refusal: BudgetError, left: Units, priced: Priced) -> float | None:
    """The largest noise_mu of a job's score with which it fits a hold-out that cannot pay; None if that is not what
    binds. A score's charge is proportional to noise_mu² under both filters; rounded down to three digits."""
    spec = priced.checked.spec
    evaluation, holdout_cost = spec.evaluation, Units.model_validate(refusal.members["requested"]).holdout
    if evaluation is None or refusal.members["account"] != "holdout" or spec.hpo is not None or holdout_cost == 0:
        return None
    exact = evaluation.noise_mu * math.sqrt(left.holdout / holdout_cost) * (1.0 - 1e-6)
    if exact < LEAST_NOISE_MU:
        return None
    unit = 10.0 ** (math.floor(math.log10(exact)) - 2)
    return float(f"{math.floor(exact / unit) * unit:.3g}")


def largest_that_fits(pricing: PricingService, resolved: Resolved, priced: Priced, left: Units) -> float | None:
    """Returns the largest target ε that both the budget and the owner's policy for the key cover."""
    if priced.study is not None and priced.study.pricing is not None:
        largest = pricing.largest_study_that_fits(priced.study.pricing, left).epsilon
    elif priced.checked.pricing is not None:
        largest = pricing.largest_that_fits(priced.checked.pricing, left).epsilon
    else:
        return None
    limit = resolved.access.max_epsilon
    return largest if largest is None or limit is None else min(largest, limit)
