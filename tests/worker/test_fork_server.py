"""The fork server: what it forks runs attempts, is ended from outside, and outlives neither fork server nor worker."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from core.contracts.devices import Device
from core.errors import TransientError, WorkerError
from tests.processes import until
from tests.worker.support import ROOT
from worker.attempt.fork_server import ForkServer, Process, StartError
from worker.channel import Channel
from worker.messages import TO_SUPERVISOR, Failed, Stop


def seen(process: Process) -> psutil.Process:
    """As psutil sees it. A pidfd knows its pid; among the fork server's children, others come and go."""
    told = Path(f"/proc/self/fdinfo/{process._handle}").read_text()
    return psutil.Process(int(re.search(r"^Pid:\s*(\d+)", told, re.MULTILINE)[1]))  # type: ignore[index]


def forked(fork_server: ForkServer) -> tuple[Process, Channel]:
    ours, theirs = socket.socketpair()
    channel = Channel(ours, TO_SUPERVISOR)
    with theirs:
        try:
            return fork_server.start(theirs.fileno()), channel
        except WorkerError:
            channel.close()
            raise


def test_a_fork_answers_and_ends_by_itself(fork_server: ForkServer) -> None:
    process, channel = forked(fork_server)
    assert not process.ended()
    channel.send(Stop())  # not how one begins
    last = channel.receive()
    assert isinstance(last, Failed) and last.code == "protocol"
    assert process.ended(120)
    process.kill()  # harmless
    process.close()
    channel.close()


def test_forks_live_side_by_side_and_are_killed_one_by_one(fork_server: ForkServer) -> None:
    (one, first), (two, second) = forked(fork_server), forked(fork_server)
    one.kill()
    assert one.ended() and not two.ended()
    second.send(Stop())
    assert isinstance(second.receive(), Failed) and two.ended(120)
    for each in (one, two, first, second):
        each.close()


def test_a_fork_whose_supervisor_is_gone_ends(fork_server: ForkServer) -> None:
    process, channel = forked(fork_server)
    channel.close()
    assert process.ended(120)
    process.close()


def test_a_fork_has_no_environment_and_no_socket_of_its_fork_server(fork_server: ForkServer) -> None:
    process, channel = forked(fork_server)
    parent = psutil.Process(fork_server._process.pid)  # type: ignore[union-attr]
    child = seen(process)
    until(lambda: child.name() == "scrimp-attempt")
    assert parent.name() == "scrimp-forks"
    assert {name for name in child.environ() if name.startswith("SCRIMP_")} == {"SCRIMP_ATTEMPT"}
    assert len(sockets(child)) == 1 and not sockets(child) & sockets(parent)
    process.kill()
    process.close()
    channel.close()


def sockets(process: psutil.Process) -> set[str]:
    links = (str(each.readlink()) for each in Path(f"/proc/{process.pid}/fd").iterdir())
    return {link for link in links if link.startswith("socket:")}


def test_a_fork_server_that_was_killed_is_replaced_and_its_forks_are_gone(fork_server: ForkServer) -> None:
    process, channel = forked(fork_server)
    fork_server._process.kill()  # type: ignore[union-attr]
    assert process.ended(120), "a fork dies with its fork server"
    again, other = forked(fork_server)
    other.send(Stop())
    assert isinstance(other.receive(), Failed) and again.ended(120)
    for each in (process, again, channel, other):
        each.close()


