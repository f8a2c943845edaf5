"""The attacks of a round. What each does follows from the round's seed; how the machine interleaves it does not."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.chaos import tamper
from tests.chaos.deployment import LIBFAKETIME, VICTIMS, Deployment
from tests.chaos.invariants import ENDED, dataset_faults, entries_of
from tests.e2e.conftest import job_of, until

Json = dict[str, Any]
CHEAP: Json = {"privacy": {"target_epsilon": 0.3}, "evaluation": {"noise_mu": 0.05}, "length": {"steps": 30}}
BEHIND = "/problems/ledger-behind"
SENDERS, EACH = 8, 3
WAIT_S = 300.0


@dataclass
class Round:
    """One attack on one deployment, and what came of it."""

    world: Deployment
    name: str
    draw: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.faults.append(what)

    def submit(self, dataset: str, once: str, **changes: Any) -> tuple[int, Json]:
        """Asks until there is an answer, as a client does whose API was killed: the same key: it counts once."""
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                spec = job_of(dataset, name=once, **CHEAP | changes)
                status, answer = self.world.post("/v1/jobs", spec, **{"Idempotency-Key": f"{self.name} {once}"})
                if status != 503 or time.monotonic() > deadline:
                    return status, answer
            except httpx.TransportError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def admitted(self, dataset: str, once: str, **changes: Any) -> str:
        status, answer = self.submit(dataset, once, **changes)
        if status != 201:
            raise AssertionError(f"{once} was not admitted: {status} {answer}")
        self.counts["jobs"] += 1
        return str(answer["id"])

    def ended(self, jobs: list[str]) -> list[Json]:
        """The jobs, when all have ended; those that succeeded have their certificates, which sign the newest head."""

        def look(job: str) -> Json | None:
            found: Json = self.world.get(f"/v1/jobs/{job}")
            if found["status"] not in ENDED:
                return None
            certified = "certificate" in self.world.get(f"/v1/jobs/{job}/certificate")
            return found if certified or found["status"] != "succeeded" else None

        return [until(lambda job=job: look(job), WAIT_S) or {} for job in jobs]

    def finish(self, jobs: list[str], *, attempts: int | None = None) -> None:
        """Waits for jobs that must succeed (in so many attempts)."""
        for job in self.ended(jobs):
            said = f"{job['id']}: {job['status']} {job['failure']} {job['attempts']}"
            self.expect(job["status"] == "succeeded", said)
            self.expect(attempts is None or len(job["attempts"]) == attempts, said)

    def check(self, dataset: str, jobs: list[str]) -> None:
        self.faults += dataset_faults(self.world, dataset, jobs)

    def refuses(self, dataset: str, once: str, problem: str) -> None:
        """An admission is refused, with this problem."""
        status, answer = self.submit(dataset, once)
        self.expect((status, answer.get("type")) == (409, problem), f"{once}: {status} {answer}, not {problem}")


def races(this: Round) -> None:
    """Many submit at once what does not all fit, some the same job twice, and some cancel."""
    dataset = this.world.add(this.name, epsilon=this.draw.uniform(0.6, 0.9))
    plans = [(f"{sender}.{number}", this.draw.random()) for sender in range(SENDERS) for number in range(EACH)]

    def send(plan: tuple[str, float]) -> str | None:
        once, fate = plan
        answers = [this.submit(dataset, once) for _ in range(2 if fate < 0.3 else 1)]
        # Refused and then admitted is right: somebody may have cancelled in between.
        admitted = {str(answer["id"]) for status, answer in answers if status == 201}
        this.expect(len(admitted) <= 1, f"{once} was admitted twice: {sorted(admitted)}")
        this.expect(all(status in (200, 201, 409) for status, _ in answers), f"{once}: {answers}")
        status, answer = answers[-1]
        if status == 409:
            return None
        if fate > 0.8:
            this.world.post(f"/v1/jobs/{answer['id']}/cancel", {})
        return str(answer["id"])

    with ThreadPoolExecutor(SENDERS) as pool:
        jobs = [job for job in pool.map(send, plans) if job is not None]
    this.counts.update(submits=len(plans), jobs=len(jobs), refused=len(plans) - len(jobs))
    this.expect(0 < len(jobs) < len(plans), f"{len(jobs)} of {len(plans)} fitted")
    cancelled = [job for job in this.ended(jobs) if job["status"] == "cancelled"]
    this.counts["cancelled"] += len(cancelled)
    this.check(dataset, jobs)


def kills(this: Round) -> None:
    """kill -9 of processes while jobs are submitted and run; each comes back."""
    dataset = this.world.add(this.name)
    strikes = [(this.draw.choice(VICTIMS), this.draw.uniform(0.1, 2.5)) for _ in range(this.draw.randint(3, 6))]
    with ThreadPoolExecutor(4) as pool:
        sent = [pool.submit(this.admitted, dataset, str(number), length={"steps": 1500}) for number in range(4)]
        for victim, pause in strikes:
            time.sleep(pause)
            this.counts[f"killed {victim}"] += this.world.strike(victim, this.draw)
        jobs = [each.result() for each in sent]
    this.world.up()
    this.finish(jobs)
    this.check(dataset, jobs)


def clocks(this: Round) -> None:
    """A relay and the only worker, each with a wrong clock of its own."""
    dataset = this.world.add(this.name)
    skews = [this.draw.choice((-1, 1)) * this.draw.choice((20, 300, 7200)) for _ in range(2)]
    with this.world.wrong_clock("relay", skews[0]), this.world.wrong_clock("worker", skews[1]):
        jobs = [this.admitted(dataset, str(number)) for number in range(2)]
        this.finish(jobs, attempts=1)
    this.counts["wrong clocks"] += 2
    this.world.up()
    this.check(dataset, jobs)


def rewinds(this: Round) -> None:
    """The database is set back to before a job that was paid for; what it forgot is noticed, and posted as spent."""
    world, dataset = this.world, this.world.add(this.name)
    jobs = [this.admitted(dataset, "before")]
    this.finish(jobs)
    backup = world.backup()
    forgotten = [this.admitted(dataset, f"forgotten {number}") for number in range(this.draw.randint(1, 2))]
    this.finish(forgotten)
    spent = world.get(f"/v1/datasets/{dataset}/ledger")["accounts"]["train"]["spent"]
    world.restore(backup)
    world.up()
    this.counts.update(restored=1, **{"jobs forgotten": len(forgotten)})
    state = world.get(f"/v1/datasets/{dataset}")["state"]
    this.expect(state == "behind", f"a data set that is behind says {state}")
    ready = world.get("/readyz")["checks"]["ledger"]
    this.expect(ready == "LedgerBehindError", f"/readyz says of the ledger {ready}")
    this.refuses(dataset, "after", BEHIND)
    shown = world.scrimp("restore")
    this.expect(shown.returncode == 1 and dataset in shown.stdout, f"scrimp restore: {shown.stdout} {shown.stderr}")
    posted = world.scrimp("restore", "--post", dataset, "--reason", "chaos")
    this.expect(posted.returncode == 0, f"scrimp restore --post: {posted.stdout} {posted.stderr}")
    now = world.get(f"/v1/datasets/{dataset}/ledger")["accounts"]["train"]["spent"]
    this.expect(now == spent, f"{spent} had been spent, and after the restore {now} is")
    jobs.append(this.admitted(dataset, "again"))
    this.finish(jobs)
    this.check(dataset, jobs)


def tampering(this: Round) -> None:
    """A ledger is changed behind the service's back, in one of four ways, or a model on the disk."""
    dataset = this.world.add(this.name)
    jobs = [this.admitted(dataset, str(number)) for number in range(2)]
    this.finish(jobs)
    kind = this.draw.choice(("model", *LEDGER_CHANGES))
    this.counts[f"changed {kind}"] += 1
    if kind == "model":
        _flip(this, this.draw.choice(jobs))
    else:
        _change(this, dataset, kind)
    this.check(dataset, jobs)


