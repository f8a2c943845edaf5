"""Content that two owners have: no owner is told by any answer, admins are by the audit log."""

from __future__ import annotations

from sqlalchemy import event

from app.audit import same_content
from app.keys.recent import STAMP
from tests.datasets.conftest import CSV, PUBLIC, Api, spec
from tests.datasets.test_refusals import DIFFERENT, OTHER, REORDERED


def test_another_owner_is_told_nothing(api: Api) -> None:
    """Or else whoever has an owner's key could test guesses at what others have registered.

    Claim: no owner learns of another's private content
    Now: text and answer alike; flagged for admins
    """
    one = api.upload(spec("one")).json()
    two = api.upload(spec("two"), REORDERED, who="other-owner")
    new = api.upload(spec("three"), DIFFERENT, who="other-owner")
    assert (two.status_code, new.status_code) == (201, 201)
    said, usual = two.json(), new.json()
    own = ("id", "name", "content_hmac", "content_sha256", "created_at", "ledger")
    assert set(said) == set(usual)
    assert [name for name in said if said[name] != usual[name] and name not in (*own, "read")] == []
    assert said["ledger"] != one["ledger"], "a ledger of its own, from its own first entry"
    again = api.upload(spec("four"), CSV, who="other-owner")
    assert (again.status_code, again.json()["dataset"]) == (409, said["id"]), "its own, and no other's"
    as_holdout = api.upload(spec("five", holdout={"kind": "public"}), OTHER, holdout_file=DIFFERENT)
    assert as_holdout.status_code == 201


def test_the_hash_that_is_shown_is_of_one_registration(api: Api) -> None:
    """Who registers a guess could else compare it with the hash on another's certificate."""
    hashes = [api.upload(spec(who), CSV, who=who).json()["content_hmac"] for who in ("owner", "other-owner")]
    assert hashes[0] != hashes[1]


def test_what_a_registration_does_is_the_same_whatever_others_have(api: Api) -> None:
    """Neither text nor time tells: the same statements, each on rows of this owner alone."""
    statements: list[str] = []
    engine = api.client.app.state.db.engine  # type: ignore[attr-defined]
    event.listen(engine, "before_cursor_execute", lambda *told: statements.append(told[2]))
    ran = []
    for number, text in enumerate((CSV, DIFFERENT)):
        if number == 0:
            api.upload(spec("of the other"), CSV)
        STAMP.renew()  # the key is looked up each time
        statements.clear()
        assert api.upload(spec(f"n{number}"), text, who="other-owner").status_code == 201
        ran.append(list(statements))
    assert ran[0] == ran[1]
    # Apart from the one that asks if a rotation of the data key is under way.
    looked = [each for each in ran[0] if "FROM dataset_contents" in each and "key_id != ?" not in each]
    assert looked and all("owner_key = ?" in each for each in looked)


def test_the_relay_flags_it_to_admins(api: Api) -> None:
    one = api.upload(spec("one")).json()["id"]
    two = api.upload(spec("two"), REORDERED, who="other-owner").json()["id"]
    api.upload(spec("three"), DIFFERENT, who="other-owner")
    assert flagged(api) == []
    assert same_content.flag(api.db) == 1
    assert same_content.flag(api.db) == 0, "once"
    assert flagged(api) == [(two, one)]
    four = api.upload(spec("four"), who="admin").json()["id"]
    same_content.flag(api.db)
    assert set(flagged(api)) == {(two, one), (four, one), (four, two)}


def test_public_content_of_two_owners_is_nobodys_business(api: Api) -> None:
    for who in ("owner", "other-owner"):
        assert api.upload(spec(who, **PUBLIC), who=who).status_code == 201
    assert same_content.flag(api.db) == 0
    private = api.upload(spec("private"), who="admin").json()["id"]
    assert same_content.flag(api.db) == 2
    assert {newer for newer, _older in flagged(api)} == {private}


def flagged(api: Api) -> list[tuple[str, str]]:
    """(the newer, the older) of each pair, as the audit log has them."""
    assert api.get("/v1/audit", "owner").status_code == 403
    found = api.get("/v1/audit?action=dataset.same_content", "admin").json()["items"]
    return [(each["target"], each["details"]["dataset"]) for each in found]
