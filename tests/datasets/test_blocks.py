"""A data set grows by blocks: no unit is in two of them, and nobody but the owner learns of a refused one."""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import func, select, update

from app.datasets import growth, hashes
from app.db.models import Account, AuditEntry, Dataset, DatasetContent, LedgerEntry
from app.ledger.transparency.heads import Heads
from app.ledger.verification import verify
from app.secrets import load_secrets
from core.contracts.blocks import UNITS
from core.errors import Unavailable
from tests.datasets.conftest import CSV, GRAPH, PUBLIC, Api, MakeApi, spec


def rows(numbers: Iterable[int]) -> str:
    return "a,b,y\n" + "".join(f"{i},{i * i % 7},{i % 2}\n" for i in numbers)


def append(
    api: Api, dataset: str, file: str, label: str = "2026-10", records: int = 60, who: str = "owner", **more: Any
) -> Any:
    text = json.dumps({"label": label, "records": records} | more)
    parts = {"spec": (None, text, "application/json"), "file": ("file", file)}
    return api.client.post(f"/v1/datasets/{dataset}/blocks", files=parts, headers=api.headers(who))


def test_a_block_of_a_graph_has_its_own_edges(api: Api) -> None:
    def nodes(begin: int) -> str:
        return "id,a,b,y\n" + "".join(f"{each},{each},0,{each % 2}\n" for each in range(begin, begin + 60))

    made = api.upload(spec(features=GRAPH), nodes(0), edges_file="source,target\n1,2\n")
    assert made.status_code == 201, made.text
    refused = append(api, made.json()["id"], nodes(60))
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/edges_file")
    text = json.dumps({"label": "2026-10", "records": 60})
    parts = {"spec": (None, text, "application/json"), "file": ("n", nodes(60)), "edges_file": ("e", "source,target\n")}
    path = f"/v1/datasets/{made.json()['id']}/blocks"
    found = api.client.post(path, files=parts, headers=api.headers("owner"))
    assert found.status_code == 201, found.text


def grant(api: Api, dataset: str, who: str = "analyst") -> None:
    path = f"/v1/datasets/{dataset}/grants/{api.key_ids[who]}"
    assert api.client.put(path, json={"access": "train"}, headers=api.headers("owner")).status_code < 300


def traces(api: Api) -> tuple[int, ...]:
    """What an appended block leaves in the database."""
    with api.db.read() as session:
        tables = (Dataset, Account, LedgerEntry, DatasetContent, AuditEntry)
        return tuple(session.scalar(select(func.count()).select_from(each)) or 0 for each in tables)


def test_a_block_has_an_account_of_its_own_with_the_cap(api: Api) -> None:
    made = api.upload(spec()).json()
    raised = api.client.post(
        f"/v1/datasets/{made['id']}/ledger/cap",
        json={"epsilon": 5.0, "reason": "agreed"},
        headers=api.headers("owner") | {"If-Match": "*"},
    )
    assert raised.status_code == 200, raised.text
    found = append(api, made["id"], rows(range(60, 120)))
    assert found.status_code == 201, found.text
    block = found.json()
    assert found.headers["location"] == f"/v1/datasets/{block['id']}" and block["dataset"] == made["id"]
    assert (block["label"], block["state"], block["read"]["units"]) == ("2026-10", "ready", 60)
    assert block["shape"]["records_train"] == made["shape"]["records_train"]
    assert block["ledger"]["cap"]["value"] == 5.0, "the data set's cap as it is now"
    listed = api.get(f"/v1/datasets/{made['id']}/blocks").json()["items"]
    assert [each["label"] for each in listed] == ["first", "2026-10"]
    assert [each["id"] for each in listed] == [made["id"], block["id"]]
    with api.db.read() as session:
        assert verify(session, block["id"]).valid
        entry = session.scalar(select(LedgerEntry).where(LedgerEntry.dataset_id == block["id"]))
        assert entry is not None and entry.kind == "open"
    assert Heads.of(api.settings).read(block["id"]) is not None, "a restored backup cannot forget it unnoticed"


