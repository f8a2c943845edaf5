"""The content of the pages, gathered from the database: plain data for the templates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.admission.lookup import blocks_of, remaining
from app.approvals.service import may_leave
from app.budgets.schemas import BudgetView
from app.budgets.service import visible_to
from app.dashboard.answers import Answers
from app.dashboard.curve import Curve, curves
from app.dashboard.entry_pages import CapChange, EntriesQuery, cap_changes, entry_page
from app.dashboard.headline import Headline, headline
from app.dashboard.numbers import percent
from app.dashboard.session import Viewer
from app.dashboard.trials import StudyCharts, ranked, study_charts
from app.dashboard.utility import Utility
from app.datasets.schemas import DatasetView
from app.db.models import Account, ApiKey, Certificate, Dataset, Job, LedgerEntry
from app.grants.service import Access, find, require_job, visible
from app.jobs import repository as jobs
from app.jobs.schemas import EventView, JobView, MetricView
from app.jobs.steering import STOPPABLE, may_cancel
from app.jobs.trials import TrialList, TrialView, trials
from app.keys.service import Caller
from app.ledger import repository as ledger
from app.ledger import summary
from app.ledger.accounts import filter_for
from app.ledger.blocks import held_on
from app.ledger.schemas import AccountView, LedgerView
from app.lifecycle.queue.presence import GpuWorkers
from app.lifecycle.states import FINISHED
from core.contracts.base import Epsilon
from core.contracts.dataset_spec import ClassificationTask, DatasetSpec
from core.contracts.job_spec import JobSpec
from core.contracts.kinds import KindRule, rule_of
from core.privacy.mechanism import MechanismConfig
from core.privacy.prices import Charge, Units
from core.privacy.quoted import Quoted

if TYPE_CHECKING:
    from app.dashboard.shapes import Shapes
    from app.dashboard.two_classes import TwoClasses

EVENTS_SHOWN = 200
JOBS_ON_DATASET = 10
ACTIVE = ("queued", "running", "pausing", "cancelling")


@dataclass(frozen=True)
class Budget:
    """One account's balance, in shares of its budget: they add up, and ε's do not.

    Attributes:
        spent_percent, held_percent: of the budget, rounded up; `left_percent` is the rest.
        left: the filter's ε at `delta` for the rest, as one job.
    """

    name: str
    account: AccountView
    spent_percent: float
    held_percent: float
    left_percent: float
    left: float
    delta: float


def budgets(figures: LedgerView | None) -> list[Budget]:
    """The training part's account, and the hold-out's if there is a private hold-out. None on public data."""
    if figures is None:
        return []
    accounts = {"train": figures.accounts.train, "holdout": figures.accounts.holdout}
    return [_budget(name, view, figures.cap.delta) for name, view in accounts.items() if view is not None]


def _budget(name: str, view: AccountView, delta: float) -> Budget:
    of = filter_for(view.filter, view.order)
    spent = percent(view.spent, view.budget)
    held = min(percent(view.held, view.budget), 100.0 - spent)
    return Budget(
        name=name,
        account=view,
        spent_percent=spent,
        held_percent=held,
        left_percent=abs(round(100.0 - spent - held, 1)),
        left=of.epsilon(view.remaining, delta) if view.remaining else 0.0,
        delta=delta,
    )


@dataclass(frozen=True)
class Share:
    """What a charge takes of one account's budget, beside what is spent and held there already; each rounded up.

    Attributes:
        percent: the charge's share of the budget.
        before: the share that is spent or held.
    """

    name: str
    percent: float
    before: float

    @property
    def after(self) -> float:
        """The share that is left afterwards; below 0 where the charge does not fit."""
        return round(100.0 - self.before - self.percent, 1)


def shares_of(figures: LedgerView | None, charge: Charge) -> list[Share]:
    """A charge in shares of the accounts that it is on; empty on public data."""
    if figures is None or charge.unit is None:
        return []
    accounts = (
        ("train", charge.train, figures.accounts.train),
        ("holdout", charge.holdout, figures.accounts.holdout),
    )
    return [
        Share(name, percent(units, view.budget), percent(view.spent + view.held, view.budget))
        for name, units, view in accounts
        if view is not None
    ]


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
        trials, ranked, study_charts: for a study, its trials, the best score first, and their charts.
        is_trial: it is a trial of a study, and only its score is released.
        hands_out_model: the model's weights leave the worker.
        headline: its last main score; None where none was released.
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
    curves: list[Curve]
    two_classes: TwoClasses | None
    metrics: list[MetricView]
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
    trials: TrialList | None
    ranked: list[TrialView]
    study_charts: StudyCharts | None
    is_trial: bool
    hands_out_model: bool
    headline: Headline | None
    shapes: Shapes | None = None
    answers: Answers | None = None
    utility: Utility | None = None

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
    metrics = [MetricView.of(metric) for metric in details["metrics"]]
    # Events are numbered without gaps: the last ones are those after this number.
    events = jobs.events_after(session, job_id, max(0, job.events - EVENTS_SHOWN), EVENTS_SHOWN)
    read = held_on(session, job.parent_id or job.id) or [dataset.id]
    entries = ledger.page_of_entries(session, read[0], after=0, job=job_id, limit=10)  # the same on every block
    account = session.get(Account, dataset.id)
    view = JobView.of_job(job, details, gpus)
    may_steer = may_cancel(session, caller, job)
    found = trials(session, job) if job.study is not None else None
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
        room=None if job.parent_id else _room(session, viewer.caller, dataset, view.quote.charge),
        charged_share=None if view.charged is None else view.charged.share,
        curves=curves(metrics, _last_step(job, metrics)),
        two_classes=_two_classes(session, job, dataset),
        metrics=metrics,
        events=[EventView.of(event) for event in reversed(events)],
        entries=entries,
        certificate=jobs.certificate(session, job_id),
        certificate_due=job.status in FINISHED and not job.parent_id and any(each.kind == "post" for each in entries),
        may_cancel=job.status in STOPPABLE and not job.parent_id and may_steer,
        may_pause=job.status in ("queued", "running") and not job.parent_id and may_steer,
        may_resume=job.status in ("pausing", "paused") and not job.parent_id and may_steer,
        may_label=may_steer,
        may_download=access.covers("train") and may_leave(session, job.dataset_id),
        may_submit=access.covers("train"),
        trials=found,
        ranked=ranked(found) if found else [],
        study_charts=study_charts(found) if found else None,
        is_trial=job.trial is not None and job.trial.role != "final",
        hands_out_model=job.trial is None or job.trial.keeps_weights,
        headline=headline(metrics, DatasetSpec.model_validate(dataset.spec).task),
    )


def _two_classes(session: Session, job: Job, dataset: Dataset) -> TwoClasses | None:
    """Draws the job's last histogram of scores, if it released one."""
    last, task = jobs.last_histogram(session, job.id), DatasetSpec.model_validate(dataset.spec).task
    if last is None or last.histogram is None or not isinstance(task, ClassificationTask):
        return None
    from app.dashboard.two_classes import two_classes  # noqa: PLC0415  # loads numpy

    return two_classes(last.histogram, last.step, last.on, task.classes)


