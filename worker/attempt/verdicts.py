"""Verdicts of self-tests, kept for good in a file of this machine.

A verdict is a fact of the machine, the libraries, this code, the model, the shapes, the types and the threads. No data
set is part of it, so the first job of a kind is tested and none after it, whoever owns the data.

**Who may vouch.** A process that was taken over while it read one owner's data must not vouch for another owner's job.
So a verdict counts only if it is the first message of an attempt's process. Before it opens any part, the process sends
its verdict, whatever that is, and waits for the answer. Until then it has read its start message, a public model's
folder, and for some trials a study's mean. A process that is taken over later has sent its verdict long ago, and a
second one breaks the protocol. A mean comes from a process that read private data, so attempts that read one do not
vouch. The alternative, a process without data for each test, would build each plan twice.

**Who may write.** The supervisor alone: the file lies in the service's home, which no attempt's sandbox may open. What
names a verdict (`key_of`) is the supervisor's too. A process can only say that the test of its own plan passed.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from functools import cache
from pathlib import Path

from core.contracts.dataset_spec import HashedText, Interactions
from core.contracts.devices import Device
from worker.attempt.code_release import code, libraries
from worker.messages import ProtocolError, Start, ToSupervisor, Verdict

FILE = "self-tests"  # in the service's home
MOST_BYTES = 2**22  # the file begins anew: a verdict takes 65 bytes, and the next test a second


class Verdicts:
    """The keys of self-tests that passed, a line each.

    Args:
        path: of the file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def has(self, key: str) -> bool:
        """True if the test of this key passed."""
        try:
            return key.encode() in self._path.read_bytes().split()
        except OSError:
            return False

    def note(self, key: str) -> None:
        """Adds a key. A line is one write, also beside other supervisors; one that a crash tears matches no key."""
        if self.has(key):
            return
        with suppress(OSError):  # of a full disk: the next attempt tests again
            if self._path.exists() and self._path.stat().st_size > MOST_BYTES:
                self._path.unlink(missing_ok=True)
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(handle, f"{key}\n".encode())
            finally:
                os.close(handle)


class Hearing:
    """What one attempt says of its self-test, on the supervisor's side.

    Args:
        device: the worker's.
    """

    def __init__(self, verdicts: Verdicts, start: Start, device: Device | None) -> None:
        self._verdicts, self._start, self._device = verdicts, start, device
        self._silent = True

    @property
    def known(self) -> bool:
        """True if the attempt need not test."""
        return self._verdicts.has(key_of(self._start, self._device))

    def hear(self, message: ToSupervisor) -> bool:
        """Call with every message. Keeps a verdict that passed. Returns True if the message is a verdict.

        Raises:
            ProtocolError: a verdict that is not the first message: data may have been opened meanwhile.
        """
        first, self._silent = self._silent, False
        if not isinstance(message, Verdict):
            return False
        if not first:
            raise ProtocolError("a self-test's verdict must be the first message")
        if message.self_test == "passed" and self._start.mean is None:
            of_rows = self._start.model_copy(update={"fitted_rows": message.fitted_rows})
            self._verdicts.note(key_of(of_rows, self._device))
        return True


def key_of(start: Start, device: Device | None) -> str:
    """What the verdict of an attempt depends on, as 64 digits; all of it is public.

    Args:
        device: the worker's GPU, if it has one.
    """
    spec, training = start.spec, start.mechanism.training if start.mechanism else None
    facts = {
        "machine": _machine(),
        "code": code("worker"),
        "libraries": libraries(),
        "gpu": device.model_dump(mode="json") if device is not None and start.device != "cpu" else None,
        "device": start.device,
        "model": spec.model.model_dump(mode="json"),
        "runtime": spec.runtime.model_dump(mode="json"),
        "engine": spec.clipping.engine if spec.clipping else None,
        "clipping": training.clipping if training else None,
        "per_unit": training.records_per_unit if training else None,
        "optimizer": spec.optimizer.kind,
        "views": spec.augmentation.model_dump(mode="json") if spec.augmentation else None,
        "evaluation": spec.evaluation.model_dump(mode="json") if spec.evaluation else None,
        "scores": [each.metric for each in start.mechanism.scores] if start.mechanism else [],
        "shape": start.shape.model_dump(mode="json", exclude={"records_holdout", "slots"}),
        "task": start.task.model_dump(mode="json", exclude={"label", "classes"}),
        "features": start.features.model_dump(mode="json") if _shapes_a_model(start) else start.features.kind,
        "numerics": start.numerics.model_dump(mode="json") if start.numerics else None,
        "fitted_rows": start.fitted_rows,
        "processes": start.processes,
        "threads": start.threads,
        "gpus": start.gpus,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _shapes_a_model(start: Start) -> bool:
    """Of other features, sizes alone do."""
    return isinstance(start.features, Interactions | HashedText)


@cache
def _machine() -> list[str]:
    """The processor's name and abilities, and how many this process may use."""
    fields = [line.partition(":") for line in _cpu_lines() if line.startswith(("model name", "flags", "Features"))]
    return [*sorted({value.strip() for _, _, value in fields}), str(len(os.sched_getaffinity(0)))]


def _cpu_lines() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
