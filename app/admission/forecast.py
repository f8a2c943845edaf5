"""What a job would cost, and whether it fits: quotes, forecasts, and what a refusal says would fit.

All are prefixes of an admission, and write only prices, into the cache.
"""

from __future__ import annotations

import math

from pydantic import BaseModel

from app.admission import memory
from app.admission.lookup import left_within, remaining
from app.admission.outlook import outlook_of
from app.admission.outlook import warning as no_gain
from app.admission.price import Priced
from app.admission.quote import Quote
from app.admission.request import Resolved
from app.admission.standing import is_allowed, policy
from app.admission.times import lack_of, seconds_per_step, start_of
from app.contracts.blocks import ALL, FIRST
from app.contracts.dataset_spec import TypicalJob
from app.db.engine import Database
from app.db.models import Account
from app.errors import BudgetError, InvalidRequest, LimitError, PrivacyError
from app.grants import service as grants
from app.ledger.repository import dataset_with_account
from app.pricing.service import PricingService
from app.privacy import filter_reading
from app.privacy.plans import OrderRequest
from app.privacy.prices import Charge, Units

BEYOND_BUDGET = (
    "this key's budget within the cap has less left than this job costs: ask the data set's owner for more "
    "(POST /v1/budget-requests)"
)

FIRST_ALONE = "it reads the block `first` alone: the data set's others are closed, or cannot pay"


class Forecast(BaseModel):
    """How many jobs of one price fit what is left: that many are admitted one after another, and not one more.

    `per_job` is the price on each account, in the filter's units; `share_per_job` its share of the budget, on the
    account where that is larger.
    """

    jobs_that_fit: int
    per_job: Units
    share_per_job: float


def quote(
    db: Database, pricing: PricingService, resolved: Resolved, priced: Priced, *, hypothetical: bool = False
) -> Quote:
    """A priced job's quote: its cost, line by line, whether it fits now, and when it would start.

    Args:
        hypothetical: it has another number of records than is declared, and other jobs' times say nothing of it.
    """
    caller, facts, checked = resolved.request.caller, priced.checked.facts, priced.checked
    limits, is_study = resolved.request.limits, priced.study is not None
    with db.read() as session:
        left, inside = remaining(session, facts.reads, caller.id), left_within(session, facts.reads, caller.id)
        pace = None if is_study or hypothetical else seconds_per_step(session, facts.id, checked.spec)
        start = None if is_study else start_of(session, resolved.request, facts.id)
    found = Quote.model_validate(priced.quote.model_dump(mode="json"))
    found.declaration = facts.declaration
    found.scores = list(checked.scores)
    found.estimated_duration_s = round(pace * checked.steps, 1) if pace is not None else None
    found.start = start
    found.memory = memory.of_job(checked)
    found.outlook = outlook_of(checked)
    if found.outlook is not None and (flat := no_gain(found.outlook)) is not None:
        found.warnings.append(flat)
    if (much := memory.warning(found.memory, limits.memory_bytes)) is not None:
        found.warnings.append(much)
    found.warnings.extend(lack_of(db, resolved.request))
    if resolved.spec.blocks == ALL and [each.label for each in facts.blocks] == [FIRST]:
        found.warnings.append(FIRST_ALONE)
    if left is None or checked.pricing is None:
        return found.model_copy(update={"fits": True})
    charge, allowed = priced.price.charge, is_allowed(resolved.access, priced.price.epsilon)
    if not allowed:
        found.warnings.append(policy(resolved.access))
    if inside is not None and not inside.covers(charge):
        found.warnings.append(BEYOND_BUDGET)
    found.fits = left.covers(charge) and allowed
    found.jobs_that_fit = left.holds(charge) if allowed else 0
    if found.fits:
        after = Charge(train=left.train - charge.train, holdout=left.holdout - charge.holdout, unit=charge.unit)
        found.remaining_after = after
    found.largest_epsilon_that_fits = _largest_that_fits(pricing, resolved, priced, left)
    if not found.fits and (why := order_of(db, pricing, priced)) is not None:
        found.warnings.append(why)
    return found


def with_records(resolved: Resolved, records: int) -> Resolved:
    """The same request on a data set that is registered with so many training records, and default slots, whose ledger
    is this one's.

    Raises:
        InvalidRequest: the data set has blocks, or no data set can have so many.
    """
    if resolved.facts.blocks:
        raise InvalidRequest.at("/dataset", "this data set has blocks: its number of records is that of its blocks")
    return Resolved.of(resolved.request, resolved.facts.with_records(records), resolved.side, resolved.access)


def account_at(db: Database, resolved: Resolved, dataset_id: str) -> Account:
    """The account of the data set that a job reads, which must be the one with this id or name.

    Raises:
        NotFound, Forbidden: the key may not train on it; or it is public, and has no account.
        InvalidRequest: it is another data set.
    """
    with db.read() as session:
        dataset, _ = grants.find(session, resolved.request.caller, dataset_id, "train")
        if dataset.id != resolved.facts.id:
            raise InvalidRequest.at("/dataset", "the job names another data set than the address: name the same one")
        return dataset_with_account(session, dataset.id)[1]


