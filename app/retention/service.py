"""Deletion of a data set's content, and of a job's artifacts; by a person, or when a setting asks for it.

Files are deleted. What was spent stays: the ledger, certificates, jobs and their released numbers, and the keyed hashes
of the content, so that it cannot be registered again as a second budget. Nothing is deleted that a job or a prediction
may still need. The rows go first: the next sweep finishes an interrupted deletion.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, and_, delete, func, or_, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.audit import record as audit
from app.datasets import readings, unit_files
from app.datasets.repository import has_blocks, uses
from app.db.database import Database
from app.db.models import Account, Artifact, Dataset, Egress, Job, Prediction, table_of
from app.grants import service as grants
from app.graphs import uploads as graph_uploads
from app.keys.service import Caller
from app.ledger.accounts import RETIRED
from app.ledger.block_accounts import ledgers_of
from app.lifecycle.states import FINISHED, discard, get_job
from app.retention import history
from app.settings import Settings
from app.storage import parts
from core.contracts.stored_documents import PartFiles
from core.errors import Conflict, Forbidden, ServiceError
from core.ids import now

logger = logging.getLogger(__name__)
AT_ONCE = 100  # deletions of one kind in one sweep


def delete_content(db: Database, settings: Settings, caller: Caller, dataset: str) -> str:
    """Deletes the files of a data set, for good. Does nothing if they are deleted already. Returns its id.

    Raises:
        NotFound, Forbidden: only its owner and admins may.
        Conflict: `wrong-state`: a job on it is not finished, or something is held.
    """
    with db.write() as session:
        dataset_id = grants.require(session, caller, dataset, "own", blocks=True).id
        if mark_deleted(session, dataset_id):
            audit.record(session, "dataset.content_deleted", dataset_id)
    remove_content(db, settings, dataset_id)
    return dataset_id


def delete_artifacts(db: Database, caller: Caller, job_id: str) -> None:
    """Deletes a job's model files; for a study its trials' files too. The relay removes them from the disk.

    Raises:
        NotFound, Forbidden: only its submitter who may still train, the data set's owner and admins may.
        Conflict: `wrong-state`: it is not finished, it is a trial, or a prediction with it is open.
    """
    with db.write() as session:
        job = grants.require_job(session, caller, job_id)
        access = grants.access_to_job(session, caller, job)
        if access is None or not access.covers("train" if caller.id == job.key_id else "own"):
            raise Forbidden(
                "only the key that submitted this job, the data set's owner or an admin may delete its files"
            )
        _drop_artifacts(session, get_job(session, job_id, lock=True))
        audit.record(session, "artifacts.deleted", job_id)


def sweep(db: Database, settings: Settings) -> None:
    """Finishes interrupted deletions, and makes those that the retention settings ask for. Removes expired uploads and
    what ended readings leave."""
    readings.sweep(db, settings)
    artifacts_before = None if settings.artifacts_kept_days is None else now() - timedelta(settings.artifacts_kept_days)
    graph_uploads.sweep(db, settings, artifacts_before)
    with db.read() as session:
        cut_short = session.scalars(select(Dataset).where(Dataset.content_deleted_at.is_not(None))).all()
        unfinished = [each.id for each in cut_short if each.parts.all]
    for dataset_id in unfinished:
        remove_content(db, settings, dataset_id)
    _sweep_retired(db, settings)
    if artifacts_before is not None:
        _sweep_artifacts(db, artifacts_before)
    if settings.content_kept_days is not None:
        _sweep_contents(db, settings, now() - timedelta(days=settings.content_kept_days))
    history.sweep_due(db, settings)


def _sweep_artifacts(db: Database, limit: datetime) -> None:
    papers = select(Egress.id).where(Egress.job_id == Job.id, Egress.made_at < limit, Egress.deleted_at.is_(None))
    old = (
        select(Job.id)
        .where(Job.parent_id.is_(None), Job.finished_at < limit)
        .where(or_(select(Artifact.job_id).where(_of_job_or_runs(Artifact.job_id, Job.id)).exists(), papers.exists()))
        .limit(AT_ONCE)
    )
    with db.read() as session:
        jobs = list(session.scalars(old))
    for job_id in jobs:
        try:
            with db.write() as session:
                _drop_artifacts(session, get_job(session, job_id, lock=True))
                audit.record(session, "artifacts.deleted", job_id, because="retention")
        except ServiceError as error:
            logger.info("the artifacts of %s are kept for now: %s", job_id, error.message)


def _sweep_retired(db: Database, settings: Settings) -> None:
    """Deletes the content of retired blocks whose last job has ended."""
    over = and_(Account.train_held == 0, Account.holdout_held == 0, Account.joined_into == RETIRED)
    content = func.coalesce(Dataset.pays_for, Dataset.id)
    retired = select(content).join(Account).where(over, Dataset.content_deleted_at.is_(None)).limit(AT_ONCE)
    with db.read() as session:
        datasets = list(session.scalars(retired))
    for dataset_id in datasets:
        drop_content(db, settings, dataset_id, "retired")


def _sweep_contents(db: Database, settings: Settings, limit: datetime) -> None:
    used = select(func.max(Job.created_at)).where(uses(Dataset.id)).scalar_subquery()
    old = select(Dataset.id).where(
        Dataset.content_deleted_at.is_(None),
        Dataset.pays_for.is_(None),
        Dataset.created_at < limit,
        or_(used.is_(None), used < limit),
    )
    with db.read() as session:
        datasets = list(session.scalars(old.limit(AT_ONCE)))
    for dataset_id in datasets:
        drop_content(db, settings, dataset_id, "retention")


def drop_content(db: Database, settings: Settings, dataset_id: str, because: str) -> None:
    """Deletes a content that nobody asks for any more; later, if a job on it is not finished."""
    try:
        with db.write() as session:
            mark_deleted(session, dataset_id)
            audit.record(session, "dataset.content_deleted", dataset_id, because=because)
    except ServiceError as error:
        logger.info("the content of %s is kept for now: %s", dataset_id, error.message)
        return
    remove_content(db, settings, dataset_id)


def mark_deleted(session: Session, dataset_id: str) -> bool:
    """Marks the content deleted under the data set's row lock, which an admission shares: an admission comes before
    this, and is seen, or is refused. It shares the row of the ledger that pays, so that a second one is marked too."""
    for ledger_id in ledgers_of(session, dataset_id)[1:]:
        mark_deleted(session, ledger_id)
    row = session.get_one(Dataset, dataset_id, with_for_update={"key_share": True}, populate_existing=True)
    if row.content_deleted_at is not None:
        return False
    account = session.get(Account, dataset_id, populate_existing=True)
    has_holds = account is not None and (account.train_held > 0 or account.holdout_held > 0)
    open_jobs = select(func.count()).select_from(Job).where(uses(dataset_id), Job.status.not_in(FINISHED))
    if has_holds or session.scalar(open_jobs):
        raise Conflict("wrong-state", "jobs on this data set are not finished: wait for them, or cancel them first")
    row.content_deleted_at = now()
    row.content_sha256 = ""  # a function of the content, without a key
    return True


def remove_content(db: Database, settings: Settings, dataset_id: str) -> None:
    """Removes the files that `mark_deleted` released, then forgets their paths. The digests of a block's units stay: a
    unit that came back in a later block would have a second budget."""
    with db.read() as session:
        is_block = has_blocks(session, dataset_id) or session.get_one(Dataset, dataset_id).parent_id is not None
    if not parts.of(settings).remove(dataset_id):
        logger.error("the content of %s could not be removed: the next sweep tries again", dataset_id)
        return
    if not is_block:
        unit_files.remove(settings, dataset_id)
    with db.write() as session:
        session.get_one(Dataset, dataset_id).parts = PartFiles()


def _drop_artifacts(session: Session, job: Job) -> None:
    if job.parent_id is not None:
        raise Conflict("wrong-state", "a trial's files belong to its study: delete the study's", study=job.parent_id)
    if job.status not in FINISHED:
        raise Conflict("wrong-state", f"the job is {job.status}: its files can be deleted once it has finished")
    predictions = select(Prediction.id).where(
        _of_job_or_runs(Prediction.job_id, job.id), Prediction.status.in_(("queued", "running"))
    )
    if session.scalar(predictions.limit(1)) is not None:
        raise Conflict("wrong-state", "a prediction with this model is not finished: wait for it")
    files = _of_job_or_runs(Artifact.job_id, job.id)
    owners = set(session.scalars(select(Artifact.job_id).where(files))) | {job.id}
    session.execute(delete(Artifact).where(files), execution_options={"synchronize_session": False})
    egresses = update(Egress).where(Egress.job_id.in_(owners), Egress.deleted_at.is_(None)).values(deleted_at=now())
    session.execute(egresses, execution_options={"synchronize_session": False})
    for job_id in owners:
        discard(session, job_id)


def _of_job_or_runs(
    column: InstrumentedAttribute[str], job_id: str | InstrumentedAttribute[str]
) -> ColumnElement[bool]:
    run = table_of(Job).alias("run").c
    return or_(column == job_id, column.in_(select(run.id).where(run.parent_id == job_id)))
