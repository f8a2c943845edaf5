"""Runs histories one by one, each on a database of its own."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from app.settings import Settings
from tests import servers
from tests.machine.machine import Divergence, Machine
from tests.machine.service import MovingMachine, ServiceMachine
from tests.machine.world import World, moved_clocks

OPERATIONS = 200  # of one history


@dataclass
class Result:
    """What came of one history. `number` and the seed say what it did."""

    number: int
    backing: str
    did: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    took_s: float = 0.0
    fault: str | None = None


@dataclass(frozen=True)
class Home:
    """Where databases come from: an empty SQLite file, or a server and the name of an empty database on it."""

    folder: Path
    template: Path
    server: str | None = None
    on_server: str | None = None

    @contextmanager
    def world(self) -> Iterator[World]:
        """A deployment of its own, removed at the end."""
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            home = Path(name)
            url = ""
            if self.server is None:
                shutil.copy(self.template, home / "scrimp.db")
            else:
                url = servers.new_database(self.server, self.on_server)
            made = World(Settings(home=home, database_url=url), self.server)
            try:
                yield made
            finally:
                made.close()
                if self.server is not None:
                    servers.drop_database(self.server, url)


def run(home: Home, seed: int, number: int, operations: int = OPERATIONS, of: type[Machine] | None = None) -> Result:
    """One history; a divergence is in the result. Every second one is of a data set whose ledgers may move."""
    of = of or (ServiceMachine if number % 2 else MovingMachine)
    result = Result(number, "sqlite" if home.server is None else "postgres")
    with moved_clocks(), home.world() as world:
        machine = of(world, seed, number)
        try:
            machine.run(operations)
        except Divergence as error:
            result.fault = str(error)
        result.did, result.refused = dict(machine.did), dict(machine.refused)
    return result


def total(results: list[Result]) -> tuple[Counter[str], Counter[str]]:
    """Operations and refusals by kind."""
    did: Counter[str] = sum((Counter(each.did) for each in results), Counter())
    refused: Counter[str] = sum((Counter(each.refused) for each in results), Counter())
    return did, refused
