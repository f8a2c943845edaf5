"""A Ray cluster of several raylets on this machine, for tests and the drill: each stands for a machine with processors.

`python -m scripts.ray_machines COUNT [CPUS [GPUS]]` prints the head's address once all are up; the GPUs need not be
there. It reads commands from its standard input, and answers each with a line: `kill N` (SIGKILL to raylet N and all
that runs under it), `start`, `groups` (how many placement groups exist), `take` (a processor of the last machine, as
another user of the cluster's) and `release` (it again). It ends with its input. Ray's settings are read from the
environment.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from queue import SimpleQueue
from secrets import token_hex
from threading import Thread
from typing import Any

import psutil

from worker.cluster.certificates import make_authority, make_machine

PATIENCE_S = 600.0
HERE = "127.0.0.2"  # Ray takes 127.0.0.1 for this machine's name in its network
STORE_BYTES = 80 * 2**20  # the least that Ray allows; nothing of ours goes there


class Machines:
    """Ray's nodes on this machine (scripts.ray_machines), each with one processor.

    Args:
        folder: for the keys of their connections.
        gpus: of each node, to count.

    Attributes:
        environment: of whoever belongs to the cluster.
    """

    def __init__(self, count: int, folder: Path, settings: dict[str, str], gpus: int = 0) -> None:
        make_authority(folder / "authority")
        make_machine(folder / "authority", folder / "machine", [HERE, "127.0.0.1", "localhost"])
        self.environment = settings | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": token_hex(32),
            "RAY_USE_TLS": "1",
            "RAY_TLS_SERVER_CERT": str(folder / "machine" / "machine.crt"),
            "RAY_TLS_SERVER_KEY": str(folder / "machine" / "machine.key"),
            "RAY_TLS_CA_CERT": str(folder / "machine" / "ca.crt"),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",  # else all ranks but the first give way to everybody
            "RAY_memory_monitor_refresh_ms": "0",  # what others of this machine take is no reason to kill one
        }
        command = [sys.executable, "-W", "ignore", "-m", "scripts.ray_machines", str(count), "1", str(gpus)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | self.environment
        )
        self._answers: SimpleQueue[str] = SimpleQueue()
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()
        self.address = self._answer()

    def ask(self, command: str) -> str:
        """A command's answer; see scripts.ray_machines."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """Ends them all."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_S)
        finally:
            self._process.kill()
            self._reader.join(PATIENCE_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._answers.put(line.strip())
        self._answers.put("")

    def _answer(self) -> str:
        said = self._answers.get(timeout=PATIENCE_S)
        if not said:
            raise RuntimeError("the cluster's process has ended")
        return said


def main(count: int, cpus: int = 1, gpus: int = 0) -> None:
    """Runs the cluster until the input ends."""
    import ray
    from ray._private.state import state
    from ray.cluster_utils import Cluster
    from ray.util.placement_group import placement_group, remove_placement_group

    taken: list[Any] = []
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what Ray prints, of machines that died, is no answer
    plain: dict[str, Any] = {"num_cpus": cpus, "num_gpus": gpus, "object_store_memory": STORE_BYTES}
    plain |= {"node_ip_address": HERE, "include_dashboard": False, "include_log_monitor": False}
    cluster = Cluster(initialize_head=True, head_node_args=plain)
    machines = [cluster.head_node, *(cluster.add_node(**plain) for _ in range(count - 1))]
    ray.init(address=cluster.address, log_to_driver=False)
    print(cluster.address, file=answers, flush=True)
    for line in sys.stdin:
        match line.split():
            case ["kill", number]:
                raylet = psutil.Process(machines[int(number)].all_processes["raylet"][0].process.pid)
                for each in (raylet, *raylet.children(recursive=True)):
                    os.kill(each.pid, signal.SIGKILL)
                print("killed", file=answers, flush=True)
            case ["start"]:
                machines.append(cluster.add_node(**plain))
                print("started", file=answers, flush=True)
            case ["take"]:
                last = {"ray.io/node-id": machines[-1].node_id}
                taken.append(placement_group([{"CPU": 1.0}], bundle_label_selector=[last]))
                print("taken" if taken[-1].wait(PATIENCE_S) else "no room", file=answers, flush=True)
            case ["release"]:
                remove_placement_group(taken.pop())
                print("released", file=answers, flush=True)
            case ["groups"]:
                table = state.placement_group_table().values()
                print(sum(each["state"] != "REMOVED" for each in table), file=answers, flush=True)
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
