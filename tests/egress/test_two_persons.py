"""Two persons for a larger cap, an egress and other persons: on both databases, and at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from app.approvals.service import named
from app.db.models import Account, Agreement, ApiKey, Approval, AuditEntry, Dataset, DatasetPerson
from app.ledger.transparency.heads import Heads, NamedPersons
from app.settings import Settings
from core.ids import now
from tests.conftest import BACKINGS
from tests.dashboard.scene import Key
from tests.egress.conftest import World


@pytest.fixture(params=BACKINGS)
def backing(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Persons(World):
    """Ada holds two keys, Ben one; Olga, who owns the data set, is Ada too."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.ada, self.second_key, self.ben = self.scene.owner, self.scene.key("owner"), self.scene.key("admin")
        self.path = f"/v1/datasets/{self.dataset}"

    def name(self, persons: dict[str, list[Key]], by: Key | None = None) -> Any:
        body = {"persons": {person: [key.id for key in keys] for person, keys in persons.items()}}
        return self.call("PUT", f"{self.path}/persons", by, json=body)

    def name_both(self) -> None:
        assert self.name({"Ada": [self.ada, self.second_key], "Ben": [self.ben]}).status_code == 200

    def cap(self, epsilon: float, by: Key | None = None) -> Any:
        body = {"epsilon": epsilon, "reason": "a second year"}
        return self.call("POST", f"{self.path}/ledger/cap", by, json=body, headers={"If-Match": "*"})

    def agree(self, approval: str, by: Key) -> Any:
        return self.call("POST", f"/v1/approvals/{approval}/agree", by)

    def cap_now(self) -> float:
        with self.db.read() as session:
            return session.get_one(Account, self.dataset).cap_epsilon

    def told(self, target: str) -> list[tuple[str, str | None]]:
        with self.db.read() as session:
            rows = select(AuditEntry).where(AuditEntry.target == target).order_by(AuditEntry.id)
            return [(each.action, each.actor) for each in session.scalars(rows) if each.outcome == "done"]


@pytest.fixture
def world(settings: Settings) -> Iterator[Persons]:
    made = Persons(settings)
    yield made
    made.close()


def test_a_raise_takes_effect_with_the_second_person_s_word(world: Persons) -> None:
    assert world.cap(4.5).status_code == 200, "without persons one is enough"
    world.name_both()
    waiting = world.cap(6.0)
    assert waiting.status_code == 202 and waiting.headers["Location"].endswith(waiting.json()["id"])
    approval = waiting.json()
    assert [each["person"] for each in approval["agreements"]] == ["Ada"] and world.cap_now() == 4.5
    again = world.agree(approval["id"], world.second_key)
    assert (again.status_code, again.json()["detail"]) == (409, "Ada has agreed already: another person must agree")
    assert world.agree(approval["id"], world.scene.admin).status_code == 403, "an admin who is no person of theirs"
    assert world.agree(approval["id"], world.scene.analyst).status_code == 404 and world.cap_now() == 4.5
    agreed = world.agree(approval["id"], world.ben)
    assert agreed.status_code == 200 and agreed.json()["status"] == "agreed" and world.cap_now() == 6.0
    assert world.agree(approval["id"], world.ben).json()["type"] == "/problems/wrong-state"
    assert world.told(approval["id"]) == [("approval.asked", world.ada.id), ("approval.agreed", world.ben.id)]
    assert world.told(world.dataset)[-1] == ("dataset.cap_changed", world.ben.id)


def test_a_lower_cap_needs_one_person_and_a_raise_of_another_cap_is_void(world: Persons) -> None:
    world.name_both()
    approval = world.cap(6.0).json()["id"]
    assert world.cap(3.0).status_code == 200
    assert world.agree(approval, world.ben).json()["type"] == "/problems/wrong-state"
    assert world.cap_now() == 3.0
    shown = world.call("GET", f"/v1/approvals/{approval}").json()
    assert (shown["status"], len(shown["agreements"])) == ("open", 1), "the refusal left nothing"
    assert world.call("POST", f"/v1/approvals/{approval}/deny", world.ben).json()["status"] == "denied"


def test_a_raise_that_cannot_be_is_refused_when_it_is_asked_for(world: Persons) -> None:
    world.name_both()
    assert world.cap(1e9).status_code == 422
    assert world.call("GET", "/v1/approvals").json()["items"] == []


def test_the_same_person_s_two_keys_at_once_do_not_raise_it(world: Persons) -> None:
    """An admin who is no person asks: nobody has agreed yet."""
    world.name_both()
    for _ in range(3):
        approval = world.cap(6.0, world.scene.admin).json()["id"]
        with ThreadPoolExecutor(4) as threads:
            keys = [world.ada, world.second_key, world.ada, world.second_key]
            codes = list(threads.map(lambda key: world.agree(approval, key).status_code, keys))  # noqa: B023
        assert sorted(codes) == [200, 409, 409, 409] and world.cap_now() == 4.0


