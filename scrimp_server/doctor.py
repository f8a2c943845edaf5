"""Examines a deployment from where it runs: what is wrong, and what to do. Changes no data: of a bucket it
writes and deletes an object of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from sqlalchemy import func, select

from app.datasets import volume
from app.db.clock import now_there
from app.db.database import Database
from app.db.models import Job, Outbox, Worker
from app.lifecycle.queue.presence import GpuWorkers, present, runs_jobs
from app.renewal import resealing
from app.secrets import NAMES, load_secrets
from app.settings import Settings
from app.storage.seals import NAME
from app.system.health import MAX_SKEW_S, checks, skews
from core.contracts.runtime import Runtime
from core.contracts.sandbox import Sandbox
from core.errors import ServiceError
from scrimp_server.buckets import UnfitError, skew_of
from scrimp_server.standbys import durability

State = Literal["ok", "warning", "fault"]
SLOW_RELAY = timedelta(minutes=1)
ADVICE = {
    "database": "start the database, and check SCRIMP_DATABASE_URL and its password",
    "migrations": "run `scrimp prepare` with this version, then start the service again",
    "storage": "make the folder writable for this user, on a disk with at least 256 MiB free; with "
    "SCRIMP_OBJECT_STORE, check the bucket, AWS_ENDPOINT_URL and the credentials",
    "broker": "start the broker, and check SCRIMP_BROKER_URL; jobs are admitted meanwhile, and wait",
    "clock": "keep the clocks of all hosts in step (NTP)",
    "ledger": "run `scrimp restore` to see which data set's ledger is not reliable; a relay must run to verify ledgers",
}


BUCKET_ADVICE = (
    "check the bucket's name, AWS_ENDPOINT_URL, AWS_REGION and the right to get, put, list and delete; the "
    "store must answer conditional writes"
)


@dataclass(frozen=True)
class Finding:
    """One part of a deployment.

    Attributes:
        says: what was found.
        advice: what to do about it; empty if nothing.
    """

    part: str
    state: State
    says: str
    advice: str = ""


def examine(settings: Settings) -> list[Finding]:
    """All findings, in the order in which one would mend them."""
    missing = _missing(settings)
    if missing is not None:
        return [missing]
    findings = [*_versions(), *_secrets(settings), *_sealed(settings), *_heads(settings), *_buckets(settings)]
    with closing(Database.of(settings)) as db:
        health = checks(db, settings)
        findings += [_of_health(name, state) for name, state in health.items() if name != "clock"]  # below, by process
        if health["database"] == "ok":
            findings += [Finding("durability", each.state, each.says, each.advice) for each in durability(db)]
        if health["database"] == health["migrations"] == "ok":
            findings += [*_clocks(db, settings), *_workers(db, settings), *_queue(db, settings), *_relay(db)]
    return findings + list(_machine(settings))


def _missing(settings: Settings) -> Finding | None:
    """Whether there is nothing to examine: opening an embedded database would make an empty one."""
    embedded = settings.database_url == ""
    needed = settings.home / "scrimp.db" if embedded else settings.home
    if needed.exists():
        return None
    advice = "check --home, SCRIMP_HOME and SCRIMP_DATABASE_URL; a new service is made by `scrimp serve`"
    return Finding("home", "fault", f"{needed} is not there: no service keeps its files here", advice)


def _of_health(name: str, state: str) -> Finding:
    if state == "ok":
        return Finding(name, "ok", "well")
    return Finding(name, "fault", f"not well: {state}", ADVICE[name])


def _versions() -> Iterator[Finding]:
    for package in ("scrimp", "torch"):
        try:
            yield Finding("version", "ok", f"{package} {version(package)}")
        except PackageNotFoundError:
            yield Finding(
                "version",
                "warning",
                f"{package} is not installed here",
                "a worker needs it: pip install 'scrimp[worker]'; the API and the relay do not",
            )


def _secrets(settings: Settings) -> Iterator[Finding]:
    """An operator may give each process its own secrets alone, so a missing one is no fault by itself."""
    given_apart = settings.secrets_dir is not None
    for name in NAMES:
        try:
            load_secrets(settings, name)
        except ServiceError as error:
            if given_apart and "is missing" in error.message:
                yield Finding("secrets", "warning", f"{name} is not here", "only the processes that need it have it")
            else:
                yield Finding("secrets", "fault", error.message, "give each process its own: docs/secrets.md")
        else:
            yield Finding("secrets", "ok", name)


def _sealed(settings: Settings) -> Iterator[Finding]:
    """What is stored of data sets on this machine, and under which keys."""
    try:
        keys = load_secrets(settings, NAME)
    except ServiceError:  # said above
        keys = ()
    looked = resealing.look(settings, keys)
    without = not keys and settings.secrets_dir is not None  # such as the relay, which opens no part
    for names, count in looked.foreign.items():
        yield Finding(
            "sealed",
            "warning" if without else "fault",
            f"{count} files are sealed under the parts key {names}, which is not here",
            f"put that key back as a line of {NAME}, from a backup of the secrets: docs/secrets.md",
        )
    if settings.encrypt_parts and looked.plain:
        yield Finding(
            "sealed",
            "fault",
            f"{looked.plain} files of data sets are in plaintext, though SCRIMP_ENCRYPT_PARTS is on",
            "run `scrimp secrets seal`",
        )
    elif settings.encrypt_parts and not looked.foreign:
        yield Finding("sealed", "ok", f"{looked.sealed} files, none in plaintext")
    if settings.encrypt_parts and settings.object_store and not settings.object_encryption:
        yield Finding(
            "sealed",
            "warning",
            "SCRIMP_ENCRYPT_PARTS seals this machine's files; the bucket is asked for nothing",
            "set SCRIMP_OBJECT_ENCRYPTION, unless the bucket's own default suffices",
        )
    if len(keys) > 1:
        advice = "restart API and workers, then run `scrimp secrets finish parts_key`"
        yield Finding("sealed", "warning", f"the rotation of {NAME} is not finished", advice)


def _heads(settings: Settings) -> Iterator[Finding]:
    if settings.heads_store:  # tried with the other buckets
        return
    folder = settings.effective_heads_dir
    if folder.exists() and not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        yield Finding(
            "heads",
            "fault",
            f"{folder} is not a folder that this user can write to: no job can start",
            "make it one, or set SCRIMP_HEADS_DIR",
        )
    elif settings.database_url == "" and _same_disk(folder, settings.home / "scrimp.db"):
        yield Finding(
            "heads",
            "warning",
            "the ledgers' heads lie on the database's disk",
            "for real data set SCRIMP_HEADS_DIR to a disk that no backup of the database restores",
        )
    else:
        yield Finding("heads", "ok", str(folder))


def _buckets(settings: Settings) -> Iterator[Finding]:
    """Tries each bucket with an object of its own, and compares its clock with this machine's."""
    for name, url in (("SCRIMP_OBJECT_STORE", settings.object_store), ("SCRIMP_HEADS_STORE", settings.heads_store)):
        if not url:
            continue
        try:
            skew = skew_of(url, settings.object_encryption, settings.object_kms_key)
        except UnfitError as error:
            yield Finding("bucket", "fault", f"{name}: {error}", BUCKET_ADVICE)
            continue
        off = abs(skew) > MAX_SKEW_S
        yield Finding("bucket", "ok", f"{name}: {url}")
        skew_text = f"this machine is {skew:+.1f} s off the clock of {name}"
        yield Finding("clock", "fault" if off else "ok", skew_text, ADVICE["clock"] if off else "")
    if settings.object_store and settings.heads_store.startswith(settings.object_store.rstrip("/")):
        yield Finding(
            "heads",
            "warning",
            "the ledgers' heads lie in the bucket of the data sets",
            "set SCRIMP_HEADS_STORE to a bucket that nobody sets back together with the others",
        )


