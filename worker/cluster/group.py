"""The driver's side of a cluster: asks Ray for room, and starts an attempt's ranks there.

Ray decides on which machines ranks run, queues what does not fit yet, and tells of machines that die. What Ray carries
is public: certificates, addresses, releases, exit statuses. Keys and sums go over connections of the ranks' own
(worker.cluster.links).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import chain
from typing import Any

import ray
from ray._private.state import available_resources_per_node
from ray.exceptions import OutOfMemoryError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from sqlalchemy import select

from app.db.models import Job
from app.lifecycle.attempts import AttemptLog
from app.lifecycle.claims import Gone
from app.settings import Settings
from core.contracts.runtime import Runtime, StoredRuntime
from core.errors import StaleAttempt, TransientError, Unavailable
from worker.attempt.code_release import release
from worker.attempt.fork_server import ForkServer
from worker.attempt.rank_processes import PEER_GONE, failure_of
from worker.attempt.supervisor import STOPPING, run_attempt
from worker.cluster.links import RING, START, Bridge, Port, send_whole
from worker.cluster.node import CRASHED, Node, Told
from worker.data.ranks import RanksError
from worker.messages import FailureCode, Start

logger = logging.getLogger(__name__)
GROW_S = 300.0  # a cluster that grows on demand takes minutes to start machines
ROOM_S = 15.0  # room that there was as a job was claimed; another worker may have been quicker
WORST_FIRST: tuple[Gone, ...] = ("crashed", "lapsed", "lost")
START_S = 120.0  # in which actors start: each loads torch
LOOK_S = 1.0
WHY_S = 10.0  # in which the ends of all ranks are known once one has ended
NODE_ID = "ray.io/node-id"  # a label that every node has


class GroupError(RanksError):
    """The ranks of an attempt cannot be started."""


class Cluster:
    """This process's connection to a Ray cluster, on one of whose machines it runs.

    Args:
        address: of the cluster's head, or `auto`.
    """

    def __init__(self, address: str) -> None:
        # In another thread: in the main one Ray would take over SIGTERM, which ends this worker gently.
        failed: list[BaseException] = []

        def connect() -> None:
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING, namespace="scrimp")
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=connect, name="ray-init")
        thread.start()
        thread.join()
        if failed:
            raise failed[0]
        self._growth: threading.Thread | None = None

    def most(self) -> int:
        """How many ranks the cluster has room for when nothing else runs."""
        return sum(int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"])

    def free(self, share: int = 1) -> int:
        """How many ranks the cluster has room for now, at so many processors each; none if the first one has no room on
        this machine."""
        free = {
            node: int(resources.get("CPU", 0)) // share for node, resources in available_resources_per_node().items()
        }
        return sum(free.values()) if free.get(ray.get_runtime_context().get_node_id()) else 0

    def share(self, ranks: int, threads: int) -> int:
        """How many processors to reserve for each rank: its threads, or fewer where not so many are free."""
        able = (each for each in range(threads, 1, -1) if self.free(share=each) >= ranks)
        return next(able, 1)

    def grow(self, ranks: int) -> None:
        """Asks Ray for room for so many ranks, unless it is asked already, and gives it up as soon as it is there: a
        cluster that grows on demand starts machines."""
        if self._growth is not None and self._growth.is_alive():
            return
        until = time.monotonic() + GROW_S

        def ask() -> None:
            with suppress(RayError), self.room(ranks, {"CPU": 1.0}, lambda: time.monotonic() < until):
                pass

        self._growth = threading.Thread(target=ask, name="ray-growth", daemon=True)
        self._growth.start()

    def run(self, log: AttemptLog, settings: Settings, fork_server: ForkServer) -> str:
        """Runs one attempt of a claimed job; see `run_attempt`. Where another worker was quicker to take the room, or a
        machine is gone, gives the job back: it waits in the queue, and this worker takes others.

        The time that it waits for room is no time of the job's.
        """
        runtime, device = _asked(log)
        try:
            largest = self.most()
            ranks = max(1, min(runtime.ranks, largest) if device else runtime.ranks)  # once ready, fewer go on
            threads = device or (runtime.threads if runtime.threads != "auto" else max(1, _processors() // ranks))
            reserved = {"CPU": float(self.share(ranks, threads))}
            waiting = AttemptLog(log.db, log.held, lease_s=log.lease_s, max_attempts=log.max_attempts)
            until = time.monotonic() + ROOM_S

            def wait() -> bool:
                is_told = STOPPING.is_set() or waiting.heartbeat()
                return not is_told and time.monotonic() < until and self.most() >= largest  # a machine may be gone

            with self.room(ranks, reserved, wait) as room:
                if room is None:
                    logger.warning("the cluster has no room for %d ranks now", ranks)
                    log.gone("lost")
                    return "unstarted"
                with closing(Group(room, reserved, threads)) as group:
                    return run_attempt(log, settings, fork_server, processes=ranks, elsewhere=group)
        except StaleAttempt:
            logger.warning("attempt %s of %s is stale", log.held.attempt, log.held.job_id)
        except (RayError, TransientError) as error:
            logger.warning("the attempt cannot start on the cluster: %s", type(error).__name__, exc_info=error)
            log.gone("lapsed" if isinstance(error, RanksError) else "lost")
        return "unstarted"

    @contextmanager
    def room(self, ranks: int, reserved: dict[str, float], wait: Callable[[], bool]) -> Iterator[PlacementGroup | None]:
        """Room for so many ranks, the first on this machine, until the block ends; None if there is none.

        Args:
            reserved: for each rank, in Ray's names.
            wait: returns False to give up; called every second.
        """
        own_node = {NODE_ID: ray.get_runtime_context().get_node_id()}
        labels: list[dict[str, str]] = [own_node, *({} for _ in range(ranks - 1))]
        group = placement_group([reserved] * ranks, bundle_label_selector=labels)
        try:
            ready = False
            while not ready and wait():
                ready = group.wait(LOOK_S)
            yield group if ready else None
        finally:
            with suppress(RayError):
                remove_placement_group(group)  # and with it its actors


def _asked(log: AttemptLog) -> tuple[Runtime, int | None]:
    """What a job asks for, and the threads of its first ready attempt."""
    with log.db.read() as session:
        spec, threads = session.execute(select(Job.spec, Job.threads).where(Job.id == log.held.job_id)).one()
    return StoredRuntime.of(spec).runtime, threads


def _processors() -> int:
    return len(os.sched_getaffinity(0))


class Group:
    """The ranks of one attempt. Rank 0 is a process of this worker's; the others are actors'.

    Args:
        room: a bundle for each rank.
        reserved: of each bundle.
        threads: of each rank.

    Raises:
        GroupError: a rank's actor does not start, or runs another release.
    """

    def __init__(self, room: PlacementGroup, reserved: dict[str, float], threads: int) -> None:
        self.size, self._threads = room.bundle_count, threads
        self._port = Port(ray.util.get_node_ip_address())
        self._bridge: Bridge | None = None
        self._runs: list[Any] = []
        self._closed = threading.Event()
        self._watch: threading.Thread | None = None
        actor = ray.remote(Node)
        self._nodes = [
            actor.options(
                num_cpus=reserved["CPU"],
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(room, placement_group_bundle_index=index),
            ).remote()
            for index in range(self.size)
        ]
        try:
            offers = ray.get([each.offer.remote() for each in self._nodes], timeout=START_S)
        except RayError as error:
            self._port.close()
            raise GroupError("a rank's actor does not start") from error
        # The first bundle is rank 0's, which this worker forks: its actor only keeps the place.
        self._ring = [self._port.address, *(address for address, _ in offers[1:])]
        if any(other_release != release() for _, other_release in offers):
            self._port.close()
            raise GroupError("a machine of the cluster runs another release")

    def placed(self, start: Start) -> Start:
        """See Elsewhere.placed."""
        return start.model_copy(update={"threads": self._threads})

    @contextmanager
    def begin(self, start: Start, stored: dict[str, str]) -> Iterator[tuple[int, ...]]:
        """Starts the other ranks. Yields the descriptor that leads rank 0 to them; its process takes a copy.

        Args:
            stored: how the service names each file that the message names by this machine's path.

        Raises:
            LinksError: a rank cannot be reached.
        """
        if self.size == 1:
            yield ()
            return
        self._runs = [each.run.remote(rank, self._ring) for rank, each in enumerate(self._nodes) if rank]
        self._bridge = bridge = Bridge(self._port, self._ring[1])
        self._watch = threading.Thread(target=self._look, args=(bridge,), name="ranks", daemon=True)
        self._watch.start()
        order = Told(start=start, stored=stored).model_dump_json().encode()
        with bridge.inner:
            for peer in self._ring[1:]:
                send_whole(self._port.connect(peer, START), order)
            bridge.hear(self._port.accept({RING: self._ring[-1]})[RING])
            yield (bridge.inner.fileno(),)

    def why(self) -> FailureCode | Gone:
        """Why rank 0 found the others gone: a rank's failure, or the one of their ends that is most the job's own.

        If none says why, they cannot reach each other: `lapsed`, as that may be so for ever.
        """
        ray.wait(self._runs, num_returns=len(self._runs), timeout=WHY_S)
        ends = [self._ended(each) for each in self._runs]
        codes = (failure_of(each) for each in ends if isinstance(each, int))
        reasons: Iterable[FailureCode | Gone] = chain(
            filter(None, codes), (each for each in WORST_FIRST if each in ends)
        )
        return next(iter(reasons), "lapsed")

    def close(self) -> None:
        """Ends all ranks of this attempt that are left."""
        self._closed.set()
        if self._watch is not None:
            self._watch.join()
        if self._bridge is not None:
            self._bridge.finish(WHY_S)
        self._port.close()
        for node in self._nodes:
            with suppress(RayError):
                ray.kill(node)

    def _look(self, bridge: Bridge) -> None:
        """Ends the exchange as soon as Ray says that a rank's machine or actor is gone: its connections may not."""
        while not self._closed.wait(LOOK_S):
            ends = [self._ended(each) for each in self._runs]
            if any(each not in (0, None) for each in ends):
                bridge.cut()
                return

    def _ended(self, run: Any) -> int | Gone | None:
        """A rank's exit status, or how its job's attempt counts for it; None while it runs."""
        if not ray.wait([run], timeout=0)[0]:
            return None
        try:
            status = int(ray.get(run, timeout=START_S))
            return "crashed" if status == CRASHED else status
        except RayTaskError as error:  # our own code there: counted, unless its cause is an external one
            logger.warning("a rank's actor fails: %s", type(error.cause).__name__)
            if isinstance(error.cause, RanksError):
                return PEER_GONE
            return "lost" if isinstance(error.cause, TransientError | Unavailable) else "crashed"
        except RayError as error:  # as a worker that dies: what ended it may be this job's memory
            logger.warning("a rank of this attempt is gone: %s", type(error).__name__)
            return "crashed" if isinstance(error, OutOfMemoryError) else "lapsed"
