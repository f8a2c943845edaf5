"""Eight processes on one database, by day on PostgreSQL; the check finds a hold that reads and then writes."""

from __future__ import annotations

import pytest

from tests.by_night import but
from tests.conftest import BACKINGS
from tests.machine import races
from tests.machine.histories import Home
from tests.machine.test_machine import home as home  # noqa: PLC0414 - a fixture

SEED = 3
BY_DAY, BY_NIGHT = (range(1, 2), 6), (range(2, 10), races.OPERATIONS)  # histories, and operations of each process


@pytest.mark.parametrize(
    ("backing", "which"),
    but(((on, which) for which in (BY_DAY, BY_NIGHT) for on in BACKINGS), lambda case: case == ("postgres", BY_DAY)),
)
def test_what_eight_processes_did_is_what_a_serial_model_did(home: Home, which: tuple[range, int]) -> None:
    numbers, operations = which
    found = races.run(home, races.Asked(SEED, numbers, operations))
    assert found.faults == {}
    assert found.did["hold"] > len(numbers) * races.PROCESSES and found.refused["hold: budget-exceeded"] > 0
    assert {"post", "void", "charge", "cap"} <= found.did.keys()


@pytest.mark.parametrize("backing", BACKINGS)
def test_a_hold_that_reads_and_then_writes_is_found(home: Home) -> None:
    found = races.run(home, races.Asked(SEED, range(1, 2), operations=0, faulty=True))
    assert "are spent and held, and the cap is worth" in found.faults[1]
