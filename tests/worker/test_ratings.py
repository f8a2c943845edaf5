"""Matrix factorization: exact against autograd one rating at a time, and never more than C from any rating."""

from __future__ import annotations

import ast
import contextlib
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from core.contracts.dataset_spec import Interactions, RatingTask
from core.errors import PrivacyError
from core.parts.damage import DataDamagedError
from core.parts.id_rows import hashed_row
from core.parts.part_files import save_part
from core.parts.stored_records import Pairs, StoredPart
from tests.worker.support import Supervisor, key, run_direct, run_thread, spec, start_of
from worker.clipping.engine import Clip
from worker.clipping.rating_clipping import RatingClipping, RatingGradient
from worker.data.loaded_parts import load_stored
from worker.data.ratings import RatingRecords
from worker.messages import Finished, Part, Shape
from worker.metrics.scores import public_scores
from worker.models.base import Parameters
from worker.models.matrix_factorization import MatrixFactorization
from worker.models.model_files import save_model

USERS, ITEMS = 6, 9
KEY = bytes.fromhex(key("init"))


def model(dim: int = 3, bias: bool = True) -> MatrixFactorization:
    return MatrixFactorization(USERS, ITEMS, dim, (1.0, 5.0), bias=bias, init_std=0.5)


def ratings(n: int = 40, seed: int = 0) -> RatingRecords:
    generator = np.random.default_rng(seed)
    users, items = generator.integers(0, USERS, n), generator.integers(0, ITEMS, n)
    labels = generator.integers(1, 6, n).astype(np.float64)
    return RatingRecords(torch.from_numpy(users), torch.from_numpy(items), torch.from_numpy(labels))


def parameters_of(m: MatrixFactorization) -> Parameters:
    generator = torch.Generator().manual_seed(3)
    return {
        name: value + torch.randn(value.shape, generator=generator, dtype=torch.float64)
        for name, value in m.init(KEY).items()
    }


def gradient_of_one(m: MatrixFactorization, parameters: Parameters, u: int, i: int, y: float) -> list[torch.Tensor]:
    """Autograd, float64, one rating; written apart from the model's own code."""
    leaves = {name: value.clone().requires_grad_() for name, value in parameters.items()}
    f = 3.0 + leaves["users"][u] @ leaves["items"][i]
    if m.bias:
        f = f + leaves["user_bias"][u] + leaves["item_bias"][i]
    return list(torch.autograd.grad(0.5 * (f - y) ** 2, list(leaves.values())))


def one_by_one(
    m: MatrixFactorization, parameters: Parameters, batch: RatingRecords, kind: str, C: float, divisors: Any = None
) -> Any:
    total = [torch.zeros_like(value) for value in parameters.values()]
    for u, i, y in zip(batch.users.tolist(), batch.items.tolist(), batch.labels.tolist(), strict=True):
        gradient = gradient_of_one(m, parameters, u, i, y)
        if divisors:
            gradient = [each / divisors[name] for each, name in zip(gradient, parameters, strict=True)]
        norm = float(torch.cat([each.flatten() for each in gradient]).norm())
        factor = {"none": 1.0, "automatic": C / (norm + 0.01)}.get(kind, 1 / max(1.0, norm / C))
        total = [each + factor * part for each, part in zip(total, gradient, strict=True)]
    return total


def flat(parts: Any) -> torch.Tensor:
    return torch.cat([each.flatten() for each in parts])


def error(got: Parameters, wanted: Any) -> float:
    return float((flat(got.values()) - flat(wanted)).norm() / flat(wanted).norm())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("kind", "C"), [("flat", 1.0), ("flat", 100.0), ("automatic", 0.7), ("per_layer", 1.0)])
@pytest.mark.parametrize("rows", [48, 1, 7])
def test_the_sum_is_that_of_gradients_clipped_one_at_a_time(bias: bool, kind: Any, C: float, rows: int) -> None:
    m, batch = replace(model(bias=bias), rows_per_pass=rows), ratings()
    parameters = parameters_of(m)
    got = RatingClipping(m, kind, C).private_sum(parameters, batch)
    assert list(got) == list(parameters)
    assert error(got, one_by_one(m, parameters, batch, kind, C)) <= 1e-10


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("kind", "C"), [("flat", 1.0), ("flat", 100.0), ("automatic", 0.7)])
def test_divided_gradients_are_clipped(bias: bool, kind: Any, C: float) -> None:
    m, batch = model(bias=bias), ratings()
    parameters = parameters_of(m)
    generator = torch.Generator().manual_seed(4)
    divisors = {
        name: torch.rand(value.shape, generator=generator, dtype=torch.float64) + 0.1
        for name, value in parameters.items()
    }
    got = RatingClipping(m, kind, 7.0).private_sum(parameters, batch, Clip(C, divisors))
    assert error(got, one_by_one(m, parameters, batch, kind, C, divisors)) <= 1e-10


