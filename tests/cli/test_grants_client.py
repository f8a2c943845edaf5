"""What the client sends of a grant: every term that is given, falsy ones too. The service refuses those."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest

from scrimp.client import Client

ANSWER = {"dataset_id": "ds_1", "key_id": "key_a", "key_name": "a", "key_role": "analyst", "access": "train"}
ANSWER |= {"created_at": "2026-01-01T00:00:00Z", "created_by": "key_b"}


@pytest.mark.parametrize(
    ("terms", "body"),
    [
        ({}, {"access": "train"}),
        ({"max_epsilon_per_job": 0.0, "purpose": ""}, {"access": "train", "max_epsilon_per_job": 0.0, "purpose": ""}),
        ({"persons": []}, {"access": "train", "persons": []}),
        ({"ends_at": date(2027, 1, 1)}, {"access": "train", "ends_at": "2027-01-01T00:00:00+00:00"}),
        ({"ends_at": datetime(2027, 1, 1, tzinfo=UTC)}, {"access": "train", "ends_at": "2027-01-01T00:00:00+00:00"}),
    ],
)
def test_a_term_is_left_out_only_where_none_is_given(
    terms: dict[str, Any], body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = []

    def kept(self: Client, method: str, path: str, **how: Any) -> Any:
        sent.append(how["json"])
        return ANSWER

    monkeypatch.setattr(Client, "json", kept)
    client = Client("http://127.0.0.1:9", "sk")
    client.set_grant("ds_1", "key_a", **terms)
    assert sent == [body]
