"""An interrupted test run leaves nothing behind: no service, and no process that ignores signals or stands still."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import psutil

from tests.processes import alive, until

TESTS = """
    import os, signal, subprocess, sys, time
    from tests import servers
    with servers.none_left():
        # Three processes share one pipe: each writes its line in one call, also where Python's output has no buffer.
        line = "import os, time; os.write(1, f'{os.getpid()}{os.linesep}'.encode()); time.sleep(600)"
        deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + line
        subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True)
        subprocess.Popen([sys.executable, "-c", line]).send_signal(signal.SIGCONT)
        still = subprocess.Popen([sys.executable, "-c", line], stdout=subprocess.PIPE)
        os.write(1, still.stdout.readline())
        still.send_signal(signal.SIGSTOP)
        time.sleep(600)
"""


def test_what_a_killed_run_had_started_ends() -> None:
    run = subprocess.Popen([sys.executable, "-c", textwrap.dedent(TESTS)], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    left = [psutil.Process(int(run.stdout.readline())) for _ in range(3)]
    run.send_signal(signal.SIGKILL)
    run.wait()
    run.stdout.close()
    until(lambda: not any(alive(each) for each in left))
