"""What a job can name (`scrimp optimizers`, `models`, `extractors`, `strategies`), and `scrimp workers`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from scrimp.cli import command_tables, show
from scrimp.cli.command_session import Session, command, plain
from scrimp.errors import ScrimpError
from scrimp.models import Kind, Optimizer, Safeguard, Worker
from scrimp.rows import Pages


def register(root: typer.Typer) -> None:
    @command(root, "optimizers")
    def optimizers(
        session: Session,
        kind: Annotated[str | None, typer.Argument(help="One of them, with its settings.")] = None,
    ) -> None:
        """Show the optimizers that a job can name, and when to prefer which."""
        optimizers_listed = list(session.client.optimizers())
        if kind is None:
            rows = [(each.kind, each.summary, each.when_to_prefer) for each in optimizers_listed]
            session.result(
                optimizers_listed, lambda: show.table(session.console, ("kind", "what it is", "prefer it for"), rows)
            )
            return
        one = next((each for each in optimizers_listed if each.kind == kind), None)
        if one is None:
            raise ScrimpError(
                f"there is no optimizer {kind!r}; choose one of {', '.join(each.kind for each in optimizers_listed)}"
            )
        session.result(one, lambda: _show(session, one))

    for name, (key, text) in LISTS.items():
        _register_list(root, name, key, text)

    command_tables.register(
        root,
        command_tables.Call(
            "safeguards", "safeguards", "List what protects the service, as its own settings say it.", SAFEGUARDS
        ),
    )
    command_tables.register(
        root,
        command_tables.Call("workers", "workers", "List the workers of the last day, and what each runs.", WORKERS),
    )


# name → the member that names an entry, and what the command says.
LISTS = {
    "models": ("kind", "Show the kinds of model that a job can name, with their settings."),
    "extractors": ("name", "Show the frozen feature extractors of the service."),
    "strategies": ("strategy", "Show the strategies of private study, with their settings."),
}


def _register_list(root: typer.Typer, name: str, key: str, text: str) -> None:
    def list_(
        session: Session, one: Annotated[str | None, typer.Argument(help="One of them, whole, as JSON.")] = None
    ) -> None:
        pages: Pages[Kind] = getattr(session.client, name)()
        items = [plain(each) for each in pages]
        if one is None:
            rows = [(str(each[key]), _said(each)) for each in items]
            session.result(items, lambda: show.table(session.console, (key, "what it is"), rows))
            return
        row = next((each for each in items if each[key] == one), None)
        if row is None:
            raise ScrimpError(f"there is no {one!r} in {name}; choose one of {', '.join(str(e[key]) for e in items)}")
        session.result(row, lambda: session.console.print_json(data=row))

    list_.__doc__ = text
    command(root, name)(list_)


def _said(entry: dict[str, Any]) -> str:
    return str(next((entry[name] for name in ("summary", "description", "when_to_use") if entry.get(name)), ""))


def _state(worker: Worker) -> str:
    return "alive" if worker.alive else "gone"


def _devices(worker: Worker) -> str:
    if worker.runs == "readings":
        return "reads data files"
    return ", ".join(str(each.get("name") or each.get("kind")) for each in worker.devices or ())


def _in_force(safeguard: Safeguard) -> str:
    return "yes" if safeguard.in_force else "[red]no[/]"


SAFEGUARDS = ("subject", ("in force", _in_force), "says")
WORKERS = ("name", ("state", _state), ("devices", _devices), "job", "seen=seen_at")


def _show(session: Session, one: Optimizer) -> None:
    settings = {
        name: " ".join(str(value) for value in (_type(schema), *_default(schema)))
        for name, schema in one.json_schema["properties"].items()
        if name != "kind"
    }
    show.facts(
        session.console,
        [
            (one.kind, one.summary),
            ("update", one.update),
            ("keeps", "; ".join(f"{slot}: {text}" for slot, text in one.state.items())),
            ("costs", one.cost),
            ("prefer it for", one.when_to_prefer),
            ("source", one.source),
            *settings.items(),
        ],
    )


def _type(schema: dict[str, object]) -> str:
    if "enum" in schema:
        return " | ".join(str(each) for each in list(schema["enum"]))  # type: ignore[call-overload]
    return str(schema.get("type", "see --json"))


def _default(schema: dict[str, object]) -> list[str]:
    return [f"(default {json.dumps(schema['default'])})"] if "default" in schema else []
