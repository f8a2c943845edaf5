"""A real attempt's process, turned hostile at the line where training would begin: what it reaches of its machine."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.db.models import Worker
from app.sandbox import confinement
from app.settings import Settings
from core.contracts.sandbox import Sandbox
from tests.conftest import Api
from tests.processes import alive, until
from tests.worker.support import ROOT, dense, keys_of, run_child, spec, start_of, stored_part
from tests.worker.test_rank_processes import made
from worker.attempt import confined
from worker.attempt.confined import default_memory_bytes, join_cgroup, probe
from worker.attempt.fork_server import ForkServer
from worker.channel import Channel
from worker.messages import TO_SUPERVISOR, Failed, Finished, Start

MEMORY = 6 * 2**30
NOBODY = 65534
SHAPE = {"records_train": 80, "records_holdout": 20, "features": 5, "outputs": 3, "sparse": False}

# What stands in the place of run_attempt in the fork server. It has been through all that comes before training.
HOSTILE = """
import ctypes, fcntl, json, mmap, os, resource, socket, sqlite3, sys
from pathlib import Path
import worker.attempt.child as child
from worker.attempt import fork_server

LIBC = ctypes.CDLL(None, use_errno=True)

def tried(what):
    try:
        return repr(what())[:200]
    except BaseException as error:
        return type(error).__name__

def called(name, *arguments):
    if getattr(LIBC, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)
    return "done"

def connected(family, address):
    with socket.socket(family) as client:
        client.settimeout(300)
        client.connect(address)
        return "connected"

def sent(address):
    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    return first.sendto(b"x", address)

def ran_a_program():
    pid = os.fork()
    if pid == 0:
        try:
            os.execv(sys.executable, [sys.executable, "-c", ""])
        except OSError:
            os._exit(1)
    return "ran" if os.waitpid(pid, 0)[1] == 0 else "refused"

def wrote_past_the_disk(folder):
    free = os.statvfs(folder)
    with open(folder / "large", "wb") as file:
        file.truncate(free.f_bavail * free.f_frsize)
    return "written"

