"""The wire: requests with the key, pages, and refusals as exceptions."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import quote

import httpx

from scrimp.errors import ServiceUnreachable, refusal
from scrimp.models import Resource
from scrimp.rows import Pages

if TYPE_CHECKING:
    from scrimp.client import Client

DEFAULT_URL = "http://127.0.0.1:8100"
PAGE = 100
POLL_S = 0.25  # between two questions about something unfinished
IDLE_S = 2.0  # of a connection: the service closes it after 5 s, and a request on its way then would be lost

R = TypeVar("R", bound=Resource)


class Again(httpx.HTTPTransport):
    """Asks once more what changes nothing, where the connection ends before an answer begins: one that was kept may
    have been closed just as the request was sent, as one of the two processes stood still."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """The answer's beginning; what ends later is the caller's."""
        try:
            return super().handle_request(request)
        except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
            if request.method != "GET":
                raise
        return super().handle_request(request)


class Wire:
    """A connection to one service, with one key; what `Client` is made of."""

    def __init__(self, base_url: str = DEFAULT_URL, key: str | None = None, *, timeout_s: float = 60.0) -> None:
        headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        # A key is sent only to the given address: no redirects, no proxy from the environment.
        options: dict[str, Any] = {"trust_env": False, "limits": httpx.Limits(keepalive_expiry=IDLE_S)}
        if httpx.URL(base_url).scheme == "http":
            # No certificate is ever looked at: reading those of the authorities would take 20 ms. This trusts nobody.
            options["verify"] = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        transport = Again(**options)
        self._http = httpx.Client(
            base_url=base_url, headers=headers, timeout=timeout_s, trust_env=False, transport=transport
        )
        self.base_url = base_url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def pages(self, path: str, resource: type[R], **filters: Any) -> Pages[R]:
        """The items of a list, page by page; filters that are None are left out."""
        return Pages(self._items(path, resource, filters))

    def _items(self, path: str, resource: type[R], filters: dict[str, Any]) -> Iterator[R]:
        params: dict[str, Any] = {"limit": PAGE} | given(**filters)
        while True:
            page = self.json("GET", path, params=params)
            yield from map(resource.model_validate, page["items"])
            if page.get("next") is None:
                return
            params["after"] = page["next"]

    def json(self, method: str, path: str, **arguments: Any) -> Any:
        """The answer to one request as JSON values; None if it has no content.

        Args:
            arguments: httpx's.

        Raises:
            ApiError: the service refused.
            ServiceUnreachable: it did not answer.
        """
        with self._sending():
            response = self._http.request(method, path, **arguments)
        if response.is_error:
            raise refusal(response)
        return response.json() if response.content else None

    @contextmanager
    def streamed(self, path: str, **arguments: Any) -> Iterator[httpx.Response]:
        """The answer to a GET, whose content the caller reads piece by piece.

        Raises:
            ApiError, ServiceUnreachable: as `json`.
        """
        with self._sending(), self._http.stream("GET", path, **arguments) as response:
            if response.is_error:
                response.read()
                raise refusal(response)
            yield response

    def server_sent(self, path: str, headers: Mapping[str, str] | None = None) -> Iterator[tuple[str, str]]:
        """The server-sent events of one connection, each as its name and its data, until the connection ends.

        Raises:
            ApiError, ServiceUnreachable: as `json`.
        """
        all_headers = {"Accept": "text/event-stream", **(headers or {})}
        # The service sends a comment every quarter of a minute.
        with self.streamed(path, headers=all_headers, timeout=httpx.Timeout(60.0)) as answer:
            kind = data = ""
            for line in answer.iter_lines():
                name, _, value = line.partition(":")
                if name == "event":
                    kind = value.strip()
                elif name == "data":
                    data = value.strip()
                elif not line and data:
                    yield kind, data
                    kind = data = ""

    @contextmanager
    def _sending(self) -> Iterator[None]:
        """Turns transport errors into one sentence with the address."""
        try:
            yield
        except httpx.ConnectError as error:
            raise ServiceUnreachable(f"no service answers at {self.base_url}: is `scrimp serve` running?") from error
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise ServiceUnreachable(
                f"the call to {self.base_url} was interrupted: {str(error) or type(error).__name__}"
            ) from error


class Part:
    """A part of the client with a name of its own, such as `client.charges`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.json, self.pages = client.json, client.pages


def in_path(name: str) -> str:
    """Quotes a name as one segment of a path, whatever it holds."""
    return quote(name, safe="")


def dataset_path(name_or_id: str) -> str:
    """The path of a data set."""
    return f"/v1/datasets/{in_path(name_or_id)}"


def given(**filters: Any) -> dict[str, Any]:
    """The filters of a query that are not left out."""
    return {name: value for name, value in filters.items() if value is not None}
