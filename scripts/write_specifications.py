"""Writes docs/specifications.md from the schemas of the documents that callers send: `make openapi`. Tests compare the
page with the schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scripts import write_specs

Schema = dict[str, Any]
PAGE = Path(__file__).resolve().parents[1] / "docs" / "specifications.md"
HEAD = """# Specifications

Every member of the documents that owners and analysts send, with its bounds and its default; a member without a default
must be there. Where a member may be of several classes, its `kind` (a study's `strategy`) says which. `scrimp.specs`
has the same classes in [Python](python.md). `make openapi` writes this page.
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
    return text


def described(name: str, schema: Schema) -> str:
    """A class: its kind, its text, and its members."""
    members, required = schema.get("properties", {}), schema.get("required", ())
    kinds = [f"`{members[name]['const']}`. " for name in NAMED_BY if "const" in members.get(name, {})]
    text = escaped("\n".join(line.strip() for line in schema["description"].splitlines()))
    rows = "".join(
        f"| `{member}` | {escaped(value(each))} | {'' if member in required else default(each)} |\n"
        for member, each in members.items()
        if member not in NAMED_BY or "const" not in each
    )
    return f"\n### {name}\n\n{''.join(kinds)}{text}\n" + (TABLE + rows if rows else "")


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
    kind = f"{schema['type']} of ({', '.join(map(value, inside))})" if inside else schema["type"]
    bounds = [f"{sign}{schema[key]:g}" for key, sign in (LEAST | MOST).items() if key in schema]
    bounds = [bound for bound in bounds if bound != "length ≥ 1" and "prefixItems" not in schema]
    return " ".join([kind, ", ".join(bounds)]).strip()


def default(schema: Schema) -> str:
    """A member's default as it is written in JSON; of one that admission chooses, so."""
    if "default" not in schema:
        return "chosen"
    text = json.dumps(schema["default"], ensure_ascii=False).replace("|", "\\|")
    return f"`` {text} ``" if "`" in text else f"`{text}`"


if __name__ == "__main__":
    main()