LEDGER_CHANGES: dict[str, Callable[[Any, str], None]] = {
    "chain": lambda session, dataset: tamper.rewrite(session, dataset, 3),
    "tail": lambda session, dataset: tamper.roll_back(session, dataset, 3),
    "row": lambda session, dataset: tamper.set_account(session, dataset, train_spent=0),
    "entry": lambda session, dataset: tamper.set_entry(session, dataset, 2, train=1),
}


def _change(this: Round, dataset: str, kind: str) -> None:
    db = this.world.database()
    try:
        with tamper.unprotected(db) as session:
            rows = tamper.rows_of(session, dataset)
            LEDGER_CHANGES[kind](session, dataset)
        verified = this.world.verification(dataset)
        this.expect(verified["valid"] is False, f"{kind}: verify says {verified}")
        if kind != "entry":  # what an old entry says is compared by verification alone
            this.refuses(dataset, f"after {kind}", BEHIND)
        with tamper.unprotected(db) as session:
            tamper.put_back(session, dataset, rows)
    finally:
        db.close()
    this.expect(len(entries_of(this.world, dataset)) == len(rows[0]), "the ledger is not as it was")


def _flip(this: Round, job: str) -> None:
    address = f"/v1/jobs/{job}/artifacts/model.safetensors"
    (path,) = (this.world.home / "storage" / "jobs" / job).glob("*/model.safetensors")
    content = path.read_bytes()
    at = this.draw.randrange(len(content))
    _overwrite(path, content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    try:
        this.expect(this.world.content(address) == b"", "a model with a flipped byte was handed out")
    except httpx.RemoteProtocolError:
        this.counts["broken off"] += 1
    damaged = [each["damaged"] for each in this.world.get(f"/v1/jobs/{job}")["artifacts"]]
    this.expect(any(damaged), "a damaged model is not marked")
    _overwrite(path, content)


def _overwrite(path: Path, content: bytes) -> None:
    path.chmod(0o600)
    path.write_bytes(content)


ATTACKS: dict[str, Callable[[Round], None]] = {
    "races": races,
    "kills": kills,
    "rewinds": rewinds,
    "tampering": tampering,
    **({"clocks": clocks} if LIBFAKETIME else {}),
}
