"""Writes docs/specifications.md from the schemas of the documents that callers send: `make openapi`. Tests compare the
page with the schemas."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from scripts import write_specs

Schema = dict[str, Any]
DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "specifications.md"
HEAD = """# Specifications

Every member of the documents that callers send, with its bounds and its default; a member without a default must be
there. Where a member may be of several classes, its `kind` (a study's `strategy`) says which. `scrimp.specs` has the
classes of data sets and jobs in [Python](python.md). `make openapi` writes this page.
"""
# Each part of the client's classes, its title, and the class that comes first.
PARTS = {
    "datasets": ("A data set", "DatasetSpec"),
    "jobs": ("A job", "JobSpec"),
    "models": ("Models", "LinearModel"),
    "optimizers": ("Optimizers", "DpSgd"),
    "studies": ("Studies", "LinearScaling"),
}
TABLE = "\n| member | value | default |\n|---|---|---|\n"
ATTRIBUTE = re.compile(r"^ {4}(\w+(?:, \w+)*):")
WAYS = ("DatasetSpecByPath", "DatasetSpecByUpload")  # a DatasetSpec, by its way
NAMED_BY = ("kind", "strategy")
LEAST = {"minimum": "≥ ", "exclusiveMinimum": "> ", "minLength": "length ≥ ", "minItems": "length ≥ "}
MOST = {"maximum": "≤ ", "exclusiveMaximum": "< ", "maxLength": "length ≤ ", "maxItems": "length ≤ "}


def main() -> None:
    PAGE.write_text(page())


def page() -> str:
    """The classes by part, each with its text and its members."""
    schemas, home = write_specs.schemas()
    text = HEAD
    for part, (title, first) in PARTS.items():
        names = sorted(
            (name for name in home if home[name] == part), key=lambda name, first=first: (name != first, name)
        )
        text += f"\n## {title}\n" + "".join(described(name, schemas[name]) for name in names)
    sent = requests(json.loads((DOCS / "openapi.json").read_text()), schemas)
    return text + "\n## Other requests\n" + "".join(described(name, sent[name]) for name in sorted(sent))


def requests(document: Schema, known: dict[str, Schema]) -> dict[str, Schema]:
    """The schemas of all requests' bodies in an OpenAPI document, but for those that are known."""
    schemas = document["components"]["schemas"]
    bodies = [operation.get("requestBody", {}) for path in document["paths"].values() for operation in path.values()]
    names, waiting = set[str](), write_specs.references(bodies)
    while waiting:
        names |= waiting
        waiting = write_specs.references([schemas[name] for name in waiting]) - names
    return {name: schemas[name] for name in names - {*known, *WAYS} if "properties" in schemas[name]}


def described(name: str, schema: Schema) -> str:
    """A class: its kind, its text, and its members."""
    members, required = schema.get("properties", {}), schema.get("required", ())
    kinds = [f"`{members[name]['const']}`. " for name in NAMED_BY if "const" in members.get(name, {})]
    rows = "".join(
        f"| `{member}` | {escaped(value(each))} | {'' if member in required else default(each)} |\n"
        for member, each in members.items()
        if member not in NAMED_BY or "const" not in each
    )
    text = says(schema["description"])
    return f"\n### {name}\n\n{''.join(kinds)}{text}\n" + (TABLE + rows if rows else "")


def says(docstring: str) -> str:
    """A class's text: without examples, its attributes as a list."""
    text, _, attributes = docstring.partition(">>>")[0].partition("Attributes:\n")
    lines = [line.strip() for line in text.strip().splitlines()]
    if attributes:
        lines += ["", *(ATTRIBUTE.sub(r"* `\1`:", line).strip() for line in attributes.rstrip().splitlines())]
    return escaped("\n".join(lines))


def escaped(text: str) -> str:
    """A text as a page shows it."""
    return text.replace("<", "&lt;").replace("|", "\\|")


def value(schema: Schema) -> str:
    """What a member may be."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    options = schema.get("oneOf") or schema.get("anyOf")
    if options:
        return " or ".join(value(each) for each in options)
    if "const" in schema or "enum" in schema:
        return " or ".join(f"`{each}`" for each in schema.get("enum") or [schema["const"]])
    inside = schema.get("prefixItems") or [schema[key] for key in ("items",) if key in schema]
    inside += list(schema.get("patternProperties", {}).values())
    kind = f"{schema['type']} of ({', '.join(map(value, inside))})" if inside else schema.get("type", "any")
    bounds = [f"{sign}{schema[key]:g}" for key, sign in (LEAST | MOST).items() if key in schema]
    bounds = [bound for bound in bounds if bound != "length ≥ 1" and "prefixItems" not in schema]
    return " ".join([kind, ", ".join(bounds)]).strip()


def default(schema: Schema) -> str:
    """A member's default as it is written in JSON; of one that admission chooses, so."""
    if "default" not in schema:
        return "left out" if {"type": "null"} in schema.get("anyOf", ()) else "chosen"
    text = json.dumps(schema["default"], ensure_ascii=False).replace("|", "\\|")
    return f"`` {text} ``" if "`" in text else f"`{text}`"


if __name__ == "__main__":
    main()
