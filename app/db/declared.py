"""The version of a data set's declaration that a job was priced with. Whoever runs or uses a job reads it here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from app.db.models import Dataset, Declaration, Job


@dataclass(frozen=True)
class Declared:
    """A version of a declaration: the specification and the public sizes that follow from it."""

    version: int
    spec: dict[str, Any]
    shape: dict[str, Any]


def declared(session: Session, job: Job) -> Declared:
    """Reads the version of a job's price, whatever the owner has declared since.

    Raises:
        NoResultFound: it is not there: nothing may run with another one.
    """
    dataset = session.get_one(Dataset, job.dataset_id)
    if job.declaration == dataset.declaration:
        return Declared(dataset.declaration, dataset.spec, dataset.shape)
    found = session.get_one(Declaration, (job.dataset_id, job.declaration))
    return Declared(found.version, found.spec, found.shape)
