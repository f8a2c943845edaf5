"""The kind `network`: two neighbouring data sets, and guesses which of them a job trained on."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from core.contracts.dataset_spec import DatasetSpec
from core.privacy import events, pld
from core.privacy.slot_numbers import default_slots
from scrimp.audit.audit_statistics import Claim, Finding, Guesses, examine_guesses, lower_bound
from scrimp.audit.audited_kinds import KINDS, Kind
from scrimp.audit.claimed_curve import claim_of
from scrimp.audit.planting import DECLARED_NEIGHBOURS, FEATURES, OTHERS, plant_neighbours
from scrimp.audit.released import NETWORK_TENSORS, output_at
from scrimp.audit.run import FEWEST_GUESSES, job_spec
from tests.by_night import but
from tests.by_place import ByPlace
from tests.e2e.faulty_attempt import in_order
from tests.worker.support import Supervisor, keys_of, plan_of, records, run_direct, start_of
from worker.noise.secret_places import RandomOrder

KIND, SLOPES = (next(kind for kind in KINDS if kind.name == name) for name in ("network", "network dp_zo"))
LEVEL = 1e-3 / 72  # of a quick run
DELTA = 1e-5
SLOTS = default_slots(DECLARED_NEIGHBOURS)
SHAPE = {
    "records_train": DECLARED_NEIGHBOURS,
    "records_holdout": 0,
    "slots": {"train": {"units": SLOTS, "rows": SLOTS}},
    "features": FEATURES,
    "outputs": 1,
    "sparse": False,
}


def tables(folder: Path, seed: int = 0) -> list[NDArray[np.float64]]:
    pair = plant_neighbours(KIND, ("without", "with"), folder, np.random.default_rng(seed))
    return [np.loadtxt(each.file, delimiter=",", skiprows=1) for each in pair]


def certified(kind: Kind = KIND) -> tuple[float, Claim]:
    """ε and the claim, as the certificate of such a job states them."""
    event = events.noisy_sums(kind.sample_rate, kind.noise_multiplier, kind.steps)
    epsilon = pld.epsilon(event, DELTA)
    return epsilon, claim_of(event.model_dump(mode="json"), epsilon, DELTA)


def audited(folder: Path, *, by_place: bool, kind: Kind = KIND) -> tuple[Guesses, Finding]:
    """The audit of attempts in this process."""
    truth, guesses = np.random.default_rng(11).random(FEWEST_GUESSES) < 0.5, []
    data = tables(folder)
    pair = [records(table[:, :-1].astype(np.float32), table[:, -1]) for table in data]
    start = start_of(job_spec(kind, "ds_1", DECLARED_NEIGHBOURS), SHAPE)
    with ByPlace(plan_of(start).numerics.rows_per_pass) if by_place else nullcontext():
        for number, present in enumerate(truth):
            segment = {"from_step": 1, **keys_of(f"job {number}"), "recorded": []}
            outcome, _ = run_direct(Supervisor(start, [segment]), pair[int(present)], None)
            assert outcome.steps == kind.steps
            tensors = {name: outcome.parameters[name].double().numpy().ravel() for name in NETWORK_TENSORS}
            guesses.append(output_at(data[0][0, :-1], tensors) < 0.0)
    finding = examine_guesses(np.array(guesses), truth, certified(kind)[1], LEVEL)
    assert finding.guesses is not None
    return finding.guesses, finding


def test_the_data_sets_differ_in_one_record(tmp_path: Path) -> None:
    pair = plant_neighbours(KIND, ("without", "with"), tmp_path, np.random.default_rng(1))
    specs = [DatasetSpec.model_validate(each.spec | {"name": "one"}) for each in pair]
    assert specs[0] == specs[1]
    without, with_x = (each.file.read_text().splitlines() for each in pair)
    assert with_x[2:] == without[1:] and with_x[1] == ",".join("0" * (FEATURES + 1))
    assert len(without) == OTHERS + 1 and len(set(with_x)) == len(with_x)
    assert [bool(each.inside[0]) for each in pair] == [False, True]
    first, second = (tables(tmp_path, seed)[0] for seed in (1, 2))
    assert not np.array_equal(first, second), "a service refuses content that it has"


def test_a_pass_has_an_even_number_of_rows() -> None:
    """Else a record's row of its pass would not tell whether x stands before it."""
    numerics = plan_of(start_of(job_spec(KIND, "ds_1", DECLARED_NEIGHBOURS), SHAPE)).numerics
    assert numerics.rows_per_pass % 2 == 0 and (numerics.rows_per_step or 0) > 3 * numerics.rows_per_pass


