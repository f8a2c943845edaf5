"""What a certificate says, as documents: the body that is signed now, and what is read from bodies of every age."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import ConfigDict, Field

from app.hpo.rates import Resolved
from app.hpo.stored_study import StoredDecision
from app.ledger.meaning import Meaning
from app.ledger.memos import Balances
from core.contracts.base import AccountantName, Document, Epsilon, Relation, Unit, is_none
from core.contracts.governance import Governance, Use
from core.contracts.hpo import Strategy
from core.contracts.stored_documents import ReleasedNumber, Role
from core.privacy.canary_bound import Finding
from core.privacy.events import AccountEvents
from core.privacy.mechanism import MechanismConfig
from core.privacy.numerics import NumericsReport
from core.privacy.prices import Charge, Units
from core.privacy.quoted import StudyQuote


class Content(Document):
    """A data set, and the keyed hash of its content."""

    id: str
    name: str
    content_hmac: str


class Sampling(Document):
    """How a step's units are drawn."""

    kind: str
    sample_rate: float


class Steps(Document):
    """The steps that were planned, that were started over all attempts, and that the released model has."""

    planned: int
    started: int
    effective: int | None


class RunSteps(Document):
    """The steps of a study's trial."""

    planned: int
    started: int


class Releases(Document):
    """What left the attempt."""

    weights: bool
    metrics: tuple[ReleasedNumber, ...]
    answers: bool = Field(default=False, exclude_if=lambda answers: not answers)
    rows: bool = Field(default=False, exclude_if=lambda rows: not rows)


class MeanOf(Document):
    """The trial that released the mean by which all trials centre features; no other may have one."""

    run: str


class CertifiedRun(Document):
    """A trial of a study."""

    job: str
    role: Role | None
    level: int | None
    status: str
    mechanism: MechanismConfig
    events: AccountEvents
    gradient_noise_multiplier: float
    numerics: NumericsReport | None
    steps: RunSteps
    charge: Units
    released: Releases
    warnings: tuple[str, ...]


class CertifiedStudy(Document):
    """A study and its trials. `seed`: of the draws; public."""

    search: Strategy
    seed: str
    procedure_epsilon: Epsilon | None
    final_run_epsilon: Epsilon | None
    decision: StoredDecision | None
    chosen: str | None
    keeps_weights: bool
    mean: MeanOf | None = Field(default=None, exclude_if=is_none)
    runs: tuple[CertifiedRun, ...]


class WhatRan(Document):
    """What a job did to private data.

    Attributes:
        mechanism: None for a study, as each trial has its own.
        events: a study's are its whole plan. In it a full-batch trial is one Gaussian sum with noise 1/μ: exactly
            equivalent to its T steps with σ = √T/μ.
        gradient_noise_multiplier: larger than the noise multiplier if a count is released with each step.
        max_grad_norm: per unit.
        audit: what the canaries of an audited job show.
    """

    unit: Unit
    relation: Relation
    mechanism: MechanismConfig | None
    events: AccountEvents
    sampling: Sampling
    noise_multiplier: float | None
    gradient_noise_multiplier: float | None
    max_grad_norm: float | None
    records_per_unit: int
    expected_batch_size: int
    numerics: NumericsReport | None
    audit: Finding | None = Field(default=None, exclude_if=is_none)
    steps: Steps
    study: CertifiedStudy | None = Field(default=None, exclude_if=is_none)


class Accountant(Document):
    """The accountant of record, and the library that its numbers come from."""

    name: AccountantName
    library: str
    version: str
    grid: float | None


class FilterName(Document):
    """The account's filter; `order` of an `rdp` filter."""

    kind: str
    order: float | None


class Cap(Document):
    """The data set's cap."""

    epsilon: float
    delta: float


class Proof(Document):
    """That an entry, by number and hash, is in a checkpoint: the hashes beside its way to the root, base64."""

    entry: int
    hash: str
    path: tuple[str, ...]


