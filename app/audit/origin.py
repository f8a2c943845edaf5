"""The origin of each request for the audit log, and audit entries for refused requests."""

from __future__ import annotations

import ipaddress
import logging
import re

from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import Scope

from app.audit.record import LONGEST, Origin, record
from app.db.database import Database

logger = logging.getLogger(__name__)
AN_ID = re.compile(r"[a-z]{1,10}_[A-Za-z0-9]{1,60}")


class Origins:
    """Knows the `Origin` of every request, and writes an entry for each request with a key that gets 403.

    Behind trusted proxies the request's client becomes the address that the outermost of them saw.

    Args:
        trusted_proxies: how many proxies in front of the service add to X-Forwarded-For.
    """

    def __init__(self, db: Database, trusted_proxies: int) -> None:
        self.db, self.trusted_proxies = db, trusted_proxies

    def of(self, scope: Scope, headers: Headers) -> Origin:
        """A request's origin, whose key is not known yet."""
        address = client_address(scope, headers, self.trusted_proxies)
        if self.trusted_proxies and address is not None:
            scope["client"] = (address, 0)
        agent = headers.get("user-agent", "")
        if not agent.isprintable():
            agent = "".join(letter for letter in agent if letter.isprintable())
        return Origin(address, agent[:LONGEST] or None)

    async def watch(self, scope: Scope, origin: Origin, status: int) -> None:
        """Writes an entry if a request with this answer was refused."""
        # Only valid keys, so that unauthenticated callers cannot flood the log.
        if status == 403 and origin.key_id is not None:
            await run_in_threadpool(self._refused, scope)

    def _refused(self, scope: Scope) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        ids = [str(value) for value in scope.get("path_params", {}).values() if AN_ID.fullmatch(str(value))]
        try:
            with self.db.write() as session:
                record(
                    session, "request.refused", ids[0] if ids else None, "refused", method=scope["method"], route=route
                )
        except SQLAlchemyError as error:  # nothing was done: the refusal stands without its entry
            logger.error("a refusal could not be written to the audit log: %s", type(error).__name__)


def client_address(scope: Scope, headers: Headers, trusted_proxies: int) -> str | None:
    """The client's address: the peer's, or the address that the outermost trusted proxy saw.

    Each proxy appends its own peer's address, so only the last `trusted_proxies` of the list are trusted; a client can
    forge the ones before. A shorter list did not come through the proxies: the peer is then the client.
    """
    client = scope.get("client")
    peer = client[0] if client else None
    if not trusted_proxies:
        return peer
    forwarded = ",".join(headers.getlist("x-forwarded-for")).split(",")
    if len(forwarded) < trusted_proxies:
        return peer
    try:
        return str(ipaddress.ip_address(forwarded[-trusted_proxies].strip()))
    except ValueError:
        return peer
