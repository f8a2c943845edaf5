"""Which address a request came from, behind proxies."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from app.audit.origin import client_address


@pytest.mark.parametrize(
    ("forwarded", "proxies", "address"),
    [
        ([], 0, "10.0.0.9"),
        (["192.0.2.1"], 0, "10.0.0.9"),
        (["192.0.2.1"], 1, "192.0.2.1"),
        (["198.51.100.1, 192.0.2.1"], 1, "192.0.2.1"),
        (["198.51.100.1, 192.0.2.1, 10.0.0.8"], 2, "192.0.2.1"),
        (["198.51.100.1", "192.0.2.1"], 1, "192.0.2.1"),
        (["192.0.2.1"], 2, "10.0.0.9"),
        ([], 1, "10.0.0.9"),
        (["no address"], 1, "10.0.0.9"),
        (["2001:db8::1"], 1, "2001:db8::1"),
    ],
)
def test_a_forwarded_address_is_believed_as_far_as_proxies_are(
    forwarded: list[str], proxies: int, address: str
) -> None:
    headers = Headers(raw=[(b"x-forwarded-for", each.encode()) for each in forwarded])
    assert client_address({"type": "http", "client": ("10.0.0.9", 1)}, headers, proxies) == address
