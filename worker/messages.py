"""The messages between an attempt's process and its supervisor: one JSON document a line, over a socket pair.

    supervisor → child                          child → supervisor
    start   the whole job, once                 verdict    the self-test's verdict; the answer is written
    written the verdict is recorded             ready      the data are loaded and checked
    go      the block is recorded in advance    block      about to start these steps, with the digest of the state
                                                           before; the answer is go, save or stop
                                                digest     that of step 0 or of a block's end, if no block comes next
    save    the state before the block first    checkpoint the state, asked for by save; pieces follow, the last empty
    piece   of the state of an earlier attempt  piece, more    of the state that is saved; the answer is a piece
    stop    cancelled: end now (at any time)    mismatch   a replay differs from its record; the answer is resalt
                                                           or stop
    resalt  fresh keys from a step on           metric     a released number, after its block's digest
                                                finished | stopped | failed   the last message

The process has no database. The keys in `start` and `resalt` are its only secrets. Everything that depends on the data
leaves through worker.telemetry and this pipe.

Steps are numbered from 1; "step 0" is the state before the first step. A segment is a range of steps under one salt. It
applies from `from_step` until a later segment in the list begins. Blocks that it recorded from there on are void.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import Field, StringConstraints, TypeAdapter, model_validator

from core.contracts.base import AccountName, Document, Epsilon
from core.contracts.dataset_spec import Features, Task
from core.contracts.devices import Kind
from core.contracts.extractor import FORMER, Sha256Hex
from core.contracts.job_spec import JobSpec
from core.contracts.metrics import AUC_PARTS, METRICS
from core.contracts.runtime import MOST_PROCESSES
from core.contracts.stored_documents import ArtifactFile, Number, ReleasedScore
from core.contracts.stored_documents import Shape as StoredShape
from core.errors import WorkerError
from core.privacy.mechanism import MechanismConfig
from core.privacy.numerics import Numerics, NumericsReport, PublicSizes, SelfTest
from core.privacy.slot_numbers import slots_of

PIECE_BYTES = 2**20  # of a saved state, in one message
KeyHex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$"), Field(repr=False)]
Step = Annotated[int, Field(ge=0)]

# All failure codes, with the only texts that leave a failed attempt: no value, no path, no traceback.
FailureCode = Literal[
    "data-damaged",
    "out-of-memory",
    "privacy-invariant",
    "protocol",
    "storage",
    "extractor-missing",
    "extractor-former",
    "model-missing",
    "model-unfit",
    "numerics",
    "superseded",
    "device",
    "internal",
    "model-too-large",
    "data-too-large",
]
FAILURE_TEXTS: dict[FailureCode, str] = {
    "data-damaged": (
        "A stored part of the data set is missing or differs from what was registered. Tell the operator, who may have "
        "a backup."
    ),
    "out-of-memory": "The attempt ran out of memory; set a smaller physical_batch_size.",
    "privacy-invariant": "A privacy invariant does not hold; nothing was released.",
    "protocol": "The attempt and its supervisor do not follow the same protocol.",
    "storage": "The job's files could not be written. Tell the operator: the storage is full or away.",
    "model-missing": (
        "The model is missing from this worker's models root, or differs from the admitted one; or its "
        "uploaded file has gone. Tell the operator, or train another."
    ),
    "model-unfit": (
        "A part of the model has no exact per-record gradients here; this attempt read no record. Train another model."
    ),
    "extractor-missing": (
        "The extractor is missing from this worker's models root, or differs from the admitted one. Tell the operator, "
        "or name another."
    ),
    "extractor-former": f"T{FORMER[1:]}.",
    "numerics": (
        "On this worker a record's results depend on other records; this attempt computed nothing private. On a GPU "
        "passes of one record would take a thousand times as long: ask for a processor."
    ),
    "superseded": "An earlier release admitted this job with an arithmetic that is gone: submit the job again.",
    "device": "The worker's GPU cannot be used; another attempt follows.",
    "internal": "The attempt failed.",
    "model-too-large": (
        "The model needs more memory than an attempt has; this attempt read no record. Train a smaller one, or ask the "
        "operator to raise SCRIMP_ATTEMPT_MEMORY_BYTES."
    ),
    "data-too-large": (
        "As many records as are declared need more memory than an attempt has; this attempt read no record. Ask the "
        "operator to raise SCRIMP_ATTEMPT_MEMORY_BYTES."
    ),
}

# A rank has no supervisor: it tells why it failed by its exit status.
PEER_GONE = 63  # it found another rank gone: that one's status says why
FIRST_CODE = 64  # exit statuses from here on name the failure
CODES: tuple[FailureCode, ...] = get_args(FailureCode)


def exit_status(code: FailureCode) -> int:
    """The exit status by which a rank tells rank 0 why it failed."""
    return FIRST_CODE + CODES.index(code)


def failure_of(status: int) -> FailureCode | None:
    """Why a rank failed, if its exit status names it."""
    return CODES[status - FIRST_CODE] if FIRST_CODE <= status < FIRST_CODE + len(CODES) else None


# Warnings in `finished`.
WarningCode = Literal[
    "steps-short",  # fewer than T steps: a replay differed and the hold was used up
    "evaluation-skipped",  # a score was not measured again: it was charged only once
    "parameters-not-finite",
    "metric-not-finite",  # an exact score on public data is not finite
    "one-record-passes",  # the self-test found an operation that may mix records
]


class ProtocolError(WorkerError):
    """An unexpected or malformed message."""

    code = "protocol"


class Shape(StoredShape):
    """A data set's public sizes, with which a job can run."""

    @model_validator(mode="after")
    def _positive(self) -> Shape:
        if min(self.records_train, self.features, self.outputs, self.records_holdout + 1) < 1:
            raise ValueError("a job needs at least one training record, one feature and one output")
        return self

    @classmethod
    def of(cls, stored: StoredShape) -> Shape:
        """The stored sizes, checked. Raises ValidationError if no job can run with them."""
        return cls.model_validate(stored, from_attributes=True)

    def public_sizes(self, mechanism: MechanismConfig | None) -> PublicSizes:
        """The public sizes that determine the numerics."""
        per_unit = mechanism.training.records_per_unit if mechanism else 1
        slots = slots_of(self.slots, self.records_train, per_unit).train
        return PublicSizes(self.records_train, per_unit, self.features, self.outputs, self.sparse, slots)


