"""A process that has loaded the service and forks: each fork makes a short real history, or looks at its home after it.

`python -m tests.writes.history`: a line of JSON on standard input names what a fork does (`ACTS`), the home, and the
file for what it is told; the answer is the fork's exit status. Loading the service takes seconds, a fork milliseconds.

A fork begins warm: its parent has done all acts once (`warm`), on a home at the same path. What forks inherit are
imports, compiled statements and validators; a database, its connections and what is known of it are each fork's own.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import shutil
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

os.environ.setdefault("SCRIMP_PRICING_PROCESSES", "1")

from app.audit import audit_chain
from app.db import database, migrate
from app.db.database import Database
from app.keys.service import ensure_admin_key
from app.ledger.signing_keys import public_key, signing_key
from app.ledger.transparency.heads import Heads
from app.ledger.verifications import check
from app.lifecycle import claims
from app.lifecycle.cadence import Cadence, pause
from app.lifecycle.relay import Relay
from app.lifecycle.sweeper import expire_all_leases
from app.lifecycle.wakeups import WakeUp
from app.main import create_app
from app.pricing import service as pricing
from app.sandbox import limited, processes
from app.secrets import ensure_secrets
from app.settings import Settings, get_settings
from app.web import route_threads
from core.privacy.filters import load_numerics
from scrimp.cli import main as command_line
from scrimp.client import Client
from tests.chaos.invariants import ENDED, Json, ledger_faults
from tests.e2e.conftest import csv_spec, job_of
from worker import tasks
from worker.attempt import fork_server, job_checkpoints
from worker.attempt.fork_server import ForkServer
from worker.attempt.supervisor import STOPPING

NAME, STEPS = "small", 2
JOB: dict[str, Any] = {"length": {"steps": STEPS}, "privacy": {"target_epsilon": 0.5}, "evaluation": {"noise_mu": 0.05}}
CHARGE = {"account": "train", "mechanism": {"kind": "gdp", "mu": 0.1}, "unit": "example", "attested": "a test"}
QUICK = 20  # times as fast as the machine's: the clock by whose whole seconds an attempt shows its news
LONGEST_S = 3000.0  # of a play: one that hangs ends
TURNS = 20  # of worker and relay, after which a job has ended
PATIENCE = 4  # how often a request that is to be tried again is sent
FORKS = ForkServer()  # one for all forks; it ends with this process


class Log:
    """What the history was told, beside the home: no fault reaches it."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("a", buffering=1)

    def tell(self, what: str, **facts: Any) -> None:
        self.file.write(json.dumps({"what": what, **facts}) + "\n")


class Started(tasks.AttemptLog):
    """Tells which steps have been allowed to start; the first attempt is stopped then, and saves its state."""

    log: Log

    def __init__(self, *arguments: Any, **others: Any) -> None:
        quick = Cadence(clock=lambda: QUICK * time.time(), sleep=lambda seconds: pause(seconds / QUICK))
        super().__init__(*arguments, cadence=quick, **others)

    def start_block(self, first_step: int, last_step: int, digest: str | None = None) -> bool:
        may = super().start_block(first_step, last_step, digest)
        if may:
            self.log.tell("started", job=self.held.job_id, step=last_step)
            if self.held.attempt == 1:
                STOPPING.set()
        return may


