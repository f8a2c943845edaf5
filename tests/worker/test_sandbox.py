"""A real attempt's process, turned hostile at the line where training would begin: what it reaches of its machine."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.contracts.sandbox import Sandbox
from app.db.models import Worker
from app.settings import Settings
from tests.conftest import Api
from tests.worker.support import ROOT, dense, keys_of, spec, start_of, stored_part
from worker.attempt import sandbox
from worker.attempt.fork_server import ForkServer
from worker.attempt.sandbox import default_memory_bytes, join_cgroup, probe
from worker.channel import Channel
from worker.messages import TO_SUPERVISOR, Failed, Start

MEMORY = 6 * 2**30
SHAPE = {"records_train": 80, "records_holdout": 20, "features": 5, "outputs": 3, "sparse": False}

# What stands in the place of run_attempt in the fork server. It has been through all that comes before training.
HOSTILE = """
import ctypes, json, os, resource, socket, sqlite3, sys
from pathlib import Path
import worker.attempt.child as child
from worker.attempt import fork_server

def tried(what):
    try:
        return repr(what())[:200]
    except BaseException as error:
        return type(error).__name__

def connected(family, address):
    with socket.socket(family) as client:
        client.settimeout(5)
        client.connect(address)
        return "connected"

def ran_a_program():
    pid = os.fork()
    if pid == 0:
        try:
            os.execv(sys.executable, [sys.executable, "-c", ""])
        except OSError:
            os._exit(1)
    return "ran" if os.waitpid(pid, 0)[1] == 0 else "refused"

