"""One private mean serves a study: its first trial releases and pays for it; the others begin later and read it."""

from __future__ import annotations

import copy
import math

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import select

from app.db.database import Database
from app.db.models import Artifact, Certificate, Job, Outbox
from app.ledger import certificates
from app.lifecycle import study_states
from core.errors import PrivacyError
from core.privacy.mechanism import MechanismConfig
from scrimp import recompute
from scrimp.explain import explained
from tests.by_night import SQLITE_BY_DAY
from tests.hpo.conftest import Submit, account_of, job_of, play, runs_of
from tests.lifecycle.conftest import claimed

CENTERED = {"model": {"kind": "linear", "center": {"max_norm": 2.0}}}
ONE = math.ceil(0.0173**2 * 1e12 * (1 + 1e-12))  # the charge of one mean


@pytest.fixture(params=SQLITE_BY_DAY)  # tests/e2e and the races run on both
def backing(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def means(runs: list[Job]) -> list[bool]:
    return [bool(MechanismConfig.model_validate(run.mechanism).before) for run in runs]


def finished(db: Database, study: str) -> list[Job]:
    while runs := runs_of(db, study, "queued"):
        for run in runs:
            play(db, run)
    return runs_of(db, study)


def test_the_first_trial_goes_first_and_alone_is_charged_for_the_mean(db: Database, submit: Submit) -> None:
    study = submit(changes=CENTERED)
    (first,) = runs_of(db, study)
    assert job_of(db, study).steps == 7
    with db.read() as session:
        assert study_states.has_one_mean(session, first)
        with pytest.raises(PrivacyError, match="not on record"):  # nobody else could begin
            study_states.released_mean(session, first)
    play(db, first)
    pilots = runs_of(db, study)
    assert [run.trial_number for run in pilots] == [0, 1, 2, 3, 4, 5] and means(pilots) == [True] + [False] * 5
    assert (job_of(db, study).study or {})["decision"] is None
    with db.read() as session:
        assert study_states.released_mean(session, pilots[4]).sha256 == "b" * 64
    spent = [run.quote["charge"]["train"] for run in pilots[:3]]
    assert spent[0] == account_of(db, study).train_spent == spent[1] + ONE and spent[1] == spent[2]
    runs = finished(db, study)
    assert means(runs) == [True] + [False] * 6 and runs[-1].trial is not None and runs[-1].trial.role == "final"
    ended, account = job_of(db, study), account_of(db, study)
    assert (ended.status, account.train_held) == ("succeeded", 0)
    assert account.train_spent == ended.quote["charge"]["train"] == sum(run.quote["charge"]["train"] for run in runs)
    with db.read() as session:  # the mean is in the model now
        assert [each.name for each in session.scalars(select(Artifact))] == ["model.safetensors"]


def test_a_first_trial_that_is_lost_lets_no_other_begin_and_pays_once(db: Database, submit: Submit) -> None:
    study = submit(runs_per_level=1, changes=CENTERED)
    (first,) = runs_of(db, study)
    for _ in range(3):
        log = claimed(db, first.id)
        assert log.start_block(1, first.steps)
        log.gone("lost")
        assert len(runs_of(db, study)) == 1
    salts = job_of(db, first.id).segments
    assert [each.salt for each in salts] == [each.salt for each in first.segments], "the same noise each time"
    finished(db, study)
    assert account_of(db, study).train_spent == job_of(db, study).quote["charge"]["train"]


@pytest.mark.parametrize("begun", [0, 2, None])
def test_a_cancel_pays_for_the_mean_if_it_was_begun(db: Database, submit: Submit, begun: int | None) -> None:
    """Before the first step: nothing. From then on: the mean, and the steps that were started. None: all of them."""
    study = submit(changes=CENTERED)
    (first,) = runs_of(db, study)
    log = claimed(db, first.id) if begun is not None else None
    if log is None:
        play(db, first)
    elif begun:
        assert log.start_block(1, begun)
    with db.write() as session:
        study_states.cancel(session, study_states.get_job(session, study, lock=True))
    if log is not None:
        assert log.heartbeat()
        log.cancelled()
    account, whole = account_of(db, study), first.quote["charge"]["train"]
    assert (job_of(db, study).status, account.train_held) == ("cancelled", 0)
    if begun is None:
        assert account.train_spent == whole
    elif begun == 0:
        assert account.train_spent == 0
    else:
        steps = (whole - ONE) * begun / first.steps
        assert ONE + 0.5 * steps < account.train_spent < ONE + 1.5 * steps


def test_the_best_candidate_may_be_the_one_that_made_the_mean(db: Database, submit: Submit) -> None:
    study = submit(strategy="random_k", runs=3, changes=CENTERED)
    (first,) = runs_of(db, study)
    play(db, first, 0.9)
    finished(db, study)
    with db.read() as session:
        assert [(each.name, each.job_id) for each in session.scalars(select(Artifact))] == [
            ("model.safetensors", study)
        ]
        discarded = session.scalars(select(Outbox.job_id).where(Outbox.topic == "discard")).all()
    assert first.id not in discarded, "its folder holds the model"


def test_a_study_stored_before_releases_a_mean_in_each_trial(db: Database, submit: Submit) -> None:
    """It was priced so. Its rows are those of version 1: without `mean_once`."""
    study = submit(runs_per_level=1, changes=CENTERED)
    with db.write() as session:
        row = session.get_one(Job, study)
        column = copy.deepcopy(row.study or {})
        del column["common"]["mean_once"]
        row.study = column
    (first,) = runs_of(db, study)
    with db.read() as session:
        assert not study_states.has_one_mean(session, first)
    play(db, first)
    assert means(runs_of(db, study)) == [True, True]


def test_a_certificate_says_who_released_the_mean_and_a_second_release_is_found(db: Database, submit: Submit) -> None:
    """Claim: a second release of a study's mean is found
    Now: found in the certificate; refused by the worker
    """
    study = submit(runs_per_level=1, changes=CENTERED)
    runs = finished(db, study)
    assert certificates.issue(db, study, Ed25519PrivateKey.generate(), "1")
    with db.read() as session:
        body = session.get_one(Certificate, study).body["certificate"]
    assert body["study"]["mean"] == {"run": runs[0].id}
    assert body["epsilon"]["value"] == pytest.approx(1.0, abs=1e-6)
    assert recompute.check_body(body) == []
    told = dict(explained(body))
    assert f"a private study: {len(runs)} trials" in told["Mechanism"][0]
    assert "its final trial alone has ε = 0.959" in told["Mechanism"][1]
    scored = [each for each in told["What left the service"] if each.startswith("trial ")]
    assert len(scored) == sum(
        len(run["released"]["metrics"]) + run["released"]["weights"] for run in body["study"]["runs"]
    )
    assert scored
    twice = copy.deepcopy(body)
    first, second = twice["study"]["runs"][:2]
    second["mechanism"]["mean"] = first["mechanism"]["mean"]
    second["events"]["train"]["events"].append(first["events"]["train"]["events"][1])
    found = recompute.check_body(twice)
    assert any("these runs release one" in fault for fault in found), found
    assert any("what the runs give together" in fault for fault in found), found
    moved = copy.deepcopy(body)
    moved["study"]["mean"]["run"] = runs[1].id
    assert recompute.check_body(moved)
