"""The whole error tree. Every error carries a stable code, which is also its problem type.

ServiceError
├── RequestError          the caller can fix it (4xx)
│   ├── UnknownHost         400  /problems/unknown-host
│   ├── InvalidRequest      422  /problems/invalid-request       errors: [{pointer, detail}]
│   ├── NotFound            404  /problems/not-found
│   ├── Unauthenticated     401  /problems/unauthenticated
│   ├── Forbidden           403  /problems/forbidden
│   ├── Conflict            409  /problems/<code>                one of ConflictCode
│   ├── PreconditionFailed  412  /problems/precondition-failed
│   ├── PreconditionRequired 428 /problems/precondition-required
│   ├── PolicyError         409  /problems/policy-exceeded       requested, allowed
│   ├── TooManyRequests     429  /problems/too-many-requests     retry_after_s, also as Retry-After
│   ├── TooSlow             408  /problems/too-slow
│   └── TooLarge            413  /problems/too-large
├── BudgetError           409  /problems/budget-exceeded       requested, remaining, largest_epsilon_that_fits, account
├── LimitError            422 or 503: a helper process exceeded its time or memory, or none is free
├── Unavailable           503  /problems/unavailable           the database or the storage does not answer
├── StorageFull           507  /problems/storage-full
├── PrivacyError          500  an invariant of the privacy guarantee does not hold: raised, never retried
└── WorkerError           what ends an attempt
    ├── TransientError      the machine's fault: the job is queued again
    └── PermanentError      the job's own fault: a closed set of codes, no values in the text
"""

from __future__ import annotations

from typing import Any, Literal

# Every way in which a request can conflict with the current state.
ConflictCode = Literal[
    "artifact-damaged",
    "budget-too-low",
    "cap-too-low",
    "certificate-pending",
    "content-deleted",
    "duplicate-content",
    "duplicate-label",
    "duplicate-name",
    "egress-pending",
    "head-pending",
    "idempotency-key-reused",
    "last-admin-key",
    "ledger-behind",
    "not-ready",
    "quota-exceeded",
    "too-many-egresses",
    "too-many-jobs",
    "too-many-predictions",
    "too-many-uploads",
    "too-many-webhooks",
    "upload-busy",
    "wrong-offset",
    "wrong-state",
]

# What each of them means, and what to do: docs/errors.md is written from it.
CONFLICTS: dict[str, tuple[str, str]] = {
    "artifact-damaged": ("A model file on disk differs from the recorded one.", "Restore the file from a backup."),
    "budget-too-low": (
        "The budget's new size is below what it has spent and held.",
        "Choose at least `smallest_epsilon`.",
    ),
    "cap-too-low": ("The new cap is below what is spent and held.", "Choose a higher cap."),
    "certificate-pending": ("The certificate is not signed yet.", "Ask again in a second."),
    "content-deleted": ("The data set's content was deleted.", "Register other data."),
    "duplicate-content": (
        "You have already registered the same content, or a block's file has records, or people that may not come"
        " back, of another block (`shared` counts them).",
        "Use that data set; leave the units out.",
    ),
    "duplicate-label": ("The data set has a block of this label.", "Choose another label."),
    "duplicate-name": ("The name is taken.", "Choose another name."),
    "egress-pending": (
        "The egress is not made yet, or waits for two persons.",
        "Have them agree to its approval; ask again in a moment.",
    ),
    "head-pending": (
        "The newest checkpoint is not signed yet, or a required witness has not seen it, or the hold is not "
        "recorded yet.",
        "Ask again in a second.",
    ),
    "idempotency-key-reused": (
        "The Idempotency-Key was already sent with another document.",
        "Use a new Idempotency-Key for a new job.",
    ),
    "last-admin-key": ("It is the last admin key without an expiry.", "Make another admin key first."),
    "ledger-behind": (
        "The database is older than the recorded head, or than what a witness saw: a backup was restored.",
        "Run `scrimp restore` ([production.md](production.md#backup-and-restore)).",
    ),
    "not-ready": (
        "The data set's file is still being read, or was rejected; `state` says which.",
        "Wait until `state` is `ready`; if it was rejected, look at the data set for the reason.",
    ),
    "quota-exceeded": (
        "Your key has stored as many bytes as it may; `stored_bytes` of `limit_bytes` are taken.",
        "Delete a data set's content, or give an upload up; the key's `max_stored_bytes`, `SCRIMP_MAX_STORED_BYTES`.",
    ),
    "too-many-egresses": (
        "The key has too many egresses that are not made, or the papers of the data set's egresses take too many "
        "bytes.",
        "Wait, or deny the approvals of some; delete the files of old jobs; `SCRIMP_MAX_OPEN_EGRESSES`, "
        "`SCRIMP_MAX_EGRESS_BYTES`.",
    ),
    "too-many-jobs": ("The key has reached its limit of queued jobs.", "Wait until one ends."),
    "too-many-predictions": ("The key has reached its limit of unfinished predictions.", "Wait until one ends."),
    "too-many-uploads": (
        "The key has too many uploads in pieces, or too many bytes in them, that are not registered.",
        "Register one, or give one up (DELETE); `SCRIMP_MAX_OPEN_UPLOADS`, `SCRIMP_MAX_OPEN_UPLOAD_BYTES`.",
    ),
    "too-many-webhooks": ("The key has reached its limit of webhooks.", "Delete one."),
    "upload-busy": (
        "Another request writes to this upload. A lost connection counts for `SCRIMP_BODY_TIME_S`.",
        "Ask for its offset again, and continue there.",
    ),
    "wrong-offset": ("The piece begins where the upload does not end.", "Continue at `offset`."),
    "wrong-state": (
        "The state of the job or data set does not allow this.",
        "Read `detail`; look at the job or data set again.",
    ),
}


