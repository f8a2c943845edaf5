"""DELETE /v1/datasets/{dataset_id}/content and /v1/jobs/{job_id}/artifacts; POST /v1/datasets/{dataset_id}/retire."""

from __future__ import annotations

from fastapi import APIRouter
from sqlalchemy.orm import Session

from app.datasets import readings
from app.datasets.block_list import block_view
from app.datasets.block_schemas import RetiredBlock
from app.datasets.schemas import DatasetView, ReadingDataset
from app.db.models import Account
from app.grants import service as grants
from app.jobs import repository as jobs
from app.jobs.schemas import JobView
from app.keys.auth import CurrentKey
from app.keys.service import Caller
from app.ledger import summary
from app.retention import retire as retiring
from app.retention import service
from app.web.deps import Db, Gpus, ServiceSettings
from app.web.route_operation import Operation
from core import leaves

router = APIRouter(prefix="/v1")


@router.delete("/datasets/{dataset_id}/content", tags=["datasets"])
@Operation(
    "The data set, whose content is deleted.",
    audience="own",
    leaves=leaves.FOR_OWNER,
    command="datasets delete-content",
    audit="dataset.content_deleted",
    problems=("forbidden", "wrong-state"),
)
def delete_content(
    dataset_id: str, db: Db, settings: ServiceSettings, caller: CurrentKey
) -> DatasetView | ReadingDataset:
    """Deletes the data themselves, for good; for the data set's owner. No job can be submitted on it any more.

    Its ledger, certificates and models stay, and so does the keyed hash of its content: it cannot be registered again
    as a second budget. 409 while a job on it is not finished. A data set that is still being read, or was rejected, is
    forgotten whole.
    """
    if (withdrawn := readings.withdraw(db, settings, caller, dataset_id)) is not None:
        return ReadingDataset.of(withdrawn, caller, "retired")
    deletion = service.delete_content(db, settings, caller, dataset_id)
    with db.read() as session:
        return _view(session, caller, deletion)


@router.post("/datasets/{dataset_id}/retire", tags=["datasets"])
@Operation(
    "The data set, retired.",
    audience="own",
    leaves=leaves.FOR_OWNER,
    command="datasets retire",
    audit="dataset.retired",
    problems=("forbidden", "wrong-state", "ledger-behind"),
)
def retire_dataset(
    dataset_id: str, db: Db, settings: ServiceSettings, caller: CurrentKey
) -> DatasetView | ReadingDataset:
    """Takes back a data set that nothing was ever held on, for good; its owner may register its content anew.

    Its files are deleted, its ledger is closed and its name becomes free. 409 once a job was admitted on it: change its
    declaration instead. A data set that is still being read, or was rejected, is forgotten whole.
    """
    if (withdrawn := readings.withdraw(db, settings, caller, dataset_id)) is not None:
        return ReadingDataset.of(withdrawn, caller, "retired")
    retirement = retiring.retire(db, settings, caller, dataset_id)
    with db.read() as session:
        return _view(session, caller, retirement)


@router.post("/datasets/{dataset_id}/blocks/{label}/retire", tags=["datasets"])
@Operation(
    "The block, retired.",
    audience="own",
    leaves=leaves.OWNERS_ACTIONS,
    command="blocks retire",
    audit="block.retired",
    problems=("forbidden", "wrong-state", "ledger-behind", "not-ready"),
)
def retire_block(dataset_id: str, label: str, db: Db, settings: ServiceSettings, caller: CurrentKey) -> RetiredBlock:
    """Retires a block of a data set, for good: nothing more is admitted on it, and its files go with its last job.

    It frees nothing: what was spent stays spent, and none of its units may be in a later block. Jobs that read it can
    no longer be replayed; their certificates and models stay.
    """
    block = block_view(db, retiring.retire_block(db, settings, caller, dataset_id, label), is_behind=False)
    return RetiredBlock(**block.model_dump())


@router.delete("/jobs/{job_id}/artifacts", tags=["jobs"])
@Operation(
    "The job, whose files are deleted.",
    audience="own",
    leaves=leaves.ELSEWHERE,
    command="jobs delete-artifacts",
    audit="artifacts.deleted",
    problems=("forbidden", "wrong-state"),
)
def delete_artifacts(job_id: str, db: Db, caller: CurrentKey, gpus: Gpus) -> JobView:
    """Deletes a job's model files; for a study its trials' files too.

    The spent budget stays spent, and the certificate stays. For the key that submitted it and the data set's owner. 409
    while the job or a prediction with it is not finished.
    """
    service.delete_artifacts(db, caller, job_id)
    with db.read() as session:
        job = grants.require_job(session, caller, job_id)
        return JobView.of_job(job, jobs.details(session, [job_id])[job_id], gpus)


def _view(session: Session, caller: Caller, dataset_id: str) -> DatasetView:
    dataset, access = grants.find(session, caller, dataset_id)
    account = session.get(Account, dataset.id)
    ledger = None if account is None else summary.brief(session, dataset, account)
    return DatasetView.of(dataset, ledger, access)
