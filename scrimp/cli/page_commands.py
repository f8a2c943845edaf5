"""`scrimp certificates page`: a certificate as one page for people."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from scrimp.cli.certificate_commands import document_of
from scrimp.cli.command_session import Session, written
from scrimp.cli.trust import Dated, HistoryFile, HistoryNumber, PublicKey, Root, Witnesses, trust_of, trusted_key
from scrimp.errors import ScrimpError, Undecided
from scrimp.key_history import Doubt
from scrimp.signatures import problem_of
from scrimp.transparency import NotProven


def page(
    session: Session,
    certificate: Annotated[str, typer.Argument(help="A job's id, or a certificate's file.")],
    html: Annotated[Path | None, typer.Option(help="Write the page to this file.")] = None,
    pdf: Annotated[Path | None, typer.Option(help="Print the page to this file; needs Chromium.")] = None,
    facts: Annotated[
        Path | None,
        typer.Option(help="A TOML file with what only the owner knows, as `certificates registry` prints one to fill."),
    ] = None,
    public_key: PublicKey = None,
    root: Root = None,
    history: HistoryFile = None,
    history_number: HistoryNumber = None,
    witness: Witnesses = None,
    dated: Dated = None,
) -> None:
    """Write a certificate as one page for people: who promises what, in words, and how to check it.

    From the certificate alone, offline. No page is written of a document whose signature does not hold. With a key that
    you trust, or a root, the page says that its signer was checked.
    """
    from scrimp import certificate_page
    from scrimp.recompute import body_of

    if html is None and pdf is None:
        raise typer.BadParameter("give --html FILE, --pdf FILE, or both")
    document = document_of(session, certificate)
    trust = trust_of([public_key] if public_key else None, root, history, history_number, witness, dated)
    try:
        trusted = trust.key_for(document)
    except NotProven as error:
        raise ScrimpError(f"{certificate}: {error}; no page was written") from None
    key = trusted or document.get("public_key")
    if key is None:
        raise typer.BadParameter("an envelope holds no public key: give --public-key, from the service's owner")
    problem = problem_of(document, trusted) or trust.problem_with_certificate(key, document)
    if problem is not None:
        refusal = Undecided if isinstance(problem, Doubt) else ScrimpError
        raise refusal(f"{certificate}: {problem}; no page was written")
    try:
        signer = certificate_page.Signer(key, trusted is not None, trusted_key(root))
        content = certificate_page.page(body_of(document), signer, _facts(facts))
    except (KeyError, TypeError, ValueError) as error:
        raise ScrimpError(f"{certificate} holds no certificate that this version can read: {error!r}") from None
    if html is not None:
        written(html, content.encode())
    if pdf is not None:
        certificate_page.print_pdf(content, pdf)
    files = [str(each) for each in (html, pdf) if each is not None]
    session.result({"files": files, "signer_checked": signer.checked}, lambda: print("\n".join(files)))


def _facts(path: Path | None) -> dict[str, Any]:
    from scrimp.registry import FACTS, LISTS

    if path is None:
        return {}
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise typer.BadParameter(f"{path} cannot be read: {error}") from None
    wrong = [
        name for name, value in document.items() if name not in FACTS or isinstance(value, list) != (name in LISTS)
    ]
    if wrong:
        raise typer.BadParameter(
            f"{path} must answer what `scrimp certificates registry` asks; not so: {', '.join(wrong)}"
        )
    return document
