"""What a POST of a job costs the database, and the API's start: counts that only grow with a reason."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from fastapi.routing import APIRoute
from sqlalchemy import event

from app.db.engine import Database
from app.jobs.routes import router as jobs_router
from app.jobs.routes import show_job
from app.keys.recent import RecentKeys
from app.main import ROUTERS
from tests.conftest import Api
from tests.factories import add_dataset, job_spec

# BEGIN and COMMIT are not among them, nor the key, which the request before has read: the data set with all that is
# known of it; the job with its event, its webhooks' event, its message and its audit entry, and the key's lock; what
# the key may and has; the hold, the last entry, the entry with the head. SQLite has no round trips: there each row is a
# statement.
STATEMENTS = {"postgresql": 6, "sqlite": 12}
TRANSACTIONS = ("BEGIN", "SAVEPOINT", "RELEASE", "COMMIT")
# Libraries that the API loads when it needs them, or never.
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
