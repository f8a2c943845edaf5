"""The client's exceptions. Every refusal of the service carries its problem document.

ScrimpError
├── ServiceUnreachable   no answer: not running, wrong address, interrupted
├── WaitTimeout          a job or a prediction had not ended by the deadline; it continues
├── PredictionFailed     a prediction has no answer: too much at once, or its model's file is gone
└── ApiError             the service answered with a problem document (RFC 9457)
    ├── InvalidRequest     422, .errors: [{"pointer", "detail"}]
    ├── NotAllowed         401, 403
    ├── NotFound           404
    ├── Conflict           409
    ├── TooManyRequests    429, .retry_after_s
    └── BudgetRefused      409 /problems/budget-exceeded: .requested, .remaining, .largest_epsilon_that_fits, .account
"""

from __future__ import annotations

from typing import Any


class ScrimpError(Exception):
    """Any failure of the client."""


class ServiceUnreachable(ScrimpError):
    """No answer: the service does not run, the address is wrong, or the call was interrupted."""


class WaitTimeout(ScrimpError):
    """A job or a prediction had not ended by the deadline. It continues."""


class PredictionFailed(ScrimpError):
    """A prediction has no answer, and will have none."""


class ApiError(ScrimpError):
    """The service refused.

    Args:
        problem: the problem document: `type`, `title`, `status`, `detail` and further members.
    """

    def __init__(self, problem: dict[str, Any]) -> None:
        super().__init__(problem.get("detail") or problem.get("title") or "the service refused the request")
        self.problem = problem

    @property
    def status(self) -> int:
        return int(self.problem.get("status", 0))

    @property
    def title(self) -> str:
        return str(self.problem.get("title", "Refused"))

    @property
    def code(self) -> str:
        """The problem's stable name, such as `duplicate-name`."""
        return str(self.problem.get("type", "")).rsplit("/", 1)[-1]


class InvalidRequest(ApiError):
    """The request is malformed or impossible (422); `errors` names the places."""

    @property
    def errors(self) -> list[dict[str, Any]]:
        """The faults: `[{"pointer", "detail"}]`."""
        return list(self.problem.get("errors", []))


class NotAllowed(ApiError):
    """The key is missing or invalid (401), or may not do this (403)."""


class NotFound(ApiError):
    """It does not exist, or this key may not see it (404)."""


class Conflict(ApiError):
    """The request conflicts with the current state (409); `code` says how."""


class BudgetRefused(Conflict):
    """The whole cost of the job does not fit the cap. Nothing was charged."""

    @property
    def requested(self) -> Any:
        """The job's cost, by account, in the ledger's units."""
        return self.problem.get("requested")

    @property
    def remaining(self) -> Any:
        """What is left, by account, in the ledger's units."""
        return self.problem.get("remaining")

    @property
    def largest_epsilon_that_fits(self) -> float | None:
        """The largest target ε that would fit; None if nothing fits."""
        value = self.problem.get("largest_epsilon_that_fits")
        return None if value is None else float(value)

    @property
    def account(self) -> str | None:
        """The account that limits the job."""
        return self.problem.get("account")


class TooManyRequests(ApiError):
    """A limit was exceeded (429)."""

    @property
    def retry_after_s(self) -> int:
        """Seconds to wait."""
        return int(self.problem.get("retry_after_s", 1))


BY_STATUS: dict[int, type[ApiError]] = {
    401: NotAllowed,
    403: NotAllowed,
    404: NotFound,
    409: Conflict,
    422: InvalidRequest,
    429: TooManyRequests,
}


def error_of(problem: dict[str, Any]) -> ApiError:
    """The error class for a problem document: by its type if that has a class of its own, otherwise by its status."""
    if str(problem.get("type", "")).endswith("/budget-exceeded"):
        return BudgetRefused(problem)
    return BY_STATUS.get(int(problem.get("status", 0)), ApiError)(problem)