class ServiceError(Exception):
    """The service failed unexpectedly.

    Each kind of error has a stable code, a sentence for a person, an HTTP status, and what to do.

    Args:
        message: what happened and what to change; never a value computed from private data.
        members: further members of the problem document.
    """

    code = "internal-error"
    status = 500
    title = "Something went wrong"
    advice = "Tell the operator the time: the log has the cause."

    def __init__(self, message: str, **members: Any) -> None:
        super().__init__(message)
        self.message = message
        self.members = members

    @property
    def document(self) -> dict[str, Any]:
        """The problem document (RFC 9457)."""
        members = {"type": f"/problems/{self.code}", "title": self.title, "status": self.status, "detail": self.message}
        return members | self.members


class RequestError(ServiceError):
    """The request cannot be carried out; the caller can fix it (4xx)."""

    code = "bad-request"
    status = 400
    title = "The request cannot be carried out"
    advice = "Read `detail`."


class InvalidRequest(RequestError):
    """The document is malformed, or it asks for something impossible.

    Args:
        message: the summary.
        errors: `[{"pointer": JSON pointer, "detail": what to change}]`. A pointer leads into the body ("" is the whole
            body), or begins with `/query/`, `/headers/` or `/path/` and the name of a parameter.
    """

    code = "invalid-request"
    status = 422
    title = "The request is not valid"
    advice = "Change the values that the pointers in `errors` name."

    def __init__(self, message: str, errors: list[dict[str, Any]] | None = None, **members: Any) -> None:
        super().__init__(message, errors=errors or [], **members)

    @classmethod
    def at(cls, pointer: str, detail: str, **members: Any) -> InvalidRequest:
        """Builds the error for one fault at one place, the usual case."""
        return cls(detail, errors=[{"pointer": pointer, "detail": detail, **members}])


class UnknownHost(RequestError):
    """The Host header names no host of this service.

    The request may come from another site's script (DNS rebinding)."""

    code = "unknown-host"
    status = 400
    title = "This service does not answer to that host name"
    advice = "Add the name to `SCRIMP_ALLOWED_HOSTS`."


class NotFound(RequestError):
    """The object does not exist, or the key may not see it: both look alike."""

    code = "not-found"
    status = 404
    title = "Not found"
    advice = "Check the id, or ask the data set's owner for a grant."


class Unauthenticated(RequestError):
    """The key is missing, wrong, expired or revoked."""

    code = "unauthenticated"
    status = 401
    title = "A valid key is required"
    advice = "Send `Authorization: Bearer KEY`."


class Forbidden(RequestError):
    """The key is valid, but its role or its grant does not allow this."""

    code = "forbidden"
    status = 403
    title = "This key may not do that"
    advice = "Ask the data set's owner for a grant."


