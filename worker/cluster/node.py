"""A rank's actor on a machine of the cluster: starts the fork server, and carries bytes for the sandboxed process.

Ray's processes have threads, and a sandbox needs a process with one: so the fork server is started by exec and forks
the rank (worker.attempt.fork_server). Whatever ends this process ends both, by the kernel's rule.

The actor is as trusted as a worker's supervisor: the job's keys pass through it. It has neither a database nor secrets
of the service. It finds the parts by this machine's own settings: SCRIMP_OBJECT_STORE, or a SCRIMP_STORAGE_ROOT that
the machines share.
"""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from app.settings import Settings, get_settings
from app.storage import objects, parts
from core.contracts.base import Document
from core.parts.damage import DataDamagedError
from core.parts.sealed import header_of
from worker import messages
from worker.attempt.code_release import release
from worker.attempt.fork_server import EXITED, ForkServer
from worker.attempt.user_checks import user_of
from worker.channel import Channel
from worker.cluster.links import RING, START, Address, Bridge, LinksError, Port, receive_whole
from worker.messages import Part, Start, exit_status, failure_of

CRASHED = -1  # the status of a rank that a signal ended, or that may do better in another attempt
DRAIN_S = 60.0  # in which the next rank reads what an ended one said


class Told(Document):
    """What the driver tells a rank, over a connection of their own.

    Attributes:
        stored: how the service names each file that the start message names by the driver's path.
    """

    start: Start
    stored: dict[str, str]


@dataclass(frozen=True)
class Offer:
    """Where a rank can be reached, what code runs there, and its GPU, as CUDA_VISIBLE_DEVICES names it."""

    address: Address
    release: str
    gpu: str | None


class Node:
    """One rank's place. Ray makes it an actor; its methods' arguments and results are all that Ray carries."""

    def __init__(self) -> None:
        self._port: Port | None = None

    def offer(self) -> Offer:
        """What this place has."""
        import ray  # noqa: PLC0415 - an extra

        self._port = Port(ray.util.get_node_ip_address())
        gpus = ray.get_runtime_context().get_accelerator_ids()["GPU"]
        return Offer(self._port.address, release(), gpus[0] if gpus else None)

    def run(self, rank: int, ring: Sequence[Address]) -> int:
        """Runs the rank to its end. Returns its process's exit status; see `_status`.

        Args:
            ring: all ranks, in their order.
        """
        if self._port is None:
            raise RuntimeError("no port was offered")
        with ExitStack() as open_:
            bridge = Bridge(self._port, ring[(rank + 1) % len(ring)])
            accepted = self._port.accept({START: ring[0], RING: ring[rank - 1]})
            self._port.close()
            bridge.hear(accepted[RING])
            try:
                order = Told.model_validate_json(receive_whole(accepted[START]))
            except ValidationError:  # its text would quote keys, and Ray would carry it
                raise LinksError("the driver's message is none") from None
            settings = get_settings()
            output = open_.enter_context(tempfile.TemporaryDirectory(prefix="scrimp-rank-"))
            try:
                start = here(order, rank, settings, output, open_)
            except DataDamagedError:
                return _status(exit_status("data-damaged"), order, settings)
            forks = ForkServer(settings.attempt_memory_bytes, None, user_of(settings))
            open_.callback(forks.close)
            own_end, child_end = socket.socketpair()
            channel = Channel(own_end, messages.TO_SUPERVISOR)
            open_.callback(channel.close)
            with child_end, bridge.inner:
                process = forks.start(child_end.fileno(), bridge.inner.fileno())
            channel.send(start)
            while not process.ended(3600.0):
                pass
            bridge.finish(DRAIN_S)
            exit_text = process.how() or ""
            process.close()
        ended = int(exit_text.removeprefix(EXITED)) if exit_text.startswith(EXITED) else CRASHED
        return _status(ended, order, settings)


def _status(ended: int, order: Told, settings: Settings) -> int:
    """What a rank's end is for its job, as on one machine (worker.attempt.supervisor): a machine that cannot compute,
    or a copy of a part that this machine's disk has changed, is no failure of the job's. The copy is removed: another
    attempt fetches it anew."""
    code = failure_of(ended)
    if code == "device" or (code == "data-damaged" and _discarded(order, settings)):
        return CRASHED
    return ended


def _discarded(order: Told, settings: Settings) -> bool:
    """Removes this machine's copies of a job's data sets. Returns False if it has none."""
    store, train = parts.of(settings), order.start.parts.train
    discarded = [
        store.discard(each) for each in {_dataset_of(order.stored[part.path]) for part in train}
    ]  # all of them
    return any(discarded)


def _dataset_of(stored: str) -> str:
    return stored.split("/")[1]


def here(order: Told, rank: int, settings: Settings, output: str, open_: ExitStack) -> Start:
    """The start message with this machine's paths. A rank reads no hold-out, so none is fetched.

    Args:
        open_: holds the parts' files until it ends.

    Raises:
        DataDamagedError, StorageFull, Unavailable: see `app.storage.parts`.
    """
    start, store = order.start, parts.of(settings)

    def part(named: Part) -> Part:
        stored = order.stored[named.path]
        path = open_.enter_context(store.held(stored, named.sha256))
        cache = None if named.cache_dir is None else str(store.features(_dataset_of(stored)))
        # A copy of this machine may be in plaintext.
        return named.model_copy(
            update={"path": str(path), "cache_dir": cache, "seal": named.seal if header_of(path) is not None else None}
        )

    models = None if settings.models_root is None else settings.models_root.resolve()
    public, mean = start.parts.public, start.mean
    extractor = None if start.extractor_dir is None or models is None else str(models / Path(start.extractor_dir).name)
    update = {
        "rank": rank,
        "parts": messages.Parts(
            train=tuple(part(each) for each in start.parts.train), public=None if public is None else part(public)
        ),
        "mean": mean if mean is None else _mean(mean, order.stored, settings),
        "extractor_dir": extractor,
        "models_root": None if start.models_root is None or models is None else str(models),
        "output_dir": str(Path(output).resolve()),
        "self_tested": False,  # of the driver's machine
    }
    return start.model_copy(update=update)


def _mean(mean: Part, stored: Mapping[str, str], settings: Settings) -> Part:
    path = objects.of(settings).local(stored[mean.path], mean.sha256)
    return mean.model_copy(update={"path": str(path.resolve())})
