"""docs/leaves.md names everything that a caller can see: each member of each answer, with its price or its reason."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, get_args

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.db.models import Certificate
from app.lifecycle.failures import TOLD
from app.web.openapi import kinds
from app.web.route_operation import Operation
from core.contracts.event_kinds import EventType
from core.leaves import REASONS
from scripts import write_leaves
from scripts.write_leaves import Undeclared, page, reasons
from tests.dashboard.scene import Everything, Scene
from worker.messages import WarningCode

Json = dict[str, Any]
Whole = tuple[Scene, Everything]
STUDY = {"failure:trial-failed", "certificate:study"}  # of searches, which the scene has none of
OTHERS = [name for reason in REASONS.values() for name in reason.others.split()]


def test_the_page_shows_what_is_declared(document: Json) -> None:
    """Claim: everything that a caller can see is listed with its price or reason
    Now: each member is named
    """
    text = write_leaves.PAGE.read_text()
    assert page(text, document) == text, "run `make openapi`"


def test_a_member_that_leaks_is_found(document: Json) -> None:
    planted = deepcopy(document)
    planted["components"]["schemas"]["JobView"]["properties"]["records_seen"] = {"type": "integer"}
    with pytest.raises(Undeclared, match=r"JobView\.records_seen declares no reason"):
        reasons(planted)


def test_an_answer_that_two_routes_explain_differently_is_found(document: Json) -> None:
    planted = deepcopy(document)
    shown = {"items": {"$ref": "#/components/schemas/WorkerView"}}
    planted["components"]["schemas"]["KeyView"]["properties"]["workers"] = shown
    with pytest.raises(Undeclared, match=r"WorkerView\.\* is shown as"):
        reasons(planted)


def test_a_route_that_declares_nothing_cannot_be_imported() -> None:
    with pytest.raises(TypeError, match="leaves"):
        Operation("The first record.", audience="view", no_command="a fault")  # type: ignore[call-arg]


def test_each_event_failure_warning_problem_header_and_metric_is_named(document: Json, client: TestClient) -> None:
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
    listed = {each for each in OTHERS if not each.startswith("certificate:")}
    assert wanted - listed - STUDY == set(), "not named in core/leaves.py"
    assert listed - wanted - {"header:Last-Modified"} == set(), "named there, and not to be seen"


def test_each_member_of_a_certificate_is_named(whole: Whole) -> None:
    with whole[0].db.read() as session:
        issued = session.scalars(select(Certificate)).all()
        wanted = {f"certificate:{name}" for each in issued for name in each.body["certificate"]}
    assert issued and wanted - set(OTHERS) == set(), "not named in core/leaves.py"


def test_nothing_is_named_twice() -> None:
    assert sorted(OTHERS) == sorted(set(OTHERS))
