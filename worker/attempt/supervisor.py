"""The supervisor of one attempt: starts its process, keeps its lease, records its messages, and ends it.

The attempt's process has no database credentials and no secret except this job's keys. Its messages are recorded behind
a fence: an attempt that lost its lease writes nothing.
"""

from __future__ import annotations

import logging
import math
import socket
import threading
import time
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path

from sqlalchemy.exc import OperationalError

from app import tracing
from app.ledger.behind import record, record_soon
from app.ledger.transparency.heads import Heads
from app.lifecycle.attempt_records import Begun, Resalted
from app.lifecycle.attempts import AttemptLog
from app.lifecycle.claims import Gone
from app.lifecycle.job_events import Part, Rank
from app.lifecycle.settle import Cause
from app.settings import Settings
from app.storage import objects
from core.contracts.audit import CANARIES_FILE
from core.contracts.stored_documents import ArtifactFile, Number, SaltedSteps
from core.disk import sync
from core.errors import PrivacyError, ServiceError, StaleAttempt, TransientError, Unavailable
from core.parts.damage import DataDamagedError
from worker import messages
from worker.attempt.attempt_watch import TICK_S, Watch
from worker.attempt.audited import finding_of
from worker.attempt.code_release import release
from worker.attempt.fork_server import EXITED, ForkServer, Process
from worker.attempt.job_checkpoints import Checkpoints, Saved
from worker.attempt.output_files import read_artifact, take_over
from worker.attempt.output_folders import clear, output_folder
from worker.attempt.start import Elsewhere, Inputs, Machine, NoiseSecrets, start_message
from worker.attempt.user_checks import user_of
from worker.attempt.verdicts import FILE, Hearing, Verdicts
from worker.channel import Channel
from worker.data.ranks import RanksError
from worker.messages import PEER_GONE

logger = logging.getLogger(__name__)

STOPPING = threading.Event()  # set when this worker is told to stop
AT_ONCE = threading.Event()  # set when it is told so again

RUNNING = "its process runs"
TIME_LIMIT = (
    "The job reached its time limit; its whole hold is spent. Ask for fewer steps or a larger runtime.max_duration_s; "
    "a key's limit is in `scrimp keys self`, and the operator sets the service's."
)
EXIT_S = 10.0  # a busy machine takes seconds to end a process that has closed its socket

WARNINGS = {
    "steps-short": "fewer steps than planned ran: a replay differed and was charged again from the same hold",
    "evaluation-skipped": "an evaluation was skipped: its release was charged to an earlier replay that differed",
    "parameters-not-finite": "the released parameters are not finite: lower the learning rate",
    "one-record-passes": "an operation may carry numbers from record to record: each had its own pass (slow)",
    "metric-not-finite": "a score could not be computed: the model's outputs are not finite",
}


def run_attempt(
    log: AttemptLog,
    settings: Settings,
    fork_server: ForkServer,
    *,
    processes: int = 1,
    elsewhere: Elsewhere | None = None,
) -> str:
    """Runs one attempt of a claimed job to its end, however it ends. Never raises because of what the attempt did.

    Returns:
        How its process ended, for the operator: an exit code, a signal, "supervisor" or "unstarted".

    Args:
        fork_server: its processes see this worker's device and no other GPU, but for a cluster's ranks.
        processes: the most ranks that an attempt may have on processors here.
        elsewhere: those of its ranks that run on other machines.
    """
    attempt: Supervised | None = None
    begun: Begun | None = None
    is_kept = False
    try:
        # The fence comes first: a stale attempt must touch no file, because a later attempt's model may lie near.
        begun = log.begin()
        for dataset_id in begun.reads:
            record(log.db, Heads.of(settings), dataset_id)
        output = output_folder(settings.storage_root, log.held, begun, objects.of(settings))
        time_left_s = log.may_run_s(_time_left_s(begun, settings))
        attempt = Supervised(log, settings, fork_server, output, time_left_s, Machine(processes, elsewhere))
        is_kept = attempt.run()
    except StaleAttempt:
        logger.warning("attempt %s of %s is stale and writes nothing", log.held.attempt, log.held.job_id)
    except PrivacyError as error:
        logger.error("attempt %s of %s: %s", log.held.attempt, log.held.job_id, error.message)
        _try_to_fail(log, error)
    except Exception as error:
        # A full disk or our own bug: the job is queued again, and fails after a few such ends. A database or object
        # store that is away, or a machine that cannot fork, is an outside cause; while it lasts, the lease runs out.
        logger.error("attempt %s of %s: %s", log.held.attempt, log.held.job_id, type(error).__name__, exc_info=error)
        is_kept = True  # the job may have succeeded anyway, so its files stay
        if attempt is not None:
            attempt.kill()
        log.gone(_outcome(error))
    finally:
        if attempt is not None:
            attempt.close()
            _say_how(log, attempt)
            clear(attempt.output, settings, keeps_features=is_kept)
        if begun is not None:
            for dataset_id in begun.reads:
                record_soon(log.db, Heads.of(settings), dataset_id)
    return "unstarted" if attempt is None else attempt.ended_by


