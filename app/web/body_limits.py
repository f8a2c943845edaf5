"""Bounds on request bodies while they stream in: size, time, bytes a minute, large ones at once; and strict JSON."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.sandbox.processes import give_memory_back
from app.settings import MIB, Settings
from app.web import strict_json
from app.web.headers import announces_body
from app.web.places import BodyPlaces
from app.web.problems import headers_of, problem
from core.errors import InvalidRequest, RequestError, TooLarge, TooSlow

# Room for the multipart envelope and the spec beside the file itself.
UPLOAD_ENVELOPE_BYTES = 4 * MIB
PIECES = re.compile(r"/v1/uploads/[^/]+")
UPLOADS = ("/v1/datasets", "/v1/datasets/check", "/dashboard/register/check", "/dashboard/register/file")
BLOCKS = re.compile(r"/v1/datasets/[^/]+/blocks|/dashboard/datasets/[^/]+/manage/blocks")
# No route needs more than this, except those below.
SMALL_BODY_BYTES = 64 * 1024


class Needs(NamedTuple):
    """Bounds of a route's JSON: its size (None: as the settings say) and its number of values."""

    max_bytes: int | None = SMALL_BODY_BYTES
    max_nodes: int = strict_json.MAX_NODES


# A specification names its columns, classes and ids one by one; a prediction's inputs are records.
LARGE = re.compile(r"/v1/datasets(/check|/[^/]+/declarations)?|/v1/jobs/[^/]+/predict|/dashboard/register/draft")
LARGE_NODES = 200_000
# Above this a body counts, for its key, in the bytes a minute and in the large ones under way.
COUNTED_BYTES = 8 * 1024
# Set in the scope before a body is read: its sender's key, and that nobody will read it (app.keys.gate).
SENDER, UNREAD = "scrimp.sender", "scrimp.unread"
TRIM_S = 10.0  # memory is given back at most this often
T = TypeVar("T")
# The turn of large documents, in each event loop: an API process has one.
LARGE_DOCUMENTS: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


def needs_of(method: str, path: str) -> Needs:
    """The bounds of the JSON that is sent to an address."""
    return Needs(None, LARGE_NODES) if method == "POST" and LARGE.fullmatch(path) else Needs()


