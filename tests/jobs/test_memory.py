"""A job whose model no attempt can hold is refused at admission, with the numbers."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch

from app.admission.memory_estimate import (
    SORTED_SLOT_BYTES,
    MemoryEstimate,
    _places_bytes,
    check,
    estimate,
    least_bytes,
    warning,
)
from app.catalogue.model_kinds import layers
from app.catalogue.optimizer_kinds import CATALOGUE
from app.db.database import Database
from app.settings import Settings
from core.contracts import optimizers as specs
from core.contracts.dataset_spec import Tensor
from core.contracts.slots import PartSlots
from core.errors import InvalidRequest
from core.privacy.numerics import PublicSizes, numerics_of
from core.privacy.slot_numbers import unstated_slots
from tests.conftest import Api
from tests.factories import add_dataset, job_spec
from tests.jobs.test_planning import facts, spec_of
from tests.worker.support import Supervisor, dense, keys_of, plan_of, records, spec, start_of, training_of
from worker.clipping.engine import Clip
from worker.clipping.totals import Grid, GridTotals
from worker.data.secret_slots import SlotOrder
from worker.messages import Keys
from worker.noise.secret_places import TRAIN
from worker.optimizers.base import Observing, Preconditioned
from worker.optimizers.build import build_optimizer

MLP = {"kind": "mlp", "hidden": [7]}
NUMBERS = 2 * 7 + 7 + 7 * 2 + 2
SHAPE = {"records_train": 400, "records_holdout": 100, "features": 2, "outputs": 2, "sparse": False}


@pytest.mark.parametrize(("device", "each"), [("auto", 8), ("cuda", 8), ("cpu", 16)])
def test_the_limit_is_met_or_not(device: str, each: int) -> None:
    asked = spec_of(model=MLP, runtime={"device": device})
    on_processors = asked.runtime.on_processors
    trained = layers(asked.model, facts().features, facts().outputs)
    check(trained, None, on_processors=on_processors)
    check(trained, each * NUMBERS, on_processors=on_processors)
    with pytest.raises(InvalidRequest) as refused:
        check(trained, each * NUMBERS - 1, on_processors=on_processors)
    assert f"{NUMBERS} trained numbers" in str(refused.value)


@pytest.mark.parametrize("model", [{"kind": "linear"}, MLP], ids=["linear", "mlp"])
def test_an_attempt_holds_at_least_that(model: dict[str, Any]) -> None:
    """The parameters and the totals of a step, as an attempt makes them."""
    plan = plan_of(start_of(spec(model=model, runtime={"device": "cpu"}), SHAPE))
    parameters = plan.initial(Keys.model_validate(keys_of("x")))
    totals = GridTotals(parameters, Clip(1.0), Grid(1000, 48))
    held = sum(value.nbytes for value in parameters.values()) + totals._flat.nbytes
    assert held - 64 <= least_bytes(plan.model.numbers, on_processors=True) <= held


@pytest.mark.parametrize("kind", CATALOGUE)
@pytest.mark.parametrize("averaging", [None, {"kind": "tail"}], ids=["last", "average"])
def test_an_optimizer_keeps_what_it_says(kind: str, averaging: Any) -> None:
    """Besides single numbers, such as AdamBC's Φ."""
    asked: dict[str, Any] = {"learning_rate": 0.1, "averaging": averaging}
    if issubclass(CATALOGUE[kind].document, specs.Dp2Settings):
        asked |= {"learning_rate_adaptive": 0.1, "max_grad_norm_adaptive": 1.0, "delay": 2}
    if issubclass(CATALOGUE[kind].document, specs.PublicSideSettings):
        asked["public_dataset"] = "ds_1"
    settings: Any = CATALOGUE[kind].document.model_validate(asked)
    optimizer, parameters = build_optimizer(settings, 10), {"w": torch.zeros(3, 5, dtype=torch.float64)}
    state = optimizer.init(parameters)
    assert sum(each.numel() for each in state.values() if each.dim()) == 15 * settings.state_numbers
    assert all(each.dtype == torch.float64 for each in state.values())
    assert isinstance(optimizer, Observing) == settings.observes
    divides = isinstance(optimizer, Preconditioned) and optimizer.divisors(state, 3, 0) is not None
    assert averaging is not None or divides == settings.divides


