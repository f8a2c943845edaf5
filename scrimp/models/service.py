"""Answers about keys, webhooks, workers, optimizers and signed documents. Written by scripts/write_specs.py."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from scrimp.behaviour import Resource


class AuditEntry(Resource):
    """An entry. The hash covers every member but `hash`; `seq` and the hashes are null until it is sealed."""

    version: int
    seq: int | None = None
    id: int
    at: str
    action: str
    actor: str | None = None
    target: str | None = None
    address: str | None = None
    user_agent: str | None = None
    outcome: str
    details: dict[str, Any]
    prev_hash: str | None = None
    hash: str | None = None


class AuditVerification(Resource):
    """The result of recomputing the audit log's hash chain."""

    valid: bool
    entries: int
    head: str
    unsealed: int
    first_bad_entry: int | None = None
    problem: str | None = None


class Checkpoint(Resource):
    """The newest signed checkpoint of `dataset`: its first `size` entries have `root` (base64) as their tree's root.

    `checkpoint` is the whole signed note, with the cosignatures of witnesses. `terms`: a signed DSSE envelope with the
    data set's name, unit, blocks, governance and grants (key ids, purposes, permits, ends), as statements have it; null
    until the relay has signed it.
    """

    dataset: str
    size: int
    root: str
    checkpoint: str
    terms: dict[str, Any] | None = None


class Delivery(Resource):
    """A message and the result of its tries."""

    id: str
    type: str
    job: str | None = None
    status: str
    attempts: int
    status_code: int | None = None
    error: str | None = None
    created_at: str
    next_at: str | None = None
    ended_at: str | None = None


class Graph(Resource):
    """A graph of the caller's. Jobs name it by its `sha256`: `model: {"kind": "graph", "upload": …}`.

    `inputs`, `outputs`: the numbers of a record, and of its answer. `trained`: of its `parameters`. `used_at`: when a
    job with it was last submitted; before the first, `created_at`.
    """

    sha256: str
    bytes: int
    parameters: int
    trained: int
    inputs: int
    outputs: int
    created_at: str
    used_at: str


class Key(Resource):
    """A key and its limits, without any token."""

    id: str
    name: str
    role: str
    created_at: str
    created_by: str | None = None
    expires_at: str | None = None
    rotated_at: str | None = None
    revoked_at: str | None = None
    subject: str | None = None
    limits: dict[str, Any]


class NewKey(Resource):
    """A key with its token, which is shown only once."""

    key: Key
    token: str


class Webhook(Resource):
    """A webhook, without its secret."""

    id: str
    key: str
    url: str
    events: list[str] = []
    dataset: str | None = None
    description: str
    enabled: bool
    disabled_because: str | None = None
    failing_since: str | None = None
    created_at: str


class NewSecret(Resource):
    """A webhook with its new secret, which is shown only once."""

    webhook: Webhook
    secret: str


class Optimizer(Resource):
    """An optimizer, with its rule, its state, and the JSON schema of its settings."""

    summary: str
    update: str
    state: dict[str, str]
    cost: str = "one noised gradient a step"
    when_to_prefer: str
    source: str
    kind: str
    json_schema: dict[str, Any] = Field(alias="schema")


class Proof(Resource):
    """A proof about the tree of the first `size` entries. `path`: hashes in base64, as RFC 6962 orders them.

    With `entry`: the entry with this `hash` is in the tree. With `since`: the tree begins with the entries of the tree
    of that size.
    """

    dataset: str
    size: int
    entry: int | None = None
    hash: str | None = None
    since: int | None = None
    path: list[str] = []


class SignedCertificate(Resource):
    """The signed certificate: `signature` is Ed25519 over the canonical JSON of `certificate`.

    `envelope`: the same for other tools, an in-toto statement in a DSSE envelope; null if an earlier version issued it.
    """

    certificate: dict[str, Any]
    signature: str
    public_key: str
    algorithm: str
    envelope: dict[str, Any] | None = None


class SignatureDate(Resource):
    """The proof that a signature is in a log: `entry` is its place, from 1, in the tree of `checkpoint`.

    `checkpoint` is a note with its witnesses' cosignatures; `digest` is SHA-256 of the signature and of its payload.
    """

    digest: str
    checkpoint: str
    entry: int
    path: list[str] = []


class SigningHistory(Resource):
    """`history`: a DSSE envelope that the service's offline root signed; null: it has none."""

    history: Any


class SigningKey(Resource):
    """`public_key` is base64 of the raw key, as in a certificate; `id` the first 16 hex digits of the key's SHA-256."""

    id: str
    algorithm: str
    public_key: str
    first_used_at: str | None = None


class Safeguard(Resource):
    """One protection."""

    subject: str
    in_force: bool
    says: str
    settings: list[str] = []


class UsageRow(Resource):
    """What the jobs of a team, or of a key that has none, took on a data set in a month.

    `team` is the budget that the key shares now. Where `team` and `key_id` are null, all keys that the caller may not
    tell apart. `processor_s`: seconds of attempts, times their processes and the threads of each. `gpu_s`: the same,
    times GPUs. `bytes`: of the jobs' files that are kept. `epsilon` is what the filter reads of this row's posts alone,
    at `delta`, and `share` their part of the budget, both of the block and account that it used most: shares of one
    account add up, ε does not. They are null on public data.
    """

    month: str
    dataset: str
    dataset_name: str
    team: str | None = None
    key_id: str | None = None
    key_name: str | None = None
    jobs: int
    processor_s: int
    gpu_s: int
    bytes: int
    epsilon: float | None = None
    delta: float | None = None
    share: float | None = None


class Worker(Resource):
    """A worker process and what it runs."""

    name: str
    host: str
    pid: int
    started_at: str
    seen_at: str
    alive: bool
    sandbox: dict[str, Any] | None = None
    devices: list[dict[str, Any]] | None = None
    gpus: int
    skew_s: float | None = None
    runs: str
    job: str | None = None
