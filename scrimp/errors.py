"""The client's exceptions. Every refusal of the service carries its problem document.

ScrimpError
├── ServiceUnreachable   no answer: not running, wrong address, interrupted
├── WaitTimeout          a job or a prediction had not ended by the deadline; it continues
├── MissingPackage       a library that this needs is not installed; also an ImportError
├── Undecided            what is at hand does not show whether a document holds
├── PredictionFailed     a prediction has no answer: too much at once, or its model's file is gone
├── UnexpectedAnswer     an answer lacks a member, or has another type there; also a ValueError
└── ApiError             the service answered with a problem document (RFC 9457)
    ├── InvalidRequest     422, .errors: [{"pointer", "detail"}]
    ├── NotAllowed         401, 403
    ├── NotFound           404
    ├── Conflict           409
    ├── TooManyRequests    429, .retry_after_s
    └── BudgetRefused      409 /problems/budget-exceeded: .requested, .remaining, .largest_epsilon_that_fits,
                                                             .largest_noise_mu_that_fits, .account
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx


class ScrimpError(Exception):
    """Any failure of the client."""


class ServiceUnreachable(ScrimpError):
    """No answer: the service does not run, the address is wrong, or the call was interrupted."""


class WaitTimeout(ScrimpError):
    """A job or a prediction had not ended by the deadline. It continues."""


class MissingPackage(ScrimpError, ImportError):
    """A library that only this needs is not installed.

    Args:
        feature: what needs it, such as "checking a signature".
        library: its name.
        install: what pip installs for it.
    """

    def __init__(self, feature: str, library: str, install: str) -> None:
        super().__init__(f"{feature} needs {library}: pip install '{install}'")


class Undecided(ScrimpError):
    """What is at hand neither shows nor refutes that a document holds: exit code 2."""


class PredictionFailed(ScrimpError):
    """A prediction has no answer, and will have none."""


class UnexpectedAnswer(ScrimpError, ValueError):
    """An answer lacks a member that this client needs, or has null or another type there.

    Args:
        answer: the class that was expected, such as "Job".
        member: where, such as "progress.step".
        problem: what is wrong there.
    """

    def __init__(self, answer: str, member: str, problem: str) -> None:
        super().__init__(
            f"the answer is no {answer} that this client knows ({member or 'as a whole'}: {problem}): service and "
            "client are of different releases; install the client of the service's release"
        )
        self.answer, self.member = answer, member


class ApiError(ScrimpError):
    """The service refused.

    Args:
        problem: the problem document: `type`, `title`, `status`, `detail` and further members.
    """

    remedy: str | None = None  # what to do, for every error of the class

    def __init__(self, problem: dict[str, Any]) -> None:
        super().__init__(problem)
        self.problem = problem

    @property
    def detail(self) -> str:
        """What is wrong, in a sentence."""
        return str(self.problem.get("detail") or self.problem.get("title") or "the service refused the request")

    def __str__(self) -> str:
        """What is wrong, where, the problem's type, and what to do."""
        places = [
            f"\n  {each.get('pointer', '')}  {each.get('detail', '')}" for each in self.problem.get("errors") or ()
        ]
        todo = "" if self.remedy is None else f"\n{self.remedy}"
        return f"{self.detail}{''.join(places)} [{self.status} /problems/{self.code or 'unknown'}]{todo}"

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

    remedy = "Change what the lines name, and send it again; nothing was stored."

    @property
    def errors(self) -> list[dict[str, Any]]:
        """The faults: `[{"pointer", "detail"}]`."""
        return list(self.problem.get("errors", []))


class NotAllowed(ApiError):
    """The key is missing or invalid (401), or may not do this (403)."""

    remedy = "Give another key: Client(url, key), --key or SCRIMP_KEY; admins make keys, owners grant access."


class NotFound(ApiError):
    """It does not exist, or this key may not see it (404)."""


class Conflict(ApiError):
    """The request conflicts with the current state (409); `code` says how."""


class BudgetRefused(Conflict):
    """The whole cost of the job does not fit the cap. Nothing was charged."""

    def __str__(self) -> str:
        """What is wrong, and what would fit."""
        largest, noise = self.largest_epsilon_that_fits, self.largest_noise_mu_that_fits
        if noise is not None:
            return f"{super().__str__()}\nNothing was charged; it fits with evaluation.noise_mu at most {noise:g}."
        fits = "no job of this kind fits any more" if largest is None else f"the largest ε that fits is {largest:.6g}"
        return f"{super().__str__()}\nNothing was charged; {fits}."

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
    def largest_noise_mu_that_fits(self) -> float | None:
        """The largest noise_mu of the score that would fit, where its hold-out is what cannot pay; else None."""
        value = self.problem.get("largest_noise_mu_that_fits")
        return None if value is None else float(value)

    @property
    def account(self) -> str | None:
        """The account that limits the job."""
        return self.problem.get("account")


class TooManyRequests(ApiError):
    """A limit was exceeded (429)."""

    def __str__(self) -> str:
        """What is wrong, and how long to wait."""
        return f"{super().__str__()}\nTry again in {self.retry_after_s} s."

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


def refusal(response: httpx.Response) -> ApiError:
    """The error for an answer that is none of success."""
    if "json" in response.headers.get("content-type", ""):
        problem = response.json()
        if isinstance(problem, dict):
            return error_of({"status": response.status_code} | problem)
    return error_of(
        {"status": response.status_code, "title": response.reason_phrase or "Refused", "detail": response.text[:300]}
    )
