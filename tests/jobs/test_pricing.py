"""Prices are kept; a comparison that takes too long takes long once, and keeps no admission waiting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import select

from app.db.engine import Database
from app.db.models import PriceCache
from app.errors import LimitError
from app.jobs.pricing import PricingService
from app.settings import Settings


@pytest.fixture
def pricing(db: Database, settings: Settings) -> Iterator[PricingService]:
    service = PricingService(db, settings.model_copy(update={"pricing_time_s": 20.0}))
    yield service
    service.close()


def poisson(sigma: float, steps: int = 500) -> dict[str, Any]:
    gaussian = {"kind": "gaussian", "noise_multiplier": sigma}
    sampled = {"kind": "poisson_sampled", "sample_rate": 0.01, "event": gaussian}
    return {"kind": "composed", "events": [{"kind": "self_composed", "count": steps, "event": sampled}]}


def test_a_comparison_past_its_limits_is_not_tried_again(pricing: PricingService) -> None:
    pricing.comparing.time_s = 0.05  # starting the process alone takes longer
    trees = [poisson(1.0), poisson(1.1)]
    with pytest.raises(LimitError):
        pricing.compare(trees, 1e-5)
    pricing.comparing.time_s = 20.0
    with pytest.raises(LimitError):
        pricing.compare(trees, 1e-5)
    figures = pricing.compare([poisson(1.2)], 1e-5)
    assert 0 < figures["pld_if_fixed_in_advance"] <= figures["rdp_best_order"]


def test_the_oldest_prices_are_dropped(db: Database, settings: Settings) -> None:
    service = PricingService(db, settings.model_copy(update={"max_prices": 3}))
    for i in range(101):
        service._keep({"function": "price", "arguments": {"i": i}}, {"charge": i})
    with db.read() as session:
        kept = [each.price["charge"] for each in session.scalars(select(PriceCache).order_by(PriceCache.created_at))]
    assert kept == [98, 99, 100]


def test_a_kept_price_needs_no_process(pricing: PricingService) -> None:
    training = {
        "sampling": "poisson",
        "sample_rate": 0.01,
        "steps": 500,
        "max_grad_norm": 1.0,
        "clipping": "flat",
        "expected_batch_size": 10,
    }
    request = {
        "training": training,
        "target_epsilon": 1.0,
        "noise_multiplier": None,
        "target_delta": 1e-5,
        "releases": [],
        "filter": {"kind": "rdp", "order": 8.0},
    }
    first = pricing.price(request)
    pricing.close()
    for server in pricing.servers:
        server.time_s = 0.001  # a call would fail now
    assert pricing.price(request) == first
