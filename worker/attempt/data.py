"""What an attempt is told of its data: the parts that it reads, their public sizes, and what is claimed of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from app.contracts.base import Epsilon
from app.db.declared import Declared
from app.db.models import Dataset, Job
from app.errors import PrivacyError
from app.formats.damage import DataDamagedError
from app.formats.sealed import DataKey, header_of
from app.privacy.mechanism import MechanismConfig
from worker.messages import Claim, Part, Parts, SealedBy

Stored = Mapping[str, Any]  # a part as a data set's row names it


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


def shape_of(said: Declared, dataset_id: str, datasets: Sequence[Dataset]) -> dict[str, Any]:
    """The public sizes of what a job reads: its blocks' declared sizes add up, and the widths are its data set's.

    Args:
        said: the declaration that the job was priced with; it holds the sizes of the data set's own block.
    """
    shapes = [said.shape if each.id == dataset_id else each.shape for each in datasets]
    return said.shape | {name: sum(each[name] for each in shapes) for name in ("records_train", "records_holdout")}


def parts_of(
    opened: Callable[[Stored], Opened],
    features: Callable[[str], Path] | None,
    datasets: Sequence[Dataset],
    side: Stored | None,
) -> Parts:
    """The parts of the data sets, which an attempt joins.

    The order of ids is the same in every attempt, so a replay joins the same rows.

    Args:
        opened: a part on this machine.
        features: where a data set's features are cached, if the job reads records through an extractor: a folder of the
            data set's own, which is deleted with it; those of the public one with the first data set's.
        side: the training part of the public data set that an optimizer uses.

    Raises:
        DataDamagedError: one has no training part: the job would read less than its rate says.
    """
    ordered = sorted(datasets, key=lambda each: each.id)
    if any("train" not in each.parts for each in ordered):
        raise DataDamagedError("a stored part of the data set was deleted")

    def named(part: Stored, dataset: Dataset) -> Part:
        cache = None if features is None else str(features(dataset.id))
        found = opened(part)
        seal = None if found.seal is None else SealedBy(key=found.seal.key.hex(), wrap=found.seal.wrap.hex())
        return Part(path=str(found.path), sha256=part["sha256"], cache_dir=cache, seal=seal)

    train, holdout = (
        tuple(named(each.parts[name], each) for each in ordered if name in each.parts) for name in ("train", "holdout")
    )
    return Parts(train=train, holdout=holdout, public=named(side, ordered[0]) if side else None)


def side_of(session: Session, job: Job) -> dict[str, Any] | None:
    """The training part of the public data set that an optimizer uses as side information.

    Raises:
        PrivacyError: that data set is not public.
    """
    name = job.spec["optimizer"].get("public_dataset")
    if name is None:
        return None
    dataset = session.get_one(Dataset, name)
    if dataset.sensitivity != "public":
        raise PrivacyError("side information must come from a data set that is declared public")
    return dict(dataset.parts["train"])


def claim_of(session: Session, job: Job) -> Claim | None:
    """What the certificate of this job, or of its study, claims; None where nothing is charged."""
    certified = session.get_one(Job, job.parent_id) if job.parent_id is not None else job
    if certified.quote["epsilon"] is None or certified.quote["charge"]["unit"] is None:
        return None
    noise = MechanismConfig.model_validate(job.mechanism).training.noise if job.mechanism else None
    return Claim(
        epsilon=Epsilon.model_validate(certified.quote["epsilon"]),
        certificate=certified.id,
        noise=None if noise is None else noise.sentence,
    )
