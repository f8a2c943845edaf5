"""DELETE /v1/datasets/{dataset_id}/content and /v1/jobs/{job_id}/artifacts."""

from __future__ import annotations

from fastapi import APIRouter

from app.datasets.schemas import DatasetView
from app.db.models import Account
from app.grants import service as grants
from app.jobs import repository as jobs
from app.jobs.schemas import JobView
from app.keys.auth import CurrentKey
from app.retention import service
from app.web.deps import Db, Gpus, ServiceSettings

router = APIRouter(prefix="/v1")


@router.delete("/datasets/{dataset_id}/content", tags=["datasets"])
def delete_content(dataset_id: str, db: Db, settings: ServiceSettings, caller: CurrentKey) -> DatasetView:
    """Deletes the data themselves, for good; for the data set's owner. No job can be submitted on it any more.

    Its ledger, certificates and models stay, and so does the keyed hash of its content: it cannot be registered again
    as a second budget. 409 while a job on it is not finished.
    """
    found = service.delete_content(db, settings, caller, dataset_id)
    with db.read() as session:
        dataset, access = grants.find(session, caller, found)
        return DatasetView.of(dataset, session.get(Account, dataset.id), access)


@router.delete("/jobs/{job_id}/artifacts", tags=["jobs"])
def delete_artifacts(job_id: str, db: Db, caller: CurrentKey, gpus: Gpus) -> JobView:
    """Deletes a job's model files; for a study its trials' files too.

    The spent budget stays spent, and the certificate stays. For the key that submitted it and the data set's owner. 409
    while the job or a prediction with it is not finished.
    """
    service.delete_artifacts(db, caller, job_id)
    with db.read() as session:
        job = grants.require_job(session, caller, job_id)
        return JobView.of(job, jobs.details(session, [job_id])[job_id], gpus)
