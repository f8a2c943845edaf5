"""A job's certificate, or why it has none."""

from __future__ import annotations

from sqlalchemy.orm import Session

from app.db.models import Certificate, Job
from app.hpo.stored_study import StoredStudy
from app.lifecycle.states import FINISHED
from core.errors import Conflict, NotFound
from core.privacy.quoted import Quoted


def require_certificate(session: Session, job: Job) -> Certificate:
    """The certificate of a finished job.

    Raises:
        NotFound: it has none, and gets none.
        Conflict: `wrong-state`: it has not ended; `certificate-pending`.
    """
    certificate = session.get(Certificate, job.id)
    if certificate is not None:
        return certificate
    if job.parent_id is not None:
        raise NotFound(f"a trial has no certificate: see the certificate of its study {job.parent_id}, which lists it")
    if job.status not in FINISHED:
        raise Conflict("wrong-state", f"the job is {job.status}: its certificate is issued after it has finished")
    quoted = Quoted.of(job.quote)
    if job.steps_started == 0 or quoted.epsilon is None or quoted.charge.unit is None:
        raise NotFound("this job spent no privacy: it has no certificate")
    raise Conflict("certificate-pending", "the certificate is being issued: ask again in a moment")


def require_handed_out(session: Session, run: Job) -> None:
    """Refuses a trial's model unless the study keeps all models: the study delivers the best one.

    Raises:
        NotFound: as for a missing artifact.
    """
    if run.parent_id is not None:
        study = session.get_one(Job, run.parent_id)
        if not StoredStudy.read(study.study).keep_weights:
            raise NotFound("this trial's model is not delivered: its study delivers the best one when it has ended")
