"""The version of a data set's declaration that a job was priced with. Whoever runs or uses a job reads it here."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from app.db.models import Dataset, Declaration, Job
from core.contracts.dataset_spec import DatasetSpec
from core.contracts.governance import Governance
from core.contracts.job_spec import JobSpec, Model, seen_by
from core.contracts.stored_documents import Shape


@dataclass(frozen=True)
class Declared:
    """A version of a declaration: the specification and the public sizes that follow from it."""

    version: int
    spec: DatasetSpec
    shape: Shape


def declared(session: Session, job: Job) -> Declared:
    """Reads the version of a job's price, with the features that its model reads, whatever was declared since.

    Raises:
        NoResultFound: it is not there: nothing may run with another one.
    """
    version = _version(session, job)
    model = JobSpec.model_validate(job.spec).model
    return _seen(job.declaration, DatasetSpec.model_validate(version.spec), version.shape, model)


def governance(session: Session, job: Job) -> Governance | None:
    """Reads what the owner declared on governance in the version of a job's price; None if nothing."""
    governance_terms = _version(session, job).spec.get("governance")
    return None if governance_terms is None else Governance.model_validate(governance_terms)


def _version(session: Session, job: Job) -> Dataset | Declaration:
    dataset = session.get_one(Dataset, job.dataset_id)
    if job.declaration == dataset.declaration:
        return dataset
    return session.get_one(Declaration, (job.dataset_id, job.declaration))


def _seen(version: int, spec: DatasetSpec, shape: Shape, model: Model) -> Declared:
    features = seen_by(model, spec.features)
    if features is spec.features:
        return Declared(version, spec, shape)
    sizes = shape.model_copy(update={"features": features.numbers(shape.features)})
    return Declared(version, spec.model_copy(update={"features": features}), sizes)