class LedgerSettled(Document):
    """Where a ledger was charged, with a signed checkpoint and proofs that the job's entries are in its tree.

    `block`, `dataset` and `content_hmac` name a block of the data set; they are left out for a data set without blocks.
    """

    block: str | None = Field(default=None, exclude_if=is_none)
    dataset: str | None = Field(default=None, exclude_if=is_none)
    content_hmac: str | None = Field(default=None, exclude_if=is_none)
    entry_seq: int
    balance_after: Balances
    head: str
    checkpoint: str | None = Field(default=None, exclude_if=is_none)
    proofs: tuple[Proof, ...] | None = Field(default=None, exclude_if=is_none)


class Governed(Document):
    """What the owner declared on governance, in the version that the job was priced with, and the job's use."""

    dataset: Governance
    use: Use | None


class JobNamed(Document):
    """The first members of a body: the job, and what it read."""

    version: Literal[3] = 3
    certificate_id: str
    job: str
    status: str
    dataset: Content
    side_information: Content | None
    governance: Governed | None = Field(default=None, exclude_if=is_none)


class Claimed(Document):
    """The last members of a body: what is claimed, what it cost, and what left."""

    accountant: Accountant
    epsilon: Epsilon
    resolved: Resolved | None
    charge: Charge
    filter: FilterName
    cap: Cap
    ledger: LedgerSettled | tuple[LedgerSettled, ...]
    released: Releases
    warnings: tuple[str, ...]
    code_version: str
    model_sha256: str | None
    answers_sha256: str | None = Field(default=None, exclude_if=is_none)
    rows_sha256: str | None = Field(default=None, exclude_if=is_none)
    graph_sha256: str | None = Field(default=None, exclude_if=is_none)
    issued_at: str | None


class Body(Meaning, Claimed, WhatRan, JobNamed):
    """The signed body. `resolved`: the learning rate that "auto" stood for, and why. `graph_sha256`: of the file with
    the submitter's own model, at whose weights training began.

    Bodies of version 2 have no Meaning. A reader of theirs reads these, too: members were only added.
    """


class _Read(Document):
    """What is read from a document of any age; other members are left out."""

    model_config = ConfigDict(extra="ignore")


class CertifiedQuote(StudyQuote):
    """What a body takes from the job's quote."""

    mechanism: AccountEvents | None = None
    resolved: Resolved | None = None


class ReadyNumerics(_Read):
    """What a body takes from a `ready` event; the events of old releases had no numerics."""

    numerics: NumericsReport | None = None


class Version(_Read):
    """A body's version; bodies before version 2 have no envelope, and before version 3 no Meaning."""

    version: object = None


class _Named(_Read):
    id: str


class NamedLedger(_Read):
    """A ledger that a certificate names: the entry that settled the job, and a checkpoint if there is one."""

    entry_seq: int
    head: str
    block: str | None = None
    dataset: str | None = None
    checkpoint: str | None = None


class _Amounts(_Read):
    train: int
    holdout: int


class Certified(_Read):
    """What is read from a signed body."""

    job: str
    dataset: _Named
    ledger: NamedLedger | tuple[NamedLedger, ...]
    charge: _Amounts
    study: object = None

    @classmethod
    def of(cls, body: object) -> Self:
        """Reads a body.

        Raises:
            ValidationError: it cannot be read.
        """
        return cls.model_validate(body)

    @property
    def ledgers(self) -> dict[str, NamedLedger]:
        """The ledgers that it names, by their data sets, or blocks."""
        if isinstance(self.ledger, NamedLedger):
            return {self.dataset.id: self.ledger}
        return {each.dataset or "": each for each in self.ledger}


class Signed(_Read):
    """A certificate as it is stored and answered: the body, the signature over its canonical JSON, and an envelope with
    the same body. `public_key` and `signature` are base64. A body of version 1 has no envelope."""

    certificate: object
    signature: str
    public_key: str
    algorithm: str
    envelope: object = None
