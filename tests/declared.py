"""What the routes declare of themselves, by method and path; None: nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi.routing import iter_route_contexts

from app.main import ROUTERS
from app.web.route_operation import DECLARED, Operation, Page

Declared = dict[tuple[str, str], Operation | Page | None]


def declarations(routes: Sequence[Any] | None = None) -> Declared:
    """Those of the service, or of these routes."""
    declared: Declared = {}
    for route in iter_route_contexts(
        [each for router in ROUTERS for each in router.routes] if routes is None else routes
    ):
        # A mounted application or a WebSocket has no methods: it would need a test of its own.
        assert route.path is not None and route.methods, route
        for method in route.methods - {"HEAD"}:
            declared[method, route.path] = DECLARED.get(route.endpoint) if route.endpoint else None
    return declared
