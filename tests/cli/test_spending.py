"""`scrimp ledger spending` prints who spent what, of all blocks together."""

from __future__ import annotations

from tests.cli.conftest import Cli
from tests.e2e.conftest import write_csv


def test_it_says_how_many_blocks_it_sums(cli: Cli, dataset: str) -> None:
    assert "Summed over" not in cli("ledger", "spending", dataset).output
    rows = str(write_csv(cli.folder / "month.csv", rows=200, seed=12))
    assert cli("blocks", "add", dataset, "2026-11", "--records", "200", "--file", rows).exit_code == 0
    assert "Summed over 2 blocks" in cli("ledger", "spending", dataset).output
    assert cli.json("ledger", "spending", dataset)["blocks"] == ["first", "2026-11"]