def test_two_persons_at_once_raise_it_once(world: Persons) -> None:
    world.name_both()
    approval = world.cap(6.0, world.scene.admin).json()["id"]
    with ThreadPoolExecutor(4) as threads:
        keys = [world.ada, world.ben, world.second_key, world.ben]
        codes = list(threads.map(lambda key: world.agree(approval, key).status_code, keys))
    assert sorted(codes) == [200, 200, 409, 409] and world.cap_now() == 6.0
    assert [action for action, _ in world.told(world.dataset)].count("dataset.cap_changed") == 1
    with world.db.read() as session:
        words = session.scalars(select(Agreement.person).where(Agreement.approval_id == approval)).all()
    assert sorted(words) == ["Ada", "Ben"]


def test_two_raises_at_once_of_one_cap_take_effect_once(world: Persons) -> None:
    world.name_both()
    asked = [world.cap(epsilon).json()["id"] for epsilon in (6.0, 7.0)]
    with ThreadPoolExecutor(2) as threads:
        codes = list(threads.map(lambda each: world.agree(each, world.ben).status_code, asked))
    assert sorted(codes) == [200, 409] and world.cap_now() in (6.0, 7.0)


def test_other_persons_need_two_and_end_what_was_asked(world: Persons) -> None:
    world.name_both()
    raised = world.cap(6.0).json()["id"]
    alone = world.name({})
    assert alone.status_code == 202
    assert world.call("GET", f"{world.path}/persons").json()["persons"]["Ben"] == [world.ben.id]
    assert world.agree(alone.json()["id"], world.ben).json()["status"] == "agreed"
    assert world.call("GET", f"{world.path}/persons").json() == {"persons": {}}
    assert world.call("GET", f"/v1/approvals/{raised}").json()["status"] == "denied"
    assert world.cap(6.0).status_code == 200


@pytest.mark.parametrize(
    ("persons", "why"),
    [
        ({"Ada": ["ada"]}, "at least two persons"),
        ({"Ada": ["ada"], "Ben": ["ada"]}, "listed twice"),
        ({"Ada": ["ada"], "Ben": ["analyst"]}, "has the role analyst"),
        ({"Ada": ["ada"], "Ben": []}, "at least 1"),
    ],
)
def test_persons_that_cannot_decide_are_refused(world: Persons, persons: dict[str, list[str]], why: str) -> None:
    keys = {"ada": world.ada, "analyst": world.scene.analyst}
    answer = world.name({person: [keys[each] for each in names] for person, names in persons.items()})
    assert answer.status_code == 422 and why in answer.text
    unknown = world.call("PUT", f"{world.path}/persons", json={"persons": {"A": ["key_a"], "B": ["key_b"]}})
    assert unknown.status_code == 422 and "there is no key key_a" in unknown.text


def test_an_approval_expires(world: Persons) -> None:
    world.name_both()
    approval = world.cap(6.0).json()["id"]
    with world.db.write() as session:
        session.execute(update(Approval).where(Approval.id == approval).values(expires_at=now()))
    assert world.agree(approval, world.ben).json()["detail"] == "this approval is expired already"
    assert world.cap_now() == 4.0


def test_files_leave_with_the_second_person_s_word(world: Persons) -> None:
    world.name_both()
    file = f"/v1/jobs/{world.first}/artifacts/model.safetensors"
    assert world.call("GET", file).status_code == 403
    asked = world.ask(world.first).json()
    assert asked["status"] == "waiting"
    world.let_out()
    assert world.call("GET", f"/v1/jobs/{world.first}/egress").json()["type"] == "/problems/egress-pending"
    assert world.call("GET", file).status_code == 403
    assert world.agree(asked["approval"], world.second_key).status_code == 409
    assert world.agree(asked["approval"], world.ben).status_code == 200
    world.let_out()
    (shown,) = world.call("GET", f"/v1/jobs/{world.first}/egresses").json()["items"]
    assert shown["status"] == "ready"
    assert world.call("GET", f"/v1/jobs/{world.first}/egress").status_code == 200
    assert world.call("GET", file).status_code == 403, "the persons agreed to a recipient, not to every later download"
    denied = world.ask(world.second).json()
    world.call("POST", f"/v1/approvals/{denied['approval']}/deny", world.ben)
    assert world.call("GET", f"/v1/jobs/{world.second}/egress").status_code == 404
    listed = world.call("GET", "/v1/approvals", world.ben, params={"limit": 1}).json()
    assert listed["items"][0]["act"]["egress"] == denied["id"] and listed["next"]
    following = {"limit": 1, "after": listed["next"]}
    assert world.call("GET", "/v1/approvals", world.ben, params=following).json()["items"][0]["id"] == asked["approval"]
    assert world.call("GET", "/v1/approvals", world.scene.analyst).json()["items"] == []


