"""The state machine of studies. A study's trials do its work; they are separate jobs that draw on the study's one hold.

    queued ──first trial claimed──▶ running ──all trials ended──▶ succeeded
                                       │ a trial failed, or a person cancels; a pause pauses the trials
                                       ▼
                                   cancelling ──every trial has ended──▶ failed | cancelled

No worker claims a study, and none waits for another. The end of a trial advances the study in the trial's own
transaction, under the lock on the study's row. The next trials are a pure function of the scores (app.hpo.strategies).
Each trial exists once, by its number, so repeating this step repeats or loses nothing.

If features are centred by a private mean, the first trial releases it for all: the others start once it has succeeded,
and its file and its charge are on record from the same transaction on. So no history of crashes releases it twice.

A failed trial ends its study. Continuing without it would let the cause of the failure choose the result; that cause
may depend on private data, and nothing was charged for it. Locks are taken in one order: study, trial, key, account.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import String, bindparam, func, select, update
from sqlalchemy.orm import Session

from app.db.models import Artifact, Attempt, Job, Metric, table_of
from app.db.statement_batch import Values
from app.hpo.space import Bounds
from app.hpo.stored_study import StoredDecision, StoredRun, StoredStudy
from app.hpo.strategies import Run, Study, decide, runs_of, winner
from app.ledger import block_accounts
from app.ledger.memos import Settled
from app.lifecycle import learning, pausing
from app.lifecycle.job_events import Ended, Queued, Requested, Score, TrialEnded, TrialQueued
from app.lifecycle.settle import Cause, Outcome, lacks_hold, settle, settlement_of
from app.lifecycle.states import (
    ACTIVE,
    FINISHED,
    IDLE,
    append_event,
    discard,
    get_job,
    notify,
    want_certificate,
    write_event,
)
from core.contracts.hpo import MEAN_FILE
from core.contracts.job_spec import Evaluation, JobSpec
from core.contracts.optimizers import Dp2Settings
from core.contracts.stored_documents import Failure, SaltedSteps, TrialPoint
from core.errors import PrivacyError
from core.ids import new_id, now, whole_second
from core.privacy.mechanism import MechanismConfig
from core.privacy.prices import Charge, Units
from core.privacy.quoted import Quoted, TrialQuote

JOBS = table_of(Job)
# Marks the study of a claimed trial as running.
STARTED = (
    update(JOBS)
    .where(JOBS.c.id == bindparam("study_id", type_=String), JOBS.c.status == "queued")
    .values(status="running", started_at=func.coalesce(JOBS.c.started_at, bindparam("at")))
)


def lock(session: Session, job_id: str) -> None:
    """Locks the study of a trial until the transaction ends; call it before locking the trial's row. Other jobs have
    none."""
    parent_id = session.scalar(select(Job.parent_id).where(Job.id == job_id))
    if parent_id is not None:
        get_job(session, parent_id, lock=True)


def end(
    session: Session,
    job: Job,
    outcome: Outcome,
    *,
    failure: Failure | None = None,
    cause: Cause = Cause.OUTSIDE,
) -> None:
    """Ends a job and moves its hold; if it is a trial, advances its study. In the caller's transaction.

    Args:
        job: a fresh, locked row; its study was locked before it.
        failure, cause: as in app.lifecycle.settle.
    """
    settlement = settlement_of(session, job, outcome, failure=failure, cause=cause)
    if job.parent_id is not None and settlement.outcome == "failed":
        # The study will stop its other trials: their rows are locked before the key's and the account's.
        _runs(session, get_job(session, job.parent_id, lock=True), lock=True)
    settle(session, settlement)
    if job.parent_id is not None:
        _advance(session, get_job(session, job.parent_id, lock=True), job)


def cancel(session: Session, study: Job) -> None:
    """Stops every trial: queued ones at once, the others within a second. The last trial's end ends the study.

    Args:
        study: its row, locked by this transaction.
    """
    study.status = "cancelling"
    session.flush()
    for run in _runs(session, study, lock=True):
        if run.status in IDLE:
            settle(session, settlement_of(session, run, "cancelled"))
            _note_end(session, study, run)
        elif run.status in ("running", "pausing"):
            run.status, run.cancel_requested_at = "cancelling", now()
            append_event(session, run.id, "cancel_requested", Requested(by=study.id))
    session.flush()
    study.step = sum(run.status in FINISHED for run in _runs(session, study))
    _end_if_stopped(session, study)


def pause(session: Session, study: Job) -> None:
    """Pauses every trial: queued ones at once, the others within a second; the last of them pauses the study.

    Args:
        study: its row, locked by this transaction.
    """
    study.status = "pausing"
    session.flush()
    for run in _runs(session, study, lock=True):
        if run.status in ("queued", "running"):
            append_event(session, run.id, "pause_requested", Requested(by=study.id))
            pausing.request(session, run)
    _pause_if_idle(session, study)


def resume(session: Session, study: Job) -> None:
    """Lets every paused trial go on, and takes back what has not taken effect yet. `study`: as in `pause`."""
    append_event(session, study.id, "resumed")
    study.status = "queued" if study.started_at is None else "running"
    session.flush()
    for run in _runs(session, study, lock=True):
        if run.status in ("pausing", "paused"):
            pausing.resume(session, run)


def park(session: Session, job: Job) -> None:
    """Parks a job whose attempt has ended in a pause; the last trial of a study that pauses parks the study too.

    Args:
        job: a fresh, locked row; its study was locked before it.
    """
    pausing.park(session, job)
    if job.parent_id is not None:
        _pause_if_idle(session, get_job(session, job.parent_id, lock=True))


def _pause_if_idle(session: Session, study: Job) -> None:
    """Ends the pausing of a study of which no trial is on a worker any more."""
    if study.status == "pausing" and not any(run.status in ACTIVE for run in _runs(session, study)):
        study.status = "paused"
        append_event(session, study.id, "paused")


def begin(session: Session, study: Job) -> None:
    """Writes the first trials of a study that was just admitted."""
    _start(session, study, _may_start(study, runs_of(study_of(study), {}), set()))


def has_one_mean(session: Session, job: Job) -> bool:
    """Returns True if the job is a trial of a study with one private mean, which its first trial releases."""
    return job.parent_id is not None and _has_one_mean(session.get_one(Job, job.parent_id))


def released_mean(session: Session, job: Job) -> Artifact:
    """Returns the file of the mean that the first trial of this trial's study released.

    Raises:
        PrivacyError: there is none. A second release is not covered by the charge.
    """
    first = select(Job.id).where(Job.parent_id == job.parent_id, Job.trial_number == 0, Job.status == "succeeded")
    artifact = session.scalar(select(Artifact).where(Artifact.name == MEAN_FILE, Artifact.job_id.in_(first)))
    if artifact is None:
        raise PrivacyError("the study's mean was released, but its file is not on record")
    return artifact


def _has_one_mean(study: Job) -> bool:
    common = StoredStudy.read(study.study).common
    return common is not None and common.mean_once


def _may_start(study: Job, runs: list[Run], succeeded: Collection[int]) -> list[Run]:
    """Returns the trials that may start now: all of them; but where one mean serves the study, the first alone until it
    has succeeded, so that no other trial can release one too."""
    return runs[:1] if _has_one_mean(study) and 0 not in succeeded else runs


def study_of(job: Job) -> Study:
    """Reads the study that a job's row describes. All of it is public."""
    stored, spec = StoredStudy.read(job.study), JobSpec.model_validate(job.spec)
    if spec.study is None:
        raise TypeError("this job is not a study")
    bounds = Bounds.of(spec.study.space, stored.steps)
    return Study(spec.study, bounds, stored.seed, stored.levels, stored.at_final, stored.larger_is_better)


