"""The tables. Amounts of privacy are integers; the ledger's rules are CHECKs and triggers, not only code.

api_keys ─┬─ datasets ─┬─ datasets (blocks appended to it, moved ledgers: rows like itself, with accounts of their own)
          │      ├────── accounts (one row a data set: both accounts' balances and the chain's head)
          │      ├────── grants (which key may see a data set, or train on it)
          │      ├────── declarations (replaced versions; jobs keep theirs)
          │      ├────── dataset_contents (keyed hashes that make a second registration impossible)
          │      ├────── ledger_entries (append-only, hash-chained)
          │      ├────── spent_by_key (running sums of what each key spent)
          │      ├────── charges (what other systems compute)
          │      ├────── ledger_checkpoints (the checkpoints that the relay signed last)
          │      ├────── ledger_tiles (roots of whole tiles of 256 entries)
          │      ├────── dataset_terms (governance and grants as the relay signed them last)
          │      ├────── dataset_persons, approvals ── agreements (what needs two persons)
          │      └────── sub_accounts ── sub_account_keys (what keys and teams may use within the cap), budget_requests
          ├─ graphs (models that keys uploaded)
          ├─ dataset_readings (registrations whose files are read in the background)
          └─ jobs ─┬──── jobs (a study's trials)
                   ├──── attempts ── blocks (the write-ahead record of steps)
                   ├──── job_events, metrics, artifacts, certificates, egresses
                   └──── outbox (what the relay still has to do)
predictions: models on callers' own inputs, for a short time
claim_turns: whose job was claimed when, and the turns that follow from it
workers: who runs attempts, and when each last reported
ledger_checks: the last finding on each data set's ledger
signing_keys: the public keys of certificates
signed_digests ── signed_batches: what was signed, in logs that witnesses cosign
audit_entries, audit_head: who did what, hash-chained
webhooks ─── webhook_deliveries (messages), webhook_events (events that the relay turns into deliveries)
measures: what processes count, for /metrics
price_cache: calibrated noise multipliers by plan, public numbers only

Small JSON columns are documents (core.contracts.stored_documents). Large ones are JSON, of which each reader takes what
it needs as a document: JobSpec, DatasetSpec, MechanismConfig, Quoted, StoredStudy, Memo, Signed.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    DDL,
    JSON,
    CheckConstraint,
    ForeignKey,
    Index,
    String,
    Text,
    UniqueConstraint,
    event,
    false,
)
from sqlalchemy.orm import Mapped, mapped_column

# Re-exported, because everybody imports it from here.
from app.db.audit_tables import AuditEntry as AuditEntry  # noqa: PLC0414
from app.db.audit_tables import AuditHead as AuditHead  # noqa: PLC0414
from app.db.charge_table import Charge as Charge  # noqa: PLC0414
from app.db.check_tables import DatasetTerms as DatasetTerms  # noqa: PLC0414
from app.db.check_tables import LedgerCheck as LedgerCheck  # noqa: PLC0414
from app.db.check_tables import LedgerCheckpoint as LedgerCheckpoint  # noqa: PLC0414
from app.db.check_tables import LedgerTile as LedgerTile  # noqa: PLC0414
from app.db.check_tables import SignedBatch as SignedBatch  # noqa: PLC0414
from app.db.check_tables import SignedDigest as SignedDigest  # noqa: PLC0414
from app.db.egress_tables import Agreement as Agreement  # noqa: PLC0414
from app.db.egress_tables import Approval as Approval  # noqa: PLC0414
from app.db.egress_tables import DatasetPerson as DatasetPerson  # noqa: PLC0414
from app.db.egress_tables import Egress as Egress  # noqa: PLC0414
from app.db.graphs import Graph as Graph  # noqa: PLC0414
from app.db.measure_table import Measure as Measure  # noqa: PLC0414
from app.db.predictions import Prediction as Prediction  # noqa: PLC0414
from app.db.spending_table import SpentByKey as SpentByKey  # noqa: PLC0414
from app.db.sub_account_tables import BudgetAlert as BudgetAlert  # noqa: PLC0414
from app.db.sub_account_tables import BudgetRequest as BudgetRequest  # noqa: PLC0414
from app.db.sub_account_tables import SubAccount as SubAccount  # noqa: PLC0414
from app.db.sub_account_tables import SubAccountKey as SubAccountKey  # noqa: PLC0414
from app.db.table_base import Base as Base  # noqa: PLC0414
from app.db.table_base import Documents
from app.db.table_base import UtcDateTime as UtcDateTime  # noqa: PLC0414
from app.db.table_base import table_of as table_of  # noqa: PLC0414
from app.db.tags import JobTag as JobTag  # noqa: PLC0414
from app.db.webhook_tables import Webhook as Webhook  # noqa: PLC0414
from app.db.webhook_tables import WebhookDelivery as WebhookDelivery  # noqa: PLC0414
from app.db.webhook_tables import WebhookEvent as WebhookEvent  # noqa: PLC0414
from app.db.worker_table import Worker as Worker  # noqa: PLC0414
from core.contracts.metrics import ReleasedHistogram
from core.contracts.stored_documents import Failure, PartFiles, ReadingOutcome, SaltedSteps, Shape, TrialPoint

INDICES_OF_SOME = set[str]()  # their names


def _index_of_some(model: type[Base], name: str, *columns: str, condition: str, unique: bool = False) -> None:
    """Makes an index of the rows that a condition is true of, with the table.

    In SQL: an `Index` with a condition would load the dialects of both databases.
    """
    INDICES_OF_SOME.add(name)
    kind = "UNIQUE INDEX" if unique else "INDEX"
    ddl = DDL(  # type: ignore[no-untyped-call]
        f"CREATE {kind} {name} ON {model.__tablename__} ({', '.join(columns)}) WHERE {condition}"
    )
    event.listen(model.__table__, "after_create", ddl)


class ApiKey(Base):
    """An API key: the HMAC of its token, its role and its limits. The token is stored nowhere."""

    __tablename__ = "api_keys"
    __table_args__ = (
        CheckConstraint("role in ('admin', 'owner', 'analyst', 'viewer')", name="role"),
        CheckConstraint("weight between 1 and 100", name="weight"),
        CheckConstraint("max_priority between -10 and 10", name="max_priority"),
        Index("ix_api_keys_person", "issuer", "subject", unique=True),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    role: Mapped[str]
    secret_hmac: Mapped[str]
    created_at: Mapped[datetime]
    created_by: Mapped[str | None]
    revoked_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    rotated_at: Mapped[datetime | None]
    # The token before the last rotation, and the time until which it works.
    previous_hmac: Mapped[str | None]
    previous_until: Mapped[datetime | None]
    # This key's own limits; null: the settings'. Without a value here running jobs have no limit.
    requests_per_minute: Mapped[int | None]
    max_queued_jobs: Mapped[int | None]
    max_running_jobs: Mapped[int | None]
    # The number of dashboard sign-outs: sessions from before the last one have ended.
    sign_outs: Mapped[int] = mapped_column(default=0, server_default="0")
    max_job_s: Mapped[int | None]  # how long a job of this key may run
    max_stored_bytes: Mapped[int | None]
    weight: Mapped[int] = mapped_column(default=1, server_default="1")  # in the order of claims
    max_priority: Mapped[int] = mapped_column(default=10, server_default="10")  # of its jobs, among themselves
    # A person's key: who they are at the identity provider. Null: a machine's, which has a token.
    issuer: Mapped[str | None] = mapped_column(String(255))
    subject: Mapped[str | None] = mapped_column(String(255))


class Dataset(Base):
    """A registered data set: its declaration, its public shape, and where its parts lie."""

    __tablename__ = "datasets"
    __table_args__ = (
        Index("ix_datasets_label", "parent_id", "label", unique=True),
        Index("ix_datasets_pays_for", "pays_for", unique=True),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)  # a block's: its data set's, "/" and its label
    owner_key: Mapped[str] = mapped_column(ForeignKey("api_keys.id"))
    sensitivity: Mapped[str]
    spec: Mapped[dict[str, Any]]
    shape: Mapped[Shape] = mapped_column(Documents(Shape))
    parts: Mapped[PartFiles] = mapped_column(Documents(PartFiles))
    content_sha256: Mapped[str]  # a function of private data without noise: for the owner alone
    content_hmac: Mapped[str]
    created_at: Mapped[datetime]
    content_deleted_at: Mapped[datetime | None]  # when its files were deleted; its hashes stay
    retired_at: Mapped[datetime | None]  # when its owner took it back, before anything was held on it
    # The version of `spec` and `shape`. Earlier versions are in `declarations`.
    declaration: Mapped[int] = mapped_column(default=1, server_default="1")
    # A block appended to this data set, under this label; null for a data set, which is its own first block.
    parent_id: Mapped[str | None]
    label: Mapped[str | None]
    units_sha256: Mapped[str | None]  # of the file of its units' keyed digests; null: registered before blocks
    units_key: Mapped[str | None]  # names the data key of these digests
    persons_version: Mapped[int] = mapped_column(default=0, server_default="0")  # how often its persons were named
    grants_version: Mapped[int] = mapped_column(default=0, server_default="0")  # how often a grant was given or ended
    # This row is the ledger to which that row's moved (decision 53), and has no records of its own.
    pays_for: Mapped[str | None]


class DatasetReading(Base):
    """A registration whose file is read in the background, under a lease. It becomes a data set with the same id."""

    __tablename__ = "dataset_readings"
    __table_args__ = (
        CheckConstraint("state in ('reading', 'ready', 'rejected')", name="state"),
        Index("ix_dataset_readings_due", "state", "created_at"),
        Index("ix_dataset_readings_owner", "owner_key", "created_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)  # the data set's
    name: Mapped[str]
    holds_name: Mapped[str | None] = mapped_column(unique=True)  # the name while it is read; null at the end
    owner_key: Mapped[str] = mapped_column(ForeignKey("api_keys.id"))
    state: Mapped[str]
    spec: Mapped[dict[str, Any]]  # resolved
    sources: Mapped[dict[str, Any]]  # {"file", "holdout_file", "edges_file"}: app.datasets.sources.Source
    bytes: Mapped[int]
    bytes_read: Mapped[int] = mapped_column(default=0)
    # The end: {"read", "warnings"} (functions of private data, for the owner alone), or {"problem"}. Kept for a day.
    outcome: Mapped[ReadingOutcome | None] = mapped_column(Documents(ReadingOutcome))
    attempt: Mapped[int] = mapped_column(default=0)
    deaths: Mapped[int] = mapped_column(default=0)  # attempts that ended without a word
    lease_until: Mapped[float | None]  # like a job's; null: nobody reads it
    lease_clock: Mapped[str | None]
    created_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    # Of a block: the data set that it is appended to, and its label.
    parent_id: Mapped[str | None] = mapped_column(String(200))
    label: Mapped[str | None] = mapped_column(String(200))
    # Attempts that gave their reader to another owner's file, and when the last of them did.
    slices: Mapped[int] = mapped_column(default=0, server_default="0")
    turn_ended_at: Mapped[datetime | None]
    volume: Mapped[str | None] = mapped_column(String(200))  # where its files wait (app.datasets.volume)


class Declaration(Base):
    """A replaced version of a data set's declaration. Jobs that were priced with it are run with it."""

    __tablename__ = "declarations"

    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True)
    spec: Mapped[dict[str, Any]]
    shape: Mapped[Shape] = mapped_column(Documents(Shape))
    replaced_at: Mapped[datetime]


