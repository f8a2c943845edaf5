"""The life of a prediction: queued, claimed by a worker under a lease, answered, and forgotten.

queued ──claim──▶ running ──▶ succeeded | failed ──(expires)──▶ gone
  ▲                  │
  └── lease expired ─┘  after MAX_ATTEMPTS: failed

A claim counts the attempt, and an answer is written only by the attempt that holds the claim. Inputs are deleted with
the answer, all of it when it expires.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, or_, select, update
from sqlalchemy.orm import Session

from app.db.clock import ClockName, has_passed, in_seconds
from app.db.database import Database
from app.db.models import Prediction
from core.contracts.extractor import FORMER
from core.ids import now

PREFIX = "pred"
MAX_ATTEMPTS = 3
UNNOTIFIED = select(Prediction.id).where(Prediction.status == "queued", Prediction.notified_at.is_(None))
FAILURES = {
    "lost": "the workers that tried were lost",
    "time": "it took too long: send fewer records",
    "model-damaged": "the model's file is missing, or is not what was published",
    "extractor-missing": "the extractor is missing from this worker's models root, or differs from the admitted one",
    "extractor-former": FORMER,
    "model-missing": "the tuned model's folder is missing from this worker's models root, or has changed since",
    "out-of-memory": "it needs more memory than there is: send fewer records",
    "internal": "it failed",
}


@dataclass(frozen=True)
class Held:
    """A prediction that this worker has claimed."""

    id: str
    attempt: int
    job_id: str
    records: list[Any]
    top: int


def is_prediction(message: str) -> bool:
    """Returns True if the id is a prediction's, not a job's."""
    return message.startswith(f"{PREFIX}_")


def claim(session: Session, prediction_id: str, lease_s: float) -> Held | None:
    """Takes a queued prediction; None where there is none to be had."""
    taken = session.execute(
        update(Prediction)
        .where(Prediction.id == prediction_id, Prediction.status == "queued", Prediction.expires_at > now())
        .values(
            status="running",
            attempt=Prediction.attempt + 1,
            lease_until=in_seconds(lease_s),
            lease_clock=ClockName(),
        )
        .returning(Prediction.attempt, Prediction.job_id, Prediction.records, Prediction.top),
        execution_options={"synchronize_session": False},
    ).one_or_none()
    return None if taken is None else Held(prediction_id, taken.attempt, taken.job_id, taken.records, taken.top)


def answer(db: Database, own_claim: Held, outputs: list[dict[str, Any]] | None, code: str | None = None) -> None:
    """Writes what came of it, and forgets the inputs. Nothing, where the claim is gone."""
    failure = None if code is None else {"code": code, "message": FAILURES[code]}
    with db.write() as session:
        session.execute(
            update(Prediction)
            .where(
                Prediction.id == own_claim.id, Prediction.status == "running", Prediction.attempt == own_claim.attempt
            )
            .values(
                status="succeeded" if code is None else "failed",
                records=None,
                outputs=outputs,
                failure=failure,
                lease_until=None,
            ),
            execution_options={"synchronize_session": False},
        )


def due(db: Database, notify_again_s: float, limit: int) -> list[str]:
    """Queued predictions whose notifier was never notified, or so long ago that the message must be lost."""
    stale = now() - timedelta(seconds=notify_again_s)
    query = (
        select(Prediction.id)
        .where(Prediction.status == "queued", or_(Prediction.notified_at.is_(None), Prediction.notified_at < stale))
        .order_by(Prediction.created_at)
        .limit(limit)
    )
    with db.quick_read() as connection:
        return list(connection.scalars(query))


def notified(db: Database, ids: list[str]) -> None:
    with db.write() as session:
        session.execute(update(Prediction).where(Prediction.id.in_(ids)).values(notified_at=now()))


def sweep(db: Database) -> None:
    """Takes back what lost workers held, and deletes what has expired."""
    moment = now()
    lapsed = (Prediction.status == "running", has_passed(Prediction.lease_until, Prediction.lease_clock))
    with db.read() as session:
        anything = select(Prediction.id).where(or_(Prediction.expires_at < moment, lapsed[0] & lapsed[1])).limit(1)
        if session.scalar(anything) is None:
            return
    with db.write() as session:
        again = Prediction.attempt < MAX_ATTEMPTS
        session.execute(delete(Prediction).where(Prediction.expires_at < moment))
        session.execute(
            update(Prediction).where(*lapsed, again).values(status="queued", notified_at=None, lease_until=None)
        )
        lost = {"status": "failed", "records": None, "failure": {"code": "lost", "message": FAILURES["lost"]}}
        session.execute(update(Prediction).where(*lapsed, ~again).values(**lost))