def run_attempt(channel, link, start, *_):
    home, parent = Path(os.environ["HOSTILE_HOME"]), os.getppid()
    out = Path(start.output_dir)
    ports = json.loads(os.environ["HOSTILE_PORTS"])
    secret = home / "admin.key"
    seen = {
        "database": tried(lambda: sqlite3.connect(home / "scrimp.db").execute("SELECT * FROM api_keys").fetchall()),
        "database-file": tried(lambda: (home / "scrimp.db").read_bytes()),
        "database-write": tried(lambda: open(home / "scrimp.db", "ab")),
        "secrets": tried(lambda: (home / "secrets" / "noise_secret").read_text()),
        "secrets-list": tried(lambda: os.listdir(home / "secrets")),
        "admin-key": tried(lambda: secret.read_text()),
        "another-part": tried(lambda: (home / "storage" / "datasets" / "other.npz").read_bytes()),
        "another-output": tried(lambda: (home / "storage" / "jobs" / "x").write_text("x")),
        "a-link-out": tried(lambda: (os.symlink(home / "secrets", out / "link"), os.listdir(out / "link"))),
        "passwd": tried(lambda: Path("/etc/passwd").read_text()),
        "environment-of-the-parent": tried(lambda: Path(f"/proc/{parent}/environ").read_bytes()),
        "memory-of-the-parent": tried(lambda: open(f"/proc/{parent}/mem", "rb")),
        "service": tried(lambda: connected(socket.AF_INET, ("127.0.0.1", ports["tcp"]))),
        "interfaces": tried(lambda: [name for _number, name in socket.if_nameindex()]),
        "too-much-memory": tried(lambda: bytearray(MEMORY_LIMIT)),
        "too-large-a-file": tried(lambda: wrote_past_the_disk(out)),
        "own-part": tried(lambda: len(Path(start.parts.train[0].path).read_bytes()) > 0),
        "own-scratch": tried(lambda: __import__("tempfile").TemporaryFile().write(b"x")),
        "own-output": tried(lambda: (out / "model").write_text("x")),
        "a-library": tried(lambda: __import__("xml.dom.minidom").__name__),
        "oom_score_adj": int(Path("/proc/self/oom_score_adj").read_text()),
        "capabilities": [line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff")][0],
    }
    seen["calls"] = {
        "signal-to-the-parent": tried(lambda: os.kill(parent, 0)),
        "signal-by-a-descriptor": tried(lambda: os.pidfd_open(parent)),
        "signal-by-a-pipe": tried(lambda: fcntl.fcntl(channel, fcntl.F_SETOWN, parent)),
        "signal-of-choice": tried(lambda: fcntl.fcntl(channel, fcntl.F_SETSIG, 9)),
        "affinity-of-the-parent": tried(lambda: os.sched_setaffinity(parent, {0})),
        "priority-of-the-parent": tried(lambda: os.setpriority(os.PRIO_PROCESS, parent, 19)),
        "unix-socket": tried(lambda: connected(socket.AF_UNIX, ports["unix"])),
        "abstract-socket": tried(lambda: connected(socket.AF_UNIX, "\\0" + ports["abstract"])),
        "datagram": tried(lambda: sent(ports["datagrams"])),
        "program": tried(ran_a_program),
        "fork": tried(os.fork),
        "namespace": tried(lambda: called("unshare", 0x10000000)),
        "trace": tried(lambda: called("ptrace", 16, parent, 0, 0)),
        "shared-memory": tried(lambda: called("shmget", 0x5C81, 4096, 0o1666)),
        "message-queue": tried(lambda: called("msgget", 0x5C81, 0o1666)),
        "semaphores": tried(lambda: called("semget", 0x5C81, 1, 0o1666)),
        "mode": tried(lambda: os.chmod(secret, 0o644)),
        "mode-of-a-folder": tried(lambda: os.chmod(home, 0)),
        "owner": tried(lambda: os.chown(secret, os.getuid(), os.getgid())),
        "times": tried(lambda: os.utime(secret, (0, 0))),
        "attribute": tried(lambda: os.setxattr(secret, "user.scrimp", b"x")),
        "attributes": tried(lambda: os.listxattr(secret)),
        "watch": tried(lambda: called("inotify_init1", 0)),
        # It would end the fork server, and this process with it.
        "limits-of-the-parent": tried(lambda: resource.prlimit(parent, resource.RLIMIT_CPU, (0, 0))),
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
    """Services beside the attempt: a port, sockets in the file system, one with an abstract name."""
    tcp, named, abstract = (socket.socket(family) for family in (socket.AF_INET, socket.AF_UNIX, socket.AF_UNIX))
    with tcp, named, abstract, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
        tcp.bind(("127.0.0.1", 0))
        datagrams.bind(str(tmp_path / "d"))
        named.bind(str(tmp_path / "s"))
        abstract.bind(f"\0scrimp-test-{os.getpid()}")
        for each in (tcp, named, abstract):
            each.listen()
        names = {
            "unix": str(tmp_path / "s"),
            "abstract": f"scrimp-test-{os.getpid()}",
            "datagrams": str(tmp_path / "d"),
        }
        yield {"tcp": tcp.getsockname()[1]} | names


@contextmanager
def standing_in(program: str, names: dict[str, str] | None = None) -> Iterator[ForkServer]:
    """A client of the real fork server, started by another program."""
    fork_server, ours, theirs = ForkServer(), *socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        arguments = [sys.executable, "-c", program, str(theirs.fileno()), str(MEMORY)]
        environment = os.environ | (names or {})
        fork_server._process = subprocess.Popen(arguments, cwd=ROOT, pass_fds=[theirs.fileno()], env=environment)
    fork_server._socket = ours
    try:
        yield fork_server
    finally:
        fork_server.close()


def hostile(home: Path, ports: dict[str, Any]) -> dict[str, Any]:
    """What an attempt that a real fork server forked could do, by its own account."""
    part, out = home / "storage" / "datasets" / "mine", home / "storage" / "jobs" / "job_1" / "attempt-1"
    part.mkdir(parents=True)
    out.mkdir(parents=True)
    (part.parent / "other.npz").write_bytes(b"of somebody else")
    (home / "admin.key").write_text("scrimp_key_x_y")
    (home / "admin.key").chmod(0o600)
    x, y = dense(100, 5, 3)
    parts = {"train": stored_part(part / "train.npz", x[:80], y[:80])}
    described = start_of(spec(evaluation=None), SHAPE, parts=parts, output_dir=out)
    start = Start.model_validate(described | {"segments": [{"from_step": 0, **keys_of("x")}], "allowed_steps": 10})
    supervisor, attempt = socket.socketpair()
    names = {"HOSTILE_HOME": str(home), "HOSTILE_PORTS": json.dumps(ports)}
    with closing(Channel(supervisor, TO_SUPERVISOR)) as channel, standing_in(HOSTILE, names) as fork_server:
        with attempt:
            process = fork_server.start(attempt.fileno())
        try:
            channel.send(start)
            last = channel.receive()
            assert isinstance(last, Failed) and last.code == "internal"
        finally:
            process.kill()
            process.close()
    return dict(json.loads((out / "seen.json").read_text()))


@pytest.mark.attack
def test_a_hostile_attempt_reaches_its_own_parts_and_nothing_else(
    settings: Settings, on: Sandbox, listening: dict[str, Any]
) -> None:
    """Attack (Doors): An attempt that turned hostile
    Now: its own parts and its output; where the kernel lacks something, `GET /v1/workers` says so
    Also: tests/worker/test_sandbox.py::test_the_workers_say_what_is_on

    Attack (Doors): A hostile attempt that ends its supervisor or the API: `prlimit` of RLIMIT_CPU to 0, F_SETOWN with
    F_SETSIG on its pipe
    Now: EPERM: calls and their arguments are [a list](../system-calls.md); forks, and all signals but to itself, are
    refused
    Also: tests/architecture/test_system_calls.py::test_what_would_undo_the_rest_is_not_on_the_list

    Attack (Doors): A hostile attempt that changes modes, owners, times, attributes of the admin key, the secrets, the
    home
    Now: EPERM (`mode`, `mode-of-a-folder`, `owner`, `times`, `attribute`)

    Attack (Doors): A hostile attempt that takes System V memory, queues, semaphores
    Now: EPERM; a namespace of its own where there are any (`shared-memory`, `message-queue`, `semaphores`)

    Attack (Doors): A hostile attempt that sends a datagram to a socket in the file system
    Now: EPERM: no socket, and no send to an address (`datagram`)

    Attack (Doors): A hostile attempt that writes one file over the whole disk
    Now: EFBIG past the room less 512 MiB (`too-large-a-file`)
    """
    seen = hostile(settings.home, listening)
    assert {name: seen.pop(name) for name in REACHED} == REACHED
    assert seen.pop("oom_score_adj") == 800
    assert seen.pop("too-much-memory") == "MemoryError"
    assert seen.pop("capabilities") == "0000000000000000"
    assert seen.pop("too-large-a-file") == "OSError"
    service, interfaces, calls = seen.pop("service"), seen.pop("interfaces"), seen.pop("calls")
    if on.network != "host":
        assert service in ("ConnectionRefusedError", "PermissionError")
        assert interfaces in ("['lo']", "PermissionError", "OSError")
    if on.seccomp:
        assert {name: each for name, each in calls.items() if each != "PermissionError"} == {}
    if on.landlock:
        assert {name: each for name, each in seen.items() if each not in DENIED} == {}
    assert (settings.home / "admin.key").stat().st_mode & 0o777 == 0o600


def test_this_kernel_offers_what_it_is_taken_for(on: Sandbox) -> None:
    """On the machines that this is developed on all of it is there; elsewhere the test above holds what is on."""
    version = int(os.uname().release.split(".")[0])
    if version < 6 or not Path("/proc/self/ns/user").exists():
        pytest.skip("an older kernel, or one without namespaces")
    assert on.memory_limit_bytes == MEMORY
    assert on.seccomp


NESTED = """
import os, sys
from app.sandbox import confinement
from tests.worker import standins
from worker.attempt import confined as sandbox
kind, user = sys.argv[1], int(sys.argv[2])
os.setgroups([])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
if kind == "ubuntu":
    standins.ubuntu([f"{user} {user} 1"])
else:
    standins.runtime_default()
found = sandbox.seal(sandbox.enter(sandbox.Policy(confinement.Policy(), 2**32)))
print(found.model_dump_json(), os.getuid())
"""


@pytest.mark.parametrize("machine", ["ubuntu", "runtime default"])
def test_what_is_not_offered_is_said_to_be_off_and_sockets_are_refused_instead(machine: str, on: Sandbox) -> None:
    """Attack (Doors): Ubuntu since 23.10: `uid_map` cannot be written
    Now: no namespaces: seccomp refuses sockets
    Also: tests/e2e/test_machines.py::test_where_maps_of_users_cannot_be_written_jobs_run_without_namespaces
    """
    user = str(NOBODY if os.getuid() == 0 else os.getuid())
    command = [sys.executable, "-c", NESTED, machine, user]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    said, who = done.stdout.split()
    assert Sandbox.model_validate_json(said) == on.model_copy(update={"network": "none", "memory_limit_bytes": 2**32})
    assert who == user, "nor is it left in a namespace where it is nobody"


THREADED = """
import threading
from app.sandbox import confinement
from worker.attempt import confined as sandbox
threading.Thread(target=threading.Event().wait, daemon=True).start()
try:
    sandbox.enter(sandbox.Policy(confinement.Policy(), 2**32))
except RuntimeError as error:
    print(error)
"""


def test_a_process_with_threads_is_not_confined_by_halves() -> None:
    done = subprocess.run([sys.executable, "-c", THREADED], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "several threads" in done.stdout


CONTAINER = """
import sys
from tests.worker import standins
from worker.attempt import fork_server
standins.runtime_default()
fork_server.main(int(sys.argv[1]), int(sys.argv[2]))
"""


def test_two_ranks_train_in_a_container_with_default_profiles(tmp_path: Path) -> None:
    """No namespaces, no capabilities, no new privileges: ranks need no network.

    Attack (Doors): `"processes": 2` under RuntimeDefault
    Now: runs, to the bit as one process: ranks share memory
    """
    alone, two = made(tmp_path / "one", 1), made(tmp_path / "two", 2)
    whole = run_child(alone)
    with standing_in(CONTAINER) as fork_server:
        shared = run_child(two, fork_server)
    assert isinstance(whole.last, Finished) and isinstance(shared.last, Finished)
    assert shared.last.artifacts[0].sha256 == whole.last.artifacts[0].sha256 and len(set(two.pids)) == 2


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
    monkeypatch.setattr(confined, "own_cgroup", lambda: tmp_path)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    group = tmp_path / f"scrimp-{ended.pid}"
    (group / "a-rank").mkdir(parents=True)
    dies = (group / "a-rank").rmdir  # while it is waited for: the wait's length is the machine's
    monkeypatch.setattr(confined, "time", SimpleNamespace(sleep=lambda _seconds: dies()))
    confined.leave(ended.pid)
    assert not group.exists()
    group.mkdir()  # its fork server was killed
    lives = tmp_path / f"scrimp-{os.getpid()}"
    lives.mkdir()
    confined.sweep()
    assert not group.exists() and lives.exists()


def test_the_workers_say_what_is_on(api: Api, on: Sandbox) -> None:
    from app.lifecycle.queue.presence import Presence

    db = api.client.app.state.db  # type: ignore[attr-defined]
    Presence(db, "h", 1, 5.0, on).beat()
    Presence(db, "h", 2, 5.0).beat()
    items = api.client.get("/v1/workers", headers=api.headers("analyst")).json()["items"]
    assert {each["name"]: each["sandbox"] for each in items} == {"h:1": on.model_dump(), "h:2": None}
    with db.read() as session:
        assert session.get_one(Worker, "h:2").sandbox is None


HOLDER = """
import os, sys, time
from worker.attempt import confined as sandbox
sandbox.tempfile.tempdir = sys.argv[1]
print(sandbox.own_scratch(), flush=True)
if os.fork() == 0:  # a rank
    print(os.getpid(), flush=True)
time.sleep(600)
"""


def test_scratch_folders_go_with_their_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ends them: features in a folder are private, and nobody may be told by a pid that somebody has again."""
    monkeypatch.setattr(confined.tempfile, "tempdir", str(tmp_path))
    lives = confined.own_scratch()
    (tmp_path / "scrimp-scratch-mine.txt").write_text("a file, not a folder")
    first = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    held, rank = Path(first.stdout.readline().strip()), int(first.stdout.readline())
    (held / "features").mkdir()
    assert held.stat().st_mode & 0o777 == 0o700 and held.parent == tmp_path
    confined.sweep()
    first.kill()
    first.wait()
    confined.leave(first.pid)
    assert held.exists(), "a rank of it still lives"
    os.kill(rank, signal.SIGKILL)
    until(lambda: not alive(rank))
    confined.sweep()
    assert not held.exists() and lives.exists()
    first.stdout.close()


def test_a_folder_that_was_swept_before_its_lock_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confined.tempfile, "tempdir", str(tmp_path))
    honest, swept = fcntl.flock, []

    def late(descriptor: int, how: int) -> None:
        if not swept:
            swept.append(how)
            confined.sweep()
            assert not list(tmp_path.iterdir())
        honest(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    assert confined.own_scratch().exists() and swept == [fcntl.LOCK_EX]


def test_memory_is_most_of_the_machines() -> None:
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < default_memory_bytes() < whole


def test_gpus_are_allowed_by_path_and_their_driver_where_the_linker_finds_it(tmp_path: Path) -> None:
    """Lists of paths: no GPU has run under this list of system calls."""
    nodes = tmp_path / "dev"
    (nodes / "nvidia-caps").mkdir(parents=True)
    files = confinement.Policy((tmp_path,))
    assert confined.with_gpus(files, nodes) == files, "no nodes, no driver"
    wanted = [
        nodes / "nvidia-caps",
        nodes / "nvidia0",
        nodes / "nvidiactl",
        nodes / "nvidia-caps" / "cap1",
        nodes / "dxg",
    ]
    for each in wanted[1:]:
        each.touch()
    (nodes / "sda").touch()
    found = confined.with_gpus(files, nodes)
    assert set(found.devices) == set(wanted) - {nodes / "nvidia-caps"}
    assert found.readable[0] == tmp_path and Path("/proc/driver/nvidia") in found.readable


def test_the_linker_s_folders_are_read_from_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "nvidia.conf").write_text("# a driver\n/usr/local/nvidia/lib64\n/a /b:/c\n")
    (tmp_path / "ld.so.conf").write_text(f"include {tmp_path}/conf.d/*.conf\n/opt/lib # more\nhwcap 0 x\n")
    found = [str(each) for each in confinement.library_folders(tmp_path / "ld.so.conf")]
    assert found == ["/usr/local/nvidia/lib64", "/a", "/b", "/c", "/opt/lib"]
    assert confinement.library_folders(tmp_path / "none") == ()
