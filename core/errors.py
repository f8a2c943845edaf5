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


class ServiceError(Exception):
    """An error with a stable code, a sentence for a person and an HTTP status.

    Args:
        message: what happened and what to change; never a value computed from private data.
        members: further members of the problem document.
    """

    code = "internal-error"
    status = 500
    title = "Something went wrong"

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
    """The caller can fix the request (4xx)."""

    code = "bad-request"
    status = 400
    title = "The request cannot be carried out"


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

    def __init__(self, message: str, errors: list[dict[str, Any]] | None = None, **members: Any) -> None:
        super().__init__(message, errors=errors or [], **members)

    @classmethod
    def at(cls, pointer: str, detail: str, **members: Any) -> InvalidRequest:
        """Builds the error for one fault at one place, the usual case."""
        return cls(detail, errors=[{"pointer": pointer, "detail": detail, **members}])


class UnknownHost(RequestError):
    """The Host header names no host of this service. The request may come from another site's script
    (DNS rebinding)."""

    code = "unknown-host"
    status = 400
    title = "This service does not answer to that host name"


class NotFound(RequestError):
    """The object does not exist, or the key may not see it: both look alike."""

    code = "not-found"
    status = 404
    title = "Not found"


class Unauthenticated(RequestError):
    """The request has no valid key."""

    code = "unauthenticated"
    status = 401
    title = "A valid key is required"


class Forbidden(RequestError):
    """The key is valid, but its role or its grant does not allow this."""

    code = "forbidden"
    status = 403
    title = "This key may not do that"


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


class PreconditionFailed(RequestError):
    """The policy was changed since the caller looked at it; nothing was changed now."""

    code = "precondition-failed"
    status = 412
    title = "It was changed in the meantime"


class PreconditionRequired(RequestError):
    """A change of a policy must name the version that it is for."""

    code = "precondition-required"
    status = 428
    title = "The version of the change is missing"


class TooManyRequests(RequestError):
    """More requests or more failed sign-ins in a minute than the limit."""

    code = "too-many-requests"
    status = 429
    title = "Too many requests"

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.retry_after_s = retry_after_s


class TooSlow(RequestError):
    """The body arrived too slowly."""

    code = "too-slow"
    status = 408
    title = "The body arrived too slowly"


class TooLarge(RequestError):
    """The body is above the route's limit."""

    code = "too-large"
    status = 413
    title = "The body is too large"


def too_large(limit_bytes: int) -> TooLarge:
    """The error for a data file above the limit."""
    return TooLarge(f"a data file may have at most {limit_bytes} bytes here", limit_bytes=limit_bytes)


class BudgetError(ServiceError):
    """The whole cost does not fit the cap. Nothing is spent."""

    code = "budget-exceeded"
    status = 409
    title = "The privacy budget does not cover this job"


class LimitError(ServiceError):
    """A helper process (parsing, pricing) exceeded its time or memory limit."""

    code = "limit-exceeded"
    status = 422
    title = "The request needs more time or memory than is allowed"


class Unavailable(ServiceError):
    """The database or the storage does not answer at the moment. Nothing was changed."""

    code = "unavailable"
    status = 503
    title = "The service cannot answer at the moment"


class StorageFull(ServiceError):
    """The storage has no space left."""

    code = "storage-full"
    status = 507
    title = "The service's storage is full"


class PrivacyError(ServiceError):
    """An invariant of the privacy guarantee does not hold. Never caught in order to continue, and never retried."""

    code = "privacy-invariant"
    status = 500
    title = "A privacy invariant does not hold; nothing was released"


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
