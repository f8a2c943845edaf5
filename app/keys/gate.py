"""Authentication and access before the body: of a request with a body only the headers are read until its key, its
address, the key's role, and the data set or job that it names are checked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from app.keys.auth import CALLER, KnownCaller, check_role, identified, token_in
from app.keys.service import Caller
from app.web.body_limits import SENDER, UNREAD
from app.web.deps import database_of

# Every route below it needs a Bearer key. The dashboard's forms are small, but for those of app.dashboard.session_gate.
PREFIX = "/v1/"


@dataclass(frozen=True)
class NamedCheck:
    """Whether a key may use what a route's address names.

    Attributes:
        parameter: of the route's path.
        require: raises Forbidden, NotFound or Conflict, as the route does, which checks again.
    """

    parameter: str
    require: Callable[[Session, Caller, str], object]


class KeyGate:
    """Refuses a request with a body before the body is read: if its key is missing or invalid, if there is no such
    route, if the route is for another role, or if the key may not use what a route with large bodies names.

    The caller is passed on, so that the route does not look the key up again.

    Args:
        routes: those of the application, in its order.
        checks: by a route's path: what a route with large bodies names.
    """

    def __init__(self, routes: Sequence[BaseRoute], checks: Mapping[str, NamedCheck]) -> None:
        self._named = checks
        api_routes = [each for each in routes if isinstance(each, APIRoute) and each.path.startswith(PREFIX)]
        self._routes = [(route, tuple(_roles_in(route.dependant))) for route in api_routes]

    async def admit(self, scope: Scope) -> None:
        """Notes the caller of a request with a body in its scope.

        Raises:
            RequestError: it is refused. The rest of the body is not read; the connection ends soon if more arrives
                (scrimp_server.api).
        """
        if scope["path"].startswith(PREFIX):
            caller = await run_in_threadpool(self._admitted, Request(scope))
            scope[CALLER], scope[SENDER] = KnownCaller(caller, time.monotonic()), caller.id

    def _admitted(self, request: Request) -> Caller:
        """The caller, once all is checked that can be without a body.

        Raises:
            Unauthenticated, TooManyRequests: as `identified`.
            Forbidden, NotFound, Conflict: as the route.
        """
        caller = identified(request, token_in(request.headers))
        for route, roles in self._routes:
            match, scope = route.matches(request.scope)
            if match is Match.FULL:
                for role in roles:
                    check_role(caller, role)
                if (check := self._named.get(route.path)) is not None:
                    with database_of(request).read() as session:
                        check.require(session, caller, scope["path_params"][check.parameter])
                return caller
        request.scope[UNREAD] = True  # the router says why it has no route for this
        return caller


def _roles_in(dependant: Dependant) -> Iterator[str]:
    """The roles that a route's dependencies ask for (app.keys.auth.require_role)."""
    role = getattr(dependant.call, "role", None)
    if role is not None:
        yield role
    for dependency in dependant.dependencies:
        yield from _roles_in(dependency)
