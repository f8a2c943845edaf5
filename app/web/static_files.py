"""Files of our own pages."""

from __future__ import annotations

from fastapi import Request, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from core.errors import NotFound


async def static_file(files: StaticFiles, path: str, request: Request) -> Response:
    """A file of a folder; StaticFiles lets no path leave it.

    Raises:
        NotFound: it has no such file.
    """
    try:
        response = await files.get_response(path, request.scope)
    except HTTPException:
        raise NotFound("there is no such file") from None
    response.headers["Cache-Control"] = "no-cache"  # revalidated by its ETag, so that an upgrade shows at once
    return response