def test_an_egress_from_before_persons_were_named_leaves_no_more(world: Persons) -> None:
    path = f"/v1/jobs/{world.first}/egress"
    assert world.ask(world.first).status_code == 202
    world.let_out()
    assert world.call("GET", path).status_code == 200
    world.name_both()
    assert world.call("GET", path).status_code == 403


def test_a_word_goes_with_its_key(world: Persons) -> None:
    """Before the second word, and after both."""
    world.name_both()
    approval = world.cap(6.0).json()["id"]
    asked = world.ask(world.first).json()
    assert world.agree(asked["approval"], world.ben).status_code == 200
    world.let_out()
    path = f"/v1/jobs/{world.first}/egress"
    assert world.call("GET", path).status_code == 200
    with world.db.write() as session:
        session.get_one(ApiKey, world.ada.id).expires_at = now()
    assert world.agree(approval, world.ben).json()["status"] == "open" and world.cap_now() == 4.0
    assert world.call("GET", path, world.ben).status_code == 403
    again = world.agree(approval, world.second_key)
    assert again.json()["status"] == "agreed" and world.cap_now() == 6.0, "Ada speaks with her other key"
    shown = {each["person"]: each["key_id"] for each in again.json()["agreements"]}
    assert shown == {"Ada": world.second_key.id, "Ben": world.ben.id}


def test_a_word_goes_with_its_person(world: Persons) -> None:
    world.name_both()
    asked = world.ask(world.first).json()
    assert world.agree(asked["approval"], world.ben).status_code == 200
    world.let_out()
    other = world.name({"Ada": [world.ada], "Cem": [world.scene.admin]}).json()
    assert world.agree(other["id"], world.ben).json()["status"] == "agreed"
    answer = world.call("GET", f"/v1/jobs/{world.first}/egress")
    assert answer.status_code == 403 and "counts no more" in answer.json()["detail"]


def test_a_model_answers_once_two_persons_have_agreed(world: Persons) -> None:
    """Enough answers of a linear model are the model."""
    asked = {"records": [{"a": 1.0, "b": 2.0}]}
    path = f"/v1/jobs/{world.first}/predict"
    before = world.call("POST", path, json=asked)
    assert before.status_code == 202
    world.name_both()
    assert world.call("POST", path, json=asked).status_code == 403
    assert world.call("GET", before.headers["Location"]).status_code == 403
    agreed = world.ask(world.first).json()
    assert world.call("POST", path, json=asked).status_code == 403
    assert world.agree(agreed["approval"], world.ben).status_code == 200
    assert world.call("POST", path, json=asked).status_code == 202
    assert world.call("GET", before.headers["Location"]).status_code == 200


def test_an_egress_that_failed_opens_no_predictions(world: Persons) -> None:
    world.name_both()
    agreed = world.ask(world.first).json()
    assert world.agree(agreed["approval"], world.ben).status_code == 200
    (world.relay.settings.storage_root / "jobs" / world.first / "model.safetensors").write_bytes(b"others")
    world.let_out()
    answer = world.call("POST", f"/v1/jobs/{world.first}/predict", json={"records": [{"a": 1.0, "b": 2.0}]})
    assert answer.status_code == 403


def restored(world: Persons) -> None:
    """A backup from before persons were named."""
    with world.db.write() as session:
        session.execute(delete(DatasetPerson))
        session.get_one(Dataset, world.dataset).persons_version = 0


def test_a_restored_backup_does_not_forget_the_persons(world: Persons) -> None:
    file = f"/v1/jobs/{world.first}/artifacts/model.safetensors"
    assert world.call("GET", file).status_code == 200
    world.name_both()
    for act in (
        lambda: world.call("GET", file).status_code == 403,
        lambda: world.cap(6.0).status_code == 202,
        lambda: world.ask(world.first).json()["status"] == "waiting",
        lambda: (
            world.call("POST", f"/v1/jobs/{world.first}/predict", json={"records": [{"a": 1.0, "b": 2.0}]}).status_code
            == 403
        ),
        lambda: world.name({}).status_code == 202,
    ):
        restored(world)
        assert act()
    assert world.call("GET", f"{world.path}/persons").json()["persons"]["Ben"] == [world.ben.id]
    (told,) = {each for each in world.told(world.dataset) if each[0] == "persons.set" and each[1] is not None}
    assert told[1] == world.ada.id


def test_a_restored_backup_does_not_show_predictions(world: Persons) -> None:
    asked = world.call("POST", f"/v1/jobs/{world.first}/predict", json={"records": [{"a": 1.0, "b": 2.0}]})
    assert asked.status_code == 202
    world.name_both()
    restored(world)
    assert world.call("GET", asked.headers["Location"]).status_code == 403


