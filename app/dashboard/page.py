"""Rendering of pages: the templates, and errors as pages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Path as PathPart
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from app.dashboard import numbers
from app.dashboard.viewer import SignInNeeded, Viewer, login_url
from app.web.problems import headers_of
from core.contracts.metrics import AUC_PARTS, MOST_CONFUSED, confusion_parts
from core.errors import InvalidRequest, ServiceError

logger = logging.getLogger(__name__)
Id = Annotated[str, PathPart(pattern=r"^[A-Za-z0-9_]{1,100}$")]
HERE = Path(__file__).parent


@cache
def templates() -> Environment:
    """The templates, with the filters of app.dashboard.numbers."""
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(numbers.FILTERS)
    environment.globals["score_parts"] = {*AUC_PARTS, *confusion_parts(MOST_CONFUSED)} - {"accuracy"}
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    return environment


def render(
    request: Request, template: str, *, viewer: Viewer | None, status: int = 200, **context: Any
) -> HTMLResponse:
    """Renders a page."""
    html = templates().get_template(template).render(request=request, viewer=viewer, **context)
    return HTMLResponse(html, status)


def address(path: str, parameters: Mapping[str, Any]) -> str:
    """The address of a page with filters; one that is None or empty is left out."""
    parameters_set = {name: value for name, value in parameters.items() if value}
    return f"{path}?{urlencode(parameters_set)}" if parameters_set else path


class PageRoute(APIRoute):
    """A route of pages: its errors are pages, and it sends visitors without a session to the login."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def page(request: Request) -> Response:
            try:
                return await handle(request)
            except SignInNeeded:
                return RedirectResponse(login_url(request), 303)
            except ServiceError as error:
                return _error_page(request, error)
            except RequestValidationError:
                return _error_page(request, InvalidRequest("the address or the form of this page is not valid"))

        return page


def _error_page(request: Request, error: ServiceError) -> Response:
    if error.status >= 500:
        logger.error("%s: %s", error.code, error.message)
    response = render(request, "error.html", viewer=None, status=error.status, error=error)
    response.headers.update(headers_of(error))
    return response
