"""`scrimp ledger`."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from scrimp.cli import show
from scrimp.cli.command_session import FAILED, Session, command, plain, read_json
from scrimp.cli.command_tables import DATASET, JOB, SPEC, Call, register
from scrimp.cli.trust import Dated, HistoryFile, HistoryNumber, Root, Witnesses, trust_of
from scrimp.errors import ScrimpError, Undecided
from scrimp.key_history import Doubted
from scrimp.models import Approval, Ledger, LedgerEntry, SpentPart
from scrimp.statement import believed
from scrimp.statement_words import told
from scrimp.transparency import Note, begins_with
from scrimp.verify import recompute_chain

app = typer.Typer(no_args_is_help=True)
Dataset = Annotated[str, typer.Argument(help="A data set's name or id.")]


@command(app, "show")
def show_(session: Session, dataset: Dataset) -> None:
    """Show what is spent, held and left, with other accountants' figures."""
    ledger = session.client.ledger(dataset)
    session.result(ledger, lambda: show.ledger(session.console, dataset, ledger))


@command(app, "spending")
def spending(session: Session, dataset: Dataset) -> None:
    """Show who spent what: by person, with the teams' budgets that bound them, summed over all blocks. Only its owner
    reads other names. A block's id names that block alone."""
    result = session.client.spending(dataset)

    def share(part: SpentPart | None) -> str:
        return "–" if part is None else f"{100.0 * part.share:.3g} %"

    rows = [
        (each.key_name or each.key_id, ", ".join(each.budgets) or "–", str(each.charges), *map(share, parts))
        for each in result.items
        for parts in [(each.train, each.holdout)]
    ]
    head = ("who", "budgets", "charges", "training part", "hold-out part")

    def shown() -> None:
        show.table(session.console, head, rows)
        if result.blocks is not None:
            note = f"Summed over {len(result.blocks)} blocks: shares of all their budgets together."
            session.console.print(note)

    session.result(result, shown)


@command(app, "cap")
def cap(
    session: Session,
    dataset: Dataset,
    epsilon: Annotated[float, typer.Option(help="The new cap; δ stays.")],
    reason: Annotated[str, typer.Option(help="Why; recorded in the ledger.")],
) -> None:
    """Change a data set's cap. A raise should not depend on released results."""
    answer = session.client.change_cap(dataset, epsilon, reason)
    session.result(answer, lambda: _cap(session, dataset, answer))


def _cap(session: Session, dataset: str, answer: Ledger | Approval) -> None:
    if isinstance(answer, Approval):
        message = f"two persons must agree to the raise: {answer.id} (scrimp approvals agree)"
        session.console.print(message, soft_wrap=True, highlight=False)
    else:
        show.ledger(session.console, dataset, answer)


@command(app, "checkpoint")
def checkpoint(
    session: Session,
    dataset: Dataset,
    to: Annotated[Path | None, typer.Option(help="Write the signed note to this file too.")] = None,
) -> None:
    """Show the newest signed checkpoint. Keep it elsewhere: `verify --checkpoint` then finds a rewritten ledger."""
    note = session.client.ledger_checkpoint(dataset)
    if to is not None:
        to.write_text(note.checkpoint, encoding="utf-8")
    session.result(note, lambda: session.console.print(Text(note.checkpoint), soft_wrap=True))


@command(app, "proof")
def proof(
    session: Session,
    dataset: Dataset,
    entry: Annotated[int | None, typer.Option(help="Prove that this entry is in the checkpoint.")] = None,
    since: Annotated[int | None, typer.Option(help="Prove that the checkpoint follows the one of this size.")] = None,
) -> None:
    """Fetch a proof about the newest checkpoint, as JSON. `scrimp.transparency` checks it."""
    if (entry is None) == (since is None):
        raise typer.BadParameter("give --entry or --since, not both")
    document = session.client.ledger_proof(dataset, entry=entry, since=since)
    session.result(document, lambda: session.console.print_json(data=plain(document)))


