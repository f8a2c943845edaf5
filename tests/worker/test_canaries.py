"""Canaries beside a job's records: the model is the same to the bit, and each canary weighs C or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from app.db.models import Job
from core.contracts.audit import CANARIES_FILE, TENSOR
from core.errors import PrivacyError
from core.parts.stored_records import StoredPart
from core.privacy.canary_bound import coins
from tests.by_night import but
from tests.worker.support import Supervisor, dense, plan_of, run_child, run_thread, spec, start_of
from tests.worker.test_joined import attempt
from tests.worker.test_users import user_start
from worker.attempt import audited
from worker.attempt.audited import finding_of
from worker.messages import Finished, Start
from worker.training.canaries import Coordinates, model_of
from worker.training.planted import canaries_of

SHAPE = {"records_train": 400, "records_holdout": 100, "features": 5, "outputs": 3, "sparse": False}
SGD = {"kind": "dp_sgd", "learning_rate": 0.5}
POISSON = {"sampling": {"kind": "poisson", "expected_batch_size": 64}, "optimizer": SGD}
JOBS: dict[str, dict[str, Any]] = {
    "full batch": {},
    "poisson": POISSON,
    "poisson, by gaps": {"sampling": {"kind": "poisson", "expected_batch_size": 16}, "optimizer": SGD},
    "cyclic": {"sampling": {"kind": "cyclic", "batches": 5}, "optimizer": SGD},
    "correlated": {
        "sampling": {"kind": "cyclic", "batches": 5},
        "optimizer": SGD,
        "noise": {"kind": "correlated", "decay": 0.5},
    },
    "mlp, per layer": {
        "model": {"kind": "mlp", "hidden": [4]},
        "clipping": {"kind": "per_layer"},
        "optimizer": {"kind": "dp_adam", "learning_rate": 0.01},
    },
    "automatic, momentum": {"clipping": {"kind": "automatic"}},
    "delayed": {
        "optimizer": {
            "kind": "dp2_rmsprop",
            "learning_rate": 0.05,
            "learning_rate_adaptive": 0.05,
            "max_grad_norm_adaptive": 2.0,
            "delay": 3,
        }
    },
    "averaged": {"optimizer": SGD | {"averaging": {"kind": "tail"}}},
}
BY_DAY = ("full batch", "poisson", "poisson, by gaps", "mlp, per layer", "averaged")
AUDIT = {"audit": {"canaries": 200}}
X, Y = dense(500, 5, 3)
TRAIN, HELD = StoredPart(X[:400], Y[:400]), StoredPart(X[400:], Y[400:])


def ran(folder: Path, job: dict[str, Any], start: dict[str, Any] | None = None) -> tuple[Supervisor, bytes]:
    supervisor = attempt(folder, start or start_of(job, SHAPE), [TRAIN], [HELD])
    ended = run_thread(supervisor)
    assert isinstance(ended.last, Finished)
    return supervisor, (folder / "model.safetensors").read_bytes()


def left(folder: Path) -> torch.Tensor:
    found: torch.Tensor = safetensors.torch.load_file(folder / CANARIES_FILE)[TENSOR]
    return found


@pytest.mark.parametrize("job", but(list(JOBS), BY_DAY.__contains__))
def test_a_model_and_its_scores_are_the_same_with_canaries(tmp_path: Path, job: str) -> None:
    """To the bit: so an audit costs no accuracy, and scores never see a canary.

    Claim: a job on real data audits itself
    Now: the same model to the bit; a lower bound in its certificate
    """
    plain, model = ran(tmp_path / "plain", spec(**JOBS[job]))
    audited, same = ran(tmp_path / "audited", spec(**JOBS[job], **AUDIT))
    assert model == same
    assert {key: value["value"] for key, value in plain.metrics.items()} == {
        key: value["value"] for key, value in audited.metrics.items()
    }
    assert plain.digests() != audited.digests(), "the state that a replay repeats has the canaries"
    assert not (tmp_path / "plain" / CANARIES_FILE).exists()
    moved, inside = left(tmp_path / "audited"), coins("job_1", 200)
    assert moved.shape == (300,) and moved.dtype == torch.float32 and bool((moved != 0.0).all())
    assert float(moved[:200][inside].mean()) > float(moved[200:].mean()), "those that are in moved up"


def test_each_canary_weighs_c_at_its_own_coordinate() -> None:
    canaries = Coordinates(np.array([1, 4, 5]), coordinates=8)
    everyone = canaries.clipped_sum(None, 0.7, torch.device("cpu"))
    assert everyone.tolist() == [0.0, -0.7, 0.0, 0.0, -0.7, -0.7, 0.0, 0.0]
    for k, place in enumerate((1, 4, 5)):
        rest = canaries.clipped_sum(np.array([other for other in range(3) if other != k]), 0.7, torch.device("cpu"))
        moved = everyone - rest
        assert float(moved.norm()) == 0.7 and float(moved[place]) == -0.7
    assert not canaries.clipped_sum(np.empty(0, dtype=np.int64), 0.7, torch.device("cpu")).any()
    assert set(model_of({"weight": everyone, TENSOR: everyone})) == {"weight"}


def test_the_noise_on_canaries_is_the_model_s(tmp_path: Path) -> None:
    """One step of DP-SGD at rate 1: coordinates hold (b C − z)/L, with z of std σ C. Also those of decoys."""
    job = spec(optimizer=SGD | {"learning_rate": 1.0}, length={"steps": 1}, audit={"canaries": 20_000}, evaluation=None)
    ran(tmp_path / "one", job)
    moved = left(tmp_path / "one").double() * 400
    inside = torch.from_numpy(coins("job_1", 20_000))
    for part, mean in ((moved[:20_000][inside], 1.0), (moved[:20_000][~inside], 0.0), (moved[20_000:], 0.0)):
        assert abs(float(part.mean()) - mean) < 5.0 / len(part) ** 0.5
        assert abs(float(part.std()) - 1.0) < 5.0 / (2 * len(part)) ** 0.5


@pytest.mark.parametrize("expected", [64, 16], ids=["coins", "gaps"])
def test_a_sampler_draws_canaries_at_the_records_rate(tmp_path: Path, expected: int) -> None:
    """In 20 steps at q = 64/400, each is drawn 3.2 times: the mean shift is 3.2 C η/L. Below 1/16 gaps are drawn."""
    sampling = {"kind": "poisson", "expected_batch_size": expected}
    job = spec(sampling=sampling, optimizer=SGD, length={"steps": 20}, audit={"canaries": 20_000}, evaluation=None)
    ran(tmp_path / "drawn", job)
    moved = left(tmp_path / "drawn").double() * expected / 0.5
    inside, q = torch.from_numpy(coins("job_1", 20_000)), expected / 400
    assert abs(float(moved[:20_000][inside].mean()) - 20 * q) < 5 * (20 + 20 * q * (1 - q)) ** 0.5 / 100
    assert abs(float(moved[:20_000][~inside].mean())) < 5 * 20**0.5 / 100


def test_a_canary_is_a_user_of_its_own(tmp_path: Path) -> None:
    """Also where a user has three records: the canary's three together weigh C."""
    x, y = dense(150, 5, 3)
    owners = np.repeat(np.arange(50), 3)
    job = {"sampling": {"kind": "poisson", "expected_batch_size": 8}, "length": {"steps": 20}, "evaluation": None}
    models = []
    for name, more in (("plain", {}), ("audited", AUDIT)):
        start = user_start(**job, **more)
        supervisor = attempt(tmp_path / name, start, [StoredPart(x[:120], y[:120], owners[:120])], [])
        assert isinstance(run_thread(supervisor).last, Finished)
        models.append((tmp_path / name / "model.safetensors").read_bytes())
    assert models[0] == models[1]