@pytest.mark.parametrize("by_place", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_records_in_rows_of_their_own_reveal_nobody(tmp_path: Path, by_place: bool) -> None:
    """Whatever kernels do with places. By day with kernels that tell them apart."""
    guesses, finding = audited(tmp_path, by_place=by_place)
    assert finding.stands and stats.binomtest(guesses.right, guesses.trials).pvalue > 1e-3


@pytest.mark.parametrize("kind", but([KIND, SLOPES], lambda kind: kind is KIND), ids=lambda kind: kind.name)
def test_packed_records_are_found_where_kernels_tell_places_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    monkeypatch.setattr(RandomOrder, "of", in_order)
    guesses, finding = audited(tmp_path, by_place=True, kind=kind)
    assert not finding.stands and guesses.epsilon(DELTA) > certified(kind)[0]


def test_an_accuracy_becomes_an_epsilon() -> None:
    """Randomized response with e^ε = 3 guesses right in three cases of four."""
    assert Guesses(75, 100, 0.75).epsilon(0.0) == pytest.approx(np.log(3.0))
    assert Guesses(75, 100, 0.75).epsilon(0.1) == pytest.approx(np.log(2.6))
    assert Guesses(5, 10, 0.22).epsilon(0.1) == Guesses(1, 2, 0.0).epsilon(0.1) == 0.0


@pytest.mark.parametrize("right", [23, 24, 1, 0])
def test_right_and_wrong_guesses_are_tested_alike(right: int) -> None:
    truth = np.arange(24) % 2 == 0
    guesses = np.where(np.arange(24) < right, truth, ~truth)
    found = examine_guesses(guesses, truth, Claim.gaussian(0.05), LEVEL)
    assert (found.present, found.absent) == (12, 12) and not found.stands
    assert found.guesses == Guesses(right, 24, lower_bound(max(right, 24 - right), 24, LEVEL))


def test_a_right_mechanism_is_accused_no_more_often_than_said() -> None:
    """Exactly, for the most accurate guesses that a Gaussian mechanism allows."""
    mu, trials, level = 0.3, 40, 0.02
    claim, truth = Claim.gaussian(mu), np.ones(trials, dtype=bool)
    accused = [not examine_guesses(np.arange(trials) < hits, truth, claim, level).stands for hits in range(trials + 1)]
    chance = stats.binom.pmf(np.arange(trials + 1), trials, stats.norm.cdf(mu / 2.0))
    assert 0.0 < chance[accused].sum() <= 2.0 * level


def test_no_guesses_are_no_test() -> None:
    with pytest.raises(ValueError, match="at least one job"):
        examine_guesses(np.zeros(0, dtype=bool), np.zeros(0, dtype=bool), Claim.gaussian(1.0), LEVEL)


def test_an_output_is_the_network_s() -> None:
    """By hand: max(0, 1 · 2 − 3 · 1 + 0.5) = 0 and max(0, 2 + 1 − 1) = 2; 4 · 0 + 5 · 2 + 0.25."""
    values = ([1.0, -3.0, 1.0, 1.0], [0.5, -1.0], [4.0, 5.0], [0.25])
    tensors = {name: np.array(each) for name, each in zip(NETWORK_TENSORS, values, strict=True)}
    assert output_at(np.array([2.0, 1.0]), tensors) == 10.25
