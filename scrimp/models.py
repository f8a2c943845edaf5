"""The service's responses, typed. Fields that a newer service adds are kept, so that an older client still works."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from scrimp import plots
from scrimp.administered import AuditEntry as AuditEntry  # noqa: PLC0414
from scrimp.administered import AuditVerification as AuditVerification  # noqa: PLC0414
from scrimp.administered import Delivery as Delivery  # noqa: PLC0414
from scrimp.administered import Key as Key  # noqa: PLC0414
from scrimp.administered import Kind as Kind  # noqa: PLC0414
from scrimp.administered import NewKey as NewKey  # noqa: PLC0414
from scrimp.administered import NewSecret as NewSecret  # noqa: PLC0414
from scrimp.administered import Resource as Resource  # noqa: PLC0414
from scrimp.administered import Webhook as Webhook  # noqa: PLC0414
from scrimp.administered import Worker as Worker  # noqa: PLC0414
from scrimp.quotes import Epsilon as Epsilon  # noqa: PLC0414
from scrimp.quotes import Quote as Quote  # noqa: PLC0414
from scrimp.quotes import Sweep as Sweep  # noqa: PLC0414
from scrimp.rows import Rows, facts
from scrimp.signed import Checkpoint as Checkpoint  # noqa: PLC0414
from scrimp.signed import Proof as Proof  # noqa: PLC0414
from scrimp.signed import SignedCertificate as SignedCertificate  # noqa: PLC0414
from scrimp.signed import SigningKey as SigningKey  # noqa: PLC0414

FINAL = frozenset({"succeeded", "failed", "cancelled"})


class Upload(Resource):
    """A file that arrives in pieces: `offset` bytes of `size` have arrived."""

    id: str
    size: int
    offset: int
    expires_at: str


class Account(Resource):
    """One budget of a data set, in integers of `unit`."""

    filter: str
    order: float | None = None
    unit: str
    budget: int
    spent: int
    held: int
    remaining: int
    share_spent: float | None = None
    share_held: float | None = None


class BlockBalance(Resource):
    """A block's balances, as parts of its budget."""

    label: str
    id: str
    epsilon_spent: float
    share_spent: float
    share_held: float
    closed: bool = False


class Ledger(Resource):
    """A data set's ledger: cap, balances, and other accountants' figures. `epsilon_spent` is of what ran so far; the
    guarantee is the cap. `blocks`: those of a data set that has grown. The spent ε's are then the worst block's, and
    `accounts` and `epsilon_remaining` those of `remaining_block`, the open block with the most left."""

    cap: Epsilon
    accounts: dict[str, Account | None]
    epsilon_spent: Epsilon
    epsilon_spent_and_held: Epsilon
    epsilon_filter: Epsilon | None = None
    epsilon_remaining: Epsilon | None = None
    comparison: dict[str, Epsilon | None] | None = None
    entries: int
    head: str
    cap_version: str = ""
    closed: bool = False
    collusion: str = ""
    blocks: list[BlockBalance] | None = None
    remaining_block: str | None = None

    def rows(self) -> Rows[Account]:
        """The accounts; each has its name as a further member."""
        return Rows(Account(**each.model_dump(), name=name) for name, each in self._accounts().items())

    def frame(self) -> Any:
        """The accounts as a pandas DataFrame, a row for each; see `scrimp.rows.Rows.frame`."""
        return self.rows().frame()

    def plot(self) -> Any:
        """Draws spent, held and left of each account; returns matplotlib's axes.

        Raises:
            MissingPackage: matplotlib is not installed.
        """
        return plots.accounts(self._accounts())

    def _accounts(self) -> dict[str, Account]:
        return {name: each for name, each in self.accounts.items() if each is not None}

    def _repr_html_(self) -> str:
        budgets = [
            (name, f"{each.spent / each.budget:.1%} spent, {each.held / each.budget:.1%} held")
            for name, each in self._accounts().items()
        ]
        spent = [("of what ran so far", f"ε = {self.epsilon_spent.value:.4g}")]
        return facts([("cap", f"ε = {self.cap.value:g}, δ = {self.cap.delta:g}"), *budgets, *spent])


class Forecast(Resource):
    """How many jobs of one price still fit, exactly, and that price by account."""

    jobs_that_fit: int
    per_job: dict[str, int]
    share_per_job: float


class LedgerEntry(Resource):
    """One line of a ledger; `hash` covers all its other members."""

    dataset_id: str
    seq: int
    kind: str
    job_id: str | None = None
    train: int
    holdout: int
    train_released: int = 0
    holdout_released: int = 0
    created_at: str
    prev_hash: str
    hash: str


