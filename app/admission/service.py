"""Admits jobs: a request is resolved, checked, priced and held. Each other answer is a prefix of this walk.

request.py   Resolved   who asks, for which job, on which data: its public facts, and contents by hash
checks.py    Checked    whether the job goes with its data; study.py for a search; choices.py closes what is "auto"
price.py     Priced     the mechanism, its price on the blocks that can pay, the quote (app.pricing: the processes)
hold.py      Held       the job (rows.py), its hold, its first event and its message, in one transaction; standing.py:
                        what is checked once more under its locks
forecast.py             what an answer that holds nothing says: whether it fits, and what would
times.py                when it would start; sweep.py: a study's final trial, many times
"""

from __future__ import annotations

from dataclasses import dataclass, field

from app import tracing
from app.admission import forecast as forecasts
from app.admission import sweep as sweeps
from app.admission.forecast import Forecast
from app.admission.hold import Held, hold
from app.admission.price import price
from app.admission.quote import Quote
from app.admission.request import Limits, Request, resolve, resolve_once
from app.admission.sweep import SweepView
from app.contracts.job_spec import JobSpec
from app.contracts.sweep import Sweep
from app.db.engine import Database
from app.errors import BudgetError
from app.keys.service import Caller
from app.ledger.transparency.heads import Heads
from app.pricing.service import PricingService


@dataclass(frozen=True)
class Admission:
    """The admission of a service.

    Attributes:
        heads: the recorded heads of ledgers.
    """

    db: Database
    pricing: PricingService
    heads: Heads
    limits: Limits = field(default_factory=Limits)

    def submit(self, caller: Caller, spec: JobSpec, idempotency_key: str) -> Held:
        """Admits a job if its whole cost fits.

        Args:
            idempotency_key: scoped to the caller's key; the same one with the same spec returns the same job.

        Raises:
            BudgetError: the job does not fit, and what would. Nothing is consumed.
            NotFound, Forbidden, InvalidRequest, Conflict, PolicyError: as `resolve_once`, `price` and `hold`.
        """
        resolved = resolve_once(self.db, Request(caller, spec, self.limits), idempotency_key)
        if isinstance(resolved, str):
            return Held(resolved)
        pricing = self.pricing.of(caller.id)
        with tracing.span("price", {"dataset": resolved.facts.id}):
            priced = price(pricing, resolved)
        try:
            return hold(self.db, self.heads, resolved, priced, idempotency_key)
        except BudgetError as refusal:
            forecasts.explain(refusal, self.db, pricing, resolved, priced)
            raise

    def quote(self, caller: Caller, spec: JobSpec, records: int | None = None) -> Quote:
        """Quotes a job's cost, and tells if it fits and can run now.

        Args:
            records: a hypothetical public number of training records; None: the declared one.

        Raises:
            InvalidRequest, NotFound, Forbidden: as `submit`; or a data set with blocks and `records`.
        """
        declared, pricing = resolve(self.db, Request(caller, spec, self.limits)), self.pricing.of(caller.id)
        resolved = declared if records is None else forecasts.with_records(declared, records)
        other = resolved.facts.records_train != declared.facts.records_train
        return forecasts.quote(self.db, pricing, resolved, price(pricing, resolved), hypothetical=other)

    def forecast(self, caller: Caller, dataset_id: str, spec: JobSpec) -> Forecast:
        """Tells how many jobs of this spec fit what is left of a data set's budget.

        Args:
            dataset_id: the data set's id or name; the spec must name the same one.

        Raises:
            NotFound: also on public data, which have no ledger.
            InvalidRequest, Forbidden: as `submit`.
        """
        resolved = resolve(self.db, Request(caller, spec, self.limits))
        account = forecasts.account_at(self.db, resolved, dataset_id)
        return forecasts.forecast(self.db, resolved, price(self.pricing.of(caller.id), resolved), account)

    def sweep(self, caller: Caller, asked: Sweep) -> SweepView:
        """Computes the privacy of a study's final trial under other totals, levels and numbers of pilots.

        Raises:
            InvalidRequest: `spec` is no plan of linear scaling, a list does not fit it, or there are too many points.
            NotFound, Forbidden: as for a quote.
        """
        request = Request(caller, asked.spec, self.limits)
        return sweeps.sweep(self.db, self.pricing.of(caller.id), request, asked)
