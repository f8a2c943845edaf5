"""What a person can be told whose records were deleted: which models were made with them, and what these tell.

A model is not undone by a deletion. What it tells of one unit is bounded by its certificate, for ever.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.models import Account, Artifact, Certificate, Dataset, Egress, Job, LedgerEntry
from app.egress.read import CertificateFacts
from app.ledger import repository
from app.ledger.accounts import RETIRED
from app.ledger.block_accounts import label_of
from app.ledger.certificate_documents import Signed
from app.ledger.evidence import members_of
from core.contracts.base import Document, Epsilon
from core.errors import Conflict
from core.ids import rfc3339


class Erased(Document):
    """A part of the data set that is used no more. `content_deleted_at` is null while its last jobs still run."""

    id: str
    label: str
    retired: bool
    content_deleted_at: str | None


class SentTo(Document):
    """An egress that took the model's files out."""

    recipient: str
    made_at: str | None


class ModelMade(Document):
    """A job that used an erased part.

    `found_at_one_percent`: an attacker who accuses 1 % of others wrongly finds at most this share of those who took
    part; null where an earlier release issued the certificate, or none is issued yet.
    """

    job: str
    certificate: str | None
    epsilon: Epsilon | None
    found_at_one_percent: float | None
    issued_at: str | None
    used: tuple[str, ...]
    files_kept: bool
    egresses: tuple[SentTo, ...]


class ErasureNote(Document):
    """What was erased of a data set, the models that were made with it, and what that means for one person."""

    dataset: str
    name: str
    unit: str
    erased: tuple[Erased, ...]
    models: tuple[ModelMade, ...]
    meaning: tuple[str, ...]


def note(session: Session, dataset: Dataset) -> ErasureNote:
    """The note on a private data set.

    Raises:
        Conflict: `wrong-state`: nothing of it was deleted or retired.
    """
    erased = [
        (row, account)
        for row, account in members_of(session, dataset.id)
        if row.content_deleted_at is not None or account.joined_into == RETIRED
    ]
    if not erased:
        raise Conflict("wrong-state", "nothing of this data set was deleted, and no block was retired")
    labels = {row.id: label_of(row) for row, _ in erased}
    models = tuple(_model(session, job, labels) for job in _jobs(session, labels))
    unit = repository.unit_of(dataset)
    return ErasureNote(
        dataset=dataset.id,
        name=dataset.name,
        unit=unit,
        erased=tuple(_erased(row, account) for row, account in erased),
        models=models,
        meaning=_meaning("record" if unit == "example" else "person", len(models)),
    )


def _erased(row: Dataset, account: Account) -> Erased:
    return Erased(
        id=row.id,
        label=label_of(row),
        retired=account.joined_into == RETIRED,
        content_deleted_at=rfc3339(row.content_deleted_at),
    )


def _jobs(session: Session, ledgers: Iterable[str]) -> list[Job]:
    """The jobs that these ledgers were charged for; of a trial its study."""
    charged = select(LedgerEntry.job_id).where(LedgerEntry.dataset_id.in_(list(ledgers)), LedgerEntry.kind == "post")
    jobs = session.scalars(select(Job).where(Job.id.in_(charged))).all()
    job_ids = {each.parent_id or each.id for each in jobs}
    return list(session.scalars(select(Job).where(Job.id.in_(job_ids)).order_by(Job.created_at, Job.id)))


def _model(session: Session, job: Job, labels: dict[str, str]) -> ModelMade:
    issued = session.get(Certificate, job.id)
    signed = None if issued is None else Signed.model_validate(issued.body).certificate
    facts = None if signed is None else CertificateFacts.model_validate(signed)
    mine = select(Job.id).where((Job.id == job.id) | (Job.parent_id == job.id))
    entries = select(LedgerEntry.dataset_id).where(LedgerEntry.job_id.in_(mine), LedgerEntry.kind == "post")
    used = {labels[each] for each in session.scalars(entries) if each in labels}
    left = select(Egress).where(Egress.job_id == job.id, Egress.made_at.is_not(None)).order_by(Egress.number)
    profile = None if facts is None else facts.profile
    attack = None if profile is None else next((each for each in profile.attacks if each.false_positive == 0.01), None)
    return ModelMade(
        job=job.id,
        certificate=None if facts is None else facts.certificate_id,
        epsilon=None if facts is None else facts.epsilon,
        found_at_one_percent=None if attack is None else attack.true_positive,
        issued_at=None if facts is None else facts.issued_at,
        used=tuple(sorted(used)),
        files_kept=session.scalar(select(Artifact.job_id).where(Artifact.job_id.in_(mine)).limit(1)) is not None,
        egresses=tuple(
            SentTo(recipient=each.recipient, made_at=rfc3339(each.made_at)) for each in session.scalars(left)
        ),
    )


def _meaning(thing: str, models: int) -> tuple[str, ...]:
    if not models:
        return (f"no model was made with what was erased: nothing of one {thing} has left the service",)
    return (
        f"the {thing}s themselves are deleted, or are with the last jobs; models that were made with them stay",
        f"a model tells almost the same of one {thing} as if that {thing} had never been used: what anybody concludes "
        "from it is at most e^ε times as likely, but for a chance of δ",
        "several models together: their ε's add up at most, and never beyond the data set's cap",
        f"it is not known here whose {thing}s these were: the data set's controller knows",
    )
