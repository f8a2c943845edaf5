"""`scrimp datasets`."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from scrimp.cli import large, show, show_reading
from scrimp.cli.ask import asked_columns
from scrimp.cli.command_session import Session, command, read_json
from scrimp.cli.command_tables import Call, Parameter, register
from scrimp.declare import PLANS, Proposal, propose, read_sheet, with_plan
from scrimp.errors import ScrimpError
from scrimp.models import Dataset, ErasureNote

app = typer.Typer(no_args_is_help=True)


class PlanName(StrEnum):
    """What `--plan` takes: scrimp.declare.PLANS."""

    MODELS_MOSTLY = "models mostly"
    MIXED = "mixed"
    ANY_MECHANISM = "any mechanism"


class LaterPlan(StrEnum):
    """What may be declared later."""

    MIXED = "mixed"


File = Annotated[
    Path | None, typer.Option(exists=True, dir_okay=False, help="The data file; leave it out if SPEC has `path`.")
]
Label = Annotated[str | None, typer.Option(help="The column to predict; on a terminal the command asks.")]
Plan = Annotated[
    PlanName | None,
    typer.Option(
        help=" ".join(
            ["The jobs that you expect, in the place of a filter.", *(f"*{name}*: {PLANS[name]}" for name in PLANS)]
        ),
    ),
]
HoldoutFile = Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="A separate, public hold-out.")]
EdgesFile = Annotated[
    Path | None, typer.Option("--edges", exists=True, dir_okay=False, help="The edges of a graph, two ids a row.")
]


@command(app, "add")
def add(
    session: Session,
    spec: Annotated[Path, typer.Argument(help="A DatasetSpec (JSON); - reads standard input.")],
    file: File = None,
    holdout_file: HoldoutFile = None,
    edges_file: EdgesFile = None,
    wait: Annotated[bool, typer.Option(help="Wait until the service has read a large file.")] = True,
    plan: Plan = None,
) -> None:
    """Register a data set with its privacy cap. Files above 64 MiB are sent in pieces: run it again to resume."""
    files = {"file": file, "holdout_file": holdout_file, "edges_file": edges_file}
    declared, left = large.sent(session.client, with_plan(read_json(spec), plan), files)
    with large.reading() as progress:
        dataset = session.client.create_dataset(declared, **left, wait=wait, progress=progress)
    session.result(dataset, lambda: show_reading.registered(session.console, dataset))


@command(app, "check")
def check(
    session: Session,
    file: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="The data file.")],
    spec: Annotated[
        Path | None, typer.Argument(help="A DatasetSpec (JSON); - reads standard input; without it one is proposed.")
    ] = None,
    holdout_file: HoldoutFile = None,
    edges_file: EdgesFile = None,
    label: Label = None,
) -> None:
    """Check a file against its declaration; the service stores nothing."""
    declared = read_json(spec) if spec is not None else _proposal(file, label, None).spec
    files = {"file": file, "holdout_file": holdout_file, "edges_file": edges_file}
    request, left = large.sent(session.client, declared, files)
    checked = session.client.check_dataset(request, **left)
    session.result(checked, lambda: show_reading.checked(session.console, checked))


@app.command("init")
def init(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="The data file: CSV, JSONL, Parquet, NPZ.")],
    label: Label = None,
    person: Annotated[
        str | None, typer.Option(help="The column that tells people apart: each is protected with all records.")
    ] = None,
    each_record: Annotated[bool, typer.Option("--each-record", help="Protect single records, not people.")] = False,
    to: Annotated[Path | None, typer.Option(help="Where to write the declaration; an existing file stays.")] = None,
    plan: Plan = None,
) -> None:
    """Propose a declaration of a file, column by column, to edit. Reads the file here and sends nothing.

    A column that looks like a person's id: each person is protected with all records. More than 20 texts in a column:
    it is left out; a column of whole sentences is used alone. 95 % numbers, or dates: the column is proposed as such.
    Ranges are rounded outwards to 1, 2 or 5 times a power of ten. Above 200 columns nothing is taken from cells.
    """
    proposal = _proposal(file, label, person, each_record=each_record)
    text = json.dumps(with_plan(proposal.spec, plan), indent=2, ensure_ascii=False)
    if to is None:
        print(text)
    else:
        try:
            with to.open("x", encoding="utf-8") as opened:
                opened.write(text + "\n")
        except OSError as error:
            raise typer.BadParameter(f"{to}: {error.strerror}") from None
    show_reading.proposed(show.console(stderr=True), proposal)


def _proposal(file: Path, label: str | None, person: str | None, *, each_record: bool = False) -> Proposal:
    """The proposed declaration of a file.

    Raises:
        BadParameter: the file cannot be read, or has no such columns.
    """
    try:
        sheet = read_sheet(file)
        return propose(sheet, *asked_columns(sheet, label, person, each_record=each_record))
    except ScrimpError as error:
        raise typer.BadParameter(f"{file}: {error}") from None


@command(app, "declare")
def declare(
    session: Session,
    dataset: Annotated[str, typer.Argument(help="Name or id.")],
    changes: Annotated[
        Path | None, typer.Argument(help="JSON with `records`, `slots`, `classes`, `scale` or `ranges`.")
    ] = None,
    records: Annotated[int | None, typer.Option(min=1, help="A rounded number of records.")] = None,
    plan: Annotated[
        LaterPlan | None,
        typer.Option(
            help="Let a data set of the plan models mostly move. Any other plan: retire it while it is untouched, and "
            "register it anew.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; say what it would say.")] = False,
) -> None:
    """Declare records, slots, classes, scale, ranges or the plan anew. Jobs keep the version that they were priced
    with."""
    document = read_json(changes) if changes is not None else {}
    document |= {"records": records} if records is not None else {}
    document |= {"plan": plan} if plan is not None else {}
    result = session.client.redeclare_dataset(dataset, document | {"dry_run": dry_run})
    session.result(result, lambda: show_reading.redeclared(session.console, result))


@command(app, "slots")
def slots(
    session: Session,
    dataset: Annotated[str, typer.Argument(help="Name or id.")],
    train: Annotated[int | None, typer.Option(min=1, help="At most so many units to train on.")] = None,
    holdout: Annotated[int | None, typer.Option(min=1, help="At most so many units held out.")] = None,
    train_rows: Annotated[int | None, typer.Option(min=1, help="At most so many records of these users.")] = None,
    holdout_rows: Annotated[int | None, typer.Option(min=1, help="The same of those held out.")] = None,
    default: Annotated[bool, typer.Option("--default", help="Return to the default of all others.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; say what it would say.")] = False,
) -> None:
    """Show how many places a data set has for records, and its default; or declare them for later jobs."""
    sizes = {"train": train, "holdout": holdout, "train_rows": train_rows, "holdout_rows": holdout_rows}
    stated = {name: number for name, number in sizes.items() if number is not None}
    current = session.client.dataset(dataset)
    changed = default or bool(stated)
    present = {} if default else current.privacy.get("slots") or {}
    changes = {"slots": present | stated, "dry_run": dry_run} if changed else {"dry_run": True}
    result = session.client.redeclare_dataset(dataset, changes)
    session.result(
        result, lambda: show_reading.slots(session.console, current, result, changed=changed, dry_run=dry_run)
    )


def _spent(dataset: Dataset) -> str:
    if dataset.state in ("reading", "rejected"):
        return dataset.state
    ledger = dataset.ledger
    return "public" if ledger is None else f"{show.spent_share(ledger)} of ε = {ledger.cap.value:g}"


def _filter(dataset: Dataset) -> str:
    return "" if dataset.ledger is None else dataset.ledger.cap.accountant


def _note(console: Console, note: ErasureNote) -> None:
    erased = ", ".join(each["label"] for each in note.erased)
    console.print(Text(f"erased of {note.name}: {erased}"), soft_wrap=True)
    rows = []
    for model in note.models:
        epsilon, rate = model["epsilon"], model["found_at_one_percent"]
        bound = "–" if epsilon is None else f"ε = {epsilon['value']:.4g}, δ = {epsilon['delta']:g}"
        share = "–" if rate is None else f"{100.0 * rate:.3g} %"
        left = ", ".join(to["recipient"] for to in model["egresses"]) or "–"
        rows.append((model["certificate"] or model["job"], bound, share, ", ".join(model["used"]), left))
    show.table(console, ("certificate", "guarantee", "found at 1 %", "used", "left for"), rows)
    for line in note.meaning:
        console.print(Text(f"* {line}"), soft_wrap=True)


ONE = {"dataset": Parameter(Annotated[str, typer.Argument(metavar="DATASET", help="Name or id.")])}
DATASETS = ("id", "name", ("budget spent", _spent), ("filter", _filter))
DELETE = "Delete the data themselves, for good. The ledger stays, and the data cannot be registered again."
DELETED = "the content of {0.name} is deleted; its ledger stays"
RETIRE = "Take back a data set that nothing was ever held on, for good; register its content anew."
NOTE = "Say which models were made with deleted content or retired blocks, and what that means for one person."
RETIRED = "retired, and now called {0.name}; its old name is free"
register(
    app,
    Call("list", "datasets", "List all data sets.", DATASETS),
    Call("show", "dataset", "Show one data set and its budget.", show.dataset, {"name_or_id": ONE["dataset"]}),
    Call("delete-content", "delete_content", DELETE, DELETED, ONE),
    Call("retire", "retire_dataset", RETIRE, RETIRED, ONE),
    Call("erasure-note", "erasure_note", NOTE, _note, ONE),
)
