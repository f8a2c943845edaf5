"""A certificate of each kind, issued by the service's own code: admission, an attempt's log, settlement, the relay.

Only training is left out: the test plays the attempt, and says which numbers it released.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, cast

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from app.admission.hold import hold
from app.admission.lookup import facts_for, side_facts
from app.admission.price import price
from app.admission.request import Limits, Request, Resolved, on_device
from app.admission.service import Admission
from app.catalogue import model_kinds
from app.datasets.moving import move
from app.db.models import Certificate, Job
from app.grants import service as grants
from app.jobs import steering
from app.keys.service import Caller
from app.ledger import certificates
from app.ledger.transparency import checkpoints
from app.ledger.transparency.heads import Heads
from app.lifecycle.attempts import AttemptLog
from app.lifecycle.job_events import Part
from app.pricing.service import PricingService
from core.contracts.base import Epsilon
from core.contracts.job_spec import JobSpec
from core.contracts.stored_documents import ArtifactFile, Number
from core.privacy.canary_bound import Finding, coins, decoys, found
from core.privacy.mechanism import MechanismConfig
from core.privacy.numerics import NumericsReport
from tests.datasets.conftest import Api, spec
from tests.datasets.test_blocks import append, grant, retire, rows
from tests.factories import NO_HEADS, add_dataset, add_key, dataset_spec, job_spec, numerics
from tests.hpo.conftest import PlainPricing, runs_of
from tests.jobs.stored_cases import BATCHES, CASES, PUBLIC, RDP, SCALING, SPACE, job_of
from tests.ledger.test_anchors import unheard
from tests.lifecycle.conftest import claimed

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
FULL = NumericsReport.model_validate(
    numerics().model_dump()
    | {"rows_per_step": 480, "sums": "float32", "totals": "integers", "kernels": "avx512"}
    | {"packages": "ab" * 32, "code": "cd" * 32}
)
ONE_RECORD = FULL.model_copy(update={"self_test": "one_record", "physical_batch_size": 1, "kernels": "avx2"})
WIDE = FULL.model_copy(update={"passes": "float64", "sums": "float64", "kernels": "plain"})
NARROW = FULL.model_copy(update={"passes": "bfloat16", "kernels": "python"})
ALONE = FULL.model_copy(update={"self_test": "not_needed"})  # integers
TF32 = FULL.model_copy(update={"device": "cuda", "fp32_precision": "tf32", "kernels": None})
NUMERICS = {
    "statistics": ALONE,
    "synthetic": ALONE,
    "users": ONE_RECORD,
    "mean": WIDE,
    "tokens": NARROW,
    "tf32": TF32,
    "sigma given": numerics(),
}  # the last: before slots
LARGE = {"cap": {"epsilon": 100.0, "delta": 1e-5}}  # a cap that every job here fits

GRAPH: dict[str, Any] = {"kind": "graph", "path": "own/small.pt2", "sha256": hashlib.sha256(b"a graph").hexdigest()}
GRAPH |= {"parameters": 22, "trained": 22, "inputs": 2, "outputs": 2, "places": 1, "pass_numbers": 60}
SELECTION: dict[str, Any] = {
    "strategy": "random_size",
    "distribution": {"kind": "poisson", "mean": 6.0},
    "most_runs": 20,
    "duration_s": 1,
    "space": {"learning_rate": [0.1, 10.0]},
}
FEW: dict[str, Any] = {"privacy": {"noise_multiplier": 5.0}, "length": {"steps": 10}}  # sampled, and priced at once

# Of jobs on data sets without blocks: name → changes of the job, changes of the data set.
JOBS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    name: case
    for name, case in CASES.items()
    if "public" not in name and name not in ("oracle", "search without privacy")
} | {
    "cyclic": ({"sampling": {"kind": "cyclic", "batches": 20}}, {}),
    "r squared": (
        {"evaluation": {"on": "holdout", "noise_mu": 0.05, "metrics": ["r_squared"]}},
        {"task": {"kind": "regression", "label": "y", "range": [0.0, 1.0]}},
    ),
    "several classes": (
        {"evaluation": {"on": "holdout", "noise_mu": 0.05, "metrics": ["macro_f1"]}},
        {"task": {"kind": "classification", "label": "y", "classes": [0, 1, 2]}},
    ),
    "correlated": ({"sampling": {"kind": "cyclic", "batches": 20}, "noise": {"kind": "correlated", "decay": 0.5}}, {}),
    "truncated": (FEW | {"sampling": BATCHES | {"largest_batch": 160}}, {"privacy": RDP}),
    "unresolved": (  # at δ = 1e-10
        {"privacy": {"noise_multiplier": 50.0}, "length": {"steps": 60_000}, "sampling": BATCHES},
        {"privacy": RDP},
    ),
    "governed": (
        {"use": {"purpose": "care research", "permit": "17/2026"}},
        {"governance": {"controller": "A hospital", "purposes": ["care research"], "requires": ["purpose", "permit"]}},
    ),
    "governed, no use": ({}, {"governance": {"controller": "A hospital", "purposes": []}}),
    "automatic": ({"clipping": {"kind": "automatic"}}, {}),
    "tf32": (
        {"model": {"kind": "mlp", "hidden": [8]}, "runtime": {"device": "cuda", "fp32_precision": "tf32"}},
        {},
    ),
    "noise first": ({"optimizer": CASES["phases"][0]["optimizer"] | {"variant": "noise_first"}}, {}),
    "automatic rate": ({"optimizer": {"kind": "dp_sgd", "learning_rate": "auto"}}, {}),
    "canaries": ({"audit": {"canaries": 200}, "evaluation": None}, {}),
    "trained canaries": ({"audit": {"canaries": 200, "kind": "records"}, "evaluation": None}, {}),
    "sampled canaries": (FEW | {"audit": {"canaries": 200}, "sampling": BATCHES, "evaluation": None}, {"privacy": RDP}),
    "scores by class": ({"evaluation": {"noise_mu": 0.05}}, {}),
    "statistics": (
        {
            "kind": "statistics",
            "privacy": {"target_epsilon": 1.0},
            "queries": [{"kind": "count"}, {"kind": "histogram", "column": "age", "bins": 4, "weight": 2.0}],
        },
        {"features": {"kind": "table", "columns": [{"kind": "number", "name": "age", "range": [0, 100]}]}},
    ),
    "synthetic": (
        {"kind": "synthetic", "privacy": {"target_epsilon": 1.0}},
        {"features": {"kind": "table", "columns": [{"kind": "number", "name": "age", "range": [0, 100]}]}},
    ),
    "own graph": ({"model": GRAPH}, {}),
    "random": ({"hpo": {"strategy": "random", "space": SPACE}}, {}),
    "selection": ({"hpo": SELECTION}, {"privacy": RDP}),
    "scaling, weights kept": ({"hpo": SCALING | {"runs_per_level": 1, "keep_weights": True}}, {}),
}
OTHERS = (
    "cancelled",
    "cancelled study",
    "failed",
    "public side",
    "without a checkpoint",
    "blocks",
    "retired block",
    "moved",
)
KINDS = (*JOBS, *OTHERS)


class Issuer:
    """Issues certificates in one home.

    Args:
        api: of the home.
        heads: where checkpoints are kept.
    """

    def __init__(self, api: Api, heads: Heads) -> None:
        self.api, self.db, self.heads = api, api.db, heads
        with self.db.write() as session:
            self.caller = Caller(add_key(session), "test", "admin")

    def document(self, kind: str) -> dict[str, Any]:
        """The certificate of a job of this kind, as the API answers it."""
        job_id = self._ended(kind)
        if kind != "without a checkpoint":
            checkpoints.sign_due(self.db, self.heads, KEY, unheard)
        assert certificates.issue(self.db, job_id, KEY, "0.1.0")
        with self.db.read() as session:
            body: dict[str, Any] = json.loads(json.dumps(session.get_one(Certificate, job_id).body))
        return body

    def _ended(self, kind: str) -> str:
        if kind in ("blocks", "retired block"):
            return self._on_blocks(retired=kind == "retired block")
        if kind == "moved":
            return self._on_what_moved()
        changes, of_data = JOBS["scaling, weights kept"] if kind == "cancelled study" else JOBS.get(kind, ({}, {}))
        if kind == "public side":
            side = add_dataset(self.db, privacy=PUBLIC)
            changes = {"optimizer": {"kind": "ada_dps", "learning_rate": 0.1, "public_dataset": side}}
        privacy = (of_data.get("privacy") or dataset_spec()["privacy"]) | LARGE
        order = 8.0 if privacy["filter"] == "rdp" else None
        dataset = add_dataset(self.db, order=order, **of_data | {"privacy": privacy})
        new = changes if kind in ("statistics", "synthetic") else job_spec(dataset, **changes)
        asked = (job_of(kind) if kind in CASES else new) | {"dataset": dataset}
        if "hpo" in asked and kind != "selection":
            asked |= {"privacy": {"target_epsilon": 1.0}, "evaluation": asked["evaluation"] if kind in CASES else None}
        job_id = self._admitted(JobSpec.model_validate(asked), dataset)
        self._run(job_id, kind)
        return job_id

    def _on_blocks(self, *, retired: bool) -> str:
        """A job on two blocks of a data set that was registered and has grown over REST."""
        name = "retired" if retired else "grown"
        first = 1000 if retired else 0
        made = self.api.upload(spec(name), rows(range(first, first + 60))).json()["id"]
        assert append(self.api, made, rows(range(first + 60, first + 160)), "two", 100).status_code == 201
        grant(self.api, made)
        job_id = self._admitted(JobSpec.model_validate(job_spec(made, length={"steps": 5})), made)
        self._run(job_id, name)
        if retired:
            assert retire(self.api, made, "two").status_code == 200
        return job_id

    def _on_what_moved(self) -> str:
        """A sampled job whose admission moves the ledger, with what one before it spent there (decision 53)."""
        declared = spec("moved")
        privacy = {name: value for name, value in declared["privacy"].items() if name != "filter"} | {"plan": "mixed"}
        made = self.api.upload(declared | {"privacy": privacy}, rows(range(2000, 2060))).json()["id"]
        grant(self.api, made)
        half: dict[str, Any] = {"length": {"steps": 40}, "privacy": {"target_epsilon": 0.5}}
        self._run(self._admitted(JobSpec.model_validate(job_spec(made, **half)), made), "moved")
        sampled = {"sampling": {"kind": "poisson", "expected_batch_size": 16}, "evaluation": None}
        asked = job_spec(made, **half | sampled)
        job_id = self._admitted(JobSpec.model_validate(asked), f"{made}, sampled")
        self._run(job_id, "moved")
        return job_id

    def _admitted(self, asked: JobSpec, once: str) -> str:
        """Admits it as the service does; models' folders are not read, as their content is in the samples."""
        with self.db.read() as session:
            row, access = grants.find(session, self.caller, asked.dataset, "train")
            facts = facts_for(session, self.caller, row, asked.blocks, samples=asked.sampling.is_sampled)
            side = side_facts(session, self.caller, asked.optimizer.side)
        spec = asked.model_copy(update={"model": model_kinds.resolved(asked.model, facts.spec.task.kind)})
        resolved = Resolved(Request(self.caller, asked, Limits()), on_device(spec, 0)[0], facts, side, access)
        pricing = cast(PricingService, PlainPricing())
        priced = price(pricing, resolved)
        if facts.moves:
            move(self.db, self.heads, self.caller, facts.id, priced.units)
            return self._admitted(asked, once)
        return hold(Admission(self.db, pricing, self.heads), resolved, priced, f"once {once}").id

    def _run(self, job_id: str, kind: str) -> None:
        """Plays all attempts of a job, or of a study's trials."""
        with self.db.read() as session:
            is_study = session.get_one(Job, job_id).study is not None
        if not is_study:
            self._play(job_id, kind)
            return
        while queued := runs_of(self.db, job_id, "queued"):
            for run in queued[:1] if kind == "cancelled study" else queued:
                self._play(run.id, kind)
            if kind == "cancelled study":
                steering.cancel(self.db, self.caller, job_id, NO_HEADS)

    def _play(self, job_id: str, kind: str) -> None:
        log = claimed(self.db, job_id)
        with self.db.read() as session:
            job = session.get_one(Job, job_id)
        log.name_key("00")
        report = NUMERICS.get(kind, FULL)
        log.ready(report.device, report)
        log.record_digest(0, "00")
        last = job.steps // 2 if kind in ("cancelled", "failed") else job.steps
        assert log.start_block(1, last)
        log.record_digest(last, "00")
        if kind == "cancelled":
            steering.cancel(self.db, self.caller, job_id, NO_HEADS)
            log.cancelled()
            return
        if kind == "failed":
            log.fail("internal", "The attempt ended.")
            return
        mechanism = MechanismConfig.model_validate(job.mechanism)
        _release(log, mechanism, last)
        log.succeed(self._delivered(job), last, [], audit=_audit(job, mechanism))

    def _delivered(self, job: Job) -> list[ArtifactFile]:
        """The files of a job, in their place in the home."""
        names = [JobSpec.model_validate(job.spec).delivers]
        if job.trial is not None:
            names = names if job.trial.keeps_weights else []
            names += ["mean.safetensors"] if job.trial_number == 0 and (job.mechanism or {}).get("mean") else []
        files = []
        for name in names:
            content, path = f"{name} of {job.id}".encode(), f"jobs/{job.id}/{name}"
            place = self.api.settings.storage_root / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
            digest = hashlib.sha256(content).hexdigest()
            files.append(ArtifactFile(name=name, sha256=digest, size_bytes=len(content), path=path))
        return files


