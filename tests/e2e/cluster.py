"""A deployment without `scrimp serve`: each process by itself, as many as wanted, over one database and broker."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx

from scrimp.client import Client
from tests.e2e.conftest import until


class Cluster:
    """Starts `scrimp prepare`, then any number of `scrimp api | relay | worker`."""

    def __init__(self, home: Path, environment: dict[str, str]) -> None:
        self.home = home
        fast = {"SCRIMP_RING_AGAIN_S": "1", "SCRIMP_HEARTBEAT_S": "1", "OMP_NUM_THREADS": "1"}
        self.environment = os.environ | fast | environment | {"SCRIMP_HOME": str(home)}
        self.processes: list[subprocess.Popen[bytes]] = []
        self.ports: list[int] = []
        self._run("prepare").wait(120)
        assert self.processes.pop().returncode == 0, self.words("prepare")

    def _run(self, service: str, **more: str) -> subprocess.Popen[bytes]:
        self.home.mkdir(mode=0o700, exist_ok=True)
        with (self.home.parent / f"{service}.out").open("ab") as log:
            command = [sys.executable, "-m", "scrimp.cli", service]
            process = subprocess.Popen(command, stdout=log, stderr=log, env=self.environment | more)
        self.processes.append(process)
        return process

    def words(self, service: str) -> str:
        return (self.home.parent / f"{service}.out").read_text()

    def api(self) -> int:
        """Starts one more API; its port."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        self._run("api", SCRIMP_PORT=str(port))
        until(lambda: self._answers(port))
        self.ports.append(port)
        return port

    def relay(self) -> None:
        self._run("relay")

    def worker(self) -> None:
        self._run("worker")

    def _answers(self, port: int) -> bool:
        assert self.processes[-1].poll() is None, self.words("api")
        try:
            return httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=2, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def client(self, api: int = 0) -> Client:
        return Client(f"http://127.0.0.1:{self.ports[api]}", (self.home / "admin.key").read_text().strip())

    def stop(self) -> list[int]:
        """Ends all in order; their exit codes."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        codes = []
        for process in self.processes:
            try:
                codes.append(process.wait(20))
            except subprocess.TimeoutExpired:
                process.kill()
                codes.append(process.wait())
        return codes