def test_blocks_are_listed_with_their_data_set_alone(api: Api) -> None:
    made = api.upload(spec()).json()
    block = append(api, made["id"], rows(range(60, 120))).json()
    for who in ("owner", "admin"):
        assert [each["id"] for each in api.get("/v1/datasets", who).json()["items"]] == [made["id"]]
    assert api.get(f"/v1/datasets/{block['id']}", "analyst").status_code == 404
    grant(api, made["id"])
    assert api.get(f"/v1/datasets/{block['id']}").json()["name"] == "small/2026-10"
    for path in (f"{block['id']}", f"{block['id']}/ledger/entries", f"{made['id']}/blocks", f"{block['id']}/blocks"):
        assert api.get(f"/v1/datasets/{path}", "analyst").status_code == 200, path
    assert api.get(f"/v1/datasets/{made['id']}/blocks", "other-owner").status_code == 404


def test_a_shared_record_is_refused_to_the_owner_alone(api: Api) -> None:
    made = api.upload(spec()).json()
    grant(api, made["id"])

    def seen(who: str) -> list[Any]:
        paths = ("", f"/{made['id']}", f"/{made['id']}/blocks", f"/{made['id']}/ledger/entries")
        return [api.get(f"/v1/datasets{path}", who).json() for path in paths]

    before, left = seen("analyst"), traces(api)
    refused = append(api, made["id"], rows(range(59, 120)))
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/duplicate-content")
    assert refused.json()["shared"] == {"first": 1}
    assert (seen("analyst"), traces(api)) == (before, left), "nothing tells that it was sent"
    assert {path.split("/")[1] for path in api.stored()} == {made["id"]}
    accepted = append(api, made["id"], rows(range(60, 120)))
    assert accepted.status_code == 201, "and its label is free"


@pytest.mark.parametrize("who", ["analyst", "other-owner"])
def test_only_the_owner_appends(api: Api, who: str) -> None:
    """The answer to others is made before their file is looked at."""
    made = api.upload(spec()).json()
    for file in (rows(range(60, 120)), CSV):
        refused = append(api, made["id"], file, who=who)
        assert refused.status_code == 404
    grant(api, made["id"], who)
    answers = [append(api, made["id"], file, who=who) for file in (rows(range(60, 120)), CSV)]
    assert {each.status_code for each in answers} == {403}
    assert len({each.json()["detail"] for each in answers}) == 1


def test_an_admin_does_not_append_to_another_s_data_set(api: Api) -> None:
    """What a file is refused for would tell an admin who is in the data set."""
    made = api.upload(spec()).json()
    answers = [append(api, made["id"], file, who="admin") for file in (rows(range(59, 120)), rows(range(60, 120)), CSV)]
    assert {(each.status_code, each.json()["detail"]) for each in answers} == {(403, growth.OWNER_ALONE)}
    assert append(api, made["id"], rows(range(60, 120))).status_code == 201


def unit_files_of(api: Api, dataset_id: str) -> list[Path]:
    return list((api.settings.storage_root / UNITS / dataset_id).glob("*"))


def test_the_units_of_deleted_blocks_stay_known(api: Api) -> None:
    made = api.upload(spec()).json()
    block = append(api, made["id"], rows(range(60, 120))).json()
    for each in (block["id"], made["id"]):
        gone = api.client.delete(f"/v1/datasets/{each}/content", headers=api.headers("owner"))
        assert gone.status_code == 200, gone.text
        assert not (api.settings.storage_root / "datasets" / each).exists() and len(unit_files_of(api, each)) == 1
    for file, label in ((rows(range(119, 180)), "2026-10"), (rows([0, *range(180, 240)]), "first")):
        refused = append(api, made["id"], file, "third", 60)
        assert (refused.status_code, refused.json()["shared"]) == (409, {label: 1})
    assert append(api, made["id"], rows(range(120, 180)), "third").status_code == 201


def retire(api: Api, dataset: str, label: str, who: str = "owner") -> Any:
    return api.client.post(f"/v1/datasets/{dataset}/blocks/{label}/retire", headers=api.headers(who))


