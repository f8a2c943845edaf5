"""`scrimp report` prints what jobs took, and writes the same CSV as the service."""

from __future__ import annotations

from app.db.database import Database
from app.usage.service import as_csv, usage
from tests.cli.conftest import Cli
from tests.ledger.support import add_dataset, add_owner
from tests.usage.test_sums import ADMIN, OCTOBER, add_key, ended


def test_it_prints_hours_and_writes_what_the_service_says(cli: Cli) -> None:
    db = Database(f"sqlite:///{cli.folder / 'home' / 'scrimp.db'}")
    add_owner(db)
    with db.write() as session:
        dataset = add_dataset(session, sensitivity="public")
        ended(session, dataset, OCTOBER, (5400,), gpus=2)
        add_key(session, "key_f", "=1+1")
        ended(session, dataset, OCTOBER, (0,), key_id="key_f")
    months = ("--since", "2026-10", "--until", "2026-10")
    file = cli.folder / "usage.csv"
    shown = cli("report", dataset, *months, "--csv", str(file))
    assert shown.exit_code == 0, shown.output
    lines = [line.split() for line in shown.output.splitlines()[1:]]
    assert lines[0][2] == "=1+1" and "'=1+1" in file.read_text(encoding="utf-8")
    assert lines[1] == ["2026-10", dataset, "owner", "1", "3.00", "3.00", "0.0", "–", "–"]
    with db.read() as session:
        stated = usage(session, ADMIN, dataset, "2026-10", "2026-10")
    assert file.read_bytes().decode() == as_csv(stated)
    assert [each["gpu_s"] for each in cli.json("report", dataset, *months)] == [0, 10_800]
    assert "none" in cli("report", dataset, "--since", "2025-10", "--until", "2025-11").output
    assert cli("report", "no-such-data-set").exit_code != 0
    db.close()
