"""`scrimp report`: what a fleet costs, by data set, team and month."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated

import typer

from scrimp.cli import show
from scrimp.cli.command_session import Session
from scrimp.models import UsageRow

FORMULA = ("=", "+", "-", "@", "\t", "\r")
HEAD = ("month", "data set", "team or key", "jobs", "processor h", "GPU h", "MB", "ε", "share of the budget")


def report(
    session: Session,
    dataset: Annotated[str | None, typer.Argument(help="A data set's name or id; default: all.")] = None,
    since: Annotated[str | None, typer.Option(help="The first month, as 2026-11; default: twelve in all.")] = None,
    until: Annotated[str | None, typer.Option(help="The last month; default: this one.")] = None,
    to: Annotated[Path | None, typer.Option("--csv", help="Write the rows to this file too, with all figures.")] = None,
) -> None:
    """Show what jobs took that ended in these months: processor and GPU hours, files and ε, by data set and team.

    Of the data sets that this key may see; only their owners read who the others are.
    """
    rows = list(session.client.usage(dataset=dataset, since=since, until=until))
    if to is not None:
        _write(rows, to)
    session.result(rows, lambda: show.table(session.console, HEAD, map(_cells, rows)))


def _write(rows: list[UsageRow], to: Path) -> None:
    """Writes the service's own CSV: a text that a program could take for a formula has an apostrophe before it."""
    with to.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, list(UsageRow.model_fields), extrasaction="ignore")
        table.writeheader()
        for row in rows:
            table.writerow({name: _plain(cell) for name, cell in row.model_dump().items()})


def _plain(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell


def _cells(row: UsageRow) -> tuple[str, ...]:
    owner = row.team or row.key_name or row.key_id or "others"
    hours = (f"{row.processor_s / 3600:.2f}", f"{row.gpu_s / 3600:.2f}", f"{row.bytes / 1e6:.1f}")
    at = "" if row.delta is None else f" (δ = {row.delta:g})"
    privacy = ("–", "–") if row.epsilon is None else (f"{row.epsilon:.4g}{at}", f"{100.0 * (row.share or 0.0):.3g} %")
    return (row.month, row.dataset_name, owner, str(row.jobs), *hours, *privacy)
