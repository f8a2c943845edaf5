"""Every secret of the service is replaced by a command, and what depended on it goes on or ends as it should."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select

from app.datasets import hashes, parsed
from app.db.database import Database
from app.db.models import ApiKey, AuditEntry, Dataset, DatasetContent, Job, Webhook
from app.keys import service as keys
from app.ledger.signer import public_key
from app.ledger.signing_keys import signing_key
from app.lifecycle.attempts import AttemptLog
from app.renewal import rotation
from app.secrets import NAMES, SecretError, load_secret, load_secrets, secret_id
from app.settings import Settings
from app.webhooks import encryption
from core.errors import Unavailable
from scrimp.recompute import check_signature
from tests import processes
from tests.access.world import World
from tests.dashboard.conftest import Browser
from tests.dashboard.scene import Key
from tests.datasets.conftest import CSV, MakeApi, make_api, spec
from tests.worker.support import ROOT
from worker.attempt.supervisor import Supervised

__all__ = ["make_api"]


@pytest.fixture
def backing() -> str:
    return "sqlite"


def restarted(world: World) -> World:
    """The same service, its processes started again."""
    return world.copy(world.settings, world.db)


def test_a_token_goes_under_the_new_pepper_when_it_is_used(world: World) -> None:
    old = load_secret(world.settings, "api_key_pepper")
    rotation.rotate(world.db, world.settings, "api_key_pepper")
    world = restarted(world)
    new = load_secret(world.settings, "api_key_pepper")
    assert new != old and load_secrets(world.settings, "api_key_pepper") == (new, old)
    assert world.ask("trainer", "GET", "/v1/jobs").status_code == 200
    assert world.ask("trainer", "GET", f"/v1/jobs/{world.mine.job}").status_code == 200
    assert world.ask("unknown", "GET", "/v1/jobs").status_code == 401
    with world.db.read() as session:
        kept = {who: session.get_one(ApiKey, world.ids[who]).secret_hmac for who in ("trainer", "looker")}
    assert kept["trainer"] == keys.digest(new, world.tokens["trainer"])
    assert kept["looker"] == keys.digest(old, world.tokens["looker"])
    rotation.finish(world.db, world.settings, "api_key_pepper")
    world = restarted(world)
    assert load_secrets(world.settings, "api_key_pepper") == (new,)
    assert world.ask("trainer", "GET", "/v1/jobs").status_code == 200
    assert world.ask("looker", "GET", "/v1/jobs").status_code == 401, "it was not used in between"


def test_the_first_admin_key_survives_a_new_pepper(settings: Settings, db: Database) -> None:
    path = keys.ensure_admin_key(db, settings)
    token = path.read_text()
    rotation.rotate(db, settings, "api_key_pepper")
    assert keys.ensure_admin_key(db, settings).read_text() == token


def test_who_is_signed_in_signs_in_again(world: World) -> None:
    browser = Browser(world.client)
    assert browser.sign_in(Key(world.ids["admin"], world.tokens["admin"], "admin")).status_code == 303
    assert world.client.get("/dashboard").status_code == 200
    rotation.rotate(world.db, world.settings, "session_key")
    assert world.client.get("/dashboard").status_code == 303, "at once: it is read for each request"
    assert len(load_secrets(world.settings, "session_key")) == 1


def test_webhooks_secrets_are_encrypted_anew(world: World) -> None:
    hook = {"url": "https://93.184.216.34/", "events": ["job.succeeded"]}
    made = [world.ask("trainer", "POST", "/v1/webhooks", json=hook).json() for _ in range(2)]
    again = world.ask("trainer", "POST", f"/v1/webhooks/{made[1]['webhook']['id']}/rotate-secret").json()
    old = load_secret(world.settings, "webhook_key")
    rotation.rotate(world.db, world.settings, "webhook_key")
    found = load_secrets(world.settings, "webhook_key")
    stored = {each["webhook"]["id"]: each["secret"] for each in (made[0], again)}

    def rows() -> list[Webhook]:
        with world.db.read() as session:
            return list(session.scalars(select(Webhook).where(Webhook.id.in_(stored))))

    assert {each.id: encryption.decrypt(found, each.id, each.secret) for each in rows()} == stored, (
        "both keys are there"
    )
    rotation.finish(world.db, world.settings, "webhook_key")
    (new,) = load_secrets(world.settings, "webhook_key")
    assert {each.id: encryption.decrypt(new, each.id, each.secret) for each in rows()} == stored
    previous = [each.previous_secret for each in rows() if each.previous_secret is not None]
    assert len(previous) == 1 and encryption.decrypt(new, made[1]["webhook"]["id"], previous[0]) == made[1]["secret"]
    for each in rows():
        with pytest.raises(encryption.Unreadable):
            encryption.decrypt(old, each.id, each.secret)


def test_content_stays_known_under_a_new_data_key(make_api: MakeApi) -> None:
    api = make_api()
    made = api.upload(spec()).json()
    gone = api.upload(spec("gone"), CSV.replace("1,", "2,")).json()
    assert api.client.delete(f"/v1/datasets/{gone['id']}/content", headers=api.headers("owner")).status_code == 200
    for turn in range(2):
        rotation.rotate(api.db, api.settings, "data_hmac_key")
        for name, file in (("again", CSV), ("deleted", CSV.replace("1,", "2,"))):
            answer = api.upload(spec(f"{name}-{turn}"), file)
            assert (answer.status_code, answer.json()["type"]) == (409, "/problems/duplicate-content"), (name, turn)
        shown = api.get(f"/v1/datasets/{made['id']}").json()["content_hmac"]
        assert shown == made["content_hmac"], "what certificates name it by stays"
        fresh = api.upload(spec(f"fresh-{turn}"), CSV.replace("0\n", "1\n").replace("3,", f"{turn}.5,"))
        assert fresh.status_code == 201, fresh.text
    in_use = secret_id(load_secret(api.settings, "data_hmac_key"))
    with api.db.read() as session:
        assert set(session.scalars(select(DatasetContent.key_id))) == {in_use}
    assert len(load_secrets(api.settings, "data_hmac_key")) == 3, "all are needed to compare"


def test_a_registration_that_read_the_key_before_its_rotation_is_refused(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not find what is there: that would be a second budget."""
    api = make_api()
    assert api.upload(spec()).status_code == 201
    before = load_secrets(api.settings, "data_hmac_key")
    rotation.rotate(api.db, api.settings, "data_hmac_key")
    monkeypatch.setattr(parsed, "load_secrets", lambda *_: before)
    answer = api.upload(spec("late"))
    assert (answer.status_code, answer.json()["type"]) == (503, "/problems/unavailable")
    monkeypatch.undo()
    assert api.upload(spec("late")).json()["type"] == "/problems/duplicate-content"


