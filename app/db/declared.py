"""The version of a data set's declaration that a job was priced with. Whoever runs or uses a job reads it here."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from app.contracts.dataset_spec import DatasetSpec
from app.contracts.stored import Shape
from app.db.models import Dataset, Declaration, Job


@dataclass(frozen=True)
class Declared:
    """A version of a declaration: the specification and the public sizes that follow from it."""

    version: int
    spec: DatasetSpec
    shape: Shape


def declared(session: Session, job: Job) -> Declared:
    """Reads the version of a job's price, whatever the owner has declared since.

    Raises:
        NoResultFound: it is not there: nothing may run with another one.
    """
    dataset = session.get_one(Dataset, job.dataset_id)
    if job.declaration == dataset.declaration:
        return Declared(dataset.declaration, DatasetSpec.model_validate(dataset.spec), dataset.shape)
    found = session.get_one(Declaration, (job.dataset_id, job.declaration))
    return Declared(found.version, DatasetSpec.model_validate(found.spec), found.shape)
