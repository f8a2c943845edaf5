"""`scrimp optimizers`: the optimizers that a job can name."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from scrimp.cli import show
from scrimp.cli.session import Session, command
from scrimp.errors import ScrimpError
from scrimp.models import Optimizer


def register(root: typer.Typer) -> None:
    @command(root, "optimizers")
    def optimizers(
        session: Session,
        kind: Annotated[str | None, typer.Argument(help="One of them, with its settings.")] = None,
    ) -> None:
        """Show the optimizers that a job can name, and when to prefer which."""
        found = list(session.client.optimizers())
        if kind is None:
            rows = [(each.kind, each.summary, each.when_to_prefer) for each in found]
            session.result(found, lambda: show.table(session.console, ("kind", "what it is", "prefer it for"), rows))
            return
        one = next((each for each in found if each.kind == kind), None)
        if one is None:
            raise ScrimpError(f"there is no optimizer {kind!r}; choose one of {', '.join(each.kind for each in found)}")
        session.result(one, lambda: _show(session, one))


def _show(session: Session, one: Optimizer) -> None:
    settings = {
        name: " ".join(str(value) for value in (_type(of), *_default(of)))
        for name, of in one.json_schema["properties"].items()
        if name != "kind"
    }
    show.facts(
        session.console,
        [
            (one.kind, one.summary),
            ("update", one.update),
            ("keeps", "; ".join(f"{slot}: {what}" for slot, what in one.state.items())),
            ("costs", one.cost),
            ("prefer it for", one.when_to_prefer),
            ("source", one.source),
            *settings.items(),
        ],
    )


def _type(of: dict[str, object]) -> str:
    if "enum" in of:
        return " | ".join(str(each) for each in list(of["enum"]))  # type: ignore[call-overload]
    return str(of.get("type", "see --json"))


def _default(of: dict[str, object]) -> list[str]:
    return [f"(default {json.dumps(of['default'])})"] if "default" in of else []
