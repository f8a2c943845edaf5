"""/metrics: of all processes together, for admins alone, and what the dashboard and the alert rules ask for."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest
import yaml
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from app.db.database import Database
from app.db.models import ApiKey, Attempt, Job, Measure
from app.keys.service import ensure_admin_key
from app.lifecycle.measures import ENDS, PRICING_QUEUE, REQUESTS, SECONDS, Measures, totals
from app.lifecycle.states import ACTIVE
from app.main import create_app
from app.settings import Settings
from core.ids import now
from scripts import write_grafana
from tests.dashboard.scene import Everything, Scene
from tests.e2e.conftest import until
from tests.servers import free_port, listens

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
# Functions, words and label names of PromQL; all other words of an expression are metrics.
A_METRIC = re.compile(r"\bscrimp_[a-z_]+")
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(text: str) -> Samples:
    """Each sample's value by name and sorted labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def requests(found: Samples, route: str) -> float:
    """Requests to a route, whatever method and status."""
    return sum(
        value
        for (name, labels), value in found.items()
        if name == "scrimp_http_requests_total" and dict(labels)["route"] == route
    )


def test_counts_of_all_processes_are_added_up(db: Database) -> None:
    one, other = Measures(db), Measures(db)
    for measures, times in ((one, 2), (other, 3)):
        for _ in range(times):
            measures.count(REQUESTS, "GET", "/v1/jobs", "200")
            measures.observe(SECONDS, 0.03, "GET", "/v1/jobs")
    one.watch(PRICING_QUEUE, lambda: 2.0)
    other.watch(PRICING_QUEUE, lambda: 5.0)
    one.flush()
    other.flush()
    with db.read() as session:
        found = totals(session)
    assert found[REQUESTS.name, ("GET", "/v1/jobs", "200")] == 5.0
    assert found[SECONDS.name, ("GET", "/v1/jobs", "sum")] == pytest.approx(0.15)
    assert found[PRICING_QUEUE.name, ()] == 7.0
    one.close()  # a process that ends in order counts for no gauge
    with db.read() as session:
        assert totals(session)[PRICING_QUEUE.name, ()] == 5.0
    _age_all(db)  # nor does a killed one, soon; its counts stay
    with db.read() as session:
        found = totals(session)
    assert (PRICING_QUEUE.name, ()) not in found and found[REQUESTS.name, ("GET", "/v1/jobs", "200")] == 5.0


def _age_all(db: Database) -> None:
    with db.write() as session:
        for row in session.query(Measure):
            row.written_at = now() - timedelta(minutes=5)