def test_a_replay_and_more_processes_repeat_the_canaries(tmp_path: Path) -> None:
    """Killed after half of its steps, continued by two processes: the same digests, model and canaries."""
    job = spec(**POISSON | {"length": {"steps": 20}}, **AUDIT)
    alone, model = ran(tmp_path / "alone", job)
    killed = attempt(tmp_path / "killed", start_of(job, SHAPE), [TRAIN], [HELD])
    killed.die_at = 11
    assert run_thread(killed).last is None
    killed.die_at = None
    killed.start |= {"processes": 2, "spec": job | {"runtime": {"processes": 2}}}
    ended = run_child(killed)
    assert isinstance(ended.last, Finished) and ended.printed == b"" and killed.resalts == 0
    assert (tmp_path / "killed" / "model.safetensors").read_bytes() == model
    assert killed.digests().items() >= {20: alone.digests()[20]}.items()
    assert torch.equal(left(tmp_path / "killed"), left(tmp_path / "alone"))


def test_a_job_that_claims_nothing_has_no_canaries() -> None:
    start = start_of(spec(privacy=None, **AUDIT), SHAPE, public=True)
    keys = {"segments": [{"from_step": 1} | {f"{name}_key": "0" * 64 for name in KEYS}], "allowed_steps": 0}
    message = Start.model_validate(start | keys)
    with pytest.raises(PrivacyError, match="this job has none"):
        canaries_of(message, plan_of(start))


def audited_job() -> Job:
    charge = {"train": 1, "holdout": 0, "unit": "gdp-1e-9"}
    quoted = {"epsilon": {"value": 1.0, "delta": 1e-5, "accountant": "gdp"}, "charge": charge}
    mechanism = start_of(spec(**AUDIT), SHAPE)["mechanism"]
    return Job(id="job_1", spec=spec(**AUDIT), mechanism=mechanism, quote=quoted)


@pytest.mark.parametrize("published", ["nothing", "no tensor", "fewer"])
def test_an_attempt_without_its_canaries_breaks_its_promise(published: str) -> None:
    content = None
    if published != "nothing":
        tensors = {TENSOR: torch.zeros(299)} if published == "fewer" else {"weight": torch.zeros(300)}
        content = safetensors.torch.save(tensors)
    with pytest.raises(PrivacyError, match="other canaries" if published == "fewer" else "did not publish"):
        finding_of(audited_job(), content)


def test_what_fails_in_the_audit_itself_is_not_said_of_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    content = safetensors.torch.save({TENSOR: torch.zeros(300)})
    assert finding_of(audited_job(), content) is not None

    def without_a_root(*_: object) -> None:
        raise ValueError("f(a) and f(b) must have different signs")

    monkeypatch.setattr(audited, "found", without_a_root)
    with pytest.raises(ValueError, match="different signs"):
        finding_of(audited_job(), content)


KEYS = ("noise", "sampler", "release", "init", "dropout", "order", "views")
