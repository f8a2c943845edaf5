"""The driver's side of a cluster: asks Ray for room, and starts an attempt's ranks there.

Ray decides on which machines ranks run, queues what does not fit yet, and tells of machines that die. What Ray carries
is public: certificates, addresses, releases, exit statuses. Keys and sums go over connections of the ranks' own
(worker.cluster.links).
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

import ray
from ray._private.state import available_resources_per_node
from ray.exceptions import OutOfMemoryError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from app.db.database import require_no_transaction
from app.lifecycle.attempts import AttemptLog
from app.lifecycle.claims import Gone
from app.lifecycle.queue.room import Need
from app.settings import Settings
from core.contracts.devices import Kind
from core.errors import StaleAttempt, TransientError, Unavailable
from worker.attempt.code_release import release
from worker.attempt.fork_server import ForkServer
from worker.attempt.supervisor import STOPPING, run_attempt
from worker.cluster.links import RING, START, Bridge, Port, send_whole
from worker.cluster.node import CRASHED, Node, Offer, Told
from worker.data.ranks import RanksError
from worker.messages import PEER_GONE, FailureCode, Start, failure_of

logger = logging.getLogger(__name__)
GROW_S = 300.0  # a cluster that grows on demand takes minutes to start machines
GRANT_S = 3.0  # in which Ray grants what is free
RETURN_S, POLL_S = 5.0, 0.05
WORST_FIRST: tuple[Gone, ...] = ("crashed", "lapsed", "lost")
CONNECT_S = 120.0  # in which Ray takes a driver: it tries by itself for twenty minutes, and may hang
START_S = 300.0  # in which actors start: loading torch took 150 s on a busy machine. Ends are heard meanwhile
LOOK_S = 1.0
WHY_S = 10.0  # in which the ends of all ranks are known once one has ended
NODE_ID = "ray.io/node-id"  # a label that every node has
CARD = "ray.io/accelerator-type"  # and this one every node whose GPUs Ray knows
RESOURCE: dict[Kind, str] = {"cpu": "CPU", "cuda": "GPU"}


class GroupError(RanksError):
    """The ranks of an attempt cannot be started."""


@dataclass(frozen=True)
class Granted:
    """Room for the ranks of an attempt.

    Attributes:
        room: a bundle for each rank, the first on this machine.
        reserved: in each bundle, in Ray's names.
        threads: of each rank.
    """

    need: Need
    room: PlacementGroup
    ranks: int
    reserved: dict[str, float]
    threads: int


class Cluster:
    """This process's connection to a Ray cluster, on one of whose machines it runs, and the room that it has there.

    Args:
        address: of the cluster's head, or `auto`.

    Raises:
        TimeoutError: no connection is made in time, or before this worker is told to stop. A thread of Ray's may still
            try: only the end of this process ends it.
    """

    def __init__(self, address: str) -> None:
        # In another thread: in the main one Ray would take over SIGTERM, which ends this worker gently.
        failed: list[BaseException] = []
        gently = signal.getsignal(signal.SIGTERM)

        def connect() -> None:
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING, namespace="scrimp")
            except BaseException as error:
                failed.append(error)

        thread, until = threading.Thread(target=connect, name="ray-init", daemon=True), time.monotonic() + CONNECT_S
        thread.start()
        while thread.is_alive():
            if STOPPING.is_set() or time.monotonic() > until:
                raise TimeoutError("it does not answer")
            thread.join(POLL_S)
        if failed:
            raise failed[0]
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, gently)  # Ray's C++ has put before it what aborts the process 3 s later
        self._node = str(ray.get_runtime_context().get_node_id())
        self._growth: threading.Thread | None = None
        self._granted: Granted | None = None

    def most(self, kind: Kind) -> int:
        """How many ranks the cluster has room for when nothing else runs; none if this machine has no such device. GPUs
        count that are like this machine's."""
        return self._ranks(kind, ((each["NodeID"], each["Resources"]) for each in self._able(kind)))

    def free(self, kind: Kind, share: int = 1) -> int:
        """How many ranks there was room for a moment ago, with so many processors or GPUs each; none if the first one
        had no room on this machine. GPUs count that are like this machine's."""
        able = {each["NodeID"] for each in self._able(kind)}
        free = ((node, each) for node, each in available_resources_per_node().items() if node in able)
        return self._ranks(kind, free, share)

    def _able(self, kind: Kind) -> list[Any]:
        """The machines that live, and whose devices are like this machine's."""
        nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
        card = _card(nodes.get(self._node))
        return [each for each in nodes.values() if kind == "cpu" or _card(each) == card]

    def _ranks(self, kind: Kind, resources: Iterable[tuple[str, Any]], share: int = 1) -> int:
        counts = {node: int(each.get(RESOURCE[kind], 0)) // share for node, each in resources}
        return sum(counts.values()) if counts.get(self._node) else 0

    def granted(self, need: Need) -> int:
        """See Grants.granted."""
        return self._granted.ranks if self._granted is not None and self._granted.need == need else 0

    def ask(self, need: Need) -> bool:
        """See Grants.ask. Room of one that takes what is free is what was free a moment ago."""
        require_no_transaction()
        self.give_up()
        try:
            free = self.free(need.kind)
            if free < need.ranks:  # a vain wait would keep predictions waiting
                logger.info("the cluster has no room for %d ranks now", need.ranks)
                return False
            ranks = min(need.limit, free)
            threads = need.threads or max(1, _processors() // ranks)
            reserved = {RESOURCE[need.kind]: float(self._share(ranks, threads) if need.kind == "cpu" else 1)}
            room = self._place(ranks, need.kind, reserved)
            try:
                if room.wait(GRANT_S):
                    self._granted = Granted(need, room, ranks, reserved, threads)
                    return True
            finally:
                if self._granted is None:
                    remove_placement_group(room)
        except RayError as error:
            logger.warning("the cluster cannot be asked for room: %s", type(error).__name__)
        return False

    def give_up(self) -> None:
        """Gives back what was granted. Returns once Ray says that it is free, or who looks next would find too little;
        or after `RETURN_S`, as another driver may have taken it."""
        granted, self._granted = self._granted, None
        if granted is None:
            return
        with suppress(RayError):
            (name, amount), *_ = granted.reserved.items()
            try:
                expected = _available(name) + amount * granted.ranks
            finally:
                remove_placement_group(granted.room)
            until = time.monotonic() + RETURN_S
            while _available(name) < expected and time.monotonic() < until:
                time.sleep(POLL_S)

    def grow(self, ranks: int) -> None:
        """Asks Ray for room for so many ranks on processors, unless it is asked already, and gives it up as soon as it
        is there: a cluster that grows on demand starts machines."""
        if self._growth is not None and self._growth.is_alive():
            return
        until = time.monotonic() + GROW_S

        def ask() -> None:
            with suppress(RayError):
                room = self._place(ranks, "cpu", {"CPU": 1.0})
                try:
                    while not room.wait(LOOK_S) and time.monotonic() < until:
                        pass
                finally:
                    remove_placement_group(room)

        self._growth = threading.Thread(target=ask, name="ray-growth", daemon=True)
        self._growth.start()

    def run(self, log: AttemptLog, settings: Settings, fork_server: ForkServer) -> str:
        """Runs one attempt of a claimed job in the room that was granted for it; see `run_attempt`."""
        granted = self._granted
        if granted is None:
            raise RuntimeError("a job was claimed without room for it")
        starting = AttemptLog(log.db, log.held, lease_s=log.lease_s, max_attempts=log.max_attempts)

        def goes_on() -> bool:
            return not STOPPING.is_set() and not starting.heartbeat()

        try:
            with closing(Group(granted, goes_on)) as group:
                return run_attempt(log, settings, fork_server, processes=granted.ranks, elsewhere=group)
        except StaleAttempt:
            logger.warning("attempt %s of %s is stale", log.held.attempt, log.held.job_id)
        except (RayError, TransientError) as error:
            logger.warning("the attempt cannot start on the cluster: %s", type(error).__name__, exc_info=error)
            with suppress(StaleAttempt):
                log.gone("lapsed" if isinstance(error, RanksError) else "lost")
        finally:
            self.give_up()  # and with it its actors
        return "unstarted"

    def _share(self, ranks: int, threads: int) -> int:
        """How many processors to reserve for each rank: its threads, or fewer where not so many are free."""
        able = (each for each in range(threads, 1, -1) if self.free("cpu", each) >= ranks)
        return next(able, 1)

    def _place(self, ranks: int, kind: Kind, reserved: dict[str, float]) -> PlacementGroup:
        """Asks for so many bundles, the first on this machine, on GPUs like this machine's."""
        card = next((_card(node) for node in ray.nodes() if node["NodeID"] == self._node), None)
        of_card = {CARD: card} if kind == "cuda" and card is not None else {}
        labels: list[dict[str, str]] = [of_card | {NODE_ID: self._node}, *(of_card for _ in range(ranks - 1))]
        return placement_group([reserved] * ranks, bundle_label_selector=labels)


def _heard(offers: list[Any], goes_on: Callable[[], bool]) -> list[Offer]:
    """What all actors say, which takes as long as loading torch does."""
    until = time.monotonic() + START_S
    while len(ray.wait(offers, num_returns=len(offers), timeout=LOOK_S)[0]) < len(offers):
        if not goes_on():
            raise TransientError("the attempt is to end before its ranks have started")
        if time.monotonic() > until:
            raise GroupError("a rank's actor does not start")
    try:
        received: list[Offer] = ray.get(offers, timeout=START_S)
    except RayError as error:
        raise GroupError("a rank's actor does not start") from error
    return received


def _card(node: Any) -> str | None:
    """What Ray calls a node's GPUs, if it knows."""
    return None if node is None else node.get("Labels", {}).get(CARD)


def _available(name: str) -> float:
    """How much of a resource was free a moment ago."""
    return sum(float(each.get(name, 0.0)) for each in available_resources_per_node().values())


def _processors() -> int:
    return len(os.sched_getaffinity(0))


class Group:
    """The ranks of one attempt. Rank 0 is a process of this worker's; the others are actors'.

    Args:
        granted: its room.
        goes_on: called every second while actors start; False: the attempt is to end.

    Raises:
        TransientError: it does not go on.
        GroupError: a rank's actor does not start, runs another release, or has no GPU of its own.
    """

    def __init__(self, granted: Granted, goes_on: Callable[[], bool] = lambda: True) -> None:
        self.size, self._granted = granted.ranks, granted
        self._port = Port(ray.util.get_node_ip_address())
        self._bridge: Bridge | None = None
        self._runs: list[Any] = []
        self._closed = threading.Event()
        self._watch: threading.Thread | None = None
        actor = ray.remote(Node)
        self._nodes = [
            actor.options(
                num_cpus=granted.reserved.get("CPU", 0.0),
                num_gpus=granted.reserved.get("GPU", 0.0),
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(granted.room, placement_group_bundle_index=index),
            ).remote()
            for index in range(self.size)
        ]
        try:
            offers = _heard([each.offer.remote() for each in self._nodes], goes_on)
        except BaseException:
            self._port.close()
            raise
        # The first bundle is rank 0's, which this worker forks: its actor only keeps the place.
        self._ring = [self._port.address, *(each.address for each in offers[1:])]
        self._gpus = tuple(each.gpu for each in offers)
        if any(each.release != release() for each in offers):
            self._port.close()
            raise GroupError("a machine of the cluster runs another release")
        if granted.need.kind == "cuda" and not all(self._gpus):
            self._port.close()
            raise GroupError("a rank has no GPU")

    def placed(self, start: Start) -> Start:
        """See Elsewhere.placed."""
        kind, gpus = self._granted.need.kind, tuple(filter(None, self._gpus))
        update = {"device": kind, "processes": self.size, "gpus": gpus, "threads": self._granted.threads}
        return start.model_copy(update=update)

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
