"""Writes docs/openapi.json, and of docs/ the pages api, cli, errors, metrics and settings, and leaves' table: `make
openapi`. Tests compare them with the service's own document, errors, metrics, settings and commands."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from app.main import create_app
from app.secrets import ensure_secrets
from app.settings import Settings
from app.web.openapi import as_text
from app.web.route_operation import OPERATIONS
from scripts import write_cli, write_errors, write_leaves, write_metrics, write_settings

DOCS = Path(__file__).resolve().parents[1] / "docs"
HEAD = """# REST API

Every route, by subject. A running service shows the same with all schemas at `/docs`, and as OpenAPI 3.1 at
`/openapi.json`; [openapi.json](openapi.json) is the same file. [errors.md](errors.md) lists the errors.
`make openapi` writes this page.

*Who* may call a route: anyone, every key, a role's keys (*submitters*: all but viewers), or keys with that access to
the data set ([access.md](access.md)): `view`, `train` or `charge`, *use* (any but `view`), *own* (the data set's owner
and admins), *its owner* alone."""


def main() -> None:
    described = document()
    (DOCS / "openapi.json").write_text(as_text(described))
    (DOCS / "api.md").write_text(page(described))
    write_leaves.main(described)
    for writer in (write_settings, write_cli, write_errors, write_metrics):
        writer.main()
    print(f"wrote openapi.json and the pages api, leaves, settings, cli, errors and metrics of {DOCS}")


def document() -> dict[str, Any]:
    """The service's description of itself, its members in the order of their declaration."""
    with tempfile.TemporaryDirectory() as home:
        settings = Settings(home=Path(home))
        ensure_secrets(settings)
        return create_app(settings).openapi()


def page(document: dict[str, Any]) -> str:
    """docs/api.md: a table of each tag's operations with the first paragraph of their descriptions."""
    by_tag: dict[str, list[str]] = {}
    for path, operations in sorted(document["paths"].items()):
        for method, operation in sorted(operations.items()):
            said = (operation.get("description") or operation["summary"]).split("\n\n")[0].replace("\n", " ")
            audience = OPERATIONS[operation["operationId"]].audience
            by_tag.setdefault(operation["tags"][0], []).append(f"| `{method.upper()} {path}` | {audience} | {said} |")
    parts = [HEAD]
    for tag, rows in sorted(by_tag.items()):
        parts += [f"\n## {tag.capitalize()}\n\n| route | who | what it does |\n|---|---|---|", *rows]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
