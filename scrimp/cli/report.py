"""`scrimp report`: what a fleet costs, by data set, team and month."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated

import typer

from scrimp.cli import show
from scrimp.cli.session import Session
from scrimp.models import Usage, UsageRow

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
    usage = session.client.usage(dataset=dataset, since=since, until=until)
    if to is not None:
        _write(usage, to)
    session.result(usage, lambda: show.table(session.console, HEAD, map(_cells, usage.items)))


def _write(usage: Usage, to: Path) -> None:
    with to.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, list(UsageRow.model_fields), extrasaction="ignore", lineterminator="\n")
        table.writeheader()
        table.writerows(row.model_dump() for row in usage.items)


def _cells(row: UsageRow) -> tuple[str, ...]:
    who = row.team or row.key_name or row.key_id or "others"
    hours = (f"{row.processor_s / 3600:.2f}", f"{row.gpu_s / 3600:.2f}", f"{row.bytes / 1e6:.1f}")
    at = "" if row.delta is None else f" (δ = {row.delta:g})"
    privacy = ("–", "–") if row.epsilon is None else (f"{row.epsilon:.4g}{at}", f"{100.0 * (row.share or 0.0):.3g} %")
    return (row.month, row.dataset_name, who, str(row.jobs), *hours, *privacy)
