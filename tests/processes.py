"""Processes of their own that do not load the program anew: each import takes a second."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext

LOADED = ["celery", "sqlalchemy.dialects.sqlite", "psycopg", "tests.ledger.support", "tests.lifecycle.contender"]


def quick() -> ForkServerContext:
    """Forks them from a clean process, without threads or connections, that has loaded what they need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    return context
