"""The plan: what runs is what was charged, and nothing in it comes from the private number of records."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from core.contracts.slots import PartSlots
from core.errors import PrivacyError
from core.privacy.slot_numbers import rows_of_step
from tests.worker.support import Supervisor, dense, keys_of, mechanism, plan_of, records, run_direct, spec, start_of
from worker.clipping.linear_clipping import LinearClipping, LinearGradient
from worker.clipping.totals import Grid
from worker.messages import Keys
from worker.models.linear import Linear
from worker.noise.batch_sampling import FullBatch, PoissonSampler
from worker.noise.gaussian import GaussianRelease, PublicRelease
from worker.optimizers.descent import Descent
from worker.optimizers.dp_sgd import DpSgd
from worker.training.plan import SupersededError

SHAPE = {"records_train": 80, "records_holdout": 20, "features": 3, "outputs": 2, "sparse": False}
KEYS = Keys.model_validate(keys_of("s0"))
POISSON = {"kind": "poisson", "expected_batch_size": 16}


def test_full_batch_takes_its_numbers_from_the_mechanism() -> None:
    plan = plan_of(start_of(spec(clipping={"kind": "automatic", "max_grad_norm": 0.5}), SHAPE))
    assert (plan.steps, plan.sampling, plan.sample_rate, plan.expected_batch_size) == (10, "full_batch", 1.0, 80)
    # One pass of 240 rows holds the 224 slots of a part that was registered with 80 records.
    model = Linear(3, 2, rows_per_pass=240, dtype=torch.float32)
    assert plan.engine == LinearClipping(model, "automatic", 0.5, sums="float32", grid=Grid(224, 240))
    assert plan.numerics.rows_per_step == 224 and 1.0 < plan.numerics.sensitivity_slack < 1.0006
    assert plan.optimizer == DpSgd(Descent(0.5), momentum=0.9, free_step=True)
    assert isinstance(plan.sampler(KEYS, 79), FullBatch)
    assert isinstance(plan.gradient_release(KEYS), GaussianRelease)
    assert plan.evaluation_steps == (5, 10)


def test_poisson_takes_its_numbers_from_the_mechanism() -> None:
    plan = plan_of(start_of(spec(sampling=POISSON, runtime={"physical_batch_size": 4}), SHAPE))
    assert (plan.sampling, plan.sample_rate, plan.expected_batch_size) == ("poisson", 0.2, 16)
    assert isinstance(plan.sampler(KEYS, 81), PoissonSampler)
    assert plan.numerics.rows_per_pass == plan.model.rows_per_pass == 4
    assert plan.numerics.rows_per_step == rows_of_step(PartSlots(units=224, rows=224), 0.2)


@pytest.mark.parametrize("arithmetic", [None, 1, 2])
def test_a_private_job_that_an_earlier_release_admitted_is_superseded(arithmetic: int | None) -> None:
    """Its records would have no places. Without privacy it runs: nothing is claimed of its sums."""
    for public in (False, True):
        asked = spec(privacy=None) if public else spec()
        start = start_of(asked, SHAPE, public=public)
        numerics = plan_of(start).numerics.model_dump(mode="json", exclude={"arithmetic", "rows_per_step"})
        if arithmetic is not None:
            numerics |= {"arithmetic": arithmetic, "records_bound": 224, "draw": "gaps"}
        if public:
            assert plan_of(start | {"numerics": numerics}).mechanism is None
            continue
        with pytest.raises(SupersededError) as caught:
            plan_of(start | {"numerics": numerics})
        assert caught.value.code == "superseded"


@pytest.mark.parametrize("rows", [64, 16])
def test_a_job_keeps_the_passes_that_it_was_admitted_with(rows: int) -> None:
    """Of as many rows as an earlier release chose, also on the grid and in what its noise pays."""
    asked = spec(sampling=POISSON | {"expected_batch_size": 4}, model={"kind": "mlp", "hidden": [5]}, evaluation=None)
    start = start_of(asked, SHAPE | {"records_train": 5000})
    chosen = plan_of(start).numerics
    admitted = chosen.model_copy(update={"rows_per_pass": rows, "sensitivity_slack": 1.01})
    plan = plan_of(start | {"numerics": admitted.model_dump(mode="json")})
    assert chosen.rows_per_pass != plan.numerics.rows_per_pass == plan.model.rows_per_pass == rows
    assert chosen.rows_per_step is not None
    assert plan.numerics == admitted.of_numbers(plan.model.numbers, chosen.rows_per_step, 1)


def test_public_data_get_a_plan_without_noise() -> None:
    plan = plan_of(start_of(spec(privacy=None, sampling=POISSON, seed=3), SHAPE, public=True))
    assert plan.public and plan.sample_rate == 0.2 and plan.expected_batch_size == 16
    assert plan.engine == LinearGradient(Linear(3, 2, rows_per_pass=48, dtype=torch.float32), "float32")
    assert plan.order(KEYS) is None  # no record is private
    assert isinstance(plan.gradient_release(KEYS), PublicRelease)


@pytest.mark.parametrize(
    "change",
    [
        {"sampling": "poisson"},
        {"sample_rate": 0.5},
        {"steps": 11},
        {"noise_multiplier": 0.5},
        {"max_grad_norm": 2.0},
        {"clipping": "automatic"},
        {"expected_batch_size": 79},
    ],
)
def test_a_training_that_was_not_charged_is_refused(change: dict[str, Any]) -> None:
    start = start_of(spec(sampling=POISSON) if "sample_rate" in change else spec(), SHAPE)
    start["mechanism"]["training"] |= change
    with pytest.raises(PrivacyError):
        plan_of(start)


@pytest.mark.parametrize(
    "change", [{"noise_mu": 0.6}, {"times": 1}, {"records": 19}, {"what": "loss"}, {"account": "train"}]
)
def test_a_release_that_was_not_charged_is_refused(change: dict[str, Any]) -> None:
    start = start_of(spec(), SHAPE)
    start["mechanism"]["releases"][0] |= change
    with pytest.raises(PrivacyError):
        plan_of(start)
    start["mechanism"]["releases"] = []
    with pytest.raises(PrivacyError):
        plan_of(start)


@pytest.mark.parametrize("change", [{"target_delta": 1e-6}, {"releases": []}])
def test_other_disagreements_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(PrivacyError):
        plan_of(start_of(spec(), SHAPE) | {"mechanism": mechanism(spec(), SHAPE) | change})


def test_private_data_are_never_trained_on_without_a_mechanism_or_with_a_seed() -> None:
    with pytest.raises(PrivacyError):
        plan_of(start_of(spec(privacy=None), SHAPE, public=True) | {"data_public": False})
    with pytest.raises(PrivacyError):
        plan_of(start_of(spec(seed=1), SHAPE))
    with pytest.raises(PrivacyError):
        plan_of(start_of(spec(privacy=None), SHAPE, public=True) | {"mechanism": mechanism(spec(), SHAPE)})
    assert plan_of(start_of(spec(seed=1), SHAPE, public=True)).spec.seed == 1


def test_a_public_holdout_is_not_charged() -> None:
    plan = plan_of(start_of(spec(), SHAPE, holdout_public=True))
    assert plan.mechanism is not None and plan.mechanism.releases == ()


def test_no_holdout_to_score_on_is_refused() -> None:
    start = start_of(spec(), SHAPE) | {"shape": SHAPE | {"records_holdout": 0}}
    with pytest.raises(PrivacyError):
        plan_of(start)


@pytest.mark.parametrize(("steps", "points"), [(1, 1), (10, 3), (26, 1), (50, 7), (1000, 4), (40_000, 3)])
def test_blocks_cover_all_steps_and_end_at_every_evaluation(steps: int, points: int) -> None:
    plan = plan_of(start_of(spec(length={"steps": steps}, evaluation={"points": points}), SHAPE))
    size = min(max(math.ceil(steps / 25), 1), 1000)
    first, ends = 1, []
    while first <= steps:
        ends.append(plan.block_end(first))
        assert first <= ends[-1] < first + size
        first = ends[-1] + 1
    assert ends[-1] == steps == plan.evaluation_steps[-1]
    assert set(plan.evaluation_steps) <= set(ends) and len(plan.evaluation_steps) == points


def test_seeds_make_public_runs_repeatable_whatever_the_salt() -> None:
    plan = plan_of(start_of(spec(privacy=None, sampling=POISSON, seed=3), SHAPE, public=True))
    other = Keys.model_validate(keys_of("s1"))
    assert np.array_equal(plan.sampler(KEYS, 80).draw(1), plan.sampler(other, 80).draw(1))
    unseeded = plan_of(start_of(spec(privacy=None, sampling=POISSON), SHAPE, public=True))
    assert not np.array_equal(unseeded.sampler(KEYS, 80).draw(1), unseeded.sampler(other, 80).draw(1))


@pytest.mark.parametrize("sampling", [{"kind": "full_batch"}, {"kind": "poisson", "expected_batch_size": 128}])
def test_neighbouring_data_sets_have_one_plan(sampling: dict[str, Any]) -> None:
    """n = 999, 1000, 1001 private records: same divisor, steps, blocks, passes. Only what a record adds differs."""
    shape = SHAPE | {"records_train": 1000}
    x, y = dense(1001, 3)
    start = start_of(spec(sampling=sampling, evaluation=None), shape)
    blocks, movements, passes = [], [], set()
    for n in (999, 1000, 1001):
        supervisor = Supervisor(start)
        outcome, link = run_direct(supervisor, records(x[:n], y[:n]), None)
        blocks.append(
            ([each.model_dump() for each in supervisor.seen if each.kind == "block"], link.steps, outcome.steps)
        )
        passes.add(outcome.private_passes)
        plan = plan_of(start)
        release = plan.gradient_release(KEYS)
        assert isinstance(release, GaussianRelease)
        movements.append((release._divisor, plan.sample_rate, plan.steps))
    assert blocks[0] == blocks[1] == blocks[2] and len(passes) == 1
    assert len(set(movements)) == 1


def test_private_batches_are_hidden_in_blocks_of_many_steps() -> None:
    """The time of one step would tell how large its batch was."""
    changes = {"sampling": POISSON, "length": {"steps": 35}, "evaluation": {"noise_mu": 0.5}}
    plan = plan_of(start_of(spec(**changes), SHAPE))
    assert [plan.block_end(first) for first in (1, 11, 21)] == [10, 20, 35]  # 5 steps alone would be seen
    public = plan_of(start_of(spec(privacy=None, **changes), SHAPE, public=True))
    assert public.block_end(1) == 2


def test_a_job_that_ends_early_ends_with_no_short_block_either() -> None:
    """A replay that was not identical has fewer steps left to pay for."""
    changes = {"sampling": POISSON, "length": {"steps": 101}, "evaluation": {"noise_mu": 0.5}}
    plan = plan_of(start_of(spec(**changes), SHAPE))
    for last in range(50, 101):
        first = 41
        while (end := plan.block_end(first, last)) is not None:
            assert end - first + 1 >= 10 and end <= last
            first = end + 1
            if first > last:
                break
        assert last - first + 1 < 10


@pytest.mark.parametrize(("steps", "points"), [(10, 1), (21, 1), (25, 2), (101, 1), (999, 37), (1001, 100), (1954, 10)])
def test_no_block_of_a_private_poisson_job_is_shorter_than_ten_steps(steps: int, points: int) -> None:
    changes = {"sampling": POISSON, "length": {"steps": steps}, "evaluation": {"noise_mu": 0.5, "points": points}}
    plan = plan_of(start_of(spec(**changes), SHAPE))
    first, ends = 1, []
    while first <= steps:
        ends.append(plan.block_end(first))
        assert ends[-1] - first + 1 >= 10
        first = ends[-1] + 1
    assert ends[-1] == steps and set(plan.evaluation_steps) <= set(ends)
