"""`scrimp budgets`: what keys and teams may use of a data set's cap, and requests for more."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from scrimp.cli import show
from scrimp.cli.session import Session, command
from scrimp.errors import NotFound
from scrimp.models import Budget, BudgetRequest

app = typer.Typer(no_args_is_help=True)
Dataset = Annotated[str, typer.Argument(help="A data set's name or id.")]
Name = Annotated[str, typer.Argument(metavar="BUDGET", help="A key's id, or a team's name.")]
RequestId = Annotated[str, typer.Argument(metavar="REQUEST", help="A request's id: breq_….")]
Answer = Annotated[str | None, typer.Option(help="Words for the key that asked.")]


@command(app, "list")
def list_(session: Session, dataset: Dataset) -> None:
    """List the budgets within a data set's cap: all of them for its owner, else this key's own."""
    found = list(session.client.budgets(dataset))
    rows = [
        (each.name, f"{each.epsilon.value:g}", _percent(each, "share_spent"), _percent(each, "share_held"), _keys(each))
        for each in found
    ]
    head = ("budget", "ε", "spent", "held", "keys")
    session.result(found, lambda: show.table(session.console, head, rows))


@command(app, "show")
def show_(session: Session, dataset: Dataset, name: Name) -> None:
    """Show a budget."""
    _print(session, session.client.budgets.get(dataset, name))


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
    before = _seen(session, dataset, name)
    version = None if before is None else before.version
    made = session.client.budgets.set(dataset, name, epsilon, keys, version=version)
    _print(session, made)
    left = sorted(set((before.keys if before else None) or ()) - set(made.keys or ()))
    if left:
        said = f"no longer within it, bounded by the cap alone: {', '.join(left)}"
        show.console(stderr=True).print(Text(said), soft_wrap=True)


@command(app, "close")
def close(session: Session, dataset: Dataset, name: Name) -> None:
    """End a budget: the cap alone bounds its keys. What it spent stays spent."""
    session.client.budgets.close(dataset, name)
    session.result({"dataset": dataset, "name": name}, lambda: session.console.print(Text(f"{name} is closed")))


@command(app, "request")
def request(
    session: Session,
    dataset: Dataset,
    epsilon: Annotated[float, typer.Option(help="The budget that you ask for.")],
    reason: Annotated[str, typer.Option(help="Why; its owner reads it.")],
) -> None:
    """Ask a data set's owner for a budget, or for a larger one. The request ends by itself in 14 days."""
    _print_request(session, session.client.budgets.request(dataset, epsilon, reason))


@command(app, "requests")
def requests(
    session: Session,
    dataset: Annotated[str | None, typer.Argument(help="A data set's name or id; default: all.")] = None,
    status: Annotated[str | None, typer.Option(help="open | approved | denied | expired")] = None,
) -> None:
    """List this key's requests and those on its own data sets, newest first."""
    found = list(session.client.budgets.requests(dataset, status))
    rows = [(each.id, each.dataset, each.key, f"{each.epsilon:g}", each.status, each.reason) for each in found]
    head = ("request", "data set", "key", "ε", "status", "reason")
    session.result(found, lambda: show.table(session.console, head, rows))


@command(app, "approve")
def approve(session: Session, request_id: RequestId, answer: Answer = None) -> None:
    """Give a key what it asked for."""
    _print_request(session, session.client.budgets.approve(request_id, answer))


@command(app, "deny")
def deny(session: Session, request_id: RequestId, answer: Answer = None) -> None:
    """Refuse a request, or withdraw your own. Nothing changes."""
    _print_request(session, session.client.budgets.deny(request_id, answer))


def _seen(session: Session, dataset: str, name: str) -> Budget | None:
    try:
        return session.client.budgets.get(dataset, name)
    except NotFound:
        return None


def _print(session: Session, budget: Budget) -> None:
    spent, held = _percent(budget, "share_spent"), _percent(budget, "share_held")
    said = f"{budget.name}: ε = {budget.epsilon.value:g}, {spent} spent, {held} held. {budget.collusion}"
    session.result(budget, lambda: session.console.print(Text(said), soft_wrap=True))


def _print_request(session: Session, found: BudgetRequest) -> None:
    asked = f"ε = {found.epsilon:g} on {found.dataset} for {found.key} (budget {found.budget})"
    said = f"{found.id} is {found.status}: {asked}"
    session.result(found, lambda: session.console.print(Text(said), soft_wrap=True))


def _percent(budget: Budget, share: str) -> str:
    return f"{100 * max(getattr(each, share) for each in budget.accounts.values() if each is not None):.3g} %"


def _keys(budget: Budget) -> str:
    return "closed" if budget.closed else ", ".join(budget.keys or ())
