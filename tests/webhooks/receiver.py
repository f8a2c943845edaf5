"""A receiver of webhooks, as a process of its own: checks each signature with the reference library.

    python receiver.py FOLDER      prints its port; the secrets are read from FOLDER/secrets at every request

What came with a valid signature is appended to FOLDER/received, one JSON line each; the path says what is answered.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from standardwebhooks import Webhook, WebhookVerificationError

FOLDER = Path(sys.argv[1])
STATUS = {"/ok": 204, "/fail": 500, "/gone": 410, "/redirect": 302}


def verified(body: bytes, headers: dict[str, str]) -> Any:
    """The message, if it is signed with one of the secrets."""
    for secret in (FOLDER / "secrets").read_text().splitlines():
        with suppress(WebhookVerificationError):
            return Webhook(secret).verify(body, headers)
    return None


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        message = verified(body, dict(self.headers))
        if message is None:
            self.answer(401)
            return
        line = {"path": self.path, "host": self.headers["host"], "id": self.headers["webhook-id"], "message": message}
        with (FOLDER / "received").open("a") as received:
            received.write(json.dumps(line) + "\n")
        if self.path == "/drip":
            self.drip()
        elif self.path == "/endless":
            self.endless()
        else:
            self.answer(STATUS[self.path])

    def answer(self, status: int) -> None:
        self.send_response(status)
        if status == 302:
            self.send_header("location", "/ok")
        self.send_header("content-length", "0")
        self.end_headers()

    def drip(self) -> None:
        """A byte now and then: each read ends in time, the whole does not."""
        self.close_connection = True
        for byte in b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100:
            self.wfile.write(bytes([byte]))
            time.sleep(0.05)

    def endless(self) -> None:
        self.close_connection = True
        self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            self.wfile.write(b"x" * 65536)

    def log_message(self, *_arguments: object) -> None:
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
server.handle_error = lambda *_arguments: None  # type: ignore[method-assign] # the sender hangs up on /endless
print(server.server_port, flush=True)
server.serve_forever()
