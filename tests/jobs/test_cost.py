"""What a POST of a job costs the database, and the API's start: counts that only grow with a reason."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from sqlalchemy import event

from app.db.engine import Database
from tests.conftest import Api
from tests.factories import add_dataset, job_spec

# BEGIN, SAVEPOINT and RELEASE are not among them: the key; the data set, an earlier job of this Idempotency-Key, the
# account; the job, its event, its webhooks' event, its message, its audit entry; the key's row, the data set's row, the
# key's access, its queued jobs, the ledger and its last check, the sub-account, the hold, its last entry, its head, its
# entry.
STATEMENTS = 19
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
    "obstore",
)


def test_a_post_with_a_hold_makes_so_many_statements(api: Api, db: Database) -> None:
    dataset = add_dataset(db)
    said: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "dataset_readings" not in statement:  # the readers look for work meanwhile
            said.append(statement)

    app: Any = api.client.app
    event.listen(app.state.db.engine, "before_cursor_execute", note)
    for number in range(2):  # the first one also prices
        said.clear()
        headers = api.headers("admin", **{"Idempotency-Key": f"k{number}"})
        answer = api.client.post("/v1/jobs", json=job_spec(dataset), headers=headers)
        assert answer.status_code == 201, answer.text
    made = [each for each in said if not each.startswith(TRANSACTIONS)]
    assert len(made) == STATEMENTS, "\n".join(made)


def test_the_api_s_import_loads_what_it_needs() -> None:
    program = f"import sys, app.main; print([name for name in {LATE!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