@pytest.mark.parametrize("momentum", [{"momentum": 0.9}, {"free_step": True}])
def test_momentum_is_kept(momentum: dict[str, Any]) -> None:
    assert (specs.DpSgd(learning_rate=0.1).kept(), specs.DpSgd(learning_rate=0.1, **momentum).kept()) == (0, 1)


def estimated(**changes: Any) -> MemoryEstimate:
    asked = spec_of(model=MLP | {"hidden": [1000, 1000]}, **changes)
    sizes = PublicSizes(400, 1, 784, 10, False, PartSlots(units=484, rows=484))
    return estimate(asked, sizes, (0, 0), numerics_of(asked, sizes, Tensor(array="x")))


def test_the_estimate_holds_what_a_process_does() -> None:
    numbers, adam = 784 * 1000 + 1000 + 1000 * 1000 + 1000 + 1000 * 10 + 10, {"kind": "dp_adam", "learning_rate": 0.1}
    plain, moments = estimated(), estimated(optimizer=adam)
    assert moments.optimizer_bytes == 16 * numbers and plain.model_bytes == 12 * numbers
    assert least_bytes(numbers, on_processors=True) < plain.process_bytes < moments.process_bytes
    asked = {"optimizer": adam, "runtime": {"processes": 2, "shard": "optimizer"}}
    sharded = estimated(**asked)
    assert (sharded.optimizer_bytes, sharded.noise_bytes) == (8 * numbers, 4 * numbers)
    assert sharded.process_bytes < moments.process_bytes
    assert warning(plain, None) is None and warning(plain, plain.process_bytes) is None
    assert "MiB" in (warning(plain, plain.process_bytes - 1) or "")


def test_a_pass_holds_all_views_of_its_records() -> None:
    """The same room for a pass, with fewer records in it."""
    sizes, found = PublicSizes(60_000, 1, 3072, 10, False, PartSlots(units=63_064, rows=63_064)), []
    for views in (1, 4):
        augmentation = {"views": views, "transforms": [{"kind": "flip"}]}
        asked = spec_of(model={"kind": "cnn", "preset": "conv5"}, augmentation=augmentation)
        numerics = numerics_of(asked, sizes, Tensor(array="x"))
        found.append((estimate(asked, sizes, (0, 0), numerics).passes_bytes / views, numerics.rows_per_pass))
    assert found[0][0] / found[0][1] == pytest.approx(found[1][0] / found[1][1])


ON_TRAIN = {"on": "train", "noise_mu": 0.5}
SAMPLINGS = {
    "full batch": {"sampling": {"kind": "full_batch"}},
    "poisson": {"sampling": {"kind": "poisson", "expected_batch_size": 2000}, "evaluation": None},
    "poisson, scored": {"sampling": {"kind": "poisson", "expected_batch_size": 2000}, "evaluation": ON_TRAIN},
    "cyclic": {"sampling": {"kind": "cyclic", "batches": 5}, "evaluation": None},
}


