"""A home with something of everything in it, written by the service's own functions."""

from __future__ import annotations

import hashlib
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy.orm import Session

from app.admission.choices import closed
from app.admission.job_rules import check
from app.admission.lookup import dataset_facts
from app.admission.request import on_device
from app.db.database import Database
from app.db.models import Dataset
from app.jobs import steering
from app.keys import service as keys
from app.keys.service import Caller
from app.ledger import certificates
from app.ledger.signing_keys import publish
from app.lifecycle.attempts import AttemptLog
from app.lifecycle.claims import claim
from app.lifecycle.states import append_event
from app.secrets import load_secret
from app.settings import Settings
from core.contracts.job_spec import JobSpec
from core.contracts.stored_documents import ArtifactFile, Number, ReleasedBy
from core.parts.part_files import save_part
from core.parts.stored_records import StoredPart
from core.privacy.canary_bound import Finding
from core.privacy.prices import Price
from core.privacy.pricing import price
from tests.factories import AT_ONCE, NO_HEADS, add_dataset, admit, job_spec, numerics

XSS = "<script>alert('x')</script><img src=x onerror=alert(1)>"
SHA = hashlib.sha256(b"weights").hexdigest()
NAMES = {"admin": "Ada", "owner": "Olga", "analyst": "Anand", "viewer": "Vera"}


@dataclass
class Key:
    id: str
    token: str
    role: str

    @property
    def caller(self) -> Caller:
        return Caller(self.id, self.role, self.role)


class Scene:
    """Keys, data sets and jobs of one home."""

    def __init__(self, db: Database, settings: Settings) -> None:
        self.db, self.settings = db, settings
        self.admin, self.owner, self.analyst = (self.key(role) for role in ("admin", "owner", "analyst"))
        self.signing_key = Ed25519PrivateKey.from_private_bytes(load_secret(settings, "signing_key"))
        publish(db, self.signing_key)  # as the relay does

    def copy(self, db: Database, settings: Settings) -> Scene:
        """The same keys and rows in a copy of the home."""
        copied = copy(self)
        copied.db, copied.settings = db, settings
        return copied

    def key(self, role: Any) -> Key:
        with self.db.write() as session:
            pepper = load_secret(self.settings, "api_key_pepper")
            key, token = keys.create(session, pepper, name=NAMES[role], role=role, created_by=None)
        return Key(key.id, token, role)

    def dataset(self, name: str, **privacy: Any) -> str:
        declared = {
            "sensitivity": "private",
            "records": 25_000,
            "cap": {"epsilon": 4.0, "delta": 1e-5},
            "filter": "gdp",
        }
        order = 6.0 if privacy.get("filter") == "rdp" else None
        return add_dataset(
            self.db, owner=self.owner.id, name=name, order=order, parts=self._parts(name), privacy=declared | privacy
        )

    def public_dataset(self, name: str) -> str:
        privacy = {"sensitivity": "public", "records": 1_797}
        return add_dataset(self.db, owner=self.owner.id, name=name, parts=self._parts(name), privacy=privacy)

    def _parts(self, name: str) -> dict[str, Any]:
        """Two stored parts of a few records."""
        parts = {}
        for part, count in (("train", 8), ("holdout", 2)):
            path = self.settings.storage_root / "scene" / f"{name}-{part}.npz"
            path.parent.mkdir(parents=True, exist_ok=True)
            x = np.arange(2.0 * count, dtype=np.float32).reshape(count, 2)
            sha256 = save_part(path, StoredPart(x=x, y=np.arange(count) % 2))
            parts[part] = {"path": str(path.relative_to(self.settings.storage_root)), "sha256": sha256}
        return parts

    def job(self, dataset: str, name: str = "", by: Key | None = None, **changes: Any) -> str:
        """An admitted job: its row, its hold, its first event."""
        by = by or self.analyst
        spec = JobSpec.model_validate(job_spec(dataset, name=name, **changes))
        with self.db.read() as session:
            facts = dataset_facts(session, session.get_one(Dataset, dataset))
            planned = check(closed(on_device(spec, 0)[0], facts).spec, facts)
        priced = price(planned.pricing) if planned.pricing else Price.nothing()
        with self.db.write() as session:
            once = f"{name}-{dataset}-{priced.charge}"
            return admit(session, by.caller, planned, priced, once)

    def start(self, job_id: str, worker: str = "worker-1") -> AttemptLog:
        with self.db.write() as session:
            held = claim(session, job_id, worker, 600.0)
        assert held is not None
        log = AttemptLog(self.db, held, lease_s=600.0, max_attempts=3, cadence=AT_ONCE)
        log.name_key("00")
        log.ready("cpu", numerics(), ["3 (Scale)"])
        log.record_digest(0, "00")
        return log

    def step(self, log: AttemptLog, to: int) -> None:
        """One block of steps, up to `to`."""
        job = log.recorded()[0]
        assert log.start_block(job.step + 1, to)
        log.record_digest(to, "00")

    def release(self, log: AttemptLog, step: int, value: float, std: float = 0.004) -> None:
        by: ReleasedBy = "noisy_count" if std else "public_data"
        log.record_metric(Number(name="accuracy", step=step, value=value, std=std, on="holdout", released_by=by))

    def finish(self, log: AttemptLog, audit: Finding | None = None) -> None:
        """Succeeds with a model file, and has its certificate issued."""
        job = log.recorded()[0]
        path = self.settings.storage_root / "jobs" / job.id / "model.safetensors"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"weights")
        stored = str(path.relative_to(self.settings.storage_root))
        model = ArtifactFile(name=path.name, sha256=SHA, size_bytes=262_272, path=stored)
        log.succeed([model], job.step, [], audit=audit)
        self.certify(job.id)

    def certify(self, job_id: str) -> None:
        def announce(session: Session) -> None:
            append_event(session, job_id, "certificate_issued")

        certificates.issue(self.db, job_id, self.signing_key, "0.1.0", announce)

    def succeeded(self, dataset: str, name: str, values: list[float], std: float = 0.004, **changes: Any) -> str:
        """A job that ran to its end, with a released number at every point."""
        evaluation = {"on": "holdout", "noise_mu": 0.05, "points": len(values), "metrics": ["accuracy"]}
        job_id = self.job(dataset, name, **{"evaluation": evaluation} | changes)
        log = self.start(job_id)
        steps = log.recorded()[0].steps
        for number, value in enumerate(values, start=1):
            step = steps * number // len(values)
            self.step(log, step)
            self.release(log, step, value, std)
        self.finish(log)
        return job_id


