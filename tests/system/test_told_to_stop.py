"""A process that is told to stop ends, whichever of its threads the signal wakes."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

# The main thread takes no signal: as where the process stood still, and another thread woke first.
PROGRAM = """
import signal, threading
from app.repeat import told_to_stop
stop = told_to_stop(signal.SIGTERM)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1])
signal.signal(signal.SIGUSR1, lambda *_: None)
print("waits", flush=True)
while not stop.wait(%s):
    print("goes on", flush=True)
"""


@pytest.mark.parametrize("seconds", ["None", "0.01"])
def test_a_signal_that_another_thread_takes_is_heard(seconds: str) -> None:
    line = [sys.executable, "-c", PROGRAM % seconds]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "waits\n"
            process.send_signal(signal.SIGUSR1)  # which is none of those that it was told of
            if seconds != "None":
                assert [process.stdout.readline() for _ in range(3)] == ["goes on\n"] * 3
            process.send_signal(signal.SIGTERM)
            assert process.wait(300) == 0
        finally:
            process.kill()
