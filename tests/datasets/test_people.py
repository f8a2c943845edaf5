"""People who return: a file of a month has records of people of earlier months, within k for all of them together."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import select

from app.datasets import growth, hashes, parsed
from app.datasets.reader import Reader
from app.db.models import Dataset
from app.formats.users import kept
from app.secrets import load_secrets
from core.contracts.blocks import UNITS
from core.parts import unit_digests
from core.parts.part_files import load_part
from core.parts.sorted_digests import Ascending
from core.parts.stored_records import StoredPart
from tests.datasets.conftest import Api, MakeApi, private, spec
from tests.datasets.test_blocks import append, grant, traces, unit_files_of
from tests.datasets.test_large_blocks import listed
from worker.data.joined import Joined, Loaded, join
from worker.data.record_units import Users

K = 3
USERS: dict[str, Any] = private(unit="user", user_column="u", max_records_per_user=K, records=20)
WHOLE = USERS | {"holdout": None}
MECHANISM = {"kind": "gaussian", "noise_multiplier": 20.0, "count": 1}


def of_users(users: Iterable[int], month: int, each: int = 2) -> str:
    """Records of each user, which no other month has."""
    return "u,a,b,y\n" + "".join(f"u{i},{i},{month}.{n},{n % 2}\n" for i in users for n in range(each))


def month(api: Api, dataset: str, users: Iterable[int], number: int, each: int = 2, **more: Any) -> Any:
    answer = append(api, dataset, of_users(users, number, each), f"m{number}", records=20, **more)
    assert answer.status_code == 201, answer.text
    return answer.json()


def stored(api: Api, *ids: str, name: str = "train") -> list[Any]:
    """The stored parts of some blocks, in this order."""
    with api.db.read() as session:
        rows = [session.get_one(Dataset, each) for each in ids]
        files = [getattr(each.parts, name) for each in rows]
    return [load_part(api.settings.storage_root / each.path, each.sha256) for each in files]


def kept_of(api: Api, *ids: str) -> Counter[int]:
    """How many records of each user all these blocks keep; the column `a` is the user."""
    return Counter(int(a) for part in stored(api, *ids) for a in part.x[:, 0])


def test_people_come_back_within_k(api: Api) -> None:
    made = api.upload(spec(**WHOLE), of_users(range(20), 1)).json()
    second, third = month(api, made["id"], range(10, 30), 2), month(api, made["id"], range(30), 3)
    assert kept_of(api, made["id"]) == Counter(dict.fromkeys(range(20), 2))
    assert kept_of(api, second["id"]) == Counter({i: 1 if i < 20 else 2 for i in range(10, 30)})
    assert kept_of(api, made["id"], second["id"], third["id"]) == Counter(dict.fromkeys(range(30), K))
    assert [each["read"]["dropped"] for each in (second, third)] == [10, 10 * 1 + 10 * 2 + 10 * 1]
    assert any("10 users are in earlier blocks" in each for each in second["warnings"])


def test_a_person_is_one_unit_of_a_job_on_several_blocks(api: Api) -> None:
    """One number in all blocks, so one coin, and at most k records; also where a part stays on disk."""
    made = api.upload(spec(**WHOLE), of_users(range(20), 1)).json()
    ids = [made["id"], *(month(api, made["id"], users, n)["id"] for n, users in ((2, range(10, 30)), (3, range(30))))]
    for order in (ids, ids[::-1], [ids[1], ids[2]]):
        parts = stored(api, *order)
        owner = np.concatenate([part.x[:, 0] for part in parts])
        whole = join(parts)
        assert isinstance(whole, StoredPart) and whole.user is not None
        for numbers in (whole.user, Joined([Loaded(each) for each in parts]).column("user")):
            assert len({*zip(owner.tolist(), numbers.tolist(), strict=True)}) == len({*owner.tolist()})
            assert len(Users(numbers, K)) == len({*owner.tolist()})


def test_old_parts_and_people_are_told_apart(api: Api) -> None:
    """Numbers of earlier versions begin with 0 in each block."""
    made = api.upload(spec(**WHOLE), of_users(range(20), 1)).json()
    (part,) = stored(api, made["id"])
    old = np.array([0, 1, 1])
    found = Joined([Loaded(part), Loaded(_with_users(part, old)), Loaded(_with_users(part, old))]).column("user")
    assert len(Users(found, K)) == 20 + 2 + 2


def _with_users(part: Any, users: NDArray[np.int64]) -> Any:
    rows = slice(0, len(users))
    return type(part)(x=part.x[rows], y=part.y[rows], user=users)


def test_a_person_decides_alone_what_is_kept(api: Api) -> None:
    """Without a person of several months the others' records are the same, to the bit."""
    worlds = []
    for name, people in (("with", range(12)), ("without", [i for i in range(12) if i != 5])):
        made = api.upload(spec(name, **WHOLE), of_users(people, 1, 4)).json()["id"]
        ids = [made, *(month(api, made, [i for i in people if i % n], n, n)["id"] for n in (2, 3))]
        worlds.append([sorted(map(tuple, part.x.tolist())) for part in stored(api, *ids)])
    there = [[row for row in part if row[0] != 5] for part in worlds[0]]
    assert there == worlds[1] and there != worlds[0]