@dataclass
class Everything:
    """Ids of what `everything` makes."""

    reviews: str
    incomes: str
    digits: str
    succeeded: str
    cancelled: str
    failed: str
    public: str
    poisson: str
    evil: str
    cancelling: str
    queued: str
    running: str


def everything(scene: Scene) -> Everything:
    """Three data sets, and a job in every status."""
    reviews = scene.dataset("imdb-reviews")
    incomes = scene.dataset("incomes", records=48_842, cap={"epsilon": 8.0, "delta": 1e-5}, filter="rdp")
    digits = scene.public_dataset("digits")
    curve = [0.694, 0.761, 0.789, 0.801, 0.812, 0.815, 0.8205, 0.8222, 0.8217, 0.8246]
    succeeded = scene.succeeded(reviews, "logistic regression, ε = 1", curve)
    cancelled = scene.job(reviews, "too slow", privacy={"target_epsilon": 0.5})
    log = scene.start(cancelled)
    scene.step(log, 20)
    steering.cancel(scene.db, scene.admin.caller, cancelled, NO_HEADS)
    log.cancelled()
    scene.certify(cancelled)
    failed = scene.job(incomes, "large batch", privacy={"noise_multiplier": 30.0})
    log = scene.start(failed)
    scene.step(log, 10)
    log.fail("out-of-memory", "The attempt ran out of memory; set a smaller physical_batch_size.")
    scene.certify(failed)
    public = scene.succeeded(
        digits,
        "baseline without privacy",
        [0.81, 0.88, 0.9, 0.91],
        std=0.0,
        privacy=None,
        sampling={"kind": "full_batch"},
    )
    poisson = scene.job(
        incomes,
        "Poisson, batch 512",
        model={"kind": "mlp", "hidden": [32, 16]},
        clipping={"kind": "per_layer", "max_grad_norm": 0.5},
        privacy={"noise_multiplier": 2.0},
        sampling={"kind": "poisson", "expected_batch_size": 512},
        length={"steps": 200},
    )
    log = scene.start(poisson)
    log.gone("lost")
    log = scene.start(poisson, "worker-2")
    scene.step(log, 40)
    evil = scene.job(reviews, XSS, privacy={"target_epsilon": 0.1}, evaluation=None)
    cancelling = scene.job(reviews, "stop this one", privacy={"target_epsilon": 0.2})
    scene.step(scene.start(cancelling), 8)
    steering.cancel(scene.db, scene.admin.caller, cancelling, NO_HEADS)
    queued = scene.job(reviews, "next in the queue", by=scene.owner, privacy={"target_epsilon": 0.3})
    running = scene.job(
        reviews,
        "finer curve",
        privacy={"target_epsilon": 1.2},
        evaluation={"on": "holdout", "noise_mu": 0.02, "points": 10, "metrics": ["accuracy"]},
    )
    log = scene.start(running)
    for number, value in ((1, 0.702), (2, 0.768), (3, 0.791), (4, 0.806)):
        scene.step(log, 5 * number)
        scene.release(log, 5 * number, value, 0.01)
    return Everything(
        reviews=reviews,
        incomes=incomes,
        digits=digits,
        succeeded=succeeded,
        cancelled=cancelled,
        failed=failed,
        public=public,
        poisson=poisson,
        evil=evil,
        cancelling=cancelling,
        queued=queued,
        running=running,
    )
