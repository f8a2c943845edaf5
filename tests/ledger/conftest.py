from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.db.engine import Database
from app.db.migrate import upgrade
from tests.ledger.support import add_owner


@pytest.fixture(scope="session", params=["sqlite"])
def database_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A migrated database; one more parameter is one more back end."""
    folder: Path = tmp_path_factory.mktemp(str(request.param))
    url = f"sqlite:///{folder / 'ledger.db'}"
    upgrade(url)
    return url


@pytest.fixture(scope="session")
def db(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    add_owner(database)
    yield database
    database.close()
