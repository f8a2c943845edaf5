"""A large file is read by whoever is alive: kill -9 in the middle, and one data set comes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from scrimp.reading import wait_until_read
from tests.conftest import BACKINGS
from tests.e2e.conftest import Service, csv_spec, seed_of, until, write_csv

ROWS = 180_000


@pytest.mark.nightly  # by day tests/datasets/test_reading.py ends readers where it hurts, without a service
@pytest.mark.parametrize("service", BACKINGS, indirect=True)
def test_the_service_is_killed_while_it_reads(service: Service, tmp_path: Path) -> None:
    name = "read-and-killed"
    file = write_csv(tmp_path / "data.csv", rows=ROWS, seed=seed_of(name))
    with service.client() as client:
        found = client.create_dataset(csv_spec(name, records=ROWS), file, wait=False)
    assert found.state == "reading" and found.read is None
    folder = service.home / "storage" / "reading" / found.id
    until(lambda: list(folder.glob("attempt-1/parts/*")))
    service.kill_and_start()
    told: list[tuple[int, int]] = []
    with service.client() as client:
        ready = wait_until_read(client, found, lambda *each: told.append(each))
        assert (ready.state, ready.id) == ("ready", found.id)
        assert ready.read is not None and ready.read.records == ROWS
        assert [entry.kind for entry in client.ledger_entries(name)] == ["open"]
        assert [each.id for each in client.datasets() if each.name == name] == [found.id]
    assert told[-1] == (file.stat().st_size, file.stat().st_size)
    until(lambda: not folder.exists())