class Conflict(RequestError):
    """The request conflicts with the current state; `code` says how."""

    status = 409
    title = "The request conflicts with the current state"

    def __init__(self, code: ConflictCode, message: str, **members: Any) -> None:
        super().__init__(message, **members)
        self.code = code


class PolicyError(RequestError):
    """The job costs more than the data set's owner allows this key for one job. Nothing is spent."""

    code = "policy-exceeded"
    status = 409
    title = "The owner's policy does not allow this job"
    advice = "Ask for at most `allowed`."


class PreconditionFailed(RequestError):
    """Somebody changed the cap or the budget since the caller looked at it. Nothing was changed now."""

    code = "precondition-failed"
    status = 412
    title = "It was changed in the meantime"
    advice = "Look again, and send the new `ETag` as `If-Match`."


class PreconditionRequired(RequestError):
    """A change of a cap or a budget must name the version that it is for."""

    code = "precondition-required"
    status = 428
    title = "The version of the change is missing"
    advice = "Send `If-Match` with the `ETag` that you saw, or `*`."


class TooManyRequests(RequestError):
    """The key or address sent too many requests or failed sign-ins, or the key too many bytes or large bodies."""

    code = "too-many-requests"
    status = 429
    title = "Too many requests"
    advice = "Wait for `Retry-After` seconds."

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.retry_after_s = retry_after_s


class TooSlow(RequestError):
    """The request's head or body took too long to arrive."""

    code = "too-slow"
    status = 408
    title = "The body arrived too slowly"
    advice = "Send it again."


class TooLarge(RequestError):
    """The body is larger than the route accepts, or than its upload declared."""

    code = "too-large"
    status = 413
    title = "The body is too large"
    advice = (
        "Send less, or have the operator raise `SCRIMP_MAX_UPLOAD_BYTES`, `SCRIMP_MAX_UPLOAD_TOTAL_BYTES`, "
        "`SCRIMP_MAX_PATH_BYTES` or `SCRIMP_MAX_BODY_BYTES`."
    )


def too_large(limit_bytes: int) -> TooLarge:
    """The error for a data file above the limit."""
    return TooLarge(f"a data file may have at most {limit_bytes} bytes here", limit_bytes=limit_bytes)


class BudgetError(ServiceError):
    """The whole cost does not fit the cap. Nothing is spent."""

    code = "budget-exceeded"
    status = 409
    title = "The privacy budget does not cover this job"
    advice = (
        "Ask for at most `largest_epsilon_that_fits`, or where the hold-out cannot pay for a score "
        "`largest_noise_mu_that_fits`. If `budget` is not null, ask the owner for a larger one "
        "([budgets.md](budgets.md))."
    )


class LimitError(ServiceError):
    """A helper process (parsing, pricing) exceeded its time or memory limit (422), or all are busy (503)."""

    code = "limit-exceeded"
    status = 422
    title = "The request needs more time or memory than is allowed"
    advice = "422: ask for less. 503: try again."


class Unavailable(ServiceError):
    """The database or the storage does not answer at the moment. Nothing was changed."""

    code = "unavailable"
    status = 503
    title = "The service cannot answer at the moment"
    advice = "Try again after `Retry-After` seconds."


class StorageFull(ServiceError):
    """The storage has no space left."""

    code = "storage-full"
    status = 507
    title = "The service's storage is full"
    advice = "Tell the operator."


class PrivacyError(ServiceError):
    """An invariant of the privacy guarantee does not hold. Never caught in order to continue, and never retried."""

    code = "privacy-invariant"
    status = 500
    title = "A privacy invariant does not hold; nothing was released"
    advice = "Tell the operator. Do not retry."


class WorkerError(ServiceError):
    """Ends an attempt."""

    code = "worker-error"


class TransientError(WorkerError):
    """The machine's fault: the job is queued again."""

    code = "worker-lost"


class PermanentError(WorkerError):
    """The job's own fault: it fails. Codes form a closed set; texts hold no private values."""

    code = "training-failed"


class StaleAttempt(WorkerError):
    """Another attempt has taken the job: this attempt must stop and write nothing."""

    code = "stale-attempt"