@pytest.mark.parametrize("seed", range(4))
def test_counts_follow_the_serial_rule(api: Api, seed: int) -> None:
    """Random months: of each person min(n, k - what earlier months kept), whatever the order and the sizes."""
    draw = np.random.default_rng(seed)
    left, ids, dataset = Counter[int](), list[str](), ""
    for number in range(4):
        counts = {i: int(draw.integers(0, 5)) for i in range(15)}
        rows = [(i, n) for i, count in counts.items() for n in range(count)]
        draw.shuffle(rows)
        file = "u,a,b,y\n" + "".join(f"u{i},{i},{number}.{n},{n % 2}\n" for i, n in rows)
        if number == 0:
            dataset = api.upload(spec(**WHOLE), file).json()["id"]
            ids.append(dataset)
        else:
            ids.append(append(api, dataset, file, f"m{number}", records=20).json()["id"])
        here = {i: min(count, K - left[i]) for i, count in counts.items()}
        assert kept_of(api, ids[-1]) == Counter({i: n for i, n in here.items() if n})
        left.update(here)


@pytest.mark.parametrize("end", ["retire", "delete"])
def test_records_of_retired_and_deleted_blocks_count(api: Api, end: str) -> None:
    """Else retirement would renew a budget. Only the owner is told how many are left out."""
    made = api.upload(spec(**WHOLE), of_users(range(20), 1, 3)).json()["id"]
    second = month(api, made, range(20, 30), 2)["id"]
    path, headers = f"/v1/datasets/{made}", api.headers("owner")
    if end == "retire":
        assert api.client.post(f"{path}/blocks/first/retire", headers=headers).status_code == 200
    else:
        assert api.client.delete(f"{path}/content", headers=headers).status_code == 200
    assert len(unit_files_of(api, made)) == 1
    third = month(api, made, range(25), 3)
    assert kept_of(api, third["id"]) == Counter(dict.fromkeys(range(20, 25), 1))
    assert any("45 records of users" in each for each in third["warnings"])
    assert kept_of(api, second, third["id"]) == Counter({i: 3 if i < 25 else 2 for i in range(20, 30)})


def test_nobody_else_learns_who_came_back(api: Api) -> None:
    """Two worlds, whose second months differ in whether their people are new: all others see the same."""
    seen = []
    for name, users in (("same-people", range(20)), ("new-people", range(20, 40))):
        made = api.upload(spec(name, **WHOLE), of_users(range(20), 1 if name == "same-people" else 5)).json()["id"]
        grant(api, made)
        before = traces(api)
        block = month(api, made, users, 2)
        paths = (f"/{made}", f"/{made}/blocks", f"/{made}/ledger/entries", f"/{block['id']}", f"/{made}/ledger")
        texts = [api.get(f"/v1/datasets{path}", "analyst").text for path in paths]
        added = [one - other for one, other in zip(traces(api), before, strict=True)]
        for old, new in ((made, "ds"), (block["id"], "block"), (name, "name")):
            texts = [text.replace(old, new) for text in texts]
        seen.append(([_without_hashes(json.loads(text)) for text in texts], added))
    assert seen[0] == seen[1]


VARIES = {"created_at", "hash", "previous_hash", "content_hmac", "head", "at", "prev_hash", "entry_hash", "declared_at"}


def _without_hashes(document: Any) -> Any:
    if isinstance(document, dict):
        return {name: _without_hashes(each) for name, each in document.items() if name not in VARIES}
    return [_without_hashes(each) for each in document] if isinstance(document, list) else document


