"""A home whose data sets are sealed: what arrives, what is stored, and its keys from the first to the last."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select
from typer.testing import CliRunner

from app.datasets.read_file import File
from app.datasets.reader import Reader
from app.db.models import AuditEntry, Dataset
from app.main import create_app
from app.renewal import resealing, rotation
from app.secrets import load_secret, load_secrets, secret_id, write_private
from app.storage.seals import KeyMissing, Seals, opened
from core.parts.damage import DataDamagedError
from core.parts.part_files import load_part, save_part
from core.parts.sealed import HEADER_BYTES, MAGIC, header_of
from scrimp.cli import app
from scrimp_server.doctor import examine
from tests.datasets.conftest import CSV, Api, MakeApi, spec
from tests.datasets.test_blocks import append, rows
from tests.datasets.test_declarations import declare
from tests.datasets.test_resumable import begun, piece, uploads
from tests.formats.test_part_files import part_of

# Of one record: as text, and as it is stored.
PLANTED = 27182.818284
NEEDLES = (b"27182.8", struct.pack("<f", PLANTED), struct.pack("<d", PLANTED))
DATA = CSV + f"{PLANTED},3,1\n"


def traces(home: Path) -> set[str]:
    """The files under a folder that have a planted record in plaintext."""
    files = [path for path in home.rglob("*") if path.is_file()]
    return {str(path.relative_to(home)) for path in files if any(needle in path.read_bytes() for needle in NEEDLES)}


def parts(api: Api) -> dict[str, tuple[Path, str]]:
    """Each stored part, and its hash."""
    with api.db.read() as session:
        return {
            f"{row.name}/{name}": (api.settings.storage_root / part.path, part.sha256)
            for row in session.scalars(select(Dataset))
            for name, part in row.parts
            if part is not None
        }


def contents(api: Api) -> dict[str, bytes]:
    """What the parts hold, by the keys that are here."""
    seals, found = Seals(api.settings), {}
    for name, (path, sha256) in parts(api).items():
        key = seals.key_of(path)
        part = load_part(path, sha256, None if key is None else key.key)
        found[name] = np.asarray(part.x).tobytes() + part.y.tobytes()
    return found


def with_keys(api: Api, *keys: bytes) -> None:
    """Puts these parts keys into the secret's file."""
    text = "".join(f"{each.hex()}\n" for each in keys)
    write_private(api.settings.effective_secrets_dir / "parts_key", text, overwrite=True)


@pytest.fixture
def api(make_api: MakeApi) -> Api:
    return make_api(encrypt_parts=True)


def test_a_registration_leaves_no_plaintext(make_api: MakeApi) -> None:
    """The same search finds the record where nothing is sealed."""
    shown = []
    for sealed in (True, False):
        api = make_api(encrypt_parts=sealed)
        made = api.upload(spec(), DATA)
        assert made.status_code == 201, made.text
        found = traces(api.settings.home)
        assert bool(found) is not sealed, found
        assert len(list((api.settings.storage_root / "units").rglob("*"))) == 2
        assert {header_of(path) is not None for path, _ in parts(api).values()} == {sealed}
        shown.append(made.json()["content_sha256"])
    assert shown[0] == shown[1] == hashlib.sha256(DATA.encode()).hexdigest()
    units = [path for path in (api.settings.storage_root / "units").rglob("*") if path.is_file()]
    assert [header_of(path) for path in units] == [None]


