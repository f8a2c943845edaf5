"""Where webhooks may go: spellings of addresses, addresses inside, names that resolve otherwise a moment later."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from app.settings import Settings
from app.webhooks import targets
from app.webhooks.targets import Policy, TargetRefused, is_public, parse
from core.errors import InvalidRequest

PUBLIC = "93.184.216.34"


def policy(*answers: Sequence[str], allow_http: bool = False, allow_private: Sequence[str] = ()) -> Policy:
    """One whose resolver gives these answers in turn, the last one for ever."""
    left = list(answers or [[PUBLIC]])

    def resolve(_host: str, _port: int) -> Sequence[str]:
        return left.pop(0) if len(left) > 1 else left[0]

    return Policy(allow_http=allow_http, allow_private=allow_private, resolver=resolve)


@pytest.mark.parametrize(
    ("url", "host", "port", "path"),
    [
        ("https://example.com", "example.com", 443, "/"),
        ("https://EXAMPLE.com:8443/a/b?c=d", "example.com", 8443, "/a/b?c=d"),
        ("https://xn--bcher-kva.example/", "xn--bcher-kva.example", 443, "/"),
        ("https://93.184.216.34/x", "93.184.216.34", 443, "/x"),
        ("https://[2606:2800:220:1::1]:444/", "2606:2800:220:1::1", 444, "/"),
    ],
)
def test_plain_urls_are_taken_apart(url: str, host: str, port: int, path: str) -> None:
    target = parse(url)
    assert (target.host, target.port, target.path) == (host, port, path)
    policy().check(url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com",
        "//example.com/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://example.com/",
        "http://example.com/",  # https unless allowed
        "https://",
        "https:///path",
        "https://user@example.com/",
        "https://user:word@example.com/",
        "https://@example.com/",
        "https://example.com@127.0.0.1/",
        "https://example.com/#part",
        "https://example.com\\@127.0.0.1/",
        "https://exa mple.com/",
        "https://example.com/\r\nHost: inside",
        "https://example.com/\x00",
        "https://bücher.example/",
        "https://ⓔxample.com/",
        "https://example.com./",
        "https://.example.com/",
        "https://example..com/",
        "https://-example.com/",
        "https://example.com:0/",
        "https://example.com:65536/",
        "https://example.com:x/",
        "https://" + "a" * 64 + ".com/",
        "https://example.com/" + "a" * 2000,
        # Other spellings of IPv4 addresses, which some resolvers take.
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0x7f.1/",
        "https://0177.0.0.1/",
        "https://127.1/",
        "https://127.0.1/",
        "https://127.0.0.01/",
        "https://1.2.3.4.5/",
        "https://example.0x1/",
        "https://[::1%25lo]/",
        "https://[v1.x]/",
        "https://[127.0.0.1]/",
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        policy().check(url)
    assert refused.value.members["errors"][0]["pointer"] == "/url"


INSIDE = [
    "127.0.0.1",
    "127.255.255.254",
    "0.0.0.0",  # noqa: S104 - refused, not bound
    "0.1.2.3",
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "100.127.255.255",
    "192.0.0.8",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:93.184.216.34",
    "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::5db8:d822",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:5db8:d822::1",
    "3fff::1",
    "fc00::1",
    "fd12:3456::1",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
]


@pytest.mark.parametrize("address", INSIDE)
def test_addresses_inside_are_refused(address: str) -> None:
    assert not is_public(targets._address(address))  # type: ignore[arg-type]
    for answer in ([address], [PUBLIC, address], [address, PUBLIC]):
        with pytest.raises(TargetRefused):
            policy(answer).addresses(parse("https://example.com/"))
    if "%" not in address:
        host = f"[{address}]" if ":" in address else address
        with pytest.raises(InvalidRequest):
            policy().check(f"https://{host}/")


@pytest.mark.parametrize("address", [PUBLIC, "1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:2800:220:1::1"])
def test_public_addresses_are_allowed(address: str) -> None:
    assert policy([address]).addresses(parse("https://example.com/")) == [address]


def test_a_name_that_resolves_otherwise_later_is_refused_later() -> None:
    rebinding = policy([PUBLIC], ["127.0.0.1"])
    target = rebinding.check("https://example.com/")
    with pytest.raises(TargetRefused, match="target-refused"):
        rebinding.addresses(target)


def test_what_is_not_found_and_what_is_inside_are_told_apart_to_nobody() -> None:
    told = set()
    for answer in ([], ["10.0.0.1"], ["not an address"]):
        with pytest.raises(InvalidRequest) as refused:
            policy(answer).check("https://db.internal/")
        told.add(refused.value.message)
    assert len(told) == 1


@pytest.mark.parametrize(
    ("url", "answer", "allowed", "passes"),
    [
        ("https://hooks.internal/", ["10.1.2.3"], ["10.1.0.0/16"], True),
        ("http://hooks.internal/", ["10.1.2.3"], ["10.1.0.0/16"], True),
        ("https://hooks.internal/", ["10.2.2.3"], ["10.1.0.0/16"], False),
        ("https://hooks.internal/", ["10.1.2.3", "10.2.2.3"], ["10.1.0.0/16"], False),
        ("https://hooks.internal/", ["10.2.2.3"], ["HOOKS.internal"], True),
        ("https://other.internal/", ["10.2.2.3"], ["hooks.internal"], False),
        ("https://a.hooks.internal/", ["10.2.2.3"], ["hooks.internal"], False),
        ("http://127.0.0.1:8000/", [], ["127.0.0.1/32"], True),
        ("https://[::1]/", [], ["::1/128"], True),
        ("https://[::ffff:127.0.0.1]/", [], ["127.0.0.0/8"], False),
        ("http://example.com/", [PUBLIC], ["10.0.0.0/8"], False),
    ],
)
def test_the_operators_exceptions(url: str, answer: list[str], allowed: list[str], passes: bool) -> None:
    made = policy(answer, allow_private=allowed)
    if passes:
        made.check(url)
    else:
        with pytest.raises(InvalidRequest):
            made.check(url)


def test_http_where_it_is_allowed() -> None:
    assert policy([PUBLIC], allow_http=True).check("http://example.com/").port == 80
    with pytest.raises(InvalidRequest):
        policy(["10.0.0.1"], allow_http=True).check("http://example.com/")


def test_a_lookup_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "LOOKUP_S", 0.2)
    over = threading.Event()

    def hangs(_host: str, _port: int) -> list[str]:
        over.wait()
        return [PUBLIC]

    try:
        with pytest.raises(TargetRefused, match="timeout"):  # while the resolver still hangs
            Policy(allow_http=False, allow_private=[], resolver=hangs).addresses(parse("https://example.com/"))
    finally:
        over.set()


@pytest.mark.parametrize(("url", "fits"), [("https://example.com/", True), ("https://example.com:6379/", False)])
def test_only_the_usual_ports_are_sent_to_unless_set(url: str, fits: bool) -> None:
    """Attack (Doors): Webhooks to other services' ports
    Now: 443 and 80 unless set
    """
    for settings, expected in ((Settings(), fits), (Settings(webhooks_ports=[6379, 443]), True)):
        made = Policy.of(settings)
        made.resolver = lambda _host, _port: ["93.184.216.34"]
        if expected:
            assert made.check(url).url == url and made.addresses(parse(url)) == ["93.184.216.34"]
            continue
        with pytest.raises(InvalidRequest, match="port 80 or 443"):
            made.check(url)
        with pytest.raises(TargetRefused, match="target-refused"):
            made.addresses(parse(url))


def test_a_host_inside_that_is_allowed_has_no_more_ports_for_it() -> None:
    inside = Settings(webhooks_allow_private=["10.0.0.0/8"])
    with pytest.raises(InvalidRequest, match="port"):
        Policy.of(inside).check("http://10.0.0.5:6379/")
    assert Policy.of(inside.model_copy(update={"webhooks_ports": []})).check("http://10.0.0.5:6379/").port == 6379
