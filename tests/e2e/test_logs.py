"""No secret is in any log, also at DEBUG: a real service with a job, failing requests and wrong keys is searched."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from app.db.database import Database
from app.db.models import Job
from app.ledger.transparency.heads import Heads
from app.secrets import NAMES, at_epoch, load_secret, secret_id
from app.settings import Settings
from tests.dashboard.conftest import token_of
from tests.e2e.conftest import Service, csv_spec, job_of, seed_of, until, write_csv
from worker.noise.attempt_keys import derive_key

WRONG = "scrimp_key_abcdefghijklmnopqrstu_this-key-was-mistyped-by-its-owner"


def spellings(secret: bytes) -> Iterator[bytes]:
    """How 32 bytes may stand in a text."""
    yield secret
    yield secret.hex().encode()
    yield secret.hex().upper().encode()
    for encode in (base64.b64encode, base64.urlsafe_b64encode, base64.b32encode):
        yield encode(secret).rstrip(b"=")
    yield repr(secret)[2:-1].encode()
    yield json.dumps(repr(secret)[2:-1])[1:-1].encode()  # in a line that is JSON


def test_no_log_holds_a_secret(served: Callable[[str], Service], tmp_path: Path) -> None:
    """In a service that other tests use as well: what they logged is searched too."""
    service = served("sqlite")
    job, tokens, cookies = _use(service, tmp_path)
    _check_worker_log(job, service.home / "logs" / "worker.log")
    settings = Settings(home=service.home)
    needles: dict[str, bytes] = {}
    for name in NAMES:
        secret = bytes.fromhex((settings.effective_secrets_dir / name).read_text().strip())
        needles |= {f"{name} {number}": text for number, text in enumerate(spellings(secret))}
    needles |= {f"derived {number}": text for number, text in enumerate(_derived(settings, job))}
    for token in tokens:
        needles |= {f"token {token[:20]}": token.encode(), f"its secret {token[:20]}": token.split("_", 3)[3].encode()}
    needles |= {f"cookie {name}": value.encode() for name, value in cookies.items()}
    logs = {path: path.read_bytes() for path in [*(service.home / "logs").iterdir(), service.output]}
    assert {"api.log", "relay.log", "worker.log"} <= {path.name for path in logs}
    # What is searched has what it should: requests, a job, DEBUG.
    everything = b"".join(logs.values())
    assert b"DEBUG" in everything and b"POST /v1/jobs" in everything and b"celery" in everything
    found = [(path.name, what) for path, text in logs.items() for what, needle in needles.items() if needle in text]
    assert found == []
    _check_the_search(needles)


def _use(service: Service, tmp: Path) -> tuple[str, list[str], dict[str, str]]:
    """A job to its end, and much that goes wrong. Returns the job, and the tokens and cookies that were used."""
    url = f"http://127.0.0.1:{service.port}"
    admin = (service.home / "admin.key").read_text().strip()
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {admin}"}) as http, service.client() as client:
        dataset = client.create_dataset(csv_spec("searched"), write_csv(tmp / "d.csv", seed=seed_of("searched"))).id
        job = client.submit(job_of(dataset)).id
        made = http.post("/v1/keys", json={"name": "made", "role": "analyst"}).json()
        for headers in ({"Authorization": f"Bearer {WRONG}"}, {"Authorization": f"Basic {WRONG}"}, {"Cookie": WRONG}):
            httpx.get(f"{url}/v1/jobs", headers=headers)
        http.post(
            "/v1/keys",
            content=f'{{"name": "{made["token"]}", "name": 1}}',
            headers={"Content-Type": "application/json"},
        )
        http.post("/v1/jobs", json=job_of(dataset, seed=made["token"]), headers={"Idempotency-Key": made["token"]})
        http.post("/v1/jobs", json=job_of("ds_none"), headers={"Idempotency-Key": "k"})
        http.delete(f"/v1/keys/{made['key']['id']}")
        httpx.get(f"{url}/v1/jobs", headers={"Authorization": f"Bearer {made['token']}"})
    with httpx.Client(base_url=url) as browser:
        for key in (WRONG, admin):
            page = browser.get("/dashboard/login")
            browser.post("/dashboard/login", data={"key": key, "csrf": token_of(page)})
        assert browser.get("/dashboard").status_code == 200
        browser.post("/dashboard/logout", data={"csrf": "0" * 64})
        cookies = dict(browser.cookies)
    assert "scrimp_session" in cookies
    with service.client() as client:
        until(lambda: client.job(job).status == "succeeded")
    return job, [admin, made["token"], WRONG], cookies


def _derived(settings: Settings, job: str) -> Iterator[bytes]:
    """The keys that the job's noise, batches and releases came from."""
    secret = at_epoch(load_secret(settings, "noise_secret"), Heads.of(settings).epoch())
    db = Database.of(settings)
    with db.read() as session:
        segments = session.get_one(Job, job).segments
    db.close()
    assert segments
    for segment in segments:
        assert segment.key_id == secret_id(secret)
        for purpose in ("noise", "sampler", "release"):
            yield from spellings(derive_key(secret, secret_id(secret), bytes.fromhex(segment.salt), purpose))


def _check_worker_log(job: str, log: Path) -> None:
    """Lines on an attempt name its job and number; how it ended is said, and no task "succeeded" without a job."""

    def said() -> list[str]:
        lines = map(json.loads, log.read_text().splitlines())
        return [line["message"] for line in lines if (line.get("job"), line.get("attempt")) == (job, "1")]

    assert any(message.endswith("starts") for message in said())
    until(lambda: any(message.endswith("succeeded (its process ended: exit code 0)") for message in said()))
    assert "scrimp.run_job[" not in log.read_text()


def _check_the_search(needles: dict[str, bytes]) -> None:
    """Nothing that is searched for is so short that it says nothing, or empty and everywhere."""
    for what, needle in needles.items():
        if len(needle) < 20:
            pytest.fail(f"{what} is too short to be searched for")