class Verification(Resource):
    """The service's last verification of a chain; an audit log's is made at once.

    Attributes:
        valid: None if there was none yet.
        entries, head: of the chain now.
        checked_at, checked_entries, checked_head: when it was verified, and what.
        stale: entries were added since, or it was never verified.
        queued: a new verification was asked for and has not begun.
    """

    valid: bool | None
    entries: int
    head: str
    first_bad_entry: int | None = None
    problem: str | None = None
    checked_at: str | None = None
    checked_entries: int | None = None
    checked_head: str | None = None
    stale: bool = False
    queued: bool = False


class PartSlots(Resource):
    """At most so many units, and records, are registered of a part."""

    units: int
    rows: int

    def __str__(self) -> str:
        return f"{self.units:,}" + ("" if self.rows == self.units else f" ({self.rows:,} records)")


class Slots(Resource):
    """The public numbers of places that a data set's parts have. `holdout`: None without a private hold-out."""

    train: PartSlots
    holdout: PartSlots | None = None

    def __str__(self) -> str:
        return f"{self.train} to train on" + ("" if self.holdout is None else f", {self.holdout} held out")


class Shape(Resource):
    """A data set's public sizes. `slots`: None for public data, and for data registered before there were slots."""

    records_train: int = 0
    records_holdout: int = 0
    slots: Slots | None = None


class Read(Resource):
    """What a data file holds, for its owner alone: the records that were read, those left out, and the protected units
    of the whole and of each part."""

    records: int
    dropped: int
    units: int
    train: int
    holdout: int


class Reading(Resource):
    """How far a file is read in the background, for its owner alone. `problem`: why it was rejected. `read` and
    `warnings` (data-dependent): what was read."""

    bytes: int
    bytes_read: int
    problem: dict[str, Any] | None = None
    read: Read | None = None
    warnings: list[str] | None = None


class ReadingProgress(Resource):
    """An event of `GET /v1/datasets/{id}/events`. `state`: reading, rejected or ready."""

    state: str
    reading: Reading | None = None


class Dataset(Resource):
    """`holdout`: the declared hold-out, if there is one; `access`: what the calling key may do (view, train, own);
    `max_epsilon_per_job`: the owner's policy for it; `content_deleted_at`: when the data themselves were deleted;
    `state`: ready, reading (no job can use it yet), rejected, behind or retired."""

    id: str
    name: str
    holdout: dict[str, Any] | None = None
    shape: Shape = Shape()
    ledger: Ledger | None = None
    access: str | None = None
    max_epsilon_per_job: float | None = None
    state: str = "ready"
    declaration: int = 1
    content_deleted_at: str | None = None
    reading: Reading | None = None

    @field_validator("shape", mode="before")
    @classmethod
    def _known_later(cls, shape: Any) -> Any:
        return Shape() if shape is None else shape  # of a file that is being read

    def _repr_html_(self) -> str:
        sizes = f"{self.shape.records_train:,} to train on, {self.shape.records_holdout:,} held out"
        budget = "public: no privacy is claimed for it" if self.ledger is None else self.ledger._repr_html_()
        slots = [] if self.shape.slots is None else [("slots", str(self.shape.slots))]
        facts_of = facts([("data set", f"{self.name} ({self.id})"), ("state", self.state), ("records", sizes), *slots])
        return facts_of + budget


class RegisteredDataset(Dataset):
    """The answer to a registration: the data set, and what its file holds; None while it is read."""

    read: Read | None = None
    warnings: list[str] = []


class RedeclaredDataset(RegisteredDataset):
    """A data set with its new declaration. `suggested_records` is a rounded count: an exact one becomes public. Without
    counts where the data set's own block is gone. `slots`: of the new declaration; `default_slots`: without declared
    ones."""

    suggested_records: int | None = None
    slots: Slots | None = None
    default_slots: Slots | None = None


class CheckedDataset(Resource):
    """What a registration would answer; nothing was stored. `suggested_records` is a rounded count to declare, and
    `suggested_slots` have a margin over what the file holds."""

    name: str
    shape: dict[str, Any]
    read: Read
    suggested_records: int
    suggested_slots: Slots | None = None
    warnings: list[str] = []


class Grant(Resource):
    """Lets a key see a data set (`view`), train on it (`train`) or charge it for another system (`charge`)."""

    dataset_id: str
    key_id: str
    key_name: str
    key_role: str
    access: str
    max_epsilon_per_job: float | None = None
    created_at: str
    created_by: str


class Charge(Resource):
    """What another system computes from a data set. Shares are parts of the accounts' budgets."""

    id: str
    dataset: str
    account: str
    status: str
    mechanism: dict[str, Any]
    attested: str
    attested_by: str
    unit: str
    train: int
    holdout: int
    share_train: float
    share_holdout: float
    reason: str | None = None
    created_at: str
    settled_at: str | None = None


