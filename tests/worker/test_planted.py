"""Canaries that the model trains on: weighed as records are, counted nowhere, drawn at their rate, and found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import scipy.sparse
import torch
from numpy.typing import NDArray

from app.db.models import Job
from core.contracts.audit import CANARIES_FILE, TENSOR
from core.parts.stored_records import Csr, Pairs, Sequences, StoredPart
from core.privacy.canary_bound import Finding, coins
from tests.by_night import but
from tests.worker.support import Supervisor, dense, keys_of, plan_of, run_child, run_thread, spec, start_of
from tests.worker.test_adaptive import adaptive_start
from tests.worker.test_joined import attempt
from tests.worker.test_users import user_start
from worker.attempt.audited import finding_of
from worker.clipping.engine import Clip
from worker.data.ratings import RatingRecords
from worker.data.records import DenseRecords, SparseRecords
from worker.data.sequence_records import SequenceRecords
from worker.messages import Finished, Start
from worker.noise.gaussian import GaussianRelease
from worker.training.audit_records import Draws
from worker.training.planted import PlantedRecords, canaries_of

N, WIDE, ITEMS = 600, 256, 150
KEYED = {"segments": [{"from_step": 1} | keys_of("x")], "allowed_steps": 0}
AUDIT = {"audit": {"canaries": 200, "kind": "records"}}
SGD = {"kind": "dp_sgd", "learning_rate": 0.5}
GENERATOR = np.random.default_rng(1)


def shape(features: int, outputs: int = 3, *, sparse: bool = False, records: int = N) -> dict[str, Any]:
    return {"records_train": records, "records_holdout": 0, "features": features, "outputs": outputs, "sparse": sparse}


def few_columns() -> StoredPart:
    """Records that leave most of their columns empty."""
    x, y = dense(N, 16, 3)
    return StoredPart(np.pad(x, ((0, 0), (0, WIDE - 16))), y)


def words() -> StoredPart:
    matrix = scipy.sparse.random(N, 4096, density=0.002, format="csr", random_state=1, dtype=np.float32)
    csr = Csr(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), matrix.data, matrix.shape)
    return StoredPart(csr, GENERATOR.integers(0, 3, N))


def sequences() -> StoredPart:
    items, ends = GENERATOR.integers(0, ITEMS, 4 * N).astype(np.int32), 4 * np.arange(1, N + 1)
    return StoredPart(Sequences(items, ends, ITEMS), np.zeros(N), np.arange(N))


def ratings() -> StoredPart:
    users, items = (GENERATOR.integers(0, size, N).astype(np.int32) for size in (400, ITEMS))
    return StoredPart(Pairs(users, items, (400, ITEMS)), GENERATOR.integers(1, 6, N).astype(np.float64))


NUMBERED = {"kind": "interactions", "layout": "inter", "items": {"kind": "numbered", "count": ITEMS}}
# Each form of records: the part, its shape, the job's changes, and the start message's.
FORMS: dict[str, tuple[Any, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "columns": (few_columns, shape(WIDE), {"optimizer": SGD}, {}),
    "columns, mlp": (
        few_columns,
        shape(WIDE),
        {"model": {"kind": "mlp", "hidden": [32]}, "optimizer": SGD | {"learning_rate": 0.1}},
        {},
    ),
    "words": (
        words,
        shape(4096, sparse=True),
        {"optimizer": SGD | {"learning_rate": 2.0}, "clipping": {"kind": "flat", "max_grad_norm": 0.5}},
        {"features": {"kind": "hashed_text", "column": "text", "buckets": 4096, "binary": False}},
    ),
    "sequences": (
        sequences,
        shape(ITEMS, 1, sparse=True),
        {
            "model": {"kind": "gru_rec", "dim": 16, "max_length": 3},
            "optimizer": SGD | {"learning_rate": 2.0},
            "clipping": {"kind": "flat", "max_grad_norm": 0.04},
        },
        {"task": {"kind": "next_item"}, "features": NUMBERED},
    ),
    "ratings": (
        ratings,
        shape(400 + ITEMS, 1, sparse=True),
        {"model": {"kind": "matrix_factorization", "dim": 4}, "optimizer": SGD},
        {
            "task": {"kind": "rating", "scale": [1.0, 5.0]},
            "features": NUMBERED | {"users": {"kind": "numbered", "count": 400}},
        },
    ),
}


def start_for(form: str, **changes: Any) -> tuple[dict[str, Any], StoredPart]:
    made, sizes, job, message = FORMS[form]
    start = start_of(spec(**{"evaluation": None, "length": {"steps": 20}} | job | changes), sizes) | message
    if form == "sequences":
        start["mechanism"] |= {"unit": "user"}
    return start, made()


def canaries(start: dict[str, Any]) -> PlantedRecords:
    found = canaries_of(Start.model_validate(start | KEYED), plan_of(start))
    assert isinstance(found, PlantedRecords)
    return found


def ran(folder: Path, start: dict[str, Any], part: StoredPart) -> tuple[Supervisor, bytes]:
    supervisor = attempt(folder, start, [part], [])
    ended = run_thread(supervisor)
    assert isinstance(ended.last, Finished), ended.last
    return supervisor, (folder / "model.safetensors").read_bytes()


def left(folder: Path) -> NDArray[np.float64]:
    return np.asarray(safetensors.torch.load_file(folder / CANARIES_FILE)[TENSOR].double())


def shown(folder: Path, start: dict[str, Any]) -> Finding:
    """As the supervisor finds it, from the published file."""
    canaries = (folder / CANARIES_FILE).read_bytes()
    charge = {"train": 1, "holdout": 0, "unit": "gdp-1e-9"}
    quoted = {"epsilon": {"value": 1.0, "delta": 1e-5, "accountant": "gdp"}, "charge": charge}
    found = finding_of(Job(id="job_1", spec=start["spec"], mechanism=start["mechanism"], quote=quoted), canaries)
    assert found is not None
    return found


@pytest.mark.parametrize("form", FORMS)
def test_each_canary_weighs_at_most_c_and_mostly_c(form: str) -> None:
    start, _ = start_for(form, audit={"canaries": 100, "kind": "records"})
    plan, planted = plan_of(start), canaries(start)
    model = plan.initial(Start.model_validate(start | KEYED).segments[0])
    most, weights = plan.norms(1)[0], []
    for k in range(20):
        total = {name: torch.zeros_like(value) for name, value in model.items()}
        planted.add_to(total, model, np.array([k]), Clip(most))
        weights.append(float(torch.cat([each.flatten() for each in total.values()]).norm()))
    assert max(weights) <= most * (1.0 + 1e-6)
    assert np.median(weights) > 0.9 * most


def test_a_canary_that_is_a_user_weighs_c_with_all_its_records() -> None:
    start = user_start(audit={"canaries": 100, "kind": "records"}, clipping={"kind": "flat", "max_grad_norm": 0.1})
    start["mechanism"]["training"]["max_grad_norm"] = 0.1
    plan, planted = plan_of(start), canaries(start)
    model = plan.initial(Start.model_validate(start | KEYED).segments[0])
    total = {name: torch.zeros_like(value) for name, value in model.items()}
    planted.add_to(total, model, np.array([3]), Clip(0.1))
    assert float(torch.cat([each.flatten() for each in total.values()]).norm()) == pytest.approx(0.1, rel=1e-6)
    assert planted.records == 300 and planted.units == int(coins("job_1", 100).sum())
    assert plan.engine.grid.records == 2 * (2 * 40 + 64) + 100 * 3, "the rounding of so many is paid for"


def test_synthetic_records_are_public_and_within_what_is_declared() -> None:
    """A canary is the same however many there are; another job's are others."""
    known = {}
    for form in FORMS:
        start, _ = start_for(form, **AUDIT)
        known[form] = canaries(start)._every
    few = canaries(start_for("columns", audit={"canaries": 100, "kind": "records"})[0])._every
    columns, texts, items, pairs = (known[form] for form in ("columns", "words", "sequences", "ratings"))
    assert isinstance(columns, DenseRecords) and isinstance(few, DenseRecords)
    assert torch.equal(columns.dense(torch.float32)[:100], few.dense(torch.float32))
    assert float(columns.private_norms.max()) == pytest.approx(WIDE**0.5 / 2, rel=1e-6)
    assert set(columns.labels.tolist()) == {0, 1, 2}
    assert isinstance(texts, SparseRecords) and float(texts.private_norms.max()) < 1.5
    assert isinstance(items, SequenceRecords)
    assert items.padded(4).min() >= 1 and items.padded(4).max() <= ITEMS
    assert isinstance(pairs, RatingRecords) and set(pairs.labels.tolist()) == {1.0, 5.0}
    assert int(pairs.users.max()) < 400 and int(pairs.items.max()) < ITEMS
    one, other = (Draws(job, 200).below("labels", 1000) for job in ("job_1", "job_2"))
    assert (one != other).mean() > 0.9


