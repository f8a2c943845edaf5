"""What the OpenAPI document says of each operation, parameter and problem. The contract tests check it against the
running service."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

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
    "upload_id": "An upload's id: `up_…`.",
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


@dataclass(frozen=True)
class Operation:
    """An operation's responses beyond its route's signature.

    Attributes:
        success: what its success means.
        problems: their codes, beyond those that follow from the route's shape.
        headers: the headers of its success, with their meaning; "?" before a meaning marks one that may be missing.
    """

    success: str
    problems: tuple[str, ...] = ()
    headers: Json = field(default_factory=dict)


LOCATION: Json = {"Location": "The address of the created object."}
OFFSET: Json = {
    "Upload-Offset": "How many bytes have arrived.",
    "Upload-Length": "How many bytes the whole file has.",
}
CAP_TAG: Json = {"ETag": "The version of the cap, not of the balances."}
BUDGET_TAG: Json = {"ETag": "The version of the budget, not of its balances."}
VERSIONED = ("precondition-failed", "precondition-required")
OPERATIONS = {
    "healthz": Operation("The process answers."),
    "readyz": Operation("Database, migrations and broker answer.", ("unavailable",)),
    "show_metrics": Operation("The metrics, as text."),
    "list_keys": Operation("All keys.", ("forbidden",)),
    "create_key": Operation("The key, with its token: shown in this response only.", ("forbidden",)),
    "show_own_key": Operation("The calling key."),
    "rotate_key": Operation("The key, with its new token: shown in this response only.", ("forbidden", "wrong-state")),
    "change_key": Operation("The key, changed.", ("forbidden",)),
    "revoke_key": Operation("The key, revoked.", ("forbidden", "last-admin-key")),
    "list_grants": Operation("All grants on the data set.", ("forbidden", "not-ready")),
    "set_grant": Operation("The grant.", ("forbidden", "not-ready")),
    "remove_grant": Operation("The grant has ended.", ("forbidden", "not-ready")),
    "create_webhook": Operation(
        "The webhook, with its secret: shown in this response only.", ("not-found", "too-many-webhooks"), LOCATION
    ),
    "list_webhooks": Operation("A page of webhooks."),
    "show_webhook": Operation("The webhook."),
    "change_webhook": Operation("The webhook, changed."),
    "delete_webhook": Operation("The webhook and its deliveries are gone."),
    "rotate_webhook_secret": Operation("The webhook, with its new secret: shown in this response only."),
    "test_webhook": Operation("The message that will be sent.", ("wrong-state",)),
    "list_deliveries": Operation("A page of deliveries."),
    "list_audit": Operation("A page of entries.", ("forbidden",)),
    "verify_audit": Operation("The result of verifying the log against its entries.", ("forbidden",)),
    "register_dataset": Operation(
        "The data set.",
        ("forbidden", "duplicate-name", "duplicate-content", "ledger-behind", "quota-exceeded", "limit-exceeded"),
        LOCATION,
    ),
    "check_dataset": Operation("What a registration would answer.", ("forbidden", "quota-exceeded", "limit-exceeded")),
    "append_block": Operation(
        "The block.",
        (
            "forbidden",
            "duplicate-label",
            "duplicate-content",
            "wrong-state",
            "ledger-behind",
            "quota-exceeded",
            "limit-exceeded",
            "not-ready",
        ),
        LOCATION,
    ),
    "list_blocks": Operation("All blocks, the data set's own first.", ("not-ready",)),
    "retire_block": Operation("The block, retired.", ("forbidden", "wrong-state", "ledger-behind", "not-ready")),
    "redeclare_dataset": Operation(
        "The data set with its new declaration.",
        ("forbidden", "content-deleted", "wrong-state", "ledger-behind", "limit-exceeded", "not-ready"),
    ),
    "begin_upload": Operation("The upload, empty.", ("forbidden", "too-many-uploads", "quota-exceeded"), LOCATION),
    "show_upload": Operation("The upload.", ("forbidden",), OFFSET),
    "append_to_upload": Operation(
        "The upload with its new offset.", ("forbidden", "wrong-offset", "upload-busy"), OFFSET
    ),
    "give_up_upload": Operation("The upload is gone.", ("forbidden", "upload-busy")),
    "list_datasets": Operation("A page of data sets."),
    "show_dataset": Operation("The data set."),
    "show_reading": Operation("How far its file is read, or a stream of that."),
    "retire_dataset": Operation("The data set, retired.", ("forbidden", "wrong-state", "ledger-behind")),
    "delete_content": Operation("The data set, whose content is deleted.", ("forbidden", "wrong-state")),
    "delete_artifacts": Operation("The job, whose files are deleted.", ("forbidden", "wrong-state")),
    "show_ledger": Operation("The ledger.", ("not-ready",), CAP_TAG),
    "list_entries": Operation("A page of entries.", ("not-ready",)),
    "show_verification": Operation("The last verification of the ledger against its entries.", ("not-ready",)),
    "verify_ledger": Operation("The last verification; a new one is queued.", ("forbidden", "not-ready")),
    "show_checkpoint": Operation("The newest signed checkpoint.", ("head-pending", "not-found", "not-ready")),
    "show_proof": Operation("The proof.", ("head-pending", "not-found", "not-ready")),
    "change_cap": Operation(
        "The ledger with its new cap.",
        ("forbidden", "cap-too-low", "ledger-behind", "not-ready", "wrong-state", *VERSIONED),
        CAP_TAG,
    ),
    "list_budgets": Operation("The budgets that this key may see.", ("not-ready",)),
    "show_budget": Operation("The budget.", ("forbidden", "not-ready"), BUDGET_TAG),
    "set_budget": Operation(
        "The budget.", ("forbidden", "not-ready", "wrong-state", "budget-too-low", *VERSIONED), BUDGET_TAG
    ),
    "close_budget": Operation("The budget is closed.", ("forbidden", "not-ready", "wrong-state", *VERSIONED)),
    "request_budget": Operation(
        "The request.", ("not-found", "forbidden", "not-ready", "wrong-state"), {**LOCATION, **BUDGET_TAG}
    ),
    "list_budget_requests": Operation("A page of requests.", ("not-found", "not-ready")),
    "show_budget_request": Operation("The request.", (), BUDGET_TAG),
    "approve_budget_request": Operation("The request, approved.", ("forbidden", "wrong-state", *VERSIONED), BUDGET_TAG),
    "deny_budget_request": Operation("The request, denied.", ("forbidden", "wrong-state"), BUDGET_TAG),
    "join_ledger": Operation(
        "The ledger that stays open.", ("forbidden", "wrong-state", "cap-too-low", "ledger-behind", "not-ready")
    ),
    "reserve_charge": Operation(
        "The charge, held; or the charge that this Idempotency-Key made before.",
        (
            *("not-found", "forbidden", "budget-exceeded", "idempotency-key-reused", "wrong-state"),
            *("ledger-behind", "head-pending"),
        ),
        {**LOCATION, "Idempotent-Replayed": "?`true` if an earlier request made the charge."},
    ),
    "list_charges": Operation("A page of charges.", ("not-found",)),
    "show_charge": Operation("The charge."),
    "post_charge": Operation("The charge, posted.", ("forbidden", "wrong-state")),
    "void_charge": Operation("The charge, voided.", ("forbidden", "wrong-state")),
    "list_signing_keys": Operation("All keys that sign or signed certificates."),
    "quote_job": Operation("The price.", ("not-found", "forbidden", "content-deleted", "limit-exceeded", "not-ready")),
    "forecast_ledger": Operation(
        "How many jobs of this spec fit.", ("forbidden", "content-deleted", "limit-exceeded", "not-ready")
    ),
    "sweep_quotes": Operation(
        "The final trial of every combination.", ("not-found", "forbidden", "limit-exceeded", "not-ready")
    ),
    "submit_job": Operation(
        "The admitted job; or the job that this Idempotency-Key made before.",
        (
            "not-found",
            "forbidden",
            "budget-exceeded",
            "policy-exceeded",
            "idempotency-key-reused",
            "head-pending",
            "too-many-jobs",
            "ledger-behind",
            "content-deleted",
            "limit-exceeded",
            "not-ready",
        ),
        {**LOCATION, "Idempotent-Replayed": "?`true` if an earlier request made the job."},
    ),
    "list_jobs": Operation("A page of jobs.", ("not-found",)),
    "show_job": Operation("The job."),
    "label_job": Operation("The job, with its tags and notes.", ("forbidden",)),
    "cancel_job": Operation("The job, cancelled or about to be.", ("forbidden", "wrong-state")),
    "pause_job": Operation("The job, paused or about to be.", ("forbidden", "wrong-state")),
    "resume_job": Operation("The job, queued or running.", ("forbidden", "wrong-state")),
    "list_events": Operation("A page of events, or a stream of them."),
    "list_metrics": Operation("Every released number."),
    "list_trials": Operation("The study's trials so far."),
    "download_artifact": Operation(
        "The file.",
        ("forbidden", "artifact-damaged", "storage-full"),
        headers={
            "Digest-SHA256": "SHA-256 of the file, in hex.",
            "ETag": "SHA-256 of the file, in hex.",
            "Content-Disposition": "The file's name.",
        },
    ),
    "predict": Operation(
        "The prediction, queued.", ("not-found", "forbidden", "wrong-state", "too-many-predictions"), LOCATION
    ),
    "show_prediction": Operation("The prediction.", ("forbidden",)),
    "show_certificate": Operation("The certificate.", ("wrong-state", "certificate-pending", "storage-full")),
    "list_workers": Operation("Workers seen in the last day."),
    "list_models": Operation("Every kind of model, with the JSON schema of its settings."),
    "list_extractors": Operation("Every frozen feature extractor of this service."),
    "list_hpo_strategies": Operation("Every strategy of private study, with the JSON schema of its settings."),
    "list_presets": Operation("Every recipe."),
    "list_optimizers": Operation("Every optimizer, with the JSON schema of its settings."),
}

PER_ACCOUNT = {
    "type": "object",
    "properties": {"train": {"type": "integer"}, "holdout": {"type": "integer"}},
    "required": ["train", "holdout"],
}
FINDING = {
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