def _advance(session: Session, study: Job, ended: Job) -> None:
    """Starts the next trials after one has ended, or ends the study."""
    if study.status in FINISHED:
        return
    runs = _runs(session, study)
    study.step = sum(run.status in FINISHED for run in runs)
    _note_end(session, study, ended)
    if ended.status == "failed" and study.failure is None:
        study.failure = Failure(code="trial-failed", message=f"trial {ended.trial_number} of the study failed")
        cancel(session, study)
    elif study.status == "cancelling" and not (study.failure is None and _is_whole(study, runs)):
        _end_if_stopped(session, study)
    elif all(run.status == "succeeded" for run in runs):
        _go_on(session, study, runs)
    if study.status == "pausing":
        _pause_if_idle(session, study)


def _note_end(session: Session, study: Job, ended: Job) -> None:
    """Tells that a trial of the study has ended."""
    score = _shown(session, study, ended)
    ended_event = TrialEnded(job=ended.id, number=ended.trial_number or 0, status=ended.status, score=score)
    append_event(session, study.id, "trial_ended", ended_event)


def _is_whole(study: Job, runs: Sequence[Job]) -> bool:
    """Returns True if every planned trial has succeeded: a cancel would then only discard a paid model."""
    return len(runs) == study.steps and all(run.status == "succeeded" for run in runs)