class Collected:
    """Takes the wake-ups that a worker would get."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def notify(self, due: Sequence[WakeUp]) -> Iterator[WakeUp]:
        for each in due:
            self.ids.append(each.id)
            yield each

    def waiting(self, *, gpu: bool = False) -> int:
        return 0


@cache
def settings_of(home: Path) -> Settings:
    """Settings of a home: a function of the environment, which takes a tenth of a second to compute."""
    return Settings(home=home, allowed_hosts=["testserver"], checkpoint_s=1e-9, sweep_s=0.001)


class Service:
    """API, relay and worker of a home, in this process."""

    def __init__(self, home: Path, log: Log) -> None:
        os.environ["SCRIMP_HOME"] = str(home)
        get_settings.cache_clear()
        self.settings, self.log = settings_of(home), log
        self.db = Database.of(self.settings)
        tasks.get_settings = lambda: self.settings  # type: ignore[assignment]
        tasks._fork_server = lambda: FORKS  # type: ignore[assignment]
        tasks._database = lambda: self.db  # type: ignore[assignment]
        Started.log = log
        tasks.AttemptLog = Started  # type: ignore[misc]
        self.woken = Collected()
        self.relay = Relay(self.db, self.settings, signing_key(self.settings), self.woken)
        token = (home / "admin.key").read_text().strip()
        self.client = Client("http://testserver", token)
        headers = {"Authorization": f"Bearer {token}"}
        self.client._http = TestClient(create_app(self.settings), raise_server_exceptions=False, headers=headers)

    def ask(self, method: str, path: str, **arguments: Any) -> Json | None:
        """An answer's JSON; asks again after a 5xx. Tells an error that is not clear."""
        for _ in range(PATIENCE):
            answer = self.client._http.request(method, path, **arguments)
            if answer.status_code < 400:
                return dict(answer.json())
            kind = answer.headers.get("content-type", "")
            self.log.tell("answer", status=answer.status_code, problem=answer.text[:300])
            if not kind.startswith("application/problem+json") or "Traceback" in answer.text:
                self.log.tell("unclear", path=path, text=answer.text[:500])
            if answer.status_code < 500:
                return None
        return None

    def attempt(self, what: str, act: Callable[[], object]) -> bool:
        """Something that a process of the service repeats; False if it failed each time."""
        for _ in range(PATIENCE):
            try:
                act()
            except Exception as error:
                self.log.tell("failed", where=what, error=f"{type(error).__name__}: {error}"[:300])
            else:
                return True
        return False

    def relay_pass(self) -> None:
        self.attempt("relay", self.relay.run_once)
        self.attempt("audit", lambda: audit_chain.seal(self.db))
        self.relay.next_sweep = 0.0

    def work(self, job: str) -> None:
        """A worker's turn; an attempt that was lost is taken back as after the worker's death."""
        STOPPING.clear()
        self.attempt("worker", lambda: tasks.run_job(job))
        STOPPING.clear()

    def job(self, job: str) -> Json:
        return self.ask("GET", f"/v1/jobs/{job}") or {}

    def until_ended(self, job: str) -> str:
        """Turns of worker and relay until the job has ended."""
        status = ""
        for _ in range(TURNS):
            self.relay_pass()
            status = str(self.job(job).get("status"))
            if status in ENDED:
                break
            if status != "queued":
                self.attempt("leases", lambda: expire_all_leases(self.db))
            self.work(job)
        return status


class Remembered(limited.LimitedServer):
    """Keeps prices from one fork to the next, beside all homes: a price depends on its question alone, and a process
    that computes one takes seconds to load."""

    def call(self, request: Json, *, target: str | None = None) -> Json:
        question = hashlib.sha256(json.dumps([target or self.target, request], sort_keys=True).encode()).hexdigest()
        file = Path(os.environ["SCRIMP_HOME"]).parent.with_name(f"price-{question}")
        if not file.exists():
            answer = super().call(request, target=target)
            file.write_text(json.dumps(answer))
        return dict(json.loads(file.read_text()))


def prepare(home: Path, log: Log, csv: Path) -> None:
    """A home with its keys, and two prices that no later process must make."""
    pricing.WORTH_KEEPING_S = 0.0
    os.environ["SCRIMP_HOME"] = str(home)
    settings = Settings()
    ensure_secrets(settings)
    migrate.upgrade(settings.effective_database_url)
    db = Database.of(settings)
    ensure_admin_key(db, settings)
    db.close()
    service = Service(home, log)
    register(service, "priced", csv)
    service.ask("POST", "/v1/quotes", json=job_of("priced", **JOB))
    charge = service.ask("POST", "/v1/charges", json=CHARGE | {"dataset": "priced"}, headers={"Idempotency-Key": "p"})
    assert charge is not None
    service.ask("POST", f"/v1/charges/{charge['id']}/void", json={"reason": "a test"})
    service.relay_pass()
    service.db.close()


