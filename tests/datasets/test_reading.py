"""Large files are read in the background: one result whatever dies, the same words as within the request, and nobody
but the owner sees a data set before it is ready. On SQLite and on PostgreSQL."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import func, select, update

from app.datasets import readings
from app.datasets.read_file import File
from app.datasets.reader import Reader
from app.datasets.readings import Claimed
from app.db import changes, clock
from app.db.database import Database
from app.db.models import Account, AuditEntry, Dataset, DatasetContent, DatasetReading, LedgerEntry
from app.lifecycle.sweeper import expire_all_leases
from app.retention import service as retention
from app.sandbox.limited import Watch
from app.settings import Settings
from core.errors import InvalidRequest
from core.ids import now
from scrimp.client import Client
from scrimp.errors import InvalidRequest as Refused
from scrimp.models import RegisteredDataset
from scrimp.reading import wait_until_read
from tests.conftest import BACKINGS
from tests.datasets.conftest import CSV, MIB, PUBLIC, Api, private, spec
from tests.datasets.test_resumable import whole

BAD = CSV.replace("3,2,1\n", "3,many,1\n")


@pytest.fixture(params=BACKINGS)
def backing(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def api(settings: Settings, db: Database, tmp_path: Path) -> Iterator[Api]:
    """An API that reads every file in the background. Its reader is run by the tests."""
    (tmp_path / "root").mkdir()
    changes: dict[str, Any] = {
        "read_at_once_bytes": 10,
        "parse_memory_bytes": 1024 * MIB,
        "data_root": tmp_path / "root",
    }
    changes |= {"read_time_s": settings.parse_time_s}  # helper processes of these limits go from test to test
    made = Api(settings.model_copy(update=changes), db)
    yield made
    made.client.close()
    made.client.app.state.pricing.close()  # type: ignore[attr-defined]
    made.client.app.state.db.close()  # type: ignore[attr-defined]


@pytest.fixture
def reader(api: Api) -> Reader:
    return Reader(api.db, api.settings)


def accepted(api: Api, name: str = "small", file: str = CSV, **changes: Any) -> str:
    answer = api.upload(spec(name, **changes), file)
    assert answer.status_code == 201, answer.text
    assert answer.json()["state"] == "reading"
    return str(answer.json()["id"])


def row_of(api: Api, dataset_id: str) -> DatasetReading:
    with api.db.read() as session:
        return session.get_one(DatasetReading, dataset_id)


def counted(api: Api, *tables: type[Any]) -> list[int]:
    with api.db.read() as session:
        return [session.scalar(select(func.count()).select_from(table)) or 0 for table in tables]


def actions(api: Api) -> list[str]:
    with api.db.read() as session:
        found = session.scalars(select(AuditEntry).where(AuditEntry.action.startswith("dataset."))).all()
        assert {each.actor for each in found} == {api.key_ids["owner"]}
        return [each.action for each in found]


def problem(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["type"].removeprefix("/problems/")


def test_a_large_file_is_accepted_and_read_later(api: Api, reader: Reader) -> None:
    answer = api.upload(spec())
    made = answer.json()
    assert answer.status_code == 201 and answer.headers["Location"] == f"/v1/datasets/{made['id']}"
    assert made["state"] == "reading" and made["privacy"]["order"] is None
    unknown = ("shape", "content_hmac", "content_sha256", "ledger", "read")
    assert [made[name] for name in unknown] == [None] * 5
    told = {"bytes": len(CSV), "bytes_read": 0, "problem": None, "read": None, "warnings": None, "ended_at": None}
    assert made["reading"] == told
    assert api.get(f"/v1/datasets/{made['id']}").json() == made
    assert api.get("/v1/datasets/small").json() == made
    assert api.get("/v1/datasets").json() == {"items": [made], "next": None}
    assert counted(api, Dataset, Account, LedgerEntry) == [0, 0, 0]

    assert reader.run_once() and not reader.run_once()
    found = api.get("/v1/datasets/small").json()
    assert (found["id"], found["state"]) == (made["id"], "ready")
    assert found["shape"]["records_train"] == 48 and found["ledger"]["entries"] == 1
    assert found["content_sha256"] == hashlib.sha256(CSV.encode()).hexdigest()
    assert found["reading"]["read"]["records"] == 60 and found["reading"]["warnings"] == []
    assert found["reading"]["bytes_read"] == len(CSV) and found["reading"]["ended_at"] is not None
    assert counted(api, Dataset, Account, LedgerEntry) == [1, 1, 1]
    assert all(each.split("/")[:2] in (["datasets", made["id"]], ["units", made["id"]]) for each in api.stored())
    assert actions(api) == ["dataset.reading", "dataset.registered"]


def test_only_the_owner_and_admins_see_it(api: Api, reader: Reader) -> None:
    made = accepted(api)
    for who in ("other-owner", "analyst"):
        for name in (made, "small"):
            assert problem(api.get(f"/v1/datasets/{name}", who)) == (404, "not-found")
        assert api.get("/v1/datasets", who).json()["items"] == []
    assert api.get(f"/v1/datasets/{made}", "admin").json()["state"] == "reading"
    reader.run_once()
    api.share(made)
    assert api.get(f"/v1/datasets/{made}", "analyst").json()["reading"] is None


JOB = {
    "dataset": "small",
    "model": {"kind": "linear"},
    "optimizer": {"kind": "dp_sgd", "learning_rate": 1.0},
    "privacy": {"target_epsilon": 1.0, "target_delta": 1e-5},
    "clipping": {"kind": "flat", "max_grad_norm": 1.0},
    "sampling": {"kind": "full_batch"},
    "length": {"steps": 5},
}


@pytest.mark.parametrize("file", [CSV, BAD])
def test_nothing_can_use_it_before_it_is_ready(api: Api, reader: Reader, file: str) -> None:
    made = accepted(api, file=file)
    if file == BAD:
        reader.run_once()
    post = api.client.post
    owner, key = api.headers("owner"), {"Idempotency-Key": "once"}
    asked = [
        post("/v1/quotes", json=JOB, headers=owner),
        post("/v1/jobs", json=JOB | {"dataset": made}, headers=owner | key),
        api.get(f"/v1/datasets/{made}/ledger"),
        post(f"/v1/datasets/{made}/declarations", json={"records": 50}, headers=owner),
        api.client.put(f"/v1/datasets/{made}/grants/{api.key_ids['analyst']}", json={"access": "view"}, headers=owner),
    ]
    assert [problem(each) for each in asked] == [(409, "not-ready")] * len(asked)
    assert asked[0].json()["state"] == ("rejected" if file == BAD else "reading")


def test_it_is_rejected_in_the_words_of_a_request(api: Api, reader: Reader) -> None:
    parts = {"spec": (None, json.dumps(spec()), "application/json"), "file": ("file", BAD)}
    at_once = api.client.post("/v1/datasets/check", files=parts, headers=api.headers("owner"))
    made = accepted(api, file=BAD)
    reader.run_once()
    found = api.get(f"/v1/datasets/{made}").json()
    told, stored = at_once.json(), found["reading"]["problem"]
    assert at_once.status_code == 422 and found["state"] == "rejected"
    (column, *cells), (same, *rows) = told.pop("errors"), stored.pop("errors")
    assert (told, column) == (stored, same)
    assert cells[0]["detail"] == f"row {cells[0]['row']}, column 'b': 'many' is not a number"
    assert rows[0]["detail"] == f"row {cells[0]['row']}, column 'b': not a number" and len(rows) == len(cells)
    assert api.get(f"/v1/datasets/{made}", "admin").json()["reading"]["problem"] is None
    with api.db.read() as session:
        tables = [str(list(session.execute(select(each.__table__)))) for each in (DatasetReading, AuditEntry)]
    assert "rejected" in tables[0] and not any("many" in each for each in tables), "no value is stored"
    assert counted(api, Dataset, Account) == [0, 0] and api.stored() == set()
    assert actions(api) == ["dataset.reading", "dataset.rejected"]
    accepted(api)  # its name is free
    assert api.get("/v1/datasets/small").json()["state"] == "reading"


ONLY_OWNER = {"problem", "read", "warnings", "suggested_records"}


def private_members(answer: Any) -> list[Any]:
    """What an answer says of a file, however deep."""
    if isinstance(answer, list):
        return [found for each in answer for found in private_members(each)]
    if not isinstance(answer, dict):
        return []
    mine = [value for name, value in answer.items() if name in ONLY_OWNER and value]
    return mine + [found for value in answer.values() for found in private_members(value)]


@pytest.mark.parametrize("end", ["read", "rejected", "ragged"])
def test_what_a_file_holds_is_told_to_its_owner_alone(api: Api, reader: Reader, end: str) -> None:
    file = CSV + "9,many,1\n" if end == "read" else BAD if end == "rejected" else CSV + "1,2\n"
    made = accepted(api, file=file, **({"wrong_rows": "drop"} if end == "read" else {}))
    reader.run_once()
    answers = {}
    for who in ("owner", "admin"):
        answers[who] = [api.get(f"/v1/datasets{path}", who).json() for path in ("", f"/{made}", f"/{made}/events")]
        if end == "read":
            address, asked = f"/v1/datasets/{made}/declarations", {"records": 55, "dry_run": True}
            answers[who].append(api.client.post(address, json=asked, headers=api.headers(who)).json())
    assert [bool(private_members(each)) for each in answers["owner"]] == [end != "read", True, True, True][
        : len(answers["owner"])
    ]
    assert private_members(answers["admin"]) == []


def test_a_refused_declaration_tells_the_count_to_the_owner_alone(api: Api, reader: Reader) -> None:
    made = accepted(api)
    reader.run_once()
    asked = {"slots": {"train": 7}, "records": 5, "dry_run": True}
    address = f"/v1/datasets/{made}/declarations"
    mine, theirs = (api.client.post(address, json=asked, headers=api.headers(who)) for who in ("owner", "admin"))
    assert mine.status_code == theirs.status_code == 422
    count = re.search(r"there are (\d+) records", mine.json()["detail"])
    assert count is not None and count[1] not in theirs.json()["detail"] + str(theirs.json()["errors"])
    assert mine.json()["errors"][0]["pointer"] == theirs.json()["errors"][0]["pointer"]


def test_a_name_is_taken_while_its_file_is_read(api: Api, reader: Reader) -> None:
    accepted(api)
    other = {"file": CSV.replace("1,1,1\n", "1,2,1\n"), "who": "other-owner"}
    assert problem(api.upload(spec(), **other)) == (409, "duplicate-name")
    reader.run_once()
    assert problem(api.upload(spec(), **other)) == (409, "duplicate-name")
    parts = {"spec": (None, json.dumps(spec()), "application/json"), "file": ("file", CSV)}
    again = api.client.post("/v1/datasets/check", files=parts, headers=api.headers("owner")).json()
    assert len([each for each in again["warnings"] if "would be refused" in each]) == 2


def test_content_is_registered_once_even_if_two_are_read(api: Api, reader: Reader) -> None:
    first, second = accepted(api), accepted(api, "again")
    reader.run_once()
    reader.run_once()
    assert api.get(f"/v1/datasets/{first}").json()["state"] == "ready"
    refused = api.get(f"/v1/datasets/{second}").json()["reading"]["problem"]
    assert refused["type"] == "/problems/duplicate-content" and refused["dataset"] == first
    assert counted(api, Dataset, Account) == [1, 1]


def test_a_bad_declaration_is_refused_at_once(api: Api) -> None:
    assert problem(api.upload(spec(**private(filter="rdp", order=1.5, cap={"epsilon": 1e-4})))) == (
        422,
        "invalid-request",
    )
    assert problem(api.upload(spec(holdout={"kind": "public"}))) == (422, "invalid-request")
    assert problem(api.by_path(spec() | {"path": "nowhere.csv"})) == (422, "invalid-request")
    assert counted(api, DatasetReading) == [0] and api.stored() == set()


def delete(api: Api, dataset: str) -> Any:
    return api.client.delete(f"/v1/datasets/{dataset}/content", headers=api.headers("owner"))


def retire(api: Api, dataset: str) -> Any:
    return api.client.post(f"/v1/datasets/{dataset}/retire", headers=api.headers("owner"))


@pytest.mark.parametrize("how", [delete, retire])
@pytest.mark.parametrize("file", [CSV, BAD])
def test_the_owner_takes_it_back(api: Api, reader: Reader, how: Callable[[Api, str], Any], file: str) -> None:
    made = accepted(api, file=file)
    if file == BAD:
        reader.run_once()
    answer = how(api, made)
    assert (answer.status_code, answer.json()["state"]) == (200, "retired")
    assert problem(api.get(f"/v1/datasets/{made}")) == (404, "not-found")
    assert problem(how(api, made)) == (404, "not-found")
    assert not reader.run_once() and api.stored() == set()
    assert actions(api)[-1] == "dataset.withdrawn"
    accepted(api)


def begun(api: Api, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> tuple[readings.Claimed, Callable[[], None]]:
    """A claim whose file is parsed: only its end is missing."""
    claimed = readings.claim(api.db, 30.0)
    assert claimed is not None
    ends: list[Callable[[], None]] = []
    with monkeypatch.context() as patch:
        patch.setattr(File, "_again", lambda _, store: ends.append(store))
        file = File(api.db, api.settings, reader._parsers, claimed, Watch())
        file.parse_and_store(readings.folder_of(api.settings, claimed.id))
    return claimed, ends[0]


def test_who_reads_it_finds_that_it_was_taken_back(api: Api, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    made = accepted(api)
    claimed, end = begun(api, reader, monkeypatch)
    delete(api, made)
    with pytest.raises(readings.Lost):
        readings.renew(api.db, claimed, 30.0, 5)
    with pytest.raises(readings.Lost):
        end()
    assert counted(api, Dataset, DatasetReading) == [0, 0] and api.stored() == set()


def test_of_two_readers_one_writes_an_end(api: Api, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    made = accepted(api)
    late, end = begun(api, reader, monkeypatch)
    assert readings.claim(api.db, 30.0) is None
    expire_all_leases(api.db)  # it was stopped for longer than its lease
    assert Reader(api.db, api.settings).run_once()
    kept = api.stored()
    for write in (end, lambda: readings.reject(api.db, late, InvalidRequest("too late"))):
        with pytest.raises(readings.Lost):
            write()
    assert api.stored() >= kept and counted(api, Dataset, Account, LedgerEntry) == [1, 1, 1]
    assert (row_of(api, made).attempt, row_of(api, made).deaths) == (2, 1)
    assert api.get(f"/v1/datasets/{made}").json()["reading"]["read"]["records"] == 60


@pytest.mark.parametrize("backing", ["sqlite"], indirect=True)  # PostgreSQL is asked at every look
def test_a_dead_reader_s_file_waits_for_its_lease_and_two_seconds_more(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No commit says that a lease is over. The clocks stand still until the reader has seen that it holds."""
    made = accepted(api)
    seconds, looked, real = [clock.boottime()], threading.Event(), readings.claim

    def claim(*given: Any, **named: Any) -> Claimed | None:
        claimed = real(*given, **named)
        looked.set()
        return claimed

    monkeypatch.setattr(clock, "boottime", lambda: seconds[0])
    monkeypatch.setattr(changes, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    assert readings.claim(api.db, 30.0) is not None  # by a process that dies
    monkeypatch.setattr(readings, "claim", claim)
    reader = Reader(api.db, api.settings.model_copy(update={"max_readers": 1, "lease_s": 300.0}))
    reader.start()
    try:
        assert looked.wait(60.0)
        seconds[0] += 29.5
        looked.clear()
        assert looked.wait(60.0) and row_of(api, made).attempt == 1
        seconds[0] += changes.LONGEST_S
        ends = time.monotonic() + 60.0
        while row_of(api, made).state == "reading" and time.monotonic() < ends:
            time.sleep(0.05)
        assert (row_of(api, made).state, row_of(api, made).attempt) == ("ready", 2)
    finally:
        reader.close()


def test_a_death_between_files_and_commit_leaves_no_second_result(api: Api, reader: Reader) -> None:
    made = accepted(api)
    left = api.settings.storage_root / "datasets" / made
    left.mkdir(parents=True, mode=0o700)
    (left / "train.arrow").write_bytes(b"of another attempt")
    reader.run_once()
    assert api.get(f"/v1/datasets/{made}").json()["state"] == "ready"
    assert (left / "train.arrow").read_bytes() != b"of another attempt"
    assert [each for each in api.stored() if each.startswith("staging/left_")]


def test_a_file_that_kills_every_reader_is_rejected(api: Api, reader: Reader) -> None:
    made = accepted(api)
    for _ in range(api.settings.max_attempts):
        assert readings.claim(api.db, 30.0) is not None
        expire_all_leases(api.db)
    reader.run_once()
    found = api.get(f"/v1/datasets/{made}").json()
    assert found["reading"]["problem"]["type"] == "/problems/limit-exceeded"
    assert "stopped 5 times" in found["reading"]["problem"]["detail"]


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_service_that_stops_gives_it_back(
    api: Api, reader: Reader, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    made, read = accepted(api), File.parse_and_store

    def stopped(file: File, folder: Path) -> None:
        reader.close()
        read(file, folder)

    if when == "before":
        reader.close()
    else:
        monkeypatch.setattr(File, "parse_and_store", stopped)
    assert reader.run_once()
    monkeypatch.undo()
    assert (row_of(api, made).state, row_of(api, made).lease_until) == ("reading", None)
    assert Reader(api.db, api.settings).run_once()
    assert (row_of(api, made).state, row_of(api, made).deaths) == ("ready", 0)


def test_a_restored_database_whose_file_is_gone(api: Api, reader: Reader) -> None:
    made = accepted(api)
    shutil.rmtree(readings.folder_of(api.settings, made))
    reader.run_once()
    assert "file is gone" in api.get(f"/v1/datasets/{made}").json()["reading"]["problem"]["detail"]


def test_files_by_path_are_copied_in_the_background(api: Api, reader: Reader) -> None:
    file = Path(str(api.settings.data_root)) / "d.csv"
    file.write_text(CSV)
    made = api.by_path(spec() | {"path": "d.csv"}).json()
    assert made["state"] == "reading" and "path" not in made and api.stored() == set()
    half = readings.folder_of(api.settings, made["id"]) / "file.part"
    half.write_text("half of a copy, from a process that died")
    reader.run_once()
    assert api.get("/v1/datasets/small").json()["content_sha256"] == hashlib.sha256(CSV.encode()).hexdigest()
    gone = api.by_path(spec("other", **PUBLIC) | {"path": "d.csv"}).json()["id"]
    file.unlink()
    reader.run_once()
    assert "no such file under the data root" in api.get(f"/v1/datasets/{gone}").json()["reading"]["problem"]["detail"]


def test_uploads_in_pieces_are_compared_in_the_background(api: Api, reader: Reader) -> None:
    right, wrong = hashlib.sha256(CSV.encode()).hexdigest(), hashlib.sha256(b"other").hexdigest()
    for sha256, name in ((wrong, "wrong"), (right, "right")):
        upload = whole(api, sha256=sha256)
        assert api.by_path(spec(name) | {"upload": upload}).json()["state"] == "reading"
        reader.run_once()
    assert not list((api.settings.storage_root / "uploads").glob("up_*"))
    found = api.get("/v1/datasets/wrong").json()["reading"]["problem"]
    assert found["errors"][0]["pointer"] == "/upload" and "SHA-256" in found["detail"]
    assert api.get("/v1/datasets/right").json()["state"] == "ready"


def test_progress_is_what_was_read_and_never_more_than_the_file(api: Api) -> None:
    made = accepted(api)
    claimed = readings.claim(api.db, 30.0)
    assert claimed is not None
    for told, shown in ((7, 7), (10**9, len(CSV))):
        readings.renew(api.db, claimed, 30.0, told)
        assert api.get(f"/v1/datasets/{made}").json()["reading"]["bytes_read"] == shown


def test_what_was_read_is_forgotten_after_a_day(api: Api, reader: Reader) -> None:
    made, refused = accepted(api), accepted(api, "refused", BAD)
    reader.run_once()
    reader.run_once()
    waiting = accepted(api, "waiting", CSV.replace("1,1,1\n", "1,2,1\n"))
    retention.sweep(api.db, api.settings)
    assert counted(api, DatasetReading) == [3]
    with api.db.write() as session:
        old = {"created_at": now() - timedelta(days=3), "ended_at": now() - timedelta(days=2)}
        session.execute(update(DatasetReading).where(DatasetReading.id != waiting).values(**old))
    retention.sweep(api.db, api.settings)
    assert api.get(f"/v1/datasets/{made}").json()["reading"] is None
    assert problem(api.get(f"/v1/datasets/{refused}")) == (404, "not-found")
    assert api.get(f"/v1/datasets/{waiting}").json()["state"] == "reading"


def test_lists_are_paged_through_both_kinds(api: Api, reader: Reader) -> None:
    names = []
    for number in range(5):
        accepted(api, f"set-{number}", CSV + f"{number},1,1\n", **PUBLIC)
        names.append(f"set-{number}")
        if number % 2:
            reader.run_once()
    seen, after = [], ""
    while after is not None:
        page = api.get(f"/v1/datasets?limit=2{after and f'&after={after}'}").json()
        seen += [each["name"] for each in page["items"]]
        after = page["next"]
    assert sorted(seen) == names


def test_it_is_read_again_if_the_data_key_was_rotated_meanwhile(
    api: Api, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.datasets.read_file.TRIES", 1)
    monkeypatch.setattr("app.datasets.read_file.AGAIN_S", 0.0)
    accepted(api, "first", **PUBLIC)
    reader.run_once()
    made = accepted(api, file=CSV.replace("1,1,1\n", "1,2,1\n"))
    with api.db.write() as session:
        under = session.scalars(select(DatasetContent.key_id)).first()
        session.execute(update(DatasetContent).values(key_id="another"))
    assert reader.run_once()
    assert (row_of(api, made).state, row_of(api, made).lease_until) == ("reading", None)
    with api.db.write() as session:
        session.execute(update(DatasetContent).values(key_id=under))
    reader.run_once()
    assert (row_of(api, made).state, row_of(api, made).attempt) == ("ready", 2)


def test_a_client_waits_and_hears_of_refusals(api: Api, reader: Reader) -> None:
    client = Client("http://testserver", api.tokens["owner"])
    client._http = api.client
    api.client.headers.update(api.headers("owner"))
    told: list[tuple[int, int]] = []
    good, bad = (
        RegisteredDataset.model_validate(api.upload(spec(f"a{n}"), file).json()) for n, file in enumerate((CSV, BAD))
    )
    assert good.state == bad.state == "reading" and good.read is None and good.shape.records_train == 0
    reader.start()
    try:
        ready = wait_until_read(client, good, lambda *each: told.append(each))
        assert (ready.state, ready.shape.records_train) == ("ready", 48)
        assert ready.read is not None and ready.read.records == 60 and told[-1] == (len(CSV), len(CSV))
        with pytest.raises(Refused) as caught:
            wait_until_read(client, bad, None)
        assert caught.value.errors[0]["pointer"] == "/features/columns/1"
    finally:
        reader.close()


def test_small_files_are_ready_at_once(settings: Settings, db: Database) -> None:
    api = Api(settings, db)
    assert api.upload(spec()).json()["state"] == "ready"
    assert counted(api, DatasetReading) == [0]
    api.client.close()
    api.client.app.state.pricing.close()  # type: ignore[attr-defined]
    api.client.app.state.db.close()  # type: ignore[attr-defined]
