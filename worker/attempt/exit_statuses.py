"""By which exit status a rank tells why it failed, for those that start ranks: they load no torch."""

from __future__ import annotations

from typing import get_args

from worker.messages import FailureCode

CODES: tuple[FailureCode, ...] = get_args(FailureCode)
PEER_GONE = 63  # of a rank that found another one gone: the other one's status says why
FIRST_CODE = 64  # exit statuses from here on name the failure that ended a rank


def exit_status(code: FailureCode) -> int:
    """The exit status by which a rank tells rank 0 why it failed."""
    return FIRST_CODE + CODES.index(code)


def failure_of(status: int) -> FailureCode | None:
    """Why a rank failed, if its exit status names it."""
    return CODES[status - FIRST_CODE] if FIRST_CODE <= status < FIRST_CODE + len(CODES) else None
