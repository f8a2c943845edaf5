"""What an attempt's process and its supervisor say to each other: one JSON document a line, over a socket pair.

    supervisor → child                          child → supervisor
    start   the whole job, once                 ready      the data are loaded and checked
    written the digest is on record             digest     the state at step 0, and at the end of every block: answered
                                                           by written or stop
    go      the block is written ahead          block      about to start these steps: answered by go or stop
    stop    cancelled: end now (at any time)    mismatch   a replay differs from the record: answered by resalt or stop
    resalt  fresh keys from a step on           metric     a released number, after the digest of its block
                                                finished | stopped | failed   the last word

The process has no database and no secret but the keys in `start` and `resalt`. Everything that depends on the data
leaves through worker.telemetry and this pipe.

Steps are numbered from 1; "step 0" is the state before the first one. A segment is a stretch of steps under one salt:
it rules from `from_step` until a later segment of the list begins, and what it recorded from there on is void.
"""

from __future__ import annotations

import select
import socket
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, TypeAdapter, ValidationError, model_validator

from app.contracts.base import AccountName, Document
from app.contracts.dataset_spec import Features, Task
from app.contracts.job_spec import JobSpec
from app.errors import WorkerError
from app.privacy.mechanism import MechanismConfig
from app.privacy.numerics import Numerics, NumericsReport, PublicSizes

MAX_LINE_BYTES = 64 * 1024 * 1024  # a start message names every block recorded so far

KeyHex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$"), Field(repr=False)]
Sha256Hex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Step = Annotated[int, Field(ge=0)]

# The closed set of what can go wrong in an attempt, with the only texts that leave it: no value, no path, no traceback.
FailureCode = Literal[
    "data-damaged",
    "out-of-memory",
    "privacy-invariant",
    "protocol",
    "storage",
    "extractor-missing",
    "model-missing",
    "numerics",
    "internal",
]
FAILURE_TEXTS: dict[FailureCode, str] = {
    "data-damaged": "A stored part of the data set is missing, or is not what was registered.",
    "out-of-memory": "The attempt needs more memory than there is; set a smaller physical_batch_size.",
    "privacy-invariant": "A privacy invariant does not hold; nothing was released.",
    "protocol": "The attempt and its supervisor disagree about the protocol.",
    "storage": "The model's files could not be written.",
    "model-missing": "The model is not in this worker's models root, or is not the one that was admitted.",
    "extractor-missing": "The extractor is not in this worker's models root, or is not the one that was admitted.",
    "numerics": "On this worker a record's numbers depend on other records; nothing private was computed.",
    "internal": "The attempt failed.",
}

# Warnings that `finished` may carry.
WarningCode = Literal[
    "steps-short",  # fewer than T: a replay was not identical and the hold was used up
    "evaluation-skipped",  # a score was not measured again, because it was charged once
    "parameters-not-finite",
    "metric-not-finite",  # an exact score on public data
    "device-unavailable",  # the model was trained on the CPU
    "one-record-passes",  # the self-test found that products depend on neighbours
]


class ProtocolError(WorkerError):
    """A message that does not belong here."""

    code = "protocol"


class Shape(Document):
    """A data set's public numbers. `outputs`: classes, or 1 for regression."""

    records_train: Annotated[int, Field(ge=1)]
    records_holdout: Annotated[int, Field(ge=0)]
    features: Annotated[int, Field(ge=1)]
    outputs: Annotated[int, Field(ge=1)]
    sparse: bool

    def public_sizes(self, mechanism: MechanismConfig | None) -> PublicSizes:
        """What numerics are made from."""
        per_unit = mechanism.training.records_per_unit if mechanism else 1
        return PublicSizes(self.records_train, per_unit, self.features, self.outputs, self.sparse)


class Part(Document):
    """A stored part of the data set: an absolute path and the SHA-256 of the file."""

    path: str
    sha256: Sha256Hex


class Parts(Document):
    """`public`: the training part of another data set that is declared public, for an optimizer's side information."""

    train: Part
    holdout: Part | None = None
    public: Part | None = None


class Recorded(Document):
    """Steps first…last were started; `digest` is the state after them, null where their end was not recorded.

    The state before the first step is recorded as the block 0…0.
    """

    first_step: Step
    last_step: Step
    digest: Sha256Hex | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Recorded:
        if self.first_step > self.last_step:
            raise ValueError("a block ends after it begins")
        return self


