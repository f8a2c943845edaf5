"""What a POST of a job costs the database, and the API's start: counts that only grow with a reason."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from sqlalchemy import event

from app.db import database
from app.db.database import Database
from app.jobs import routes as jobs
from app.jobs.show_routes import router as jobs_router
from app.jobs.show_routes import show_job
from app.keys import service as keys
from app.keys.recent import RecentKeys
from app.main import ROUTERS, create_app
from app.secrets import load_secret
from app.settings import Settings
from core.privacy import gdp, numerics
from tests.conftest import Api
from tests.factories import add_dataset, job_spec

# What SQLAlchemy is told to run, without BEGIN and COMMIT, and without the key, which the request before has read. On
# SQLite: the data set with all that is known of it; the job, its event, its webhooks' event, its message, its audit
# entry and the key; what the key may and has; the account, the last entry; the hold, the entry, the head. On PostgreSQL
# the first alone: the others go past it, see below.
STATEMENTS = {"postgresql": 1, "sqlite": 13}
# By what they hold: all that is known before; all that an admission depends on, under the locks; all that it changes.
TRIPS = (
    ("FROM datasets",),
    ("BEGIN", "INSERT INTO jobs", "FOR SHARE OF datasets", "FROM accounts", "FROM ledger_entries"),
    ("UPDATE accounts SET train_held", "INSERT INTO ledger_entries", "COMMIT"),
)
TRANSACTIONS = ("BEGIN", "SAVEPOINT", "RELEASE", "COMMIT")
# What the API loads when it needs it, or never.
LATE = (
    "kombu",
    "celery",
    "scipy",
    "pyarrow",
    "sklearn",
    "dp_accounting",
    "torch",
    "psycopg",
    "opentelemetry.sdk",
    "sqlalchemy.dialects.postgresql",
    "sqlalchemy.dialects.sqlite",
    "obstore",
    "numpy",
    "httpx",
    "redis",
    "alembic",
    "app.formats.parse",
    "app.lifecycle.relay",
    "core.privacy.pricing",
    "worker",
)


def test_a_post_with_a_hold_makes_so_many_statements(api: Api, db: Database) -> None:
    dataset = add_dataset(db)
    said: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "dataset_readings" not in statement:  # the readers look for work meanwhile
            said.append(statement)

    app: Any = api.client.app
    app.state.recent_keys = RecentKeys(lambda: 0.0)
    event.listen(app.state.db.engine, "before_cursor_execute", note)
    for number in range(2):  # the first one also prices
        said.clear()
        headers = api.headers("admin", **{"Idempotency-Key": f"k{number}"})
        answer = api.client.post("/v1/jobs", json=job_spec(dataset), headers=headers)
        assert answer.status_code == 201, answer.text
    made = [each for each in said if not each.startswith(TRANSACTIONS)]
    assert len(made) == STATEMENTS[db.engine.dialect.name], "\n".join(made)
    assert not any(each.startswith("SAVEPOINT") for each in said)


@pytest.mark.parametrize("backing", ["postgres"])
def test_a_post_with_a_hold_makes_three_round_trips(
    settings: Settings, db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By libpq's own trace: the server ends each round trip with ReadyForQuery. Nine were needed before, four of them
    while the account's row was locked."""
    monkeypatch.setattr(database, "PING_AFTER_S", math.inf)  # a connection that was idle for a second is asked first
    dataset, trace = add_dataset(db), tmp_path / "trace"
    with db.write() as session:
        pepper = load_secret(settings, "api_key_pepper")
        _key, token = keys.create(session, pepper, name="test", role="admin", created_by=None)
    app: Any = create_app(settings)
    app.state.recent_keys = RecentKeys(lambda: 0.0)
    client = TestClient(app)  # its readers are not started: they ask too
    with trace.open("ab", buffering=0) as file:
        event.listen(app.state.db.engine, "checkout", lambda driver, *_: driver.pgconn.trace(file.fileno()))
        event.listen(app.state.db.engine, "checkin", lambda driver, *_: driver.pgconn.untrace())
        for number in range(2):  # the first one also reads the key, and prices
            file.truncate(0)
            headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": f"k{number}"}
            answer = client.post("/v1/jobs", json=job_spec(dataset), headers=headers)
            assert answer.status_code == 201, answer.text
        app.state.pricing.close()
        app.state.db.close()
    trips = trace.read_text(errors="replace").split("ReadyForQuery")[:-1]
    assert len(trips) == len(TRIPS), "\n".join(trips)
    for trip, parts in zip(trips, TRIPS, strict=True):
        assert all(part in trip for part in parts), trip


def test_a_plan_priced_before_solves_no_equation(api: Api, db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its budget and the warnings about its scores are of the same numbers each time."""
    dataset, solved, log_delta = add_dataset(db), [0], gdp._log_delta

    def counted(mu: float, epsilon: float) -> float:
        solved[0] += 1
        return log_delta(mu, epsilon)

    monkeypatch.setattr(gdp, "_log_delta", counted)
    gdp.epsilon_from_mu.cache_clear()
    gdp.mu_from_epsilon.cache_clear()
    numerics.cheapest_rows.cache_clear()
    counts: list[tuple[int, int]] = []
    spec = job_spec(dataset) | {"evaluation": {"on": "holdout", "noise_mu": 0.0011}}
    for number in range(2):
        headers = api.headers("admin", **{"Idempotency-Key": f"k{number}"})
        answer = api.client.post("/v1/jobs", json=spec, headers=headers)
        assert answer.status_code == 201, answer.text
        counts.append((solved[0], numerics.cheapest_rows.cache_info().misses))
    assert min(counts[0]) > 0 and counts[1] == counts[0]


def test_a_post_solves_few_dependencies() -> None:
    """Each one costs the event loop as much as the answer's JSON: the key, its scheme, the admission."""
    (post,) = [route for route in jobs.router.routes if isinstance(route, APIRoute) and route.endpoint is jobs.submit]

    def count(dependant: Dependant) -> int:
        return sum(1 + count(each) for each in dependant.dependencies)

    assert count(post.dependant) == 3


def test_a_poll_of_a_job_is_found_among_few_routes_and_solves_no_dependency() -> None:
    """The first fifty routes were compared with it before: a third of the event loop's time for a GET."""
    assert ROUTERS[0] is jobs_router
    paths = [route for route in jobs_router.routes if isinstance(route, APIRoute)]
    (place,) = [number for number, route in enumerate(paths) if route.endpoint is show_job]
    assert place < 6 and paths[place].dependant.dependencies == []


def test_the_api_s_import_loads_what_it_needs() -> None:
    program = f"import sys, app.main; print([name for name in {LATE!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