@pytest.mark.parametrize("bias", [True, False])
def test_the_public_gradient_is_the_plain_sum(bias: bool) -> None:
    m, batch = model(bias=bias), ratings()
    parameters = parameters_of(m)
    got = RatingGradient(m).private_sum(parameters, batch)
    assert error(got, one_by_one(m, parameters, batch, "none", 1.0)) <= 1e-10


values = st.floats(-1e200, 1e200) | st.floats(-10, 10) | st.floats(-1e-200, 1e-200)


@settings(max_examples=150)
@given(
    st.lists(values, min_size=2, max_size=2),
    st.lists(values, min_size=2, max_size=2),
    st.lists(values, min_size=3, max_size=3),
    st.sampled_from(["flat", "automatic"]),
    st.sampled_from([1e-6, 1.0, 1e6]),
)
def test_no_rating_weighs_more_than_c(p: list[float], q: list[float], rest: list[float], kind: Any, C: float) -> None:
    m = MatrixFactorization(1, 1, 2, (1.0, 5.0))
    parameters = {
        "users": torch.tensor([p], dtype=torch.float64),
        "items": torch.tensor([q], dtype=torch.float64),
        "user_bias": torch.tensor([rest[0]], dtype=torch.float64),
        "item_bias": torch.tensor([rest[1]], dtype=torch.float64),
    }
    zero = torch.zeros(1, dtype=torch.int64)
    record = RatingRecords(zero, zero, torch.tensor([rest[2]], dtype=torch.float64))
    got = flat(RatingClipping(m, kind, C).private_sum(parameters, record).values())
    assert bool(torch.isfinite(got).all())
    scale = float(got.abs().max()) or 1.0
    assert scale * float((got / scale).norm()) <= C * (1 + 1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["rating", "user's row", "bias"])
def test_a_rating_whose_gradient_is_not_finite_contributes_zero(bad: float, where: str) -> None:
    m, batch = model(), ratings()
    parameters = parameters_of(m)
    keep = torch.ones(len(batch), dtype=torch.bool)
    if where == "rating":
        others = batch.select(np.flatnonzero(np.arange(len(batch)) != 4))
        batch.labels[4] = bad
    else:
        parameters["users" if where == "user's row" else "user_bias"][2] = bad
        keep = batch.users != 2
        others = batch.select(np.flatnonzero(keep.numpy()))
    engine = RatingClipping(m, "flat", 1.0)
    got, wanted = (engine.private_sum(parameters, each) for each in (batch, others))
    assert bool(torch.isfinite(flat(got.values())).all())
    assert error(got, list(wanted.values())) <= 1e-13


def test_an_empty_batch_gives_zeros() -> None:
    m = model()
    none = ratings().select(np.array([], dtype=np.int64))
    got = RatingClipping(m, "flat", 1.0).private_sum(parameters_of(m), none)
    assert float(flat(got.values()).abs().sum()) == 0.0
    assert not list(none.passes(48, torch.float64))


def test_the_first_values_are_keyed() -> None:
    one, same, other = (flat(model().init(k).values()) for k in (KEY, KEY, bytes.fromhex(key("other"))))
    assert torch.equal(one, same) and not torch.equal(one, other)
    with pytest.raises(PrivacyError):
        model().init()


def test_scores_are_of_predictions_within_the_scale() -> None:
    m, batch = model(), ratings()
    parameters = {name: 100 * value for name, value in parameters_of(m).items()}
    errors = m.errors(m.forward(parameters, batch), batch.labels)
    assert float(errors.max()) <= 16.0
    (score,) = public_scores(m, parameters, batch)
    assert (score.name, score.std) == ("loss", 0.0) and score.value == pytest.approx(float(errors.mean()))


TASK = {"kind": "rating", "scale": [1, 5]}
IDS = [
    ({"kind": "numbered", "count": USERS}, {"kind": "numbered", "count": ITEMS, "first": 0}),
    ({"kind": "listed", "ids": ["3", "2", "1", "x", "y", "z"]}, {"kind": "hashed", "buckets": ITEMS}),
]


