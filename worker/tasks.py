"""The one task: claim a job, run an attempt, settle. The message is only a wake-up; the database picks the job."""

from __future__ import annotations

import logging
import os
import socket
from contextlib import ExitStack
from functools import cache
from subprocess import SubprocessError
from typing import TYPE_CHECKING, Any

from celery.signals import worker_ready, worker_shutdown

from app import tracing
from app.db.database import Database
from app.ledger.transparency.heads import Heads
from app.lifecycle.attempts import AttemptLog
from app.lifecycle.claims import Claim
from app.lifecycle.copies import LOOK_S, drop_deleted
from app.lifecycle.marks import Marks
from app.lifecycle.measures import ENDS, Measures
from app.lifecycle.queue.fair import claim_next, size_that_waits
from app.lifecycle.queue.presence import Presence
from app.lifecycle.queue.room import Room, wake
from app.lifecycle.states import notify
from app.logs import about
from app.predictions import prediction_claims as predictions
from app.repeat import in_thread
from app.settings import Settings, get_settings
from app.storage import parts
from core.contracts.devices import Device
from core.contracts.event_kinds import RUN_JOB
from core.contracts.runtime import MOST_PROCESSES
from core.contracts.sandbox import Sandbox
from worker.attempt.code_release import release
from worker.attempt.confined import default_memory_bytes, probe
from worker.attempt.device_survey import on_this_machine
from worker.attempt.fork_server import ForkServer
from worker.attempt.output_folders import drop_dead
from worker.attempt.supervisor import STOPPING, run_attempt
from worker.attempt.user_checks import user_of
from worker.celery_app import app
from worker.native.kernels import ABSENT, CURE, kernels
from worker.predicting.supervise import predict

if TYPE_CHECKING:
    from worker.cluster.group import Cluster

logger = logging.getLogger(__name__)


@cache
def _database() -> Database:
    return Database.of(get_settings())


@cache
def _device() -> Device:
    """The one device of this process. `scrimp worker` and `scrimp serve` start a process for each device."""
    devices = on_this_machine(get_settings().devices)
    if len(devices) > 1:
        listed = ", ".join(each.label for each in devices[1:])
        logger.warning("this process uses %s alone; `scrimp worker` starts one more for each of %s", devices[0], listed)
    return devices[0]


@cache
def _presence() -> Presence:
    heartbeat_s = get_settings().heartbeat_s
    presence = Presence(_database(), socket.gethostname(), os.getpid(), heartbeat_s, _sandbox(), _devices)
    presence.release, presence.finishes, presence.stopping = release(), get_settings().finish_only, STOPPING
    return presence


@cache
def _measures() -> Measures:
    return Measures(_database())


@cache
def _fork_server() -> ForkServer:
    return ForkServer(get_settings().attempt_memory_bytes, _device(), user_of(get_settings()))


def _devices() -> list[Device]:
    """This process's device, and the most that it runs one job on: by itself, or on the cluster as it is now."""
    room = _room()
    gpus = None if _cluster() is None or _device().kind == "cpu" else room.gpus
    processes = get_settings().worker_processes or max(1, room.ranks)
    return [_device().model_copy(update={"processes": processes, "gpus": gpus})]


@cache
def _cluster() -> Cluster | None:
    """The connection to the Ray cluster, if this worker runs its jobs on one."""
    address = get_settings().ray_address
    if not address:
        return None
    from worker.cluster.group import Cluster  # noqa: PLC0415 - an extra

    return Cluster(address)


def _room() -> Room:
    """The most ranks of one job here, or on the cluster as it is now; with a GPU, also on processors."""
    cluster, limit, has_gpu = _cluster(), get_settings().worker_processes or MOST_PROCESSES, _device().kind == "cuda"
    if cluster is None:
        return Room(get_settings().worker_processes or min(len(os.sched_getaffinity(0)), limit), int(has_gpu))
    return Room(min(cluster.most("cpu"), limit), min(cluster.most("cuda"), limit) if has_gpu else 0)


