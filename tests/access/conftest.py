from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.db.database import Database
from tests import servers
from tests.access.world import World
from tests.dashboard.conftest import make_home

Worlds = Callable[[str], World]


@pytest.fixture(scope="session")
def first_world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    """A world on each backing, made when it is first asked for and never touched: the others are copies."""
    made: dict[str, World] = {}

    def of(backing: str) -> World:
        if backing not in made:
            made[backing] = _make(request, backing, tmp_path_factory.mktemp("first") / "home")
            made[backing].close()
        return made[backing]

    return of


def _make(request: pytest.FixtureRequest, backing: str, home: Path) -> World:
    settings = make_home(home, request.getfixturevalue("migrated_database"))
    settings = settings.model_copy(update={"max_open_egresses": 1000})  # each route asks for some, and no relay runs
    if backing == "postgres":
        server, empty = request.getfixturevalue("postgres_server"), request.getfixturevalue("migrated_postgres")
        settings = settings.model_copy(update={"database_url": servers.new_database(server, empty)})
    return World(settings, Database.of(settings))


def _copy(request: pytest.FixtureRequest, first: World, home: Path, **changes: object) -> Iterator[World]:
    """A copy of a world's home; of its PostgreSQL database too, where it has one."""
    shutil.copytree(first.settings.home, home)
    url, server = first.settings.database_url, ""
    if url:
        server = request.getfixturevalue("postgres_server")
        url = servers.new_database(server, servers.database_name(url))
    settings = first.settings.model_copy(update={"home": home, "database_url": url} | changes)
    made = first.copy(settings, Database.of(settings))
    yield made
    made.close()
    if url:
        servers.drop_database(server, url)


@pytest.fixture(scope="module")
def shared_world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, first_world: Worlds
) -> Iterator[World]:
    """One world for tables: every row leaves it as it was, or does not mind."""
    home = tmp_path_factory.mktemp("access") / "home"
    yield from _copy(request, first_world("sqlite"), home, failed_sign_ins_per_minute=100_000)


# By night both of a row's cases run, and each makes what a name or a key allows once.
night_world = shared_world


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path, backing: str, first_world: Worlds) -> Iterator[World]:
    """A world of the test's own."""
    yield from _copy(request, first_world(backing), tmp_path / "home")
