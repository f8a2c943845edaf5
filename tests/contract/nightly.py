"""The contract tests at length: `make nightly`. Writes docs/reports/contract.md; ends with 1 where something was found.

python -m tests.contract.nightly [REQUESTS A ROLE] [SEED]
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

import schemathesis

from app.db.database import Database
from app.db.migrate import upgrade
from app.keys.service import Role
from app.secrets import ensure_secrets
from app.settings import Settings
from tests.contract.machine import Report, draw_requests, explore
from tests.contract.test_schemathesis import SEED, SETTINGS, document_of, visitor
from tests.dashboard.conftest import api_process
from tests.dashboard.scene import Scene, everything

TARGET = Path(__file__).resolve().parents[2] / "docs" / "reports" / "contract.md"
REQUESTS = 10_000


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else REQUESTS
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else SEED
    reports: dict[str, tuple[Report, float]] = {}
    for role in get_args(Role):
        began = time.monotonic()
        reports[role] = _explored(role, count, seed), time.monotonic() - began
        report = reports[role][0]
        print(f"{role}: {report.requests} requests, {len(report.findings)} findings", flush=True)
        for finding in dict.fromkeys(report.findings):
            print(f"---\n{finding}", flush=True)
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(_text(reports, seed))
    print(f"wrote {TARGET}")
    return int(any(report.findings for report, _took_s in reports.values()))


def _explored(role: str, count: int, seed: int) -> Report:
    """Over a service of its own, so that no role sees what another one left."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        home.mkdir(mode=0o700)
        settings = Settings(home=home)
        ensure_secrets(settings)
        upgrade(settings.effective_database_url)
        db = Database.of(settings)
        scene = Scene(db, settings)
        made = everything(scene)
        with api_process(home, Path(folder) / "log", **SETTINGS) as (url, _pid):
            drawn = draw_requests(document_of(scene, url), count=count, seed=seed)
            report = explore(drawn, url, *visitor(scene, made, role))
        db.close()
        return report


def _text(reports: dict[str, tuple[Report, float]], seed: int) -> str:
    lines = [
        "# Contract report",
        "",
        f"`make nightly`, {datetime.now(UTC):%Y-%m-%d}: schemathesis {schemathesis.__version__} over the whole OpenAPI",
        f"document, seed {seed}, one service with a job in every status for each role. Half of the requests follow",
        "the document, half do not. Checks of every answer: no 5xx; a documented status, content type, headers",
        "and schema; problems as `application/problem+json`; the security headers.",
        "",
        "| role | requests | findings | duration |",
        "|---|---|---|---|",
    ]
    for role, (report, took_s) in reports.items():
        lines.append(f"| {role} | {report.requests} | {len(report.findings)} | {took_s:.0f} s |")
    lines += ["", "Answers by operation:", "", "| operation | " + " | ".join(reports) + " |"]
    lines += ["|---" * (len(reports) + 1) + "|"]
    for operation in sorted({each for report, _ in reports.values() for each, _status in report.statuses}):
        cells = [_cell(report, operation) for report, _took_s in reports.values()]
        lines.append(f"| `{operation}` | " + " | ".join(cells) + " |")
    for role, (report, _took_s) in reports.items():
        if report.findings:
            kinds = Counter(finding.partition("\n")[0] for finding in report.findings)
            lines += ["", f"## Found as {role}", "", *(f"* {kind}: {count}" for kind, count in kinds.items())]
    return "\n".join(lines) + "\n"


def _cell(report: Report, operation: str) -> str:
    found = {status: count for (name, status), count in report.statuses.items() if name == operation}
    return ", ".join(f"{status}: {count}" for status, count in sorted(found.items()))


if __name__ == "__main__":
    sys.exit(main())
