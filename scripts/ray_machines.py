"""A Ray cluster of several raylets on this machine, for tests and the drill: each stands for a machine with processors.

`python -m scripts.ray_machines COUNT [CPUS]` prints the head's address once all are up. It reads commands from its
standard input, and answers each with a line: `kill N` (SIGKILL to raylet N and all that runs under it), `start`,
`groups` (how many placement groups exist). It ends with its input. RAY_AUTH_TOKEN is read from the environment.
"""

from __future__ import annotations

import os
import signal
import sys

import psutil
import ray
from ray._private.state import state
from ray.cluster_utils import Cluster

HERE = "127.0.0.2"  # Ray takes 127.0.0.1 for this machine's name in its network
STORE_BYTES = 80 * 2**20  # the least that Ray allows; nothing of ours goes there


def main(count: int, cpus: int) -> None:
    """Runs the cluster until the input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what Ray prints, of machines that died, is no answer
    plain = {"num_cpus": cpus, "object_store_memory": STORE_BYTES, "node_ip_address": HERE, "include_dashboard": False}
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
            case ["groups"]:
                table = state.placement_group_table().values()
                print(sum(each["state"] != "REMOVED" for each in table), file=answers, flush=True)
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