def test_a_table_s_canaries_have_declared_cells_and_an_image_s_dots() -> None:
    table = {
        "kind": "table",
        "columns": [
            {"kind": "number", "name": "age", "range": [0, 100]},
            {"kind": "category", "name": "ward", "values": ["a", "b", "c"]},
        ],
    }
    rows = canaries(start_of(spec(evaluation=None, **AUDIT), shape(4)) | {"features": table})._every
    assert isinstance(rows, DenseRecords)
    x = rows.dense(torch.float32)
    assert set(x[:, 0].tolist()) == {-1.0, 1.0} and bool((x[:, 1:].sum(dim=1) == 1.0).all())
    image = {"kind": "tensor", "array": "x", "image": {"height": 8, "width": 8, "channels": 1}}
    dots = canaries(start_of(spec(evaluation=None, **AUDIT), shape(64)) | {"features": image})._every
    assert isinstance(dots, DenseRecords)
    assert set(dots.dense(torch.float32).unique().tolist()) == {0.0, 1.0}
    target = canaries(start_of(spec(evaluation=None, **AUDIT), shape(5, 1)))._every
    assert set(target.labels.tolist()) == {-1e6, 1e6}


@pytest.mark.parametrize("purpose", ["dropout", "views"])
def test_a_canary_shares_no_record_s_masks_and_views(tmp_path: Path, purpose: str) -> None:
    """Records that are not finite add nothing. What the secret key changes is then the canaries' part."""
    job: dict[str, Any] = {"model": {"kind": "mlp", "hidden": [8], "dropout": 0.5}}
    if purpose == "views":
        job = {
            "model": {"kind": "cnn", "preset": "conv5", "image": {"height": 8, "width": 8, "channels": 1}},
            "augmentation": {"views": 2, "transforms": [{"kind": "crop", "padding": 2}]},
        }
    asked = spec(evaluation=None, length={"steps": 2}, sampling={"kind": "full_batch"}, **AUDIT, **job)
    part = StoredPart(np.full((4, 64), np.nan, np.float32), np.arange(4) % 3)
    start = start_of(asked, shape(64, records=4))
    weights = []
    for secret in ("one", "two"):
        segment = {"from_step": 1, "recorded": []} | keys_of("s0")
        segment[f"{purpose}_key"] = keys_of(secret)[f"{purpose}_key"]
        supervisor = attempt(tmp_path / secret, start, [part], [])
        supervisor.segments = [segment]
        assert isinstance(run_thread(supervisor).last, Finished)
        weights.append((tmp_path / secret / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


def test_an_adaptive_norm_counts_no_canary(tmp_path: Path) -> None:
    """C after the first step, where parameters are the same, is the same to the bit."""
    norms = []
    for name, more in (("plain", {}), ("audited", AUDIT)):
        start = adaptive_start(evaluation=None, length={"steps": 1}, **more)
        x, y = dense(start["shape"]["records_train"], start["shape"]["features"], start["shape"]["outputs"])
        supervisor, _ = ran(tmp_path / name, start, StoredPart(x, y))
        norms.append([each["value"] for (what, _), each in supervisor.metrics.items() if what == "clipping_norm"])
    assert norms[0] == norms[1] and len(norms[0]) == 1


@pytest.mark.parametrize("expected", [64, 16], ids=["coins", "gaps"])
def test_a_sampler_draws_canaries_at_the_records_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: int
) -> None:
    drawn: list[NDArray[np.int64]] = []
    honest = PlantedRecords.add_to

    def noted(self: PlantedRecords, total: Any, model: Any, chosen: Any, clip: Clip) -> None:
        drawn.append(chosen)
        honest(self, total, model, chosen, clip)

    monkeypatch.setattr(PlantedRecords, "add_to", noted)
    job = {"sampling": {"kind": "poisson", "expected_batch_size": expected}, "length": {"steps": 200}}
    start, part = start_for("columns", optimizer=SGD, **job, **AUDIT)
    ran(tmp_path / "drawn", start, part)
    inside, q = int(coins("job_1", 200).sum()), expected / N
    counts = np.bincount(np.concatenate(drawn), minlength=inside)
    assert len(drawn) == 200 and len(counts) == inside
    assert abs(counts.mean() - 200 * q) < 5 * (200 * q * (1 - q) / inside) ** 0.5
    assert abs(counts.var() / (200 * q * (1 - q)) - 1.0) < 5 * (2 / inside) ** 0.5


def test_a_replay_and_more_processes_repeat_the_canaries(tmp_path: Path) -> None:
    """Killed after half of its steps, continued by two processes: the same digests, model and canaries."""
    job = {"sampling": {"kind": "poisson", "expected_batch_size": 64}, "optimizer": SGD} | AUDIT
    start, part = start_for("columns", **job)
    alone, model = ran(tmp_path / "alone", start, part)
    killed = attempt(tmp_path / "killed", start, [part], [])
    killed.die_at = 11
    assert run_thread(killed).last is None
    killed.die_at = None
    killed.start |= {"processes": 2, "spec": start["spec"] | {"runtime": {"processes": 2, "shard": "optimizer"}}}
    ended = run_child(killed)
    assert isinstance(ended.last, Finished) and killed.resalts == 0
    assert (tmp_path / "killed" / "model.safetensors").read_bytes() == model
    assert killed.digests().items() >= {20: alone.digests()[20]}.items()
    assert np.array_equal(left(tmp_path / "killed"), left(tmp_path / "alone"))


# Noise that is nearly absent, where the claim is μ = 0.1: 500 canaries of these forms cannot miss it.
FAINT = {"audit": {"canaries": 500, "kind": "records"}, "privacy": {"noise_multiplier": 20**0.5 / 0.1}}


@pytest.mark.parametrize("form", but(list(FORMS), lambda form: form in ("columns", "words", "sequences")))
def test_noise_that_is_missing_is_found_and_an_honest_job_is_not_accused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Claim: a job on real data audits the path from a record to the weights
    Now: random records, sequences and texts are trained on; missing noise is `exceeded`
    """
    start, part = start_for(form, **FAINT)
    ran(tmp_path / "honest", start, part)
    honest = shown(tmp_path / "honest", start)
    assert not honest.exceeded and honest.kind == "records" and honest.decoys == 0
    whole = GaussianRelease.__init__

    def init(self: GaussianRelease, key: bytes | None, *, noise_multiplier: float, **settings: Any) -> None:
        whole(self, key, noise_multiplier=noise_multiplier / 1000.0, **settings)

    monkeypatch.setattr(GaussianRelease, "__init__", init)
    ran(tmp_path / "faulty", start, part)
    faulty = shown(tmp_path / "faulty", start)
    assert faulty.exceeded and (faulty.mu_at_least or 0.0) > 0.1, (honest.right, faulty.right)
