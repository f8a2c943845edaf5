"""A ledger that moves from one currency to the other (decision 53), against privacy loss distributions.

A history is a random sequence of jobs on a real ledger: full batches and sampled ones, held, posted whole or in part,
or given back, until the budget is nearly gone; when it moves is random too. ε of all that ran, by composed privacy loss
distributions at the cap's δ, must be within the cap. A history is fixed, so that this is a test and no proof: the
theorem is about adversaries.
"""

from __future__ import annotations

import math
import random
from functools import cache

import pytest

from app.db.database import Database
from app.db.models import Dataset
from app.ledger import accounts, block_accounts, second
from app.ledger.verification import verify
from core.errors import BudgetError, Conflict
from core.privacy import pld
from core.privacy.events import Event, composed, gradient_sums
from core.privacy.filters import choose_order
from tests.by_night import but
from tests.factories import add_dataset
from tests.ledger.support import OWNER

DELTA = 1e-5
CAPS = (1.0, 4.0)
GRID = 1e-3  # pessimistic: a coarser grid shows more loss
JOBS = 16  # of a history
ORDER = cache(lambda cap: choose_order(cap, DELTA / 2.0, 10_000))
# The first seed and how many: a dozen by day, and 10,000 by night.
CASES = but([(0, 12), *((100 * case, 50) for case in range(1, 201))], lambda case: case[0] == 0)


class History:
    """One ledger, what ran on it, and the jobs that a seed draws."""

    def __init__(self, db: Database, seed: int) -> None:
        self.db, self.draw, self.ran = db, random.Random(seed), list[Event]()
        self.cap = self.draw.choice(CAPS)
        order = ORDER(self.cap)
        cap = {"epsilon": self.cap, "delta": DELTA}
        privacy = {"sensitivity": "private", "records": 10_000, "cap": cap, "plan": "mixed", "order": order}
        self.dataset = add_dataset(db, owner=OWNER, shared=False, holdout=None, privacy=privacy)

    def run(self, jobs: int) -> float:
        """Returns ε of all that ran."""
        moves_at = self.draw.randrange(2 * jobs)  # about half of them never move
        for number in range(jobs):
            self._job(f"job_{number}", sampled=number >= moves_at and self.draw.random() < 0.7)
        return pld.epsilon(composed(self.ran), DELTA, GRID) if self.ran else 0.0

    def _job(self, job: str, *, sampled: bool) -> None:
        steps = self.draw.randrange(1, 60)
        spread = math.exp(self.draw.uniform(-0.5, 2.0))
        rate, sigma = (0.02, spread) if sampled else (1.0, math.sqrt(steps) * 2.0 * spread)
        with self.db.write() as session:
            account = block_accounts.paying(session, self.dataset)
            if sampled and account.filter == "gdp":
                try:
                    second.move(session, session.get_one(Dataset, self.dataset), OWNER)
                    account = block_accounts.paying(session, self.dataset)
                except Conflict:  # more was spent than the other currency has
                    session.rollback()
                    return
            enforced = accounts.filter_for(account.filter, account.order)
            ends = self.draw.choices((steps, self.draw.randrange(steps), 0), (6, 2, 1))[0]
            try:
                whole = {"train": enforced.charge_event(gradient_sums(rate, sigma, steps)), "holdout": 0}
                accounts.hold(session, dataset_id=account.dataset_id, job_id=job, actor=OWNER, **whole)
            except BudgetError:
                return
            if ends == 0:
                accounts.void(session, dataset_id=account.dataset_id, job_id=job, actor="worker")
                return
            event = gradient_sums(rate, sigma, ends)
            posted = {"train": enforced.charge_event(event), "holdout": 0}
            accounts.post(session, dataset_id=account.dataset_id, job_id=job, actor="worker", **posted)
            self.ran.append(event)


@pytest.mark.parametrize(("first", "count"), CASES)
def test_all_that_ran_is_within_the_cap(db: Database, first: int, count: int) -> None:
    moved, near = 0, 0
    for seed in range(first, first + count):
        history = History(db, seed)
        spent = history.run(JOBS)
        assert spent <= history.cap, f"seed {seed}: ε = {spent} of {history.cap}"
        with db.read() as session:
            ledgers = block_accounts.ledgers_of(session, history.dataset)
            assert all(verify(session, each).valid for each in ledgers)
        moved, near = moved + (len(ledgers) > 1), near + (spent > 0.8 * history.cap)
    assert 0 < moved < count and near > 0, "histories of both kinds, and some near the cap"


def test_a_move_that_forgets_what_was_spent_would_be_found(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second, "carried", lambda _first, _to: (0, 0))
    over = 0
    for seed in range(12):
        history = History(db, seed)
        over += history.run(4 * JOBS) > history.cap
    assert over > 0
