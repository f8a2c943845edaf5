"""Bounds on request bodies, enforced while they stream in."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import TooLarge
from app.web.problems import problem


class BodyLimit:
    """Refuses bodies above a limit with 413, declared or not. Data uploads have a limit of their own."""

    def __init__(self, app: ASGIApp, limit: int, upload_limit: int, upload_path: str) -> None:
        self.app, self.limit, self.upload_limit, self.upload_path = app, limit, upload_limit, upload_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit = self.upload_limit if scope["path"].rstrip("/") == self.upload_path else self.limit
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > limit:
            await problem(TooLarge(f"the body is larger than {limit} bytes"))(scope, receive, send)
            return
        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise TooLarge(f"the body is larger than {limit} bytes")
            return message

        answered = False

        async def answer(message: Message) -> None:
            # Who reads the body may take the error for a body that it can not read: the answer is ours all the same.
            nonlocal answered
            if received <= limit:
                await send(message)
            elif not answered:
                answered = True
                await problem(TooLarge(f"the body is larger than {limit} bytes"))(scope, receive, send)

        await self.app(scope, limited, answer)
