"""Prices are kept; a comparison that takes too long takes long once, and keeps no admission waiting."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import select

from app.db.database import Database
from app.db.models import PriceCache
from app.pricing.service import PricingService
from app.settings import Settings
from core.errors import LimitError
from core.privacy import events
from core.privacy.price_requests import CompareRequest
from tests.privacy.support import request


@pytest.fixture
def pricing(db: Database, settings: Settings) -> Iterator[PricingService]:
    service = PricingService(db, settings.model_copy(update={"pricing_time_s": 300.0}))
    yield service
    service.close()


def compared(*sigmas: float) -> CompareRequest:
    return CompareRequest(
        events=tuple(events.composed([events.noisy_sums(0.01, sigma, 500)]) for sigma in sigmas), delta=1e-5
    )


def test_a_comparison_past_its_limits_is_not_tried_again(pricing: PricingService) -> None:
    pricing.comparing.time_s = 0.0  # however fast the machine is
    with pytest.raises(LimitError):
        pricing.compare(compared(1.0, 1.1))
    pricing.comparing.time_s = 300.0
    with pytest.raises(LimitError):
        pricing.compare(compared(1.0, 1.1))
    figures = pricing.compare(compared(1.2))
    assert 0 < figures.pld_if_fixed_in_advance <= figures.rdp_best_order


def test_the_oldest_prices_are_dropped(db: Database, settings: Settings) -> None:
    service = PricingService(db, settings.model_copy(update={"max_prices": 3}))
    for i in range(101):
        service._keep({"function": "price", "arguments": {"i": i}}, {"charge": i})
    with db.read() as session:
        kept = [each.price["charge"] for each in session.scalars(select(PriceCache).order_by(PriceCache.created_at))]
    assert kept == [98, 99, 100]


def test_a_kept_price_needs_no_process(pricing: PricingService) -> None:
    asked = request("poisson", 10, 1000, 500, epsilon=1.0, filter_=("rdp", 8.0))
    first = pricing.price(asked)
    pricing.close()
    for server in pricing.servers:
        server.time_s = 0.001  # a call would fail now
    assert pricing.price(asked) == first
