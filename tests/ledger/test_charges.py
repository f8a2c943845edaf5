"""Other systems' charges on both databases: settled once, whoever is first."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.charges import service
from app.charges.schemas import ChargeRequest
from app.db.database import Database
from app.keys.service import Caller
from app.ledger.transparency.heads import Heads
from app.pricing.service import PricingService
from app.settings import Settings
from core.errors import BudgetError, Conflict
from tests.ledger.support import OWNER, balances, check, open_ledger

BY = Caller(id=OWNER, name="owner", role="admin")


def asked(dataset: str, mu: float) -> ChargeRequest:
    claim = {"kind": "gdp", "mu": mu}
    body = {"dataset": dataset, "mechanism": claim, "unit": "example", "attested": "a test"}
    return ChargeRequest.model_validate(body)


@pytest.fixture
def heads(tmp_path: Path) -> Heads:
    return Heads(tmp_path)


@pytest.fixture
def pricing(db: Database, settings: Settings) -> Iterator[PricingService]:
    service = PricingService(db, settings)
    yield service
    service.close()


def test_racing_charges_hold_exactly_what_fits(db: Database, heads: Heads, pricing: PricingService) -> None:
    dataset = open_ledger(db)
    budget = balances(db, dataset)["train"]["budget"]
    mu = (budget * 1e-12 / 5) ** 0.5 * (1 - 1e-9)

    def reserve(number: int) -> bool:
        try:
            return service.reserve(db, heads, pricing, BY, asked(dataset, mu), f"once-{dataset}-{number}")[1]
        except BudgetError:
            return False

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(reserve, range(12))) == 5
    assert balances(db, dataset)["train"]["held"] <= budget
    assert check(db, dataset).valid


def test_one_key_used_at_once_makes_one_charge(db: Database, heads: Heads, pricing: PricingService) -> None:
    dataset = open_ledger(db)
    with ThreadPoolExecutor(4) as pool:
        same = pool.map(
            lambda _: service.reserve(db, heads, pricing, BY, asked(dataset, 0.1), f"same-{dataset}"), range(8)
        )
        made = list(same)
    assert len({charge.id for charge, _ in made}) == 1 and sum(is_new for _, is_new in made) == 1
    assert balances(db, dataset)["train"]["held"] == made[0][0].train


def test_posting_and_voiding_at_once_settles_once(db: Database, heads: Heads, pricing: PricingService) -> None:
    dataset = open_ledger(db)
    charge, _ = service.reserve(db, heads, pricing, BY, asked(dataset, 0.5), f"once-{dataset}")

    def settled(number: int) -> str:
        reason = "nothing was answered" if number % 2 else None
        try:
            return service.settle(db, heads, BY, charge.id, voided_because=reason).status
        except Conflict:
            return "refused"

    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(settled, range(8)))
    assert found in ({"posted", "refused"}, {"voided", "refused"})
    spent = charge.train if "posted" in found else 0
    left = balances(db, dataset)["train"]
    assert (left["spent"], left["held"]) == (spent, 0)
    assert check(db, dataset).valid


@pytest.mark.parametrize("how", [None, "nothing was answered"])
def test_a_settled_charge_stays_settled(db: Database, heads: Heads, how: str | None, pricing: PricingService) -> None:
    dataset = open_ledger(db)
    charge, _ = service.reserve(db, heads, pricing, BY, asked(dataset, 0.5), f"once-{dataset}")
    settled = [service.settle(db, heads, BY, charge.id, voided_because=how).status for _ in range(2)]
    assert settled == ["posted" if how is None else "voided"] * 2
    with pytest.raises(Conflict):
        service.settle(db, heads, BY, charge.id, voided_because="other" if how is None else None)
