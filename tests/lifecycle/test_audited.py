"""A job with canaries from admission to its certificate: a real attempt, honest or with a planted fault."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import safetensors.numpy
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.db.database import Database
from app.db.models import Artifact
from app.ledger import certificates
from app.lifecycle.measures import EXCEEDED_AUDITS, totals
from app.settings import Settings
from core.contracts.audit import CANARIES_FILE, TENSOR
from core.privacy.canary_bound import EXCEEDED, Finding, coins, found
from core.privacy.mechanism import MechanismConfig
from scrimp.explain import explained
from tests.e2e.conftest import csv_spec, job_of, write_csv
from tests.lifecycle import test_auditor as auditing
from tests.lifecycle.conftest import claimed, job_row
from worker.attempt.auditor import replay
from worker.attempt.fork_server import ForkServer
from worker.attempt.supervisor import run_attempt

settings, db = auditing.settings, auditing.db
small = auditing.client
# μ = 2, where 20,000 canaries tell four fifths of the noise apart with certainty.
WIDE = 800
JOB: dict[str, Any] = {
    "privacy": {"noise_multiplier": 1.0},
    "length": {"steps": 4},
    "evaluation": None,
    "optimizer": {"kind": "dp_sgd", "learning_rate": 1.0},
}


@pytest.fixture(scope="module")
def client(small: TestClient, tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    """A client that has registered `large` too: a private data set whose cap covers all jobs here."""
    content = write_csv(tmp_path_factory.mktemp("data") / "data.csv", seed=7).read_bytes()
    spec = csv_spec("large", cap={"epsilon": 100.0, "delta": 1e-5})
    files = {"spec": (None, json.dumps(spec)), "file": ("data.csv", content)}
    assert small.post("/v1/datasets", files=files).status_code == 201
    # Records that leave most of their columns empty, as tables of rare findings do.
    filled = [line.split(",") for line in content.decode().splitlines()[1:]]
    rows = [",".join([*cells[:5], *["0"] * (WIDE - 5), cells[5]]) for cells in filled]
    columns = [f"x{i}" for i in range(WIDE)]
    spec |= {"name": "wide", "features": {"kind": "columns", "columns": columns}}
    files = {"spec": (None, json.dumps(spec)), "file": ("wide.csv", "\n".join([",".join([*columns, "y"]), *rows]))}
    made = small.post("/v1/datasets", files=files)
    assert made.status_code == 201, made.text
    return small


@pytest.fixture(scope="module")
def faulty(settings: Settings) -> Iterator[ForkServer]:
    """A fork server whose attempts have the fault that their job's name begins with."""
    server = auditing.FaultyServer()
    yield server
    server.close()


def certified(
    db: Database, settings: Settings, client: TestClient, server: ForkServer, name: str, canaries: int
) -> tuple[str, dict[str, Any]]:
    """A job's id, and its certificate's body."""
    spec = job_of("large", name=name, audit={"canaries": canaries}, **JOB)
    made = client.post("/v1/jobs", json=spec, headers={"Idempotency-Key": name})
    assert made.status_code == 201, made.text
    job_id = str(made.json()["id"])
    run_attempt(claimed(db, job_id), settings, server)
    assert job_row(db, job_id).status == "succeeded"
    assert certificates.issue(db, job_id, Ed25519PrivateKey.generate(), "1")
    document = client.get(f"/v1/jobs/{job_id}/certificate").json()
    assert certificates.verify(document)
    return job_id, document["certificate"]


def alarms(db: Database) -> float:
    """As every scrape counts them."""
    with db.read() as session:
        return totals(session).get((EXCEEDED_AUDITS.name, ()), 0.0)


def recomputed(db: Database, settings: Settings, body: dict[str, Any]) -> Finding:
    """As docs/audit.md says: from the published file and the certificate."""
    job_id, audit = body["job"], Finding.model_validate(body["audit"])
    with db.read() as session:
        path = session.scalars(select(Artifact.path).where(Artifact.job_id == job_id, Artifact.name == CANARIES_FILE))
        released = safetensors.numpy.load((settings.storage_root / path.one()).read_bytes())[TENSOR]
    steps = MechanismConfig.model_validate(body["mechanism"]).training.event
    return found(released, job_id, audit.canaries, steps, audit.charged, audit.kind)


