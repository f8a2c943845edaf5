"""What a route declares of itself (`Operation`, `Page`), and what the OpenAPI document says of parameters and problems.

The document, docs/leaves.md's table, the tests of access, of the audit log and of the command line read a route's
declaration; the contract tests check it against the running service.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from core.leaves import KEY, OWN_FAULTS, Leaves

Json = dict[str, Any]

DESCRIPTION = """\
A data owner registers a data set with a cap (ε, δ). Analysts POST training jobs: each is priced before it runs,
admitted only if its whole cost fits under the cap, and comes back with a signed certificate.

* **Keys**: `Authorization: Bearer scrimp_key_…` on every request.
* **Errors** are `application/problem+json` (RFC 9457); `type` is stable. In `errors`, a `pointer` leads into the body
  (`""` is the whole of it), or begins with `/query/`, `/headers/` or `/path/` and the name of a parameter.
* **Lists** are `{"items": […], "next": cursor or null}`: send the cursor back as `after`.
* **HEAD** is answered wherever GET is, but for event streams.
"""

TAGS = {
    "jobs": "Quotes and training jobs: their cost, their progress and their results.",
    "datasets": "Data sets: registered by owners, each with a cap on what all jobs together may spend.",
    "ledger": "Every charge, with its job and actor; append-only and hash-chained.",
    "budgets": "What keys and teams may use of a data set's cap, and requests for more.",
    "approvals": "What needs two persons on a data set: a larger cap, an egress, other persons.",
    "charges": "Budget for mechanisms that other systems run on a data set's records.",
    "keys": "API keys, made and revoked by admins.",
    "grants": "Which keys may see a data set, train on it, or charge it.",
    "webhooks": "Signed messages to an address of the key's choice, on events of its jobs.",
    "audit": "Who did what, when and from where; hash-chained.",
    "workers": "The processes that train.",
    "catalogue": "The kinds of model, extractor, optimizer and study that a job can name.",
    "system": "Health and metrics of the service.",
}

PARAMETERS = {
    "job_id": "A job's id: `job_…`.",
    "charge_id": "A charge's id: `chg_…`.",
    "request_id": "A request's id: `breq_…`.",
    "approval_id": "An approval's id: `apr_…`.",
    "upload_id": "An upload's id: `up_…`.",
    "sha256": "A graph's SHA-256, in hex.",
    "dataset_id": "A data set's id: `ds_…`.",
    "label": "A block's label; `first` is the data set's own.",
    "key_id": "A key's id: `key_…`.",
    "webhook_id": "A webhook's id: `wh_…`.",
    "prediction_id": "A prediction's id: `pred_…`.",
    "key": "Only actions of this key: its id.",
    "action": "Only this action, such as `job.cancelled`.",
    "target": "Only actions on this target: an id.",
    "name": "The artifact's name, as the job lists it.",
    "after": "The cursor from the page before: its `next`.",
    "limit": "The most items on a page.",
    "dataset": "Only the jobs on this data set.",
    "status": "Only the jobs in this status.",
    "last-event-id": "The last sequence number received, as an event source sends it.",
}


# Who may call: anyone; every key; keys of these roles (submitters: all but viewers); or keys with this access to the
# data set, or to the job's ("use": any but `view`; "own" is an admin's, too, and "its owner" nobody else's).
Audience = Literal[
    "anyone",
    "every key",
    "submitters",
    "owners",
    "admins",
    "admins, or the key itself",
    "view",
    "train",
    "charge",
    "own",
    "its owner",
    "use",
]
NOTHING = ""  # it changes nothing that is anybody's
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Operation:
    """What a route says of itself beyond its signature: a decorator below its path.

    Attributes:
        success: what its success means.
        audience: who may call it. tests/access call it as everybody.
        leaves: why a caller may see its answer, where no member of it says so itself.
        command: the command that calls it.
        no_command: why there is none.
        audit: the action that it leaves in the audit log. Every route but GETs has one, or NOTHING.
        problems: their codes, beyond those that follow from the route's shape.
        headers: the headers of its success, with their meaning; "?" before a meaning marks one that may be missing.
        requests: examples of its request's body, by what they show.
        answer: an example of its success.
        name: its operation id, where that is not the function's name.
    """

    success: str
    audience: Audience
    leaves: Leaves
    command: str | None = None
    no_command: str | None = None
    audit: str | None = None
    problems: tuple[str, ...] = ()
    headers: dict[str, str] = field(default_factory=dict)
    requests: Json = field(default_factory=dict)
    answer: Any = None
    name: str = ""

    def __post_init__(self) -> None:
        if (self.command is None) == (self.no_command is None):
            raise ValueError(f"{self.success!r} has a command, or says why it has none")

    def __call__(self, function: F) -> F:
        name = self.name or function.__name__
        if OPERATIONS.setdefault(name, self) is not self:
            raise ValueError(f"two routes are called {name!r}")
        DECLARED[function] = self
        return function


OPERATIONS: dict[str, Operation] = {}  # by operation, in the order of their import


@dataclass(frozen=True)
class Page:
    """What a page, or another route outside the API, says of itself: a decorator below its path.

    It shows what routes of the API show, from the same functions (docs/leaves.md).

    Attributes:
        audience, audit: see `Operation`.
    """

    audience: Audience
    audit: str | None = None

    def __call__(self, function: F) -> F:
        DECLARED[function] = self
        return function


DECLARED: dict[Callable[..., Any], Operation | Page] = {}  # by the function of a route


LOCATION = {"Location": "The address of the created object."}
OFFSET = {
    "Upload-Offset": "How many bytes have arrived.",
    "Upload-Length": "How many bytes the whole file has.",
}
CAP_TAG = {"ETag": "The version of the cap, not of the balances."}
BUDGET_TAG = {"ETag": "The version of the budget, not of its balances."}
VERSIONED = ("precondition-failed", "precondition-required")

PER_ACCOUNT = {
    "type": "object",
    "properties": {"train": {"type": "integer"}, "holdout": {"type": "integer"}},
    "required": ["train", "holdout"],
}
FINDING = {
    KEY: OWN_FAULTS.name,
    "type": "object",
    "description": "One fault and its place.",
    "properties": {
        "pointer": {"type": "string", "description": "Into the body, or `/query/…`, `/headers/…`, `/path/…`."},
        "detail": {"type": "string", "description": "What is wrong, or what to change."},
        "smallest_total_epsilon": {"type": "number", "description": "For a study whose total is too small."},
    },
    "required": ["pointer", "detail"],
}
# The problems' members beyond type, title, status and detail. A "?" marks members that may be missing.
MEMBERS: dict[str, Json] = {
    "invalid-request": {"errors": {"type": "array", "items": {"$ref": "#/components/schemas/Finding"}}},
    "budget-exceeded": {
        "requested": PER_ACCOUNT,
        "remaining": PER_ACCOUNT,
        "account": {"enum": ["train", "holdout"], "description": "The account that limits the job."},
        "unit": {"type": "string"},
        "largest_epsilon_that_fits": {"type": ["number", "null"], "description": "Of a job; null for a charge."},
        "budget": {"type": ["string", "null"], "description": "The key's budget, if that binds; null: the cap."},
        "block?": {"type": "string", "description": "The block that cannot pay, of a data set that has grown."},
        "largest_noise_mu_that_fits?": {
            "type": "number",
            "description": "Of the score, where its hold-out is what cannot pay.",
        },
    },
    "budget-too-low": {"smallest_epsilon": {"type": "number"}},
    "cap-too-low": {"smallest_epsilon": {"type": "number"}},
    "duplicate-content": {
        "dataset": {"type": "string", "description": "The data set of this owner that already has the content."},
        "shared?": {
            "type": "object",
            "additionalProperties": {"type": "integer"},
            "description": "How many units a block's file shares with each other block, by its label.",
        },
    },
    "duplicate-label": {"label": {"type": "string"}},
    "policy-exceeded": {
        "requested": {"$ref": "#/components/schemas/Epsilon"},
        "allowed": {"$ref": "#/components/schemas/Epsilon"},
    },
    "not-ready": {"dataset": {"type": "string"}, "state": {"enum": ["reading", "rejected"]}},
    "quota-exceeded": {"limit_bytes": {"type": "integer"}, "stored_bytes": {"type": "integer"}},
    "too-many-egresses": {"limit?": {"type": "integer"}, "limit_bytes?": {"type": "integer"}},
    "too-many-jobs": {"limit": {"type": "integer"}, "queued": {"type": "integer"}},
    "too-many-predictions": {"limit": {"type": "integer"}},
    "too-many-uploads": {"limit?": {"type": "integer"}, "limit_bytes?": {"type": "integer"}},
    "wrong-offset": {"offset": {"type": "integer", "description": "Where the upload ends: continue there."}},
    "too-many-requests": {"retry_after_s": {"type": "integer"}},
    "duplicate-name": {"name": {"type": "string"}},
    "idempotency-key-reused": {"job": {"type": "string"}},
    "too-large": {"limit_bytes?": {"type": "integer"}},
    "wrong-state": {"job_status?": {"type": "string"}, "study?": {"type": "string"}},
}