def _release(log: AttemptLog, mechanism: MechanismConfig, step: int) -> None:
    """One release of each declared score, with its parts; the norm where it adapts, and the rate where it is secret."""
    for each in mechanism.scores:
        number = {"name": each.metric, "step": step, "value": 0.5, "std": 0.01, "on": each.account}
        parts = [Part(name=name, value=0.4, std=0.02) for name in sorted(each.parts)]
        log.record_metric(Number.model_validate(number | {"released_by": each.released_by}), parts)
    derived = {"clipping_norm": mechanism.training.adaptive, "learning_rate": mechanism.selection}
    for name in (name for name, source in derived.items() if source is not None):
        number = {"name": name, "step": step, "value": 0.5, "std": 0.0, "on": "train"}
        log.record_metric(Number.model_validate(number | {"released_by": "post_processing"}))


def _audit(job: Job, mechanism: MechanismConfig) -> Finding | None:
    """What the canaries of an honest job show, on numbers that a Gaussian mechanism would have released."""
    audit = JobSpec.model_validate(job.spec).audit
    if audit is None:
        return None
    generator = np.random.default_rng(7)
    numbers = generator.standard_normal(audit.canaries + decoys(audit.canaries, audit.kind))
    numbers[: audit.canaries] += 0.2 * coins(job.id, audit.canaries)
    charged = Epsilon.model_validate(job.quote["epsilon"])
    return found(numbers, job.id, audit.canaries, mechanism.training.event, charged, audit.kind)
