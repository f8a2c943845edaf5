"""Rank 0's watch over the other ranks: a known failure is reported, whoever else ends because of it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from typing import NoReturn

import pytest

from worker.attempt.rank_processes import fork_ranks
from worker.data.ranks import RanksError

# Each case ends rank 0, so it runs in a fork. Rank 0 waits for the ends of all ranks, in whatever order they happen.
CASES = """
import os, signal, sys
from worker.attempt.rank_processes import Others
from worker.messages import PEER_GONE, exit_status

ENDS = {
    "failed": lambda: os._exit(exit_status("data-damaged")),
    "peer gone": lambda: os._exit(PEER_GONE),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "finished": lambda: os._exit(0),
}

def forked(work):
    pid = os.fork()
    if pid == 0:
        work()
    return pid

def rank_0(ends):
    others = Others([forked(ENDS[end]) for end in ends])
    others._thread.join()
    print(others.failure(), end=" ", flush=True)
    os._exit(42)

for case in sys.argv[1:]:
    pid = forked(lambda: rank_0(case.split(",")))
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
REPORTED = ["failed,peer gone", "peer gone,failed", "finished,peer gone,failed"]
SILENT = ["killed,peer gone", "killed,finished"]


def test_a_known_failure_is_reported_though_another_rank_ends_because_of_it_and_a_killed_rank_ends_rank_0() -> None:
    command = [sys.executable, "-W", "ignore", "-c", CASES, *REPORTED, *SILENT]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["data-damaged 42"] * len(REPORTED) + ["1"] * len(SILENT), done.stderr


def test_a_rank_that_cannot_be_forked_queues_the_job_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """RanksError ends the attempt without a message, so its job is queued again."""

    def full() -> NoReturn:
        raise OSError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(os, "fork", full)
    with pytest.raises(RanksError):
        fork_ranks(2)