class SealedBy(Document):
    """The data key of a data set's files (core.parts.sealed), and how a new file names it."""

    key: KeyHex
    wrap: Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{2})+$")]


class Part(Document):
    """A stored part of the data set.

    Attributes:
        path: absolute.
        sha256: as registered: the root of the index (core.parts.layout), or the SHA-256 of an NPZ file of before.
        cache_dir: where its features are cached: a folder of the data set that holds the part.
        seal: opens it, and seals its features; None: both are in plaintext.
        rows: the slots that its block declares for records; None: public data.
    """

    path: str
    sha256: Sha256Hex
    cache_dir: str | None = None
    seal: SealedBy | None = None
    rows: Annotated[int, Field(ge=1)] | None = None

    @property
    def key(self) -> bytes | None:
        """The data key, if it is sealed."""
        return None if self.seal is None else bytes.fromhex(self.seal.key)


class Parts(Document):
    """What an attempt reads.

    Attributes:
        train: the training parts, joined in this order: that of their data sets' ids.
        holdout: the hold-out's parts, in the same order; empty without a hold-out.
        public: another, public data set's training part, as an optimizer's side information.
    """

    train: Annotated[tuple[Part, ...], Field(min_length=1)]
    holdout: tuple[Part, ...] = ()
    public: Part | None = None

    @property
    def all(self) -> tuple[Part, ...]:
        """Every part."""
        return (*self.train, *self.holdout, *((self.public,) if self.public else ()))


