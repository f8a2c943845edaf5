from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.db.engine import Database
from app.settings import Settings
from tests.access.world import World
from tests.dashboard.conftest import make_home


@pytest.fixture(scope="module")
def shared_world(tmp_path_factory: pytest.TempPathFactory, migrated_database: object) -> Iterator[World]:
    """One world for tables: every row leaves it as it was, or does not mind."""
    home = tmp_path_factory.mktemp("access") / "home"
    settings = make_home(home, migrated_database, failed_sign_ins_per_minute=100_000)  # type: ignore[arg-type]
    world = World(settings, Database.of(settings))
    yield world
    world.close()


@pytest.fixture
def world(settings: Settings, db: Database) -> Iterator[World]:
    """A world of the test's own."""
    made = World(settings, db)
    yield made
    made.close()