def _same_disk(folder: Path, database: Path) -> bool:
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    return database.exists() and existing.stat().st_dev == database.stat().st_dev


def _clocks(db: Database, settings: Settings) -> Iterator[Finding]:
    for name, skew in skews(db, settings.lease_s).items():
        off = abs(skew) > MAX_SKEW_S
        skew_text = f"{name} is {skew:+.1f} s off the database's clock"
        yield Finding("clock", "fault" if off else "ok", skew_text, ADVICE["clock"] if off else "")


def _workers(db: Database, settings: Settings) -> Iterator[Finding]:
    with db.read() as session:
        alive = present(session, settings.lease_s)
    if not any(map(runs_jobs, alive)):
        yield Finding("workers", "fault", "no worker is alive: jobs wait", "start one: `scrimp worker`")
    for worker in alive:
        yield from _worker(worker) if runs_jobs(worker) else _ingest(worker, volume.of(settings))


def _worker(worker: Worker) -> Iterator[Finding]:
    devices = ", ".join(str(each.get("name")) for each in worker.devices or ())
    yield Finding("workers", "ok", f"{worker.name} on {devices or 'an unknown device'}")
    if worker.sandbox is None:
        return
    box = Sandbox.model_validate(worker.sandbox)
    doors = (
        ("system calls", box.seccomp),
        ("the file system", box.landlock),
        ("the network", box.network != "host"),
    )
    open_ = [door for door, shut in doors if not shut]
    if not open_:
        yield Finding(
            "sandbox", "ok", f"attempts of {worker.name} are kept from {', '.join(door for door, _ in doors)}"
        )
    if open_:
        yield Finding(
            "sandbox",
            "warning",
            f"attempts of {worker.name} are not kept from {', '.join(open_)}",
            "allow seccomp, Landlock and user namespaces where it runs: docs/production.md",
        )


