"""The view of a study: its trials with their points and scores, and the choice of the final trial.

Of all that depends on private data it shows only noisy scores and what follows from them.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.models import Job, Metric
from app.db.row_view import Whole
from app.hpo.stored_study import StoredStudy
from core import leaves
from core.contracts.base import Deferred, Document, Epsilon
from core.contracts.hpo import LinearScaling
from core.contracts.stored_documents import ReleasedScore
from core.privacy.prices import Units
from core.privacy.quoted import StudyQuote


class TrialView(Deferred):
    """A trial of a study. `r` is the total step size ηT, times C if the study varies C. `mu` and `epsilon` cover its
    training alone."""

    job: Annotated[str, leaves.TRIALS]
    number: Annotated[int, leaves.TRIALS]
    role: Annotated[str, leaves.TRIALS]
    level: Annotated[int | None, leaves.TRIALS]
    status: Annotated[str, leaves.ENDS]
    learning_rate: Annotated[float, leaves.TRIALS]
    steps: Annotated[int, leaves.TRIALS]
    max_grad_norm: Annotated[float | None, leaves.TRIALS]
    r: Annotated[float, leaves.TRIALS]
    mu: Annotated[float | None, leaves.TRIALS]
    epsilon: Annotated[Epsilon | None, leaves.TRIALS]
    charge: Annotated[Units, leaves.TRIAL_CHARGES]
    score: Annotated[ReleasedScore | None, leaves.TRIAL_SCORES]
    chosen: Annotated[bool, leaves.TRIAL_SCORES]


class LevelView(Deferred):
    """A level of pilots, with its best pilot; the line goes through that pilot's r."""

    level: int
    at: float  # its μ or ε: its position on the line
    best: int
    r: float


class FitView(Deferred):
    """The fit r(x) = Σ coefficients[k] xᵏ; `r_star` is r at the final trial's x."""

    fit_in: str
    curve: str
    coefficients: list[float]
    levels: list[LevelView]
    at_final: float
    r_star: float
    fallbacks: list[str]


class StudyView(Deferred):
    """A study: its progress and decisions. `procedure` is the ε of the whole study. `final_run` is the ε of the final
    trial, whose model is delivered, by itself. `seed` reproduces the study's draws."""

    strategy: Annotated[str, leaves.TRIALS]
    seed: Annotated[str, leaves.TRIALS]
    runs: Annotated[int, leaves.TRIALS]
    ended: Annotated[int, leaves.TRIAL_CHARGES]
    fit: Annotated[FitView | None, leaves.TRIAL_SCORES]
    chosen: Annotated[int | None, leaves.TRIAL_SCORES]
    procedure: Annotated[Epsilon | None, leaves.TRIALS]
    final_run: Annotated[Epsilon | None, leaves.TRIALS]
    keeps_weights: Annotated[bool, leaves.TRIALS]

    @classmethod
    def of(cls, job: Any) -> StudyView | None:
        """Builds the view from a job's row; None if the job is not a study."""
        quoted = None if job.study is None else StudyQuote.of(job.quote).hpo
        if quoted is None:
            return None
        stored = StoredStudy.read(job.study)
        return cls(
            strategy=quoted.strategy,
            seed=stored.seed,
            runs=job.steps,
            ended=job.step,
            fit=_fit(stored, _Searched.model_validate(job.spec).hpo) if stored.decision is not None else None,
            chosen=stored.chosen,
            procedure=quoted.procedure,
            final_run=quoted.final,
            keeps_weights=stored.keep_weights,
        )


class _Searched(Document):
    """What is read from the specification of a study with a decision: nothing else, as lists show studies too."""

    model_config = ConfigDict(extra="ignore")

    hpo: LinearScaling


class TrialList(Whole[TrialView]):
    """The trials so far, by number; `study` is null if the job is not a study."""

    study: StudyView | None


def trials(session: Session, job: Job) -> TrialList:
    """Returns the trials of a study; an empty list for another job."""
    if job.study is None:
        return TrialList(items=[], study=None)
    study = StoredStudy.read(job.study)
    runs = session.scalars(select(Job).where(Job.parent_id == job.id).order_by(Job.trial_number)).all()
    score_rows = select(Metric).where(Metric.job_id.in_([run.id for run in runs]), Metric.name == study.score)
    scores = {metric.job_id: metric for metric in session.scalars(score_rows.order_by(Metric.step))}
    return TrialList(items=[_trial(study, run, scores.get(run.id)) for run in runs], study=StudyView.of(job))


def _trial(study: StoredStudy, run: Job, metric: Metric | None) -> TrialView:
    point, number = run.trial, run.trial_number or 0
    if point is None:
        raise TypeError("this job is no trial")
    plan = study.runs[number]
    score = None
    if metric is not None and point.role != "final":
        score = ReleasedScore.model_validate({name: getattr(metric, name) for name in ReleasedScore.model_fields})
    return TrialView(
        job=run.id,
        number=number,
        role=point.role,
        level=point.level,
        status=run.status,
        learning_rate=point.learning_rate,
        steps=point.steps,
        max_grad_norm=point.max_grad_norm,
        r=point.r,
        mu=plan.mu,
        epsilon=plan.training_epsilon,
        charge=plan.charge,
        score=score,
        chosen=number == study.chosen,
    )


def _fit(stored: StoredStudy, hpo: LinearScaling) -> FitView | None:
    decided = stored.decision
    if decided is None:
        return None
    levels = zip(stored.levels, decided.best, decided.rs, strict=True)
    return FitView(
        fit_in=hpo.fit_in,
        curve=hpo.curve,
        coefficients=list(decided.coefficients),
        levels=[LevelView(level=k, at=at, best=best, r=r) for k, (at, best, r) in enumerate(levels)],
        at_final=stored.at_final,
        r_star=decided.r_star,
        fallbacks=list(decided.fallbacks),
    )
