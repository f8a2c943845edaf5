"""How many requests a key may make in a minute, and how many keys that do not hold an address may try.

    fixed windows of a minute that begin with their first request: one counter a key, one round trip a request

Counted in Redis for all API processes, or in each process for itself. A request never fails because the
store is away: this process then counts for itself, and asks the store again after a while.
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

from app.errors import TooManyRequests
from app.settings import Settings

logger = logging.getLogger(__name__)

NAMESPACE = "scrimp"
# A store that does not answer in this time is away; it is asked again after a pause, so that few requests wait for it.
TIMEOUT_S = 0.25
PAUSE_S = 10.0
MAX_REMEMBERED = 10_000


class RequestLimits:
    """The counters of one API process. Safe to share between threads."""

    def __init__(self, settings: Settings) -> None:
        self.per_key = settings.requests_per_minute
        self.failures = RateLimitItemPerMinute(settings.failed_sign_ins_per_minute, namespace=NAMESPACE)
        self._own = MemoryStorage()
        self._shared = _shared_store(settings)
        self._away_until = 0.0
        # Buckets that are used up, until when: they are refused without asking the store.
        self._used_up: dict[str, float] = {}

    def request(self, key_id: str, limit: int | None) -> None:
        """Counts one request of a key.

        Args:
            limit: the key's own, a minute; None for the setting's.

        Raises:
            TooManyRequests: that is one too many in this minute.
        """
        wait_s = self._hit(RateLimitItemPerMinute(limit or self.per_key, namespace=NAMESPACE), "key", key_id)
        if wait_s is not None:
            raise TooManyRequests(f"this key may make {limit or self.per_key} requests a minute", wait_s)

    def failure(self, address: str | None) -> None:
        """Counts a key that does not hold. One that holds is answered from any address: proxies and offices share one.

        Raises:
            TooManyRequests: too many from this address in this minute.
        """
        wait_s = self._hit(self.failures, "address", _network(address))
        if wait_s is not None:
            raise TooManyRequests("too many keys that do not hold were sent from this address", wait_s)

    def _hit(self, item: RateLimitItem, *bucket: str) -> int | None:
        """Counts one; seconds to wait where it is one too many."""
        key = item.key_for(*bucket)
        until = self._used_up.get(key, 0.0)
        if until <= time.time():
            if self._count(key, item) <= item.amount:
                return None
            until = self._expiry(key)
            self._remember(key, until)
        return max(1, math.ceil(until - time.time()))

    def _remember(self, key: str, until: float) -> None:
        if len(self._used_up) >= MAX_REMEMBERED:
            self._used_up = {each: end for each, end in list(self._used_up.items()) if end > time.time()}
        if len(self._used_up) < MAX_REMEMBERED:
            self._used_up[key] = until

    def _count(self, key: str, item: RateLimitItem) -> int:
        store = self._store()
        try:
            return store.incr(key, item.get_expiry())
        except StorageError as error:
            self._lose(error)
            return self._own.incr(key, item.get_expiry())

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
        if time.monotonic() >= self._away_until:  # several requests may find it away at once: one line
            cause = type(error.storage_error).__name__
            logger.warning("the store of request limits is away (%s): this process counts for itself", cause)
        self._away_until = time.monotonic() + PAUSE_S


def _shared_store(settings: Settings) -> Storage | None:
    url = settings.limits_url or settings.effective_broker_url
    if not url.startswith(("redis://", "rediss://")):
        return None
    from redis.backoff import NoBackoff  # noqa: PLC0415 - only installed where it is used
    from redis.retry import Retry  # noqa: PLC0415

    # One more try at once, for a connection that was closed while idle. The library's own retries take seconds.
    options: dict[str, Any] = {
        "socket_timeout": TIMEOUT_S,
        "socket_connect_timeout": TIMEOUT_S,
        "retry": Retry(NoBackoff(), 1),
    }
    return RedisStorage(url, wrap_exceptions=True, key_prefix=NAMESPACE, **options)


def _network(address: str | None) -> str:
    """The address; of IPv6 the /64, which one customer has whole."""
    try:
        known = ipaddress.ip_address(address or "")
    except ValueError:
        return address or "unknown"
    if known.version == 6:
        return str(ipaddress.ip_network((known, 64), strict=False).network_address)
    return str(known)