class Recorded(Document):
    """A block: steps first…last were started. `digest`: the state after them; null if the block's end is not recorded.

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
    """One key per purpose: 32 bytes as hex, HKDF of the server's secret and the segment's salt
    (worker.noise.attempt_keys)."""

    noise_key: KeyHex
    sampler_key: KeyHex
    release_key: KeyHex
    init_key: KeyHex
    dropout_key: KeyHex
    order_key: KeyHex
    views_key: KeyHex


class Segment(Keys):
    """One salt's keys, its first step, and the blocks recorded under it."""

    from_step: Step
    recorded: tuple[Recorded, ...] = ()


class Released(Document):
    """A metric that is recorded as released; it is not measured again. `score` is what was released."""

    name: str
    step: Step
    score: ReleasedScore | None = None


class Claim(Document):
    """What a job's certificate claims, for the model's card.

    Attributes:
        epsilon: the planned ε of all that the job releases; for a trial, of its whole study.
        certificate: the certificate's id, which is its job's; for a trial, its study's.
        noise: how the noise of the steps hangs together; null where it is independent.
    """

    epsilon: Epsilon
    certificate: str
    noise: str | None = None


class Checkpoint(Document):
    """What goes before a saved state (decision 38). The state's numbers follow in pieces, in the digest's order.

    Attributes:
        step: the state is that after it, at a block's end.
        before: digest of what the statistics before the first step released.
        warnings: those so far.
    """

    kind: Literal["checkpoint"] = "checkpoint"
    step: Annotated[int, Field(ge=1)]
    before: Sha256Hex
    warnings: tuple[WarningCode, ...] = ()


class Piece(Document):
    """So many bytes of a saved state, which follow this line as they are; 0: there are no more."""

    kind: Literal["piece"] = "piece"
    size: Annotated[int, Field(ge=0, le=PIECE_BYTES)]


# --- supervisor → child ---


class JobDescription(Document):
    """What a job's plan follows from, but for the machine: all of it is public.

    Attributes:
        spec, mechanism: the job's specification, and its mechanism as it was stored.
        shape, task, features: the data set's public properties.
        data_public: the data set is declared public. Only then may a job lack a mechanism or have a seed.
        holdout_public: the hold-out is public (a public file, or a part of public data). Scores on it are exact and
            free.
        holdout_account: the account that noisy scores are charged to; `train` if the hold-out belongs to the training
            users.
        numerics: the stored numerics; null for a job that was admitted before numerics were stored.
        steps: T of the stored plan.
        models_root: the folder of Hugging Face models, or the file of an uploaded graph, if the job uses one.
    """

    spec: JobSpec
    mechanism: MechanismConfig | None
    task: Task
    features: Features
    shape: Shape
    numerics: Numerics | None = None
    data_public: bool
    holdout_public: bool
    holdout_account: AccountName = "holdout"
    steps: Annotated[int, Field(ge=1)]
    models_root: str | None = None