class BodyLimit:
    """Refuses bodies that are too large (413), declared or not, or arrive too slowly (408), and JSON that is not
    strict.

    A body is read completely before it is passed on, so that no thread waits for a slow client. Large ones have a place
    from then to the end of their answer. Data files have limits of their own and are passed on as they arrive.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._places = BodyPlaces(settings.max_large_bodies, settings.body_time_s)
        self._next_trim_s = 0.0

    async def pass_on(self, app: ASGIApp, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        """Answers a request by `app`, which receives the body that was read."""
        takes_files = scope["path"] in UPLOADS or BLOCKS.fullmatch(scope["path"]) is not None
        uploads = scope["method"] == "POST" and takes_files and not is_json(headers)
        pieces = scope["method"] == "PATCH" and PIECES.fullmatch(scope["path"]) is not None
        # The dashboard's forms are not JSON, whatever a client calls them.
        is_mislabelled = scope["path"].startswith("/dashboard/") and is_json(headers)
        needs = Needs() if is_mislabelled else needs_of(scope["method"], scope["path"])
        limit = min(self.settings.max_body_bytes, needs.max_bytes or self.settings.max_body_bytes)
        if uploads:
            limit = 2 * self.settings.max_upload_bytes + UPLOAD_ENVELOPE_BYTES
        if pieces:
            limit = self.settings.max_upload_total_bytes
        # Who waits to resume a piece has to wait until its lost connection is given up.
        body = _Body(receive, self.settings, limit, self.settings.body_time_s if pieces else math.inf)
        async with AsyncExitStack() as places:
            try:
                body.check_declared(headers.get("content-length", "0"))
                if uploads or pieces:
                    receive = body.receive
                elif not scope.get(UNREAD):
                    receive = await self._counted(scope, body, headers, needs, places)
            except RequestError as error:
                # Do not wait for the rest of the body.
                closing = {} if body.whole else {"Connection": "close"}
                await problem(error, headers_of(error) | closing)(scope, receive, send)
                return
            except ConnectionResetError:
                return  # the client is gone
            await app(scope, receive, send)
        if not (uploads or pieces) and body.received > SMALL_BODY_BYTES and time.monotonic() >= self._next_trim_s:
            self._next_trim_s = time.monotonic() + TRIM_S
            await run_in_threadpool(give_memory_back)

    async def _counted(
        self, scope: Scope, body: _Body, headers: Headers, needs: Needs, places: AsyncExitStack
    ) -> Receive:
        """Reads a body. One that may be large first waits for a place of its key, and counts in the bytes a minute."""
        announced = int(headers.get("content-length", "0"))
        if SENDER not in scope or 0 < announced <= COUNTED_BYTES or not announces_body(headers):
            return await self._read(body, headers, needs)
        limits, key = scope["app"].state.limits, scope[SENDER]
        await places.enter_async_context(self._places.place(key))
        if announced:
            await run_in_threadpool(limits.body, key, announced)
        receive = await self._read(body, headers, needs)
        if not announced:
            await run_in_threadpool(limits.body, key, body.received)
        return receive

    async def _read(self, body: _Body, headers: Headers, needs: Needs) -> Receive:
        """Reads the whole body and passes it on at once. JSON is checked in a thread, so that other requests continue;
        a small one is checked in less time than a thread takes to begin."""
        content = await body.read()
        if content and is_json(headers):
            if len(content) <= COUNTED_BYTES:
                strict_json.check(content, needs.max_nodes)
            else:
                await read_document(partial(strict_json.check, content, needs.max_nodes), len(content))
        messages = [{"type": "http.request", "body": content, "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await body.receive()

        return replay


class _Body:
    """A body as it arrives. It may take `body_time_s`, plus one second for each `body_bytes_per_s` bytes, and be silent
    for `silence_s`."""

    def __init__(self, receive: Receive, settings: Settings, limit: int, silence_s: float = math.inf) -> None:
        self._receive, self._settings, self._limit, self._silence_s = receive, settings, limit, silence_s
        self._began, self.received, self.whole = time.monotonic(), 0, False

    def check_declared(self, length: str) -> None:
        if not (length.isascii() and length.isdigit()):
            raise InvalidRequest.at("/headers/Content-Length", "this is not a length: send a whole number of bytes")
        if len(length) > 18 or int(length) > self._limit:
            raise self._too_large()

    async def receive(self) -> Message:
        """The client's next message.

        Raises:
            TooSlow, TooLarge: the body is too slow or too large.
        """
        if self.whole:
            return await self._receive()
        allowed = self._settings.body_time_s + self.received / self._settings.body_bytes_per_s
        try:
            message: dict[str, Any] = dict(
                await asyncio.wait_for(self._receive(), min(self._began + allowed - time.monotonic(), self._silence_s))
            )
        except TimeoutError:
            raise TooSlow(
                f"only {self.received} bytes of the body arrived in {time.monotonic() - self._began:.0f} s: "
                "send it faster"
            ) from None
        self.received += len(message.get("body", b""))
        if self.received > self._limit:
            raise self._too_large()
        self.whole = not message.get("more_body", False)
        return message

    async def read(self) -> bytes:
        content = bytearray()
        while not self.whole:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ConnectionResetError
            content += message.get("body", b"")
        return bytes(content)

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the body is larger than {self._limit} bytes", limit_bytes=self._limit)


async def read_document(reader: Callable[[], T], size: int) -> T:
    """Reads or validates a document in a thread. Of large ones one at a time: each holds Python's lock for most of its
    time, and the event loop would wait for it behind all of them."""
    if size <= SMALL_BODY_BYTES:
        return await run_in_threadpool(reader)
    async with LARGE_DOCUMENTS.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        return await run_in_threadpool(reader)


async def chunks_of(request: Request) -> AsyncIterator[bytes]:
    """Yields a body as it arrives.

    Raises:
        InvalidRequest: the connection was closed before the body ended.
    """
    try:
        async for chunk in request.stream():
            yield chunk
    except ClientDisconnect:
        raise InvalidRequest.at("", "the connection was closed before the body ended") from None


def is_json(headers: Headers) -> bool:
    """Returns True if the headers announce a JSON body."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
