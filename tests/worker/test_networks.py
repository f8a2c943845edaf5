"""Networks: as the catalogue says, initialized from their key, and trained in the loop as linear models are."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from app.catalogue.model_kinds import layers
from core.contracts.gcn import GcnModel
from core.contracts.job_spec import CnnModel, LinearModel, MlpModel
from core.errors import PrivacyError
from tests.worker.layers import Scale
from tests.worker.support import (
    Supervisor,
    dense,
    key,
    mechanism,
    plan_of,
    records,
    run_child,
    run_direct,
    spec,
    start_of,
    stored_part,
)
from worker.clipping.bookkeeping import Bookkeeping
from worker.clipping.engine import Clip
from worker.clipping.linear_clipping import LinearClipping
from worker.clipping.plain import PlainGradient
from worker.clipping.totals import Grid
from worker.messages import Finished, Ready
from worker.models.linear import Linear
from worker.models.networks import Network

KEY = bytes.fromhex(key("init"))
SHAPE = {"records_train": 80, "records_holdout": 20, "features": 5, "outputs": 3, "sparse": False}
X, Y = dense(100, 5, 3)
MLP = {"kind": "mlp", "hidden": [8]}
SPECS: list[tuple[Any, int]] = [
    (LinearModel(bias=True), 6),
    (MlpModel(hidden=[4, 3]), 6),
    (MlpModel(hidden=[4, 3], dropout=0.5), 6),
    (CnnModel(preset="conv2"), 784),
    (CnnModel(preset="conv5", activation="relu"), 3072),
    (CnnModel(preset="conv5", channels="last"), 3072),
    (GcnModel(), 12),
    (GcnModel(hidden=(4, 3)), 12),
    (GcnModel(hops=2, neighbours=2, hidden=(4,)), 14),
    (GcnModel(hops=2, neighbours=2, hidden=(4, 3)), 14),
]


@pytest.mark.parametrize(("model", "features"), SPECS)
def test_a_network_is_what_the_catalogue_says(model: Any, features: int) -> None:
    network = Network(features, 10, model)
    found = {
        f"{each.name}.{name}".strip("."): shape
        for each in layers(model, features, 10)
        for name, shape in each.shapes.items()
    }
    prefix = "0." if model.kind == "linear" else ""
    assert {name: list(value.shape) for name, value in network.init(KEY).items()} == {
        prefix + n: s for n, s in found.items()
    }
    x = torch.randn(3, features)
    parameters = network.init(KEY)
    assert network.forward(parameters, records(x.numpy(), np.zeros(3, np.int64))).shape == (10, 3)


def test_channels_last_is_the_same_picture() -> None:
    first, last = (Network(3072, 4, CnnModel(preset="conv5", channels=where)) for where in ("first", "last"))
    x = np.random.default_rng(0).random((2, 3, 32, 32), dtype=np.float32)
    y, parameters = np.zeros(2, np.int64), first.init(KEY)
    one = first.forward(parameters, records(x.reshape(2, -1), y))
    two = last.forward(parameters, records(x.transpose(0, 2, 3, 1).reshape(2, -1), y))
    torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)


def test_initialization_is_keyed() -> None:
    network = Network(784, 10, MlpModel(hidden=[400], activation="relu"))
    one, two = network.init(KEY), network.init(KEY)
    assert all(torch.equal(one[name], two[name]) for name in one)
    other = network.init(bytes.fromhex(key("other")))
    assert not torch.equal(one["1.weight"], other["1.weight"])
    assert float(one["1.weight"].std()) == pytest.approx((2 / 784) ** 0.5, rel=0.02)
    assert not one["1.bias"].any() and one["1.weight"].dtype == torch.float64
    with pytest.raises(PrivacyError):
        network.init(None)


def test_the_plan_builds_the_engine_that_was_asked_for() -> None:
    from worker.clipping.opacus import OpacusClipping  # two seconds

    def of(**changes: Any) -> Any:
        return plan_of(start_of(spec(**changes), SHAPE)).engine

    assert isinstance(of(model=MLP), Bookkeeping)
    assert isinstance(of(model=MLP, clipping={"engine": "opacus"}), OpacusClipping)
    linear = of(clipping={"kind": "per_layer"})
    model = Linear(5, 3, rows_per_pass=linear.model.rows_per_pass, dtype=torch.float32)
    assert linear == LinearClipping(model, "per_layer", 1.0, sums="float32", grid=Grid(224, 240))
    public = plan_of(start_of(spec(model=MLP, privacy=None), SHAPE, public=True))
    assert isinstance(public.engine, PlainGradient)
    with pytest.raises(PrivacyError):
        plan_of(start_of(spec(model=MLP), SHAPE | {"sparse": True}))


@pytest.mark.parametrize("bias", [False, True])
def test_a_linear_model_by_the_reference_engine(bias: bool) -> None:
    """A whole job: the tensors' names are the model's own."""
    x, y = dense(100, 5, 3)
    weights = []
    for engine in ("bookkeeping", "opacus"):
        clipping = {"engine": engine, "max_grad_norm": 0.3}
        asked = spec(model={"kind": "linear", "bias": bias}, clipping=clipping, runtime={"dtype": "float64"})
        record = Supervisor(start_of(asked, SHAPE))
        weights.append(run_direct(record, records(x[:80], y[:80]), records(x[80:], y[80:]))[0].parameters)
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", ["flat", "automatic", "per_layer"])
@pytest.mark.parametrize("model", [MlpModel(hidden=[4, 3]), CnnModel(preset="conv2")])
def test_engines_agree(model: Any, kind: Any) -> None:
    from worker.clipping.opacus import OpacusClipping  # two seconds

    features = 784 if model.kind == "cnn" else 6
    x, y = dense(12, features, 3)
    network = Network(features, 3, model, dtype=torch.float64)
    parameters, batch = network.init(KEY), records(x, y)
    how = {"rows": 12, "kind": kind, "max_grad_norm": 0.2, "dtype": torch.float64}
    books = Bookkeeping(network.module(), network.record_losses, **how).private_sum(parameters, batch)
    opacus = OpacusClipping(network.module(), network.record_losses, **how)
    for rows in (12, 5):
        shaped = OpacusClipping(network.module(), network.record_losses, **(how | {"rows": rows}))
        found = shaped.private_sum(parameters, batch)
        for name, value in books.items():
            torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-13)
    chance = torch.Generator().manual_seed(0)
    drawn = {n: torch.rand(value.shape, dtype=torch.float64, generator=chance) for n, value in books.items()}
    clip = Clip(3.0, {name: 0.01 + value for name, value in drawn.items()})
    divided = Bookkeeping(network.module(), network.record_losses, **how).private_sum(parameters, batch, clip)
    for name, value in opacus.private_sum(parameters, batch, clip).items():
        torch.testing.assert_close(divided[name], value, rtol=1e-10, atol=1e-11)  # a hundredth divides some


def test_without_clipping_and_noise_engines_give_the_gradient() -> None:
    network = Network(6, 3, MlpModel(hidden=[4]), dtype=torch.float64)
    x, y = dense(12, 6, 3)
    parameters, batch = network.init(KEY), records(x, y)
    how: Any = {"rows": 7, "dtype": torch.float64}
    plain = PlainGradient(network.module(), network.record_losses, **how).private_sum(parameters, batch)
    engine = Bookkeeping(network.module(), network.record_losses, kind="flat", max_grad_norm=1e6, **how)
    for name, value in engine.private_sum(parameters, batch).items():
        torch.testing.assert_close(plain[name], value, rtol=1e-12, atol=1e-14)
    linear, sparse = Linear(6, 3, bias=True), records(x, y, sparse=True)
    fast = LinearClipping(linear, "flat", 0.5).private_sum(linear.init(), batch)
    module = Network(6, 3, LinearModel(bias=True), dtype=torch.float64)
    slow = Bookkeeping(module.module(), module.record_losses, kind="flat", max_grad_norm=0.5, **how)
    for one, two in zip(
        fast.values(), slow.private_sum(module.init(KEY) | _zeros(module), sparse).values(), strict=True
    ):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-13)


def _zeros(network: Network) -> dict[str, torch.Tensor]:
    return {name: torch.zeros_like(value) for name, value in network.init(KEY).items()}


# --- In the loop ---


@pytest.mark.parametrize("engine", ["bookkeeping", "opacus"])
def test_a_network_learns_in_the_loop(engine: str) -> None:
    x, y = dense(2000, 5, 3)
    shape = SHAPE | {"records_train": 1600, "records_holdout": 400}
    job = spec(
        model=MLP | {"hidden": [16], "activation": "relu"},
        length={"steps": 60},
        evaluation={"noise_mu": 1.0},
        clipping={"engine": engine},
        optimizer={"kind": "dp_sgd", "learning_rate": 1.0, "momentum": 0.9},
    )
    supervisor = Supervisor(start_of(job, shape))
    run_direct(supervisor, records(x[:1600], y[:1600]), records(x[1600:], y[1600:]))
    assert supervisor.metrics[("accuracy", 60)]["value"] > 0.8


def test_a_network_replays_and_goes_on_after_a_resalt() -> None:
    """A crash replays bit for bit; after a resalt at any step the next attempt agrees with what is recorded."""
    train, holdout = records(X[:80], Y[:80]), records(X[80:], Y[80:])
    whole = Supervisor(start_of(spec(model=MLP), SHAPE))
    straight = run_direct(whole, train, holdout)[0].parameters
    again = Supervisor(start_of(spec(model=MLP), SHAPE), die_at=6)
    with pytest.raises(ConnectionError):
        run_direct(again, train, holdout)
    again.die_at = None
    resumed = run_direct(again, train, holdout)[0].parameters
    assert all(torch.equal(straight[name], resumed[name]) for name in straight) and again.resalts == 0
    for spoiled in (0, 1, 4):
        record = Supervisor(start_of(spec(model=MLP, length={"steps": 10}), SHAPE), hold=40)
        run_direct(record, train, holdout)
        for row in record.segments[0]["recorded"]:
            if row["last_step"] >= spoiled:
                row["digest"] = key("spoiled", row["last_step"])
        run_direct(record, train, holdout)
        assert record.resalts == 1
        run_direct(record, train, holdout)
        assert record.resalts == 1


def test_two_processes_give_the_same_bits(tmp_path: Path) -> None:
    model, features = {"kind": "cnn", "preset": "conv2"}, 784
    x, y = dense(90, features, 3)
    shape = SHAPE | {"features": features}
    digests = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        parts = {
            "train": stored_part(folder / "train.npz", x[:80], y[:80]),
            "holdout": stored_part(folder / "h.npz", x[80:], y[80:]),
        }
        job = spec(model=model, length={"steps": 10}, sampling={"kind": "poisson", "expected_batch_size": 40})
        supervisor = Supervisor(start_of(job, shape, parts=parts, output_dir=folder))
        ended = run_child(supervisor)
        assert isinstance(ended.last, Finished), (ended.last, ended.printed)
        digests.append(supervisor.digests())
    assert digests[0] == digests[1]


def test_the_mechanism_s_kind_of_clip_is_what_runs() -> None:
    start = start_of(spec(model=MLP, clipping={"kind": "per_layer"}), SHAPE)
    assert plan_of(start).engine._kind == "per_layer"  # type: ignore[attr-defined]
    with pytest.raises(PrivacyError):
        plan_of(start | {"mechanism": mechanism(spec(model=MLP), SHAPE)})


@pytest.mark.parametrize("engine", ["bookkeeping", "opacus"])
def test_a_broken_record_contributes_nothing(engine: str) -> None:
    job = spec(model=MLP, clipping={"engine": engine}, runtime={"dtype": "float64"})
    plan = plan_of(start_of(job, SHAPE))
    parameters = plan.model.init(KEY)
    broken = np.vstack([X[:80], np.full((1, 5), np.nan, np.float32)])
    clean = plan.engine.private_sum(parameters, records(X[:80], Y[:80]))
    for name, value in plan.engine.private_sum(parameters, records(broken, np.append(Y[:80], 0))).items():
        torch.testing.assert_close(value, clean[name], rtol=1e-12, atol=1e-14)


def test_conv5_trains(tmp_path: Path) -> None:
    """In a process of its own, with 32 × 32 images; no layer of it lacks a rule."""
    x, y = dense(40, 3072, 3)
    job = spec(model={"kind": "cnn", "preset": "conv5"}, length={"steps": 2}, evaluation=None)
    parts = {"train": stored_part(tmp_path / "train.npz", x, y)}
    record = Supervisor(start_of(job, SHAPE | {"features": 3072}, parts=parts, output_dir=tmp_path))
    ended = run_child(record)
    assert isinstance(ended.last, Finished), (ended.last, ended.printed)
    assert [each.fallbacks for each in record.of(Ready)] == [()]


def test_a_layer_without_a_rule_is_named_when_the_job_is_ready() -> None:
    plan = plan_of(start_of(spec(model=MLP), SHAPE))
    assert plan.fallbacks == ()
    engine: Bookkeeping[Any] = Bookkeeping(
        nn.Sequential(nn.Linear(3, 3), Scale(3)), lambda m, b: m(b).sum(dim=1), rows=1, kind="flat", max_grad_norm=1.0
    )
    assert replace(plan, engine=engine).fallbacks == ("1 (Scale)",)


@pytest.mark.parametrize(
    ("model", "private", "asked", "wanted"),
    [
        (MLP, True, "auto", torch.float32),
        (MLP | {"activation": "relu"}, True, "auto", torch.float32),
        (MLP | {"activation": "relu"}, False, "auto", torch.float32),
        (MLP, True, "float64", torch.float64),
        ({"kind": "cnn", "preset": "conv2"}, True, "auto", torch.float32),
        ({"kind": "cnn", "preset": "conv5"}, True, "auto", torch.float32),
    ],
)
def test_networks_run_in_float32_unless_told_otherwise(
    model: Any, private: bool, asked: str, wanted: torch.dtype
) -> None:
    privacy = {} if private else {"privacy": None}
    job = spec(model=model, runtime={"dtype": asked}, evaluation=None, **privacy)
    features = {"conv2": 784, "conv5": 3072}.get(model.get("preset"), 5)
    network = plan_of(start_of(job, SHAPE | {"features": features}, public=not private)).model
    assert isinstance(network, Network) and network.dtype == wanted


MODULES = """
import sys
from worker.attempt import child
from core.contracts.job_spec import MlpModel
from worker.models.networks import Network
before = set(sys.modules)
network = Network(5, 3, MlpModel(hidden=[4])).module()
assert all(each.device.type == "cpu" and each.requires_grad for each in network.parameters())
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before} - {"torch"}))
"""


def test_a_module_is_made_without_loading_libraries_in_each_attempt() -> None:
    """The fork server has loaded what attempts need: sympy took 0.4 s of each one's processor time."""
    line = [sys.executable, "-c", MODULES]
    done = subprocess.run(line, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == 0 and not done.stdout.split(), done.stdout + done.stderr