def features(users: Any = IDS[0][0], items: Any = IDS[0][1]) -> dict[str, Any]:
    return {"kind": "interactions", "layout": "inter", "users": users, "items": items}


@pytest.mark.parametrize(("users", "items"), IDS)
@pytest.mark.parametrize("bias", [True, False])
def test_the_card_s_snippet_predicts(
    users: Any, items: Any, bias: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    m = model(bias=bias)
    declared = Interactions.model_validate(features(users, items))
    weights, card_file, _readme = save_model(tmp_path, m, parameters_of(m), RatingTask.model_validate(TASK), declared)
    card = json.loads(Path(card_file.path).read_text())
    tensors = load_file(weights.path)
    assert card["kind"] == "matrix_factorization"
    assert card["tensors"] == {name: list(value.shape) for name, value in tensors.items()}
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(card["usage"], {})  # noqa: S102 - our own snippet, as a user would run it
    u, i = 0, 0 if items["kind"] == "numbered" else hashed_row("an id", ITEMS)  # the first that are declared
    f = 3.0 + float(tensors["users"][u] @ tensors["items"][i])
    f += float(tensors["user_bias"][u] + tensors["item_bias"][i]) if bias else 0.0
    (answer,) = ast.literal_eval(printed.getvalue())
    assert answer["value"] == pytest.approx(min(max(f, 1.0), 5.0), rel=1e-6)


SHAPE: dict[str, Any] = {
    "records_train": 40,
    "records_holdout": 10,
    "features": USERS + ITEMS,
    "outputs": 1,
    "sparse": True,
}


def stored(path: Path, records: RatingRecords, sizes: tuple[int, int] = (USERS, ITEMS)) -> dict[str, str]:
    users, items = (rows.numpy().astype(np.int32) for rows in (records.users, records.items))
    part = StoredPart(x=Pairs(users, items, sizes), y=records.labels.numpy())
    return {"path": str(path), "sha256": save_part(path, part)}


def job(**changes: Any) -> dict[str, Any]:
    return spec(model={"kind": "matrix_factorization", "dim": 2}, **changes)


@pytest.mark.parametrize("sampling", [{"kind": "full_batch"}, {"kind": "poisson", "expected_batch_size": 10}])
@pytest.mark.parametrize("private", [True, False])
def test_an_attempt_from_stored_parts_to_the_model(tmp_path: Path, sampling: Any, private: bool) -> None:
    changes: dict[str, Any] = {} if private else {"privacy": None, "seed": 5}
    changes |= {"sampling": sampling, "length": {"steps": 20}}
    changes["evaluation"] = {"noise_mu": 1.0, "points": 2, "loss_bound": 16.0}
    parts = {name: stored(tmp_path / name, ratings(n, n)) for name, n in (("train", 40), ("holdout", 10))}
    start = start_of(job(**changes), SHAPE, public=not private, parts=parts, output_dir=tmp_path)
    supervisor = Supervisor(start | {"task": TASK, "features": features()})
    ended = run_thread(supervisor)
    assert ended.status == 0 and isinstance(ended.last, Finished)
    assert {name for name, _ in supervisor.metrics} == ({"loss"} if private else {"loss", "training_loss"})
    assert {step for name, step in supervisor.metrics if name == "loss"} == {10, 20}
    assert all(0 <= each["value"] <= 16 for each in supervisor.metrics.values() if each["name"] == "loss")
    again = Supervisor(supervisor.start, segments=supervisor.segments, started=supervisor.started)
    assert run_thread(again).status == 0 and again.resalts == 0, "a replay is bit for bit the same"


def test_private_jobs_never_release_the_training_loss() -> None:
    start = start_of(job(), SHAPE) | {"task": TASK, "features": features()}
    supervisor = Supervisor(start)
    run_direct(supervisor, ratings(), ratings(10))  # type: ignore[arg-type]
    assert {name for name, _ in supervisor.metrics} == {"loss"}


def test_parts_that_do_not_fit(tmp_path: Path) -> None:
    shape = Shape.model_validate(SHAPE)
    good = ratings()
    assert len(load_stored(Part.model_validate(stored(tmp_path / "a", good)), shape).y) == 40
    for name, sizes in (("rows beyond the lists", (USERS - 3, ITEMS + 3)), ("another shape", (USERS, ITEMS + 1))):
        with pytest.raises(DataDamagedError):
            load_stored(Part.model_validate(stored(tmp_path / name, good, sizes)), shape)
