"""`scrimp certificates`."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from scrimp.cli import show
from scrimp.cli.command_session import DONE, FAILED, USAGE, Session, command, read_json, written
from scrimp.cli.trust import (
    Dated,
    HistoryFile,
    HistoryNumber,
    PublicKey,
    Root,
    Witnesses,
    checkpoint_in,
    trust_of,
    trusted_key,
)
from scrimp.dated import digest_of
from scrimp.errors import ScrimpError, Undecided, UnexpectedAnswer
from scrimp.key_history import Doubt
from scrimp.models import SignedCertificate
from scrimp.recompute import body_of
from scrimp.signatures import problem_of
from scrimp.transparency import Note, NotProven, Required

app = typer.Typer(no_args_is_help=True)
UNCHECKED = "intact; signer not checked: give --public-key, from the service's owner"


@command(app, "show")
def show_(
    session: Session,
    job_id: Annotated[str, typer.Argument(metavar="JOB", help="A finished job's id or name.")],
    to: Annotated[Path | None, typer.Option(help="Write it to this file instead.")] = None,
    envelope: Annotated[
        bool,
        typer.Option("--envelope", help="The in-toto statement alone, in its DSSE envelope, for other tools."),
    ] = False,
) -> None:
    """Print a job's signed certificate as JSON, or write it to a file: what the other commands here read."""
    document = session.client.certificate(session.job(job_id))
    signed = document.envelope if envelope else document.model_dump(mode="json")
    if signed is None:
        raise ScrimpError("an earlier version of the service issued this certificate: it has no envelope")
    if to is None:
        session.result(signed, lambda: session.console.print_json(data=signed))
        return
    written(to, (json.dumps(signed, indent=2, ensure_ascii=False) + "\n").encode())
    session.result(signed, lambda: session.console.print(str(to), soft_wrap=True))


@command(app, "verify")
def verify(
    session: Session,
    certificate: Annotated[str, typer.Argument(help="A job's id, or the file of a certificate or of its envelope.")],
    public_key: PublicKey = None,
    require_checkpoint: Annotated[
        bool, typer.Option("--require-checkpoint", help="The job's charge must be in a signed checkpoint.")
    ] = False,
    witness: Witnesses = None,
    dated: Dated = None,
    root: Root = None,
    history: HistoryFile = None,
    history_number: HistoryNumber = None,
    checkpoint: Annotated[
        list[Path] | None,
        typer.Option(help="A checkpoint from elsewhere, such as a witness, instead of the certificate's; repeat it."),
    ] = None,
    proof: Annotated[
        list[Path] | None,
        typer.Option(help="What leads to --checkpoint, as `scrimp ledger proof` prints it; repeat it."),
    ] = None,
) -> None:
    """Check a certificate's signature and proofs, here. Exit code 0 only if the key that you trust signed it.

    Exit code 1 if something does not hold; 2 without --public-key: the document is intact, but anybody can sign one.
    Also 2 if a revoked key signed it and nothing shows that it did before.
    `scrimp certificates recompute` recomputes its ε.
    """
    document = document_of(session, certificate)
    trust = trust_of([public_key] if public_key else None, root, history, history_number, witness, dated)
    try:
        trusted = trust.key_for(document)
    except NotProven as error:
        _tell(session, FAILED, str(error), document.get("public_key", "unknown"), trusted=True)
        return
    if "payloadType" in document and trusted is None:
        raise typer.BadParameter("an envelope holds no public key: give --public-key, from the service's owner")
    required = Required(
        require_checkpoint,
        trust.witnesses,
        tuple(checkpoint_in(each) for each in checkpoint or ()),
        tuple(read_json(each) for each in proof or ()),
    )
    problem = problem_of(document, trusted, required)
    if trust.history is not None and trusted is not None and problem is None:
        problem = trust.problem_with_certificate(trusted, document, required.notes)
    doubted = trusted is None or isinstance(problem, Doubt)
    status = FAILED if problem and not isinstance(problem, Doubt) else USAGE if doubted else DONE
    _tell(session, status, problem, trusted or document["public_key"], trusted=not doubted)


def _tell(session: Session, status: int, problem: str | None, key: str, *, trusted: bool) -> None:
    """Prints what was found; ends with this exit code."""
    message = {
        DONE: f"[green]✓[/] the signature holds (public key {key})",
        FAILED: f"[red]✗[/] {problem} (public key {key})",
        USAGE: f"[yellow]![/] {problem or UNCHECKED} (public key {key})",
    }[status]
    answer = {"valid": status == DONE, "intact": status != FAILED, "signer_checked": trusted, "public_key": key}
    session.result(answer, lambda: session.console.print(message, soft_wrap=True))
    if status:
        raise typer.Exit(status)


@command(app, "date")
def date(
    session: Session,
    signed: Annotated[
        str,
        typer.Argument(help="A job's id; a file: a certificate, an envelope, a statement; or an egress's folder."),
    ],
    to: Annotated[Path, typer.Option(help="Write the proof to this file: what --dated takes.")],
) -> None:
    """Fetch the proof that the service's witnesses saw a signature: for the day on which its key is revoked.

    Keep it beside what was signed. Of an egress: the proofs of its manifest, statement and certificate. Exit code 1 if
    no log has the signature, or has it in a moment.
    """
    try:
        envelopes = [_envelope_in(each) for each in _signed_documents(session, Path(signed), signed)]
        dates = [session.client.signature_date(digest_of(each)) for each in envelopes]
    except NotProven as error:
        raise typer.BadParameter(f"{signed}: {error}") from None
    documents = [each.model_dump(mode="json") for each in dates]
    document = {"dates": documents} if Path(signed).is_dir() else documents[0]
    written(to, (json.dumps(document, indent=1) + "\n").encode())
    seen = min(len(Note.parse(each.checkpoint).signatures) - 1 for each in dates)
    message = f"{to}: {seen} cosignatures" + ("" if seen else "; no witness has seen it yet: ask again later")
    session.result(document, lambda: session.console.print(message, soft_wrap=True, highlight=False))


