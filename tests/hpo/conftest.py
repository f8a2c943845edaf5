"""Studies without the API: admitted by the service, their runs played by the test as a worker would."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from app.admission.hold import hold
from app.admission.price import price
from app.admission.request import Limits, Request, resolve
from app.admission.service import Admission
from app.db.database import Database
from app.db.models import Account, Job
from app.keys.service import Caller
from app.ledger.transparency.heads import Heads
from app.ledger.verification import verify
from app.lifecycle.attempts import AttemptLog
from core.contracts.job_spec import JobSpec
from core.contracts.stored_documents import ArtifactFile
from core.privacy import pricing, study_price
from core.privacy.price_requests import FitRequest, PlanRequest, StudyFitRequest, StudyRequest
from core.privacy.prices import Largest, Price, StudyPrice, Units
from tests import factories
from tests.factories import add_dataset, add_key, job_spec
from tests.lifecycle.conftest import claimed

Submit = Callable[..., str]


@cache
def _priced(request: str) -> StudyPrice:
    return study_price.price(StudyRequest.model_validate_json(request))


def price_once(request: StudyRequest) -> StudyPrice:
    return _priced(request.model_dump_json())


class PlainPricing:
    """The real prices, made in this process, each once: the helper process has tests of its own."""

    def of(self, _key_id: str) -> PlainPricing:
        return self

    def price(self, request: PlanRequest) -> Price:
        return pricing.price(request)

    def price_study(self, request: StudyRequest) -> StudyPrice:
        return price_once(request)

    def largest_that_fits(self, plan: PlanRequest, remaining: Units) -> Largest:
        return pricing.largest_that_fits(FitRequest(plan=plan, remaining=remaining))

    def largest_study_that_fits(self, study_: StudyRequest, remaining: Units) -> Largest:
        return study_price.largest_that_fits(StudyFitRequest(study=study_, remaining=remaining))


@pytest.fixture
def plain() -> PlainPricing:
    return PlainPricing()


def study_spec(dataset: str, **hpo: Any) -> dict[str, Any]:
    """Numbers for all that admission would choose by itself (tests/jobs/test_priors.py)."""
    block: dict[str, Any] = {"space": {"learning_rate": [0.1, 10.0], "steps": [5, 100]}} | hpo
    if block.get("strategy", "linear_scaling") == "linear_scaling":
        block = {"levels": [0.1, 0.2]} | block
    if block.get("strategy") not in ("random", "grid_oracle"):
        block = {"score": {"kind": "private_count"}} | block
    score = block.get("score", {"kind": "public"})
    if score["kind"] != "public":
        block["score"] = {"noise_mu": 0.01} | score
    return job_spec(dataset, hpo=block, evaluation=None)


@pytest.fixture
def submit(db: Database, plain: PlainPricing, tmp_path: Path) -> Submit:
    """Admits a study on a fresh data set (10,000 records, hold-out of a fifth, cap 4 at 1e-5, filter gdp)."""

    def submitted(dataset: str | None = None, changes: dict[str, Any] | None = None, **hpo: Any) -> str:
        dataset = dataset or add_dataset(db)
        with db.write() as session:
            key = add_key(session)
        spec = JobSpec.model_validate(study_spec(dataset, **hpo) | (changes or {}))
        caller = Caller(key, "test", "admin")
        heads = Heads(tmp_path / "heads")
        admission = Admission(db, plain, heads)  # type: ignore[arg-type]
        resolved = resolve(db, Request(caller, spec, Limits()))  # also what only earlier releases admitted
        return hold(admission, resolved, price(admission.pricing, resolved), f"once {key}").id

    return submitted


def job_of(db: Database, job_id: str) -> Job:
    with db.read() as session:
        return session.get_one(Job, job_id)


def runs_of(db: Database, study_id: str, *statuses: str) -> list[Job]:
    from sqlalchemy import select

    query = select(Job).where(Job.parent_id == study_id).order_by(Job.trial_number)
    if statuses:
        query = query.where(Job.status.in_(statuses))
    with db.read() as session:
        return list(session.scalars(query))


def play(db: Database, run: Job, score: float = 0.5) -> None:
    """A worker's whole attempt at a run."""
    log = claimed(db, run.id)
    finish(log, run, score)


def finish(log: AttemptLog, run: Job, score: float) -> None:
    assert log.start_block(1, run.steps)
    log.record_digest(run.steps, "a" * 64)
    release(log, run, score)
    log.succeed(artifacts_of(run), run.steps, [])


def artifacts_of(run: Job) -> list[ArtifactFile]:
    assert run.trial is not None
    names = ["model.safetensors"] if run.trial.keeps_weights else []
    if run.trial_number == 0 and (run.mechanism or {}).get("mean"):  # for the study's other trials
        names.append("mean.safetensors")
    return [ArtifactFile(name=name, sha256="b" * 64, size_bytes=1, path=f"jobs/{run.id}/x") for name in names]


def release(log: AttemptLog, run: Job, score: float) -> None:
    for declared in (run.mechanism or {"releases": []})["releases"]:
        number = {"name": declared["what"], "step": run.steps, "value": score, "std": 0.01, "on": declared["account"]}
        factories.release(log, number | {"released_by": "noisy_count"})


def account_of(db: Database, study_id: str) -> Account:
    with db.read() as session:
        dataset = session.get_one(Job, study_id).dataset_id
        assert verify(session, dataset).valid
        return session.get_one(Account, dataset)
