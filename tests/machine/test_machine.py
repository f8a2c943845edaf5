"""A short run of the machine, and two planted faults that it must find."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from sqlalchemy import event, update
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from app.db.models import Account, Dataset, LedgerEntry
from app.ledger import accounts, second, sub_accounts
from app.ledger.accounts import Hold
from app.ledger.running_sums import SPENT
from app.ledger.transparency.heads import Head, Heads, KnownHead
from app.lifecycle import restore
from app.retention.retire import retire_block
from app.storage import objects
from tests.by_night import but
from tests.chaos.tamper import unprotected
from tests.conftest import BACKINGS
from tests.machine import histories, nightly
from tests.machine.histories import Home
from tests.machine.machine import Divergence, Machine
from tests.machine.races import UNCONDITIONAL
from tests.machine.service import MovingMachine, ServiceMachine
from tests.machine.world import OWNER, moved_clocks

SEED = 1
OPERATIONS = 100
# By day; with this seed they include these. A number that is even has a plan: its ledgers may move.
BY_DAY = {("sqlite", 5): {"restore", "quote", "forecast"}, ("sqlite", 2): {"move", "append", "quote", "forecast"}}


@pytest.fixture
def home(backing: str, migrated_database: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Home:
    if backing == "sqlite":
        return Home(tmp_path, migrated_database)
    server, template = (request.getfixturevalue(name) for name in ("postgres_server", "migrated_postgres"))
    return Home(tmp_path, migrated_database, server, template)


@pytest.mark.parametrize(
    ("backing", "number"),
    but(((on, number) for on in BACKINGS for number in range(1, 7)), lambda each: each in BY_DAY),
)
def test_a_history_is_that_of_the_serial_model(home: Home, number: int) -> None:
    by_day = BY_DAY.get(("sqlite" if home.server is None else "", number), set[str]())
    found = histories.run(home, SEED, number, OPERATIONS if by_day else histories.OPERATIONS)
    assert found.fault is None, found.fault
    assert sum(found.did.values()) > 50 and sum(found.refused.values()) > 10
    assert all(found.did.get(name, 0) > 0 for name in by_day)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """The database's own constraints, the second line of defence, are off."""

    def off(connection: Any, _record: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA ignore_check_constraints = ON").close()

    event.listen(Engine, "connect", off)
    yield
    event.remove(Engine, "connect", off)


def read_then_write(real: Callable[[Hold, Session], None]) -> Callable[[Hold, Session], None]:
    """A hold that compares with a balance that it read before, and then writes whatever has happened since."""
    seen: dict[str, dict[str, int]] = {}

    def check(hold: Hold, session: Session) -> None:
        where, (train, holdout) = hold.dataset_id, hold.terms.amounts
        before = seen.get(where)
        account = accounts.account_of(session, where)
        seen[where] = accounts.remaining_of(account)
        fits = before is not None and before["train"] >= train and before["holdout"] >= holdout
        with pytest.MonkeyPatch.context() as patch:
            if fits and account.joined_into is None:
                patch.setattr(accounts, "remaining_of", lambda _account: before)
            real(hold, session)

    return check


class Charging(ServiceMachine):
    """The same machine, which draws other systems' charges alone: it finds a fault in them at once."""

    WEIGHTS: ClassVar = {"reserve": 5, "settle_charge": 3}


class Moving(MovingMachine):
    """It draws what moves, and what is carried."""

    WEIGHTS: ClassVar = {"reserve": 5, "settle_charge": 3, "set_budget": 3, "reserve_any": 2}


class Budgeting(ServiceMachine):
    WEIGHTS: ClassVar = {"reserve": 5, "settle_charge": 6, "set_budget": 2}


class Reading(ServiceMachine):
    WEIGHTS: ClassVar = {"submit": 3, "quote": 5, "forecast": 5, "set_budget": 3}


class Writing(ServiceMachine):
    """The machine without reads, as it drew when it found what a test below repeats."""

    WEIGHTS: ClassVar = {name: n for name, n in ServiceMachine.WEIGHTS.items() if name not in ("quote", "forecast")}


class Miscounting(Charging):
    """A fault that nothing but the service's own verification looks for: somebody adds to a running sum."""

    WEIGHTS: ClassVar = Charging.WEIGHTS | {"miscount": 1}

    def miscount(self) -> None:
        def add() -> None:
            with self.db.write() as session:
                session.execute(update(SPENT).values(train=SPENT.c.train + 1))

        self.call("miscount", add)


class Forgetting(Miscounting):
    """The same, and the database is rewound in between."""

    WEIGHTS: ClassVar = Miscounting.WEIGHTS | {"backup": 2, "rewind": 2}


def fault(home: Home, of: type[Machine]) -> str:
    """What the machine finds in its first histories."""
    found = (histories.run(home, SEED, number, 30, of).fault for number in range(1, 6))
    return next((each for each in found if each is not None), "")


def test_it_finds_a_hold_that_reads_and_then_writes(
    home: Home, unchecked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hold, "check", read_then_write(Hold.check))
    monkeypatch.setattr(accounts, "HOLD", UNCONDITIONAL)
    found = fault(home, Charging)
    assert "the model says budget-exceeded" in found, found


def test_it_finds_a_budget_whose_void_gives_nothing_back(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    real = sub_accounts.settle

    def settle(session: Session, dataset_id: str, sub_id: str | None, held: Any, spent: Any) -> None:
        if spent != (0, 0):
            real(session, dataset_id, sub_id, held, spent)

    monkeypatch.setattr(sub_accounts, "settle", settle)
    found = fault(home, Budgeting)
    assert "void" in found or "settle_charge" in found, found


@pytest.mark.parametrize("read", ["quote", "forecast"])
def test_it_finds_a_read_that_forgets_the_key_s_own_budget(
    home: Home, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sub_accounts, "with_own", lambda left, _own: left)
    monkeypatch.setattr(Reading, "WEIGHTS", {"set_budget": 3, read: 5})
    assert f", {read}: " in fault(home, Reading)


def test_it_finds_a_new_entry_that_its_hash_is_not_of(home: Home) -> None:
    """At the operation that wrote it, and not at the next verification."""
    with moved_clocks(), home.world() as world:
        machine = Charging(world, SEED, 1)
        machine.compare()
        machine.reserve()
        with unprotected(world.db) as session:
            session.execute(update(LedgerEntry).where(LedgerEntry.kind == "hold").values(actor="another"))
        with pytest.raises(Divergence, match="ds_1_0 2: its hash"):
            machine.compare()


def test_it_finds_a_record_outside_that_is_of_no_entry(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Heads.write

    def write(heads: Heads, head: Head, compared: KnownHead) -> bool:
        return real(heads, head.model_copy(update={"head": "0" * 64}), compared)

    monkeypatch.setattr(Heads, "write", write)
    monkeypatch.setattr(Charging, "WEIGHTS", {"reserve": 1})
    found = histories.run(home, SEED, 1, 2, Charging)
    assert found.fault is not None and "its record outside fits" in found.fault, found


def test_it_finds_running_sums_that_do_not_follow_from_the_entries(home: Home) -> None:
    found = fault(home, Miscounting)
    assert "the running sums" in found, found


def test_a_rewind_forgets_nothing_that_was_not_verified(home: Home) -> None:
    found = fault(home, Forgetting)
    assert ", rewind: " in found and "the running sums" in found, found


@pytest.mark.parametrize("forgets", ["the account", "a budget"])
def test_it_finds_a_move_that_carries_too_little(home: Home, monkeypatch: pytest.MonkeyPatch, forgets: str) -> None:
    """Of all that was spent, or of what was spent within a budget: what is held is left out."""
    real = second._in_units_of

    def less(to: Any, own: Any, of: Any) -> tuple[int, int]:
        with pytest.MonkeyPatch.context() as patch:
            if isinstance(of, Account) == (forgets == "the account"):
                patch.setattr(of, "train_held", 0)
            return real(to, own, of)

    monkeypatch.setattr(second, "_in_units_of", less)
    found = fault(home, Moving)
    assert "spent" in found and "and the model says" in found, found


def test_a_block_that_a_restore_retires_again_leaves_a_data_set_that_grows(home: Home) -> None:
    """Found by the machine: the untouched first block's retirement was taken for the whole data set's."""
    with moved_clocks(), home.world() as world:
        world.register("ds_a", 3.0)
        world.append("ds_a", "ds_b", "two")
        backup = world.backup()
        retire_block(world.db, world.settings, OWNER, "ds_a", "first")
        world.rewind(backup)
        restore.post(world.db, world.heads, objects.of(world.settings), "ds_a", "the disk died")
        with world.db.read() as session:
            assert session.get_one(Account, "ds_a").joined_into == accounts.RETIRED
            assert session.get_one(Dataset, "ds_a").retired_at is None
        world.append("ds_a", "ds_c", "three")


def test_a_block_under_a_lowered_cap_may_have_a_budget_of_before(home: Home) -> None:
    """Found by the machine: the new block's ledger was said to be changed, as no cap of its own had been so large."""
    found = histories.run(home, 1540191567, 49, 101, Writing)
    assert found.fault is None, found.fault
    assert found.did["append"] > 0


def test_an_attempt_that_is_lost_in_a_pause_is_none_of_those_that_a_job_waits_for(home: Home) -> None:
    """Found by the machine: the model counted it, and said that the job waits after its next loss."""
    found = histories.run(home, 20261128, 454, 67, ServiceMachine)
    assert found.fault is None, found.fault
    assert found.did["lost"] > 1


def test_a_campaign_goes_on_where_it_ended(home: Home, tmp_path: Path) -> None:
    state, report = tmp_path / "machine.json", tmp_path / "machine.md"
    begun = nightly.Campaign.begin(state, seed=SEED)
    begun.add(histories.Result(1, "sqlite", {"submit": 7}, {"submit: budget-exceeded": 2}, 1.5))
    again = nightly.Campaign.resume(state)
    assert (again.seed, again.histories, again.operations) == (SEED, 1, 7)
    again.add(histories.Result(2, "sqlite", {"submit": 1, "claim": 2}, {}, 0.5, "history 2: it differs"))
    nightly.write(nightly.Campaign.resume(state), report)
    written = report.read_text()
    assert "10 operations in 2 histories" in written and "| submit | 8 | 2 |" in written and "it differs" in written


def test_a_report_keeps_finished_campaigns_and_what_people_wrote_of_them(tmp_path: Path) -> None:
    report = tmp_path / "machine.md"
    nightly.retire(report)
    assert not report.exists(), "there was none"
    for seed in (11, 12, 13):
        nightly.retire(report)
        campaign = nightly.Campaign.begin(tmp_path / f"{seed}.json", seed)
        campaign.add(histories.Result(1, "sqlite", {"submit": seed}, {}, 1.0, f"history 1: {seed} differs"))
        nightly.write(campaign, report)
        nightly.write(campaign, report)
        with report.open("a") as file:
            file.write("" if seed == 11 else f"Written after {seed}.\n")
    own, earlier = report.read_text().split(nightly.EARLIER)
    assert "seed 13: 13 operations" in own and "| submit | 13 |" in own and "seed 12" not in own
    for seed in (11, 12):
        assert earlier.count(f"seed {seed}: {seed} operations") == 1 and f"{seed} differs" in earlier
    assert "Written after 12." in earlier and "| submit |" not in earlier
