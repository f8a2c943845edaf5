"""Attempts of a second user, without seccomp and Landlock: files and processes of the service are closed to them."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from app.sandbox.confinement import THREADS
from app.settings import Settings
from tests.worker import second_user as users
from tests.worker.second_user import ATTEMPTS, CAPABLE, SERVICE, as_service, home_of_service
from tests.worker.support import ROOT, dense, keys_of, spec, start_of, stored_part
from tests.worker.test_sandbox import standing_in
from worker.attempt import second_user
from worker.attempt.output_files import take_over
from worker.attempt.second_user import User
from worker.attempt.user_checks import UserError, user_of
from worker.channel import Channel
from worker.messages import TO_SUPERVISOR, Failed, Start

SHAPE = {"records_train": 80, "records_holdout": 20, "features": 5, "outputs": 3, "sparse": False}

HOSTILE = f"""
import ctypes, json, os, resource, sys, tempfile, threading
from pathlib import Path
import worker.attempt.child as child
from app.sandbox import kernel
from worker.attempt import fork_server
from worker.attempt.second_user import User

kernel.seccomp = kernel.landlock = lambda *_: False
LIBC = ctypes.CDLL(None, use_errno=True)

def tried(what):
    try:
        return repr(what())[:200]
    except BaseException as error:
        return type(error).__name__

def traced(pid):
    if LIBC.ptrace(16, pid, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")

def threads_started(wanted):
    ended, started = threading.Event(), []
    threading.stack_size(1 << 16)
    try:
        for _ in range(wanted):
            started.append(threading.Thread(target=ended.wait))
            started[-1].start()
    except RuntimeError:
        started.pop()
    ended.set()
    for each in started:
        each.join()
    return len(started)

def run_attempt(channel, link, start, *_):
    home, out = Path(os.environ["HOSTILE_HOME"]), Path(start.output_dir)
    secrets = home / "secrets" / "noise_secret"
    processes = {{"fork-server": os.getppid(), "supervisor": int(os.environ["HOSTILE_PARENT"])}}
    seen = {{}}
    for name, pid in processes.items():
        seen |= {{
            f"signal-{{name}}": tried(lambda: os.kill(pid, 0)),
            f"limits-{{name}}": tried(lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (9, 9))),
            f"trace-{{name}}": tried(lambda: traced(pid)),
            f"environment-{{name}}": tried(lambda: Path(f"/proc/{{pid}}/environ").read_bytes()),
            f"priority-{{name}}": tried(lambda: os.setpriority(os.PRIO_PROCESS, pid, 19)),
        }}
    seen |= {{
        "secret": tried(secrets.read_text),
        "secrets": tried(lambda: os.listdir(home / "secrets")),
        "database": tried((home / "scrimp.db").read_bytes),
        "database-mode": tried(lambda: (home / "scrimp.db").chmod(0o666)),
        "another-part": tried((home / "storage" / "datasets" / "other.npz").read_bytes),
        "a-list-of-data-sets": tried(lambda: os.listdir(home / "storage" / "datasets")),
        "another-file": tried(lambda: (home / "storage" / "jobs" / "x").write_text("x")),
        "own-part-written": tried(lambda: open(start.parts.train[0].path, "ab")),
        "the-service-again": tried(lambda: os.setresuid(0, 0, 0)),
    }}
    scratch = Path(tempfile.gettempdir())
    (scratch / "closed").mkdir(mode=0o700)
    (scratch / "closed" / "features").write_text("private")
    own = {{
        "user": os.getresuid(), "group": os.getresgid(), "groups": os.getgroups(), "scratch": str(scratch),
        "part": len(Path(start.parts.train[0].path).read_bytes()) > 0, "threads": threads_started(2 * {THREADS}),
        "capabilities": [line.split()[1] for line in open("/proc/self/status") if line.startswith("CapPrm")][0],
    }}
    (out / "seen.json").write_text(json.dumps({{"denied": seen, "own": own}}))
    raise RuntimeError