def test_a_retired_block_frees_nothing_and_keeps_its_units(api: Api) -> None:
    made = api.upload(spec()).json()
    grant(api, made["id"])
    assert retire(api, made["id"], "first").status_code == 409, "it never grew"
    block = append(api, made["id"], rows(range(60, 120))).json()
    assert retire(api, made["id"], "2026-10", "analyst").status_code == 403
    assert retire(api, made["id"], "2026-11").status_code == 404
    for _again in range(2):
        gone = retire(api, made["id"], "2026-10")
        assert gone.status_code == 200, gone.text
        assert (gone.json()["state"], gone.json()["ledger"]["closed"]) == ("retired", True)
        assert "can no longer be replayed" in gone.json()["warnings"][0]
    again = append(api, made["id"], rows(range(119, 180)), "third")
    assert again.json()["shared"] == {"2026-10": 1}
    assert append(api, made["id"], rows(range(120, 180))).json()["type"] == "/problems/duplicate-label"
    whole = api.upload(spec("again"), rows(range(60, 120)))
    assert whole.json()["type"] == "/problems/duplicate-content", "nor as a data set of its own"
    refused = api.client.post(f"/v1/datasets/{made['id']}/retire", headers=api.headers("owner"))
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/wrong-state")
    assert retire(api, made["id"], "first").json()["id"] == made["id"]
    with api.db.read() as session:
        assert session.get_one(Dataset, block["id"]).retired_at is None
        assert verify(session, made["id"]).valid and verify(session, block["id"]).valid
    assert append(api, made["id"], rows(range(120, 180)), "third").status_code == 201, "only new units bring budget"


def test_what_was_deleted_before_it_grew_keeps_no_digests(api: Api) -> None:
    made = api.upload(spec()).json()
    api.client.delete(f"/v1/datasets/{made['id']}/content", headers=api.headers("owner"))
    assert api.stored() == set()
    refused = append(api, made["id"], rows(range(60, 120)))
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/wrong-state")


def test_units_that_cannot_be_read_refuse_the_block(api: Api) -> None:
    """A lost or changed file is no empty one."""
    made = api.upload(spec()).json()
    path = unit_files_of(api, made["id"])[0]
    for damage in (lambda: path.write_bytes(path.read_bytes()[16:]), path.unlink):
        damage()
        refused = append(api, made["id"], rows(range(60, 120)))
        assert (refused.status_code, refused.json()["type"]) == (503, f"/problems/{Unavailable.code}")
    assert api.count() == 1


def test_a_data_set_of_an_earlier_version_does_not_grow(api: Api) -> None:
    made = api.upload(spec()).json()
    with api.db.write() as session:
        session.execute(update(Dataset).values(units_sha256=None))
    refused = append(api, made["id"], rows(range(60, 120)))
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/wrong-state")


@pytest.mark.parametrize(
    ("more", "pointer"),
    [
        ({"label": "first"}, "/label"),
        ({"label": "all"}, "/label"),
        ({"label": "A/B"}, "/label"),
        ({"records": 0}, "/records"),
        ({"records": 1}, "/records"),  # a split would leave one side empty
        ({"slots": {"train": 59, "holdout": 12}, "records": 80}, "/slots/train"),  # fewer than are declared
        ({"epsilon": 9.0}, "/epsilon"),
        ({"path": "x.csv"}, "/path"),
    ],
)
def test_a_bad_declaration_is_refused(api: Api, more: dict[str, Any], pointer: str) -> None:
    made = api.upload(spec()).json()
    refused = append(api, made["id"], rows(range(60, 120)), **more)
    assert refused.status_code == 422, refused.text
    assert refused.json()["errors"][0]["pointer"] == pointer
    assert api.count() == 1


def test_a_label_is_taken_once(api: Api) -> None:
    made = api.upload(spec()).json()
    assert append(api, made["id"], rows(range(60, 120))).status_code == 201
    again = append(api, made["id"], rows(range(120, 180)))
    assert (again.status_code, again.json()["type"]) == (409, "/problems/duplicate-label")


def test_what_does_not_grow(api: Api) -> None:
    public = api.upload(spec("open", **PUBLIC), rows(range(500, 560))).json()
    held = api.upload(spec("held", holdout={"kind": "public"}), rows(range(600, 660)), rows(range(700, 710))).json()
    made = api.upload(spec()).json()
    block = append(api, made["id"], rows(range(60, 120))).json()
    for each in (public["id"], held["id"], block["id"]):
        assert append(api, each, rows(range(200, 260)), "more").status_code == 422


def test_a_block_is_no_data_set_to_change(api: Api) -> None:
    """Its cap, grants and budgets are its data set's."""
    made = api.upload(spec()).json()
    block = append(api, made["id"], rows(range(60, 120))).json()["id"]
    path, headers = f"/v1/datasets/{block}", api.headers("owner") | {"If-Match": "*"}
    key = api.key_ids["analyst"]
    for ask in (
        api.client.post(f"{path}/ledger/cap", json={"epsilon": 9.0, "reason": "x"}, headers=headers),
        api.client.put(f"{path}/grants/{key}", json={"access": "train"}, headers=headers),
        api.client.put(f"{path}/budgets/{key}", json={"epsilon": 1.0}, headers=headers),
        api.client.post(f"{path}/declarations", json={"records": 70}, headers=headers),
        api.client.post(f"{path}/ledger/join", json={"into": made["id"], "reason": "x"}, headers=api.headers("admin")),
    ):
        assert ask.status_code == 422 and made["id"] in ask.json()["detail"], ask.text