def test_a_month_that_overflows_its_slots_is_refused_whole(api: Api) -> None:
    """Nobody is left out to make the others fit."""
    made = api.upload(spec(**WHOLE), of_users(range(20), 1, 1)).json()["id"]
    before = traces(api)
    refused = append(api, made, of_users(range(30), 2), "m2", records=20, slots={"train": 25})
    assert refused.status_code == 422 and "Only you are told" in refused.text
    assert traces(api) == before
    assert kept_of(api, month(api, made, range(30), 3)["id"]) == Counter(dict.fromkeys(range(30), 2)), "nothing counts"


def test_two_months_at_once(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second was counted before the first was stored: it is sent again."""
    made = api.upload(spec(**WHOLE), of_users(range(20), 1, 1)).json()["id"]
    read = parsed.read

    def race(*args: Any, **more: Any) -> Any:
        content = read(*args, **more)
        monkeypatch.setattr(parsed, "read", read)
        month(api, made, range(20), 2)
        return content

    monkeypatch.setattr(parsed, "read", race)
    late = append(api, made, of_users(range(20), 3), "m3", records=20)
    assert (late.status_code, late.json()["type"]) == (409, "/problems/wrong-state")
    assert not kept_of(api, month(api, made, range(20), 3)["id"]), "k is used up"


def test_large_months_at_once_are_read_again(make_api: MakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the background, where the second is read before the first is a block: both come to be, within k."""
    api = make_api(read_at_once_bytes=10, max_attempts=1)
    reader = Reader(api.db, api.settings)
    made = api.upload(spec(**WHOLE), of_users(range(20), 1, 1)).json()["id"]
    assert reader.run_once()
    for number in (2, 3):
        assert append(api, made, of_users(range(20), number), f"m{number}", records=20).status_code == 201
    read, rival = parsed.read, Reader(api.db, api.settings)

    def race(*args: Any, **more: Any) -> Any:
        content = read(*args, **more)
        monkeypatch.setattr(parsed, "read", read)
        assert rival.run_once()
        return content

    monkeypatch.setattr(parsed, "read", race)
    while reader.run_once():
        pass
    assert [each["state"] for each in listed(api, made)] == ["ready"] * 3
    ids = [each["id"] for each in listed(api, made)]
    assert kept_of(api, *ids) == Counter(dict.fromkeys(range(20), K))
    numbers = [set(np.unique(part.user).tolist()) for part in stored(api, *ids)]
    assert numbers[1] | numbers[2] <= numbers[0]


def test_a_clock_that_goes_back_moves_nobody(api: Api) -> None:
    made = api.upload(spec(**WHOLE), of_users(range(10), 1, 1)).json()["id"]
    second = month(api, made, range(5, 20), 2, 1)["id"]
    with api.db.write() as session:
        session.get_one(Dataset, second).created_at -= timedelta(days=400)
    third = month(api, made, range(20), 3)["id"]
    parts = stored(api, made, second, third)
    pairs = {(a, user) for part in parts for a, user in zip(part.x[:, 0].tolist(), part.user.tolist(), strict=True)}
    assert len(pairs) == 20 and max(kept_of(api, made, second, third).values()) == K


def test_without_the_key_of_its_people_no_month_is_counted(api: Api) -> None:
    made = api.upload(spec(**WHOLE), of_users(range(20), 1)).json()["id"]
    path = api.settings.effective_secrets_dir / "data_hmac_key"
    old, new = path.read_text(), secrets.token_hex(32)
    path.write_text(f"{new}\n{old}")
    with api.db.write() as session:
        hashes.renew(session, load_secrets(api.settings, "data_hmac_key"))
    assert kept_of(api, month(api, made, range(20), 2)["id"]) == Counter(dict.fromkeys(range(20), 1))
    path.write_text(f"{new}\n")
    assert append(api, made, of_users(range(20), 3), "m3", records=20).status_code == 503


@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_people_that_cannot_be_read_refuse_the_month(api: Api, damage: str) -> None:
    made = api.upload(spec(**WHOLE), of_users(range(20), 1)).json()["id"]
    path = unit_files_of(api, made)[0]
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(content[:-32] if damage == "cut" else content[:-1] + b"\7")
    refused = append(api, made, of_users(range(20), 2), "m2", records=20)
    assert refused.status_code == 503, refused.text


def test_a_data_set_of_an_earlier_version_keeps_people_apart(api: Api) -> None:
    """Its digests have no counts: whoever comes back is refused, and others are appended."""
    made = api.upload(spec(**WHOLE), of_users(range(20), 1)).json()["id"]
    path = unit_files_of(api, made)[0]
    old = path.with_name("old")
    people = np.frombuffer(path.read_bytes()[len(unit_digests.PEOPLE_FILE) :], dtype=unit_digests.PERSON)
    words = np.frombuffer(people["digest"].tobytes(), dtype=">u8").astype(np.uint64).reshape(-1, 2)
    sha256 = unit_digests.save(old, [Ascending.of(words)])
    old.replace(path.with_name(sha256))
    with api.db.write() as session:
        session.get_one(Dataset, made).units_sha256 = sha256
    same = append(api, made, of_users(range(19, 39), 2), "m2", records=20)
    assert (same.status_code, same.json()["shared"]) == (409, {"first": 1}) and "users" in same.json()["detail"]
    month(api, made, range(20, 40), 2)
    again = append(api, made, of_users(range(39, 59), 3), "m3", records=20)
    assert again.json()["shared"] == {"m2": 1}


def charge(api: Api, dataset: str, once: str) -> Any:
    body = {"dataset": dataset, "unit": "user", "mechanism": MECHANISM, "attested": "a count by age"}
    return api.client.post("/v1/charges", json=body, headers=api.headers("owner") | {"Idempotency-Key": once})


def test_another_system_and_people_who_return_exclude_each_other(api: Api) -> None:
    """What it learns of a month does not shrink with a person's records: who is in two months would lose twice."""
    made = api.upload(spec(**WHOLE), of_users(range(20), 1, 1)).json()["id"]
    reserved = charge(api, made, "a")
    assert reserved.status_code == 201, reserved.text
    assert append(api, made, of_users(range(20), 2), "m2", records=20).json()["shared"] == {"first": 20}
    nothing = api.client.post(
        f"/v1/charges/{reserved.json()['id']}/void", json={"reason": "no answer"}, headers=api.headers("owner")
    )
    assert nothing.status_code == 200, nothing.text
    month(api, made, range(20), 2)
    refused = charge(api, made, "b")
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/wrong-state")


def test_a_charge_that_comes_while_a_month_is_read(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    made = api.upload(spec(**WHOLE), of_users(range(20), 1, 1)).json()["id"]
    examine = growth.check_units

    def race(*args: Any) -> None:
        examine(*args)
        monkeypatch.setattr(growth, "check_units", examine)
        assert charge(api, made, "a").status_code == 201

    monkeypatch.setattr(growth, "check_units", race)
    late = append(api, made, of_users(range(20), 2), "m2", records=20)
    assert (late.status_code, late.json()["type"]) == (409, "/problems/wrong-state")
    with api.db.read() as session:
        assert list(session.scalars(select(Dataset.id))) == [made]


@pytest.mark.parametrize("where", ["sealed", "bucket"])
def test_people_are_counted_wherever_their_digests_lie(make_api: MakeApi, s3_bucket: str, where: str) -> None:
    """Sealed in the folder; or in a bucket, of which a sealed copy waits in the staging folder alone."""
    changes: dict[str, Any] = {"encrypt_parts": True} | ({"object_store": s3_bucket} if where == "bucket" else {})
    api = make_api(**changes)
    made = api.upload(spec(**WHOLE), of_users(range(20), 1)).json()["id"]
    second = month(api, made, range(10, 30), 2)
    assert (second["read"]["units"], second["read"]["dropped"]) == (20, 10)
    assert not [path for path in api.stored() if UNITS in Path(path).name]


def test_a_hold_out_keeps_its_people(api: Api) -> None:
    """A person is on one side in all blocks."""
    made = api.upload(spec(**USERS), of_users(range(20), 1)).json()["id"]
    second = month(api, made, range(20), 2)["id"]
    sides = [
        {int(a) for part in stored(api, made, second, name=name) for a in part.x[:, 0]} for name in ("train", "holdout")
    ]
    assert not sides[0] & sides[1] and sides[0] | sides[1] == set(range(20))


def test_records_are_kept_up_to_each_person_s_own_number() -> None:
    numbers, words = np.array([0, 1, 0, 1, 0]), np.array([[5, 0], [1, 0], [3, 0], [2, 0], [4, 0]], dtype=np.uint64)
    assert kept(numbers, words, np.array([2, 0])).tolist() == [False, False, True, False, True]
