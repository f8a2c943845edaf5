"""`scrimp charges`: budget for what other systems compute from the same records."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from scrimp.cli import show
from scrimp.cli.session import Session, command
from scrimp.models import Charge

app = typer.Typer(no_args_is_help=True)
ChargeId = Annotated[str, typer.Argument(metavar="CHARGE", help="A charge's id: chg_….")]


@command(app, "list")
def list_(
    session: Session,
    dataset: Annotated[str | None, typer.Argument(help="A data set's name or id; default: all.")] = None,
    status: Annotated[str | None, typer.Option(help="held | posted | voided")] = None,
) -> None:
    """List charges, newest first."""
    found = list(session.client.charges(dataset, status))
    rows = [(each.id, each.dataset, each.status, _share(each), each.attested) for each in found]
    head = ("charge", "data set", "status", "share", "attested")
    session.result(found, lambda: show.table(session.console, head, rows))


@command(app, "show")
def show_(session: Session, charge_id: ChargeId) -> None:
    """Show a charge."""
    _print(session, session.client.charges.get(charge_id))


@command(app, "reserve")
def reserve(
    session: Session,
    dataset: Annotated[str, typer.Argument(help="A data set's name or id.")],
    mechanism: Annotated[
        str, typer.Argument(help='JSON, such as \'{"kind": "laplace", "scale": 10}\': docs/charges.md.')
    ],
    attested: Annotated[str, typer.Option(help="Which system and query this is, in words.")],
    unit: Annotated[str, typer.Option(help="Whom the mechanism protects: example | user.")] = "example",
    account: Annotated[str, typer.Option(help="The part that it reads: train | holdout | both.")] = "both",
    block: Annotated[
        list[str] | None, typer.Option(help="A block that it reads, and no others; repeat it. Default: all open ones.")
    ] = None,
    once: Annotated[
        str | None, typer.Option(help="Idempotency-Key: the same again returns the same charge; default: random.")
    ] = None,
) -> None:
    """Hold budget for what another system is about to compute. It may answer only after this has returned."""
    try:
        claim = json.loads(mechanism)
    except ValueError:
        claim = None
    if not isinstance(claim, dict):
        raise typer.BadParameter("MECHANISM must be a JSON object: see docs/charges.md")
    charges = session.client.charges
    made = charges.reserve(
        dataset, claim, unit=unit, attested=attested, account=account, blocks=block, idempotency_key=once
    )
    _print(session, made)


@command(app, "post")
def post(session: Session, charge_id: ChargeId) -> None:
    """Spend a charge: the other system has answered something."""
    _print(session, session.client.charges.post(charge_id))


@command(app, "void")
def void(
    session: Session, charge_id: ChargeId, reason: Annotated[str, typer.Option(help="Why nothing was answered.")]
) -> None:
    """Give a charge back, only if the other system has answered nothing under it."""
    _print(session, session.client.charges.void(charge_id, reason))


def _print(session: Session, charge: Charge) -> None:
    said = f"{charge.id} is {charge.status}: {_share(charge)} of {charge.dataset}'s budget"
    session.result(charge, lambda: session.console.print(said, highlight=False, soft_wrap=True))


def _share(charge: Charge) -> str:
    return f"{100 * max(charge.share_train, charge.share_holdout):.3g} %"