class Grant(Base):
    """Lets a key see a data set (`view`), train on it too (`train`), or charge it too for another system (`charge`).

    Its owner and admins need none.
    """

    __tablename__ = "grants"
    __table_args__ = (
        CheckConstraint("access in ('view', 'train', 'charge')", name="access"),
        Index("ix_grants_key", "key_id", "dataset_id"),
    )

    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"), primary_key=True)
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"), primary_key=True)
    access: Mapped[str]
    max_epsilon_per_job: Mapped[float | None]  # the owner's policy for this key; null: the cap alone
    created_at: Mapped[datetime]
    created_by: Mapped[str]
    # core.contracts.governance.Terms
    ends_at: Mapped[datetime | None]
    purpose: Mapped[str | None]
    permit: Mapped[str | None]
    persons: Mapped[tuple[str, ...] | None] = mapped_column(Documents(tuple[str, ...]))


class DatasetContent(Base):
    """Keyed hashes of registered content: of the bytes (`sha256`), and of the records in any order (`multiset`); before
    decision 39 `file` and `records`."""

    __tablename__ = "dataset_contents"
    __table_args__ = (
        UniqueConstraint("dataset_id", "part", "kind"),
        Index("ix_dataset_contents_hmac", "hmac"),
        Index("ix_dataset_contents_owner", "owner_key", "hmac"),
        Index("ix_dataset_contents_compared", "compared"),
    )

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"))
    part: Mapped[str]  # "data" | "holdout"
    kind: Mapped[str]  # "sha256" | "multiset"; earlier ones "file" | "records"
    hmac: Mapped[str]
    # The data set's owner: a registration searches its owner's contents alone, in the same time whatever others have.
    owner_key: Mapped[str | None]
    # the relay has compared it with other owners' contents
    compared: Mapped[bool] = mapped_column(default=False, server_default=false())
    key_id: Mapped[str | None]  # the data key applied last (app.datasets.hashes); null: the first one