class Keys(Document):
    """32 bytes each, as hex: HKDF of the server's secret and the segment's salt (worker.noise.keys), one a purpose."""

    noise_key: KeyHex
    sampler_key: KeyHex
    release_key: KeyHex
    init_key: KeyHex
    dropout_key: KeyHex


class Segment(Keys):
    from_step: Step
    recorded: tuple[Recorded, ...] = ()


class Released(Document):
    """A metric that is recorded as released: it is not measured again."""

    name: str
    step: Step


# --- supervisor → child ---


class Start(Document):
    """Everything that an attempt needs.

    Attributes:
        data_public: the data set is declared public: only then a job may lack a mechanism or have a seed.
        holdout_public: the hold-out is (a public file, or a part of public data): scores on it are exact and free.
        holdout_account: what noisy scores are charged to: `train` where the hold-out is of the users trained on.
        numerics: the stored ones; null of a job that was admitted before there were any.
        steps: T of the stored plan.
        segments: the salts in use, oldest first, with the blocks recorded under each.
        released: the metrics recorded so far, by any attempt.
        score_only: a trial of a study: of what it releases, its score alone leaves, and no norm.
        keeps_weights: whether its model is handed out.
        allowed_steps: how many steps that were not started yet may still be charged.
        extractor_dir: the extractor's folder, where the job has one.
        models_root: where its Hugging Face model is, where it has one.
        cache_dir: where its features are kept: within the data set's own folder.
        output_dir: an existing folder of this attempt's own for its artifacts; nothing in it is published before
            `finished`.
    """

    kind: Literal["start"] = "start"
    job_id: str
    spec: JobSpec
    mechanism: MechanismConfig | None
    task: Task
    features: Features
    shape: Shape
    numerics: Numerics | None = None
    parts: Parts
    data_public: bool
    holdout_public: bool
    holdout_account: AccountName = "holdout"
    steps: Annotated[int, Field(ge=1)]
    segments: Annotated[tuple[Segment, ...], Field(min_length=1)]
    released: tuple[Released, ...] = ()
    allowed_steps: Annotated[int, Field(ge=0)]
    score_only: bool = False
    keeps_weights: bool = True
    extractor_dir: str | None = None
    cache_dir: str | None = None
    models_root: str | None = None
    output_dir: str


class Predict(Document):
    """A model on a caller's own inputs: in place of `start`, for a process that does nothing else. Nothing private.

    Attributes:
        spec: the job's.
        weights: model.safetensors, or adapter_model.safetensors, as published.
        records: what app.formats.inputs made of the request.
        top: how many classes, items or tokens are named.
        models_root: where the job's extractor or Hugging Face model is, where it has one.
    """

    kind: Literal["predict"] = "predict"
    spec: JobSpec
    task: Task
    features: Features
    shape: Shape
    weights: Part
    records: list[Any]
    top: Annotated[int, Field(ge=1)]
    models_root: str | None = None


class Go(Document):
    kind: Literal["go"] = "go"


class Written(Document):
    """The digest is on record: what its block made may leave now, and a crash from here on replays the same state."""

    kind: Literal["written"] = "written"


class Stop(Document):
    kind: Literal["stop"] = "stop"


class Resalt(Keys):
    """Fresh keys for `from_step` (the matched step + 1) and everything after; nothing is recorded under them yet."""

    kind: Literal["resalt"] = "resalt"
    from_step: Step
    allowed_steps: Annotated[int, Field(ge=0)]


# --- child → supervisor ---


class Alive(Document):
    """Data are still being loaded: hours, where an extractor reads them. Said by the clock, whatever is loaded."""

    kind: Literal["alive"] = "alive"


class Ready(Document):
    """The data are loaded. `fallbacks`: layers without a rule, whose gradients are formed record by record. `numerics`:
    what the attempt computes in."""

    kind: Literal["ready"] = "ready"
    device: str
    fallbacks: tuple[str, ...] = ()
    numerics: NumericsReport


class BlockStart(Document):
    """About to start these steps, replayed ones too. Nothing of them runs before `go`."""

    kind: Literal["block"] = "block"
    first_step: Annotated[int, Field(ge=1)]
    last_step: Annotated[int, Field(ge=1)]


