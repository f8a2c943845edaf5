"""A selection of random size that ends early: its runs and their scores have one price, which no part of is due."""

from __future__ import annotations

from typing import Any

import pytest

from app.admission.times import seconds_per_step
from app.db.database import Database
from app.db.models import Account, Job
from app.ledger import summary
from app.ledger.repository import charged
from app.lifecycle.attempts import AttemptLog
from core.contracts.job_spec import JobSpec
from core.contracts.stored_documents import Number
from core.privacy import accounting
from core.privacy.mechanism import MechanismConfig
from core.privacy.price_requests import CompareRequest
from core.privacy.prices import BasicSum, Compared
from tests.factories import add_dataset, dataset_spec, numerics
from tests.lifecycle.conftest import Submit, balances, claimed, job_row

HPO: dict[str, Any] = {
    "strategy": "random_size",
    "distribution": {"kind": "negative_binomial", "eta": 0.0, "gamma": 0.05},
    "most_runs": 30,
    "duration_s": 1,
    "space": {"learning_rate": [0.1, 10.0]},
}
RDP = dataset_spec()["privacy"] | {"filter": "rdp", "cap": {"epsilon": 8.0, "delta": 1e-5}}
SCORES = {"on": "holdout", "noise_mu": 0.05, "metrics": ["accuracy", "loss"], "loss_bound": 1.0}


def begun(db: Database, submit: Submit) -> tuple[str, AttemptLog]:
    """A selection whose runs have started, by two scores of its hold-out."""
    dataset = add_dataset(db, order=8.0, privacy=RDP)
    job_id = submit(dataset, hpo=HPO, evaluation=SCORES, length={"steps": 10})
    log = claimed(db, job_id)
    log.name_key("00")
    log.ready("cpu", numerics())
    log.record_digest(0, "00")
    assert log.start_block(1, 10)
    return job_id, log


def release(log: AttemptLog, job: Job, number: int) -> None:
    declared = MechanismConfig.model_validate(job.mechanism).scores[number]
    value = {"name": declared.metric, "step": 10, "value": 0.5, "std": declared.noise_std, "on": "holdout"}
    log.record_metric(Number.model_validate(value | {"released_by": declared.released_by}))


@pytest.mark.parametrize("released", [0, 1])
def test_a_selection_that_began_is_charged_whole(db: Database, submit: Submit, released: int) -> None:
    """Its hold-out too, however many of its scores left: which run is the best follows from all of them, and a
    part of the scores costs more than its part of the price."""
    job_id, log = begun(db, submit)
    _, train, _, holdout = balances(db, job_id)
    log.record_digest(10, "00")
    for number in range(released):
        release(log, job_row(db, job_id), number)
    with db.write() as session:
        session.get_one(Job, job_id).status = "cancelling"
    log.cancelled()
    assert balances(db, job_id) == (train, 0, holdout, 0)


class Pricing:
    """The pricing process's own functions, in this process."""

    def compare(self, request: CompareRequest) -> Compared:
        return accounting.compare(request)

    def basic(self, request: CompareRequest) -> BasicSum:
        return accounting.basic(request)


@pytest.mark.parametrize("ends", ["cancelled", "succeeded"])
def test_a_ledger_s_summary_names_the_accountant_of_a_selection(db: Database, submit: Submit, ends: str) -> None:
    """The basic sum is of ε's that the Rényi accountant bounds: no exact figure, and none of a PLD."""
    job_id, log = begun(db, submit)
    log.record_digest(10, "00")
    for number in range(2):
        release(log, job_row(db, job_id), number)
    if ends == "cancelled":
        with db.write() as session:
            session.get_one(Job, job_id).status = "cancelling"
        log.cancelled()
    else:
        log.succeed([], 10, [])
    dataset = job_row(db, job_id).dataset_id
    with db.read() as session:
        summed = summary.sums(Pricing(), session.get_one(Account, dataset), charged(session, dataset))
    assert summed is not None and summed.accountant == "rdp"
    view = summary.overview(db, Pricing(), dataset)
    planned = job_row(db, job_id).quote["epsilon"]["value"]
    assert view.comparison is not None and view.comparison.rdp_best_order.value == pytest.approx(planned, rel=1e-3)
    assert view.epsilon_spent.accountant == "rdp"


def test_a_selection_s_public_length_is_no_pace_of_other_jobs(db: Database, submit: Submit) -> None:
    """It is the caller's number, of many runs."""
    job_id, log = begun(db, submit)
    log.record_digest(10, "00")
    for number in range(2):
        release(log, job_row(db, job_id), number)
    log.succeed([], 10, [])
    job = job_row(db, job_id)
    spec = JobSpec.model_validate(job.spec)
    with db.read() as session:
        assert seconds_per_step(session, job.dataset_id, spec) is not None
        assert seconds_per_step(session, job.dataset_id, spec.model_copy(update={"hpo": None})) is None