class Account(Base):
    """The balances of one data set and the head of its chain: ONE row, moved only by conditional updates."""

    __tablename__ = "accounts"
    __table_args__ = (
        CheckConstraint("train_spent >= 0 and train_held >= 0", name="train_not_negative"),
        CheckConstraint("holdout_spent >= 0 and holdout_held >= 0", name="holdout_not_negative"),
        CheckConstraint("train_spent + train_held <= train_budget", name="train_within_budget"),
        CheckConstraint("holdout_spent + holdout_held <= holdout_budget", name="holdout_within_budget"),
    )

    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"), primary_key=True)
    filter: Mapped[str]  # "gdp" | "rdp"
    order: Mapped[float | None] = mapped_column("filter_order")
    cap_epsilon: Mapped[float]
    # the largest ever granted: the guarantee if a raise could depend on released results
    largest_cap_epsilon: Mapped[float]
    cap_delta: Mapped[float]
    train_budget: Mapped[int]
    train_spent: Mapped[int] = mapped_column(default=0)
    train_held: Mapped[int] = mapped_column(default=0)
    holdout_budget: Mapped[int]  # 0 without a private hold-out
    holdout_spent: Mapped[int] = mapped_column(default=0)
    holdout_held: Mapped[int] = mapped_column(default=0)
    entries: Mapped[int] = mapped_column(default=0)
    head: Mapped[str]
    # The data set whose ledger replaces this one, or "retired": nothing more is admitted here.
    joined_into: Mapped[str | None]
    whole_delta: Mapped[float | None]  # of the data set's cap, where two filters have a part of δ; null: `cap_delta`


