"""A check says what a registration would, to its owner, and stores nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import func, select

from app.db.models import AuditEntry, Base
from core.contracts.slots import rounded
from tests.datasets.conftest import CSV, Api, private, spec


def check(api: Api, document: dict[str, Any], file: str | None = CSV, who: str = "owner") -> Any:
    parts: dict[str, Any] = {"spec": (None, json.dumps(document), "application/json")}
    if file is not None:
        parts["file"] = ("file", file)
    return api.client.post("/v1/datasets/check", files=parts, headers=api.headers(who))


def rows(api: Api) -> dict[str, int]:
    """How many rows each table has, audit entries of refusals apart."""
    with api.db.read() as session:
        counts = {
            table.name: session.scalar(select(func.count()).select_from(table)) for table in Base.metadata.sorted_tables
        }
        refused = session.scalar(select(func.count()).where(AuditEntry.outcome != "done"))
    return {name: (found or 0) - (refused or 0 if name == "audit_entries" else 0) for name, found in counts.items()}


def test_what_was_read_is_told_and_nothing_is_stored(api: Api) -> None:
    before = rows(api)
    found = check(api, spec(**private(records=50)))
    assert found.status_code == 200, found.text
    answer = found.json()
    assert {name: answer["read"][name] for name in ("records", "dropped", "units")} == {
        "records": 60,
        "dropped": 0,
        "units": 60,
    }
    assert answer["shape"]["records_train"] == 40 and answer["suggested_records"] == 60
    assert "the file holds 60 records; you declared 50" in answer["warnings"][0]
    assert rows(api) == before and api.stored() == set()
    assert list((api.settings.storage_root / "staging").iterdir()) == []


def test_it_warns_where_a_registration_would_be_refused(api: Api) -> None:
    made = api.upload(spec()).json()
    warnings = check(api, spec()).json()["warnings"]
    assert [each.partition(":")[0] for each in warnings] == ["a registration would be refused"] * 2
    assert "small" in warnings[0] and "second budget" in warnings[1]
    elsewhere = check(api, spec("other"), who="other-owner").json()
    assert elsewhere["warnings"] == [], "what others have is told to nobody"
    assert api.get("/v1/datasets").json()["items"][0]["id"] == made["id"]


def test_it_refuses_what_a_registration_refuses(api: Api) -> None:
    wrong = check(api, spec(), CSV.replace("59,", "x,"))
    assert (wrong.status_code, wrong.json()["errors"][0]["pointer"]) == (422, "/features/columns/0")
    assert check(api, spec(), None).json()["errors"][0]["pointer"] == "/file"
    assert check(api, spec(), who="analyst").status_code == 403


@pytest.mark.parametrize(("declared", "said"), [(61, "exact"), (60, ""), (70, "61 records; you declared 70")])
def test_the_number_of_records_is_compared_with_the_declared_one(api: Api, declared: int, said: str) -> None:
    file = CSV + "99,1,1\n"
    warnings = check(api, spec(**private(records=declared)), file).json()["warnings"]
    assert said in " ".join(warnings) if said else warnings == []


def test_suggested_numbers_are_rounded() -> None:
    found = {n: rounded(n) for n in (1, 64, 100, 943, 999, 24_873, 25_000, 104_999)}
    assert list(found.values()) == [10, 60, 100, 940, 1000, 25_000, 25_000, 100_000]


def test_it_says_what_jobs_read_as_where_the_order_was_chosen_by_default(api: Api) -> None:
    """An owner with a cap of 12 learns before the registration what one job of ε = 8 takes of it."""
    rdp = {"filter": "rdp", "cap": {"epsilon": 12.0, "delta": 1e-5}}
    (told,) = check(api, spec(**private(**rdp, records=60))).json()["warnings"]
    assert "α = " in told and "ε = 1 as " in told and "8 as " in told and "`typical_job`" in told
    typical = {"epsilon": 8.0, "expected_batch_size": 20, "epochs": 3.0}
    for named in ({"order": 3.0}, {"typical_job": typical}):
        assert check(api, spec(**private(**rdp, records=60, **named))).json()["warnings"] == []