@command(app, "statement")
def statement(
    session: Session,
    dataset: Annotated[str, typer.Argument(help="A data set's name or id, or the file of a statement.")],
    to: Annotated[Path | None, typer.Option(help="Write the statement with its evidence to this file too.")] = None,
    public_key: Annotated[
        str | None,
        typer.Option(help="The key that you trust: base64, or a file; default, with a service: its newest one."),
    ] = None,
    root: Root = None,
    history: HistoryFile = None,
    history_number: HistoryNumber = None,
    witness: Witnesses = None,
    dated: Dated = None,
) -> None:
    """Say in plain words what all jobs on a data set spent and guarantee, from signed evidence that is checked here.

    Every block is covered, retired ones too. With a file nothing is asked of a service. Exit code 1 if the evidence
    does not hold.
    """
    path = Path(dataset)
    trust = trust_of([public_key] if public_key else None, root, history, history_number, witness, dated)
    if path.is_file():
        if not trust.keys:
            raise typer.BadParameter(
                "give --public-key, from the service's owner: a file holds none that you can trust"
            )
        document, content = read_json(path), path.read_bytes()
    else:
        if not trust.keys:
            trust = replace(trust, keys=(next(iter(session.client.signing_keys())).public_key,))
        content = session.client.statement(dataset)
        document = json.loads(content)
    try:
        stated, key = believed(document, trust)
    except Doubted as error:
        raise Undecided(f"the statement cannot be believed: {error}") from None
    except ValueError as error:
        raise ScrimpError(f"the statement does not hold: {error}") from None
    if to is not None:
        to.write_bytes(content)
    sections = [
        *told(stated),
        ("Evidence", [f"{stated.entries} entries recomputed; each ledger's checkpoint is signed by {key}"]),
    ]
    session.result(dict(sections), lambda: show.sections(session.console, sections))


@command(app, "join")
def join(
    session: Session,
    dataset: Dataset,
    into: Annotated[str, typer.Argument(help="The data set whose ledger stays (name or id).")],
    reason: Annotated[str, typer.Option(help="Why; recorded in both ledgers.")],
) -> None:
    """Join a ledger to another one's, for data about the same people. This one is closed, for good."""
    answer = session.client.join_ledger(dataset, into, reason)
    session.result(answer, lambda: show.ledger(session.console, into, answer))


@command(app, "verify")
def verify(
    session: Session,
    dataset: Dataset,
    head: Annotated[str | None, typer.Option(help="A head that you kept: the chain must contain it.")] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="A checkpoint that you kept (its file): the entries must begin with its own.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Let the service verify it now: for its owner and admins.")
    ] = False,
) -> None:
    """Check hash chain and balances: by the service, at its last check, and here from the entries. Exit code 1 if they
    are not valid."""
    note = None if checkpoint is None else _note(checkpoint)
    dataset_id = session.client.dataset(dataset).id
    verification = session.client.verify_ledger(dataset_id, again=again)
    # The chain may have grown since the service checked it.
    lines = list(islice(session.client.ledger_entries(dataset_id), verification.entries))
    recomputed = recompute_chain(dataset_id, lines)
    hashes = [line.hash for line in lines]
    answers = [head in hashes] if head is not None else []
    answers += [begins_with(note, dataset_id, hashes)] if note is not None else []
    is_known = all(answers) if answers else None
    session.result(
        plain(verification) | {"recomputed_here": asdict(recomputed), "head_known": is_known},
        lambda: show.verification(session.console, verification, recomputed, is_known),
    )
    if verification.valid is False or not (
        is_known is not False and recomputed.head == verification.head and recomputed.first_bad_entry is None
    ):
        raise typer.Exit(FAILED)


def _note(path: Path) -> Note:
    try:
        return Note.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ScrimpError(f"{path} holds no checkpoint that can be read: {error}") from None


def _released(entry: LedgerEntry) -> str:
    return f"{entry.train_released:,} / {entry.holdout_released:,}" if entry.kind in ("post", "void") else ""


ENTRIES = (
    "#=seq",
    "time (UTC)=created_at",
    "kind",
    "job=job_id",
    "train:,",
    "hold-out=holdout:,",
    ("released", _released),
    ("hash", lambda entry: entry.hash[:12]),
)
OF_JOB = JOB.optional(Annotated[str | None, typer.Option(help="Only this job's (name or id).")])
FITS = "Show how many jobs like this one still fit, exactly. Free; nothing is written."
OF_DATASET = {"dataset": DATASET}
register(
    app,
    Call("forecast", "forecast", FITS, show.forecast, OF_DATASET | {"spec": SPEC}),
    Call(
        "entries",
        "ledger_entries",
        "List every line of the ledger, oldest first.",
        ENTRIES,
        OF_DATASET | {"job": OF_JOB},
    ),
)