child.run_attempt = run_attempt
fork_server.main(int(sys.argv[1]), int(sys.argv[2]), User({ATTEMPTS.uid}, {ATTEMPTS.gid}))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not below pytest's, which other users may not enter."""
    made = Path(tempfile.mkdtemp(prefix="second-user-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def test_an_attempt_of_a_second_user_reaches_nothing_of_the_service(folder: Path) -> None:
    """Attack (Doors): A hostile attempt that starts threads without end
    Now: EAGAIN after 1,024, unless the worker is root without a second user

    Attack (Doors): An attempt turned hostile where the kernel has neither seccomp nor Landlock
    Now: with [a second user](../production.md#a-second-user), EPERM or EACCES for all of these; its own parts and
    output
    """
    users.require_root()
    home = folder / "home"
    part, out = home / "storage" / "datasets" / "mine", home / "storage" / "jobs" / "job_1" / "attempt-1"
    for each in (part, out, home / "secrets"):
        each.mkdir(parents=True)
    x, y = dense(100, 5, 3)
    parts = {"train": stored_part(part / "train.npz", x[:80], y[:80])}
    for each in (home / "scrimp.db", home / "secrets" / "noise_secret", part.parent / "other.npz"):
        each.write_text("of the service")
    for each in (home, *home.rglob("*")):
        each.chmod(0o700 if each.is_dir() else 0o600)
    described = start_of(spec(evaluation=None), SHAPE, parts=parts, output_dir=out)
    start = Start.model_validate(described | {"segments": [{"from_step": 0, **keys_of("x")}], "allowed_steps": 10})
    supervisor, attempt = socket.socketpair()
    names = {"HOSTILE_HOME": str(home), "HOSTILE_PARENT": str(os.getpid())}
    with closing(Channel(supervisor, TO_SUPERVISOR)) as channel, standing_in(HOSTILE, names) as fork_server:
        with attempt:
            process = fork_server.start(attempt.fileno())
        channel.send(start)
        last = channel.receive()
        assert isinstance(last, Failed) and last.code == "internal"
        assert process.ended(60) and process.how() == "exit code 1", "asked, the fork server removes what it left"
        process.close()
    seen = json.loads((out / "seen.json").read_text())
    own, denied = seen["own"], seen["denied"]
    scratch = Path(own.pop("scratch"))
    assert 0 < own.pop("threads") < 2 * THREADS, "another user's threads are limited, and root's are not"
    assert own == {
        "user": [ATTEMPTS.uid] * 3,
        "group": [ATTEMPTS.gid] * 3,
        "groups": [],
        "part": True,
        "capabilities": "0000000000000000",
    }
    assert denied.pop("the-service-again") in ("PermissionError", "OSError"), "no such user in its namespace"
    assert {name: each for name, each in denied.items() if each != "PermissionError"} == {}
    assert not scratch.exists(), "a folder in it was closed to the service"
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (home, part, out, part / "train.npz")}
    assert modes == {home: 0o710, part: 0o710, out: 0o2770, part / "train.npz": 0o640}


def test_what_it_wrote_becomes_the_service_s(folder: Path) -> None:
    users.require_root()
    out, model = folder / "out", folder / "out" / "model"
    out.mkdir(mode=0o700)
    second_user.open_to(ATTEMPTS, (), (out,))
    command = [sys.executable, "-c", "import os, sys; os.umask(7); open(sys.argv[1], 'w').write('x')", str(model)]
    subprocess.run(command, user=ATTEMPTS.uid, group=ATTEMPTS.gid, extra_groups=[], cwd="/", check=True)
    assert (model.stat().st_uid, stat.S_IMODE(model.stat().st_mode)) == (ATTEMPTS.uid, 0o660)
    take_over(out, "model", b"x")
    assert (model.stat().st_uid, stat.S_IMODE(model.stat().st_mode)) == (os.getuid(), 0o600)
    assert model.read_bytes() == b"x" and stat.S_IMODE(out.stat().st_mode) == 0o700 and list(out.iterdir()) == [model]
    second_user.open_to(ATTEMPTS, (model,), ())
    assert stat.S_IMODE(model.stat().st_mode) == 0o640 and stat.S_IMODE(out.stat().st_mode) == 0o710, "for predictions"


def test_a_folder_of_another_group_is_left_as_it_is(folder: Path) -> None:
    users.require_root()
    shared = folder / "shared"
    shared.mkdir()
    shared.chmod(0o750)
    (shared / "part").write_text("x")
    (shared / "part").chmod(0o600)
    with pytest.raises(PermissionError, match="another group"):
        second_user.open_to(ATTEMPTS, (shared / "part",), ())
    assert stat.S_IMODE(shared.stat().st_mode) == 0o750


WORKER = [sys.executable, "-m", "scrimp.cli", "worker"]
SET = {"SCRIMP_ATTEMPT_UID": str(ATTEMPTS.uid), "SCRIMP_ATTEMPT_GID": str(ATTEMPTS.gid)}
Change = Callable[[Path], object]


@pytest.mark.parametrize(
    ("rights", "groups", "settings", "change", "why"),
    [
        ((), "61003", {}, None, "this worker lacks CAP_KILL, CAP_SETGID, CAP_SETUID"),
        (("--inh-caps=-all,+setuid", "--ambient-caps=-all,+setuid"), "61003", {}, None, "lacks CAP_KILL, CAP_SETGID:"),
        (CAPABLE, "61004", {}, None, "is not in the group of SCRIMP_ATTEMPT_GID"),
        (CAPABLE, "61003", {"SCRIMP_ATTEMPT_UID": str(SERVICE)}, None, "the worker's own user"),
        (CAPABLE, "61003", {"SCRIMP_ATTEMPT_GID": str(SERVICE)}, None, "the worker's own group"),
        (CAPABLE, "61003", {}, lambda home: home.chmod(0o777), "every user may write"),
        (CAPABLE, "61003", {}, lambda home: (home.parent.chmod(0o700), os.chown(home.parent, SERVICE, 0)), "enter"),
    ],
)
def test_a_worker_that_may_not_change_the_user_does_not_start(
    rights: tuple[str, ...], groups: str, settings: dict[str, str], change: Change | None, why: str
) -> None:
    users.require_root()
    with home_of_service() as home:
        if change is not None:
            change(home)
        environment = os.environ | SET | settings | {"SCRIMP_HOME": str(home), "HOME": str(home)}
        command = [*as_service(*rights, groups=groups), *WORKER]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.startswith("scrimp worker: ") and why in done.stderr, done.stderr


def test_a_user_has_a_group() -> None:
    for half in ({"attempt_uid": 5}, {"attempt_gid": 5}):
        with pytest.raises(UserError, match="both, or neither"):
            user_of(Settings(**half))
    assert user_of(Settings()) is None and user_of(Settings(attempt_uid=5, attempt_gid=6)) == User(5, 6)
