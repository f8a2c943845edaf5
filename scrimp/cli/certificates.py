"""`scrimp certificates`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from scrimp.cli.session import FAILED, Session, command, read_json
from scrimp.errors import ScrimpError
from scrimp.models import SignedCertificate

app = typer.Typer(no_args_is_help=True)


@command(app, "show")
def show_(
    session: Session,
    job_id: Annotated[str, typer.Argument(help="A finished job's id.")],
    to: Annotated[Path | None, typer.Option(help="Write the signed document to this file too.")] = None,
) -> None:
    """Show a job's signed certificate."""
    document = session.client.certificate(job_id)
    if to is not None:
        to.write_text(json.dumps(document.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n")
    session.result(document, lambda: session.console.print_json(data=document.certificate))


@command(app, "verify")
def verify(
    session: Session,
    certificate: Annotated[str, typer.Argument(help="A job's id, or a certificate's file.")],
    public_key: Annotated[
        str | None, typer.Option(help="The key that you trust (base64); default: the certificate's own.")
    ] = None,
) -> None:
    """Check a certificate's signature, here. Exit code 1 if it is not valid.

    `scrimp certificates recompute` recomputes its ε.
    """
    from app.ledger.certificates import verify as signature_holds

    document = session.client.certificate(certificate) if certificate.startswith("job_") else _read(Path(certificate))
    holds = signature_holds(document.model_dump(mode="json"), public_key)
    mark, text = ("[green]✓[/]", "the signature holds") if holds else ("[red]✗[/]", "the signature does NOT hold")
    told = f"{mark} {text} (public key {document.public_key})"
    answer = {"valid": holds, "public_key": document.public_key}
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

    document = session.client.certificate(certificate) if certificate.startswith("job_") else _read(Path(certificate))
    status = recompute(document.model_dump(mode="json"), public_key, certificate)
    if status:
        raise typer.Exit(status)


def register_signing_key(root: typer.Typer) -> None:
    @command(root, "signing-key")
    def signing_key(session: Session) -> None:
        """Print the public key that the service signs certificates with: base64, on a line of its own."""
        found = next(session.client.signing_keys(), None)
        if found is None:
            raise ScrimpError("the service has no signing key yet: start its relay")
        session.result(found, lambda: session.console.print(found.public_key, soft_wrap=True, highlight=False))


def _read(path: Path) -> SignedCertificate:
    try:
        return SignedCertificate.model_validate(read_json(path))
    except ValidationError:
        raise typer.BadParameter(f"{path} has no certificate, signature and public_key") from None
