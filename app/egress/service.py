"""Egresses of jobs: asked for, approved by two persons where the owner wants that, made and signed by the relay."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.approvals import service as approvals
from app.audit import record as audit
from app.db.models import ApiKey, Approval, Artifact, Egress, Job
from app.egress.read import CertificateFacts
from app.egress.schemas import EgressStatus, EgressView
from app.grants.service import require_job
from app.jobs.job_certificate import require_certificate
from app.keys.service import Caller
from app.ledger.certificate_documents import Signed
from app.lifecycle.states import get_job
from app.settings import Settings
from core.contracts.approvals import EgressOfJob
from core.disk import Room
from core.errors import Conflict, NotFound
from core.ids import new_id, now

OPEN = (Egress.made_at.is_(None), Egress.problem.is_(None), Egress.deleted_at.is_(None))


def ask(session: Session, settings: Settings, caller: Caller, job_id: str, recipient: str, reason: str) -> Egress:
    """Asks for a folder of a job's files and their proof, for a recipient.

    Raises:
        NotFound: there is no such job, or this key may not see it; it has no certificate.
        Forbidden: the key may not train on its data set.
        Conflict: `wrong-state`: the job has not ended, its files were deleted, or the same is asked for already.
            `certificate-pending`. `too-many-egresses`: the key has too many that are not made, or the data set's take
            too many bytes.
        StorageFull: the disk has no room.
    """
    job = require_job(session, caller, job_id, "train")
    certificate = require_certificate(session, job)
    get_job(session, job.id, lock=True)  # two requests take turns
    earlier = of_job(session, job.id)
    for egress in earlier:
        if egress.recipient == recipient and status_of(session, egress) in ("waiting", "pending"):
            raise Conflict("wrong-state", f"an egress for this recipient is asked for already: {egress.id}")
    require_files(session, job, certificate.body)
    made = Egress(
        id=new_id("egr"),
        job_id=job.id,
        number=1 + (session.scalar(select(func.max(Egress.number)).where(Egress.job_id == job.id)) or 0),
        recipient=recipient,
        reason=reason,
        asked_by=caller.id,
        asked_at=now(),
    )
    session.add(made)
    session.flush()
    if approvals.persons_of(session, job.dataset_id):
        act = EgressOfJob(egress=made.id, job=job.id, recipient=recipient)
        made.approval_id = approvals.ask(session, caller, job.dataset_id, act).id
    _check_limits(session, settings, caller, job.dataset_id)
    audit.record(session, "egress.asked", job.id, egress=made.id, name=recipient)
    return made


def require_files(session: Session, job: Job, certificate: object) -> None:
    """Checks that a job still has the files that its certificate releases.

    Raises:
        Conflict: they were deleted.
    """
    files = select(Artifact.name).where(Artifact.job_id == job.id).limit(1)
    if _has_weights(certificate) and session.scalar(files) is None:
        raise Conflict("wrong-state", "the job's files were deleted: nothing of it can leave any more")


def _check_limits(session: Session, settings: Settings, caller: Caller, dataset_id: str) -> None:
    """Checks the key's and the data set's egresses, the new one among them."""
    session.get(ApiKey, caller.id, with_for_update={"key_share": True})  # two requests cannot both be the last
    session.flush()
    mine = session.scalars(select(Egress).where(Egress.asked_by == caller.id, *OPEN))
    waiting = sum(status_of(session, each) in ("waiting", "pending") for each in mine)
    if waiting > (limit := settings.max_open_egresses):
        detail = f"this key has {limit} egresses that are not made, its limit: wait, or deny the approvals of some"
        raise Conflict("too-many-egresses", detail, limit=limit)
    papers_size = select(func.coalesce(func.sum(Egress.papers_bytes), 0)).join(Job, Job.id == Egress.job_id)
    stored = session.scalar(papers_size.where(Job.dataset_id == dataset_id, Egress.deleted_at.is_(None)))
    if (stored or 0) >= (max_bytes := settings.max_egress_bytes):
        detail = (
            f"the papers of this data set's egresses take {max_bytes} bytes, their limit: delete the files of old jobs"
        )
        raise Conflict("too-many-egresses", detail, limit_bytes=max_bytes)
    Room(settings.disk_reserve_bytes).require(settings.storage_root)


def of_job(session: Session, job_id: str) -> list[Egress]:
    """A job's egresses, the newest first."""
    return list(session.scalars(select(Egress).where(Egress.job_id == job_id).order_by(Egress.number.desc())))


def ready(session: Session, job: Job, number: int | None) -> Egress:
    """The egress with this number, or the newest that is made.

    Raises:
        NotFound: there is none.
        Conflict: `egress-pending`: it is not made yet.
    """
    candidates = [each for each in of_job(session, job.id) if number in (None, each.number)]
    egress = next((each for each in candidates if status_of(session, each) == "ready"), None)
    if egress is not None:
        return egress
    if not candidates:
        raise NotFound("there is no such egress of this job: ask for one")
    match status_of(session, candidates[0]):
        case "waiting":
            raise Conflict("egress-pending", "two persons must agree to this egress: see its approval")
        case "pending":
            raise Conflict("egress-pending", "the egress is being made: ask again in a moment")
        case status:
            raise NotFound(f"this egress is {status}: ask for another one")


def status_of(session: Session, egress: Egress) -> EgressStatus:
    """Where an egress stands."""
    ended: dict[EgressStatus, object] = {
        "deleted": egress.deleted_at,
        "ready": egress.made_at,
        "failed": egress.problem,
    }
    for status, since in ended.items():
        if since is not None:
            return status
    if egress.approval_id is None:
        return "pending"
    match approvals.status_of(session.get_one(Approval, egress.approval_id)):
        case "agreed":
            return "pending"
        case "open":
            return "waiting"
        case other:
            return other


def shown(session: Session, egress: Egress) -> EgressView:
    """Shows an egress."""
    return EgressView.of(egress, status=status_of(session, egress))


def _has_weights(document: object) -> bool:
    return CertificateFacts.model_validate(Signed.model_validate(document).certificate).released.weights