def _claimed(db: Database, settings: Settings) -> Claim | None:
    """The next job in turn, if there is room for it."""
    cluster, heads, worker = _cluster(), Heads.of(settings), _presence().name
    if cluster is None:
        return claim_next(db, heads, worker, settings.lease_s, _room())
    with ExitStack() as unused:
        unused.callback(cluster.give_up)
        claimed = claim_next(db, heads, worker, settings.lease_s, _room(), cluster)
        if claimed is not None:
            with db.write() as session:
                wake(session)  # there may be room for one more
            unused.pop_all()  # the attempt uses what was granted
            return claimed
    if (size := size_that_waits(db, cluster.free("cpu"), settings.worker_processes or 0)) is not None:
        cluster.grow(size)
    return None


@cache
def _sandbox() -> Sandbox | None:
    """Probes once how attempts on this worker are confined; None if the probe fails."""
    try:
        probed = probe(get_settings().attempt_memory_bytes or default_memory_bytes(), user_of(get_settings()))
    except (OSError, SubprocessError, ValueError) as error:
        logger.error("the attempt sandbox cannot be probed: %s", type(error).__name__)
        return None
    off = [name for name, state in (("seccomp", probed.seccomp), ("landlock", probed.landlock)) if not state]
    if off or probed.network == "host":
        logger.warning(
            "attempts run without these confinements: %s", ", ".join([*off, *["network"] * (probed.network == "host")])
        )
    return probed


@worker_ready.connect  # type: ignore[untyped-decorator]
def _appear(**_: Any) -> None:
    """Ends this process if anything fails, for what started it to start it again: Celery would only log the error, and
    a worker that nobody knows and that knows no cluster would go on. At once, as Ray may hang in its own end, too."""
    try:
        _cluster()
        if kernels() == "python":
            logger.warning("%s; %s", ABSENT, CURE)
        _presence().start()
        _measures().start()
        in_thread("copies", lambda: drop_deleted(_database(), parts.of(get_settings())), STOPPING, LOOK_S)
        in_thread("dead attempts", lambda: drop_dead(_database(), get_settings()), STOPPING, LOOK_S)
    except Exception as error:
        address = get_settings().ray_address
        cluster_phrase = f", with the Ray cluster at {address}" if address else ""
        logger.critical("this worker cannot start%s: %s", cluster_phrase, type(error).__name__, exc_info=error)
        os._exit(1)


@worker_shutdown.connect  # type: ignore[untyped-decorator]
def _leave(**_: Any) -> None:
    _presence().stop()
    _measures().close()
    tracing.close()


@app.task(name=RUN_JOB)  # type: ignore[untyped-decorator]
def run_job(job_id: str) -> None:
    """Claims the next job in turn and runs one attempt of it.

    The message names a queued job, but is only a wake-up: a late or duplicate message finds nothing to claim. A worker
    that was told to stop may receive one more message, even for the job that it just gave back.

    Wake-ups for predictions arrive here too.
    """
    settings, db = get_settings(), _database()
    if predictions.is_prediction(job_id):
        with about({"prediction": job_id}):
            predict(db, job_id, settings, _fork_server())
        return
    if STOPPING.is_set():
        with db.write() as session:
            notify(session, job_id)
        return
    began = tracing.wall()
    claimed = _claimed(db, settings)
    if claimed is not None:
        log = AttemptLog(
            db, claimed, lease_s=settings.lease_s, max_attempts=settings.max_attempts, marks=Marks.of(settings)
        )
        ids: tracing.Ids = {"job": claimed.job_id, "attempt": claimed.attempt, "worker": claimed.worker}
        tracing.past("claim", ids, began, parent=claimed.traceparent)
        with (
            about({"job": claimed.job_id, "attempt": str(claimed.attempt)}),
            tracing.coarse("attempt", ids, parent=claimed.traceparent),
        ):
            cluster = _cluster()
            if cluster is None:
                ended = run_attempt(log, settings, _fork_server(), processes=claimed.ranks)
            else:
                ended = cluster.run(log, settings, _fork_server())
        _measures().count(ENDS, ended)
        if cluster is not None:
            with db.write() as session:
                wake(session)  # for the room that this attempt had
