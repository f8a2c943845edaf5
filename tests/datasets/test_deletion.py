"""Content that was deleted is known by its keyed hash: registered again, it would be a second budget."""

from __future__ import annotations

from tests.datasets.conftest import Api, spec


def test_deleted_content_can_not_be_registered_anew(api: Api) -> None:
    made = api.upload(spec()).json()
    assert api.stored()
    gone = api.client.delete(f"/v1/datasets/{made['id']}/content", headers=api.headers("owner"))
    assert gone.status_code == 200, gone.text
    assert api.stored() == set()
    for who, name in (("owner", "again"), ("other-owner", "elsewhere")):
        again = api.upload(spec(name), who=who)
        assert (again.status_code, again.json()["type"]) == (409, "/problems/duplicate-content"), who
    ledger = api.get(f"/v1/datasets/{made['id']}/ledger").json()
    assert ledger["head"] == made["ledger"]["head"]
