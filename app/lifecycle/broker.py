"""How Celery is set up, in one place for who rings (the relay), who answers (workers) and who asks whether it is up."""

from __future__ import annotations

from typing import Any

from app.lifecycle import spool  # noqa: F401 - registers spool://
from app.settings import Settings

QUEUE = "scrimp"


def celery_options(settings: Settings) -> dict[str, Any]:
    """Celery's configuration. No results, no retries, early acknowledgement: the database is the queue of record."""
    options: dict[str, Any] = {
        "broker_url": settings.effective_broker_url,
        "task_default_queue": QUEUE,
        "task_ignore_result": True,
        "task_acks_late": False,
        "worker_prefetch_multiplier": 1,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,  # a worker outlives a broker that is away, however long
        "task_serializer": "json",
        "accept_content": ["json"],
        "worker_hijack_root_logger": False,
        # Nobody steers workers through the broker: whoever reaches it cannot stop them, nor has a queue of their own.
        "worker_enable_remote_control": False,
    }
    if not settings.broker_url:
        options["broker_transport_options"] = spool_options(settings)
    elif settings.broker_url.startswith(("redis", "rediss", "sentinel")):
        options["broker_transport_options"] = {"socket_connect_timeout": 5.0, "socket_keepalive": True}
        # A busy worker keeps no message to itself: the next idle one gets it.
        options["worker_disable_prefetch"] = True
    return options


def spool_options(settings: Settings) -> dict[str, Any]:
    """The embedded broker (app.lifecycle.spool): where its messages lie."""
    settings.broker_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    return {"folder": str(settings.broker_dir), "polling_interval": 0.05}
