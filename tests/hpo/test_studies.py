"""Studies in the database: runs are started, scored, and end their study; one hold pays for all."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import select

from app.db.database import Database
from app.db.models import Artifact, Certificate, Dataset, Job, JobEvent, Metric, Outbox
from app.keys.service import Caller
from app.ledger import certificates
from app.ledger.repository import posted
from app.ledger.summary import settled_events
from app.lifecycle import study_states
from app.lifecycle.claims import claim
from app.predictions.service import require_model
from core.errors import NotFound
from core.privacy import gdp
from core.privacy.events import Event, read
from tests.by_night import SQLITE_BY_DAY
from tests.hpo.conftest import Submit, account_of, artifacts_of, finish, job_of, play, release, runs_of
from tests.lifecycle.conftest import claimed

SCRIPT = Path(__file__).resolve().parents[2] / "scrimp" / "recompute.py"


@pytest.fixture(params=SQLITE_BY_DAY)  # tests/e2e and the races run on both
def backing(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_pilots_then_the_final_run_and_one_bill(db: Database, submit: Submit) -> None:
    study = submit()
    pilots = runs_of(db, study)
    assert [run.trial.level for run in pilots if run.trial] == [0, 0, 0, 1, 1, 1]
    assert job_of(db, study).status == "queued"
    held = account_of(db, study)
    assert held.train_held == job_of(db, study).quote["charge"]["train"]
    for number, run in enumerate(reversed(pilots)):
        play(db, run, 0.1 * number)
        assert job_of(db, study).status == "running"
    (final,) = runs_of(db, study, "queued")
    assert final.trial is not None and final.trial.role == "final"
    decided = (job_of(db, study).study or {})["decision"]
    assert decided["best"] == [0, 3]
    assert final.trial.r == pytest.approx(decided["r_star"], rel=1e-6)
    play(db, final)
    ended, account = job_of(db, study), account_of(db, study)
    assert (ended.status, ended.step) == ("succeeded", 7)
    assert (account.train_held, account.train_spent) == (0, ended.quote["charge"]["train"])
    # All of it: what was asked, to the unit.
    from core.privacy.filters import filter_of
    from core.privacy.shares import units_of

    assert account.train_spent == units_of(gdp.mu_from_epsilon(1.0, 1e-5) ** 2, filter_of("gdp"))
    with db.read() as session:
        assert [each.job_id for each in session.scalars(select(Artifact))] == [study]
        topics = session.scalars(select(Outbox.topic).where(Outbox.job_id == study)).all()
        kinds = session.scalars(select(JobEvent.type).where(JobEvent.job_id == study).order_by(JobEvent.seq)).all()
    assert topics == ["certificate"]
    assert kinds == [
        "queued",
        *["trial_queued"] * 6,
        *["trial_ended"] * 6,
        "decided",
        "trial_queued",
        "trial_ended",
        "succeeded",
    ]


def test_the_best_candidate_is_handed_out_and_the_others_are_not_kept(db: Database, submit: Submit) -> None:
    study = submit(strategy="random_k", runs=3)
    for run, score in zip(runs_of(db, study), (0.4, 0.9, 0.6), strict=True):
        play(db, run, score)
    ended, runs = job_of(db, study), runs_of(db, study)
    assert ended.status == "succeeded"
    with db.read() as session:
        (artifact,) = session.scalars(select(Artifact)).all()
        (metric,) = session.scalars(select(Metric).where(Metric.job_id == study)).all()
        discarded = session.scalars(select(Outbox.job_id).where(Outbox.topic == "discard")).all()
    assert (artifact.job_id, artifact.path) == (study, f"jobs/{runs[1].id}/x")
    assert (metric.name, metric.value) == ("accuracy", 0.9)
    assert set(discarded) == {runs[0].id, runs[2].id}


@pytest.mark.parametrize("keep_weights", [False, True])
def test_a_trial_answers_only_if_its_study_keeps_all_models(db: Database, submit: Submit, keep_weights: bool) -> None:
    study = submit(runs_per_level=1, keep_weights=keep_weights)
    for run in runs_of(db, study):
        play(db, run)
    trial = runs_of(db, study)[0]
    with db.read() as session:
        owner = session.get_one(Dataset, trial.dataset_id).owner_key
        caller = Caller(id=owner, role="admin", name="admin")
        if keep_weights:
            assert require_model(session, caller, trial.id).id == trial.id
        else:
            with pytest.raises(NotFound, match="study delivers the best one"):
                require_model(session, caller, trial.id)


def test_weights_of_pilots_are_kept_where_the_spec_asks(db: Database, submit: Submit) -> None:
    study = submit(runs_per_level=1, keep_weights=True)
    for _ in range(3):
        for run in runs_of(db, study, "queued"):
            play(db, run)
    with db.read() as session:
        owners = {each.job_id for each in session.scalars(select(Artifact))}
    assert owners == {study, *(run.id for run in runs_of(db, study)[:2])}


def test_random_is_one_run_with_everything(db: Database, submit: Submit) -> None:
    study = submit(strategy="random")
    (run,) = runs_of(db, study)
    play(db, run)
    account = account_of(db, study)
    assert (job_of(db, study).status, account.train_held) == ("succeeded", 0)
    assert run.quote["epsilon"]["value"] == pytest.approx(1.0, abs=1e-6)


def test_planned_noise_is_no_warning_of_a_study_once_its_scores_are_there(db: Database, submit: Submit) -> None:
    study = submit(changes={"evaluation": {"noise_mu": 0.0005}})
    planned = job_of(db, study).quote["planned_noise"]
    assert planned and set(planned) <= set(job_of(db, study).warnings)
    while waiting := runs_of(db, study, "queued"):
        play(db, waiting[0], 0.9)
    ended = job_of(db, study)
    assert ended.status == "succeeded" and not set(planned) & set(ended.warnings)


def test_cancel_stops_all_and_releases_what_was_not_started(db: Database, submit: Submit) -> None:
    study = submit()
    pilots = runs_of(db, study)
    play(db, pilots[0])
    log = claimed(db, pilots[1].id)
    assert log.start_block(1, 2)
    with db.write() as session:
        study_states.lock(session, pilots[1].id)
        study_states.cancel(session, study_states.get_job(session, study, lock=True))
    assert job_of(db, study).status == "cancelling"
    assert {run.status for run in runs_of(db, study)} == {"succeeded", "cancelling", "cancelled"}
    assert log.heartbeat()
    log.cancelled()
    account = account_of(db, study)
    assert (job_of(db, study).status, account.train_held) == ("cancelled", 0)
    first, second = (run.quote["charge"]["train"] for run in pilots[:2])
    assert first < account.train_spent < first + second


def test_a_study_that_never_started_is_void(db: Database, submit: Submit) -> None:
    study = submit()
    with db.write() as session:
        study_states.cancel(session, study_states.get_job(session, study, lock=True))
    account = account_of(db, study)
    assert (job_of(db, study).status, account.train_held, account.train_spent) == ("cancelled", 0, 0)


def test_a_run_that_fails_by_itself_ends_the_study_and_releases_nothing(db: Database, submit: Submit) -> None:
    study = submit()
    pilots = runs_of(db, study)
    other = claimed(db, pilots[1].id)
    log = claimed(db, pilots[0].id)
    assert log.start_block(1, 2)
    log.fail("internal", "The attempt failed.")
    assert job_of(db, study).status == "cancelling"
    assert other.heartbeat()
    other.cancelled()
    ended, account = job_of(db, study), account_of(db, study)
    assert (ended.status, ended.failure and ended.failure.code) == ("failed", "trial-failed")
    assert (account.train_held, account.train_spent) == (0, ended.quote["charge"]["train"])


def test_a_run_of_which_more_was_recorded_than_it_holds_ends_the_study(db: Database, submit: Submit) -> None:
    """It could not be settled: the study, and its hold, stayed open."""
    study = submit(strategy="random")
    (run,) = runs_of(db, study)
    log = claimed(db, run.id)
    assert log.start_block(1, run.steps)
    log.record_digest(run.steps, "a" * 64)
    with db.write() as session:
        study_states.get_job(session, run.id, lock=True).steps_started = run.steps + 1
    log.succeed(artifacts_of(run), run.steps, [])
    ended, account = job_of(db, study), account_of(db, study)
    assert (job_of(db, run.id).status, ended.status) == ("failed", "failed")
    assert (account.train_held, account.train_spent) == (0, ended.quote["charge"]["train"])
    with db.read() as session:
        assert session.scalars(select(Artifact)).all() == []


def test_a_run_that_fails_before_any_step_costs_nothing(db: Database, submit: Submit) -> None:
    study = submit()
    claimed(db, runs_of(db, study)[0].id).fail("extractor-missing", "The extractor is not there.")
    ended, account = job_of(db, study), account_of(db, study)
    assert (ended.status, account.train_held, account.train_spent) == ("failed", 0, 0)


def test_a_cancel_that_comes_too_late_takes_no_model_away(db: Database, submit: Submit) -> None:
    study = submit(strategy="random")
    (run,) = runs_of(db, study)
    log = claimed(db, run.id)
    assert log.start_block(1, run.steps)
    with db.write() as session:
        study_states.lock(session, run.id)
        study_states.cancel(session, study_states.get_job(session, study, lock=True))
    log.record_digest(run.steps, "a" * 64)
    log.succeed(artifacts_of(run), run.steps, [])
    ended = job_of(db, study)
    assert (ended.status, (ended.study or {})["chosen"]) == ("succeeded", 0)
    with db.read() as session:
        assert [each.job_id for each in session.scalars(select(Artifact))] == [study]


def test_the_ledgers_comparison_has_a_study_as_one_job(db: Database, submit: Submit) -> None:
    study = submit()
    pilots = runs_of(db, study)
    play(db, pilots[0])
    dataset = job_of(db, study).dataset_id

    def trees() -> list[Event]:
        with db.read() as session:
            counted = settled_events(posted(session, dataset), "train")
        assert [count for _, count in counted] == [1] * len(counted)
        return [event for event, _ in counted]

    (tree,) = trees()
    assert gdp.epsilon_from_mu(gdp.mu_of_event(tree) or 0.0, 1e-5) == pytest.approx(0.1, abs=0.01)
    play(db, pilots[1])
    assert len(trees()) == 1
    for _ in range(2):
        for run in runs_of(db, study, "queued"):
            play(db, run)
    assert trees() == [read(job_of(db, study).quote["mechanism"]["train"])]
    assert gdp.epsilon_from_mu(gdp.mu_of_event(trees()[0]) or 0.0, 1e-5) == pytest.approx(1.0, abs=1e-6)


def test_a_tampered_certificate_of_a_study_is_found(db: Database, submit: Submit) -> None:
    count = {"kind": "adaptive", "max_grad_norm": 1.0}
    study = submit(runs_per_level=1, keep_weights=True, changes={"clipping": count})
    for _ in range(2):
        for run in runs_of(db, study, "queued"):
            play(db, run)
    assert certificates.issue(db, study, Ed25519PrivateKey.generate(), "1")
    with db.read() as session:
        body = session.get_one(Certificate, study).body["certificate"]
    assert [run["released"]["weights"] for run in body["study"]["runs"]] == [True] * 3
    assert body["study"]["seed"] == (job_of(db, study).study or {})["seed"]
    spec = importlib.util.spec_from_file_location("recompute_certificate", SCRIPT)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.check_body(body) == []

    def faults(change: Callable[[dict[str, Any]], None]) -> list[str]:
        changed = copy.deepcopy(body)
        change(changed)
        return list(script.check_body(changed))

    def of_run(**changes: Any) -> Callable[[dict[str, Any]], None]:
        return lambda found: found["study"]["runs"][1]["mechanism"].update(changes)

    def of_training(**changes: Any) -> Callable[[dict[str, Any]], None]:
        return lambda found: found["study"]["runs"][1]["mechanism"]["training"].update(changes)

    assert faults(
        of_training(
            adaptive=body["study"]["runs"][1]["mechanism"]["training"]["adaptive"] | {"count_noise_multiplier": 1.0}
        )
    )
    assert faults(of_training(sampling="poisson"))
    assert faults(of_run(target_delta=1e-3))
    assert faults(of_run(unit="user"))
    assert faults(lambda found: found["steps"].update(planned=1))
    assert faults(lambda found: found["study"]["runs"][0]["charge"].update(train=1))


def test_a_run_that_is_lost_again_and_again_ends_no_study_and_a_cancel_gives_the_rest_back(
    db: Database, submit: Submit
) -> None:
    study = submit(runs_per_level=1)
    run = runs_of(db, study)[0]
    for attempt in range(30):
        log = claimed(db, run.id)
        if attempt == 0:
            assert log.start_block(1, 2)
        log.gone("lost")
    assert job_of(db, study).status == "running"
    with db.write() as session:
        study_states.cancel(session, session.get_one(Job, study))
    ended, account = job_of(db, study), account_of(db, study)
    assert ended.status == "cancelled"
    assert (account.train_held, 0 < account.train_spent < run.quote["charge"]["train"]) == (0, True)


def test_a_lost_worker_repeats_nothing(db: Database, submit: Submit) -> None:
    study = submit(runs_per_level=1)
    for run in runs_of(db, study):
        log = claimed(db, run.id)
        assert log.start_block(1, run.steps)
        log.gone("lost")
        again = claimed(db, run.id)
        assert again.start_block(1, run.steps)
        again.record_digest(run.steps, "a" * 64)
        release(again, run, 0.5)
        release(again, run, 0.9)  # a second value for a step is dropped
        again.succeed([], run.steps, [])
        with db.write() as session:
            assert claim(session, run.id, "late", 30.0) is None
    (final,) = runs_of(db, study, "queued")
    finish(claimed(db, final.id), final, 0.0)
    assert account_of(db, study).train_spent == job_of(db, study).quote["charge"]["train"]


def test_scores_of_the_holdout_are_on_its_account(db: Database, submit: Submit) -> None:
    study = submit(score={"kind": "private_count", "on": "holdout", "noise_mu": 0.02})
    for _ in range(2):
        for run in runs_of(db, study, "queued"):
            play(db, run)
    ended, account = job_of(db, study), account_of(db, study)
    assert ended.status == "succeeded"
    assert (account.holdout_spent, account.holdout_held) == (ended.quote["charge"]["holdout"], 0)
    assert account.holdout_spent == 6 * runs_of(db, study)[0].quote["charge"]["holdout"]


def test_no_worker_claims_a_study(db: Database, submit: Submit) -> None:
    study = submit()
    with db.write() as session:
        assert claim(session, study, "w", 30.0) is None