def _outcome(error: Exception) -> Gone:
    """How an attempt went whose supervisor raised an error. What ranks on other machines lack may lack for ever."""
    if isinstance(error, RanksError):
        return "lapsed"
    return "lost" if isinstance(error, OperationalError | TransientError | Unavailable) else "crashed"


def _time_left_s(begun: Begun, settings: Settings) -> float:
    """Seconds that the job may still run: the smallest limit of its specification, its key and the settings."""
    return min((*begun.limits_s, settings.max_job_s or math.inf)) - begun.ran_s


def _say_how(log: AttemptLog, attempt: Supervised) -> None:
    """Logs the attempt's last line, for the operator."""
    ended = log.outcome()
    logger.log(
        logging.INFO if ended in ("succeeded", "cancelled", "paused") else logging.WARNING,
        "%s (%s)",
        ended,
        attempt.exit,
    )


def _try_to_fail(log: AttemptLog, error: PrivacyError) -> None:
    try:
        log.fail(error.code, error.title)
    except ServiceError as again:
        # The attempt is stale or cannot be settled: the hold stays, which is the safe side.
        logger.error("%s cannot be marked failed: %s: %s", log.held.job_id, again.code, again.message)


class Ended(Exception):
    """The watch ended the attempt before it had a process."""


class Supervised:
    """One attempt's process and the conversation with it."""

    def __init__(
        self,
        log: AttemptLog,
        settings: Settings,
        fork_server: ForkServer,
        output: Path,
        time_left_s: float = math.inf,
        machine: Machine = Machine(),
    ) -> None:
        self.log, self.settings, self.fork_server, self.output = log, settings, fork_server, output
        self.machine, self.secrets = machine, NoiseSecrets.of(settings)
        self.inputs = Inputs(settings, self._require_going)
        self.process: Process | None = None
        self.exit, self.ended_by = "no process was started", "unstarted"
        self.watch = Watch(log, settings, self.kill, STOPPING, AT_ONCE, time_left_s)
        claim = log.held
        self.saves = Checkpoints(settings, claim.job_id, claim.attempt, release(), self.secrets.checkpoint_key)
        self.saved: Saved | None = None
        self.segments: tuple[SaltedSteps, ...] = ()
        self.digested, self.is_audited = -1, False  # the last step whose digest is recorded; -1: of no state
        self.told_to_stop, self.block_began = False, math.inf
        self.was_ready, self.was_slow, self.phase_began = False, False, tracing.wall()

    def run(self) -> bool:
        """Fetches the parts, then talks to the process until its last message. Returns True if its artifacts are
        published."""
        try:
            with self.watch:
                with self.watch.hearing():  # a part may take long to arrive
                    start = self._start_message()
                return self._converse(start)
        except Ended:
            if self.watch.told_at is not None:
                return self._stop()
            self._gone()
            return False
        except DataDamagedError:
            self.log.fail("data-damaged", messages.FAILURE_TEXTS["data-damaged"])
            return False
        except (EOFError, OSError):
            if self.process is not None:
                self.process.ended(EXIT_S)  # its socket closes a moment before the process ends
            self.kill()
            self._gone()
            return False
        except messages.ProtocolError:
            self.kill()
            self.log.fail("protocol", messages.FAILURE_TEXTS["protocol"])
            return False

    def _converse(self, start: messages.Start) -> bool:
        child_end, own_end = socket.socketpair()
        with closing(Channel(child_end, messages.TO_SUPERVISOR)) as channel:
            with own_end, self._ring(start) as ring:
                self.process = self.fork_server.start(own_end.fileno(), *ring)
                self.exit = RUNNING
            logger.info("starts")
            if self.watch.ended is not None:  # the watch may have decided before a process existed
                self.kill()
            verdict = Hearing(Verdicts(self.settings.home / FILE), start, self.fork_server.device)
            self.is_audited = start.spec.audit is not None
            channel.send(start.model_copy(update={"self_tested": verdict.known}))
            while True:
                if self.watch.told_at is not None:
                    return self._stop()
                if channel.pending(TICK_S):
                    message = channel.receive()
                    if verdict.hear(message):
                        self._answer(channel, messages.Written())
                    # Outside of `hearing`: who stops in the middle of a state is silent.
                    content = self._content(channel, message)
                    with self.watch.hearing():
                        ended = self._hear(channel, message, content)
                    if ended is not None:
                        return ended

    def _ring(self, start: messages.Start) -> AbstractContextManager[tuple[int, ...]]:
        """What leads the process to ranks on other machines."""
        elsewhere = self.machine.elsewhere
        return nullcontext(()) if elsewhere is None else elsewhere.begin(start, self.inputs.stored)

    def _content(self, channel: Channel, message: messages.ToSupervisor) -> bytes:
        """The bytes of a state: those that a piece announces, or those that are sent because more are asked for."""
        match message:
            case messages.Piece():
                return channel.receive_bytes(message.size)
            case messages.More() if not self.told_to_stop:
                content = b"" if self.saved is None else self.saved.read()
                channel.send(messages.Piece(size=len(content)))
                channel.send_bytes(content)
        return b""

    def _stop(self) -> bool:
        """Ends the attempt at once, to cancel or to pause the job: waiting for a step's end would reveal its length.

        Its steps were charged when they started, so a stop at the next step would save nothing.
        """
        crashed = self.process is not None and self.process.ended()
        self.kill()
        self.watch.stop()
        if crashed:
            self.log.gone("crashed")
        else:
            self.log.stopped()
        return False

    def kill(self) -> None:
        """Ends the process, if there is one."""
        if self.process is not None:
            self._note_exit()
            self.process.kill()

    def close(self) -> None:
        """Call after the last use: ends the process and closes its handle."""
        if self.process is not None:
            self.kill()
            self.process.close()
            self.process = None
        self.saves.close()
        if self.saved is not None:
            self.saved.close()
        self.inputs.close()

    def _note_exit(self) -> None:
        """Notes once how the process ended, before the supervisor ends it."""
        if self.process is not None and self.exit == RUNNING:
            reason = f": {self.watch.ended}" if self.watch.ended else ""
            exit_text = self.process.how() if self.watch.ended is None else None
            self.ended_by = exit_text or "supervisor"
            self.exit = (
                f"its process ended: {exit_text}" if exit_text else f"its process was ended by the supervisor{reason}"
            )

    def _answer(self, channel: Channel, message: messages.ToChild) -> None:
        """Answers the process. Sends nothing after a stop: the process then waits for no answer, and may be gone."""
        if not self.told_to_stop:
            self.told_to_stop = isinstance(message, messages.Stop)
            channel.send(message)

    def _gone(self) -> None:
        """Settles an attempt whose process ended without a last message: by itself, or by the watch."""
        match self.watch.ended:
            case "told":
                self.log.stopped()
            case "stopping":
                self.log.gone("lost")
            case "time-limit":
                self._fail_late()
            case None if self.watch.is_late():
                self._fail_late()
            case _ if self.watch.error is not None:
                raise self.watch.error
            case "silent":
                self.log.gone("crashed")
            case _:
                self._gone_with_others()

    def _gone_with_others(self) -> None:
        """Settles an attempt that ended without a word: because of a rank elsewhere, or by itself."""
        found_others_gone = self.ended_by == f"{EXITED}{PEER_GONE}"
        elsewhere = self.machine.elsewhere if found_others_gone else None
        match "crashed" if elsewhere is None else elsewhere.why():
            case "crashed" | "lapsed" | "lost" as outcome:
                self.log.gone(outcome)
            case code:
                self.log.fail(code, messages.FAILURE_TEXTS[code])

    def _fail_late(self) -> None:
        """Fails the job at its time limit, which depends on no data.

        The whole hold is spent: how far the job came depends on the data.
        """
        self.kill()
        self.log.fail("time-limit", TIME_LIMIT, Cause.TIME_LIMIT)

    def _block(self, channel: Channel, message: messages.BlockStart) -> bool | None:
        """Records a block in advance, with the digest of the state before it; or asks for that state, by the clock or
        because this worker stops.

        Returns:
            False if the worker stops and the state is saved: the job is given back. Otherwise None.
        """
        self.watch.trains = True
        stopping, step, digest = STOPPING.is_set(), message.first_step - 1, message.digest
        saves = self.saves.wants(step, now=stopping)
        if digest is not None:
            self._time_block()
            if saves or stopping:
                self.log.record_digest(step, digest)
            self.digested = step
        self._require_digested(step)
        if saves:
            self._answer(channel, messages.Save())
            return None
        if stopping:
            self.kill()
            self.watch.stop()
            self.log.gone("lost")
            return False
        self.block_began = time.monotonic()
        granted = self.log.start_block(message.first_step, message.last_step, digest)
        self._answer(channel, messages.Go() if granted else messages.Stop())
        return None

    def _time_block(self) -> None:
        """Tells the operator, once, that a stop of this worker would not wait for the end of such a block. Blocks are
        not made shorter for it: their length would depend on the time of steps, which may depend on records."""
        took = time.monotonic() - self.block_began
        if took > self.settings.drain_s and not self.was_slow:
            self.was_slow = True
            logger.warning(
                "a block of this job's steps takes %d s: a worker that stops gives the job back before its end, so the "
                "steps since the last checkpoint are repeated; raise SCRIMP_DRAIN_S (%g) above it",
                math.ceil(took),
                self.settings.drain_s,
            )

    def _hear(self, channel: Channel, message: messages.ToSupervisor, content: bytes) -> bool | None:
        """Records one message and answers it. Returns None while the attempt goes on, else True if it succeeded.

        Args:
            content: what came with a piece.
        """
        if isinstance(message, messages.Finished | messages.Stopped | messages.Failed) and self.watch.is_late():
            # The watch checks a few times a second: the order of the two events would reveal fractions of a second.
            self.watch.stop()
            self._fail_late()
            return False
        match message:
            case messages.BlockStart():
                return self._block(channel, message)
            case messages.Finished():
                return self._finished(message)
            case messages.Stopped():
                self._require_told()
                self._wait()
                self.watch.stop()
                self.log.stopped()
                return False
            case messages.Failed():
                self._wait()
                self.watch.stop()
                self._fail(message)
                return False
            case _:
                self._record(channel, message, content)
                return None

    def _fail(self, message: messages.Failed) -> None:
        """Settles an attempt that failed for a known cause."""
        # The machine's fault, before anything private: another worker may do better. Or a copy of a part that
        # this machine's disk has changed: another attempt fetches it anew.
        if message.code == "device" or (message.code == "data-damaged" and self.inputs.discard()):
            self.log.gone("crashed")
        else:
            self.log.fail(message.code, self._text(message))

    def _record(self, channel: Channel, message: messages.ToSupervisor, content: bytes) -> None:
        """Records and answers what an attempt says that goes on."""
        match message:
            case messages.Ready():
                self._ready(message)
            case messages.Checkpoint():
                self.saves.begin(message, self.digested, self.segments)
            case messages.Piece():
                if not content:  # the last one: an attempt that lost its job replaces no state
                    self.log.require_held()
                if self.saves.add(content):
                    self.log.saved()
            case messages.Digest():
                self._time_block()
                self.log.record_digest(message.step, message.digest)
                self.digested = message.step
            case messages.Mismatch():
                self._require_digested(message.matched_step)
                fresh = self._resalted(message.matched_step)
                keys = dict(self.secrets.keys(fresh.segment))
                first = fresh.segment.from_step
                self._answer(channel, messages.Resalt(from_step=first, allowed_steps=fresh.allowed_steps, **keys))
            case messages.MetricValue():
                self._require_digested(message.step)
                parts = [Part(name=each.name, value=each.value, std=each.std) for each in message.parts]
                self.log.record_metric(Number(**message.model_dump(exclude={"kind", "parts"})), parts)

    def _finished(self, message: messages.Finished) -> bool:
        """Publishes the artifacts, and ends the job."""
        self._require_digested(message.steps_effective)
        tracing.past("train", {"steps": message.steps_effective}, self.phase_began)
        self._wait()
        warnings = [WARNINGS[code] for code in message.warnings]
        artifacts = [self._published(each) for each in message.artifacts]
        canaries = (read_artifact(self.output, each) for each in message.artifacts if each.name == CANARIES_FILE)
        # It takes seconds, so while the lease is renewed.
        audit = finding_of(self.log.recorded()[0], next(canaries, None)) if self.is_audited else None
        self.watch.stop()
        ranks = [Rank.model_validate(each, from_attributes=True) for each in message.ranks]
        self.log.succeed(artifacts, message.steps_effective, warnings, ranks, audit)
        return True

    def _resalted(self, matched_step: int) -> Resalted:
        """Fresh keys after the last step that matched."""
        fresh = self.log.resalt(matched_step, self.secrets.current)
        self.segments = (*(each for each in self.segments if each.from_step <= matched_step), fresh.segment)
        return fresh

    def _require_told(self) -> None:
        """Raises ProtocolError unless it was told to stop: its job would be queued, and stop again, for ever."""
        if not (self.told_to_stop or self.watch.told_at is not None):
            raise messages.ProtocolError("it stopped without being told to")

    def _require_digested(self, step: int) -> None:
        """Raises ProtocolError unless the process has sent the digest of the state after `step`, and no later one."""
        if step != self.digested:
            raise messages.ProtocolError("a state whose digest is not recorded")

    def _text(self, message: messages.Failed) -> str:
        """The failure's fixed text, with the refused part of a public model: checked before any record is read."""
        names_module = message.code == "model-unfit" and message.module is not None and not self.was_ready
        return f"{message.message} It is {message.module}." if names_module else message.message

    def _ready(self, message: messages.Ready) -> None:
        """Records what the attempt computes in."""
        self.was_ready = True
        tracing.past("prepare", {"device": message.device}, self.phase_began)
        self.phase_began = tracing.wall()
        self.log.ready(message.device, message.numerics, message.fallbacks, message.fitted_rows, message.processes)

    def _published(self, file: ArtifactFile) -> ArtifactFile:
        """An artifact's row, after checking the file itself. Raises as `read_artifact`."""
        content = read_artifact(self.output, file)
        # The attempt sees no folder above its own, so the supervisor syncs those to disk.
        for folder in (self.output.parent, self.output.parent.parent):
            sync(folder)
        if user_of(self.settings) is not None:
            take_over(self.output, file.name, content)
        path = self.output.resolve() / file.name
        stored = str(path.relative_to(self.settings.storage_root.resolve()))
        objects.of(self.settings).publish(stored, path, file.sha256)
        return file.model_copy(update={"size_bytes": len(content), "path": stored})

    def _wait(self) -> None:
        """After the last message, waits for the process to end; kills it after the grace period."""
        if self.process is not None and not self.process.ended(self.settings.cancel_grace_s):
            self.kill()

    def _start_message(self) -> messages.Start:
        """Everything the attempt needs, from the current database."""
        secrets = self.secrets
        recorded = self.log.name_key(secrets.current)
        job, blocks, _released = recorded
        self.segments = tuple(job.segments)
        foreign = [each.from_step for each in job.segments if each.key_id not in secrets.by_id]
        if foreign:
            # Their noise secret was removed since: without its keys an identical replay is impossible.
            self._resalted(min(foreign) - 1)
            recorded = self.log.recorded()
        digested = {
            salt: {each.last_step for each in blocks_of_salt if each.digest} for salt, blocks_of_salt in blocks.items()
        }
        self.saved = self.saves.find(self.segments, digested)
        start = start_message(self.log.db, recorded, self.settings, secrets, self.inputs, self.machine, self.output)
        start = start.model_copy(update={"saved": self.saved and self.saved.checkpoint})
        return start if self.machine.elsewhere is None else self.machine.elsewhere.placed(start)

    def _require_going(self) -> None:
        """Raises Ended if the watch ended the attempt: a part may take long to arrive."""
        if self.watch.told_at is not None or self.watch.ended is not None:
            raise Ended
