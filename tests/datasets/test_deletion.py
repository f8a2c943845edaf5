"""Content that was deleted is known by its keyed hash: registered again, it would be a second budget."""

from __future__ import annotations

from tests.datasets.conftest import Api, spec


def test_deleted_content_can_not_be_registered_anew(api: Api) -> None:
    made = api.upload(spec()).json()
    assert api.stored()
    gone = api.client.delete(f"/v1/datasets/{made['id']}/content", headers=api.headers("owner"))
    assert gone.status_code == 200, gone.text
    assert api.stored() == set()
    again = api.upload(spec("again"))
    assert (again.status_code, again.json()["type"]) == (409, "/problems/duplicate-content")
    # What others have is told to nobody who registers (decision record 15): admins are.
    assert api.upload(spec("elsewhere"), who="other-owner").status_code == 201
    ledger = api.get(f"/v1/datasets/{made['id']}/ledger").json()
    assert ledger["head"] == made["ledger"]["head"]
