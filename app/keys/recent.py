"""The keys of recent requests: whoever showed a token a moment ago is not looked up again.

    KEPT_S   how long a key's row serves later requests with the same token
    stamp    renewed by each transaction of this process that changes a key: it ends all rows at once

So a key that this process revokes, rotates or changes ends at once; one that another process changes, within KEPT_S.
Expiry is compared with the clock at each request. Holds, polls and streams read the key's row in their own statements:
there a revocation holds at once everywhere.

A row is stored under its token's HMAC, never under its id: only a valid token meets one, so that the time of an answer
does not tell which keys are in use. The row has what the database has, and no token.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlalchemy import event
from sqlalchemy.orm import Mapper, object_session

from app.db.models import ApiKey
from app.keys.service import KeyLike

# A body has as long again to arrive (app.keys.auth.FRESH_S): together a second.
KEPT_S = 0.5
MOST = 10_000  # rows, of about a kilobyte


class _Stamp:
    """Names the state of all keys as this process has left it."""

    def __init__(self) -> None:
        self.now = object()

    def renew(self, *_: object) -> None:
        """Ends every row read before."""
        self.now = object()


STAMP = _Stamp()


@event.listens_for(ApiKey, "after_update")
def _changed(_mapper: Mapper[ApiKey], _connection: object, key: ApiKey) -> None:
    """Renews the stamp once the change is committed: a row read before the commit is the old one."""
    session = object_session(key)
    if session is not None:
        event.listen(session, "after_commit", STAMP.renew)


class RecentKeys:
    """The rows of one API process. Safe to share between threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._rows: dict[str, tuple[KeyLike, object, float]] = {}

    def row(self, token_hmac: str) -> KeyLike | None:
        """The key that this token opened less than KEPT_S ago; None: look it up."""
        key, stamp, until_s = self._rows.get(token_hmac, (None, None, 0.0))
        return key if stamp is STAMP.now and self.clock() < until_s else None

    def keep(self, token_hmac: str, key: KeyLike, stamp: object) -> None:
        """Stores a key that its token has opened.

        Args:
            stamp: `STAMP.now` before the row was read: a change since then is not in it.
        """
        if len(self._rows) >= MOST:
            self._rows = {}
        self._rows[token_hmac] = (key, stamp, self.clock() + KEPT_S)
