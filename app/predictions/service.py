"""Predictions: requested and read here; app.predictions.prediction_claims runs them."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.approvals import kept
from app.approvals.service import require_egress
from app.audit import record as audit
from app.db.database import Database
from app.db.declared_version import declared
from app.db.models import ApiKey, Job, Prediction
from app.grants.service import require_job
from app.jobs import repository
from app.jobs.job_certificate import require_handed_out
from app.keys.service import Caller
from app.predictions.prediction_claims import PREFIX
from app.predictions.schemas import PredictionRequest
from app.settings import Settings
from core.contracts.hf import weights_file
from core.contracts.job_spec import JobSpec
from core.contracts.kinds import rule_of
from core.errors import Conflict, NotFound
from core.ids import new_id, now


def ask(db: Database, caller: Caller, job_id: str, request: PredictionRequest, settings: Settings) -> Prediction:
    """Queues a prediction.

    Raises:
        NotFound, Forbidden: as for the job's artifacts.
        Conflict: the job has not succeeded, or this key has too many predictions in the queue.
        InvalidRequest: a record does not fit this data set.
    """
    kept.of_job(db, settings, caller, job_id)
    # Loads numpy, which nothing else of the API needs; outside the transaction, as SQLite has one writer.
    from core.parts import inputs  # noqa: PLC0415

    with db.write() as session:
        job = require_model(session, caller, job_id)
        repository.artifact(session, job_id, weights_file(JobSpec.model_validate(job.spec).model))
        declaration = declared(session, job)
        records = inputs.checked(
            request.records, declaration.spec.task, declaration.spec.features, declaration.shape.features
        )
        session.get(ApiKey, caller.id, with_for_update={"key_share": True})  # two requests cannot both be the last
        open_ones = select(func.count()).where(
            Prediction.key_id == caller.id, Prediction.status.in_(("queued", "running"))
        )
        if (session.scalar(open_ones) or 0) >= settings.max_queued_predictions:
            limit = settings.max_queued_predictions
            detail = f"this key has {limit} predictions in the queue, and may have {limit}: wait until some are done"
            raise Conflict("too-many-predictions", detail, limit=limit)
        moment = now()
        prediction = Prediction(
            id=new_id(PREFIX),
            job_id=job_id,
            key_id=caller.id,
            status="queued",
            records=records,
            top=request.top,
            attempt=0,
            created_at=moment,
            expires_at=moment + timedelta(seconds=settings.prediction_kept_s),
        )
        session.add(prediction)
        audit.record(session, "prediction.asked", job_id)
        session.flush()
        session.expunge(prediction)
        return prediction


def require_model(session: Session, caller: Caller, job_id: str) -> Job:
    """A job whose model this key may use.

    Raises:
        NotFound, Forbidden: as for the job's artifacts; two persons must have agreed to an egress of it.
        Conflict: the job has not succeeded, or is of a kind without a model.
    """
    job = require_job(session, caller, job_id, "train")
    kind = JobSpec.model_validate(job.spec).kind
    if not rule_of(kind).trains:
        raise Conflict("wrong-state", f"the job is of kind `{kind}`, which trains no model: predict with one that did")
    if job.status != "succeeded":
        raise Conflict("wrong-state", f"the job is {job.status}: there is no model to predict with")
    require_handed_out(session, job)
    require_egress(session, job)
    return job


def find(db: Database, caller: Caller, job_id: str, prediction_id: str, settings: Settings) -> Prediction:
    """This key's prediction, with a job that it may still use.

    Raises:
        NotFound: there is none, it has expired, or it is another key's.
        Conflict, Unavailable: as `app.approvals.kept.current`.
    """
    kept.of_job(db, settings, caller, job_id)
    with db.read() as session:
        prediction = session.get(Prediction, prediction_id)
        is_own = prediction is not None and prediction.key_id == caller.id and prediction.job_id == job_id
        if prediction is None or not is_own or prediction.expires_at <= now():
            raise NotFound(
                "there is no such prediction: predictions are kept for a short time, for the key that made them"
            )
        require_model(session, caller, job_id)
        session.expunge(prediction)
        return prediction
