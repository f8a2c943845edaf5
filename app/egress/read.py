"""What the folder's documents take from a certificate of any version; other members are left out."""

from __future__ import annotations

from pydantic import ConfigDict

from app.ledger.certificate_documents import Cap, FilterName, NamedLedger
from app.ledger.meaning import ThreatModel, WorkerEnvironment
from core.contracts.base import Document, Epsilon
from core.contracts.governance import Governance, Use
from core.privacy.profile import Profile


class _Read(Document):
    model_config = ConfigDict(extra="ignore")


class NamedContent(_Read):
    """A data set."""

    id: str
    name: str


class Governed(_Read):
    """What the owner declared, and the job's use."""

    dataset: Governance
    use: Use | None = None


class SampledBy(_Read):
    """How batches were drawn."""

    kind: str
    sample_rate: float | None = None


class StepsRun(_Read):
    """Steps that were planned, and those that were started."""

    planned: int
    started: int


class ReleasedValue(_Read):
    """A released number's name."""

    name: str


class Left(_Read):
    """What left the service."""

    weights: bool
    metrics: tuple[ReleasedValue, ...] = ()


class Numbers(_Read):
    """How numbers were computed."""

    passes: str
    sums: str
    self_test: str


class Accounted(_Read):
    """The accountant, and its library."""

    name: str
    library: str
    version: str


class Charged(_Read):
    """The charge, in the filter's units."""

    train: int
    holdout: int
    unit: str


class CertificateFacts(_Read):
    """A certificate's body, as far as the documents say it. Members since version 3 may be missing."""

    version: int
    certificate_id: str
    job: str
    status: str
    dataset: NamedContent
    side_information: NamedContent | None = None
    governance: Governed | None = None
    unit: str
    relation: str
    records_per_unit: int
    epsilon: Epsilon
    accountant: Accounted
    charge: Charged
    sampling: SampledBy
    steps: StepsRun
    noise_multiplier: float | None
    max_grad_norm: float | None
    expected_batch_size: int
    numerics: Numbers | None = None
    filter: FilterName
    cap: Cap
    ledger: NamedLedger | tuple[NamedLedger, ...]
    released: Left
    warnings: tuple[str, ...] = ()
    code_version: str
    model_sha256: str | None
    issued_at: str | None
    threat_model: ThreatModel | None = None
    assumptions: tuple[str, ...] = ()
    composition: tuple[str, ...] = ()
    profile: Profile | None = None
    environment: tuple[WorkerEnvironment, ...] = ()

    @property
    def ledgers(self) -> dict[str, NamedLedger]:
        """The ledgers that were charged, by their data sets, or blocks."""
        if isinstance(self.ledger, NamedLedger):
            return {self.dataset.id: self.ledger}
        return {each.dataset or "": each for each in self.ledger}

    @property
    def thing(self) -> str:
        """What is protected, in a word."""
        return "record" if self.unit == "example" else "person"