@pytest.mark.parametrize("how", ["sent", "in pieces", "by path"])
def test_a_file_that_waits_is_sealed_and_read(
    make_api: MakeApi, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = make_api(encrypt_parts=True, read_at_once_bytes=0, data_root=tmp_path / "root")
    if how == "sent":
        made = api.upload(spec(), DATA)
    elif how == "by path":
        (tmp_path / "root").mkdir()
        (tmp_path / "root" / "data.csv").write_text(DATA)
        made = api.by_path(spec() | {"path": "data.csv"})
    else:
        content, at = DATA.encode(), 0
        upload = begun(api, len(content), sha256=hashlib.sha256(content).hexdigest())
        for size in (1, 99, 16, len(content)):
            assert piece(api, upload, at, content[at : at + size]).json()["offset"] == min(at + size, len(content))
            assert traces(api.settings.home) == set()
            at += size
        (folder,) = uploads(api)
        assert (folder / "file.sealed").stat().st_size == HEADER_BYTES + len(content)
        made = api.by_path(spec() | {"upload": upload})
    assert made.json()["state"] == "reading" and made.json()["reading"]["bytes"] == len(DATA)
    seen = []
    parse = File.parse_and_store

    def looking(*args: Any) -> None:
        seen.append(traces(api.settings.home))
        parse(*args)

    monkeypatch.setattr(File, "parse_and_store", looking)
    assert traces(api.settings.home) == set() and Reader(api.db, api.settings).run_once()
    assert api.get(f"/v1/datasets/{made.json()['id']}").json()["state"] == "ready"
    assert seen == [set()] and traces(api.settings.home) == set()


def test_a_damaged_upload_is_found_by_its_declared_hash(api: Api) -> None:
    content = DATA.encode()
    upload = begun(api, len(content), sha256=hashlib.sha256(content).hexdigest())
    piece(api, upload, 0, content)
    (folder,) = uploads(api)
    with (folder / "file.sealed").open("r+b") as file:
        file.seek(-3, 2)
        file.write(b"x")
    refused = api.by_path(spec() | {"upload": upload})
    assert refused.status_code == 422 and "SHA-256 is not the declared one" in refused.text


def test_a_sent_file_is_never_taken_for_a_sealed_one(make_api: MakeApi) -> None:
    """Whoever stole a sealed part would have the service open it."""
    api = make_api()
    stolen = api.settings.home / "stolen"
    stolen_of = make_api(encrypt_parts=True)
    with_keys(api, load_secret(stolen_of.settings, "parts_key"))
    assert stolen_of.upload(spec(), DATA).status_code == 201
    stolen.write_bytes(parts(stolen_of)["small/train"][0].read_bytes())
    assert stolen.read_bytes().startswith(MAGIC)
    for document in (spec(), spec() | {"format": "arrow"}):
        assert api.upload(document, stolen).status_code == 422
    upload = begun(api, stolen.stat().st_size)
    piece(api, upload, 0, stolen.read_bytes())
    assert api.by_path(spec() | {"upload": upload, "format": "arrow"}).status_code == 422
    before = next(uploads(api)[0].glob("file")).read_bytes()
    rotation.rotate(api.db, api.settings, "parts_key")
    assert next(uploads(api)[0].glob("file")).read_bytes() == before, "nor is it given another wrap"


def test_blocks_are_compared_by_sealed_digests(api: Api) -> None:
    made = api.upload(spec(), rows(range(60))).json()["id"]
    assert append(api, made, rows(range(100, 160))).status_code == 201
    shared = append(api, made, rows(range(159, 200)), "2026-11", 41)
    assert shared.json()["type"] == "/problems/duplicate-content" and shared.json()["shared"] == {"2026-10": 1}
    key = load_secret(api.settings, "parts_key")
    with_keys(api, bytes(32))
    away = append(api, made, rows(range(300, 360)), "2026-12")
    assert away.status_code == 503 and secret_id(key) in away.json()["detail"]
    assert "put that key back as a line of parts_key" in away.json()["detail"]


def test_a_declaration_is_changed_where_parts_are_sealed(api: Api) -> None:
    made = api.upload(spec(), DATA).json()["id"]
    changed = declare(api, made, records=70)
    assert changed.status_code == 201, changed.text


def chunks(api: Api) -> dict[str, bytes]:
    return {name: path.read_bytes()[HEADER_BYTES:] for name, (path, _) in parts(api).items()}


def test_a_rotation_writes_no_part_and_the_old_key_opens_nothing(api: Api) -> None:
    assert api.upload(spec(), DATA).status_code == 201
    held, before, old = contents(api), chunks(api), load_secret(api.settings, "parts_key")
    rotation.rotate(api.db, api.settings, "parts_key")
    assert api.upload(spec("later"), CSV).status_code == 201
    new, kept = load_secrets(api.settings, "parts_key")
    assert kept == old
    for key in (old, new):  # processes that have not read the new one go on
        for name in ("small/train", "small/holdout"):
            header = header_of(parts(api)[name][0])
            assert header is not None and opened(header, (key,))
    with pytest.raises(rotation.SecretError, match="finish parts_key first"):
        rotation.rotate(api.db, api.settings, "parts_key")
    rotation.finish(api.db, api.settings, "parts_key")
    assert load_secrets(api.settings, "parts_key") == (new,)
    assert {name: each for name, each in contents(api).items() if name in held} == held
    assert {name: each for name, each in chunks(api).items() if name in before} == before, "only headers changed"
    for path in api.settings.storage_root.rglob("*"):
        if path.is_file() and (header := header_of(path)) is not None:
            assert any(header.wraps[1]) is not any(header.wraps[0])
            with pytest.raises(KeyMissing, match=secret_id(new)):
                opened(header, (old,))
            assert secret_id(old).encode() not in path.read_bytes()


@pytest.mark.parametrize("torn", [False, True])
def test_a_rotation_that_dies_anywhere_loses_nothing(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch, torn: bool
) -> None:
    """After each write of a header: whole, or with its first half alone on disk."""
    api, put = make_api(encrypt_parts=True), resealing._put
    assert api.upload(spec(), DATA).status_code == 201
    held, old = contents(api), load_secret(api.settings, "parts_key")

    class Died(Exception):
        pass

    def dying(after: int) -> Callable[..., None]:
        left = [after]

        def put_or_die(descriptor: int, place: int, content: bytes) -> None:
            left[0] -= 1
            if left[0] < 0:
                if torn:
                    put(descriptor, place, content[: len(content) // 2])
                raise Died
            put(descriptor, place, content)

        return put_or_die

    step, deaths = rotation.rotate, 0
    while True:
        monkeypatch.setattr(resealing, "_put", dying(deaths % 3))
        try:
            step(api.db, api.settings, "parts_key")
            break
        except Died:
            assert contents(api) == held
            step, deaths = rotation.finish, deaths + 1  # what a rotation that died is continued by
    assert deaths > 3
    monkeypatch.undo()
    rotation.finish(api.db, api.settings, "parts_key")
    assert contents(api) == held and old not in load_secrets(api.settings, "parts_key")
    assert resealing.look(api.settings, (old,)).sealed == 0


def test_what_was_stored_before_is_sealed_by_a_command(make_api: MakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    before = make_api()
    assert before.upload(spec(), DATA).status_code == 201
    held, home = contents(before), before.settings.home
    features = next((before.settings.storage_root / "datasets").iterdir()) / "features"
    features.mkdir()
    save_part(features / "key.sha256.arrow", part_of("dense", 9))
    runner = CliRunner()
    monkeypatch.setenv("SCRIMP_HOME", "")  # the commands change it
    refused = runner.invoke(app, ["secrets", "seal", "--home", str(home)])
    assert refused.exit_code == 1 and "SCRIMP_ENCRYPT_PARTS" in refused.output
    assert traces(home), "it is there"
    settings = before.settings.model_copy(update={"encrypt_parts": True})
    (said,) = [each for each in examine(settings) if each.part == "sealed"]
    assert said.state == "fault" and "in plaintext" in said.says and "scrimp secrets seal" in said.advice
    monkeypatch.setenv("SCRIMP_ENCRYPT_PARTS", "true")
    with monkeypatch.context() as patched:
        patched.setattr(resealing, "finish", _full)
        died = runner.invoke(app, ["secrets", "seal", "--home", str(home)])
    assert died.exit_code == 1 and "No space left" in died.output
    assert contents(before) == held and not list(home.rglob("*.sealing")), "a disk that is full changes nothing"
    done = runner.invoke(app, ["secrets", "seal", "--home", str(home)])
    assert done.exit_code == 0 and "7 files were sealed" in done.output, done.output
    assert traces(home) == set() and contents(before) == held
    with before.db.read() as session:
        entries = session.scalars(select(AuditEntry).where(AuditEntry.action == "files.sealed").order_by(AuditEntry.id))
        assert [(each.outcome, each.details, each.actor) for each in entries] == [
            ("failed", {}, None),
            ("done", {"files": 7}, None),
        ]
    (said,) = [each for each in examine(settings) if each.part == "sealed"]
    assert said.state == "ok", said
    with_keys(before, bytes(32))
    (said,) = [each for each in examine(settings) if each.part == "sealed"]
    assert said.state == "fault" and "which is not here" in said.says
    with pytest.raises(KeyMissing):
        contents(before)


def _full(_file: Any) -> None:
    raise OSError(28, "No space left on device")


def test_without_its_key_a_service_does_not_start(make_api: MakeApi) -> None:
    api = make_api(encrypt_parts=True)
    (api.settings.effective_secrets_dir / "parts_key").unlink()
    with pytest.raises(rotation.SecretError, match="the secret parts_key is missing"):
        create_app(api.settings)


def test_a_changed_header_is_damage(api: Api) -> None:
    assert api.upload(spec(), DATA).status_code == 201
    path, _ = parts(api)["small/train"]
    stored = bytearray(path.read_bytes())
    stored[64 + 50] ^= 1
    path.write_bytes(bytes(stored))
    with pytest.raises(DataDamagedError):
        Seals(api.settings).key_of(path)
