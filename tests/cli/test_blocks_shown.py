"""A quote, a job and a list say which blocks a job reads, with their declared records."""

from __future__ import annotations

import re

from tests.cli.conftest import Cli
from tests.e2e.conftest import csv_spec, job_of, write_csv


def test_what_a_job_reads_is_on_each_view(cli: Cli) -> None:
    """Before the data set grows its records; then its blocks, also where only `first` is read."""
    data = write_csv(cli.folder / "growing.csv", rows=2000, seed=3)
    spec = cli.file("growing.json", csv_spec("growing"))
    assert cli("datasets", "add", spec, "--file", str(data)).exit_code == 0
    cheap = {"privacy": {"target_epsilon": 0.2}, "evaluation": {"noise_mu": 0.03}}
    early = cli.file("early.json", job_of("growing", name="early", **cheap))
    assert re.search(r"reads +2,000 declared records", cli("quote", early).output)
    assert re.search(
        r"reads +2,000 declared records", cli("jobs", "show", cli.json("jobs", "submit", early)["id"]).output
    )
    assert "blocks" not in cli("jobs", "list").output
    rows = str(write_csv(cli.folder / "growth.csv", rows=300, seed=4))
    assert cli("blocks", "add", "growing", "2026-11", "--records", "300", "--file", rows).exit_code == 0
    both = cli.file("both.json", job_of("growing", name="both", **cheap))
    said = r"2026-11 \(300 declared records\), first \(2,000 declared records\)"
    assert re.search(said, cli("quote", both).output)
    assert re.search(said, cli("jobs", "show", cli.json("jobs", "submit", both)["id"]).output)
    alone = cli.file("alone.json", job_of("growing", name="alone", blocks=["first"], **cheap))
    shown = cli("jobs", "show", cli.json("jobs", "submit", alone)["id"]).output
    assert re.search(r"blocks +first \(2,000 declared records\)", shown)
    listed = cli("jobs", "list").output
    assert "2026-11 (300), first (2,000)" in listed and re.search(r"alone .* first \(2,000\)", listed), listed