class Digest(Document):
    """SHA-256 of parameters and optimizer state after `step`, under the segment that rules it."""

    kind: Literal["digest"] = "digest"
    step: Step
    digest: Sha256Hex


class Mismatch(Document):
    """The state differs from what was recorded. `matched_step`: the last one that did not; −1: not even step 0."""

    kind: Literal["mismatch"] = "mismatch"
    matched_step: Annotated[int, Field(ge=-1)]


# A score of a group of classes has the group's name behind it.
MetricName = Annotated[
    str,
    StringConstraints(
        pattern=r"^((accuracy|loss)(:[a-z0-9_-]{1,40})?|(hit|ndcg)@[0-9]{1,5}|training_loss|clipping_norm)$"
    ),
]


class PartValue(Document):
    """Another number out of the same release: that of one group of classes, or HIT beside NDCG."""

    name: MetricName
    value: float
    std: Annotated[float, Field(ge=0.0)]


class MetricValue(Document):
    """A released number. `std`: of the noise on `value`; 0 where it is exact: on public data, or what the training
    itself made of noised numbers. `parts` go with it: all of one release leaves at once, or nothing of it."""

    kind: Literal["metric"] = "metric"
    name: MetricName
    step: Step
    value: float
    std: Annotated[float, Field(ge=0.0)]
    on: Literal["train", "holdout"]
    released_by: Literal["noisy_count", "noisy_sum", "public_data", "post_processing"]
    parts: tuple[PartValue, ...] = ()


class ArtifactFile(Document):
    """A file under the attempt's `output_dir`; `path` is absolute."""

    name: str
    path: str
    sha256: Sha256Hex
    size_bytes: Annotated[int, Field(ge=0)]


class Finished(Document):
    kind: Literal["finished"] = "finished"
    steps_effective: Step
    artifacts: tuple[ArtifactFile, ...]
    warnings: tuple[WarningCode, ...] = ()


class Predicted(Document):
    """One answer for each record, in order."""

    kind: Literal["predicted"] = "predicted"
    outputs: list[dict[str, Any]]


class Stopped(Document):
    """Ended because it was told to. `steps_started`: the last step that this attempt started; 0: none."""

    kind: Literal["stopped"] = "stopped"
    steps_started: Step


class Failed(Document):
    kind: Literal["failed"] = "failed"
    code: FailureCode
    message: str


ToChild = Start | Predict | Go | Written | Stop | Resalt
ToSupervisor = Alive | Ready | BlockStart | Digest | Mismatch | MetricValue | Finished | Predicted | Stopped | Failed

TO_CHILD: TypeAdapter[ToChild] = TypeAdapter(Annotated[ToChild, Field(discriminator="kind")])
TO_SUPERVISOR: TypeAdapter[ToSupervisor] = TypeAdapter(Annotated[ToSupervisor, Field(discriminator="kind")])


class Channel:
    """One end of the pipe. Not thread-safe.

    Args:
        connection: one socket of a pair; the channel owns it.
        receives: what may arrive at this end, TO_CHILD or TO_SUPERVISOR.
    """

    def __init__(self, connection: socket.socket, receives: TypeAdapter[Any]) -> None:
        self._socket = connection
        self._receives = receives
        self._buffer = bytearray()

    def send(self, message: Document) -> None:
        """Raises OSError (BrokenPipeError) where the other end is gone."""
        self._socket.sendall(message.model_dump_json().encode() + b"\n")

    def receive(self) -> Any:
        """The next message, waited for.

        Raises:
            EOFError: the other end is gone.
            ProtocolError: the line is not a message for this end. Its text holds nothing of the line.
        """
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > MAX_LINE_BYTES:
                raise ProtocolError("a message is too long")
            chunk = self._socket.recv(1 << 20)
            if not chunk:
                raise EOFError
            self._buffer += chunk
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            return self._receives.validate_json(line)
        except ValidationError:
            raise ProtocolError("a line is not a message that is expected here") from None

    def pending(self, timeout_s: float = 0.0) -> bool:
        """Whether something (a message, or the end) can be received within the time given."""
        return bool(self._buffer) or bool(select.select([self._socket], [], [], timeout_s)[0])

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()
