"""The relay: messages may be lost, doubled or refused; jobs are not."""

from __future__ import annotations

import random

import pytest
from sqlalchemy import func, select

from app.db.engine import Database
from app.db.models import Certificate, Outbox
from app.ledger.certificates import verify
from app.lifecycle.relay import Relay, signing_key
from app.settings import Settings
from tests.lifecycle.conftest import Submit, claimed, job_row


def test_every_job_runs_once_though_a_third_of_the_messages_is_lost_and_a_third_doubled(
    db: Database, settings: Settings, submit: Submit
) -> None:
    jobs = [submit() for _ in range(12)]
    chance = random.Random(7)
    runs: dict[str, int] = dict.fromkeys(jobs, 0)

    def bell(job_id: str) -> None:
        fate = chance.random()
        for _ in range(0 if fate < 0.3 else 2 if fate < 0.6 else 1):
            if job_row(db, job_id).status == "queued":
                claimed(db, job_id)
                runs[job_id] += 1

    relay = Relay(db, settings.model_copy(update={"ring_again_s": 0.0, "sweep_s": 0.0}), signing_key(settings), bell)
    for _ in range(50):
        relay.run_once()
    assert set(runs.values()) == {1}


def test_a_broker_that_is_down_loses_nothing(db: Database, settings: Settings, submit: Submit) -> None:
    job_id = submit()
    rung: list[str] = []

    def down(_job: str) -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        Relay(db, settings, signing_key(settings), down).run_once()
    with db.read() as session:
        assert session.scalar(select(func.count()).select_from(Outbox)) == 1
    Relay(db, settings, signing_key(settings), rung.append).run_once()
    assert rung == [job_id]
    assert job_row(db, job_id).status == "queued"


def test_a_settled_job_gets_its_certificate_once(db: Database, settings: Settings, submit: Submit) -> None:
    job_id = submit()
    log = claimed(db, job_id)
    log.start_block(1, 50)
    log.record_digest(50, "ab" * 32)
    model = {"name": "model.safetensors", "sha256": "cd" * 32, "size_bytes": 3, "path": "jobs/x/model.safetensors"}
    log.succeed([model], 50, [])
    relay = Relay(db, settings, signing_key(settings), lambda _job: None)
    relay.run_once()
    relay.run_once()
    with db.read() as session:
        document = session.get_one(Certificate, job_id).body
    assert verify(document)
    assert document["certificate"]["job"] == job_id
    assert document["certificate"]["steps"] == {"planned": 50, "started": 50, "effective": 50}