def _last_step(job: Job, metrics: list[MetricView]) -> int:
    """Where a chart of scores ends: at T. A study's `steps` counts its trials; its scores are the final trial's."""
    return max((each.step for each in metrics), default=1) if job.study is not None else job.steps


def _room(session: Session, caller: Caller, dataset: Dataset, charge: Units | None) -> int | None:
    """How many jobs of this charge fit what is left to the caller, on the open block where most fit: a job leaves out
    blocks that cannot pay. None where nothing is charged."""
    blocks = blocks_of(session, dataset, caller.id)
    left = remaining(session, [dataset.id], caller.id) if blocks is None else None
    lefts = [left] if blocks is None else [each.left for each in blocks]
    if charge is None:
        return None
    fits = [each.holds(charge) for each in lefts if each is not None]
    return max((each for each in fits if each is not None), default=None if blocks is None else 0)


def _factor(epsilon: Epsilon | None) -> str | None:
    """e^ε, rounded up, if it is still meaningful to a person."""
    if epsilon is None or epsilon.value > 10:
        return None
    return f"{math.ceil(math.exp(epsilon.value) * 100) / 100:g}"


@dataclass(frozen=True)
class DatasetPage:
    """A data set, its budgets, and a page of its entries, newest first.

    Attributes:
        asked: which entries these are.
        room: how many more jobs like the newest one the budget admits for this viewer; None without one.
        caps: the last caps with their reasons, newest first.
        within: the budgets within the cap that this viewer may see.
        names: the name behind a key's id, as far as the viewer may know it.
        older: where the next page of entries ends; None on the last one.
    """

    dataset: DatasetView
    budgets: list[Budget]
    room: int | None
    caps: list[CapChange]
    within: list[BudgetView]
    asked: EntriesQuery
    entries: list[LedgerEntry]
    names: dict[str, str]
    older: int | None

    @property
    def ledger(self) -> LedgerView | None:
        return self.dataset.ledger


def dataset_page(session: Session, dataset_id: str, viewer: Viewer, asked: EntriesQuery) -> DatasetPage:
    """Gathers a data set's page.

    Raises:
        NotFound: no such data set, or the viewer may not see it.
    """
    row, access = find(session, viewer.caller, dataset_id)
    account = session.get(Account, row.id)
    dataset = DatasetView.of(row, None if account is None else summary.brief(session, row, account), access)
    entries, older = entry_page(session, row.id, asked)
    caps = cap_changes(session, row.id)
    newest = select(Job.quote).where(Job.dataset_id == row.id, Job.parent_id.is_(None))
    like = session.scalar(newest.order_by(Job.created_at.desc(), Job.id.desc()).limit(1))
    within = [] if account is None else visible_to(session, viewer.caller, row.id)
    actors = {entry.actor for entry in entries} | {each.by for each in caps}
    users = {key for each in within for key in each.keys or ()}
    return DatasetPage(
        dataset=dataset,
        budgets=budgets(dataset.ledger),
        room=_room(session, viewer.caller, row, None if like is None else Quoted.of(like).charge),
        caps=caps,
        within=within,
        asked=asked,
        entries=entries,
        names=key_names(session, viewer.caller, access, {dataset.owner} | actors | users),
        older=older,
    )


def dataset_names(session: Session, caller: Caller) -> dict[str, str]:
    """The names of the caller's visible data sets by their ids, in the order of names."""
    rows = select(Dataset.id, Dataset.name).where(visible(caller), Dataset.parent_id.is_(None)).order_by(Dataset.name)
    return {row.id: row.name for row in session.execute(rows)}


def key_names(session: Session, caller: Caller, access: Access, key_ids: set[str]) -> dict[str, str]:
    """Who acted on a data set: names for its owner and admins; others see the ids of keys, as in the API."""
    names = {}
    for key_id in key_ids:
        key = session.get(ApiKey, key_id) if access.level == "own" else None
        names[key_id] = "you" if key_id == caller.id else key.name if key else key_id
    return names