def test_a_fork_dies_with_its_worker() -> None:
    """The worker is killed; its end of the channel stays open here, so that only the death signals end the fork."""
    ours, theirs = socket.socketpair()
    script = (
        "import time\n"
        "from worker.attempt.fork_server import ForkServer\n"
        "fork_server = ForkServer()\n"
        f"fork_server.start({theirs.fileno()})\n"
        "print(fork_server._process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    arguments = [sys.executable, "-c", script]
    worker = subprocess.Popen(arguments, cwd=ROOT, pass_fds=(theirs.fileno(),), stdout=subprocess.PIPE)
    assert worker.stdout is not None
    pids = [int(worker.stdout.readline())]
    pids += [each.pid for each in psutil.Process(pids[0]).children()]
    handles = [Process(os.pidfd_open(pid)) for pid in pids]
    assert len(handles) == 2
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    worker.stdout.close()
    assert all(each.ended(120) for each in handles)
    for each in (*handles, ours, theirs):
        each.close()


def test_a_machine_without_a_place_for_a_process_harms_no_other() -> None:
    """The fork server's second fork fails, as at a limit of processes."""
    script = (
        "import os, socket, sys\n"
        "from worker.attempt import fork_server\n"
        "fork, calls = os.fork, []\n"
        "def second_fails():\n"
        "    calls.append(1)\n"
        "    if len(calls) == 3:  # the first finds out about namespaces\n"
        "        raise BlockingIOError(11, 'no place')\n"
        "    return fork()\n"
        "os.fork = second_fails\n"
        "fork_server.main(int(sys.argv[1]), 2**34)\n"
    )
    limited, ours, theirs = ForkServer(), *socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        limited._process = subprocess.Popen(
            [sys.executable, "-c", script, str(theirs.fileno())], cwd=ROOT, pass_fds=[theirs.fileno()]
        )
    limited._socket = ours
    process, channel = forked(limited)
    with pytest.raises(TransientError):
        forked(limited)
    assert not process.ended(), "the one that runs goes on"
    again, other = forked(limited)
    limited.close()
    assert process.ended(120) and again.ended(120)
    for each in (process, again, channel, other):
        each.close()


def test_a_fork_server_that_dies_at_its_start_is_a_crash_and_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as by a signal on a processor without some instructions: the job would be tried for ever.

    Attack (Doors): A fork server that dies by a signal at its start
    Now: a crash
    """
    monkeypatch.setattr("worker.attempt.fork_server.COMMAND", ("/bin/sh", "-c", "kill -SEGV $$"))
    dies = ForkServer()
    with pytest.raises(StartError) as caught:
        forked(dies)
    assert not isinstance(caught.value, TransientError)
    dies.close()


def test_why_a_gpu_has_no_kernel_is_said_before_attempts_are_silent(capfd: pytest.CaptureFixture[str]) -> None:
    fork_server = ForkServer(device=Device(kind="cuda", index=0, name="H200", memory_bytes=1, capability="0.0"))
    process, channel = forked(fork_server)
    process.kill()
    process.close()
    channel.close()
    fork_server.close()
    assert "NVRTC" in capfd.readouterr().err


def test_it_is_said_how_a_process_ended(fork_server: ForkServer) -> None:
    """Its own end, or the signal: only the parent is told by the kernel.

    Attack (Reliability): An attempt crashes
    Now: job and attempt in every line, and how the process ended
    Also: tests/lifecycle/test_watch.py::test_a_frozen_process_is_ended_and_its_job_queued_again
    """
    (killed, one), (left, other), (alive, third) = forked(fork_server), forked(fork_server), forked(fork_server)
    killed.kill()
    other.close()  # its supervisor is gone: it ends by itself
    assert left.ended(120)
    assert (killed.how(), left.how(), alive.how()) == ("SIGKILL", "exit code 1", None)
    alive.kill()
    assert (alive.how(), killed.how()) == ("SIGKILL", "SIGKILL")
    assert fork_server._ended_how(2**22) is None
    for each in (killed, left, alive, one, third):
        each.close()


def test_the_ended_are_cleared_away(fork_server: ForkServer) -> None:
    ended = []
    for _ in range(3):
        process, channel = forked(fork_server)
        ended.append(seen(process))
        process.kill()
        process.close()
        channel.close()
    process, channel = forked(fork_server)
    until(lambda: not any(each.is_running() for each in ended[:2]))  # the third ended just before
    process.kill()
    process.close()
    channel.close()
