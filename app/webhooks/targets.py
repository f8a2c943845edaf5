"""Decides which targets webhooks may have. Any holder of a key chooses the URL: it must not reach inside addresses.

A host's addresses are looked up, and each of them must be on the public internet. The connection then goes to a checked
address, not to the name, so a name that resolves differently a moment later (DNS rebinding) gains nothing. The lookup
happens at registration, to tell the caller at once, and again at every delivery.
"""

from __future__ import annotations

import ipaddress
import queue
import re
import socket
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Literal
from urllib.parse import urlsplit

from app.settings import Settings
from core.errors import InvalidRequest

Address = IPv4Address | IPv6Address
# A host's addresses, or OSError. It may hang: only `Policy.addresses` calls it, with a deadline.
Resolver = Callable[[str, int], Sequence[str]]
Why = Literal["target-refused", "name-not-found", "timeout"]

LOOKUP_S = 5.0
MAX_LOOKUPS = 8  # more than the deliverer's threads; fewer than an API process's threads for requests
MAX_URL = 2000
PORTS = {"http": 80, "https": 443}
# Printable ASCII without characters that parsers read differently: spaces, quotes, backslashes, braces.
URL = re.compile(r"[A-Za-z0-9!#$%&'()*+,\-./:;=?@\[\]_~]+")
LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9])?"
NAME = re.compile(rf"{LABEL}(\.{LABEL})*")
# WHATWG: a host whose last part is a number is an IPv4 address, in decimal, octal or hex.
NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")

# Formally public, but not allowed for webhooks: relays and translations, which contain another address (6to4 and its
# anycast relays, Teredo, NAT64, IPv4-mapped and -compatible), and obsolete ranges.
NOT_PUBLIC: tuple[IPv4Network | IPv6Network, ...] = tuple(
    map(
        ipaddress.ip_network,
        (
            "192.0.0.0/24",
            "192.88.99.0/24",
            "100.64.0.0/10",
            "168.63.129.16/32",  # a cloud's host agent
            "::/8",
            "64:ff9b::/96",
            "64:ff9b:1::/48",
            "100::/8",
            "2001::/23",
            "2001:db8::/32",
            "2002::/16",
            "3fff::/20",
            "5f00::/16",
            "fec0::/10",
        ),
    )
)


class TargetRefused(Exception):
    """Nothing can be sent to this target now; `reason` is one of a fixed set."""

    def __init__(self, reason: Why) -> None:
        super().__init__(reason)
        self.why: Why = reason


@dataclass(frozen=True)
class Target:
    """A parsed URL."""

    url: str
    scheme: str
    host: str  # a name in lower case, or an address without brackets
    port: int
    path: str  # with the query

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


def is_public(address: Address) -> bool:
    """Returns True if an address is an ordinary address on the public internet."""
    if isinstance(address, IPv6Address) and (address.scope_id is not None or address.ipv4_mapped is not None):
        return False
    special = address.is_multicast or address.is_reserved or address.is_unspecified or address.is_loopback
    local = address.is_private or address.is_link_local or not address.is_global
    return not (special or local or any(address in each for each in NOT_PUBLIC if each.version == address.version))


