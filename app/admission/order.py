"""Why a job below the cap may not fit an empty ledger: the order of an `rdp` filter, and which one suits such jobs."""

from __future__ import annotations

from app.admission.price import Priced
from app.contracts.dataset_spec import TypicalJob
from app.db.engine import Database
from app.db.models import Account
from app.errors import InvalidRequest, LimitError
from app.pricing.service import PricingService
from app.privacy import filter_reading
from app.privacy.plans import OrderRequest


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
