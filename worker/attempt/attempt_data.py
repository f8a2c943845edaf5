"""What an attempt is told of its data: the parts that it reads, their public sizes, and what is claimed of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.orm import Session

from app.db.declared_version import Declared
from app.db.models import Dataset, Job
from app.lifecycle.attempt_records import StartedBlock
from core.contracts.base import AccountName
from core.contracts.job_spec import JobSpec
from core.contracts.optimizers import PublicSideSettings
from core.contracts.slots import PartSlots, Slots
from core.contracts.stored_documents import Number, ReleasedScore, StoredFile
from core.errors import PrivacyError
from core.parts.damage import DataDamagedError
from core.parts.sealed import DataKey, header_of
from core.privacy.mechanism import MechanismConfig
from core.privacy.quoted import Quoted
from core.privacy.slot_numbers import added, slots_of
from worker.messages import Claim, Part, Parts, Recorded, Released, SealedBy, Shape


@dataclass(frozen=True)
class Opened:
    """A stored part on this machine.

    Attributes:
        seal: its data key; None if it is in plaintext.
    """

    path: Path
    seal: DataKey | None = None

    @property
    def sealed_since(self) -> bool:
        """Returns True if it was in plaintext and is not any more."""
        return self.seal is None and self.path.exists() and header_of(self.path) is not None


def shape_of(declared: Declared, dataset_id: str, datasets: Sequence[Dataset]) -> Shape:
    """The public sizes of what a job reads: its blocks' declared sizes add up, and the widths are its data set's.

    Args:
        declared: the declaration that the job was priced with; it holds the sizes of the data set's own block.
    """
    shapes = [declared.shape if each.id == dataset_id else each.shape for each in datasets]
    slots = slots_by_id(declared, dataset_id, datasets)
    return Shape(
        records_train=sum(each.records_train for each in shapes),
        records_holdout=sum(each.records_holdout for each in shapes),
        features=declared.shape.features,
        outputs=declared.shape.outputs,
        sparse=declared.shape.sparse,
        slots=added(slots.values()) if slots else None,
    )


def slots_by_id(declared: Declared, dataset_id: str, datasets: Sequence[Dataset]) -> dict[str, Slots]:
    """The slots of each block that a job reads; empty for public data. Arguments are those of `shape_of`."""
    if declared.spec.privacy.sensitivity == "public":
        return {}
    per_unit = declared.spec.privacy.max_records_per_user or 1
    shapes = {each.id: declared.shape if each.id == dataset_id else each.shape for each in datasets}
    return {name: slots_of(shape.slots, shape.records_train, per_unit) for name, shape in shapes.items()}


def parts_of(
    opened: Callable[[StoredFile], Opened],
    features: Callable[[str], Path] | None,
    datasets: Sequence[Dataset],
    slots: Mapping[str, Slots],
    side: StoredFile | None,
) -> Parts:
    """The parts of the data sets, which an attempt joins.

    The order of ids is the same in every attempt, so a replay joins the same rows.

    Args:
        opened: a part on this machine.
        features: where a data set's features are cached, if the job reads records through an extractor: a folder of the
            data set's own, which is deleted with it; those of the public one with the first data set's.
        slots: of each of the data sets, by id; of private ones.
        side: the training part of the public data set that an optimizer uses.

    Raises:
        DataDamagedError: one has no training part: the job would read less than its rate says.
    """
    ordered = sorted(datasets, key=lambda dataset: dataset.id)
    if any(each.parts.train is None for each in ordered):
        raise DataDamagedError("a stored part of the data set was deleted")

    def named(part: StoredFile, dataset: Dataset, places: PartSlots | None = None) -> Part:
        cache = None if features is None else str(features(dataset.id))
        part_file = opened(part)
        seal = (
            None if part_file.seal is None else SealedBy(key=part_file.seal.key.hex(), wrap=part_file.seal.wrap.hex())
        )
        rows = None if places is None else places.rows
        return Part(path=str(part_file.path), sha256=part.sha256, cache_dir=cache, seal=seal, rows=rows)

    def slots_in(dataset: Dataset, name: AccountName) -> PartSlots | None:
        return getattr(slots[dataset.id], name) if dataset.id in slots else None

    train = tuple(named(each.parts.train, each, slots_in(each, "train")) for each in ordered if each.parts.train)
    holdout = tuple(
        named(each.parts.holdout, each, slots_in(each, "holdout")) for each in ordered if each.parts.holdout
    )
    return Parts(train=train, holdout=holdout, public=named(side, ordered[0]) if side else None)


def side_of(session: Session, spec: JobSpec) -> StoredFile | None:
    """The training part of the public data set that an optimizer uses as side information.

    Raises:
        PrivacyError: that data set is not public.
    """
    if not isinstance(spec.optimizer, PublicSideSettings):
        return None
    dataset = session.get_one(Dataset, spec.optimizer.public_dataset)
    if dataset.sensitivity != "public":
        raise PrivacyError("side information must come from a data set that is declared public")
    return dataset.parts.train


def claim_of(session: Session, job: Job) -> Claim | None:
    """What the certificate of this job, or of its study, claims; None where nothing is charged."""
    certified = session.get_one(Job, job.parent_id) if job.parent_id is not None else job
    quoted = Quoted.of(certified.quote)
    if quoted.epsilon is None or quoted.charge.unit is None:
        return None
    noise = MechanismConfig.model_validate(job.mechanism).training.noise if job.mechanism else None
    return Claim(
        epsilon=quoted.epsilon,
        certificate=certified.id,
        noise=None if noise is None else noise.sentence,
    )


def blocks_of(started: Sequence[StartedBlock]) -> tuple[Recorded, ...]:
    """The recorded blocks of one salt, with which a replay is compared."""
    return tuple(Recorded.model_validate(each, from_attributes=True) for each in started)


def released_of(number: Number) -> Released:
    """A recorded number, which is not measured again."""
    score = ReleasedScore(name=number.name, value=number.value, std=number.std, on=number.on)
    return Released(name=number.name, step=number.step, score=score)