@pytest.mark.parametrize("name", SAMPLINGS)
def test_the_places_of_records_in_memory_are_counted(name: str) -> None:
    """By slots: what an attempt allocates for them at its peak, and the records of a part that is full."""
    slots = unstated_slots(20_000)
    sizes = PublicSizes(20_000, 1, 2, 2, False, PartSlots(units=slots, rows=slots))
    asked, shape = spec_of(**SAMPLINGS[name]), SHAPE | {"records_train": 20_000}
    numerics = numerics_of(asked, sizes, Tensor(array="x"))
    supervisor = Supervisor(start_of(spec(**SAMPLINGS[name] | {"evaluation": None}), shape))
    x, y = dense(slots, 2)
    loop = training_of(supervisor, records(x, y), None)
    whole_part = name in ("full batch", "poisson, scored")
    draws = [loop._randomness.sampler.draw(step) for step in range(1, 6)]
    tracemalloc.start()
    if whole_part:
        loop._batches._injections.clear()
        assert len(loop._batches.whole(loop._batches.train, TRAIN)) == slots
    for step, numbers in enumerate([] if whole_part else draws, start=1):
        assert numbers is not None
        loop._batches._in_rows(step, numbers, loop._plan.rows_of(len(numbers)), loop._randomness.order)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    counted = _places_bytes(asked, sizes, numerics, loaded=True)
    assert peak < counted < 3 * peak
    kept = sum(each.nbytes for each in (x, y)) - y.nbytes
    whole = estimate(asked, sizes, (0, 0), numerics).records_bytes
    assert whole - counted == kept * (2 if name == "full batch" else 1), "a full batch's passes are kept"


def test_a_sorted_part_s_places_are_its_slots() -> None:
    slots = np.arange(100_000)
    held = SlotOrder(slots, None, 200_000)._slots.nbytes
    assert held == SORTED_SLOT_BYTES * len(slots)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"attempt_memory_bytes": 2**28})


def test_a_model_beyond_the_operators_limit_costs_nothing(api: Api, db: Database) -> None:
    dataset, large = add_dataset(db), {"kind": "mlp", "hidden": [4150, 4150]}
    for path in ("/v1/quotes", "/v1/jobs"):
        headers = api.headers("analyst", **{"Idempotency-Key": "one"})
        answer = api.client.post(path, json=job_spec(dataset, model=large), headers=headers)
        assert answer.status_code == 422, answer.text
        (error,) = answer.json()["errors"]
        assert error["pointer"] == "/model" and "264 MiB" in error["detail"] and "256 MiB" in error["detail"]
    ledger = api.client.get(f"/v1/datasets/{dataset}/ledger", headers=api.headers("owner")).json()
    assert ledger["accounts"]["train"]["held"] == 0
    fits = job_spec(dataset, model={"kind": "mlp", "hidden": [4000, 4000]})
    quote = api.client.post("/v1/quotes", json=fits, headers=api.headers("analyst"))
    assert quote.status_code == 200
    assert quote.json()["memory"]["process_bytes"] > 2**28 and "256 MiB" in quote.json()["warnings"][-1]
    small = api.client.post("/v1/quotes", json=job_spec(dataset), headers=api.headers("analyst")).json()
    assert small["memory"]["process_bytes"] < 2**28 and small["warnings"] == []


def test_answers_beyond_the_operators_limit_cost_nothing(api: Api, db: Database) -> None:
    """Of statistics: refused before the price, from public sizes. Fewer cells fit, and the quote has their memory."""
    numbers = [{"kind": "number", "name": name, "range": [0, 1]} for name in ("a", "b")]
    dataset = add_dataset(db, features={"kind": "table", "columns": numbers})

    def job(bins: int) -> dict[str, Any]:
        queries = [{"kind": "contingency", "columns": ["a", "b"], "bins": bins}]
        return {"kind": "statistics", "dataset": dataset, "privacy": {"target_epsilon": 1.0}, "queries": queries}

    for path in ("/v1/quotes", "/v1/jobs"):
        headers = api.headers("analyst", **{"Idempotency-Key": "many"})
        answer = api.client.post(path, json=job(300), headers=headers)
        assert answer.status_code == 422, answer.text
        (error,) = answer.json()["errors"]
        assert error["pointer"] == "/queries" and "256 MiB" in error["detail"] and "fewer cells" in error["detail"]
    ledger = api.client.get(f"/v1/datasets/{dataset}/ledger", headers=api.headers("owner")).json()
    assert ledger["accounts"]["train"]["held"] == 0
    quote = api.client.post("/v1/quotes", json=job(20), headers=api.headers("analyst")).json()
    assert quote["memory"]["answers_bytes"] == 4_500 * (20 * 20 + 40)
    assert quote["memory"]["process_bytes"] < 2**28 and quote["warnings"] == []