def register(service: Service, name: str, csv: Path) -> Json | None:
    spec, content = json.dumps(csv_spec(name, records=400)), csv.read_bytes()
    return service.ask("POST", "/v1/datasets", files={"spec": (None, spec), "file": ("a.csv", content)})


def registered(home: Path, log: Log, csv: Path) -> None:
    """The first history: a registration."""
    service = Service(home, log)
    made = register(service, NAME, csv)
    log.tell("registered", dataset=made and made["id"])
    service.relay_pass()
    service.db.close()


def trained(home: Path, log: Log, csv: Path) -> None:
    """The second history: admit, train a step, save, go on from there, settle, certify, charge, sign a checkpoint."""
    service = Service(home, log)
    once = {"Idempotency-Key": "one"}
    job = service.ask("POST", "/v1/jobs", json=job_of(NAME, **JOB), headers=once)
    if job is not None:
        log.tell("admitted", job=job["id"], units=job["quote"]["charge"]["train"])
        service.until_ended(str(job["id"]))
        certificate = service.ask("GET", f"/v1/jobs/{job['id']}/certificate")
        if certificate is not None and "certificate" in certificate:
            log.tell("certified", job=job["id"], certificate=certificate)
    asked = CHARGE | {"dataset": NAME}
    charge = service.ask("POST", "/v1/charges", json=asked, headers={"Idempotency-Key": "two"})
    if charge is not None:
        log.tell("charged", charge=charge["id"], units=charge["train"])
        service.ask("POST", f"/v1/charges/{charge['id']}/post")
    service.relay_pass()
    log.tell("end")
    service.db.close()


