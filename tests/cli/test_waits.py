"""Idle processes wait for signals, not for the next of many ticks."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest
import uvicorn

from scrimp_server import api, serve

FOREVER_S = 3600.0  # a wait of this length that ends was ended


def test_a_stop_signal_ends_the_wait_of_scrimp_serve() -> None:
    with serve._stop_signals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        signals.wait(FOREVER_S)
        assert signals.received == [signal.SIGTERM]


def test_the_end_of_a_child_ends_the_wait_of_scrimp_serve() -> None:
    before = signal.getsignal(signal.SIGCHLD)
    with serve._stop_signals() as signals:
        child = subprocess.Popen([sys.executable, "-S", "-c", ""])
        signals.wait(FOREVER_S)
        assert child.wait() == 0 and signals.received == []
    assert signal.getsignal(signal.SIGCHLD) == before


def test_a_stop_signal_ends_the_wait_of_the_api(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: list[int] = []

    class Counted(api.Server):
        async def on_tick(self, counter: int) -> bool:
            if not ticks:
                asyncio.get_running_loop().call_soon(self.handle_exit, signal.SIGTERM, None)
            ticks.append(counter)
            return await super().on_tick(counter)

    monkeypatch.setattr(api, "TICK_S", FOREVER_S)
    asyncio.run(Counted(uvicorn.Config("none", log_config=None)).main_loop())
    assert ticks == [0, api.TICKS]
