"""docs/privacy.md names everything that a caller can see: each member of each answer, with its price or its reason."""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, get_args

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.db.models import Certificate
from app.lifecycle.failures import TOLD
from app.web.openapi import kinds
from core.contracts.events import EventType
from tests.dashboard.scene import Everything, Scene
from worker.messages import WarningCode

Json = dict[str, Any]
Whole = tuple[Scene, Everything]
PAGE = Path(__file__).parents[2] / "docs" / "privacy.md"
HEADING = "## Everything that a caller can see"
# What is made of a job or a data set: each member is named, so that a new one has to be thought about.
BY_MEMBER = {
    "JobView",
    "Progress",
    "AttemptView",
    "MetricView",
    "ArtifactView",
    "EventView",
    "TrialView",
    "StudyView",
    "ReleasedScore",
    "Quote",
    "DatasetView",
    "RegisteredDataset",
    "AccountView",
    "LedgerView",
    "EntryView",
}
STUDY = {"failure:trial-failed", "certificate:study"}  # of searches, which the scene has none of


@pytest.fixture(scope="module")
def named() -> list[str]:
    """What the list names, row by row."""
    section = PAGE.read_text().split(HEADING)[1].split("\n## ")[0]
    rows = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def answered(document: Json) -> dict[str, set[str]]:
    """The members of every schema that an answer holds, however deep; problems apart."""
    schemas, found = document["components"]["schemas"], {}
    answers = [
        content.get("schema", {})
        for methods in document["paths"].values()
        for operation in methods.values()
        for status, answer in operation["responses"].items()
        if status.startswith("2")
        for content in answer.get("content", {}).values()
    ]
    waiting = {name for answer in answers for name in references(answer)} | {"Finding"}
    while waiting:
        name = waiting.pop()
        found[name] = set(schemas[name].get("properties", {}))
        waiting |= set(references(schemas[name])) - set(found)
    return found


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"].rpartition("/")[2]
        for each in node.values():
            yield from references(each)
    elif isinstance(node, list):
        for each in node:
            yield from references(each)


def members(document: Json) -> set[str]:
    """What docs/privacy.md is to name of the answers."""
    schemas = answered(document)
    # The answer to a registration is a data set's, and what only its owner is told.
    schemas["RegisteredDataset"] -= schemas["DatasetView"]
    return {
        each
        for name, members in schemas.items()
        for each in ({f"{name}.{member}" for member in members} if name in BY_MEMBER else {f"{name}.*"})
    }


def test_each_member_of_each_answer_is_named(named: list[str], document: Json) -> None:
    wanted, listed = members(document), {each for each in named if "." in each}
    assert wanted - listed == set(), "not named in docs/privacy.md"
    assert listed - wanted == set(), "named there, and not to be seen"


def test_a_member_that_leaks_and_an_answer_without_a_row_are_found(named: list[str], document: Json) -> None:
    planted = deepcopy(document)
    schemas = planted["components"]["schemas"]
    schemas["JobView"]["properties"]["records_seen"] = {"type": "integer"}
    schemas["Progress"]["properties"]["peek"] = {"$ref": "#/components/schemas/Peek"}
    schemas["Peek"] = {"type": "object", "properties": {"first_record": {"type": "string"}}}
    assert members(planted) - set(named) == {"JobView.records_seen", "Progress.peek", "Peek.*"}


def test_each_event_failure_warning_problem_header_and_metric_is_named(
    named: list[str], document: Json, client: TestClient
) -> None:
    wanted = {f"event:{each}" for each in get_args(EventType)} | STUDY
    wanted |= {f"failure:{each}" for each in (*TOLD, "internal")}
    wanted |= {f"warning:{each}" for each in get_args(WarningCode)}
    wanted |= {f"problem:{each}" for each in kinds()}
    wanted |= {
        f"header:{header}"
        for methods in document["paths"].values()
        for operation in methods.values()
        for answer in operation["responses"].values()
        for header in answer.get("headers", {})
    }
    wanted |= {f"metric:{family.name}" for family in client.app.state.registry.collect()}  # type: ignore[attr-defined]
    listed = {each for each in named if ":" in each and not each.startswith("certificate:")}
    assert wanted - listed - STUDY == set(), "not named in docs/privacy.md"
    assert listed - wanted - {"header:Last-Modified"} == set(), "named there, and not to be seen"


def test_each_member_of_a_certificate_is_named(named: list[str], whole: Whole) -> None:
    with whole[0].db.read() as session:
        issued = session.scalars(select(Certificate)).all()
        wanted = {f"certificate:{name}" for each in issued for name in each.body["certificate"]}
    assert issued and wanted - set(named) == set(), "not named in docs/privacy.md"


def test_nothing_is_named_twice(named: list[str]) -> None:
    assert sorted(named) == sorted(set(named))
