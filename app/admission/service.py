"""What admissions work with."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.admission.request import Limits
from app.db.database import Database
from app.ledger.transparency.heads import Heads
from app.pricing.service import PricingService


@dataclass(frozen=True)
class Admission:
    """The admission of a service: app.admission.hold submits to it, app.admission.forecast and sweep ask it.

    Attributes:
        heads: the recorded heads of ledgers.
    """

    db: Database
    pricing: PricingService
    heads: Heads
    limits: Limits = field(default_factory=Limits)