def _ingest(worker: Worker, local: str | None) -> Iterator[Finding]:
    if local is None or worker.volume == local:
        yield Finding("workers", "ok", f"{worker.name} reads data files")
        return
    yield Finding(
        "workers",
        "warning",
        f"{worker.name} reads data files of another volume than this machine's",
        "where API processes keep the files of registrations, ingest workers need the same volume: docs/production.md",
    )


def _queue(db: Database, settings: Settings) -> Iterator[Finding]:
    with db.read() as session:
        count, oldest = session.execute(
            select(func.count(), func.min(Job.created_at)).where(Job.status == "queued")
        ).one()
        waiting = session.scalars(select(Job.spec).where(Job.status == "queued").limit(1000)).all()
    for_gpu = sum((spec.get("runtime") or {}).get("device") == "cuda" for spec in waiting)
    if for_gpu and GpuWorkers(db, settings.lease_s).lack(Runtime(device="cuda"), None) is not None:
        yield Finding(
            "queue",
            "fault",
            f"jobs that wait for a GPU: {for_gpu}; no living worker has one",
            "start a worker on a machine with a GPU, or cancel them",
        )
    yield Finding(
        "queue", "ok", f"{count} jobs are queued" + (f", the oldest since {oldest:%F %T} UTC" if count else "")
    )


def _relay(db: Database) -> Iterator[Finding]:
    with db.read() as session:
        oldest, at = session.scalar(select(func.min(Outbox.created_at))), now_there(session)
    if oldest is not None and at - oldest > SLOW_RELAY:
        yield Finding(
            "relay",
            "fault",
            f"the oldest of its tasks has waited for {(at - oldest).total_seconds():.0f} s",
            "start one: `scrimp relay`; without it no worker is told of jobs and no certificate is issued",
        )
    else:
        yield Finding("relay", "ok", "nothing waits for it")


def _machine(settings: Settings) -> Iterator[Finding]:
    """This machine, as a worker on it would find it."""
    try:
        from worker.attempt.device_survey import DevicesError, on_this_machine
        from worker.native.kernels import ABSENT, CURE, kernels
    except ImportError:
        return
    if kernels() == "python":
        yield Finding("machine", "warning", ABSENT, CURE)
    else:
        yield Finding("machine", "ok", f"the compiled parts of a step use {kernels()}")
    try:
        for device in on_this_machine(settings.devices):
            yield Finding("machine", "ok", f"{device.label}: {device.name}")
    except DevicesError as error:
        yield Finding("machine", "fault", str(error), "check the GPU's driver, torch's CUDA build and SCRIMP_DEVICES")
