"""What a test leaves open in a cycle of references is told before the next test begins."""

from __future__ import annotations

import gc
import socket
import sys
from typing import Any

import pytest

from tests import conftest


def test_an_open_socket_in_a_cycle_is_told_at_its_test_s_end(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: told.append(found.exc_type))
    older = [[] for _ in range(2_000_000)]
    for _ in range(20):  # tests before it, and objects that outlive them: Python's own choice is a look at all
        gc.collect(1)
    ours, theirs = socket.socketpair()
    cycle: list[Any] = [ours]
    cycle.append(cycle)
    [[] for _ in range(100_000)]  # a collection on the way does not make it old
    at_end = conftest.its_garbage._get_wrapped_function()()  # type: ignore[attr-defined]
    next(at_end)
    del ours, cycle
    assert told == []
    assert next(at_end, None) is None and told == [ResourceWarning]
    theirs.close()
    del older
