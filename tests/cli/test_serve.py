"""`scrimp serve` as a process: its port, and a second signal. Its life is in tests/e2e: see test_serve.py there."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Service, all_gone, until


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    running = Service(tmp_path / "home").start()
    yield running
    running.stop()


def output(service: Service) -> str:
    return (service.home.parent / "serve.out").read_text()


def serve(home: Path, port: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scrimp.cli", "serve", "--home", str(home), "--port", str(port)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.nightly  # by day one signal ends it: tests/e2e/conftest.py
def test_a_second_signal_ends_it_at_once(service: Service) -> None:
    until(lambda: "\nready in" in output(service))
    assert service.process is not None
    family = service.descendants()
    worker = until(lambda: service.running("celery"))
    assert worker is not None
    os.kill(worker.pid, signal.SIGSTOP)  # it will not stop when it is asked to
    service.process.terminate()
    until(lambda: not service.running("app.lifecycle.relay"))
    service.process.terminate()
    assert service.process.wait(300) == -signal.SIGTERM
    until(lambda: all_gone(family))


def test_a_port_in_use_is_said(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        refused = serve(tmp_path / "home", port)
    assert refused.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in refused.stderr
    assert "--port" in refused.stderr
