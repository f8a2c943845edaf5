"""Predictions over the REST API and in the queue: for who asked, for a short time, by one worker at a time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select, update

from app.db.database import Database
from app.db.models import AuditEntry, Job, Prediction
from app.lifecycle.relay import Relay
from app.main import create_app
from app.predictions.prediction_claims import answer, claim, sweep
from app.settings import Settings
from core.ids import now
from tests.by_night import ON_SQLITE_BY_DAY
from tests.dashboard.scene import Key, Scene
from tests.lifecycle.test_relay import Notifier

RECORDS = [{"a": 1.0, "b": 2}, {"a": 0, "b": -1.5}]
OUTPUTS = [{"class": 1, "probabilities": {"1": 0.9}}, {"class": 0, "probabilities": {"0": 0.6}}]


class Asking:
    """A home with a job that has succeeded, and requests of its keys."""

    def __init__(self, db: Database, settings: Settings) -> None:
        self.db, self.settings = db, settings.model_copy(update={"max_queued_predictions": 2})
        self.scene = Scene(db, settings)
        self.dataset = self.scene.dataset("incomes")
        self.job = self.scene.succeeded(self.dataset, "finished", [0.8])
        self.client = TestClient(create_app(self.settings), raise_server_exceptions=False)

    def ask(self, body: Any, who: Key | None = None, job: str | None = None) -> Any:
        return self._send("POST", f"/v1/jobs/{job or self.job}/predict", who, json=body)

    def find(self, prediction: dict[str, Any], who: Key | None = None) -> Any:
        return self._send("GET", f"/v1/jobs/{prediction['job']}/predictions/{prediction['id']}", who)

    def _send(self, method: str, path: str, who: Key | None, **more: Any) -> Any:
        token = (who or self.scene.owner).token
        return self.client.request(method, path, headers={"Authorization": f"Bearer {token}"}, **more)

    def notified(self) -> list[str]:
        """The predictions that one pass of a relay rings workers for."""
        heard: list[str] = []
        eager = self.settings.model_copy(update={"sweep_s": 0.0})
        Relay(self.db, eager, self.scene.signing_key, Notifier(heard.append)).run_once()
        return [each for each in heard if each.startswith("pred_")]

    def change(self, prediction: dict[str, Any], **values: Any) -> None:
        with self.db.write() as session:
            session.execute(update(Prediction).where(Prediction.id == prediction["id"]).values(**values))

    def row(self, prediction: dict[str, Any]) -> Prediction:
        with self.db.read() as session:
            found = session.get_one(Prediction, prediction["id"])
            session.expunge(found)
            return found


@pytest.fixture
def asking(db: Database, settings: Settings) -> Iterator[Asking]:
    made = Asking(db, settings)
    yield made
    made.client.app.state.pricing.close()  # type: ignore[attr-defined]
    made.client.app.state.db.close()  # type: ignore[attr-defined]


def test_a_prediction_is_queued_answered_and_polled(asking: Asking) -> None:
    asked = asking.ask({"records": RECORDS})
    assert asked.status_code == 202, asked.text
    made = asked.json()
    assert asked.headers["location"] == f"/v1/jobs/{asking.job}/predictions/{made['id']}"
    assert made["status"] == "queued" and made["predictions"] is None and made["job"] == asking.job
    assert asking.notified() == [made["id"]] and asking.notified() == []
    with asking.db.write() as session:
        held = claim(session, made["id"], 60.0)
        assert held is not None and held.records == [[1.0, 2.0], [0.0, -1.5]] and held.top == 10
        assert claim(session, made["id"], 60.0) is None, "a doubled message finds nothing"
    assert asking.find(made).json()["status"] == "running"
    answer(asking.db, held, OUTPUTS)
    found = asking.find(made).json()
    assert found["status"] == "succeeded" and found["predictions"] == OUTPUTS and found["failure"] is None
    assert asking.row(made).records is None, "inputs are forgotten"
    answer(asking.db, held, None, "internal")
    assert asking.find(made).json()["status"] == "succeeded", "an answer is written once"
    with asking.db.read() as session:
        audited = select(func.count()).where(AuditEntry.action == "prediction.asked", AuditEntry.target == asking.job)
        assert session.scalar(audited) == 1


def test_only_who_asked_sees_it(asking: Asking) -> None:
    made = asking.ask({"records": RECORDS}).json()
    assert asking.find(made).status_code == 200
    assert asking.find(made, asking.scene.admin).status_code == 404
    assert asking.find(made | {"job": "job_x"}).status_code == 404
    assert asking.ask({"records": RECORDS}, asking.scene.key("viewer")).status_code in (403, 404)


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"records": []}, "/records"),
        ({"records": RECORDS * 501}, "/records"),
        ({"records": [*RECORDS, {"a": 1}]}, "/records/2"),
        ({"records": [[1.0, 2.0]]}, "/records/0"),
        ({"records": RECORDS, "top": 0}, "/top"),
        ({"records": RECORDS, "path": "/etc/passwd"}, "/path"),
    ],
)
@ON_SQLITE_BY_DAY
def test_bad_requests_say_what_is_wrong(asking: Asking, body: Any, pointer: str) -> None:
    refused = asking.ask(body)
    assert refused.status_code == 422 and refused.json()["errors"][0]["pointer"] == pointer, refused.text


def test_without_a_model_there_is_nothing_to_predict_with(asking: Asking) -> None:
    queued = asking.scene.job(asking.dataset, "waits", privacy={"target_epsilon": 0.1}, evaluation=None)
    refused = asking.ask({"records": RECORDS}, job=queued)
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/wrong-state")


def test_a_key_has_few_at_a_time(asking: Asking) -> None:
    first = asking.ask({"records": RECORDS}).json()
    assert asking.ask({"records": RECORDS}).status_code == 202
    refused = asking.ask({"records": RECORDS})
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/too-many-predictions")
    asking.change(first, status="failed", failure={"code": "time", "message": "it took too long"})
    assert asking.ask({"records": RECORDS}).status_code == 202


def test_a_lost_worker_s_prediction_is_taken_up_again_and_given_up_at_last(asking: Asking) -> None:
    made = asking.ask({"records": RECORDS}).json()
    for attempt in (1, 2, 3):
        assert asking.notified() == [made["id"]]
        with asking.db.write() as session:
            held = claim(session, made["id"], 60.0)
        assert held is not None and held.attempt == attempt
        sweep(asking.db)
        assert asking.row(made).status == "running", "its lease holds"
        asking.change(made, lease_until=0.0)
        sweep(asking.db)
        answer(asking.db, held, OUTPUTS)  # the lost worker was only slow: its claim is gone
        assert asking.row(made).status == ("queued" if attempt < 3 else "failed")
    found = asking.find(made).json()
    assert found["failure"]["code"] == "lost" and asking.row(made).records is None and asking.notified() == []


def test_it_is_gone_when_its_time_is_over(asking: Asking) -> None:
    made = asking.ask({"records": RECORDS}).json()
    asking.change(made, expires_at=now() - timedelta(seconds=1))
    assert asking.find(made).status_code == 404
    with asking.db.write() as session:
        assert claim(session, made["id"], 60.0) is None
    sweep(asking.db)
    with asking.db.read() as session:
        assert session.get(Prediction, made["id"]) is None


def test_a_job_without_a_model_says_that_it_has_none(asking: Asking) -> None:
    """Once ended or not: it is no matter of its state."""
    queries = {"kind": "statistics", "queries": [{"kind": "count"}]}
    with asking.db.write() as session:
        job = session.get_one(Job, asking.job)
        left = {name: each for name, each in job.spec.items() if name in ("dataset", "privacy")}
        job.spec = left | queries
    refused = asking.ask({"records": RECORDS})
    assert refused.status_code == 409 and "kind `statistics`" in refused.json()["detail"], refused.text
