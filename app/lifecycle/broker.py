"""Celery's configuration, shared by the relay (which sends), the workers (which receive) and the health check."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from app.lifecycle import spool  # noqa: F401 - registers spool://
from app.settings import Settings
from core.contracts.devices import Device

QUEUE = "scrimp"
GPU_QUEUE = "scrimp-cuda"  # wake-ups for jobs that only GPU workers may take; a CPU worker would use them up


def queues_of(devices: Iterable[Device]) -> str:
    """Returns the queues that a worker on these devices listens to, as `--queues` takes them."""
    return ",".join([QUEUE, *[GPU_QUEUE] * any(each.kind == "cuda" for each in devices)])


def celery_options(settings: Settings) -> dict[str, Any]:
    """Returns Celery's options. No results, no retries, early acknowledgement: the database is the queue of record."""
    options: dict[str, Any] = {
        "broker_url": settings.effective_broker_url,
        "task_default_queue": QUEUE,
        "task_ignore_result": True,
        "task_acks_late": False,
        "worker_prefetch_multiplier": 1,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,  # a worker survives any outage of the broker
        "task_serializer": "json",
        "accept_content": ["json"],
        "worker_hijack_root_logger": False,
        # No remote control: a client of the broker cannot stop workers, and workers need no control queues.
        "worker_enable_remote_control": False,
    }
    if not settings.broker_url:
        options["broker_transport_options"] = spool_options(settings)
    elif settings.broker_url.startswith(("redis", "rediss", "sentinel")):
        options["broker_transport_options"] = {"socket_connect_timeout": 5.0, "socket_keepalive": True}
        # A busy worker reserves no message: the next idle worker gets it.
        options["worker_disable_prefetch"] = True
    return options


def spool_options(settings: Settings) -> dict[str, Any]:
    """Returns the embedded broker's options (app.lifecycle.spool), and creates its folder."""
    settings.broker_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    return {"folder": str(settings.broker_dir), "polling_interval": 0.05}
