"""What a job would cost, and whether it fits: quotes, forecasts, and what a refusal says would fit.

All are prefixes of an admission, and write only prices, into the cache.
"""

from __future__ import annotations

from app.admission import memory_estimate
from app.admission.lookup import left_for, left_within
from app.admission.outlook import outlook_of
from app.admission.outlook import warning as no_gain
from app.admission.price import largest_that_fits, order_for, price
from app.admission.quote import Quote, left_out
from app.admission.request import Request, Resolved, resolve
from app.admission.service import Admission
from app.admission.standing import is_allowed, policy
from app.admission.times import lack_of, seconds_per_step, start_of
from app.grants import service as grants
from app.keys.service import Caller
from app.ledger.block_accounts import lead
from app.ledger.repository import dataset_with_account
from app.ledger.second import budget_after, second_filter
from core.contracts.base import Deferred
from core.contracts.job_spec import JobSpec
from core.errors import InvalidRequest, PrivacyError
from core.privacy.prices import Charge, Units

BEYOND_BUDGET = (
    "this key's budget within the cap has less left than this job costs: ask the data set's owner for more "
    "(POST /v1/budget-requests)"
)


class Forecast(Deferred):
    """How many jobs of one price fit what is left: that many are admitted one after another, and not one more.

    `per_job` is the price on each account, in the filter's units; `share_per_job` its share of the budget, on the
    account where that is larger.
    """

    jobs_that_fit: int
    per_job: Units
    share_per_job: float


def quote(admission: Admission, caller: Caller, spec: JobSpec, records: int | None = None) -> Quote:
    """Quotes a job: its cost, line by line, whether it fits now, and when it would start.

    Args:
        records: a hypothetical public number of training records, of which other jobs' times say nothing; None: the
            declared one.

    Raises:
        InvalidRequest, NotFound, Forbidden: as `app.admission.hold.submit`; or a data set with blocks and `records`.
    """
    db, pricing, request = admission.db, admission.pricing.of(caller.id), Request.of(caller, spec, admission.limits)
    declared = resolve(db, request)
    resolved = declared if records is None else with_records(declared, records)
    hypothetical = resolved.facts.records_train != declared.facts.records_train
    priced = price(pricing, resolved)
    facts, checked = priced.checked.facts, priced.checked
    is_study = priced.study is not None
    with db.read() as session:
        left, inside = left_for(session, facts, caller.id), left_within(session, facts.reads, caller.id)
        pace = None if is_study or hypothetical else seconds_per_step(session, facts.id, checked.spec)
        start = None if is_study else start_of(session, request, checked.spec, facts.id)
    quoted = Quote.model_validate(priced.quote.model_dump(mode="json"))
    quoted.declaration = facts.declaration
    quoted.scores = list(checked.scores(priced.price.mechanism))
    quoted.estimated_duration_s = round(pace * checked.steps, 1) if pace is not None else None
    quoted.start = start
    quoted.memory = checked.work.memory(checked.spec, facts)
    quoted.outlook = outlook_of(checked)
    if quoted.outlook is not None and (flat := no_gain(quoted.outlook)) is not None:
        quoted.warnings.append(flat)
    if quoted.memory and (much := memory_estimate.warning(quoted.memory, request.limits.memory_bytes)) is not None:
        quoted.warnings.append(much)
    quoted.warnings.extend(lack_of(db, checked.spec.runtime, request.limits.lease_s))
    quoted.warnings.extend(left_out(spec.blocks, facts))
    if left is None or checked.pricing is None:
        return quoted.model_copy(update={"fits": True})
    charge, allowed = priced.price.charge, is_allowed(resolved.access, priced.price.epsilon)
    if not allowed:
        quoted.warnings.append(policy(resolved.access))
    if inside is not None and not inside.covers(charge):
        quoted.warnings.append(BEYOND_BUDGET)
    quoted.fits = left.covers(charge) and allowed
    quoted.jobs_that_fit = left.holds(charge) if allowed else 0
    if quoted.fits:
        remaining = Charge(train=left.train - charge.train, holdout=left.holdout - charge.holdout, unit=charge.unit)
        quoted.remaining_after = remaining
    quoted.largest_epsilon_that_fits = largest_that_fits(pricing, resolved, priced, left)
    if not quoted.fits and (order := order_for(db, pricing, priced)) is not None:
        quoted.warnings.append(order)
    return quoted


def with_records(resolved: Resolved, records: int) -> Resolved:
    """The same request on a data set that is registered with so many training records, and default slots, whose ledger
    is this one's.

    Raises:
        InvalidRequest: the data set has blocks, or no data set can have so many.
    """
    if resolved.facts.blocks:
        raise InvalidRequest.at("/dataset", "this data set has blocks: its number of records is that of its blocks")
    facts = resolved.facts.with_records(records)
    return Resolved.of(resolved.request, facts, resolved.side, resolved.access, resolved.uploaded, resolved.most_gpus)


def forecast(admission: Admission, caller: Caller, spec: JobSpec, dataset_id: str) -> Forecast:
    """Tells how many jobs of this spec fit what is left of a data set's budget.

    Args:
        dataset_id: the data set's id or name; the spec must name the same one.

    Raises:
        NotFound: also on public data, which have no ledger.
        InvalidRequest, Forbidden: as `app.admission.hold.submit`; or the spec names another data set.
    """
    db = admission.db
    resolved = resolve(db, Request.of(caller, spec, admission.limits))
    with db.read() as session:
        dataset, _ = grants.find(session, caller, dataset_id, "train")
        if dataset.id != resolved.facts.id:
            raise InvalidRequest.at("/dataset", "the job names another data set than the address: name the same one")
        first = dataset_with_account(session, dataset.id)[0]
        account = lead(session, first.id)
    priced = price(admission.pricing.of(caller.id), resolved)
    with db.read() as session:
        left = left_for(session, priced.checked.facts, caller.id)
    fit = left.holds(priced.units) if left is not None else None
    if fit is None:
        raise PrivacyError("a job on private data has a cost")
    budget_of = {name: getattr(account, f"{name}_budget") for name in ("train", "holdout")}
    if priced.checked.facts.moves:
        budget = budget_after(account, second_filter(first))
        budget_of = {name: budget if has_part else 0 for name, has_part in budget_of.items()}
    budgets = ((priced.units.train, budget_of["train"]), (priced.units.holdout, budget_of["holdout"]))
    share = max(each / budget for each, budget in budgets if budget > 0)
    fit = fit if is_allowed(resolved.access, priced.price.epsilon) else 0
    return Forecast(jobs_that_fit=fit, per_job=priced.units, share_per_job=share)
