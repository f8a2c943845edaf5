"""`scrimp predict`: a finished model on records from a file."""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from scrimp.cli import show
from scrimp.cli.session import Session, command, read_json
from scrimp.errors import PredictionFailed, ScrimpError

AT_ONCE = 1000  # the most records of one request
IDS = ("user", "item")
NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?", re.ASCII)


def register(root: typer.Typer) -> None:
    @command(root, "predict")
    def predict(
        session: Session,
        job_id: Annotated[str, typer.Argument(metavar="JOB", help="A job's id or name.")],
        file: Annotated[
            Path, typer.Argument(help='A .csv or .jsonl file, or {"records": […], "top": 10} (JSON); - reads it.')
        ],
        column: Annotated[
            str | None, typer.Option(help="The column of a .csv or .jsonl file that holds the texts.")
        ] = None,
        top: Annotated[
            int | None, typer.Option(help="How many classes, items or next tokens to return for each record.")
        ] = None,
        timeout: Annotated[float, typer.Option(help="The most seconds to wait.")] = 120.0,
    ) -> None:
        """Use a job's model on records of your own. It costs no privacy."""
        if file.suffix in (".csv", ".jsonl"):
            asked: dict[str, Any] = {"records": _rows(file, column)}
        elif column is not None:
            raise typer.BadParameter("--column needs a .csv or .jsonl file")
        else:
            asked = read_json(file, " and, by their names, .csv and .jsonl files: write the records as one of these")
        records, most = asked.get("records"), top if top is not None else asked.get("top", 10)
        if not isinstance(records, list) or not isinstance(most, int):
            raise typer.BadParameter(f'{file} is not {{"records": […], "top": 10}}')
        job_id = session.job(job_id)
        pieces = [records[at : at + AT_ONCE] for at in range(0, max(1, len(records)), AT_ONCE)]
        found: list[dict[str, Any]] = []
        try:
            for piece in pieces:
                found += session.client.predict(job_id, piece, top=most, timeout=timeout)
        except ScrimpError as error:
            if not found:
                raise
            # The answers that are there cost time to make, and are whole: one line for each of the first records.
            session.result(found, lambda: show.predictions(session.console, found))
            rest = f"the part from record {len(found):,} on failed, and no later one was sent"
            raise PredictionFailed(f"{len(found):,} of {len(records):,} are answered; {rest}: {error}") from error
        session.result(found, lambda: show.predictions(session.console, found))


def _rows(file: Path, column: str | None) -> list[Any]:
    """One record for each row: the text in its column, or the whole row."""
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            rows: list[Any] = (
                [json.loads(line) for line in lines if line.strip()]
                if file.suffix == ".jsonl"
                else list(csv.DictReader(lines))
            )
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}") from None
    except (ValueError, csv.Error) as error:
        raise typer.BadParameter(f"{file} cannot be read: {error}") from None
    if column is not None:
        if not all(isinstance(row, dict) and column in row for row in rows):
            raise typer.BadParameter(f"{file} has rows without {column!r}")
        return [row[column] for row in rows]
    if file.suffix == ".jsonl":
        return rows
    return [{str(name): text if name in IDS else _cell(text) for name, text in row.items()} for row in rows]


def _cell(text: str) -> float | str:
    """A number if it is one; cells that only resemble numbers, such as 007, 1_000 or nan, are text."""
    plain = isinstance(text, str) and NUMBER.fullmatch(text) and math.isfinite(float(text))
    return float(text) if plain else text