def _go_on(session: Session, study: Job, runs: Sequence[Job]) -> None:
    """Starts the trials that the scores lead to, or ends the study. All trials so far have succeeded."""
    search, scores = study_of(study), scores_of(session, study, runs)
    numbers = {run.trial_number for run in runs}
    runs_done = runs_of(search, scores)
    new = [run for run in _may_start(study, runs_done, scores) if run.number not in numbers]
    if not new:
        _succeed(session, study, runs, winner(search, scores))
        return
    if new[-1].role == "final":
        _decide(session, study, search, [run for run in runs_done if run.number in numbers], scores)
    _start(session, study, new)


def _decide(session: Session, study: Job, search: Study, pilots: list[Run], scores: dict[int, float]) -> None:
    """Stores and tells how the final trial was chosen."""
    decision = decide(search, pilots, scores)
    decided = StoredDecision.of(decision)
    study.study = StoredStudy.read(study.study).model_copy(update={"decision": decided}).model_dump(mode="json")
    append_event(session, study.id, "decided", decided)


def _start(session: Session, study: Job, runs: Sequence[Run]) -> None:
    stored = StoredStudy.read(study.study)
    new = [_new(stored, run) for run in runs]
    session.execute(table_of(Job).insert(), [_row(study, stored, each) for each in new])
    for run in new:
        charge = _charge(study, run.plan)
        write_event(session, run.id, 1, "queued", Queued(number=run.run.number, role=run.run.role, charge=charge))
        queued = TrialQueued(job=run.id, number=run.run.number, **dict(run.point))
        append_event(session, study.id, "trial_queued", queued)
        if study.status in ("pausing", "paused"):
            pausing.request(session, get_job(session, run.id, lock=True))
        else:
            notify(session, run.id)


@dataclass(frozen=True)
class _New:
    """A trial that is about to start, with its part of the study's budget."""

    id: str
    run: Run
    plan: StoredRun
    point: TrialPoint


def _new(stored: StoredStudy, run: Run) -> _New:
    point = TrialPoint(
        role=run.role,
        level=run.level,
        learning_rate=run.point.learning_rate,
        steps=run.point.steps,
        max_grad_norm=run.point.max_grad_norm,
        r=run.point.r,
        keeps_weights=run.role != "pilot" or stored.keep_weights,
    )
    return _New(new_id("job"), run, stored.runs[run.number], point)


def _charge(study: Job, plan: StoredRun) -> Charge:
    """Returns a trial's charge, in the unit of its study's."""
    unit = Quoted.of(study.quote).charge.unit
    return Charge(train=plan.charge.train, holdout=plan.charge.holdout, unit=unit)


