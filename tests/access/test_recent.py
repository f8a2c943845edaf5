"""Keys of recent requests are not read again: what ends one, here and in another process, and when."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import event, update

from app.db.models import ApiKey
from app.keys import service as keys
from app.keys.recent import KEPT_S, STAMP, RecentKeys
from app.secrets import load_secret
from core.ids import now, rfc3339
from tests.access.world import World
from tests.factories import job_spec

PLAIN = "/v1/models"  # needs a key, and nothing else of the database


class Clock:
    """The clock by which rows are kept: it stands still until a test moves it."""

    def __init__(self) -> None:
        self.s = 1000.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def recent(world: World) -> RecentKeys:
    app: Any = world.client.app
    app.state.recent_keys = kept = RecentKeys(Clock())
    return kept


@pytest.fixture
def pass_time(recent: RecentKeys) -> Callable[[], None]:
    def move() -> None:
        assert isinstance(recent.clock, Clock)
        recent.clock.s += KEPT_S

    return move


def elsewhere(world: World, who: str, **columns: object) -> None:
    """Changes a key as another process does: this one is told nothing."""
    with world.db.write() as session:
        session.execute(update(ApiKey).where(ApiKey.id == world.ids[who]).values(columns))


def status(world: World, who: str, path: str = PLAIN) -> int:
    return int(world.ask(who, "GET", path).status_code)


def lookups(world: World, ask: Callable[[], object]) -> int:
    """How many statements read keys meanwhile."""
    said: list[str] = []
    app: Any = world.client.app

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        said.append(statement)

    event.listen(app.state.db.engine, "before_cursor_execute", note)
    ask()
    event.remove(app.state.db.engine, "before_cursor_execute", note)
    return sum("FROM api_keys" in each for each in said)


def test_a_token_is_looked_up_once_in_a_while(world: World, pass_time: Callable[[], None]) -> None:
    counts = [lookups(world, lambda: status(world, "trainer")) for _ in range(3)]
    pass_time()
    assert [*counts, lookups(world, lambda: status(world, "trainer"))] == [1, 0, 0, 1]


def test_a_token_that_opens_nothing_is_looked_up_each_time(world: World, recent: RecentKeys) -> None:
    assert status(world, "trainer") == 200
    for who in ("unknown", "revoked", "expired"):
        assert [lookups(world, partial(status, world, who)) for _ in range(2)] == [1, 1]
    wrong = world.tokens["trainer"][:-1] + ("A" if world.tokens["trainer"][-1] != "A" else "B")
    answer = world.client.get(PLAIN, headers={"Authorization": f"Bearer {wrong}"})
    assert answer.status_code == 401 and len(recent._rows) == 1


def test_no_token_is_stored(world: World, recent: RecentKeys) -> None:
    assert status(world, "trainer") == 200
    (token_hmac,) = recent._rows
    kept = repr(recent._rows) + repr(recent.row(token_hmac))
    assert world.ids["trainer"] in kept and world.tokens["trainer"].split("_", 3)[3] not in kept


def revoke(world: World) -> None:
    assert world.ask("admin", "DELETE", f"/v1/keys/{world.ids['spare']}").status_code == 200


def rotate(world: World) -> None:
    assert world.ask("admin", "POST", f"/v1/keys/{world.ids['spare']}/rotate").status_code == 200


@pytest.mark.usefixtures("recent")
@pytest.mark.parametrize("end", [revoke, rotate])
def test_a_key_that_this_process_ends_ends_at_once(world: World, end: Callable[[World], None]) -> None:
    assert status(world, "spare") == 200
    end(world)
    assert status(world, "spare") == 401


@pytest.mark.usefixtures("recent")
def test_a_limit_that_this_process_sets_holds_at_once(world: World) -> None:
    assert status(world, "spare") == 200
    world.ask("admin", "PATCH", f"/v1/keys/{world.ids['spare']}", json={"requests_per_minute": 1})
    assert [status(world, "spare") for _ in range(2)] == [200, 429]


@pytest.mark.parametrize(
    ("columns", "ended"),
    [
        ({"revoked_at": now()}, 401),
        ({"expires_at": now() - timedelta(hours=1)}, 401),
        ({"secret_hmac": "0" * 64}, 401),
        ({"role": "analyst"}, 403),
    ],
    ids=["revoked", "expiry set", "rotated", "another role"],
)
def test_what_another_process_changes_holds_within_the_time(
    world: World, pass_time: Callable[[], None], columns: dict[str, object], ended: int
) -> None:
    world.add_key("second", "admin")
    assert status(world, "second", "/v1/keys") == 200
    elsewhere(world, "second", **columns)
    assert status(world, "second", "/v1/keys") == 200
    pass_time()
    assert status(world, "second", "/v1/keys") == ended


@pytest.mark.usefixtures("recent")
def test_a_revoked_key_gets_no_budget_and_sees_no_job_even_at_once(world: World) -> None:
    assert status(world, "trainer") == 200
    elsewhere(world, "trainer", revoked_at=now())
    assert status(world, "trainer") == 200
    assert status(world, "trainer", f"/v1/jobs/{world.mine.job}") == 401
    headers = {"Idempotency-Key": "late"}
    answer = world.ask("trainer", "POST", "/v1/jobs", json=job_spec(world.mine.dataset), headers=headers)
    assert answer.status_code == 401


@pytest.mark.usefixtures("recent")
def test_a_key_expires_by_the_clock(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"name": "brief", "role": "analyst", "expires_at": rfc3339(now() + timedelta(hours=1))}
    world.tokens["brief"] = world.ask("admin", "POST", "/v1/keys", json=body).json()["token"]
    assert status(world, "brief") == 200
    monkeypatch.setattr(keys, "now", lambda: now() + timedelta(hours=2))
    assert status(world, "brief") == 401


@pytest.mark.usefixtures("recent")
def test_a_grant_that_ends_ends_at_once(world: World) -> None:
    path = f"/v1/datasets/{world.mine.dataset}"
    assert status(world, "trainer", path) == 200
    assert world.ask("admin", "DELETE", f"{path}/grants/{world.ids['trainer']}").status_code == 204
    assert status(world, "trainer", path) == 404


@pytest.mark.usefixtures("recent")
def test_a_team_that_ends_binds_no_more(world: World) -> None:
    budget = f"/v1/datasets/{world.mine.dataset}/budgets/team"
    body = {"epsilon": 0.01, "keys": [world.ids["trainer"]]}
    made = world.ask("admin", "PUT", budget, json=body, headers={"If-None-Match": "*"})
    assert made.status_code == 200, made.text

    def submit(once: str) -> int:
        headers = {"Idempotency-Key": once}
        answer = world.ask("trainer", "POST", "/v1/jobs", json=job_spec(world.mine.dataset), headers=headers)
        return int(answer.status_code)

    assert submit("within") == 409
    assert world.ask("admin", "DELETE", budget, headers={"If-Match": "*"}).status_code == 204
    assert submit("without") == 201


def test_a_row_read_before_a_change_is_not_kept_after_it(world: World) -> None:
    recent, stamp = RecentKeys(Clock()), STAMP.now
    pepper = load_secret(world.settings, "api_key_pepper")
    token_hmac = keys.digest(pepper, world.tokens["spare"])
    with world.db.quick_read() as connection:
        key = connection.execute(keys.BY_ID, {"key": world.ids["spare"]}).one()
    revoke(world)
    recent.keep(token_hmac, key, stamp)
    assert recent.row(token_hmac) is None
    recent.keep(token_hmac, key, STAMP.now)
    assert recent.row(token_hmac) is key