def parse(url: str) -> Target:
    """Parses a webhook's URL.

    >>> parse("https://Example.org/hook?a=1").host
    'example.org'

    Raises:
        InvalidRequest: it is not a plain absolute http(s) URL, or writes an address in an unusual form.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _refuse("this is not a URL") from None
    host = (parts.hostname or "").lower()
    if len(url) > MAX_URL or not URL.fullmatch(url) or parts.scheme not in ("http", "https") or not host:
        raise _refuse("give an absolute https:// URL in ASCII (a name in its xn-- form)")
    if "@" in parts.netloc or "#" in url:
        raise _refuse("no user name, password or fragment: receivers check the signature")
    if not _is_plain_host(host) or ("[" in parts.netloc) != (":" in host):
        raise _refuse("write the host as a name, or as an address in its usual form")
    if port == 0:
        raise _refuse("port 0 is not a port: name another one")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(url, parts.scheme, host, port or PORTS[parts.scheme], path)


def _is_plain_host(host: str) -> bool:
    if ":" in host:
        return _address(host) is not None
    if NUMBER.fullmatch(host.rpartition(".")[2]):
        return str(_address(host)) == host
    return len(host) <= 253 and NAME.fullmatch(host) is not None


def _address(text: str) -> Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _refuse(detail: str) -> InvalidRequest:
    return InvalidRequest.at("/url", detail)


def look_up(host: str, port: int) -> list[str]:
    """Looks up a host's addresses with the system's resolver."""
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return [str(each[4][0]) for each in addresses]


class Policy:
    """Allows targets: public addresses over https, and the operator's exceptions.

    Args:
        allow_http: if True, http is allowed for all targets.
        allow_private: inside hosts, and networks in CIDR, that are allowed too, also over http.
        resolver: finds a host's addresses.
        ports: the allowed ports, for inside hosts too; None: any.
    """

    def __init__(
        self,
        *,
        allow_http: bool,
        allow_private: Sequence[str],
        resolver: Resolver | None = None,
        ports: Collection[int] | None = None,
    ) -> None:
        self.allow_http, self.resolver, self.ports = allow_http, resolver, ports
        self.hosts: set[str] = set()
        self.networks: list[IPv4Network | IPv6Network] = []
        for network in allow_private:
            try:
                self.networks.append(ipaddress.ip_network(network, strict=False))
            except ValueError:
                self.hosts.add(network.lower())
        self._free = threading.BoundedSemaphore(MAX_LOOKUPS)

    @classmethod
    def of(cls, settings: Settings) -> Policy:
        """Builds the policy from the settings."""
        return cls(
            allow_http=settings.webhooks_allow_http,
            allow_private=settings.webhooks_allow_private,
            ports=settings.webhooks_ports or None,
        )

    def addresses(self, target: Target) -> list[str]:
        """Returns the addresses to connect to, in the resolver's order. One forbidden address refuses all of them.

        Raises:
            TargetRefused: the lookup finds no address in time, or finds a forbidden one.
        """
        if self.ports is not None and target.port not in self.ports:
            raise TargetRefused("target-refused")
        resolved = [_address(each) for each in self._looked_up(target)]
        if not resolved or None in resolved:
            raise TargetRefused("name-not-found")
        addresses = [each for each in resolved if each is not None]
        excepted = target.host in self.hosts or all(self._is_inside(each) for each in addresses)
        if not excepted and not all(is_public(each) or self._is_inside(each) for each in addresses):
            raise TargetRefused("target-refused")
        if target.scheme != "https" and not (self.allow_http or excepted):
            raise TargetRefused("target-refused")
        return [str(each) for each in addresses]

    def check(self, url: str) -> Target:
        """Checks a URL at registration.

        Raises:
            InvalidRequest: it is malformed or not allowed. The answer does not reveal which inside names exist.
        """
        target = parse(url)
        if target.scheme == "http" and not self.allow_http and not (self.hosts or self.networks):
            raise _refuse("webhooks go over https")
        if self.ports is not None and target.port not in self.ports:
            raise _refuse(f"webhooks go to port {' or '.join(map(str, sorted(self.ports)))}; an operator allows others")
        try:
            self.addresses(target)
        except TargetRefused:
            raise _refuse("this host has no address on the public internet that can be sent to over https") from None
        return target

    def _is_inside(self, address: Address) -> bool:
        return any(address in each for each in self.networks if each.version == address.version)

    def _looked_up(self, target: Target) -> Sequence[str]:
        if _address(target.host) is not None:
            return [target.host]
        # In a separate thread: the system's resolver has no deadline. The number of hanging lookups is bounded.
        if not self._free.acquire(blocking=False):
            raise TargetRefused("timeout")
        answer: queue.SimpleQueue[Sequence[str]] = queue.SimpleQueue()

        def ask() -> None:
            try:
                answer.put((self.resolver or look_up)(target.host, target.port))
            except (OSError, UnicodeError):
                answer.put(())
            finally:
                self._free.release()

        threading.Thread(target=ask, name="lookup", daemon=True).start()
        try:
            return answer.get(timeout=LOOKUP_S)
        except queue.Empty:
            raise TargetRefused("timeout") from None
