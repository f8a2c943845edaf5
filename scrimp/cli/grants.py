"""`scrimp grants`: which keys may see a data set, and which may train on it. For its owner and admins."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from scrimp.cli import show
from scrimp.cli.command_tables import DATASET, KEY, Call, Parameter, option, register
from scrimp.models import Grant, GrantTerms

app = typer.Typer(no_args_is_help=True)
HELP = "A key's id; its holder sees it with `scrimp keys self`. For admins also its name."
HOLDER = replace(KEY, typed=Annotated[str, typer.Argument(metavar="KEY", help=HELP)])
ACCESS = Annotated[str, typer.Option(help="view | train (and submit jobs) | charge (for another system)")]


def _print(console: Console, grant: Grant) -> None:
    """The grant, and the terms of the one that it replaced which this one lacks or changes."""
    terms = _terms(grant)
    message = f"{grant.key_id} ({grant.key_name}) may {grant.access}{''.join(f', {each}' for each in terms.values())}"
    console.print(Text(message), soft_wrap=True)  # a name is not markup
    if grant.replaced is not None:
        ended = [each for name, each in _terms(grant.replaced).items() if terms.get(name) != each]
        was = f"replaced its grant to {grant.replaced.access}"
        console.print(Text(f"{was}; no longer: {', '.join(ended)}" if ended else was), soft_wrap=True)


def _terms(grant: Grant | GrantTerms) -> dict[str, str]:
    """A grant's terms in words, by their names."""
    largest, ends_at = grant.max_epsilon_per_job, grant.ends_at
    return {
        **({} if largest is None else {"max_epsilon_per_job": f"at most ε = {largest:g} for one job"}),
        **({"purpose": f"for {grant.purpose}"} if grant.purpose else {}),
        **({"permit": f"permit {grant.permit}"} if grant.permit else {}),
        **({"ends_at": f"until {show.when(ends_at)}"} if ends_at else {}),
        **({"persons": f"used by {', '.join(grant.persons)}"} if grant.persons else {}),
    }


GRANTS = ("key=key_id", "name=key_name", "role=key_role", "access", "max ε per job=max_epsilon_per_job:g", "purpose")
MOST = option("The largest ε of one job of this key; default: the cap alone.", float)
GRANT = {"dataset": DATASET, "key_id": HOLDER}
TERMS = {
    "ends_at": option("From when on it gives nothing: a day, or a time as 2026-12-31T00:00:00Z."),
    "purpose": option("Of every job under it; the data set may list purposes."),
    "permit": option("The number of the permit of every job under it."),
    "persons": Parameter(Annotated[list[str] | None, typer.Option("--person", help="Who may use the key.")], None),
}
SET = GRANT | {"access": Parameter(ACCESS, "train"), "max_epsilon_per_job": MOST} | TERMS
REMOVED = "End a grant, at once. Jobs that were admitted under it continue."
register(
    app,
    Call("list", "grants", "List every grant on a data set.", (*GRANTS, "granted=created_at"), {"dataset": DATASET}),
    Call("set", "set_grant", "Grant a key access; replaces its earlier grant.", _print, SET),
    Call("remove", "remove_grant", REMOVED, "{key_id} has no grant", GRANT),
)
