"""`scrimp charges`: budget for what other systems compute from the same records."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from scrimp.charges import Use
from scrimp.cli.command_session import Session, command
from scrimp.cli.command_tables import ANY_DATASET, Call, Parameter, option, register
from scrimp.models import Charge

app = typer.Typer(no_args_is_help=True)


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
    purpose: Annotated[str | None, typer.Option(help="What it is for, where the owner requires that.")] = None,
    permit: Annotated[str | None, typer.Option(help="The number of the permit under which it runs.")] = None,
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
    use = Use(purpose=purpose, permit=permit) if purpose or permit else Use()
    charge = charges.reserve(
        dataset, claim, unit=unit, attested=attested, account=account, blocks=block, idempotency_key=once, **use
    )
    session.result(charge, lambda: _print(session.console, charge))


def _share(charge: Charge) -> str:
    return f"{100 * max(charge.share_train, charge.share_holdout):.3g} %"


def _print(console: Console, charge: Charge) -> None:
    console.print(f"{charge.id} is {charge.status}: {_share(charge)} of {charge.dataset}'s budget", soft_wrap=True)


CHARGE = {"charge_id": Parameter(Annotated[str, typer.Argument(metavar="CHARGE", help="A charge's id: chg_….")])}
VOID = CHARGE | {"reason": Parameter(Annotated[str, typer.Option(help="Why nothing was answered.")])}
CHARGES = ("charge=id", "data set=dataset", "status", ("share", _share), "attested")
FILTERS = {"dataset": ANY_DATASET, "status": option("held | posted | voided")}
VOIDED = "Give a charge back, only if the other system has answered nothing under it."
register(
    app,
    Call("list", "charges", "List charges, newest first.", CHARGES, FILTERS),
    Call("show", "charges.get", "Show a charge.", _print, CHARGE),
    Call("post", "charges.post", "Spend a charge: the other system has answered something.", _print, CHARGE),
    Call("void", "charges.void", VOIDED, _print, VOID),
)
