"""A prediction, from the worker's side: claimed, run in its own process under a deadline, and recorded."""

from __future__ import annotations

import logging
import socket
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from app.catalogue.graph_rows import models_root
from app.db.database import Database
from app.db.declared_version import declared
from app.db.models import Artifact, Job
from app.predictions.prediction_claims import Held, answer, claim
from app.settings import Settings
from app.storage import objects
from app.storage.bucket import DamagedError
from core.contracts.hf import weights_file
from core.contracts.job_spec import JobSpec
from core.errors import NotFound
from worker import messages
from worker.attempt.fork_server import START_S, ForkServer
from worker.channel import Channel

logger = logging.getLogger(__name__)
SPARE_S = 30.0  # of a lease, beyond the process's start and the prediction's own time, to record the answer
CODES = {code: code for code in ("extractor-missing", "extractor-former", "model-missing", "out-of-memory")} | {
    "data-damaged": "model-damaged"
}


def predict(db: Database, prediction_id: str, settings: Settings, fork_server: ForkServer) -> None:
    """Runs one prediction if it is queued; a late or duplicate message finds nothing to claim.

    Never raises because of the model or its inputs.
    """
    with db.write() as session:
        claim_row = claim(session, prediction_id, START_S + settings.prediction_time_s + SPARE_S)
    if claim_row is None:
        return
    try:
        outputs, code = _asked(_message(db, claim_row, settings), settings.prediction_time_s, fork_server)
    except Exception as error:
        logger.error("prediction %s: %s", claim_row.id, type(error).__name__, exc_info=error)
        outputs, code = None, "internal"
    answer(db, claim_row, outputs, code)
    logger.info("%s", "answered" if code is None else f"failed: {code}")


def _asked(
    message: messages.Predict, time_s: float, fork_server: ForkServer
) -> tuple[list[dict[str, Any]] | None, str | None]:
    """The answer of a separate process within the time, which counts from its start; or a failure code."""
    own_end, child_end = socket.socketpair()
    with closing(Channel(own_end, messages.TO_SUPERVISOR)) as channel:
        with child_end:
            process = fork_server.start(child_end.fileno())
        try:
            own_end.settimeout(time_s)
            return _answered(channel, message, time.monotonic() + time_s)
        except TimeoutError:
            return None, "time"
        except (EOFError, OSError):
            return None, "internal"
        finally:
            process.kill()
            process.close()


def _answered(
    channel: Channel, message: messages.Predict, deadline: float
) -> tuple[list[dict[str, Any]] | None, str | None]:
    channel.send(message)
    while not channel.pending(max(0.0, min(1.0, deadline - time.monotonic()))):
        if time.monotonic() >= deadline:
            return None, "time"
    reply = channel.receive()
    if isinstance(reply, messages.Predicted):
        return reply.outputs, None
    return None, CODES.get(reply.code, "internal") if isinstance(reply, messages.Failed) else "internal"


def _message(db: Database, claim_row: Held, settings: Settings) -> messages.Predict:
    with db.read() as session:
        job = session.get_one(Job, claim_row.job_id)
        declaration = declared(session, job)
        spec = JobSpec.model_validate(job.spec)
        weights = session.get_one(Artifact, (claim_row.job_id, weights_file(spec.model)))
        models = models_root(session, settings, job.key_id, spec.model)
        return messages.Predict(
            spec=spec,
            task=declaration.spec.task,
            features=declaration.spec.features,
            shape=messages.Shape.of(declaration.shape),
            weights=messages.Part(path=str(_weights(settings, weights)), sha256=weights.sha256),
            records=claim_row.records,
            top=claim_row.top,
            models_root=str(models) if models else None,
        )


def _weights(settings: Settings, weights: Artifact) -> Path:
    """The model's file on this machine; where it is missing, its place: the process then reports the damage."""
    try:
        return objects.of(settings).local(weights.path, weights.sha256).resolve()
    except (NotFound, DamagedError):
        return settings.storage_root.resolve() / weights.path
