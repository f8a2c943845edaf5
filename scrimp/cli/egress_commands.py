"""`scrimp egress`, `verify-egress`, `dpia` and `approvals`: how files leave, and what two persons agree to."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from scrimp.cli.command_session import DONE, FAILED, USAGE, Session, command, plain
from scrimp.cli.command_tables import DATASET, Call, Parameter, limit, option, register
from scrimp.cli.trust import Dated, HistoryFile, HistoryNumber, PublicKeys, Root, Witnesses, checkpoint_in, trust_of
from scrimp.errors import ScrimpError, Undecided
from scrimp.key_history import Doubt
from scrimp.models import Approval, Egress, Persons

app = typer.Typer(no_args_is_help=True)
TIMES = ["%Y-%m-%d", "%Y-%m-%dT%H:%M:%SZ"]
WAITS = "Two persons must agree to it: {0}. Then run this again."


def egress(
    session: Session,
    job: Annotated[str, typer.Argument(metavar="JOB", help="A finished job's id or name.")],
    out: Annotated[Path, typer.Option(help="The folder to write: new, or empty.")],
    recipient: Annotated[
        str | None, typer.Option(help="Whom the files are for; asks for an egress unless there is one.")
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Why they leave.")] = None,
    number: Annotated[int | None, typer.Option(help="Fetch this earlier egress of the job.")] = None,
) -> None:
    """Fetch a job's files as a signed folder, with certificate, statement, proofs and answers in words.

    Asks for one for this recipient, if there is none yet. Exit code 3 while two persons have to agree first.
    """
    from scrimp.egress import unpack

    job_id = session.job(job)
    egress_row = next((each for each in session.client.egresses(job_id) if _fits(each, recipient, number)), None)
    if egress_row is None:
        if number is not None or recipient is None or reason is None:
            raise typer.BadParameter("there is no such egress: give --recipient and --reason, to ask for one")
        egress_row = session.client.ask_egress(job_id, recipient, reason)
    if egress_row.status == "waiting":
        waiting = {"egress": egress_row.id, "status": egress_row.status, "approval": egress_row.approval}
        session.result(waiting, lambda: session.console.print(Text(WAITS.format(egress_row.approval)), soft_wrap=True))
        raise typer.Exit(3)
    with tempfile.TemporaryDirectory() as folder:
        archive = session.client.download_egress(job_id, Path(folder) / "egress.zip", number=egress_row.number)
        names = unpack(archive, out)
    answer = {"egress": egress_row.id, "number": egress_row.number, "folder": str(out), "files": names}
    session.result(answer, lambda: session.console.print(Text(f"{out}: {len(names)} files"), soft_wrap=True))


def verify_egress(
    session: Session,
    folder: Annotated[Path, typer.Argument(help="The folder.", exists=True, file_okay=False)],
    public_key: PublicKeys = None,
    root: Root = None,
    history: HistoryFile = None,
    history_number: HistoryNumber = None,
    witness: Witnesses = None,
    dated: Dated = None,
    job: Annotated[str | None, typer.Option(help="It must be of this job: an id.")] = None,
    recipient: Annotated[str | None, typer.Option(help="It must be for this recipient.")] = None,
    since: Annotated[
        datetime | None,
        typer.Option(help="It must have been made then or later (UTC).", formats=TIMES),
    ] = None,
    checkpoint: Annotated[
        list[Path] | None,
        typer.Option(help="A checkpoint from elsewhere: the folder must cover its entries; repeat it."),
    ] = None,
) -> None:
    """Check a folder offline: signature, every file, certificate, proofs and statement. Exit code 0 if all holds.

    Exit code 1 if something does not hold; 2 without --public-key: the folder is intact, but anybody can sign one.
    """
    from datetime import UTC

    from scrimp.egress import Expected, examine

    notes = tuple(checkpoint_in(each) for each in checkpoint or ())
    at = None if since is None else since.replace(tzinfo=UTC)
    trust = trust_of(public_key, root, history, history_number, witness, dated)
    report = examine(folder, trust, Expected(job, recipient, at, notes))
    status = FAILED if report.refuted else DONE if report.signer_checked and report.holds else USAGE
    answer = {"valid": status == DONE, "signer_checked": report.signer_checked, "faults": report.faults}

    def told() -> None:
        for fault in report.faults:
            sign = "[yellow]![/]" if isinstance(fault, Doubt) else "[red]✗[/]"
            session.console.print(f"{sign} {escape(fault)}", soft_wrap=True, highlight=False)
        if report.holds:
            m = report.manifest
            message = f"egress {m['number']} of {m['job']} for {m['recipient']}, made at {m['made_at']}: {m['egress']}"
            sign = "[green]✓[/]" if report.signer_checked else "[yellow]![/] intact; signer not checked:"
            session.console.print(f"{sign} {escape(message)}", soft_wrap=True, highlight=False)

    session.result(answer | {"manifest": report.manifest}, told)
    if status:
        raise typer.Exit(status)


def dpia(
    session: Session,
    folder: Annotated[Path, typer.Argument(help="The folder of an egress.", exists=True, file_okay=False)],
    public_key: PublicKeys = None,
    root: Root = None,
    history: HistoryFile = None,
    history_number: HistoryNumber = None,
    witness: Witnesses = None,
    dated: Dated = None,
    service: Annotated[
        bool, typer.Option("--service", help="Ask the service for its safeguards too, with an owner's key.")
    ] = False,
) -> None:
    """Print the annex of a data protection impact assessment, in Markdown: the folder's answers in the order of the
    ICO's steps, and a form of what a person has to add.

    From the folder alone, offline, but for `--service`. No annex is printed of a folder that does not hold.
    """
    from scrimp.dpia import annex, answers_of, missing
    from scrimp.egress import examine

    examined = examine(folder, trust_of(public_key, root, history, history_number, witness, dated))
    if not examined.holds:
        raise (ScrimpError if examined.refuted else Undecided)(
            f"{folder} does not hold, so there is no annex: {'; '.join(examined.faults)}"
        )
    text = annex(folder, examined, list(session.client.safeguards()) if service else ())
    answer = {
        "annex": text,
        "missing": [asdict(each) for each in missing(answers_of(folder))],
        "signer_checked": examined.signer_checked,
    }
    session.result(answer, lambda: print(text, end=""))


def threat_model(session: Session) -> None:
    """Print the threat model on one page, in Markdown, with what the service's own settings and its workers' tests
    say of its safeguards. For owners and admins."""
    from scrimp.threat_model import page

    safeguards = list(session.client.safeguards())
    text = page(safeguards)
    session.result({"page": text, "safeguards": plain(safeguards)}, lambda: print(text, end=""))


def _fits(egress: Egress, recipient: str | None, number: int | None) -> bool:
    if number is not None:
        return bool(egress.number == number)
    return egress.status in ("waiting", "pending", "ready") and recipient in (None, egress.recipient)


def _approval(console: Console, approval: Approval) -> None:
    persons = ", ".join(each["person"] for each in approval.agreements) or "nobody"
    console.print(Text(f"{approval.id} is {approval.status}; agreed: {persons}"), soft_wrap=True)


def _persons(console: Console, persons: Persons | Approval) -> None:
    if isinstance(persons, Approval):
        _approval(console, persons)
        return
    for person, keys in persons.persons.items():
        console.print(Text(f"{person}: {', '.join(keys)}"), soft_wrap=True)
    if not persons.persons:
        console.print("nobody is named: one person is enough")


@command(app, "name")
def name(
    session: Session,
    dataset: Annotated[str, typer.Argument(help="A data set's name or id.")],
    person: Annotated[
        list[str] | None, typer.Option(help="NAME=KEY[,KEY…]: a person with all of his or her keys; repeat it.")
    ] = None,
) -> None:
    """Name the persons of whom two must agree to a larger cap and to an egress; without --person, nobody.

    Once persons are named, two of them must agree to a change.
    """
    members: dict[str, list[str]] = {}
    for text in person or ():
        member, sign, keys = text.rpartition("=")
        if not sign or not member.strip() or not keys:
            raise typer.BadParameter(f"--person: say NAME=KEY[,KEY…], not {text!r}")
        members[member.strip()] = [session.client.key_id_of(key) for key in keys.split(",")]
    answer = session.client.set_persons(dataset, members)
    session.result(answer, lambda: _persons(session.console, answer))


SHOWN = ("kind", "epsilon", "job", "recipient")
APPROVAL = {"approval_id": Parameter(Annotated[str, typer.Argument(metavar="APPROVAL", help="Its id: apr_….")])}
LISTED = (
    "id",
    "status",
    ("act", lambda approval: json.dumps({key: value for key, value in approval.act.items() if key in SHOWN})),
    ("agreed", lambda approval: ", ".join(word["person"] for word in approval.agreements) or "–"),
    "expires=expires_at",
)
register(
    app,
    Call("persons", "persons", "Show of whom two must agree on a data set.", _persons, {"dataset": DATASET}),
    Call(
        "list",
        "approvals",
        "List what waits for a second person, and what was decided.",
        LISTED,
        {"dataset": option("Only on this data set."), "limit": limit("The most approvals to list.")},
    ),
    Call("show", "approval", "Show an act and who has agreed to it.", _approval, APPROVAL),
    Call("agree", "agree", "Agree, as the person to whom your key belongs.", _approval, APPROVAL),
    Call("deny", "deny", "Deny an act, or withdraw your own.", _approval, APPROVAL),
)