def _signed_documents(session: Session, path: Path, job: str) -> list[dict[str, Any]]:
    """What a file, an egress's folder or a job has that is signed."""
    if path.is_dir():
        return [read_json(path / name) for name in ("manifest.json", "statement.json", "certificate.json")]
    return [read_json(path) if path.is_file() else document_of(session, job)]


def _envelope_in(document: dict[str, Any]) -> dict[str, Any]:
    return document if "payload" in document else document.get("envelope") or document.get("terms") or {}


@command(app, "recompute")
def recompute_(
    session: Session,
    certificate: Annotated[str, typer.Argument(help="A job's id, or a certificate's file.")],
    public_key: Annotated[
        str | None, typer.Option(help="The key that you trust: base64, or a file with it. Checks the signature too.")
    ] = None,
    root: Root = None,
    history: HistoryFile = None,
    history_number: HistoryNumber = None,
    witness: Witnesses = None,
    dated: Dated = None,
) -> None:
    """Recompute a certificate's ε here, from the certificate alone. Exit code 1 if it does not hold.

    Exit code 2 without --public-key: the numbers hold, but anybody can sign such a document. It uses
    nothing of the service. The file scrimp/recompute.py does the same by itself.
    """
    from scrimp.recompute import recompute

    document = document_of(session, certificate)
    trust = trust_of([public_key] if public_key else None, root, history, history_number, witness, dated)
    try:
        trusted = trust.key_for(document)
    except NotProven as error:
        raise ScrimpError(f"{certificate}: {error}") from None
    status = recompute(document, trusted, certificate)
    if status:
        raise typer.Exit(status)
    if trusted is not None and (problem := trust.problem_with_certificate(trusted, document)) is not None:
        raise (Undecided if isinstance(problem, Doubt) else ScrimpError)(f"{certificate}: {problem}")


@command(app, "explain")
def explain(
    session: Session,
    certificate: Annotated[str, typer.Argument(help="A job's id, or the file of a certificate or of its envelope.")],
    public_key: PublicKey = None,
) -> None:
    """Say in plain words what a certificate guarantees, how to read it, and what it does not cover.

    From the certificate alone. With --public-key nothing is said of one that this key did not sign. Checkpoints,
    witnesses and revoked keys are for `scrimp certificates verify`.
    """
    from scrimp.explain import explained

    document = document_of(session, certificate)
    if public_key is not None and (problem := problem_of(document, trusted_key(public_key))) is not None:
        raise ScrimpError(f"{certificate}: {problem}")
    try:
        body = body_of(document)
        sections = explained(body)
    except (KeyError, TypeError, ValueError) as error:
        raise ScrimpError(f"{certificate} holds no certificate that this version can read: {error!r}") from None
    session.result(dict(sections), lambda: show.sections(session.console, sections))


@command(app, "registry")
def registry(
    session: Session,
    certificate: Annotated[str, typer.Argument(help="A job's id, or the file of a certificate or of its envelope.")],
    facts: Annotated[
        Path | None, typer.Option(help="A TOML file with what only the owner knows; without it, a template is printed.")
    ] = None,
) -> None:
    """Write a record for the public registry of DP deployments (tier 3, YAML) from a certificate and the owner's facts.

    From the certificate alone. Check its signature first: `scrimp certificates verify`.
    """
    from scrimp import registry as records

    if facts is None:
        print(records.template(), end="")
        return
    try:
        declared = tomllib.loads(facts.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise typer.BadParameter(f"{facts} cannot be read: {error}") from None
    if open_ := records.missing(declared):
        raise typer.BadParameter(f"{facts} must answer exactly what the template asks; not so: {', '.join(open_)}")
    try:
        row = records.record(body_of(document_of(session, certificate)), declared)
    except (KeyError, TypeError, ValueError) as error:
        raise ScrimpError(f"{certificate} holds no certificate that this version can read: {error!r}") from None
    session.result(row, lambda: print(records.as_yaml(row), end=""))


def signing_key(session: Session) -> None:
    """Print the public key that the service signs certificates with: base64, on a line of its own."""
    key = next(session.client.signing_keys(), None)
    if key is None:
        raise ScrimpError("the service has no signing key yet: start its relay")
    session.result(key, lambda: session.console.print(key.public_key, soft_wrap=True, highlight=False))


def document_of(session: Session, certificate: str) -> dict[str, Any]:
    """A job's certificate, or what a file holds: a certificate or an envelope."""
    path = Path(certificate)
    is_file = certificate == "-" or path.exists() or path.suffix == ".json" or len(path.parts) > 1
    if certificate.startswith("job_") or not is_file:
        return session.client.certificate(session.job(certificate)).model_dump(mode="json")
    document = read_json(Path(certificate))
    if isinstance(document, dict) and {"payloadType", "payload", "signatures"} <= document.keys():
        return document
    try:
        return SignedCertificate.model_validate(document).model_dump(mode="json")
    except UnexpectedAnswer:
        raise typer.BadParameter(
            f"{certificate} holds neither a certificate with its signature and public_key, nor a DSSE envelope"
        ) from None