def scrimp(*arguments: str) -> tuple[int, str]:
    """A command of the operator's, in a fork: its exit code and all that it wrote."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for each in (1, 2):
                os.dup2(writing, each)
            sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
            sys.argv = ["scrimp", *arguments]
            command_line()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, errors="replace") as file:
        text = file.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text


def after(home: Path, log: Log, csv: Path) -> None:
    """A restart on the same home, without faults: what it says, and what is wrong."""
    os.environ["SCRIMP_HOME"] = str(home)
    code, text = scrimp("restore")
    if "Traceback" in text or (code != 0 and not text.strip()):
        log.tell("unclear", path="scrimp restore", text=text[-500:])
    if "unexpected" in text or "scrimp restore:" in text:
        log.tell("refuses", text=text.strip()[-300:])
        return
    behind = [name for name in (NAME, "priced") if f"{name}" in text and code != 0]
    log.tell("restore", code=code, behind=behind, text=text[:400])
    for name in behind:
        _, text = scrimp("restore", "--post", name)
        log.tell("posted", dataset=name, text=text[:300])
    service = Service(home, log)
    service.attempt("leases", lambda: expire_all_leases(service.db))
    service.relay_pass()
    if service.ask("GET", f"/v1/datasets/{NAME}") is None:
        answer = register(service, NAME, csv)  # as its owner would
        log.tell("registered again", dataset=answer and answer["id"])
        if answer is None:  # its record outside knows it, and the content gets no second budget
            service.db.close()
            return
    look(service, log)
    service.db.close()


def look(service: Service, log: Log) -> None:
    """The data set at rest: its unfinished jobs are run to their end, and everything is verified from both sides."""
    dataset = str((service.ask("GET", f"/v1/datasets/{NAME}") or {}).get("id"))
    jobs = [each["id"] for each in (service.ask("GET", "/v1/jobs") or {"items": []})["items"]]
    for job in jobs:
        log.tell("ended", job=job, status=service.until_ended(job))
    service.relay_pass()
    entries = [each.model_dump(mode="json") for each in service.client.ledger_entries(dataset)]
    accounts = (service.ask("GET", f"/v1/datasets/{dataset}/ledger") or {})["accounts"]
    service.attempt("verify", lambda: check(service.db, Heads.of(service.settings), dataset))
    verified = service.client._http.get(f"/v1/datasets/{dataset}/ledger/verify").json()
    log.tell("ledger", entries=entries, accounts=accounts, verified=verified, faults=ledger_faults(entries))
    evidence = service.settings.home.parent / "statement.json"

    try:
        evidence.write_bytes(service.client.statement(dataset))
    except Exception as error:
        log.tell("statement", code=1, text=f"{type(error).__name__}: {error}"[:300])
    else:
        key = public_key(signing_key(service.settings))
        code, text = scrimp("ledger", "statement", str(evidence), "--public-key", key)
        log.tell("statement", code=code, text=text[-300:])
    for job in jobs:
        certificate = service.ask("GET", f"/v1/jobs/{job}/certificate") or {}
        log.tell("certificate", job=job, found="certificate" in certificate)


ACTS = {each.__name__: each for each in (prepare, registered, trained, after)}


def warm(home: Path, log: Log, csv: Path) -> None:
    """Does all acts in this process, on a copy of a prepared home, and leaves nothing of it but warm code."""
    begins = home.with_name("begins")
    shutil.copytree(home, begins)
    for act in (registered, trained, after):
        act(home, log, csv)
    shutil.rmtree(home)
    begins.rename(home)
    route_threads.POOL.shutdown()
    route_threads.POOL = ThreadPoolExecutor(10, "read")
    if limited._launcher is not None:
        limited._launcher[1].shutdown()
    for thread in set(threading.enumerate()) - {threading.current_thread()}:
        thread.join(60.0)  # some were told to end
        if thread.is_alive():
            raise RuntimeError(f"a fork would lack this thread: {thread}")
    gc.collect()
    gc.freeze()  # a collection in a fork would copy all of it


def done(asked: Json) -> int:
    """Runs an act in a fork of this process; its exit code, or the signal that ended it, negative."""
    if asked["act"] == warm.__name__:
        warm(Path(asked["home"]), Log(Path(asked["log"])), Path(asked["csv"]))
        return 0
    pid = os.fork()
    if pid == 0:
        code = 1
        os.setpgid(0, 0)
        err = os.open(asked["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for each in (1, 2):
            os.dup2(err, each)
        try:
            threading.Timer(LONGEST_S, lambda: os._exit(3)).start()
            ACTS[asked["act"]](Path(asked["home"]), Log(Path(asked["log"])), Path(asked["csv"]))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def load_torch() -> None:
    """Starts the fork server that all forks use, unless it lives."""
    if FORKS._process is None or FORKS._process.poll() is not None:
        here, there = socket.socketpair()
        with here, there:
            FORKS.start(there.fileno()).kill()


def main() -> None:
    """Answers until the standard input ends."""
    job_checkpoints.SHARE, job_checkpoints.LEAST_S = 0, 3600.0
    pricing.LimitedServer = Remembered  # type: ignore[misc]
    claims.backoff_s = lambda _gone: 0.0
    database.make_engine = cache(database.make_engine)
    library, path = os.environ.get("LD_PRELOAD", ""), os.environ.get("WRITES_MAP", "")
    if library:  # processes with a plain environment write below the home, too
        processes.KEPT = (*processes.KEPT, "LD_PRELOAD", "WRITES_MAP")
        fork_server.COMMAND = ("env", f"LD_PRELOAD={library}", f"WRITES_MAP={path}", *fork_server.COMMAND)
    load_torch()
    load_numerics()  # half of a history's cost, if each fork imports it
    tasks._sandbox()  # once for all forks: it probes in processes of its own
    print("ready", flush=True)
    for line in sys.stdin:
        load_torch()
        print(json.dumps({"code": done(json.loads(line))}), flush=True)


if __name__ == "__main__":
    main()
