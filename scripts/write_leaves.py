"""Writes docs/leaves.md's table of all that a caller can see, from what routes, classes and members declare
(`core.leaves`): `make openapi`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app.web.route_operation import OPERATIONS
from core.leaves import KEY, REASONS

Json = dict[str, Any]
PAGE = Path(__file__).resolve().parents[1] / "docs" / "leaves.md"
HEAD = "| what | price, or why it is free |\n|---|---|\n"


class Undeclared(Exception):
    """A member of an answer that declares no reason, or a class of which routes declare different ones."""


def main(document: Json) -> None:
    PAGE.write_text(page(PAGE.read_text(), document))


def page(text: str, document: Json) -> str:
    """docs/leaves.md with the document's table."""
    before, _, rest = text.partition(HEAD)
    return before + HEAD + table(document) + rest[rest.index("\n\n") + 1 :]


def table(document: Json) -> str:
    """One row for each reason."""
    seen = reasons(document)
    rows = []
    for name, each in REASONS.items():
        shown = sorted(member for member, reason in seen.items() if reason == name) + each.others.split()
        rows.append(f"| {' '.join(f'`{member}`' for member in shown)} | {each.reason} |\n")
    return "".join(rows)


def reasons(document: Json) -> dict[str, str]:
    """The reason for each member of each answer: `Quote.steps`, or `KeyView.*` for all members of a class.

    Raises:
        Undeclared: there is none, or there are two.
    """
    schemas = document["components"]["schemas"]
    found: dict[str, str] = {}
    waiting = [("Finding", "")]
    for methods in document["paths"].values():
        for operation in methods.values():
            reason = OPERATIONS[operation["operationId"]].leaves.name
            for status, answer in operation["responses"].items():
                if status.startswith("2"):
                    waiting += [(name, reason) for name in _references(answer.get("content", {}))]
    while waiting:
        name, inherited = waiting.pop()
        members = schemas[name].get("properties", {})
        if any(KEY in member for member in members.values()):
            # Where a class declares the member's reason, too, pydantic leaves it out of the member.
            own = {member: ({KEY: ""} | _target(schema, schemas) | schema)[KEY] for member, schema in members.items()}
            shown = {f"{name}.{member}": reason for member, reason in own.items()}
            inside = [(each, own[member]) for member, schema in members.items() for each in _references(schema)]
        else:
            reason = schemas[name].get(KEY, inherited)
            shown = {f"{name}.*": reason}
            inside = [(each, reason) for each in _references(schemas[name])]
        for member, reason in shown.items():
            if not reason:
                raise Undeclared(f"{member} declares no reason")
            if found.get(member, reason) != reason:
                raise Undeclared(f"{member} is shown as {reason!r} and {found[member]!r}: its class is to declare one")
        if shown.items() - found.items():
            found |= shown
            waiting += inside
    return found


def _target(schema: Json, schemas: Json) -> Json:
    """The schema of the class that a member is of."""
    return dict(schemas[schema["$ref"].rpartition("/")[2]]) if "$ref" in schema else {}


def _references(node: Any) -> Iterator[str]:
    """The names of the schemas that are used in a part of the document."""
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"].rpartition("/")[2]
        for each in node.values():
            yield from _references(each)
    elif isinstance(node, list):
        for each in node:
            yield from _references(each)
