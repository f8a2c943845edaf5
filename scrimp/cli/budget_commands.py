"""`scrimp budgets`: what keys and teams may use of a data set's cap, and requests for more."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from scrimp.cli import show
from scrimp.cli.command_session import Session, command
from scrimp.cli.command_tables import ANY_DATASET, DATASET, Call, Parameter, option, register
from scrimp.errors import NotFound
from scrimp.models import Budget

app = typer.Typer(no_args_is_help=True)
Dataset = Annotated[str, typer.Argument(help="A data set's name or id.")]
Name = Annotated[str, typer.Argument(metavar="BUDGET", help="A key's id, or a team's name.")]


@command(app, "set")
def set_(
    session: Session,
    dataset: Dataset,
    name: Name,
    epsilon: Annotated[float, typer.Option(help="What its keys may use together.")],
    sharing: Annotated[
        list[str] | None,
        typer.Option(
            "--for",
            help="A key that shares it (id; for admins also its name); repeat for all of them: the cap alone bounds a "
            "key that is left out.",
        ),
    ] = None,
) -> None:
    """Set what the keys of a budget may use together. With --for, these are all its keys from now on."""
    keys = None if not sharing else [session.client.key_id_of(each) for each in sharing]
    current = _seen(session, dataset, name)
    version = None if current is None else current.version
    budget = session.client.budgets.set(dataset, name, epsilon, keys, version=version)
    session.result(budget, lambda: _print(session.console, budget))
    left = sorted(set((current.keys if current else None) or ()) - set(budget.keys or ()))
    if left:
        message = f"no longer within it, bounded by the cap alone: {', '.join(left)}"
        show.console(stderr=True).print(Text(message), soft_wrap=True)


def _seen(session: Session, dataset: str, name: str) -> Budget | None:
    try:
        return session.client.budgets.get(dataset, name)
    except NotFound:
        return None


def _percent(budget: Budget, share: str) -> str:
    return f"{100 * max(getattr(each, share) for each in budget.accounts.values() if each is not None):.3g} %"


def _print(console: Console, budget: Budget) -> None:
    spent, held_share = _percent(budget, "share_spent"), _percent(budget, "share_held")
    line = f"{budget.name}: ε = {budget.epsilon.value:g}, {spent} spent, {held_share} held. {budget.collusion}"
    console.print(Text(line), soft_wrap=True)


BUDGET = {"dataset": DATASET, "name": Parameter(Name)}
BUDGETS = (
    "budget=name",
    "ε=epsilon.value:g",
    ("spent", lambda budget: _percent(budget, "share_spent")),
    ("held", lambda budget: _percent(budget, "share_held")),
    ("keys", lambda budget: "closed" if budget.closed else ", ".join(budget.keys or ())),
)
ASKED = {
    "dataset": DATASET,
    "epsilon": Parameter(Annotated[float, typer.Option(help="The budget that you ask for.")]),
    "reason": Parameter(Annotated[str, typer.Option(help="Why; its owner reads it.")]),
}
FILTERS = {"dataset": ANY_DATASET, "status": option("open | approved | denied | expired")}
REQUEST = Parameter(Annotated[str, typer.Argument(metavar="REQUEST", help="A request's id: breq_….")])
ANSWER = {"request_id": REQUEST, "answer": option("Words for the key that asked.")}
REQUESTS = ("request=id", "data set=dataset", "key", "ε=epsilon:g", "status", "reason")
LINE = "{0.id} is {0.status}: ε = {0.epsilon:g} on {0.dataset} for {0.key} (budget {0.budget})"
HELP = {
    "list": "List the budgets within a data set's cap: all of them for its owner, else this key's own.",
    "close": "End a budget: the cap alone bounds its keys. What it spent stays spent.",
    "request": "Ask a data set's owner for a budget, or for a larger one. The request ends by itself in 14 days.",
    "requests": "List this key's requests and those on its own data sets, newest first.",
}
register(
    app,
    Call("list", "budgets", HELP["list"], BUDGETS, {"dataset": DATASET}),
    Call("show", "budgets.get", "Show a budget.", _print, BUDGET),
    Call("close", "budgets.close", HELP["close"], "{name} is closed", BUDGET),
    Call("request", "budgets.request", HELP["request"], LINE, ASKED),
    Call("requests", "budgets.requests", HELP["requests"], REQUESTS, FILTERS),
    Call("approve", "budgets.approve", "Give a key what it asked for.", LINE, ANSWER),
    Call("deny", "budgets.deny", "Refuse a request, or withdraw your own. Nothing changes.", LINE, ANSWER),
)
