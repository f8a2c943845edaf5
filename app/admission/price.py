"""A checked job at its price: the blocks that can pay, the choices that a price decides, the quote."""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.admission import memory
from app.admission.checks import Checked, check
from app.admission.choices import decided, with_numbers, with_rate
from app.admission.division import check_levels, quoted, unpriced
from app.admission.facts import DatasetFacts
from app.admission.quote import ModelQuote, ReadBlock, StoredQuote
from app.admission.request import Resolved
from app.admission.study import CheckedStudy, check_study
from app.catalogue.models import layers
from app.contracts.blocks import ALL, FIRST
from app.contracts.job_spec import JobSpec
from app.hpo.rates import Resolved as ResolvedNumbers
from app.pricing.service import PricingService
from app.privacy.prices import Price, StudyPrice, Units


@dataclass(frozen=True)
class Priced:
    """A job at its price. A study's is checked as its final trial at the longest T.

    Attributes:
        price: on public data the charge is nothing.
        study: set if the job is a study.
    """

    checked: Checked
    price: Price | StudyPrice
    study: CheckedStudy | None = None

    @property
    def units(self) -> Units:
        """The charge on each account."""
        return Units(train=self.price.charge.train, holdout=self.price.charge.holdout)

    @property
    def quote(self) -> StoredQuote:
        """The quote as it is stored."""
        checked, priced = self.checked, self.price
        if isinstance(priced, StudyPrice):
            sigma, events = priced.runs[-1].noise_multiplier, priced.events
        elif priced.mechanism is not None:
            sigma, events = priced.mechanism.training.noise_multiplier, priced.mechanism.events
        else:
            sigma, events = None, None
        search = None
        if self.study is not None and isinstance(priced, StudyPrice):
            search = quoted(self.study, priced)
        found = layers(checked.spec.model, checked.facts.features, checked.facts.outputs, checked.facts.rows)
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
            model=ModelQuote(parameters=sum(layer.parameters for layer in found), layers=tuple(found)),
            numerics=checked.numerics,
            hpo=search,
            warnings=checked.warnings,
            resolved=checked.resolved,
            reads=_reads(checked.facts),
        )


def _reads(facts: DatasetFacts) -> tuple[ReadBlock, ...]:
    if not facts.blocks:
        return (ReadBlock(label=FIRST, records=facts.records_train + facts.records_holdout),)
    found = [ReadBlock(label=each.label, records=each.records_train + each.records_holdout) for each in facts.blocks]
    return tuple(sorted(found, key=lambda each: each.label))


def price(pricing: PricingService, resolved: Resolved) -> Priced:
    """Checks and prices a job on the blocks that it reads, and names them in the specification.

    With "all" those that cannot pay are left out: a function of ledgers alone. Fewer records may cost more, so it
    repeats until all can pay. If none can pay, the one with the most left is named: its refusal says what would fit.

    Raises:
        InvalidRequest: with a pointer to what to change; also if no attempt has the memory.
    """
    spec, facts = resolved.spec, resolved.facts
    if spec.blocks != ALL or not facts.blocks:
        priced = price_one(pricing, spec, facts, resolved.side)
    else:
        priced = _on_blocks(pricing, spec, facts, resolved.side)
    if resolved.recipe:
        told = (priced.checked.resolved or ResolvedNumbers()).model_copy(update={"parts": resolved.recipe})
        priced = replace(priced, checked=replace(priced.checked, resolved=told))
    most, on_processors = resolved.request.limits.memory_bytes, priced.checked.spec.runtime.on_processors
    memory.check(priced.checked.spec.model, priced.checked.facts, most, on_processors=on_processors)
    return priced


def _on_blocks(pricing: PricingService, spec: JobSpec, facts: DatasetFacts, side: DatasetFacts | None) -> Priced:
    while True:
        priced = _named(pricing, spec, facts, side)
        able = [each for each in facts.blocks if each.left.covers(priced.units)]
        if len(able) == len(facts.blocks):
            return priced
        if not able:
            richest = max(facts.blocks, key=lambda each: (each.left.train, each.left.holdout, each.id))
            return _named(pricing, spec, facts.on([richest]), side)
        facts = facts.on(able)


def _named(pricing: PricingService, spec: JobSpec, facts: DatasetFacts, side: DatasetFacts | None) -> Priced:
    labels = [each.label for each in facts.blocks]
    return price_one(pricing, spec.model_copy(update={"blocks": labels}), facts, side)


def price_one(pricing: PricingService, spec: JobSpec, facts: DatasetFacts, side: DatasetFacts | None) -> Priced:
    """Checks and prices a job on exactly these records."""
    spec, chosen = with_numbers(spec, facts)
    spec, why = decided(spec, facts)
    if spec.hpo is not None:
        priced = _price_study(pricing, check_study(spec, facts, side), chosen)
    else:
        checked = check(spec, facts, side)
        cost = Price.nothing() if checked.pricing is None else pricing.price(checked.pricing)
        priced = Priced(with_rate(checked, cost, why, chosen), cost)
    return priced if facts.is_private else replace(priced, price=priced.price.free())


def _price_study(pricing: PricingService, study: CheckedStudy, chosen: ResolvedNumbers | None) -> Priced:
    checked = replace(study.longest, spec=study.spec, resolved=chosen)
    if study.pricing is None:
        return Priced(checked, unpriced(study), study)
    cost = pricing.price_study(study.pricing)
    warnings = (*checked.warnings, *check_levels(study, cost))
    return Priced(replace(checked, warnings=warnings), cost, study)