class LedgerEntry(Base):
    """One line of the ledger. Never updated, never deleted: triggers refuse both."""

    __tablename__ = "ledger_entries"
    __table_args__ = (
        UniqueConstraint("dataset_id", "once"),
        CheckConstraint("kind in ('open', 'hold', 'post', 'void', 'cap')", name="kind"),
        CheckConstraint("train >= 0 and holdout >= 0", name="amounts_not_negative"),
        CheckConstraint("train_released >= 0 and holdout_released >= 0", name="releases_not_negative"),
        Index("ix_ledger_entries_job", "job_id"),
        Index("ix_ledger_entries_of_job", "dataset_id", "job_id", "seq"),
    )

    dataset_id: Mapped[str] = mapped_column(ForeignKey("accounts.dataset_id"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)  # 1, 2, … without gaps
    kind: Mapped[str]
    job_id: Mapped[str | None]
    # open, cap: the budgets; hold: the held amount; post: the spent part of the hold; void: 0.
    train: Mapped[int]
    holdout: Mapped[int]
    # post, void: the amount that returns from the hold.
    train_released: Mapped[int] = mapped_column(default=0)
    holdout_released: Mapped[int] = mapped_column(default=0)
    once: Mapped[str | None]  # "hold:JOB" or "settle:JOB": the database refuses a second one
    actor: Mapped[str]
    memo: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
    prev_hash: Mapped[str]
    hash: Mapped[str]


class Job(Base):
    """A training job, a trial or a study: its specification, its mechanism, its state and its lease."""

    __tablename__ = "jobs"
    __table_args__ = (
        CheckConstraint(
            "status in ('queued','running','pausing','paused','cancelling','cancelled','succeeded','failed')",
            name="status",
        ),
        UniqueConstraint("key_id", "idempotency_key"),
        Index("ix_jobs_status_notified", "status", "notified_at"),
        # With the columns of a search, which then reads no row: a job's documents are long.
        Index("ix_jobs_dataset_created", "dataset_id", "created_at", "id", "parent_id", "name"),
        Index("ix_jobs_created", "created_at", "id", "parent_id", "dataset_id", "name"),
        # The few that have not ended, and those that ended lately. With what usage sums by, which then reads no row.
        Index("ix_jobs_finished", "finished_at", "dataset_id", "status", "parent_id", "key_id", "id"),
        Index("ix_jobs_key_status", "key_id", "status", "created_at", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"))
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"))
    idempotency_key: Mapped[str]
    request_sha256: Mapped[str]
    name: Mapped[str]
    status: Mapped[str]
    spec: Mapped[dict[str, Any]]
    mechanism: Mapped[dict[str, Any] | None]  # null on public data
    quote: Mapped[dict[str, Any]]
    # One unless a replay was not identical.
    segments: Mapped[tuple[SaltedSteps, ...]] = mapped_column(Documents(tuple[SaltedSteps, ...]))
    steps: Mapped[int]
    attempt: Mapped[int] = mapped_column(default=0)  # the fencing token
    worker: Mapped[str | None]
    cancel_requested_at: Mapped[datetime | None]
    steps_started: Mapped[int] = mapped_column(default=0)  # over all attempts; replays are not counted again
    step: Mapped[int] = mapped_column(default=0)  # progress
    notified_at: Mapped[datetime | None]
    failure: Mapped[Failure | None] = mapped_column(Documents(Failure))
    warnings: Mapped[list[Any]] = mapped_column(JSON, default=list)
    events: Mapped[int] = mapped_column(default=0)  # the last event's sequence number
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    # For a study, a job whose work other jobs do: its plan and its decisions. No worker claims it.
    study: Mapped[dict[str, Any] | None]
    # For a trial: the study, its number there, and its drawn point.
    parent_id: Mapped[str | None]
    trial_number: Mapped[int | None]
    trial: Mapped[TrialPoint | None] = mapped_column(Documents(TrialPoint))
    # The end of the attempt's lease, or since when a queued job that came back may be claimed: a moment of app.db.clock
    # and that clock's name.
    lease_until: Mapped[float | None]
    lease_clock: Mapped[str | None]
    ran_s: Mapped[float] = mapped_column(default=0.0, server_default="0")  # in all attempts, without waiting
    declaration: Mapped[int] = mapped_column(default=1, server_default="1")  # the version that the price depends on
    # Fixed when the first attempt becomes ready, before its first private pass: "cpu" or "cuda"; later attempts repeat
    # it bit for bit only on the same kind of device.
    device: Mapped[str | None]
    # The rows of a pass that fit in that device's memory, where they are fewer than the quote's.
    fitted_rows: Mapped[int | None]
    # Written by people (app.jobs.labels); tags stand between commas.
    tags: Mapped[str] = mapped_column(String(500), default="", server_default="")
    notes: Mapped[str] = mapped_column(Text, default="", server_default="")
    traceparent: Mapped[str | None] = mapped_column(String(55))  # of its request, if that was traced (app.tracing)
    threads: Mapped[int | None]  # of each rank, as the first ready attempt had them; fixed with `device`
    release: Mapped[str | None]  # of the last ready attempt (worker.attempt.code_release)
    card: Mapped[str | None]  # of that attempt, if it had a GPU: the worker's GPU, driver and cuDNN
    # A trigger writes both from `spec` and `device`; jobs that ended before release 0060 have the defaults. The lane is
    # the kind of device and the fewest ranks: "cuda:2", and "cuda:1" once an attempt was ready.
    lane: Mapped[str] = mapped_column(server_default="cpu:1")
    priority: Mapped[int] = mapped_column(server_default="0")


class ClaimTurn(Base):
    """The last claim of a key's job on an owner's data. The next claim's turn depends on it
    (app.lifecycle.queue.turns)."""

    __tablename__ = "claim_turns"
    __table_args__ = (Index("ix_claim_turns_turn", "turn"), Index("ix_claim_turns_owner_start", "owner_start"))

    owner_key: Mapped[str] = mapped_column(ForeignKey("api_keys.id"), primary_key=True)
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"), primary_key=True)
    turn: Mapped[int]  # its number among all claims
    # When it started in virtual time, among the owners and among the owner's keys.
    owner_start: Mapped[int] = mapped_column(default=0, server_default="0")
    key_start: Mapped[int] = mapped_column(default=0, server_default="0")


class Attempt(Base):
    """One attempt of a job on a worker."""

    __tablename__ = "attempts"
    __table_args__ = (Index("ix_attempts_status", "status"),)

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    worker: Mapped[str]
    status: Mapped[str]  # running | succeeded | failed | cancelled | paused | lost | lapsed | crashed
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    device: Mapped[str | None]  # "cpu" or "cuda", once it is ready
    ranks: Mapped[int | None]  # how many processes it had room for; null: of an earlier release


class Block(Base):
    """The write-ahead record: steps [first_step, last_step] were STARTED under `salt`; `digest` is the state after
    them.

    `digest` stays null until the block's end is recorded. The row 0…0 is the state before the first step.
    """

    __tablename__ = "blocks"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    attempt: Mapped[int]
    salt: Mapped[str]
    first_step: Mapped[int]
    last_step: Mapped[int]
    digest: Mapped[str | None]


class JobEvent(Base):
    """One event of a job's log, numbered without gaps."""

    __tablename__ = "job_events"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    type: Mapped[str]
    data: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]


class Metric(Base):
    """A released number. It is declared by the mechanism, or comes from public data."""

    __tablename__ = "metrics"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    value: Mapped[float]
    std: Mapped[float]  # of the noise on `value`
    on: Mapped[str] = mapped_column("measured_on")
    released_by: Mapped[str]  # noisy_count | noisy_sum | public_data | post_processing
    histogram: Mapped[ReleasedHistogram | None] = mapped_column(Documents(ReleasedHistogram))  # of `auc`


class Artifact(Base):
    """A file that a job released."""

    __tablename__ = "artifacts"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    sha256: Mapped[str]
    size_bytes: Mapped[int]
    path: Mapped[str] = mapped_column(Text)  # under the storage root
    damaged_at: Mapped[datetime | None]  # when its file was found to differ from the published one


class Certificate(Base):
    """A job's signed certificate."""

    __tablename__ = "certificates"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    body: Mapped[dict[str, Any]]
    signature: Mapped[str]
    issued_at: Mapped[datetime]


class SigningKey(Base):
    """A public key for certificates, published by the relay that holds its private half."""

    __tablename__ = "signing_keys"

    id: Mapped[str] = mapped_column(primary_key=True)
    public_key: Mapped[str]
    first_used_at: Mapped[datetime]


class Outbox(Base):
    """Work to do after a transaction, written in it: notify a worker, issue a certificate, delete files."""

    __tablename__ = "outbox"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    topic: Mapped[str]  # "notify" | "certificate" | "discard"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    created_at: Mapped[datetime]


class PriceCache(Base):
    """A price by the fingerprint of its plan. Public numbers only; safe to delete."""

    __tablename__ = "price_cache"

    fingerprint: Mapped[str] = mapped_column(primary_key=True)
    price: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]


_index_of_some(LedgerEntry, "ix_ledger_entries_train", "dataset_id", "train", "seq", condition="kind = 'post'")
_index_of_some(LedgerEntry, "ix_ledger_entries_holdout", "dataset_id", "holdout", "seq", condition="kind = 'post'")
_index_of_some(LedgerEntry, "ix_ledger_entries_caps", "dataset_id", "seq", condition="kind IN ('open', 'cap')")
# A study's trial numbers are unique. Of trials alone: a list of jobs must not search here for those without.
_index_of_some(Job, "ix_jobs_trial", "parent_id", "trial_number", condition="parent_id IS NOT NULL", unique=True)
_index_of_some(Job, "ix_jobs_name", "name", "id", "dataset_id", condition="parent_id IS NULL")
_index_of_some(
    Job, "ix_jobs_top_status", *("status", "created_at", "id", "dataset_id", "name"), condition="parent_id IS NULL"
)
_index_of_some(
    Job, "ix_jobs_top_dataset", *("dataset_id", "status", "created_at", "id", "name"), condition="parent_id IS NULL"
)
_index_of_some(
    Egress, "ix_egresses_open", "asked_at", condition="made_at IS NULL AND problem IS NULL AND deleted_at IS NULL"
)
# Claims: the first job of each key on a data set in a lane, and the next line that waits. Without the lease: PostgreSQL
# would write all of a job's indexes at each renewal.
_index_of_some(
    Job,
    "ix_jobs_queue",
    *("key_id", "dataset_id", "lane", "priority DESC", "created_at", "id"),
    condition="NOT (status <> 'queued') AND study IS NULL",
)
# Who runs how many: read by each claim.
_index_of_some(
    Job,
    "ix_jobs_running",
    *("dataset_id", "key_id"),
    condition="NOT (status NOT IN ('running', 'pausing', 'cancelling')) AND study IS NULL",
)
