"""A Ray of this machine alone, for jobs on several of its GPUs, and a worker beside it.

`python -m worker.cluster.alone [OPTION OF ray start]... -- scrimp worker --devices cuda` starts Ray on loopback, with a
token that nobody else has, and then the command with Ray's address as SCRIMP_RAY_ADDRESS. Whichever ends first ends the
other; a signal to end goes to the command, or ends Ray before there is one.
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
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

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
    on_loopback = [f"--node-ip-address={HERE}", f"--port={port}"]
    unread = ["--include-dashboard=false", "--include-log-monitor=false"]
    started = [str(RAY), "start", "--head", "--block", f"--object-store-memory={STORE_BYTES}", *on_loopback, *unread]
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: signals.append(received))
    ray = subprocess.Popen([*started, *arguments[:split]], env=env, start_new_session=True)
    try:
        if not _answers(ray, port, signals):
            return 128 + signals[0] if signals else 1
        with subprocess.Popen(arguments[split + 1 :], env=env) as command:
            has_ray = True
            while command.poll() is None:
                if has_ray and ray.poll() is not None:
                    has_ray = False
                    signals.append(signal.SIGTERM)
                while signals:
                    command.send_signal(signals.pop(0))
                time.sleep(TICK_S)
        return command.returncode if command.returncode >= 0 else 128 - command.returncode
    finally:
        _end(ray)


def _answers(ray: subprocess.Popen[bytes], port: int, signals: Sequence[int]) -> bool:
    until = time.monotonic() + START_S
    while not signals and ray.poll() is None and time.monotonic() < until:
        try:
            socket.create_connection((HERE, port), timeout=1.0).close()
            return True
        except OSError:
            time.sleep(TICK_S)
    return False


def _end(ray: subprocess.Popen[bytes]) -> None:
    ray.terminate()
    with suppress(subprocess.TimeoutExpired):
        ray.wait(END_S)
    with suppress(ProcessLookupError):  # none of its processes is left, most often
        os.killpg(ray.pid, signal.SIGKILL)
    ray.wait()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