class Start(JobDescription):
    """Everything that an attempt needs.

    Attributes:
        device: the kind of device that the attempt runs on; nothing else is used in its place.
        fitted_rows: the rows of a pass that fit in the memory of earlier attempts, if fewer than the numerics'.
        threads: of each rank, as the first ready attempt had them; null: this attempt chooses.
        begun: an earlier attempt became ready. The size of passes is fixed.
        processes: how many ranks this attempt has: what the job asks, or fewer after a loss.
        rank: which of them this process is, where each has a machine or bundle of its own (worker.cluster).
        gpus: what each rank on a cluster's GPUs sees, as CUDA_VISIBLE_DEVICES.
        segments: the salts in use, oldest first, with the blocks recorded under each.
        released: the metrics recorded so far, by any attempt.
        claim: what the model's card says about its privacy; null where none is claimed.
        score_only: of a study's trial. Only its score leaves, and a mean that it hands on: no other release, no norm.
        keeps_weights: the job's model is published.
        mean: the file of the mean that the study's first trial released; the job centres by it and releases none.
        hands_mean_on: the job is that first trial; its mean is an artifact, for the study's other trials.
        allowed_steps: how many further steps may still be charged.
        saved: the checkpoint that the supervisor has of an earlier attempt.
        self_tested: this machine keeps the verdict of such a self-test (worker.attempt.verdicts).
        extractor_dir: the extractor's folder, if the job uses one.
        output_dir: an existing folder of this attempt's own for its artifacts. Nothing in it is published before
            `finished`.
    """

    kind: Literal["start"] = "start"
    job_id: str
    device: Kind = "cpu"
    fitted_rows: Annotated[int, Field(ge=1)] | None = None
    threads: Annotated[int, Field(ge=1)] | None = None
    begun: bool = False
    processes: Annotated[int, Field(ge=1, le=MOST_PROCESSES)] = 1
    rank: Annotated[int, Field(ge=0, lt=MOST_PROCESSES)] = 0
    gpus: tuple[str, ...] = ()
    parts: Parts
    segments: Annotated[tuple[Segment, ...], Field(min_length=1)]
    released: tuple[Released, ...] = ()
    claim: Claim | None = None
    allowed_steps: Annotated[int, Field(ge=0)]
    saved: Checkpoint | None = None
    score_only: bool = False
    keeps_weights: bool = True
    mean: Part | None = None
    hands_mean_on: bool = False
    self_tested: bool = False
    extractor_dir: str | None = None
    output_dir: str

    @property
    def job(self) -> JobDescription:
        """The description alone, without keys and records."""
        return JobDescription(**{name: getattr(self, name) for name in JobDescription.model_fields})


class Predict(Document):
    """A prediction on a caller's own inputs. Sent instead of `start` to a process that does nothing else.

    Nothing in it is private.

    Attributes:
        spec: the job's specification.
        weights: model.safetensors or adapter_model.safetensors, as published.
        records: the request's inputs, as core.parts.inputs parsed them.
        top: how many classes, items or tokens to return.
        models_root: the folder of the job's extractor or Hugging Face model, if it uses one; or the file of an
            uploaded graph.
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
    """The block is recorded in advance; its steps may run."""

    kind: Literal["go"] = "go"


class Written(Document):
    """The verdict is recorded."""

    kind: Literal["written"] = "written"


class Save(Document):
    """The block is not recorded: the state before it is to be saved first, and the block announced again."""

    kind: Literal["save"] = "save"


class Stop(Document):
    """The attempt must end now."""

    kind: Literal["stop"] = "stop"


class Resalt(Keys):
    """Fresh keys for `from_step` (the matched step + 1) and all later steps. Nothing is recorded under them yet."""

    kind: Literal["resalt"] = "resalt"
    from_step: Step
    allowed_steps: Annotated[int, Field(ge=0)]


# --- child → supervisor ---


class Alive(Document):
    """The data are still loading, which takes hours with an extractor. Sent on a timer, whatever has been loaded."""

    kind: Literal["alive"] = "alive"


class Verdict(Document):
    """The self-test's verdict, before any part is opened (worker.attempt.verdicts). `fitted_rows`: as in `ready`."""

    kind: Literal["verdict"] = "verdict"
    self_test: SelfTest
    fitted_rows: Annotated[int, Field(ge=1)] | None = None


class Ready(Document):
    """The data are loaded.

    `processes`: the pids of its ranks, rank 0 first. `fallbacks`: layers without a rule; their gradients are formed
    record by record. `numerics`: what the attempt computes in. `fitted_rows`: the rows of a pass that fit in the
    device's memory, if they are fewer than the stored numerics'.
    """

    kind: Literal["ready"] = "ready"
    device: Kind
    processes: tuple[int, ...] = ()
    fitted_rows: Annotated[int, Field(ge=1)] | None = None
    fallbacks: tuple[str, ...] = ()
    numerics: NumericsReport


