"""A Ray of this machine alone, for jobs on several of its GPUs, and a worker beside it.

`python -m worker.cluster.alone [OPTION OF ray start]... -- scrimp worker --devices cuda` starts Ray on loopback, with a
token that nobody else has, and then the command with Ray's address as SCRIMP_RAY_ADDRESS. Whichever ends first ends the
other; a signal to end goes to the command.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path
from secrets import token_hex
from types import FrameType

HERE = "127.0.0.2"  # Ray takes 127.0.0.1 for this machine's name in its network
START_S, TICK_S, END_S = 300.0, 0.2, 60.0
STORE_BYTES = 80 * 2**20  # the least that Ray allows; nothing of ours goes there
RAY = Path(sysconfig.get_path("scripts")) / "ray"


def environment(address: str) -> dict[str, str]:
    """Of both processes."""
    ray = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # else all ranks but the first give way to everybody
    }
    return os.environ | ray | {"SCRIMP_RAY_ADDRESS": address}


def main(arguments: Sequence[str]) -> int:
    """Runs both. Returns the command's exit status, or 1 if Ray does not start or ends first."""
    if "--" not in arguments[:-1]:
        sys.stderr.write(str(__doc__))
        return 2
    split = list(arguments).index("--")
    with socket.create_server((HERE, 0)) as free:
        port = free.getsockname()[1]
    env = environment(f"{HERE}:{port}")
    on_loopback = [f"--node-ip-address={HERE}", f"--port={port}", "--include-dashboard=false"]
    started = [str(RAY), "start", "--head", "--block", f"--object-store-memory={STORE_BYTES}", *on_loopback]
    ray = subprocess.Popen([*started, *arguments[:split]], env=env, start_new_session=True)
    try:
        if not _answers(ray, port):
            return 1
        with subprocess.Popen(arguments[split + 1 :], env=env) as command:

            def passed_on(number: int, _frame: FrameType | None) -> None:
                command.send_signal(number)

            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, passed_on)
            while command.poll() is None and ray.poll() is None:
                time.sleep(TICK_S)
            if command.poll() is None:
                command.terminate()
            status = command.wait()
        return status if status >= 0 else 128 - status
    finally:
        _end(ray)


def _answers(ray: subprocess.Popen[bytes], port: int) -> bool:
    until = time.monotonic() + START_S
    while ray.poll() is None and time.monotonic() < until:
        try:
            socket.create_connection((HERE, port), timeout=1.0).close()
            return True
        except OSError:
            time.sleep(TICK_S)
    return False


def _end(ray: subprocess.Popen[bytes]) -> None:
    ray.terminate()
    try:
        ray.wait(END_S)
    except subprocess.TimeoutExpired:
        os.killpg(ray.pid, signal.SIGKILL)
        ray.wait()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
