from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.db.database import Database
from tests import servers
from tests.conftest import BACKINGS
from tests.ledger.support import add_owner


@pytest.fixture(scope="session", params=BACKINGS)
def database_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A migrated database on each back end."""
    if request.param == "postgres":
        server = request.getfixturevalue("postgres_server")
        return servers.new_database(server, request.getfixturevalue("migrated_postgres"))
    template: Path = request.getfixturevalue("migrated_database")
    return f"sqlite:///{shutil.copy(template, tmp_path_factory.mktemp('sqlite') / 'ledger.db')}"


@pytest.fixture(scope="session")
def db(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    add_owner(database)
    yield database
    database.close()