def forecast(db: Database, resolved: Resolved, priced: Priced, account: Account) -> Forecast:
    """How many such jobs fit what is left of a data set's budget."""
    with db.read() as session:
        left = remaining(session, priced.checked.facts.reads, resolved.request.caller.id)
    fit = left.holds(priced.units) if left is not None else None
    if fit is None:
        raise PrivacyError("a job on private data has a cost")
    budgets = ((priced.units.train, account.train_budget), (priced.units.holdout, account.holdout_budget))
    share = max(each / budget for each, budget in budgets if budget > 0)
    fit = fit if is_allowed(resolved.access, priced.price.epsilon) else 0
    return Forecast(jobs_that_fit=fit, per_job=priced.units, share_per_job=share)


def explain(refusal: BudgetError, db: Database, pricing: PricingService, resolved: Resolved, priced: Priced) -> None:
    """Adds the largest ε that still fits to a refusal, and the block that cannot pay."""
    refused = refusal.members.pop("dataset")
    for each in priced.checked.facts.blocks:
        if each.id == refused:
            refusal.members["block"] = each.label
            refusal.message = f"block {each.label!r}: {refusal.message}"
    left = Units.model_validate(refusal.members["remaining"])
    largest = _largest_that_fits(pricing, resolved, priced, left)
    refusal.members["largest_epsilon_that_fits"] = largest
    # Rounded down: the printed value must fit.
    more = (
        f"the largest target_epsilon that fits is {math.floor(largest * 1e4) / 1e4}"
        if largest
        else "no ε above 0.0001 fits what is left"
    )
    noise = largest_noise_mu(refusal, left, priced)
    if noise is not None:
        refusal.members["largest_noise_mu_that_fits"] = noise
        more = f"the score must have more noise: evaluation.noise_mu at most {noise:g}"
    why = order_of(db, pricing, priced)
    refusal.message = "; ".join(filter(None, (refusal.message, more, why)))
    refusal.args = (refusal.message,)


def order_of(db: Database, pricing: PricingService, priced: Priced) -> str | None:
    """Why a job whose own ε is below the cap does not fit under an `rdp` filter at all, with the order that was chosen
    had the owner declared jobs like it; None if that is not the reason."""
    checked, epsilon = priced.checked, priced.price.epsilon
    facts = checked.facts
    if facts.order is None or epsilon is None or facts.cap_delta is None or priced.study is not None:
        return None
    with db.read() as session:
        account = session.get_one(Account, facts.reads[0])
    worst = max(priced.units.train, priced.units.holdout)
    why = filter_reading.of_job(facts.order, worst, facts.cap_delta, epsilon.value, account.cap_epsilon)
    if why is None:
        return None
    epochs = checked.steps * checked.sample_rate
    job = TypicalJob(epsilon=epsilon.value, expected_batch_size=checked.expected_batch_size, epochs=epochs)
    request = OrderRequest(
        cap_epsilon=account.cap_epsilon, cap_delta=facts.cap_delta, records=facts.records_train, typical_job=job
    )
    try:
        order = pricing.choose_order(request)
    except (InvalidRequest, LimitError):
        return why
    typical = job.model_dump_json()
    return f"{why}. For jobs like it α = {order:g} is chosen where the owner registers with `typical_job` {typical}" + (
        ": a data set on which nothing was ever held can be retired and registered anew" if account.entries == 1 else ""
    )


LEAST_NOISE_MU = 1e-5  # of a job's specification


def largest_noise_mu(refusal: BudgetError, left: Units, priced: Priced) -> float | None:
    """The largest noise_mu of a job's score with which it fits a hold-out that cannot pay; None if that is not what
    binds. A score's charge is proportional to noise_mu² under both filters; rounded down to three digits."""
    spec = priced.checked.spec
    evaluation, asked = spec.evaluation, Units.model_validate(refusal.members["requested"]).holdout
    if evaluation is None or refusal.members["account"] != "holdout" or spec.hpo is not None or asked == 0:
        return None
    exact = evaluation.noise_mu * math.sqrt(left.holdout / asked) * (1.0 - 1e-6)
    if exact < LEAST_NOISE_MU:
        return None
    unit = 10.0 ** (math.floor(math.log10(exact)) - 2)
    return float(f"{math.floor(exact / unit) * unit:.3g}")


def _largest_that_fits(pricing: PricingService, resolved: Resolved, priced: Priced, left: Units) -> float | None:
    """Returns the largest target ε that both the budget and the owner's policy for the key cover."""
    if priced.study is not None and priced.study.pricing is not None:
        largest = pricing.largest_study_that_fits(priced.study.pricing, left).epsilon
    elif priced.checked.pricing is not None:
        largest = pricing.largest_that_fits(priced.checked.pricing, left).epsilon
    else:
        return None
    most = resolved.access.max_epsilon
    return largest if largest is None or most is None else min(largest, most)