# What comes with `auc`, from one histogram.
OF_AUC = (
    "average_precision",
    "accuracy",
    "balanced_accuracy",
    "recall",
    "precision",
    "positive_share",
    "mean_prediction",
)


# What comes with `macro_f1`, beside the recall of each class.
OF_CONFUSION = ("accuracy", "balanced_accuracy", "largest_share")


def of_confusion(name: str) -> bool:
    """True for a number that comes with `macro_f1`.

    >>> of_confusion("recall:3"), of_confusion("recall")
    (True, False)
    """
    return name in OF_CONFUSION or name.startswith("recall:")


class Metric(Resource):
    """A released number; `std` is the noise's standard deviation, 0 if the number is exact (public data)."""

    value: float
    std: float
    on: str
    released_by: str


class Histogram(Resource):
    """A released histogram of records by class and score.

    `cells`: 256 counts of the first class, then 256 of the second, in bins of x = ln(p/(1 − p)), where p is the second
    class's probability: 254 equal bins from −8 to 8, and an open one at each end. `noise_std`: of the noise on the sums
    from which they follow; 0 if they are exact.
    """

    cells: list[float]
    noise_std: float


class MetricPoint(Metric):
    """A released number with its step.

    `histogram`, of the last `auc`: the released histogram of scores from which it was computed.
    """

    name: str
    step: int
    histogram: Histogram | None = None


class Progress(Resource):
    """How many steps are done, and about how long the rest takes."""

    step: int
    steps: int
    elapsed_s: float | None = None
    remaining_s: float | None = None


class Artifact(Resource):
    """A file that a job released."""

    name: str
    sha256: str
    size_bytes: int
    damaged: bool = False


class Fit(Resource):
    """The scaling law: r(x) = Σ coefficients[k] xᵏ through the best trial of each level, at the final trial's x."""

    fit_in: str
    curve: str
    coefficients: list[float]
    levels: list[dict[str, Any]]
    at_final: float
    r_star: float
    fallbacks: list[str]


class Study(Resource):
    """A study: its progress and its decisions. `procedure` is the ε of the whole study."""

    strategy: str
    seed: str = ""
    runs: int
    ended: int
    fit: Fit | None = None
    chosen: int | None = None
    procedure: Epsilon | None = None
    final_run: Epsilon | None = None
    keeps_weights: bool = False


class Trial(Resource):
    """A trial of a study: its drawn point and its noisy score."""

    job: str
    number: int
    role: str
    level: int | None = None
    status: str
    learning_rate: float
    steps: int
    max_grad_norm: float | None = None
    r: float
    epsilon: Epsilon | None = None
    score: dict[str, Any] | None = None
    chosen: bool = False


class Trials(Resource):
    """The trials of a study so far; for any other job, no trials and no study."""

    items: list[Trial]
    study: Study | None = None


class Charged(Resource):
    """What a settled job was charged by account; `share` is the charged part of its hold."""

    train: int
    holdout: int
    share: float


class Job(Resource):
    """A job: its status, price, progress, results and files. `charged` is null until it has settled."""

    id: str
    name: str = ""
    dataset: str
    status: str
    waiting_for: str | None = None
    spec: dict[str, Any]
    quote: Quote
    progress: Progress
    epsilon_spent: Epsilon | None = None
    charged: Charged | None = None
    metrics: dict[str, Metric] = {}
    artifacts: list[Artifact] = []
    failure: dict[str, Any] | None = None
    warnings: list[Any] = []
    tags: list[str] = []
    notes: str = ""
    study: Study | None = None
    parent: str | None = None
    created_at: str
    started_at: str | None = None
    finished_at: str | None = None

    @property
    def epsilon_planned(self) -> Epsilon | None:
        """The cost of the whole job; null on public data."""
        return self.quote.epsilon

    @property
    def done(self) -> bool:
        """Returns True if the job has ended."""
        return self.status in FINAL

    @property
    def doing(self) -> str:
        """What a running job does before its first step, which may take hours with an extractor; "" afterwards.

        It follows from status, step and specification alone: how far an extraction is would tell how many records
        there are.
        """
        if self.status != "running" or self.progress.step or self.study is not None:
            return ""
        extractor = (self.spec.get("model") or {}).get("extractor")
        return "loading the data and their features" if extractor else "loading the data"


class Optimizer(Resource):
    """An optimizer of the catalogue: its rule, its state, a step's cost, and the JSON schema of its settings."""

    kind: str
    summary: str
    update: str
    state: dict[str, str]
    cost: str
    when_to_prefer: str
    source: str
    json_schema: dict[str, Any] = Field(alias="schema")


class Event(Resource):
    """One event of a job's log."""

    seq: int
    type: str
    data: dict[str, Any] = {}
    at: str
