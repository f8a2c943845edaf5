"""`scrimp grants`: which keys may see a data set, and which may train on it. For its owner and admins."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from scrimp.cli.tables import DATASET, KEY, Call, Parameter, option, register
from scrimp.models import Grant

app = typer.Typer(no_args_is_help=True)
HELP = "A key's id; its holder sees it with `scrimp keys self`. For admins also its name."
HOLDER = replace(KEY, typed=Annotated[str, typer.Argument(metavar="KEY", help=HELP)])
ACCESS = Annotated[str, typer.Option(help="view | train (and submit jobs) | charge (for another system)")]


def _print(console: Console, grant: Grant) -> None:
    most = grant.max_epsilon_per_job
    bound = "" if most is None else f", at most ε = {most:g} for one job"
    console.print(Text(f"{grant.key_id} ({grant.key_name}) may {grant.access}{bound}"))  # a name is not markup


GRANTS = ("key=key_id", "name=key_name", "role=key_role", "access", "max ε per job=max_epsilon_per_job:g")
MOST = option("The largest ε of one job of this key; default: the cap alone.", float)
GRANT = {"dataset": DATASET, "key_id": HOLDER}
SET = GRANT | {"access": Parameter(ACCESS, "train"), "max_epsilon_per_job": MOST}
REMOVED = "End a grant, at once. Jobs that were admitted under it continue."
register(
    app,
    Call("list", "grants", "List every grant on a data set.", (*GRANTS, "granted=created_at"), {"dataset": DATASET}),
    Call("set", "set_grant", "Grant a key access; replaces its earlier grant.", _print, SET),
    Call("remove", "remove_grant", REMOVED, "{key_id} has no grant", GRANT),
)