def test_persons_who_could_not_be_recorded_decide_nothing(world: Persons, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a backup that is restored next would not know of them, after something left."""
    file = f"/v1/jobs/{world.first}/artifacts/model.safetensors"
    assert world.call("GET", file).status_code == 200

    def full(*_: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(Heads, "keep_named", full)
        world.name_both()
        answer = world.call("GET", file)
        assert (answer.status_code, answer.json()["type"]) == (503, "/problems/unavailable")
    assert world.call("GET", file).status_code == 403, "recorded by the next question"


def test_one_person_whose_keys_a_restored_backup_knows_is_not_two(world: Persons, settings: Settings) -> None:
    world.name_both()
    restored(world)
    record = Heads.of(settings)
    by_key = {world.ada.id: "Ada", "key_b": "Ben"}
    known = record.named(world.dataset)
    assert known is not None
    record.keep_named(known.model_copy(update={"version": 2, "persons": named(by_key)}))
    assert world.cap(6.0).json()["type"] == "/problems/ledger-behind"


def test_of_two_databases_that_went_on_the_second_gets_the_persons_of_the_first(
    world: Persons, settings: Settings
) -> None:
    """Both named persons for the first time: a number alone would let each decide by its own."""
    record, others = Heads.of(settings), {world.second_key.id: "Ada", world.scene.admin.id: "Cleo"}
    first = NamedPersons(dataset=world.dataset, version=1, persons=named(others))
    whole = Heads.keep_named

    def second(heads: Heads, late: NamedPersons) -> None:
        record_first = Heads.of(settings)
        whole(record_first, first)
        whole(heads, late)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Heads, "keep_named", second)
        world.name_both()
    assert record.named(world.dataset) == first
    asked = world.cap(6.0).json()["id"]
    assert world.agree(asked, world.ben).status_code == 403
    assert world.agree(asked, world.second_key).status_code == 200
    assert world.agree(asked, world.scene.admin).status_code == 200 and world.cap_now() == 6.0


def test_persons_of_whom_a_restored_backup_knows_no_key_are_not_nobody(world: Persons, settings: Settings) -> None:
    world.name_both()
    restored(world)
    record = Heads.of(settings)
    known = record.named(world.dataset)
    assert known is not None
    lost = known.model_copy(update={"version": 2, "persons": named({"key_a": "Ada", "key_b": "Ben"})})
    record.keep_named(lost)
    answer = world.call("GET", f"/v1/jobs/{world.first}/artifacts/model.safetensors")
    assert answer.json()["type"] == "/problems/ledger-behind"
    (settings.effective_heads_dir / f"{world.dataset}.persons").write_text("{")
    assert world.cap(6.0).json()["type"] == "/problems/ledger-behind"


def test_words_that_count_no_more_sign_nothing(world: Persons) -> None:
    world.name_both()
    asked = world.ask(world.first).json()["approval"]
    assert world.agree(asked, world.ben).status_code == 200
    with world.db.write() as session:
        session.execute(update(ApiKey).where(ApiKey.id == world.ben.id).values(revoked_at=now()))
    world.let_out()
    (view,) = world.call("GET", f"/v1/jobs/{world.first}/egresses").json()["items"]
    assert view["status"] == "failed" and "counts no more" in view["problem"]


def test_a_page_shows_what_waits_and_takes_the_word(world: Persons) -> None:
    world.name_both()
    asked = world.ask(world.first, recipient="<b>Hospital</b>").json()["approval"]
    raised = world.cap(6.0).json()["id"]
    page = "/dashboard/approvals"
    own = world.call("GET", page)
    assert own.status_code == 200 and 'Waits for you <span class="count">0</span>' in own.text, "Ada has agreed"
    other = world.call("GET", page, world.ben).text
    assert 'Waits for you <span class="count">2</span>' in other
    assert "&lt;b&gt;Hospital&lt;/b&gt;" in other and "A cap of ε = 6.0" in other
    assert f"{page}/{asked}/agree" in other
    assert world.call("POST", f"{page}/{asked}/agree", world.ben, follow_redirects=False).status_code == 303
    assert world.call("POST", f"{page}/{raised}/deny", world.ben, follow_redirects=False).status_code == 303
    assert world.call("GET", f"/v1/approvals/{asked}").json()["status"] == "agreed"
    assert world.call("GET", f"/v1/approvals/{raised}").json()["status"] == "denied" and world.cap_now() == 4.0
    again = world.call("POST", f"{page}/{asked}/agree", world.ben)
    assert again.status_code == 409 and "agreed already" in again.text
    assert world.call("POST", f"{page}/apr_none/agree", world.ben).status_code == 404
    assert 'Waits for you <span class="count">0</span>' in world.call("GET", page, world.scene.analyst).text
