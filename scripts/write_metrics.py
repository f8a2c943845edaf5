"""Writes docs/metrics.md from the families of `/metrics`: `make openapi`. Tests compare them."""

from __future__ import annotations

import tempfile
from pathlib import Path

from app.db.database import Database
from app.db.migrate import upgrade
from app.lifecycle.measures import Measures
from app.settings import Settings
from app.system.prometheus import make_registry

PAGE = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"
HEAD = """# Metrics

`GET /metrics` has the numbers of all processes together, whichever API process answers. Admins see all, other keys jobs
by status and the budgets of their data sets. [deploy/prometheus/alerts.yml](../deploy/prometheus/alerts.yml) has alert
rules, [deploy/grafana/scrimp.json](../deploy/grafana/scrimp.json) a dashboard to import. `make openapi` writes this
page.

Each process adds what it counts to the database every ten seconds and when it ends; a killed process loses its last
seconds. Ends of attempts and causes of failures may depend on private data: keep admins' scrapes for operators.

| metric | labels | what |
|---|---|---|
"""


def main() -> None:
    PAGE.write_text(page())


def page() -> str:
    """A row for each metric of a service that has just begun."""
    with tempfile.TemporaryDirectory() as home:
        settings = Settings(home=Path(home))
        db = Database.of(settings)
        upgrade(settings.effective_database_url)
        registry = make_registry(db, settings, Measures(db))
        rows = [
            f"| `{family.name}{'_total' if family.type == 'counter' else ''}` |"
            f" {', '.join(f'`{label}`' for label in vars(family)['_labelnames'])} | {family.documentation} |\n"
            for family in registry.collect()
        ]
        db.close()
    return HEAD + "".join(sorted(rows))


if __name__ == "__main__":
    main()