def test_a_database_that_lost_a_block_takes_no_new_one(api: Api) -> None:
    """The lost block may have been spent from: its units would get a second budget."""
    made = api.upload(spec()).json()
    block = append(api, made["id"], rows(range(60, 120))).json()["id"]
    heads = Heads.of(api.settings)
    lost = heads.read(block)
    assert lost is not None
    heads.write(lost.model_copy(update={"dataset": "ds_lost"}), heads.known("ds_lost"))
    refused = append(api, made["id"], rows(range(120, 180)), "third")
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/ledger-behind")


def test_two_blocks_with_a_common_record_at_once(make_api: MakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second upload was compared before the first was stored: it is compared again."""
    api = make_api()
    made = api.upload(spec()).json()
    compare, sent = growth.check_units, []

    def race(*args: Any) -> None:
        compare(*args)
        if not sent:
            sent.append(None)
            sent.append(append(api, made["id"], rows(range(60, 120)), "rival"))

    monkeypatch.setattr(growth, "check_units", race)
    late = append(api, made["id"], rows(range(119, 180)))
    assert sent[1].status_code == 201
    assert (late.status_code, late.json()["type"]) == (409, "/problems/wrong-state")
    assert append(api, made["id"], rows(range(119, 180))).json()["shared"] == {"rival": 1}


def tensor(api: Api, numbers: NDArray[Any], name: str, *, to: str | None = None) -> Any:
    """Registers records, or appends them as a block."""
    content = io.BytesIO()
    np.savez(content, x=numbers, y=np.arange(len(numbers)) % 2)
    whole = spec(name, format="npz", features={"kind": "tensor", "array": "x"})
    sent = json.dumps(whole if to is None else {"label": name, "records": len(numbers)})
    files = {"spec": (None, sent, "application/json"), "file": ("f", content.getvalue())}
    path = "/v1/datasets" if to is None else f"/v1/datasets/{to}/blocks"
    return api.client.post(path, files=files, headers=api.headers("owner"))  # type: ignore[arg-type]


def test_a_block_of_another_width_is_refused(api: Api) -> None:
    """Jobs join the records of all blocks."""
    draw = np.random.default_rng(0)
    made = tensor(api, draw.normal(size=(60, 5)), "wide").json()
    refused = tensor(api, draw.normal(size=(60, 7)), "wider", to=made["id"])
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/file"), refused.text
    assert tensor(api, draw.normal(size=(60, 5)), "as-wide", to=made["id"]).status_code == 201


def test_records_are_compared_as_they_are_stored(api: Api) -> None:
    """In float32: the same records with more or fewer digits are the same units."""
    numbers = np.random.default_rng(0).normal(size=(60, 3))
    made = tensor(api, numbers, "long").json()
    refused = tensor(api, numbers.astype(np.float32)[:40], "short", to=made["id"])
    assert (refused.status_code, refused.json()["shared"]) == (409, {"first": 40}), refused.text


def test_without_the_key_of_its_units_no_block_is_compared(api: Api) -> None:
    """Digests under another key match nothing: the same records would come in again."""
    made = api.upload(spec()).json()
    path = api.settings.effective_secrets_dir / "data_hmac_key"
    old, new = path.read_text(), secrets.token_hex(32)
    path.write_text(f"{new}\n{old}")
    with api.db.write() as session:
        hashes.renew(session, load_secrets(api.settings, "data_hmac_key"))
    same = rows(range(61))
    assert append(api, made["id"], same).json()["shared"] == {"first": 60}, "a rotation keeps them comparable"
    path.write_text(f"{new}\n")
    refused = append(api, made["id"], same)
    assert (refused.status_code, refused.json()["type"]) == (503, f"/problems/{Unavailable.code}")


def test_there_is_an_end_of_blocks(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    made = api.upload(spec()).json()
    monkeypatch.setattr(growth, "MOST_BLOCKS", 2)
    assert append(api, made["id"], rows(range(60, 120))).status_code == 201
    refused = append(api, made["id"], rows(range(120, 180)), "third")
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/wrong-state")
