"""Limits the requests of a key in a minute, the bytes of its bodies, and the invalid keys that an address may send.

    fixed windows of a minute that begin with their first request: one counter a key, one round trip a request

Counted in Redis for all API processes, or in each process for itself. A request never fails because the store is away:
the process then counts for itself, and asks the store again after a pause.
"""

from __future__ import annotations

import ipaddress
import logging
import math
import time
from typing import Any

from limits import RateLimitItem, RateLimitItemPerMinute
from limits.errors import StorageError
from limits.storage import MemoryStorage, RedisStorage, Storage

from app.settings import Settings
from core.errors import TooManyRequests

logger = logging.getLogger(__name__)

NAMESPACE = "scrimp"
# A store that does not answer in this time counts as away. It is asked again after a pause, so that few requests wait.
TIMEOUT_S = 0.25
PAUSE_S = 10.0
MAX_REMEMBERED = 10_000


class RequestLimits:
    """The counters of one API process. Safe to share between threads."""

    def __init__(self, settings: Settings) -> None:
        self.per_key = settings.requests_per_minute
        self.body_bytes = RateLimitItemPerMinute(settings.body_bytes_per_minute, namespace=NAMESPACE)
        self.failures = RateLimitItemPerMinute(settings.failed_sign_ins_per_minute, namespace=NAMESPACE)
        self._own = MemoryStorage()
        self._shared = _shared_store(settings)
        self._away_until = 0.0
        # Used-up buckets, with the time at which they reopen: they are refused without asking the store.
        self._used_up: dict[str, float] = {}

    def request(self, key_id: str, limit: int | None) -> None:
        """Counts one request of a key.

        Args:
            limit: the key's own, a minute; None for the setting's.

        Raises:
            TooManyRequests: the key exceeded its limit in this minute.
        """
        wait_s = self._hit(RateLimitItemPerMinute(limit or self.per_key, namespace=NAMESPACE), "key", key_id)
        if wait_s is not None:
            raise TooManyRequests(f"this key may make {limit or self.per_key} requests a minute", wait_s)

    def body(self, key_id: str, size: int) -> None:
        """Counts the bytes of one of a key's bodies.

        Raises:
            TooManyRequests: the key exceeded its bytes in this minute.
        """
        wait_s = self._hit(self.body_bytes, "bytes", key_id, amount=size)
        if wait_s is not None:
            raise TooManyRequests(f"this key may send {self.body_bytes.amount} bytes a minute in bodies", wait_s)

    def failure(self, address: str | None) -> None:
        """Counts an invalid key. Valid keys always pass, because proxies and offices share an address.

        Raises:
            TooManyRequests: too many invalid keys from this address in this minute.
        """
        wait_s = self._hit(self.failures, "address", network_of(address))
        if wait_s is not None:
            raise TooManyRequests("too many invalid API keys from this address: try again later", wait_s)

    def _hit(self, item: RateLimitItem, *bucket: str, amount: int = 1) -> int | None:
        """Counts so many; returns the seconds to wait if the limit is exceeded."""
        key = item.key_for(*bucket)
        until = self._used_up.get(key, 0.0)
        if until <= time.time():
            if self._count(key, item, amount) <= item.amount:
                return None
            until = self._expiry(key)
            self._remember(key, until)
        return max(1, math.ceil(until - time.time()))

    def _remember(self, key: str, until: float) -> None:
        if len(self._used_up) >= MAX_REMEMBERED:
            self._used_up = {each: end for each, end in list(self._used_up.items()) if end > time.time()}
        if len(self._used_up) < MAX_REMEMBERED:
            self._used_up[key] = until

    def _count(self, key: str, item: RateLimitItem, amount: int) -> int:
        store = self._store()
        try:
            return store.incr(key, item.get_expiry(), amount)
        except StorageError as error:
            self._lose(error)
            return self._own.incr(key, item.get_expiry(), amount)

    def _expiry(self, key: str) -> float:
        try:
            return self._store().get_expiry(key)
        except StorageError as error:
            self._lose(error)
            return self._own.get_expiry(key)

    def _store(self) -> Storage:
        if self._shared is None or time.monotonic() < self._away_until:
            return self._own
        return self._shared

    def _lose(self, error: StorageError) -> None:
        if time.monotonic() >= self._away_until:  # several requests may find it away at once: log one line
            cause = type(error.storage_error).__name__
            logger.warning("the store of request limits does not answer (%s): this process counts for itself", cause)
        self._away_until = time.monotonic() + PAUSE_S


def _shared_store(settings: Settings) -> Storage | None:
    url = settings.limits_url or settings.effective_broker_url
    if not url.startswith(("redis://", "rediss://")):
        return None
    from redis.backoff import NoBackoff  # noqa: PLC0415 - only installed where it is used
    from redis.retry import Retry  # noqa: PLC0415

    # One immediate retry, for a connection that was closed while idle. The library's own retries take seconds.
    options: dict[str, Any] = {
        "socket_timeout": TIMEOUT_S,
        "socket_connect_timeout": TIMEOUT_S,
        "retry": Retry(NoBackoff(), 1),
    }
    return RedisStorage(url, wrap_exceptions=True, key_prefix=NAMESPACE, **options)


def network_of(address: str | None) -> str:
    """The address; for IPv6 its /64 network, because one customer holds all of it."""
    try:
        parsed = ipaddress.ip_address(address or "")
    except ValueError:
        return address or "unknown"
    if parsed.version == 6:
        return str(ipaddress.ip_network((parsed, 64), strict=False).network_address)
    return str(parsed)