def test_a_rotation_that_was_cut_short_is_finished(make_api: MakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    api = make_api()
    assert api.upload(spec()).status_code == 201
    with api.db.write() as session:  # as from before there were rotations
        for row in session.scalars(select(DatasetContent)):
            row.key_id = None
    monkeypatch.setattr(rotation, "_renew_hashes", lambda *_: None)
    rotation.rotate(api.db, api.settings, "data_hmac_key")
    monkeypatch.undo()
    assert api.upload(spec("new")).status_code == 503
    rotation.finish(api.db, api.settings, "data_hmac_key")
    assert api.upload(spec("new")).json()["type"] == "/problems/duplicate-content"
    with api.db.write() as session:
        assert hashes.renew(session, load_secrets(api.settings, "data_hmac_key")) == 0
        with pytest.raises(Unavailable):
            hashes.check_renewed(session, (b"x" * 32,))
        with pytest.raises(ValueError, match="no longer holds"):
            hashes.renew(session, (b"x" * 32,))


def test_certificates_of_before_and_after_are_signed_with_published_keys(world: World) -> None:
    first = certified(world, 0.1)
    rotation.rotate(world.db, world.settings, "signing_key")
    second = certified(world, 0.2)
    published = [each["public_key"] for each in world.ask("viewer", "GET", "/v1/signing-keys").json()["items"]]
    assert len(published) == 2 and public_key(signing_key(world.settings)) in published
    assert sorted(each["public_key"] for each in (first, second)) == sorted(published)
    for document in (first, second):
        assert check_signature(document, document["public_key"]) == []


def certified(world: World, epsilon: float) -> dict[str, Any]:
    """The certificate of a job that ends now, signed as the relay would sign it."""
    world.scene.signing_key = signing_key(world.settings)
    by = Key(world.ids["owner"], world.tokens["owner"], "owner")
    job = world.scene.job(world.mine.dataset, "signed", by=by, privacy={"target_epsilon": epsilon}, evaluation=None)
    log = world.scene.start(job)
    world.scene.step(log, log.recorded()[0].steps)
    world.scene.finish(log)
    return dict(world.ask("owner", "GET", f"/v1/jobs/{job}/certificate").json())


def started(world: World, epsilon: float) -> tuple[AttemptLog, Callable[[], dict[str, Any]]]:
    """A job that runs, and what its attempt's process would be told of its keys now."""
    by = Key(world.ids["owner"], world.tokens["owner"], "owner")
    job = world.scene.job(world.mine.dataset, "noise", by=by, privacy={"target_epsilon": epsilon}, evaluation=None)
    log = world.scene.start(job)

    def told() -> dict[str, Any]:
        attempt = Supervised(log, world.settings, object(), world.settings.home)  # type: ignore[arg-type]
        (segment,) = attempt._start_message().segments
        return segment.model_dump(include={"from_step", "noise_key"})

    return log, told


def test_a_job_goes_on_under_the_noise_secret_that_it_began_under(world: World) -> None:
    with world.db.write() as session:
        row = session.get_one(Dataset, world.mine.dataset)
        row.parts = {"train": {"path": "x", "sha256": "0" * 64}}
    log, told = started(world, 0.1)
    before = told()
    rotation.rotate(world.db, world.settings, "noise_secret")
    assert told() == before, "an identical replay: free"
    _, fresh = started(world, 0.2)
    assert fresh()["noise_key"] != before["noise_key"]
    new = secret_id(load_secret(world.settings, "noise_secret"))
    with world.db.read() as session:
        ids = {each.segments[0].key_id for each in session.scalars(select(Job).where(Job.name == "noise"))}
    assert new in ids and len(ids) == 2
    rotation.finish(world.db, world.settings, "noise_secret")
    assert told()["noise_key"] != before["noise_key"]
    with world.db.read() as session:
        assert "charged again" in session.get_one(Job, log.held.job_id).warnings[-1]


def test_a_rotation_is_finished_before_the_next_and_recorded(settings: Settings, db: Database) -> None:
    for name in ("api_key_pepper", "webhook_key", "noise_secret"):
        rotation.rotate(db, settings, name)
        with pytest.raises(SecretError, match="not finished"):
            rotation.rotate(db, settings, name)
        rotation.finish(db, settings, name)
        rotation.finish(db, settings, name)
    with db.read() as session:
        entries = session.execute(select(AuditEntry.action, AuditEntry.target)).all()
    assert ("secret.rotated", "noise_secret") in [tuple(each) for each in entries]


def test_what_is_not_in_a_file_is_not_rotated(
    settings: Settings, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SecretError, match="no secret"):
        rotation.rotate(db, settings, "password")
    monkeypatch.setenv("SCRIMP_SECRET_SESSION_KEY", "00" * 32)
    with pytest.raises(SecretError, match="environment"):
        rotation.rotate(db, settings, "session_key")


def scrimp(settings: Settings, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scrimp.cli", "secrets", *arguments, "--home", str(settings.home)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


def test_the_command_rotates_every_secret(settings: Settings, db: Database) -> None:
    """Attack (Doors): A secret leaks
    Now: each is rotated by a command
    Also: tests/access/test_rotation.py::test_a_job_goes_on_under_the_noise_secret_that_it_began_under
    """
    before = {name: load_secret(settings, name) for name in NAMES}
    here = partial(processes.scrimp, settings.home, "secrets")
    for name in NAMES:
        # The first as a process of its own.
        done = scrimp(settings, "rotate", name) if name == NAMES[0] else here("rotate", name)
        assert done.returncode == 0, done.stderr
        assert secret_id(load_secret(settings, name)) in done.stdout and load_secret(settings, name) != before[name]
        path = settings.effective_secrets_dir / name
        assert path.stat().st_mode & 0o777 == 0o600
    listed = here("list").stdout
    assert all(name in listed for name in NAMES)
    assert not any(each.hex() in listed for each in before.values())
    assert here("finish", "noise_secret").returncode == 0
    assert load_secrets(settings, "noise_secret") == (load_secret(settings, "noise_secret"),)
    refused = scrimp(settings, "rotate", "nothing")
    assert refused.returncode == 1 and "there is no secret" in refused.stderr
    text = public_key(signing_key(settings))
    assert (settings.home / "signing_key.pub").read_text().strip() == text
