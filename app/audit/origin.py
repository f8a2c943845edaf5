"""Where a request comes from, for the audit log; and the record of those that are refused."""

from __future__ import annotations

import ipaddress
import logging
import re

from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.audit.record import CURRENT, LONGEST, Origin, record
from app.db.engine import Database

logger = logging.getLogger(__name__)
AN_ID = re.compile(r"[a-z]{1,10}_[A-Za-z0-9]{1,60}")


class Origins:
    """Makes the `Origin` of every request, and writes an entry for each of a key that is answered 403.

    Behind proxies that the operator trusts the request's client becomes the address that the first of them saw.

    Args:
        trusted_proxies: how many proxies in front of the service add to X-Forwarded-For.
    """

    def __init__(self, app: ASGIApp, db: Database, trusted_proxies: int) -> None:
        self.app, self.db, self.trusted_proxies = app, db, trusted_proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        address = client_address(scope, headers, self.trusted_proxies)
        if self.trusted_proxies and address is not None:
            scope["client"] = (address, 0)
        agent = "".join(letter for letter in headers.get("user-agent", "") if letter.isprintable())
        origin = Origin(address, agent[:LONGEST] or None)
        token = CURRENT.set(origin)

        async def watched(message: Message) -> None:
            # Of keys that hold: nobody fills the log who is not let in.
            if message["type"] == "http.response.start" and message["status"] == 403 and origin.key_id is not None:
                await run_in_threadpool(self._refused, scope)
            await send(message)

        try:
            await self.app(scope, receive, watched)
        finally:
            CURRENT.reset(token)

    def _refused(self, scope: Scope) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        ids = [str(value) for value in scope.get("path_params", {}).values() if AN_ID.fullmatch(str(value))]
        try:
            with self.db.write() as session:
                record(
                    session, "request.refused", ids[0] if ids else None, "refused", method=scope["method"], route=route
                )
        except SQLAlchemyError as error:  # nothing was done: the refusal stands without its record
            logger.error("a refusal is not in the audit log: %s", type(error).__name__)


def client_address(scope: Scope, headers: Headers, trusted_proxies: int) -> str | None:
    """The client's address: the peer's, or what the outermost trusted proxy saw.

    Each proxy appends the address of its own peer, so that of the list only the last `trusted_proxies` are believed;
    what stands before them the client may have made up. A shorter list did not come through the proxies: the peer is
    the client then.
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
