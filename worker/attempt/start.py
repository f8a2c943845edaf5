"""The start message: all that an attempt's process is told.

Built here alone, from the database, for supervisors and for the auditor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, get_args

from sqlalchemy.orm import Session

from app.catalogue.graph_rows import models_root
from app.db.database import Database
from app.db.declared_version import declared
from app.db.models import Job
from app.ledger.block_accounts import read_by
from app.ledger.transparency.heads import Heads
from app.lifecycle.attempt_records import Recorded
from app.lifecycle.claims import Gone
from app.lifecycle.coverage import covered_steps
from app.lifecycle.study_states import has_one_mean, released_mean
from app.secrets import at_epoch, load_secrets, secret_id
from app.settings import Settings
from app.storage import objects, parts
from app.storage.seals import Seals
from core.contracts.dataset_spec import LastItemHoldout, PublicHoldout
from core.contracts.devices import kind_of
from core.contracts.extractor import HASHED_WORDS
from core.contracts.graph import GraphModel
from core.contracts.hf import HfModel
from core.contracts.job_spec import JobSpec, LinearModel
from core.contracts.stored_documents import SaltedSteps, StoredFile
from core.errors import PrivacyError
from core.privacy.mechanism import MechanismConfig
from core.privacy.quoted import Quoted
from worker import messages
from worker.attempt.attempt_data import (
    Opened,
    blocks_of,
    claim_of,
    parts_of,
    released_of,
    shape_of,
    side_of,
    slots_by_id,
)
from worker.noise.attempt_keys import Purpose, derive_key

KEYLESS = "the noise secret under which this job ran is not here, or its epoch has ended"


@dataclass(frozen=True)
class NoiseSecrets:
    """The noise secrets of this service's epoch.

    Attributes:
        by_id: the current one, and earlier ones for segments that began under them.
        current: the id of the secret for new segments.
    """

    by_id: Mapping[str, bytes] = field(repr=False)
    current: str

    @classmethod
    def of(cls, settings: Settings) -> NoiseSecrets:
        """Reads them from the service's home."""
        epoch = Heads.of(settings).epoch()
        secrets = [at_epoch(each, epoch) for each in load_secrets(settings, "noise_secret")]
        return cls({secret_id(each): each for each in secrets}, secret_id(secrets[0]))

    def keys(self, segment: SaltedSteps) -> messages.Keys:
        """A segment's keys, from its salt and the secret that it began under.

        Raises:
            PrivacyError: that secret is not here.
        """
        return messages.Keys(**{f"{each}_key": self._key(segment, each).hex() for each in get_args(Purpose)})

    def checkpoint_key(self, segment: SaltedSteps) -> bytes:
        """The key that seals the states saved in a segment. No attempt has it. Raises as `keys`."""
        return self._key(segment, "checkpoint")

    def _key(self, segment: SaltedSteps, purpose: str) -> bytes:
        key_id = segment.key_id
        if key_id is None or key_id not in self.by_id:
            raise PrivacyError(KEYLESS)
        return derive_key(self.by_id[key_id], key_id, bytes.fromhex(segment.salt), purpose)


class Inputs:
    """The stored parts that an attempt reads, as files of this machine, until `close`. The one place where a worker
    opens a part.

    Args:
        require_going: called while a part arrives; may end the attempt by raising.
    """

    def __init__(self, settings: Settings, require_going: Callable[[], None] = lambda: None) -> None:
        self.parts, self._seals = parts.of(settings), Seals(settings)
        self._require_going, self._open = require_going, ExitStack()
        self._opened: list[Opened] = []
        self.datasets: tuple[str, ...] = ()  # their ids
        self.stored: dict[str, str] = {}  # how the service names each file, by its path here

    def open(self, stored: StoredFile) -> Opened:
        """One stored part as a file of this machine.

        Raises:
            DataDamagedError, StorageFull, Unavailable: as `Parts.held`, and `Seals.key_of`.
        """
        path = self._open.enter_context(self.parts.held(stored.path, stored.sha256, self._require_going))
        self.stored[str(path)] = stored.path
        part = Opened(path, self._seals.key_of(path))
        self._opened.append(part)
        return part

    def discard(self) -> bool:
        """Removes this machine's copies, since a part is damaged. Returns False if it has none, and no part was sealed
        meanwhile (app.renewal.resealing): another attempt then has its key."""
        discarded = [self.parts.discard(each) for each in self.datasets]  # all of them, whatever the first says
        return any(discarded) or any(each.sealed_since for each in self._opened)

    def close(self) -> None:
        """Call after the last use."""
        self._open.close()