def test_an_outage_loses_no_counts(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    measures = Measures(db)
    measures.count(ENDS, "exit code 0")

    @contextmanager
    def away(**_: bool) -> Iterator[None]:
        raise OperationalError("", None, Exception())
        yield

    with monkeypatch.context() as patch:
        patch.setattr(db, "write", away)
        with pytest.raises(OperationalError):
            measures.flush()
        measures._quietly()
    measures.count(ENDS, "exit code 0")
    measures.flush()
    measures.flush()
    with db.read() as session:
        assert totals(session) == {(ENDS.name, ("exit code 0",)): 2.0}


def test_an_idle_process_writes_nothing(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    measures = Measures(db)
    measures.watch(PRICING_QUEUE, lambda: 0.0)
    monkeypatch.setattr(db, "write", lambda **_: pytest.fail("it wrote"))
    measures.flush()


def test_a_flush_waits_for_what_another_one_has_taken(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """/metrics flushes and reads: the thread that flushes may hold counts that are in no row yet."""
    measures, write, writing, goes_on = Measures(db), db.write, Event(), Event()
    measures.count(ENDS, "exit code 0")

    @contextmanager
    def slow(**more: bool) -> Iterator[Any]:
        writing.set()
        assert goes_on.wait(30)
        with write(**more) as session:
            yield session

    def scraped() -> dict[Any, float]:
        measures.flush()
        with db.read() as session:
            return totals(session)

    monkeypatch.setattr(db, "write", slow)
    with ThreadPoolExecutor() as pool:
        flushed = pool.submit(measures.flush)
        assert writing.wait(30)
        found = pool.submit(scraped)
        wait({found}, timeout=0.5)  # a scrape that does not wait has read by now
        goes_on.set()
        flushed.result(30)
        assert found.result(30) == {(ENDS.name, ("exit code 0",)): 1.0}


def test_any_api_reports_the_requests_of_both(whole: tuple[Scene, Everything]) -> None:
    """Two applications over one database."""
    scene, _ = whole
    key = {"Authorization": f"Bearer {scene.admin.token}"}
    with TestClient(create_app(scene.settings)) as one, TestClient(create_app(scene.settings)) as other:
        for client, times in ((one, 3), (other, 4)):
            for _ in range(times):
                client.get("/v1/optimizers", headers=key)
        first = requests(samples(one.get("/metrics", headers=key).text), "/v1/optimizers")
        assert first == 3.0  # the other's are not flushed yet
        assert requests(samples(other.get("/metrics", headers=key).text), "/v1/optimizers") == 7.0
        assert requests(samples(one.get("/metrics", headers=key).text), "/v1/optimizers") == 7.0


def exposed(found: Samples) -> set[str]:
    return {name for name, _ in found}


def test_the_database_s_numbers_are_there(whole: tuple[Scene, Everything]) -> None:
    scene, _ = whole
    with TestClient(create_app(scene.settings)) as client:
        client.get("/v1/jobs", headers={"Authorization": f"Bearer {scene.admin.token}"})
        found = samples(client.get("/metrics", headers={"Authorization": f"Bearer {scene.admin.token}"}).text)
    names = exposed(found)
    for panel in write_grafana.PANELS:
        for expression, _legend in panel[2]:
            asked = set(A_METRIC.findall(expression))
            assert asked and asked <= names | POSSIBLE, (panel[0], asked - names)
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
    assert len(rules) == len({rule["alert"] for rule in rules})
    for rule in rules:
        asked = set(A_METRIC.findall(rule["expr"]))
        assert asked and asked <= names | POSSIBLE, rule["alert"]
        assert set(rule["annotations"]) == {"summary", "runbook"} and rule["labels"]["severity"]
    assert found["scrimp_workers", (("device", "cuda"), ("state", "busy"))] == 0.0
    assert found["scrimp_claims_total", ()] == sum(
        value for (name, _), value in found.items() if name in ("scrimp_attempts_total", "scrimp_attempts_running")
    )
    shares = [value for (name, _), value in found.items() if name == "scrimp_ledger_share"]
    assert shares and all(0.0 <= value <= 1.0 for value in shares)


def test_a_key_s_jobs_and_seconds_are_those_of_its_rows(
    whole: tuple[Scene, Everything], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, ids = whole
    log = scene.start(scene.job(ids.reviews, "timed", privacy={"target_epsilon": 0.05}, evaluation=None))
    with scene.db.write() as session:
        session.get_one(Attempt, (log.held.job_id, 1)).started_at -= timedelta(seconds=90)
    said: list[str] = []
    event.listen(scene.db.engine, "before_cursor_execute", lambda *told: said.append(told[2]))
    log.cancelled()
    assert "measures" in [each for each in said if not each.startswith("COMMIT")][-1], "no lock is waited for after it"

    def scraped(token: str) -> Samples:
        with TestClient(create_app(scene.settings)) as client:
            found = samples(client.get("/metrics", headers={"Authorization": f"Bearer {token}"}).text)
        return {each: value for each, value in found.items() if each[0].startswith("scrimp_key_")}

    found = scraped(scene.admin.token)
    counted: Counter[tuple[str, str]] = Counter()
    seconds: Counter[str] = Counter()
    with scene.db.read() as session:
        names = {key.id: key.name for key in session.query(ApiKey)}
        for job in session.query(Job).filter(Job.study.is_(None)):
            state = {"queued": "queued"}.get(job.status, "running" if job.status in ACTIVE else "")
            counted[job.key_id, state] += 1
        for attempt, job in session.query(Attempt, Job).join(Job, Job.id == Attempt.job_id):
            seconds[job.key_id] += (attempt.ended_at - attempt.started_at).seconds if attempt.ended_at else 0
    for (key, state), count in counted.items():
        labels = (("key", key), ("name", names[key]), ("state", state))
        assert not state or found["scrimp_key_jobs", labels] == count
    (key,) = {key for key, ran in seconds.items() if ran}
    assert found["scrimp_key_job_seconds_total", (("key", key), ("name", names[key]))] == seconds[key] >= 90
    assert scraped(scene.analyst.token) == {}, "for admins alone"
    monkeypatch.setattr("app.system.collectors.MOST_KEYS", 0)
    assert scraped(scene.admin.token) == {}, "however many keys there are"


# Metrics without a series until something happened: a reading, a failure, an ended process.
POSSIBLE = {"scrimp_readings", "scrimp_job_failures", "scrimp_attempt_processes_total", "scrimp_prices_total"} | {
    "scrimp_key_jobs",
    "scrimp_key_job_seconds_total",
    "scrimp_webhook_deliveries",
    "scrimp_predictions",
    "scrimp_ledger_valid",
    "scrimp_ledger_checked_timestamp_seconds",
}


def test_the_dashboard_is_as_written() -> None:
    assert json.loads(write_grafana.FILE.read_text()) == write_grafana.dashboard()


def test_possible_metrics_are_announced(whole: tuple[Scene, Everything]) -> None:
    """A metric without a series has a HELP line all the same: a misspelt one has none."""
    scene, _ = whole
    with TestClient(create_app(scene.settings)) as client:
        text = client.get("/metrics", headers={"Authorization": f"Bearer {scene.admin.token}"}).text
    for name in POSSIBLE:
        assert f"# HELP {name} " in text, name
    page = (DEPLOY.parent / "docs" / "metrics.md").read_text()
    announced = re.findall(r"^# HELP (scrimp_[a-z_]+?)(?:_total)? ", text, re.MULTILINE)
    assert len(announced) > 25 and [name for name in announced if f"`{name}" not in page] == []


@pytest.fixture
def apis(settings: Settings) -> Iterator[list[int]]:
    """Two API processes over one home."""
    ports = [free_port(), free_port()]
    with ExitStack() as stack:
        for port in ports:
            environment = os.environ | {"SCRIMP_HOME": str(settings.home), "SCRIMP_PORT": str(port)}
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "scrimp_server.api"], env=environment, stderr=subprocess.DEVNULL
                )
            )
            stack.callback(process.terminate)
        for port in ports:
            until(lambda port=port: listens(port))
        yield ports


@pytest.mark.nightly  # by day two applications over one database: test_any_api_reports_the_requests_of_both
def test_two_api_processes_report_the_whole(apis: list[int], settings: Settings, db: Database) -> None:
    admin = {"Authorization": f"Bearer {ensure_admin_key(db, settings).read_text().strip()}"}
    for port, times in zip(apis, (2, 5), strict=True):
        for _ in range(times):
            httpx.get(f"http://127.0.0.1:{port}/v1/optimizers", headers=admin, timeout=300)
    for port in apis:
        until(lambda port=port: _asked(port, admin) == 7.0)


def _asked(port: int, admin: dict[str, str]) -> float:
    return requests(
        samples(httpx.get(f"http://127.0.0.1:{port}/metrics", headers=admin, timeout=300).text), "/v1/optimizers"
    )
