"""What the client sends of a grant: every term that is given, falsy ones too, which the service refuses."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Any

import pytest

from scrimp.client import Client
from scrimp.errors import InvalidRequest
from scrimp.models import Grant
from tests.cli.conftest import Cli

REFUSED: dict[str, Any] = {"max_epsilon_per_job": 0.0, "purpose": "", "permit": "", "ends_at": ""}


@pytest.fixture(scope="module")
def client(cli: Cli) -> Iterator[Client]:
    with Client(cli.url, cli.key) as client:
        yield client


@pytest.fixture(scope="module")
def holder(client: Client) -> str:
    return client.create_key("terms", "analyst").key.id


@pytest.mark.parametrize("name", REFUSED)
def test_a_falsy_term_is_refused_and_is_no_unlimited_grant(
    client: Client, dataset: str, holder: str, name: str
) -> None:
    client.set_grant(dataset, holder, max_epsilon_per_job=0.25)
    with pytest.raises(InvalidRequest) as refused:
        client.set_grant(dataset, holder, **{name: REFUSED[name]})
    assert [each["pointer"] for each in refused.value.errors] == [f"/{name}"]
    assert _granted(client, dataset, holder).max_epsilon_per_job == 0.25, "the earlier grant stays"


@pytest.mark.parametrize(
    "ends_at", [date(2099, 1, 1), datetime(2099, 1, 1, tzinfo=UTC), "2099-01-01T00:00:00Z", "2099-01-01"]
)
def test_terms_that_are_left_out_are_none(client: Client, dataset: str, holder: str, ends_at: Any) -> None:
    client.set_grant(dataset, holder, max_epsilon_per_job=0.25, permit="17/2026", persons=["A. Analyst"])
    made = client.set_grant(dataset, holder, ends_at=ends_at, persons=[])
    assert made.replaced is not None and made.replaced.persons == ["A. Analyst"]
    assert (made.replaced.max_epsilon_per_job, made.replaced.permit) == (0.25, "17/2026")
    found = _granted(client, dataset, holder)
    assert (found.max_epsilon_per_job, found.permit, found.persons) == (None, None, [])
    assert found.ends_at is not None and datetime.fromisoformat(found.ends_at) == datetime(2099, 1, 1, tzinfo=UTC)


def _granted(client: Client, dataset: str, holder: str) -> Grant:
    return next(each for each in client.grants(dataset) if each.key_id == holder)
