"""What a job's page shows: plain data for its templates."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sqlalchemy.orm import Session

from app.approvals.service import may_leave
from app.dashboard.balances import room_for
from app.dashboard.job_scores import Scores, scores_of
from app.dashboard.names import key_names
from app.dashboard.trials_page import StudyPart, study_part
from app.dashboard.viewer import Viewer
from app.db.models import Account, Certificate, LedgerEntry
from app.grants.service import find, require_job
from app.jobs import repository as jobs
from app.jobs.schemas import EventView, JobView
from app.jobs.steering import STOPPABLE, may_cancel
from app.ledger import repository as ledger
from app.ledger.block_accounts import held_on
from app.lifecycle.queue.presence import GpuWorkers
from app.lifecycle.states import FINISHED
from core.contracts.base import Epsilon
from core.contracts.job_spec import JobSpec
from core.contracts.kinds import KindRule, rule_of
from core.privacy.mechanism import MechanismConfig

EVENTS_SHOWN = 200


@dataclass(frozen=True)
class JobPage:
    """Everything on a job's page.

    Attributes:
        factor: e^ε, rounded up.
        has_account: True if the job is charged, because the data are private.
        unit: the unit of charges.
        train_budget, holdout_budget: today's budgets, 0 without any.
        room: how many more jobs of this price the budget admits; None where nothing is charged.
        charged_share: the charged part of the hold; None until the job has settled.
        entries: the job's own entries in the ledger.
        study: of a study, its trials.
        is_trial: it is a trial of a study, and only its score is released.
        hands_out_model: the model's weights leave the worker.
        certificate_due: it spent privacy and has settled, so a certificate is or will be issued.
    """

    job: JobView
    dataset_name: str
    submitted_by: str
    mechanism: MechanismConfig | None
    factor: str | None
    has_account: bool
    unit: str | None
    train_budget: int
    holdout_budget: int
    room: int | None
    charged_share: float | None
    scores: Scores
    events: list[EventView]
    entries: list[LedgerEntry]
    certificate: Certificate | None
    certificate_due: bool
    may_cancel: bool
    may_pause: bool
    may_resume: bool
    may_label: bool
    may_download: bool
    may_submit: bool
    study: StudyPart | None
    is_trial: bool
    hands_out_model: bool

    @property
    def kind(self) -> KindRule:
        """What its kind of job has."""
        return rule_of(JobSpec.model_validate(self.job.spec).kind)

    @property
    def ended_early(self) -> bool:
        """Returns True if it ended without success: it may have cost less than it was priced for."""
        return self.job.status in ("failed", "cancelled")

    @property
    def is_changing(self) -> bool:
        """Returns True if the page can still change by itself."""
        return self.job.status not in FINISHED or (self.certificate_due and self.certificate is None)


def job_page(session: Session, job_id: str, viewer: Viewer, gpus: GpuWorkers) -> JobPage:
    """Gathers a job's page.

    Raises:
        NotFound: no such job, or the viewer may not see it.
    """
    caller = viewer.caller
    job = require_job(session, caller, job_id)
    dataset, access = find(session, caller, job.dataset_id)
    details = jobs.details(session, [job_id])[job_id]
    # Events are numbered without gaps: the last ones are those after this number.
    events = jobs.events_after(session, job_id, max(0, job.events - EVENTS_SHOWN), EVENTS_SHOWN)
    dataset_ids = held_on(session, job.parent_id or job.id) or [dataset.id]
    entries = ledger.page_of_entries(session, dataset_ids[0], after=0, job=job_id, limit=10)  # the same on every block
    account = session.get(Account, dataset_ids[0])
    view = JobView.of_job(job, details, gpus)
    may_steer = may_cancel(session, caller, job)
    return JobPage(
        job=view,
        dataset_name=dataset.name,
        submitted_by=key_names(session, caller, access, {job.key_id})[job.key_id],
        mechanism=MechanismConfig.model_validate(job.mechanism) if job.mechanism else None,
        factor=_factor(view.quote.epsilon),
        has_account=account is not None,
        unit=view.quote.charge.unit,
        train_budget=account.train_budget if account else 0,
        holdout_budget=account.holdout_budget if account else 0,
        room=None if job.parent_id else room_for(session, viewer.caller, dataset, view.quote.charge),
        charged_share=None if view.charged is None else view.charged.share,
        scores=scores_of(session, job, dataset, details["metrics"]),
        events=[EventView.of(event) for event in reversed(events)],
        entries=entries,
        certificate=session.get(Certificate, job_id),
        certificate_due=job.status in FINISHED and not job.parent_id and any(each.kind == "post" for each in entries),
        may_cancel=job.status in STOPPABLE and not job.parent_id and may_steer,
        may_pause=job.status in ("queued", "running") and not job.parent_id and may_steer,
        may_resume=job.status in ("pausing", "paused") and not job.parent_id and may_steer,
        may_label=may_steer,
        may_download=access.covers("train") and may_leave(session, job.dataset_id),
        may_submit=access.covers("train"),
        study=None if job.study is None else study_part(session, job),
        is_trial=job.trial is not None and job.trial.role != "final",
        hands_out_model=job.trial is None or job.trial.keeps_weights,
    )


def _factor(epsilon: Epsilon | None) -> str | None:
    """e^ε, rounded up, if it is still meaningful to a person."""
    if epsilon is None or epsilon.value > 10:
        return None
    return f"{math.ceil(math.exp(epsilon.value) * 100) / 100:g}"
