"""Histories of studies with crashes, lost workers, late messages, cancels and failures, against one bill."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import select

from app.db.database import Database
from app.db.models import Account, Job, LedgerEntry
from app.jobs import steering
from app.keys.service import Caller
from app.ledger.verification import verify
from app.lifecycle import study_states
from app.lifecycle.attempts import AttemptLog
from app.lifecycle.claims import claim, give_back
from app.lifecycle.states import FINISHED
from core.errors import Conflict, StaleAttempt
from tests.factories import AT_ONCE, NO_HEADS
from tests.hpo.conftest import Submit, artifacts_of, release, runs_of
from tests.lifecycle.conftest import no_wait

HPO: list[dict[str, Any]] = [
    {"runs_per_level": 1},
    {"runs_per_level": 2, "levels": [0.05, 0.1], "score": {"kind": "private_count", "on": "holdout"}},
    {"levels": [0.05, 0.1, 0.2], "runs_per_level": 1, "curve": "quadratic"},
    {"strategy": "random_k", "runs": 3},
    {"strategy": "random"},
    {"runs_per_level": 1, "changes": {"model": {"kind": "linear", "center": {}}}},
    {"strategy": "random_k", "runs": 2, "changes": {"model": {"kind": "linear", "center": {}}}},
]


class StudyMachine(RuleBasedStateMachine):
    db: Database
    submit: Submit

    @initialize(hpo=st.sampled_from(HPO))
    def admit(self, hpo: dict[str, Any]) -> None:
        self.study = type(self).submit(**hpo)
        self.charge = self.row(self.study).quote["charge"]
        self.ended = False
        self.live: list[AttemptLog] = []  # attempts that believe that they hold their run, stale ones too
        self.scores: dict[str, float] = {}

    def row(self, job_id: str) -> Job:
        with self.db.read() as session:
            return session.get_one(Job, job_id)

    @precondition(lambda self: not self.ended)
    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        """A message arrives, perhaps late or doubled."""
        runs = runs_of(self.db, self.study)
        run = runs[data.draw(st.integers(0, len(runs) - 1))].id
        no_wait(self.db, run)
        with self.db.write() as session:
            held = claim(session, run, "w", 30.0)
        if held is not None:
            self.live.append(AttemptLog(self.db, held, lease_s=30.0, max_attempts=3, cadence=AT_ONCE))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), score=st.floats(0.0, 1.0), ends=st.integers(0, 5))
    def work(self, data: st.DataObject, score: float, ends: int) -> None:
        """An attempt goes on to some point, and ends there: of its run, or by a crash of its worker."""
        log = self.live[data.draw(st.integers(0, len(self.live) - 1))]
        run = self.row(log.held.job_id)
        try:
            if not log.start_block(1, run.steps // 2) or not log.start_block(run.steps // 2 + 1, run.steps):
                log.cancelled()
            elif ends == 0:
                return  # it is slow; its lease may be taken meanwhile
            elif ends == 1:
                log.gone("lost")
            elif ends == 2:
                log.record_digest(run.steps, "a" * 64)
                release(log, run, self.scores.setdefault(run.id, score))
                log.gone("lost")
            else:
                log.record_digest(run.steps, "a" * 64)
                release(log, run, self.scores.setdefault(run.id, score))
                log.succeed(artifacts_of(run), run.steps, [])
        except StaleAttempt:
            pass
        self.live.remove(log)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), how=st.sampled_from(["crashed", "lost"]))
    def die(self, data: st.DataObject, how: Any) -> None:
        """A worker dies without a word; it may come back and find itself stale."""
        log = self.live[data.draw(st.integers(0, len(self.live) - 1))]
        try:
            log.gone(how)
        except StaleAttempt:
            self.live.remove(log)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), chance=st.integers(0, 9))
    def fail(self, data: st.DataObject, chance: int) -> None:
        if chance > 1:
            return
        log = self.live[data.draw(st.integers(0, len(self.live) - 1))]
        with contextlib.suppress(StaleAttempt):
            log.fail("internal", "The attempt failed.")
        self.live.remove(log)

    @rule(chance=st.integers(0, 19))
    def cancel(self, chance: int) -> None:
        if chance > 0:
            return
        caller = Caller(self.row(self.study).key_id, "test", "admin")
        try:
            steering.cancel(self.db, caller, self.study, NO_HEADS)
        except Conflict:
            assert self.row(self.study).status in FINISHED

    @invariant()
    def one_bill(self) -> None:
        with self.db.read() as session:
            study = session.get_one(Job, self.study)
            runs = session.scalars(select(Job).where(Job.parent_id == study.id).order_by(Job.trial_number)).all()
            account = session.get_one(Account, study.dataset_id)
            assert verify(session, study.dataset_id).valid
            of = LedgerEntry.dataset_id == study.dataset_id
            posts = session.scalars(select(LedgerEntry).where(of, LedgerEntry.kind == "post")).all()
        self.ended = study.status in FINISHED
        for name in ("train", "holdout"):
            spent, held = getattr(account, f"{name}_spent"), getattr(account, f"{name}_held")
            assert spent + held <= self.charge[name]
            assert spent == sum(getattr(post, name) for post in posts)
            if self.ended:
                assert held == 0
            else:
                assert spent + held == self.charge[name]
        # Nothing that was started is free.
        shares = [each["share"] for each in (study.study or {})["runs"]]
        ended = [(run, shares[run.trial_number or 0]) for run in runs if run.status in FINISHED]
        assert account.train_spent >= sum(share * run.steps_started // run.steps for run, share in ended)
        numbers = [run.trial_number for run in runs]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) <= study.steps
        # A mean is released by the first trial, before any other begins.
        centred = [run for run in runs if (run.mechanism or {}).get("mean")]
        assert [run.trial_number for run in centred] == ([0] if study.spec["model"].get("center") else [])
        assert not centred or len(runs) == 1 or runs[0].status == "succeeded"
        if study.status == "succeeded":
            assert (len(numbers), {run.status for run in runs}) == (study.steps, {"succeeded"})
            assert (account.train_spent, account.holdout_spent) == (self.charge["train"], self.charge["holdout"])
        if self.ended:
            assert all(run.status in FINISHED for run in runs)
        else:
            # Never stuck: something is queued, or somebody holds a run.
            assert any(run.status not in FINISHED for run in runs)

    def teardown(self) -> None:
        """Whatever happened, one worker alone ends it."""
        for _ in range(100):
            if self.row(self.study).status in FINISHED:
                break
            for run in runs_of(self.db, self.study, "queued", "running", "cancelling"):
                self._end(run)
        assert self.row(self.study).status in FINISHED
        self.one_bill()

    def _end(self, run: Job) -> None:
        if run.status != "queued":
            with self.db.write() as session:
                study_states.lock(session, run.id)
                job = study_states.get_job(session, run.id, lock=True)
                if job.status in ("running", "cancelling"):
                    give_back(session, job, "lost", 3)
            return
        no_wait(self.db, run.id)
        with self.db.write() as session:
            held = claim(session, run.id, "last", 30.0)
        assert held is not None
        log = AttemptLog(self.db, held, lease_s=30.0, max_attempts=3, cadence=AT_ONCE)
        assert log.start_block(1, run.steps)
        log.record_digest(run.steps, "a" * 64)
        release(log, run, self.scores.setdefault(run.id, 0.5))
        log.succeed(artifacts_of(run), run.steps, [])


@pytest.mark.parametrize("histories", [6, pytest.param(100, marks=pytest.mark.nightly)])
def test_no_history_of_crashes_charges_more_or_loses_a_run(db: Database, submit: Submit, histories: int) -> None:
    machine = type("Machine", (StudyMachine,), {"db": db, "submit": staticmethod(submit)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=histories,
            stateful_step_count=25,
            suppress_health_check=list(HealthCheck),
        ),
    )
