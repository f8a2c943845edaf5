"""Why a job below the cap may not fit an empty ledger: the order of an `rdp` filter, and which one suits such jobs."""

from __future__ import annotations

from app.admission.facts import DatasetFacts
from app.db.database import Database
from app.db.models import Account
from app.pricing.service import PricingService
from core.contracts.dataset_spec import TypicalJob
from core.errors import InvalidRequest, LimitError
from core.privacy import filter_reading
from core.privacy.price_requests import OrderRequest
from core.privacy.prices import Units


def order_of(
    db: Database, pricing: PricingService, facts: DatasetFacts, units: Units, epsilon: float, batch: int, epochs: float
) -> str | None:
    """Why a job whose own ε is below the cap does not fit under an `rdp` filter at all, with the order that was chosen
    had the owner declared jobs like it; None if that is not the reason.

    Args:
        units, epsilon: the job's price.
        batch, epochs: its expected batch size, and how often it reads the training part.
    """
    if facts.order is None or facts.cap_delta is None:
        return None
    with db.read() as session:
        account = session.get_one(Account, facts.reads[0])
    worst = max(units.train, units.holdout)
    mismatch = filter_reading.of_job(facts.order, worst, facts.cap_delta, epsilon, account.cap_epsilon)
    if mismatch is None:
        return None
    job = TypicalJob(epsilon=epsilon, expected_batch_size=batch, epochs=epochs)
    request = OrderRequest(
        cap_epsilon=account.cap_epsilon, cap_delta=facts.cap_delta, records=facts.records_train, typical_job=job
    )
    try:
        order = pricing.choose_order(request)
    except (InvalidRequest, LimitError):
        return mismatch
    typical = job.model_dump_json()
    return (
        f"{mismatch}. For jobs like it α = {order:g} is chosen where the owner registers with `typical_job` {typical}"
        + (
            ": a data set on which nothing was ever held can be retired and registered anew"
            if account.entries == 1
            else ""
        )
    )
