"""`scrimp predict`: a finished model on records from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from scrimp.cli import show
from scrimp.cli.command_session import Session, read_json
from scrimp.errors import PredictionFailed, ScrimpError
from scrimp.record_files import SUFFIXES, RecordFile, UnusableFileError, answered, joined, require_writable, write

OTHERS = " and, by their names, .csv, .tsv, .jsonl and .parquet files: write the records as one of these"


def predict(
    session: Session,
    job_id: Annotated[str, typer.Argument(metavar="JOB", help="A job's id or name.")],
    file: Annotated[
        Path,
        typer.Argument(help='A .csv, .jsonl or .parquet file, or {"records": […], "top": 10} (JSON); - reads it.'),
    ],
    keep: Annotated[
        list[str] | None, typer.Option(help="A column to carry through, such as an id; it is not sent. Repeat it.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(help="Write kept columns and answers to this .csv, .jsonl or .parquet file.")
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="The column that holds the texts, if it is not the declared one.")
    ] = None,
    decimal: Annotated[str, typer.Option(help='What precedes decimals in a .csv file: "." or ",".')] = ".",
    top: Annotated[
        int | None, typer.Option(help="How many classes, items or next tokens to return for each record.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="The most seconds to wait.")] = 120.0,
) -> None:
    """Use a job's model on records of your own. It costs no privacy.

    Of a file the model's columns are taken by name. Other columns are ignored and stay here.
    """
    if decimal not in (".", ","):
        raise typer.BadParameter(f"--decimal must be . or , and is {decimal!r}")
    try:
        if to is not None:
            require_writable(to)
        job_id, columns, records, top_wanted, rows = _asked(session, job_id, file, keep or [], column, decimal)
    except UnusableFileError as error:
        raise typer.BadParameter(str(error)) from None
    predictions: list[dict[str, Any]] = []
    failure: ScrimpError | None = None
    try:
        for prediction in answered(
            session.client, job_id, records, top if top is not None else top_wanted, timeout, rows
        ):
            predictions.append(prediction)
    except ScrimpError as error:
        if not predictions:
            raise
        failure = error
    # The answers that are there cost time to make, and are whole: one for each of the first records.
    answers = joined(columns, predictions) if columns else predictions
    if to is not None:
        write(to, answers)
        answer = {"file": str(to), "records": len(answers)}
        session.result(answer, lambda: session.console.print(f"{to}: {len(answers):,} records", highlight=False))
    else:
        session.result(answers, lambda: show.predictions(session.console, answers, keep or ()))
    if failure is not None:
        note = f"the part from record {len(predictions):,} on failed, and no later one was sent"
        raise PredictionFailed(f"{len(predictions):,} of {len(records):,} are answered; {note}: {failure}") from failure


def _asked(
    session: Session, job: str, file: Path, keep: list[str], column: str | None, decimal: str
) -> tuple[str, list[dict[str, Any]], list[Any], int, RecordFile | None]:
    """The job's id; what is kept of each row, the records, and how many answers each is to have; the file's rows."""
    if file.suffix in SUFFIXES:
        rows = RecordFile.read(file)
        columns = rows.kept(keep) if keep else []
        job_id = session.job(job)
        features = session.client.features_of(job_id)
        return job_id, columns, rows.records(features, column, decimal), 10, rows
    if column is not None or keep:
        raise UnusableFileError(f"--column and --keep need a file that ends in one of {', '.join(SUFFIXES)}")
    document = read_json(file, OTHERS)
    records, top = document.get("records"), document.get("top", 10)
    if not isinstance(records, list) or not isinstance(top, int):
        raise UnusableFileError(f'{file} is not {{"records": […], "top": 10}}')
    return session.job(job), [], records, top, None
