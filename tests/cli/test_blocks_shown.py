"""A quote, a job and a list say which blocks a job reads, with their declared records."""

from __future__ import annotations

import re

from app.db.database import Database
from app.ledger import signed_terms
from app.ledger.signing_keys import public_key, publish, signing_key
from app.ledger.transparency.checkpoints import sign_due
from app.ledger.transparency.heads import Heads
from app.settings import Settings
from tests.cli.conftest import Cli
from tests.e2e.conftest import csv_spec, job_of, write_csv


def test_what_a_job_reads_is_on_each_view(cli: Cli) -> None:
    """Before the data set grows its records; then its blocks, also where only `first` is read, and their statement."""
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
    the_statement_of_a_block_has_its_label(cli)


def the_statement_of_a_block_has_its_label(cli: Cli) -> None:
    (block,) = [each["id"] for each in cli.json("blocks", "list", "growing") if each["label"] == "2026-11"]
    settings = Settings(home=cli.folder / "home")
    db, key = Database.of(settings), signing_key(settings)
    publish(db, key)
    sign_due(db, Heads.of(settings), key, lambda *_: None)  # what the relay does
    signed_terms.sign_due(db, key)
    db.close()
    to = str(cli.folder / "block.json")
    stated = cli("ledger", "statement", block, "--to", to)
    assert stated.exit_code == 0 and "Guarantee" in stated.output, stated.output
    assert cli.bare("ledger", "statement", to, "--public-key", public_key(key)).exit_code == 0