def run_attempt(channel, link, start, *_):
    home, parent = Path(os.environ["HOSTILE_HOME"]), os.getppid()
    out = Path(start.output_dir)
    ports = json.loads(os.environ["HOSTILE_PORTS"])
    libc = ctypes.CDLL(None, use_errno=True)
    seen = {
        "database": tried(lambda: sqlite3.connect(home / "scrimp.db").execute("SELECT * FROM api_keys").fetchall()),
        "database-file": tried(lambda: (home / "scrimp.db").read_bytes()),
        "database-write": tried(lambda: open(home / "scrimp.db", "ab")),
        "secrets": tried(lambda: (home / "secrets" / "noise_secret").read_text()),
        "secrets-list": tried(lambda: os.listdir(home / "secrets")),
        "admin-key": tried(lambda: (home / "admin.key").read_text()),
        "another-part": tried(lambda: (home / "storage" / "datasets" / "other.npz").read_bytes()),
        "another-output": tried(lambda: (home / "storage" / "jobs" / "x").write_text("x")),
        "a-link-out": tried(lambda: (os.symlink(home / "secrets", out / "link"), os.listdir(out / "link"))),
        "passwd": tried(lambda: Path("/etc/passwd").read_text()),
        "environment-of-the-parent": tried(lambda: Path(f"/proc/{parent}/environ").read_bytes()),
        "memory-of-the-parent": tried(lambda: open(f"/proc/{parent}/mem", "rb")),
        "signal-to-the-parent": tried(lambda: os.kill(parent, 0)),
        "service": tried(lambda: connected(socket.AF_INET, ("127.0.0.1", ports["tcp"]))),
        "interfaces": tried(lambda: [name for _number, name in socket.if_nameindex()]),
        "unix-socket": tried(lambda: connected(socket.AF_UNIX, ports["unix"])),
        "abstract-socket": tried(lambda: connected(socket.AF_UNIX, "\\0" + ports["abstract"])),
        "program": tried(ran_a_program),
        "namespace": libc.unshare(0x10000000),
        "trace": libc.ptrace(16, parent, 0, 0),
        "too-much-memory": tried(lambda: bytearray(MEMORY_LIMIT)),
        "own-part": tried(lambda: len(Path(start.parts.train[0].path).read_bytes()) > 0),
        "own-scratch": tried(lambda: __import__("tempfile").TemporaryFile().write(b"x")),
        "own-output": tried(lambda: (out / "model").write_text("x")),
        "a-library": tried(lambda: __import__("xml.dom.minidom").__name__),
        "oom_score_adj": int(Path("/proc/self/oom_score_adj").read_text()),
        "capabilities": [line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff")][0],
    }
    (out / "seen.json").write_text(json.dumps(seen))
    raise RuntimeError

child.run_attempt = run_attempt
MEMORY_LIMIT = int(sys.argv[2])
fork_server.main(int(sys.argv[1]), MEMORY_LIMIT)
"""

REACHED = {"own-part": "True", "own-scratch": "1", "own-output": "1", "a-library": "'xml'"}
DENIED = ("PermissionError", "OperationalError", "OSError")


@pytest.fixture(scope="module")
def on() -> Sandbox:
    """What this kernel offers."""
    return probe(MEMORY)


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Services beside the attempt: a port, a socket in the file system, one with an abstract name."""
    tcp, named, abstract = (socket.socket(family) for family in (socket.AF_INET, socket.AF_UNIX, socket.AF_UNIX))
    with tcp, named, abstract:
        tcp.bind(("127.0.0.1", 0))
        named.bind(str(tmp_path / "s"))
        abstract.bind(f"\0scrimp-test-{os.getpid()}")
        for each in (tcp, named, abstract):
            each.listen()
        names = {"unix": str(tmp_path / "s"), "abstract": f"scrimp-test-{os.getpid()}"}
        yield {"tcp": tcp.getsockname()[1]} | names


def hostile(home: Path, ports: dict[str, Any]) -> dict[str, Any]:
    """What an attempt that a real fork server forked could do, by its own account."""
    part, out = home / "storage" / "datasets" / "mine", home / "storage" / "jobs" / "job_1" / "attempt-1"
    part.mkdir(parents=True)
    out.mkdir(parents=True)
    (part.parent / "other.npz").write_bytes(b"of somebody else")
    (home / "admin.key").write_text("scrimp_key_x_y")
    x, y = dense(100, 5, 3)
    parts = {"train": stored_part(part / "train.npz", x[:80], y[:80])}
    described = start_of(spec(evaluation=None), SHAPE, parts=parts, output_dir=out)
    start = Start.model_validate(described | {"segments": [{"from_step": 0, **keys_of("x")}], "allowed_steps": 10})
    fork_server, ours, theirs = ForkServer(), *socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = os.environ | {"HOSTILE_HOME": str(home), "HOSTILE_PORTS": json.dumps(ports)}
    with theirs:
        arguments = [sys.executable, "-c", HOSTILE, str(theirs.fileno()), str(MEMORY)]
        fork_server._process = subprocess.Popen(arguments, cwd=ROOT, pass_fds=[theirs.fileno()], env=environment)
    fork_server._socket = ours
    supervisor, attempt = socket.socketpair()
    with closing(Channel(supervisor, TO_SUPERVISOR)) as channel:
        with attempt:
            process = fork_server.start(attempt.fileno())
        try:
            channel.send(start)
            last = channel.receive()
            assert isinstance(last, Failed) and last.code == "internal"
        finally:
            process.kill()
            process.close()
            fork_server.close()
    return dict(json.loads((out / "seen.json").read_text()))


@pytest.mark.attack
def test_a_hostile_attempt_reaches_its_own_parts_and_nothing_else(
    settings: Settings, on: Sandbox, listening: dict[str, Any]
) -> None:
    seen = hostile(settings.home, listening)
    assert {name: seen.pop(name) for name in REACHED} == REACHED
    assert seen.pop("oom_score_adj") == 800
    assert seen.pop("too-much-memory") == "MemoryError"
    assert seen.pop("capabilities") == "0000000000000000"
    service, interfaces = seen.pop("service"), seen.pop("interfaces")
    calls = {name: seen.pop(name) for name in ("unix-socket", "abstract-socket", "program", "namespace", "trace")}
    if on.network != "host":
        assert service in ("ConnectionRefusedError", "PermissionError")
        assert interfaces in ("['lo']", "PermissionError", "OSError")
    if on.seccomp:
        assert calls == {
            "unix-socket": "PermissionError",
            "abstract-socket": "PermissionError",
            "program": "'refused'",
            "namespace": -1,
            "trace": -1,
        }
    if on.landlock:
        assert {name: each for name, each in seen.items() if each not in DENIED} == {}


def test_this_kernel_offers_what_it_is_taken_for(on: Sandbox) -> None:
    """On the machines that this is developed on all of it is there; elsewhere the test above holds what is on."""
    version = int(os.uname().release.split(".")[0])
    if version < 6 or not Path("/proc/self/ns/user").exists():
        pytest.skip("an older kernel, or one without namespaces")
    assert on.memory_limit_bytes == MEMORY
    assert on.seccomp


NESTED = """
import sys
from worker.attempt import kernel, sandbox
from pathlib import Path
kernel.no_new_privileges()
kernel.seccomp(())  # the container's own filter: no namespaces, no sockets
print(sandbox.enter(sandbox.Policy((), (), 2**32)).model_dump_json())
"""


def test_what_is_not_offered_is_said_to_be_off() -> None:
    done = subprocess.run([sys.executable, "-c", NESTED], cwd=ROOT, capture_output=True, text=True, check=True)
    found = Sandbox.model_validate_json(done.stdout)
    assert found.network == ("none" if found.seccomp else "host")


THREADED = """
import threading
from worker.attempt import sandbox
threading.Thread(target=threading.Event().wait, daemon=True).start()
try:
    sandbox.enter(sandbox.Policy((), (), 2**32))
except RuntimeError as error:
    print(error)
"""


def test_a_process_with_threads_is_not_confined_by_halves() -> None:
    done = subprocess.run([sys.executable, "-c", THREADED], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "several threads" in done.stdout


RANKS = """
import os, socket
from worker.attempt import sandbox
told, tell = os.pipe()
first = os.fork()
if first == 0:
    made = sandbox.enter(sandbox.Policy((), (), 2**32))
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    second = os.fork()
    if second == 0:
        with socket.create_connection(listener.getsockname(), timeout=20) as connection:
            print(made.network, connection.recv(16).decode(), flush=True)
        os._exit(0)
    listener.accept()[0].sendall(made.network.encode())
    os.waitpid(second, 0)
    os.write(tell, b"%d\\n" % listener.getsockname()[1])
    listener.accept()
port = int(os.read(told, 16))
try:
    socket.create_connection(("127.0.0.1", port), timeout=5)
    print("reached from outside")
except OSError:
    print("not reached from outside")
os.kill(first, 9)
"""


def test_the_ranks_of_one_attempt_share_a_loopback_that_nobody_else_reaches(on: Sandbox) -> None:
    if on.network != "loopback":
        pytest.skip("no network namespaces here")
    done = subprocess.run(
        [sys.executable, "-c", RANKS], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split("\n")[:2] == ["loopback loopback", "not reached from outside"], done.stderr


def test_a_cgroup_is_joined_where_memory_is_delegated(tmp_path: Path) -> None:
    control = tmp_path / "cgroup.subtree_control"
    control.write_text("cpu pids\n")
    assert not join_cgroup(tmp_path, 2**30), "not delegated"
    assert not join_cgroup(None, 2**30)
    control.write_text("cpu memory\n")
    assert join_cgroup(tmp_path, 2**30)
    made = tmp_path / f"scrimp-{os.getpid()}"
    found = {each.name: each.read_text() for each in made.iterdir()}
    assert found == {
        "memory.max": str(2**30),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "cgroup.procs": str(os.getpid()),
    }
    assert not join_cgroup(tmp_path, 2**30), "the group is there already"


def test_a_group_whose_other_ranks_still_die_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel refuses to remove a group before its last process is gone: rank 0 ends before the others do."""
    monkeypatch.setattr(sandbox, "own_cgroup", lambda: tmp_path)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    group = tmp_path / f"scrimp-{ended.pid}"
    (group / "a-rank").mkdir(parents=True)
    dying = threading.Timer(0.2, (group / "a-rank").rmdir)
    dying.start()
    sandbox.leave(ended.pid)
    dying.join()
    assert not group.exists()
    group.mkdir()  # its fork server was killed
    lives = tmp_path / f"scrimp-{os.getpid()}"
    lives.mkdir()
    sandbox.sweep()
    assert not group.exists() and lives.exists()


def test_the_workers_say_what_is_on(api: Api, on: Sandbox) -> None:
    from app.lifecycle.presence import Presence

    db = api.client.app.state.db  # type: ignore[attr-defined]
    Presence(db, "h", 1, 5.0, on).beat()
    Presence(db, "h", 2, 5.0).beat()
    items = api.client.get("/v1/workers", headers=api.headers("analyst")).json()["items"]
    assert {each["name"]: each["sandbox"] for each in items} == {"h:1": on.model_dump(), "h:2": None}
    with db.read() as session:
        assert session.get_one(Worker, "h:2").sandbox is None


HOLDER = """
import os, sys, time
from worker.attempt import sandbox
sandbox.tempfile.tempdir = sys.argv[1]
print(sandbox.own_scratch(), flush=True)
if os.fork() == 0:  # a rank
    print(os.getpid(), flush=True)
time.sleep(600)
"""


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_scratch_folders_go_with_their_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ends them: features in a folder are private, and nobody may be told by a pid that somebody has again."""
    monkeypatch.setattr(sandbox.tempfile, "tempdir", str(tmp_path))
    lives = sandbox.own_scratch()
    (tmp_path / "scrimp-scratch-mine.txt").write_text("a file, not a folder")
    first = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    held, rank = Path(first.stdout.readline().strip()), int(first.stdout.readline())
    (held / "features").mkdir()
    assert held.stat().st_mode & 0o777 == 0o700 and held.parent == tmp_path
    sandbox.sweep()
    first.kill()
    first.wait()
    sandbox.leave(first.pid)
    assert held.exists(), "a rank of it still lives"
    os.kill(rank, signal.SIGKILL)
    while _runs(rank):
        time.sleep(0.01)
    sandbox.sweep()
    assert not held.exists() and lives.exists()
    first.stdout.close()


def test_a_folder_that_was_swept_before_its_lock_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.tempfile, "tempdir", str(tmp_path))
    honest, swept = fcntl.flock, []

    def late(descriptor: int, how: int) -> None:
        if not swept:
            swept.append(how)
            sandbox.sweep()
            assert not list(tmp_path.iterdir())
        honest(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    assert sandbox.own_scratch().exists() and swept == [fcntl.LOCK_EX]


def test_memory_is_most_of_the_machines() -> None:
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < default_memory_bytes() < whole
