"""`scrimp certificates`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from scrimp.cli.session import FAILED, Session, command, read_json
from scrimp.errors import ScrimpError
from scrimp.models import SignedCertificate

app = typer.Typer(no_args_is_help=True)


@command(app, "show")
def show_(
    session: Session,
    job_id: Annotated[str, typer.Argument(help="A finished job's id.")],
    to: Annotated[Path | None, typer.Option(help="Write the signed document to this file too.")] = None,
    envelope: Annotated[
        bool,
        typer.Option("--envelope", help="Write the in-toto statement alone, in its DSSE envelope, for other tools."),
    ] = False,
) -> None:
    """Show a job's signed certificate."""
    document = session.client.certificate(job_id)
    if to is not None:
        written = document.envelope if envelope else document.model_dump(mode="json")
        if written is None:
            raise ScrimpError("an earlier version of the service issued this certificate: it has no envelope")
        to.write_text(json.dumps(written, indent=2, ensure_ascii=False) + "\n")
    elif envelope:
        raise typer.BadParameter("--envelope says what --to writes: give --to FILE")
    session.result(document, lambda: session.console.print_json(data=document.certificate))


@command(app, "verify")
def verify(
    session: Session,
    certificate: Annotated[str, typer.Argument(help="A job's id, or the file of a certificate or of its envelope.")],
    public_key: Annotated[
        str | None, typer.Option(help="The key that you trust (base64); default: the certificate's own.")
    ] = None,
) -> None:
    """Check a certificate's signature, here. Exit code 1 if it is not valid.

    An envelope has no key of its own: give --public-key. `scrimp certificates recompute` recomputes its ε.
    """
    from app.ledger import attestations, certificates

    document = _document(session, certificate)
    if "payloadType" in document:
        if public_key is None:
            raise typer.BadParameter("an envelope holds no public key: give --public-key, from the service's owner")
        try:
            attestations.opened(document, public_key)
            holds = True
        except attestations.NotAuthentic:
            holds = False
        key = public_key
    else:
        holds, key = certificates.verify(document, public_key), document["public_key"]
    mark, text = ("[green]✓[/]", "the signature holds") if holds else ("[red]✗[/]", "the signature does NOT hold")
    told = f"{mark} {text} (public key {key})"
    answer = {"valid": holds, "public_key": key}
    session.result(answer, lambda: session.console.print(told, soft_wrap=True))
    if not holds:
        raise typer.Exit(FAILED)


@command(app, "recompute")
def recompute_(
    session: Session,
    certificate: Annotated[str, typer.Argument(help="A job's id, or a certificate's file.")],
    public_key: Annotated[
        str | None, typer.Option(help="The key that you trust: base64, or a file with it. Checks the signature too.")
    ] = None,
) -> None:
    """Recompute a certificate's ε here, from the certificate alone. Exit code 1 if it does not hold.

    It uses dp_accounting and nothing of the service. The file scrimp/recompute.py does the same by itself.
    """
    from scrimp.recompute import recompute

    status = recompute(_document(session, certificate), public_key, certificate)
    if status:
        raise typer.Exit(status)


@command(app, "explain")
def explain(
    session: Session,
    certificate: Annotated[str, typer.Argument(help="A job's id, or the file of a certificate or of its envelope.")],
) -> None:
    """Say in plain words what a certificate guarantees, how to read it, and what it does not cover.

    From the certificate alone. Check its signature first: `scrimp certificates verify`.
    """
    from app.errors import PrivacyError
    from scrimp.explain import explained
    from scrimp.recompute import body_of

    try:
        body = body_of(_document(session, certificate))
        sections = explained(body)
    except (KeyError, TypeError, ValueError, PrivacyError) as error:
        raise ScrimpError(f"{certificate} holds no certificate that this version can read: {error!r}") from None
    session.result(dict(sections), lambda: _print(session.console, sections))


def register_signing_key(root: typer.Typer) -> None:
    @command(root, "signing-key")
    def signing_key(session: Session) -> None:
        """Print the public key that the service signs certificates with: base64, on a line of its own."""
        found = next(session.client.signing_keys(), None)
        if found is None:
            raise ScrimpError("the service has no signing key yet: start its relay")
        session.result(found, lambda: session.console.print(found.public_key, soft_wrap=True, highlight=False))


def _print(console: Console, sections: list[tuple[str, list[str]]]) -> None:
    for title, lines in sections:
        console.print(Text(title, "bold"))
        for line in lines:
            console.print(Padding(Text(line), (0, 0, 0, 2)))


def _document(session: Session, certificate: str) -> dict[str, Any]:
    """A job's certificate, or what a file holds: a certificate or an envelope."""
    if certificate.startswith("job_"):
        return session.client.certificate(certificate).model_dump(mode="json")
    found = read_json(Path(certificate))
    if isinstance(found, dict) and {"payloadType", "payload", "signatures"} <= found.keys():
        return found
    try:
        return SignedCertificate.model_validate(found).model_dump(mode="json")
    except ValidationError:
        raise typer.BadParameter(
            f"{certificate} holds neither a certificate with its signature and public_key, nor a DSSE envelope"
        ) from None