def _row(study: Job, stored: StoredStudy, new: _New) -> Values:
    """Builds a trial's row as a job: the study's specification at the trial's point, with its share of the budget."""
    run = new.run
    point = run.point
    mechanism = stored.mechanism(run.number, point.steps, point.max_grad_norm)
    spec = run_spec(JobSpec.model_validate(study.spec), run, mechanism, stored.trial_evaluation, stored.seed)
    trial_quote = TrialQuote(
        noise_multiplier=mechanism.training.noise_multiplier if mechanism else None,
        steps=point.steps,
        epsilon=new.plan.epsilon,
        charge=_charge(study, new.plan),
    )
    return {
        "id": new.id,
        "dataset_id": study.dataset_id,
        "declaration": study.declaration,  # the study's price depends on it, whatever the owner has declared since
        "key_id": study.key_id,
        # No client can send this key: a header cannot hold a line break.
        "idempotency_key": f"{study.id}\n{run.number}",
        "request_sha256": study.request_sha256,
        "name": f"{study.name} run {run.number}".strip(),
        "status": "queued",
        "spec": spec.model_dump(mode="json"),
        "mechanism": mechanism.model_dump(mode="json") if mechanism else None,
        "quote": study.quote | trial_quote.model_dump(mode="json"),
        "segments": (SaltedSteps(from_step=0, salt=secrets.token_hex(32), key_id=None),),
        "steps": point.steps,
        "attempt": 0,
        "steps_started": 0,
        "step": 0,
        "warnings": [],
        "events": 1,
        "created_at": now(),
        "parent_id": study.id,
        "trial_number": run.number,
        "traceparent": study.traceparent,
        "trial": new.point,
    }


def run_spec(
    spec: JobSpec, run: Run, mechanism: MechanismConfig | None, evaluation: Evaluation | None, seed: str
) -> JobSpec:
    """Builds a trial's specification: the study's, at the trial's point. All but the final trial release only scores.

    A second learning rate, for a delayed preconditioner's other phase, keeps its ratio to the first.
    """
    point, document = run.point, spec.model_dump(mode="json")
    if isinstance(spec.optimizer, Dp2Settings):
        ratio = spec.optimizer.learning_rate_adaptive / spec.optimizer.rate
        document["optimizer"]["learning_rate_adaptive"] = ratio * point.learning_rate
    document["optimizer"]["learning_rate"] = point.learning_rate
    document["length"] = {"steps": point.steps}
    document["hpo"] = None
    if point.max_grad_norm is not None:
        document["clipping"] = (document["clipping"] or {}) | {"max_grad_norm": point.max_grad_norm}
    if mechanism is not None:
        document["privacy"] = {
            "noise_multiplier": mechanism.training.noise_multiplier,
            "target_delta": mechanism.target_delta,
        }
    if run.role != "final":
        document["evaluation"] = evaluation.model_dump(mode="json") if evaluation else None
    if spec.seed is not None:
        digest = hashlib.sha256(f"{seed}/{run.number}".encode()).digest()
        document["seed"] = int.from_bytes(digest[:8], "big") >> 1
    return JobSpec.model_validate(document)


def scores_of(session: Session, study: Job, runs: Sequence[Job]) -> dict[int, float]:
    """Reads the score of each succeeded trial, by number. On public data a score may be missing: it counts as worst."""
    worst = -math.inf if StoredStudy.read(study.study).larger_is_better else math.inf
    scores = {}
    for run in runs:
        metric = score_of(session, study, run.id)
        if run.status == "succeeded" and run.trial_number is not None:
            scores[run.trial_number] = metric.value if metric is not None else worst
    return scores


def score_of(session: Session, study: Job, run_id: str) -> Metric | None:
    """Returns the metric that compares trials; None if the trial has none."""
    name = StoredStudy.read(study.study).score
    of_run = select(Metric).where(Metric.job_id == run_id, Metric.name == name).order_by(Metric.step.desc()).limit(1)
    return session.scalar(of_run)


def _shown(session: Session, study: Job, run: Job) -> Score | None:
    is_final = run.trial is not None and run.trial.role == "final"
    metric = None if is_final else score_of(session, study, run.id)
    return None if metric is None else Score(name=metric.name, value=metric.value, std=metric.std)