class Elsewhere(Protocol):
    """The ranks of an attempt that run on other machines (worker.cluster). Its own process is rank 0."""

    def placed(self, start: messages.Start) -> messages.Start:
        """The start message of all ranks, with as many threads for each."""
        ...

    def begin(self, start: messages.Start, stored: dict[str, str]) -> AbstractContextManager[tuple[int, ...]]:
        """Starts them. The descriptors in the block lead rank 0 to them.

        Args:
            stored: see Inputs.

        Raises:
            RanksError: one cannot be reached.
        """
        ...

    def why(self) -> messages.FailureCode | Gone:
        """Why rank 0 found them gone: one's failure for a known cause, or how they went."""
        ...


@dataclass(frozen=True)
class Machine:
    """What this worker has for an attempt.

    Attributes:
        processes: the most ranks that an attempt may have on processors here.
        elsewhere: the attempt's ranks on other machines, if it runs on a cluster.
    """

    processes: int = 1
    elsewhere: Elsewhere | None = None


def start_message(
    db: Database,
    recorded: Recorded,
    settings: Settings,
    secrets: NoiseSecrets,
    inputs: Inputs,
    machine: Machine,
    output: Path,
) -> messages.Start:
    """The job as the database describes it to a process; changes nothing.

    Args:
        recorded: see `AttemptLog.recorded`.
        output: the folder of the attempt's files.

    Raises:
        PrivacyError: the noise secret of one of its segments was removed.
        DataDamagedError, StorageFull, Unavailable: see `Inputs.open`.
    """
    job, blocks, released = recorded
    keys = [(each, dict(secrets.keys(each))) for each in job.segments]
    spec = JobSpec.model_validate(job.spec)
    with db.read() as session:
        datasets = read_by(session, job)
        allowed = max(0, covered_steps(session, job) - job.steps_started)
        declaration = declared(session, job)
        side, claim = side_of(session, spec), claim_of(session, job)
        one_mean = has_one_mean(session, job)
        models = models_root(session, settings, job.key_id, spec.model)
        mean = _mean(settings, session, job, inputs) if one_mean and job.trial_number != 0 else None
    inputs.datasets = tuple(each.id for each in datasets)
    slots = slots_by_id(declaration, job.dataset_id, datasets)
    holdout, trial = declaration.spec.holdout, job.trial
    is_public = all(each.sensitivity == "public" for each in datasets)
    extractor = spec.model.extractor.name if isinstance(spec.model, LinearModel) and spec.model.extractor else None
    features = inputs.parts.features if extractor is not None else None
    device = kind_of(spec.runtime.device, job.device)
    return messages.Start(
        extractor_dir=str(models / extractor) if extractor not in (None, HASHED_WORDS) and models else None,
        models_root=str(models) if isinstance(spec.model, HfModel | GraphModel) and models else None,
        job_id=job.id,
        spec=spec,
        mechanism=None if job.mechanism is None else MechanismConfig.model_validate(job.mechanism),
        task=declaration.spec.task,
        features=declaration.spec.features,
        shape=shape_of(declaration, job.dataset_id, datasets),
        device=device,
        processes=min(spec.runtime.ranks, machine.processes) if device == "cpu" else 1,
        numerics=Quoted.of(job.quote).numerics,
        fitted_rows=job.fitted_rows,
        threads=job.threads,
        begun=job.device is not None,
        parts=parts_of(inputs.open, features, datasets, slots, side),
        data_public=is_public,
        holdout_public=is_public or isinstance(holdout, PublicHoldout),
        holdout_account="train" if isinstance(holdout, LastItemHoldout) else "holdout",
        steps=job.steps,
        segments=tuple(
            messages.Segment(from_step=each.from_step, recorded=blocks_of(blocks[each.salt]), **own_key)
            for each, own_key in keys
        ),
        released=tuple(released_of(each) for each in released),
        claim=claim,
        allowed_steps=allowed,
        score_only=trial is not None and trial.role != "final",
        keeps_weights=trial is None or trial.keeps_weights,
        mean=mean,
        hands_mean_on=one_mean and job.trial_number == 0,
        output_dir=str(output.resolve()),
    )


def _mean(settings: Settings, session: Session, job: Job, inputs: Inputs) -> messages.Part:
    """The file of the mean that the first trial of this trial's study released."""
    file = released_mean(session, job)
    mean = objects.of(settings).local(file.path, file.sha256)
    inputs.stored[str(mean.resolve())] = file.path
    return messages.Part(path=str(mean.resolve()), sha256=file.sha256)
