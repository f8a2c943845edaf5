"""What may import what: the floors of pyproject.toml, and for each room the rooms of app that it may see."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grimp

ROOT = Path(__file__).resolve().parents[2]
GROUND = {"chain", "folder", "logs", "progress", "repeat", "sandbox", "secrets", "settings", "storage", "tracing"}

# Allow-lists: rooms of app that each room may import. A new arrow is a decision: add it here, or move the file.
# That the engine's rooms and `core` see no room of app stands in pyproject.toml.
ALLOWED: dict[str, set[str]] = {
    "app.hpo": set(),
    "app.formats": {"progress"},
    "app.db": {"settings"},
    "app.ledger": {"audit", "db", "grants", "hpo", "keys", "web"} | GROUND,
    "app.storage": {"formats"} | GROUND,
    "app.sandbox": {"progress"},
    "worker.attempt": {"catalogue", "db", "ledger", "lifecycle"} | GROUND,  # catalogue: where an uploaded graph lies
    "worker.tasks": {"db", "ledger", "lifecycle", "logs", "predictions", "repeat", "settings", "storage", "tracing"},
    "worker.celery_app": {"lifecycle", "logs", "settings", "tracing"},
    "worker.predicting": {"catalogue", "db", "predictions", "settings", "storage"},
}


def graph() -> grimp.ImportGraph:
    """Every import in the code, and of other packages."""
    return grimp.build_graph(
        "app", "core", "worker", "scrimp", "scrimp_server", include_external_packages=True, cache_dir=None
    )


def broken(found: grimp.ImportGraph) -> list[str]:
    """The walls that do not hold, in words."""
    return _floors(found) + _forbidden(found) + _beyond_allowed(found)


def _contracts(kind: str) -> list[dict[str, Any]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    return [each for each in settings["contracts"] if each["type"] == kind]


def _floors(found: grimp.ImportGraph) -> list[str]:
    said = []
    for contract in _contracts("layers"):
        layers = [grimp.Layer(*layer.split(" : "), independent=False) for layer in contract["layers"]]
        illegal = found.find_illegal_dependencies_for_layers(layers=layers)
        said += [f"{contract['name']}: {each.importer} sees {each.imported}" for each in illegal]
    return said


def _forbidden(found: grimp.ImportGraph) -> list[str]:
    said = []
    for contract in _contracts("forbidden"):
        with _without(found, contract.get("ignore_imports", [])):
            for source in contract["source_modules"]:
                for target in contract["forbidden_modules"]:
                    if target in found.modules and found.find_shortest_chain(source, target, as_packages=True):
                        said.append(f"{contract['name']}: {source} sees {target}")
    return said


@contextmanager
def _without(found: grimp.ImportGraph, patterns: list[str]) -> Iterator[None]:
    """The graph without the imports that a contract leaves out."""
    left_out = [each for pattern in patterns for each in found.find_matching_direct_imports(pattern)]
    for each in left_out:
        found.remove_import(importer=each["importer"], imported=each["imported"])
    yield
    for each in left_out:
        found.add_import(importer=each["importer"], imported=each["imported"])


def _beyond_allowed(found: grimp.ImportGraph) -> list[str]:
    said = []
    for importer in found.modules:
        room = ".".join(importer.split(".")[:2])
        for imported in found.find_modules_directly_imported_by(importer) if room in ALLOWED else ():
            seen = imported.split(".")
            if seen[0] == "app" and len(seen) > 1 and f"app.{seen[1]}" != room and seen[1] not in ALLOWED[room]:
                said.append(f"{room} may not see app.{seen[1]}: {importer} imports {imported}")
    return said
