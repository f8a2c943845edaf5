"""Two ledgers of the same records: the one is closed, and all that it spent is charged to the other."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import simpson
from scipy.special import logsumexp
from scipy.stats import norm
from sqlalchemy import update

from app.db.database import Database
from app.db.models import Account, Dataset
from app.ledger import accounts, joining
from app.ledger.repository import posted
from app.ledger.summary import view
from core.errors import BudgetError, Conflict, InvalidRequest, NotFound
from core.privacy.filters import filter_of
from tests.chaos.tamper import unprotected
from tests.ledger.support import (
    OWNER,
    add_dataset,
    balances,
    check,
    held_job,
    hold,
    mechanism,
    open_ledger,
    post,
)

RDP: dict[str, Any] = {"filter_kind": "rdp", "order": 8.0}


def join(db: Database, dataset_id: str, into: str) -> int:
    with db.write() as session:
        return joining.join(session, dataset_id=dataset_id, into=into, actor=OWNER, reason="the same records")


def spend(db: Database, dataset_id: str, job: str, *amounts: int) -> None:
    hold(db, dataset_id, job, *amounts)
    post(db, dataset_id, job, *amounts)


def taken(db: Database, dataset_id: str) -> list[int]:
    found = balances(db, dataset_id)
    return [found[name]["spent"] + found[name]["held"] for name in ("train", "holdout")]


def test_what_the_closed_one_spent_and_holds_is_charged_to_the_one_that_stays(db: Database) -> None:
    closed, stays = open_ledger(db), open_ledger(db)
    spend(db, closed, "job_1", 100, 7)
    hold(db, closed, "job_2", 40, 90)
    spend(db, stays, "job_3", 5, 5)
    assert join(db, closed, stays) == 140
    # A record of the one's hold-out may be in the other's training part: the larger is charged to both.
    assert taken(db, stays) == [145, 145] and balances(db, stays)["train"]["held"] == 0
    assert check(db, closed).valid and check(db, stays).valid


def test_a_row_that_was_changed_from_outside_is_not_joined(db: Database) -> None:
    closed, stays = open_ledger(db), open_ledger(db)
    spend(db, closed, "job_1", 100, 7)
    with unprotected(db) as session:
        session.execute(update(Account).where(Account.dataset_id == closed).values(train_spent=1))
    with pytest.raises(Conflict) as refused:
        join(db, closed, stays)
    assert refused.value.code == "ledger-behind" and taken(db, stays) == [0, 0]


def test_nothing_more_is_admitted_by_the_closed_one_and_what_runs_settles_there(db: Database) -> None:
    closed, stays = open_ledger(db), open_ledger(db)
    hold(db, closed, "job_1", 100, 7)
    join(db, closed, stays)
    with pytest.raises(BudgetError, match="closed") as refused:
        hold(db, closed, "job_2", 1)
    assert refused.value.members["remaining"] == {"train": 0, "holdout": 0}
    with pytest.raises(Conflict, match="closed"), db.write() as session:
        accounts.change_cap(session, dataset_id=closed, cap_epsilon=9.0, actor=OWNER, reason="more")
    post(db, closed, "job_1", 60, 7)
    assert taken(db, closed) == [60, 7] and taken(db, stays) == [100, 100]
    hold(db, stays, "job_2", 1)
    assert check(db, closed).valid and check(db, stays).valid
    with db.read() as session:
        shown = view(session.get_one(Dataset, closed), session.get_one(Account, closed), None)
        other = view(session.get_one(Dataset, stays), session.get_one(Account, stays), None)
    assert shown.closed and shown.accounts.train.remaining == 0 and shown.epsilon_remaining.value == 0.0
    assert not other.closed


def test_a_ledger_that_spent_nothing_is_closed_all_the_same(db: Database) -> None:
    closed, stays = open_ledger(db), open_ledger(db, holdout=False)
    assert join(db, closed, stays) == 0
    assert taken(db, stays) == [0, 0] and check(db, closed).valid
    with pytest.raises(BudgetError):
        hold(db, closed, "job_1", 1)


def test_without_a_private_holdout_there_is_one_account_to_charge(db: Database) -> None:
    closed, stays = open_ledger(db), open_ledger(db, holdout=False)
    spend(db, closed, "job_1", 3, 20)
    assert join(db, closed, stays) == 20
    assert taken(db, stays) == [20, 0]


def test_both_together_stay_within_the_cap(db: Database) -> None:
    """Claim: two ledgers of the same records can become one
    Now: an admin joins them, within the cap
    """
    closed, stays = open_ledger(db), open_ledger(db)
    budget = balances(db, stays)["train"]["budget"]
    spend(db, closed, "job_1", budget // 2)
    spend(db, stays, "job_2", budget - budget // 2 + 1)
    before = (balances(db, closed), balances(db, stays))
    with pytest.raises(Conflict) as refused:
        join(db, closed, stays)
    assert refused.value.code == "cap-too-low"
    assert (balances(db, closed), balances(db, stays)) == before, "neither is touched"
    with db.write() as session:
        enough = float(refused.value.members["smallest_epsilon"]) * 1.001
        accounts.change_cap(session, dataset_id=stays, cap_epsilon=enough, actor=OWNER, reason="what was spent")
    join(db, closed, stays)
    assert check(db, stays).valid


def test_no_ledger_is_joined_twice_nor_to_a_closed_one_nor_to_itself(db: Database) -> None:
    one, two, three = (open_ledger(db) for _ in range(3))
    spend(db, one, "job_1", 10)
    with pytest.raises(InvalidRequest):
        join(db, one, one)
    join(db, one, two)
    for closed, stays in ((one, three), (three, one), (one, two), (two, one)):
        with pytest.raises(Conflict, match="closed"):
            join(db, closed, stays)
    join(db, two, three)
    assert taken(db, three) == [10, 10], "what it stands for goes on with it"
    with db.write() as session:
        public = add_dataset(session, sensitivity="public")
    with pytest.raises(NotFound):
        join(db, public, three)


def test_units_are_not_mixed(db: Database) -> None:
    closed, stays = open_ledger(db), open_ledger(db)
    with db.write() as session:
        spec = {"privacy": {"sensitivity": "private", "unit": "user"}}
        session.execute(update(Dataset).where(Dataset.id == closed).values(spec=spec))
    with pytest.raises(Conflict, match="users"):
        join(db, closed, stays)


@pytest.mark.parametrize(
    ("closed", "stays", "charged"),
    [
        ({}, {}, 1_000_001),
        (RDP, RDP, 1_000_001),
        (RDP | {"order": 9.0}, RDP, 1_000_001),
        (RDP | {"order": 7.0}, RDP, None),
        ({}, RDP, 4_001),  # 8/2 · 1,000,001 · 1e-12 in 1e-9, rounded up
        (RDP, {}, None),
    ],
)
def test_filters_are_joined_where_the_one_bounds_the_other(
    db: Database, closed: dict[str, Any], stays: dict[str, Any], charged: int | None
) -> None:
    one, other = open_ledger(db, **closed), open_ledger(db, **stays)
    spend(db, one, "job_1", 1_000_001)
    if charged is None:
        with pytest.raises(Conflict, match="the other way round"):
            join(db, one, other)
    else:
        assert join(db, one, other) == charged
        assert check(db, other).valid


@settings(max_examples=60)
@given(
    sigma=st.floats(0.5, 50.0),
    steps=st.integers(1, 200),
    sampling=st.sampled_from(["full_batch", "poisson"]),
    orders=st.tuples(st.floats(1.5, 64.0), st.floats(1.5, 64.0)),
    kind=st.sampled_from(["gdp", "rdp"]),
)
def test_what_is_carried_is_at_least_the_jobs_divergence_there(
    sigma: float, steps: int, sampling: str, orders: tuple[float, float], kind: str
) -> None:
    """Against the divergence itself. Not against the other filter's charge: near order 1 the library's series for
    sampled Gaussians can be many times too large, which is sound there and says nothing here."""
    of = mechanism(sampling="full_batch" if kind == "gdp" else sampling, sigma=sigma, steps=steps)
    here = filter_of(kind, None if kind == "gdp" else max(orders))
    there = min(orders)
    spent = here.charge(of, "train")
    terms: dict[str, Any] = {"train_held": 0, "holdout_spent": 0, "holdout_held": 0}
    closed = Account(filter=kind, order=here.order, train_spent=spent, **terms)
    stays = Account(filter="rdp", order=there, train_spent=0, **terms)
    assert joining.carried(closed, stays) * 1e-9 >= steps * divergence(of.training.sample_rate, sigma, there)


def divergence(rate: float, sigma: float, order: float) -> float:
    """D_α of a sampled Gaussian by its integral, ln E[(1 + u)^α] / (α − 1), with a relative error of 1e-9.

    u = q (e^{(2z−1)/2σ²} − 1), z ~ N(0, σ²), has mean 0: small moments are E[(1 + u)^α − 1 − αu]. Simpson's rule.
    """
    z = np.linspace(-14.0 * sigma, order + 14.0 * sigma, 40_001)
    density = norm.logpdf(z, scale=sigma)
    logs = np.log1p(rate * np.expm1((2.0 * z - 1.0) / (2.0 * sigma**2)))
    log_moment = logsumexp(density + order * logs, b=np.gradient(z))
    if log_moment < 1e-3:
        excess = np.expm1(order * logs) - order * np.expm1(logs)
        log_moment = np.log1p(simpson(np.exp(density) * excess, x=z))
    return float(log_moment) * (1.0 - 1e-9) / (order - 1.0)


def test_jobs_of_a_joined_ledger_are_in_what_other_accountants_say(db: Database) -> None:
    closed, stays = open_ledger(db), open_ledger(db)
    for dataset_id in (stays, closed):
        job_id, train, holdout = held_job(db, dataset_id, mechanism())
        post(db, dataset_id, job_id, train, holdout)
    join(db, closed, stays)
    with db.read() as session:
        assert len(posted(session, stays)) == 2
        assert len(posted(session, closed)) == 1


def test_a_ledger_that_is_opened_again_by_hand_is_found(db: Database) -> None:
    closed, stays = open_ledger(db), open_ledger(db)
    join(db, closed, stays)
    with unprotected(db) as session:
        session.execute(update(Account).where(Account.dataset_id == closed).values(joined_into=None))
    assert "closed or open" in (check(db, closed).problem or "")


def test_admissions_and_a_join_at_once_never_pass_the_cap(db: Database) -> None:
    """A hold comes before the join and is carried over, or after it and is refused."""
    for _ in range(5):
        closed, stays = open_ledger(db), open_ledger(db)
        start, admitted = threading.Barrier(5), []

        def admit(
            number: int, closed: str = closed, start: threading.Barrier = start, admitted: Any = admitted
        ) -> None:
            start.wait()
            try:
                hold(db, closed, f"job_{number}", 1_000)
            except BudgetError:
                return
            admitted.append(number)

        threads = [threading.Thread(target=admit, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        start.wait()
        carried = join(db, closed, stays)
        for thread in threads:
            thread.join()
        assert carried == 1_000 * len(admitted) == taken(db, closed)[0] == taken(db, stays)[0]
        assert check(db, closed).valid and check(db, stays).valid


def test_two_joins_of_each_into_the_other_leave_one_open(db: Database) -> None:
    for _ in range(5):
        one, two = open_ledger(db), open_ledger(db)
        start, refused = threading.Barrier(2), []

        def both(closed: str, stays: str, start: threading.Barrier = start, refused: Any = refused) -> None:
            start.wait()
            try:
                join(db, closed, stays)
            except Conflict:
                refused.append(closed)

        threads = [threading.Thread(target=both, args=pair) for pair in ((one, two), (two, one))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(refused) == 1