class BlockStart(Document):
    """About to start these steps, also in a replay. None of them runs before `go`.

    `digest`: of the state before them, unless it was sent by itself: one transaction records both.
    """

    kind: Literal["block"] = "block"
    first_step: Annotated[int, Field(ge=1)]
    last_step: Annotated[int, Field(ge=1)]
    digest: Sha256Hex | None = None

    @model_validator(mode="after")
    def _is_forward(self) -> BlockStart:
        if self.last_step < self.first_step:
            raise ValueError("a block must not end before it begins")
        return self


class Digest(Document):
    """SHA-256 of parameters and optimizer state after `step`, under the segment that applies to it.

    It needs no answer: it is recorded before the supervisor hears any later message.
    """

    kind: Literal["digest"] = "digest"
    step: Step
    digest: Sha256Hex


class More(Document):
    """Asks for the next piece of the saved state; the answer is a piece."""

    kind: Literal["more"] = "more"


class Mismatch(Document):
    """The state differs from its record. `matched_step`: the last step that matched; −1 if not even step 0 matched."""

    kind: Literal["mismatch"] = "mismatch"
    matched_step: Annotated[int, Field(ge=-1)]


# A score on a group of classes ends with the group's name.
MetricName = Annotated[
    str,
    StringConstraints(
        pattern=rf"^(({'|'.join(METRICS)})(:[a-z0-9_-]{{1,40}})?|{'|'.join(AUC_PARTS)}|(hit|ndcg)@[0-9]{{1,5}}|rmse|"
        "largest_share|recall:[0-9]{1,2}|training_loss|clipping_norm|learning_rate)$"
    ),
]


class PartValue(Document):
    """Another number from the same release: the score on one group of classes, or HIT with NDCG."""

    name: MetricName
    value: float
    std: Annotated[float, Field(ge=0.0)]


class MetricValue(Number):
    """A released number, with all other numbers of the same release in `parts`: they leave together or not at all.

    `std` is the noise's on `value`. It is 0 for exact values: on public data, or computed from released numbers alone.
    `histogram`: from which `value` and `parts` follow.
    """

    kind: Literal["metric"] = "metric"
    name: MetricName
    step: Step
    std: Annotated[float, Field(ge=0.0)]
    parts: tuple[PartValue, ...] = ()


class RankReport(Document):
    """What one rank did, on public data alone: on private data both numbers depend on the private count of records.

    `passes`: over all steps. `max_rss_bytes`: the most memory that it had resident.
    """

    pid: int
    passes: Annotated[int, Field(ge=0)]
    max_rss_bytes: Annotated[int, Field(ge=0)]


class Finished(Document):
    """The attempt succeeded: its model's files, after `steps_effective` steps.

    `ranks`: of an attempt with several ranks on public data; else empty.
    """

    kind: Literal["finished"] = "finished"
    steps_effective: Step
    artifacts: tuple[ArtifactFile, ...]
    warnings: tuple[WarningCode, ...] = ()
    ranks: tuple[RankReport, ...] = ()


class Predicted(Document):
    """One answer for each record, in order."""

    kind: Literal["predicted"] = "predicted"
    outputs: list[dict[str, Any]]


class Stopped(Document):
    """The attempt ended on request. `steps_started`: the last step that this attempt started, or 0."""

    kind: Literal["stopped"] = "stopped"
    steps_started: Step


class Failed(Document):
    """The attempt failed, with a code and its fixed text.

    Attributes:
        module: with code `model-unfit`, the part of the public model at which the check failed.
    """

    kind: Literal["failed"] = "failed"
    code: FailureCode
    message: str
    module: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_. ()]{1,200}$")] | None = None


ToChild = Start | Predict | Go | Save | Written | Stop | Resalt | Piece
Steps = Ready | BlockStart | Digest | Mismatch | MetricValue | Checkpoint | Piece | More
ToSupervisor = Alive | Verdict | Steps | Finished | Predicted | Stopped | Failed

TO_CHILD: TypeAdapter[ToChild] = TypeAdapter(Annotated[ToChild, Field(discriminator="kind")])
TO_SUPERVISOR: TypeAdapter[ToSupervisor] = TypeAdapter(Annotated[ToSupervisor, Field(discriminator="kind")])