def test_a_certificate_says_what_the_audit_found(
    db: Database, settings: Settings, client: TestClient, fork_server: ForkServer
) -> None:
    job_id, body = certified(db, settings, client, fork_server, "audited", 5000)
    audit = Finding.model_validate(body["audit"])
    assert audit.canaries == 5000 and audit.included == int(coins(job_id, 5000).sum())
    assert 0.0 < audit.epsilon_at_least < audit.charged.value and not audit.exceeded
    assert audit.mu_at_least is not None and 1.5 < audit.mu_at_least < 2.2
    assert audit.charged.value == body["epsilon"]["value"] and body["warnings"] == []
    assert recomputed(db, settings, body) == audit, "anyone can, with the file and the certificate alone"
    lines = dict(explained(body))["What its audit found"]
    assert lines[0].startswith(audit.statement) and not any("MORE" in line for line in lines)
    assert CANARIES_FILE in [each["name"] for each in client.get(f"/v1/jobs/{job_id}").json()["artifacts"]]
    again = replay(db, settings, fork_server, job_id, None)
    assert again.holds and again.same_model, "a replay repeats the canaries"


@pytest.mark.parametrize("fault", ["less-noise", "twice-the-clip"])
def test_a_planted_fault_is_found_by_the_certificate_itself(
    db: Database,
    settings: Settings,
    client: TestClient,
    faulty: ForkServer,
    fault: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nobody asks a second time: the job's own canaries contradict its claim.

    Claim: noise × 0.8 is found by a job's own certificate
    Now: `exceeded`
    """
    before = alarms(db)
    job_id, body = certified(db, settings, client, faulty, f"{fault}:audited", 20_000)
    assert body["audit"]["exceeded"] and body["audit"]["mu_at_least"] > 2.0
    assert EXCEEDED in body["warnings"]
    assert alarms(db) == before + 1.0, "who runs the service is told too"
    said = [each for each in caplog.records if each.levelname == "ERROR" and "canaries" in each.getMessage()]
    assert [f"attempt 1 of {job_id} by w:" in each.getMessage() for each in said] == [True]
    assert any("MORE THAN THEIR MECHANISM" in line for line in dict(explained(body))["What its audit found"])


def test_the_same_server_without_a_fault_is_not_accused(
    db: Database, settings: Settings, client: TestClient, faulty: ForkServer
) -> None:
    before = alarms(db)
    _, body = certified(db, settings, client, faulty, "honest:audited", 20_000)
    assert not body["audit"]["exceeded"] and body["warnings"] == [] and alarms(db) == before


def test_a_norm_that_adapts_counts_no_canary(
    db: Database, settings: Settings, client: TestClient, fork_server: ForkServer
) -> None:
    """C moves as it does without them, and their noise follows it."""
    norms = []
    for name, more in (("adaptive", {}), ("with canaries", {"audit": {"canaries": 5000}})):
        clipping = {"kind": "adaptive", "max_grad_norm": 0.5}
        scored = {"evaluation": {"on": "holdout", "noise_mu": 0.1, "points": 2}}
        spec = job_of("large", name=name) | JOB | {"clipping": clipping} | scored | more
        made = client.post("/v1/jobs", json=spec, headers={"Idempotency-Key": name})
        assert made.status_code == 201, made.text
        job_id = made.json()["id"]
        run_attempt(claimed(db, job_id), settings, fork_server)
        events = client.get(f"/v1/jobs/{job_id}/events").json()["items"]
        audited = [each["data"] for each in events if each["type"] == "audited"]
        assert [each["exceeded"] for each in audited] == [False] * len(more)
        metrics = client.get(f"/v1/jobs/{job_id}/metrics").json()["items"]
        norms.append([each["value"] for each in metrics if each["name"] == "clipping_norm"])
    # Each job has its own noise on the count: C differs by a few per cent. Counted canaries would double it.
    assert len(norms[0]) == len(norms[1]) == 2
    assert all(abs(one / other - 1.0) < 0.2 for one, other in zip(*norms, strict=True)), norms


def test_a_job_without_canaries_has_no_audit(
    db: Database, settings: Settings, client: TestClient, fork_server: ForkServer
) -> None:
    made = client.post("/v1/jobs", json=job_of("large", name="plain", **JOB), headers={"Idempotency-Key": "plain"})
    job_id = str(made.json()["id"])
    run_attempt(claimed(db, job_id), settings, fork_server)
    assert certificates.issue(db, job_id, Ed25519PrivateKey.generate(), "1")
    body = client.get(f"/v1/jobs/{job_id}/certificate").json()["certificate"]
    assert "audit" not in body and "What its audit found" not in dict(explained(body))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "more canaries than records": (
        {"audit": {"canaries": 1501, "kind": "records"}},
        "the model would learn mostly noise",
    ),
    "records beside a cut batch": (
        {
            "audit": {"canaries": 100, "kind": "records"},
            "sampling": {"kind": "poisson", "expected_batch_size": 64, "largest_batch": 128},
            "length": {"steps": 20},
        },
        "largest_batch",
    ),
    "public data": ({"dataset": "open", "privacy": None, "length": {"steps": 4}}, "public data"),
    "a study": ({"hpo": {"strategy": "linear_scaling"}, "privacy": {"target_epsilon": 2.0}}, "a study is not audited"),
    "largest_batch": (
        {"sampling": {"kind": "poisson", "expected_batch_size": 64, "largest_batch": 128}, "length": {"steps": 20}},
        "largest_batch",
    ),
    "shards": ({"runtime": {"processes": 2, "shard": "optimizer"}}, "runtime.shard"),
    "public gradients": (
        {"optimizer": {"kind": "pda_dpmd", "learning_rate": 1.0, "public_dataset": "open", "public_batch_size": 16}},
        "public gradients",
    ),
}


PLANTED: dict[str, Any] = JOB | {"privacy": {"noise_multiplier": 20.0}, "audit": {"canaries": 600, "kind": "records"}}


def test_synthetic_records_are_trained_on_and_find_noise_that_is_missing(
    db: Database, settings: Settings, client: TestClient, faulty: ForkServer
) -> None:
    """The quote says what they cost; μ = 0.1 is charged. Nothing else of the job counts them."""
    bodies = []
    for name in ("honest:planted", "hardly-any-noise:planted"):
        made = client.post("/v1/jobs", json=job_of("wide", name=name, **PLANTED), headers={"Idempotency-Key": name})
        assert made.status_code == 201, made.text
        assert made.json()["quote"]["expected_batch_size"] == 1500
        assert any("17 % of what the model learns from is random" in each for each in made.json()["warnings"])
        job_id = str(made.json()["id"])
        run_attempt(claimed(db, job_id), settings, faulty)
        assert certificates.issue(db, job_id, Ed25519PrivateKey.generate(), "1")
        bodies.append(client.get(f"/v1/jobs/{job_id}/certificate").json()["certificate"])
        found = Finding.model_validate(bodies[-1]["audit"])
        assert found.kind == "records" and recomputed(db, settings, bodies[-1]) == found
    honest, planted = bodies
    assert not honest["audit"]["exceeded"] and EXCEEDED not in honest["warnings"]
    assert planted["audit"]["exceeded"] and EXCEEDED in planted["warnings"], (
        planted["audit"]["right"],
        honest["audit"]["right"],
    )
    assert planted["audit"]["mu_at_least"] > 0.1, planted["audit"]


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_audited_is_refused_by_name(client: TestClient, what: str) -> None:
    changes, said = REFUSED[what]
    asked = job_of("large") | JOB | {"audit": {"canaries": 100}} | changes
    answer = client.post("/v1/quotes", json=asked)
    assert answer.status_code == 422 and said in answer.text and "/audit" in answer.text, answer.text