def _runs(session: Session, study: Job, *, lock: bool = False) -> list[Job]:
    """Reads the study's trials by number, as they are now."""
    query = select(Job).where(Job.parent_id == study.id).order_by(Job.trial_number)
    if lock:
        query = query.with_for_update(key_share=True)
    session.flush()
    return list(session.scalars(query, execution_options={"populate_existing": True}))


def _end_if_stopped(session: Session, study: Job) -> None:
    """Ends a stopped study once all its trials have ended."""
    runs = _runs(session, study)
    if study.status in FINISHED or not all(run.status in FINISHED for run in runs):
        return
    failed = study.failure is not None
    ids = [run.id for run in runs]
    crashes = select(func.count()).where(Attempt.job_id.in_(ids), Attempt.status == "crashed")
    by_itself = any(run.status == "failed" for run in runs)
    _close(session, study, "failed" if failed else "cancelled", is_whole=by_itself or bool(session.scalar(crashes)))


def _succeed(session: Session, study: Job, runs: Sequence[Job], best: int) -> None:
    """Gives the study its best trial's model and scores, and ends it."""
    best_run = next(run for run in runs if run.trial_number == best)
    for metric in session.scalars(select(Metric).where(Metric.job_id == best_run.id)).all():
        copied = {c.key: getattr(metric, c.key) for c in Metric.__mapper__.column_attrs}
        session.add(Metric(**copied | {"job_id": study.id}))
    for artifact in session.scalars(select(Artifact).where(Artifact.job_id == best_run.id)).all():
        if artifact.name == MEAN_FILE:  # it is in the model, and was for the other trials
            session.delete(artifact)
        else:
            artifact.job_id = study.id
    session.flush()
    left = learning.still_true(session, study)
    study.warnings = [*left, *(warning for warning in best_run.warnings if warning not in left)]
    study.study = StoredStudy.read(study.study).model_copy(update={"chosen": best}).model_dump(mode="json")
    session.flush()
    _close(session, study, "succeeded", is_whole=False)


def _close(session: Session, study: Job, outcome: Outcome, *, is_whole: bool) -> None:
    """Ends a study and its hold. The trials' draws are spent and the rest is released. If the end may depend on private
    data (`is_whole`), the rest is spent too, unless no step of the study was ever started."""
    study.status, study.finished_at = outcome, whole_second()
    study.steps_started = sum(run.steps_started for run in _runs(session, study))
    stored = StoredStudy.read(study.study)
    if not stored.keep_weights:
        _drop_weights(session, study)
    ended_event = Ended(runs=study.step).because(study.failure)
    quoted_charge = Quoted.of(study.quote).charge
    if stored.common is not None and quoted_charge.unit is not None and not lacks_hold(session, study):
        left = block_accounts.left_of_holds(session, study.id)
        drawn = quoted_charge.train - left[0], quoted_charge.holdout - left[1]
        memo = Settled(outcome=outcome)
        is_whole = is_whole and (study.steps_started > 0 or drawn != (0, 0))
        if drawn == (0, 0) and not is_whole:
            block_accounts.void_all(session, study.id, actor="worker", memo=memo)
        else:
            train, holdout = left if is_whole else (0, 0)
            block_accounts.post_all(session, study.id, train=train, holdout=holdout, actor="worker", memo=memo)
            drawn = drawn[0] + train, drawn[1] + holdout
            want_certificate(session, study.id)
        ended_event = ended_event.model_copy(update={"charge": Units(train=drawn[0], holdout=drawn[1])})
    append_event(session, study.id, outcome, ended_event)


def _drop_weights(session: Session, study: Job) -> None:
    """Removes the trials' undelivered models: from the list now, from the store soon."""
    runs = select(Job.id).where(Job.parent_id == study.id)
    for artifact in session.scalars(select(Artifact).where(Artifact.job_id.in_(runs))).all():
        session.delete(artifact)
        discard(session, artifact.job_id)
