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
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, Literal

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from sqlalchemy import select

from app.db.models import Job
from app.lifecycle.attempts import AttemptLog
from app.settings import Settings
from core.contracts.runtime import Runtime, StoredRuntime
from core.errors import StaleAttempt, TransientError, Unavailable
from worker.attempt.code_release import release
from worker.attempt.fork_server import ForkServer
from worker.attempt.rank_processes import PEER_GONE, failure_of
from worker.attempt.supervisor import STOPPING, run_attempt
from worker.cluster.links import RING, START, Bridge, Port, send_whole
from worker.cluster.node import Node, Told
from worker.messages import FailureCode, Start

logger = logging.getLogger(__name__)
ROOM_S = 300.0  # a cluster that grows on demand takes minutes to start machines
START_S = 120.0  # in which actors start: each loads torch
LOOK_S = 1.0
WHY_S = 10.0  # in which the ends of all ranks are known once one has ended
CRASHED = -1  # the status of a rank that a signal ended, or whose actor raised an error of its own
NODE_ID = "ray.io/node-id"  # a label that every node has


class GroupError(TransientError):
    """The ranks of an attempt cannot be started: its job is queued again."""

    code = "ranks"


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

    def most(self, share: int = 1) -> int:
        """How many ranks the cluster has room for when nothing else runs, at so many processors each."""
        return sum(int(node["Resources"].get("CPU", 0)) // share for node in ray.nodes() if node["Alive"])

    def share(self, ranks: int, threads: int) -> int:
        """How many processors to reserve for each rank: its threads, or fewer where the cluster has not so many."""
        able = (each for each in range(threads, 1, -1) if self.most(share=each) >= ranks)
        return next(able, 1)

    def run(self, log: AttemptLog, settings: Settings, fork_server: ForkServer) -> str:
        """Runs one attempt of a claimed job; see `run_attempt`. Where there is no room in `ROOM_S`, gives the job back:
        it waits in the queue, and this worker takes others.

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
            log.gone("lost")
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

    def why(self) -> FailureCode | Literal["lost"] | None:
        """Why rank 0 found the others gone: a rank's failure, or a machine's loss; None if neither is known."""
        ray.wait(self._runs, num_returns=len(self._runs), timeout=WHY_S)
        ends = [self._ended(each) for each in self._runs]
        reasons = (failure_of(each) for each in ends if isinstance(each, int) and each != PEER_GONE)
        code = next((each for each in reasons if each is not None), None)
        return code or ("lost" if "lost" in ends else None)

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

    def _ended(self, run: Any) -> int | Literal["lost"] | None:
        """A rank's exit status; None while it runs."""
        if not ray.wait([run], timeout=0)[0]:
            return None
        try:
            return int(ray.get(run))
        except RayTaskError as error:  # our own code there: counted, unless its cause is an external one
            logger.warning("a rank's actor fails: %s", type(error.cause).__name__)
            return "lost" if isinstance(error.cause, TransientError | Unavailable) else CRASHED
        except RayError as error:
            logger.warning("a rank of this attempt is lost: %s", type(error).__name__)
            return "lost"
