"""An attempt of a job without a model, of statistics or synthetic rows: its one step is one release of noisy sums.

The plan is compared with what was charged. A rehearsal without records takes all memory that is needed. The data are
opened and added up: exact integers, whose work no record changes. Then the step is recorded as started, which charges
it; only after that noise is drawn, the digest is recorded, and what follows from the release leaves
(docs/decisions/0049).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from core.contracts.base import Document
from core.contracts.job_spec import JobSpec
from core.contracts.queries import Query
from core.contracts.stored_documents import ArtifactFile
from core.errors import PrivacyError
from core.parts.damage import DataDamagedError
from core.parts.part_files import load_part, open_part
from core.parts.stored_records import StoredPart
from core.privacy.derive import check_agreement
from core.privacy.mechanism import MechanismConfig
from core.privacy.numerics import NumericsReport
from core.privacy.slot_numbers import slots_of
from core.statistics.plans import Asked, Unfit
from core.statistics.statistics_columns import declared_columns
from core.statistics.statistics_passes import MOST_ROWS_PER_PASS, Passes, width_of
from worker.attempt import code_release as installed
from worker.attempt.failure_codes import StorageFailed
from worker.attempt.prepare import PROCESSOR
from worker.data.joined import AnyPart, Loaded, join
from worker.data.loaded_parts import MappedPart
from worker.messages import Part, Ready, Start
from worker.models.model_files import write_file
from worker.native.kernels import kernels
from worker.statistics.slot_columns import check_users
from worker.statistics.sums_release import Release, private_sums, rehearse, release
from worker.telemetry import Telemetry, state_digest
from worker.training.plan import facts_of_job
from worker.training.write_ahead import Replay


class Link(Protocol):
    """The supervisor, as this attempt sees it. Each call may end the attempt by raising."""

    def loading(self) -> None:
        """Called while data are loading."""
        ...

    def begin(self, first_step: int, last_step: int) -> bool:
        """Returns False once these steps are recorded as started; True if the state before is to be saved first."""
        ...

    def poll(self, step: int) -> None:
        """Called between steps; raises if the attempt must stop."""
        ...

    def send(self, message: Document) -> None:
        """Sends a message."""
        ...


@dataclass(frozen=True)
class Sums:
    """What a kind of job adds up, and the files that follow from the noisy sums alone, by name."""

    queries: tuple[Query, ...]
    contents: Callable[[JobSpec, Asked, Release], dict[str, bytes]]


def answer(link: Link, start: Start, telemetry: Telemetry, pids: Sequence[int], sums: Sums) -> None:
    """Runs one attempt of a job without a model, to `finished`.

    Raises:
        PrivacyError: what was charged is not what would run; or a replay reached other sums than the record: the noise
            has met them, and the charge covers no second release.
        DataDamagedError: a part is missing or is not the registered one.
    """
    question = _asked(start, sums.queries)
    replay = Replay(start.steps, start.segments, start.allowed_steps, lambda first, _last: first)
    telemetry.digest(0, state_digest(0, {}))
    passes = _passes(start)
    _contents(sums, start, question, rehearse(question, passes, start.mechanism, _places(start)))
    whole_part = _whole(start, link)
    slots = _slots(start, whole_part)
    check_users(Loaded(whole_part) if isinstance(whole_part, StoredPart) else whole_part, start.mechanism, slots)
    link.send(Ready(device=start.device, processes=tuple(pids) or (os.getpid(),), numerics=_report(slots, passes.rows)))
    if replay.next_block(0) is None:
        raise PrivacyError("these sums were released under other keys; the charge covers no second release")
    private = private_sums(question, whole_part, slots, passes.width, link.loading)
    if link.begin(1, 1):
        raise PrivacyError("a job without a model has no state to save")
    link.poll(1)
    released = release(question, private, start.mechanism, _key(start, replay))
    digest = state_digest(1, released.state)
    if replay.contradicts(1, digest):
        raise PrivacyError("a replay reached other sums than the recorded ones")
    telemetry.digest(1, digest)
    telemetry.check_answers(1, released.stds)
    telemetry.finished(1, _written(start, _contents(sums, start, question, released)), ())


def _asked(start: Start, queries: tuple[Query, ...]) -> Asked:
    """The queries, after comparing what is asked with what was charged."""
    mechanism = start.mechanism
    if mechanism is None and not start.data_public:
        raise PrivacyError("private data need a mechanism")
    if mechanism is not None:
        check_agreement(start.spec, facts_of_job(start, mechanism), mechanism)
    try:
        columns = declared_columns(start.features, start.task)
        return Asked.of(queries, start.spec.where, columns)
    except Unfit:
        raise PrivacyError("the job's queries do not fit the declaration that it was priced with") from None


def _whole(start: Start, link: Link) -> AnyPart:
    """The records of all parts, as stored: cells are not scaled."""
    parts = list[AnyPart]()
    for part in start.parts.train:
        link.loading()
        parts.append(_opened(part))
    return join(parts)


def _opened(part: Part) -> AnyPart:
    file = open_part(part.path, part.sha256, part.key)
    if file is None:
        return _checked(load_part(part.path, part.sha256, part.key))
    return MappedPart(file, _checked)


def _checked(stored: StoredPart) -> StoredPart:
    if len(stored.y) != stored.shape[0]:
        raise DataDamagedError("a stored part of the data set does not have one label for each record")
    return stored


def _slots(start: Start, part: AnyPart) -> int:
    """The public number of rows that are passed over; on public data without privacy that of the records."""
    if start.mechanism is None:
        return len(part.y) if isinstance(part, StoredPart) else len(part)
    return _private_slots(start, start.mechanism)


def _private_slots(start: Start, mechanism: MechanismConfig) -> int:
    k = mechanism.training.records_per_unit
    return slots_of(start.shape.slots, start.shape.records_train, k).train.rows


def _places(start: Start) -> int:
    """The slots that memory is tried for; of public data, which may end an attempt, those of a pass."""
    return MOST_ROWS_PER_PASS if start.mechanism is None else _private_slots(start, start.mechanism)


def _passes(start: Start) -> Passes:
    """The passes over a private part; of a public one at most these."""
    return Passes.over(_places(start), width_of(start.features))


def _key(start: Start, replay: Replay) -> bytes | None:
    return None if start.mechanism is None else bytes.fromhex(replay.keys(1).release_key)


def _report(slots: int, rows: int) -> NumericsReport:
    return NumericsReport(
        device="cpu",
        device_name=PROCESSOR,
        passes="float64",
        totals="integers",
        rows_per_pass=rows,
        rows_per_step=max(slots, 1),
        physical_batch_size=rows,
        threads=torch.get_num_threads(),
        torch=torch.__version__.partition("+")[0],
        self_test="not_needed",
        sensitivity_slack=1.0,
        kernels=kernels(),
        packages=installed.packages(),
        code=installed.code(*installed.OWN),
    )


def _contents(sums: Sums, start: Start, question: Asked, released: Release) -> dict[str, bytes]:
    """The job's files, by name."""
    return sums.contents(start.spec, question, released)


def _written(start: Start, contents: dict[str, bytes]) -> tuple[ArtifactFile, ...]:
    """Writes the job's files.

    Raises:
        StorageFailed: they could not be written.
    """
    folder = Path(start.output_dir)
    try:
        return tuple(write_file(folder / name, content) for name, content in contents.items())
    except OSError:
        raise StorageFailed from None
