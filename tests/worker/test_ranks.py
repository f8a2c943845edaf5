"""One job on many processes: the same model, to the bit, for every number of ranks; and what must not pass for that."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import worker.data.secret_slots
from core.privacy.numerics import grid_slack, grid_unit, numerics_of
from tests.worker.gang import together, trained
from tests.worker.support import Supervisor, dense, keys_of, plan_of, records, spec, start_of
from tests.worker.test_adaptive import ADAPTIVE
from tests.worker.test_preconditioned import dp2
from worker.clipping.bookkeeping import Bookkeeping
from worker.clipping.engine import Clip
from worker.clipping.totals import FloatTotals, Grid, GridTotals
from worker.data.ranks import ALONE, Alone, Ranks, RanksError, own_rows
from worker.data.secret_slots import Slotted
from worker.messages import Keys
from worker.models.base import Parameters
from worker.models.dropout import without_dropout
from worker.noise.generator import GaussianGenerator

N, FEATURES, STEPS = 230, 5, 12
SHAPE = {"records_train": N, "records_holdout": 0, "features": FEATURES, "outputs": 2, "sparse": False}
TRAIN = records(*dense(N, FEATURES))
KEY = bytes(range(32))
POISSON = {"kind": "poisson", "expected_batch_size": 120}
CYCLIC = {"kind": "cyclic", "batches": 4}
MLP = {"kind": "mlp", "hidden": [4], "dropout": 0.25}
ADAM = {"kind": "dp_adam", "learning_rate": 0.1}
ZO = {"kind": "dp_zo", "learning_rate": 0.1}
OPACUS = {"kind": "flat", "max_grad_norm": 0.5, "engine": "opacus"}
SIZES = (1, 2, 3, 4)
JOBS: dict[str, dict[str, Any]] = {
    "DP-SGD, full batch, float32 sums": {},
    "DP-SGD, float64 sums": {"sampling": POISSON, "runtime": {"dtype": "float64"}},
    "DP-SGD, network with dropout": {"sampling": POISSON, "model": MLP},
    "DP-Adam": {"sampling": POISSON, "optimizer": ADAM, "model": MLP},
    "DP2-RMSProp": {"sampling": POISSON, "optimizer": dp2("dp2_rmsprop")},
    "DP2-RMSProp, network": {"sampling": POISSON, "optimizer": dp2("dp2_rmsprop"), "model": MLP},
    "adaptive clipping": {"sampling": POISSON, "clipping": ADAPTIVE, "model": MLP},
    "Opacus": {"sampling": POISSON, "model": MLP, "clipping": OPACUS},
    "correlated noise": {"sampling": CYCLIC, "noise": {"kind": "correlated", "decay": 0.5}},
    "a largest batch": {"sampling": POISSON | {"largest_batch": 130}, "model": MLP},
    "DP-ZO, network with dropout": {"sampling": POISSON, "model": MLP, "optimizer": ZO},
    "few records": {"sampling": POISSON | {"expected_batch_size": 3}},
}


def start(name: str | dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A job on public data with privacy and a seed, in passes of 48 records."""
    job = name if isinstance(name, dict) else JOBS[name]
    small = {"physical_batch_size": 48, **job.get("runtime", {})}
    asked = {"evaluation": None, "length": {"steps": STEPS}, "seed": 7, **job, "runtime": small, **changes}
    made = start_of(spec(**asked), SHAPE, public=True)
    if asked.get("clipping", {}).get("kind") == "adaptive":
        made["mechanism"]["training"]["adaptive"] = ADAPTIVE["adaptive"]
    return made


@dataclass(frozen=True)
class At(Alone):
    """A rank's place, without the others."""

    rank: int
    size: int


def same(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.filterwarnings("ignore")  # Opacus silences torch's warnings, which threads cannot do for themselves
@pytest.mark.parametrize("name", JOBS)
def test_every_number_of_ranks_gives_the_same_model_and_record(name: str) -> None:
    """Each rank ends with the same parameters, and the one record has the same digests, whatever W is."""
    known = Supervisor(start(name))
    wanted = trained(known, TRAIN, 1)[0].parameters
    assert all(bool(torch.isfinite(each).all()) for each in wanted.values())
    for size in SIZES[1:]:
        record = Supervisor(start(name))
        found = trained(record, TRAIN, size)
        assert all(same(each.parameters, wanted) for each in found)
        assert record.digests() == known.digests() and record.started == known.started == STEPS
        assert {each.steps for each in found} == {STEPS}


def test_fewer_ranks_go_on_where_more_stopped() -> None:
    """Three ranks began; one repeats their steps and goes on: nothing is charged or noised a second time."""
    wanted = trained(Supervisor(start("DP-Adam", length={"steps": 30})), TRAIN, 1)[0].parameters
    first = Supervisor(start("DP-Adam", length={"steps": 30}))
    trained(first, TRAIN, 3)
    (segment,) = first.segments
    begun = [each for each in segment["recorded"] if each["last_step"] < 20]
    begun.append({"first_step": begun[-1]["last_step"] + 1, "last_step": begun[-1]["last_step"] + 10, "digest": None})
    started = begun[-1]["last_step"]
    for size in (2, 1):
        record = Supervisor(first.start, segments=[segment | {"recorded": list(begun)}], started=started)
        assert same(trained(record, TRAIN, size)[0].parameters, wanted)
        assert record.resalts == 0 and record.started == 30


# --- Faults that the comparison above must find ---


@dataclass(frozen=True)
class Through:
    """Ranks with a planted fault."""

    of: Ranks

    @property
    def rank(self) -> int:
        return self.of.rank

    @property
    def size(self) -> int:
        return self.of.size

    def add_up(self, integers: Tensor) -> None:
        self.of.add_up(integers)

    def add_up_at(self, rank: int, integers: Tensor) -> None:
        self.of.add_up_at(rank, integers)

    def from_rank(self, rank: int, numbers: Tensor) -> None:
        self.of.from_rank(rank, numbers)

    def agree(self, what: bytes) -> bool:
        return self.of.agree(what)

    def least(self, number: int) -> int:
        return self.of.least(number)

    def from_first(self, message: bytes = b"") -> bytes:
        return self.of.from_first(message)


class NoiseOnEveryRank(Through):
    """Each rank adds the noise of the step to its own share: its std is W σ with one key, √W σ with several."""

    def add_up(self, integers: Tensor) -> None:
        noise = GaussianGenerator(KEY).noise(1, 0, len(integers) - 2)
        integers[:-2] += (noise / grid_unit(2 * N + 64, 48, 1.0)).long()
        self.of.add_up(integers)


class FloatReduce(Through):
    """Adds float32 numbers instead of integers."""

    def add_up(self, integers: Tensor) -> None:
        parts = []
        for rank in range(self.size):
            of_rank = integers.clone()
            self.of.from_rank(rank, of_rank)
            parts.append(of_rank.float())
        integers.copy_(torch.stack(parts).sum(dim=0).long())


def faulty(fault: type[Through], size: int = 3) -> dict[str, Tensor]:
    record = Supervisor(start("DP-SGD, float64 sums"))
    return trained(record, TRAIN, size, lambda ranks: plan_of(record.start, fault(ranks)))[0].parameters


def test_a_dropped_share_and_noise_on_every_rank_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = trained(Supervisor(start("DP-SGD, float64 sums")), TRAIN, 1)[0].parameters
    assert same(faulty(Through), wanted)
    assert not same(faulty(NoiseOnEveryRank), wanted)

    def dropped(count: int, rows: int, ranks: Ranks) -> Any:
        own = own_rows(count, rows, ranks)
        return own[:0] if ranks.rank == 2 else own  # as a sampler that leaves a short share out

    monkeypatch.setattr(worker.data.secret_slots, "own_rows", dropped)
    assert not same(faulty(Through), wanted)


def private_sums(size: int, wrap: Any = lambda ranks: ranks) -> tuple[Parameters, Tensor]:
    """A query's sum and count before their noise, over all ranks."""
    made = start("adaptive clipping")

    def work(ranks: Ranks) -> tuple[Parameters, Tensor]:
        plan = plan_of(made, wrap(ranks))
        own = Slotted(TRAIN, np.arange(N)).own(48, ranks)
        plan.begin_passes(Keys.model_validate(keys_of("s0")), 1)
        parameters = {name: value + 0.1 for name, value in plan.model.init(KEY).items()}
        return plan.engine.private_sum_and_count(parameters, own, Clip(0.3))  # type: ignore[attr-defined, no-any-return]

    found = [work(ALONE)] if size == 1 else together(size, work)
    assert all(same(each[0], found[0][0]) and torch.equal(each[1], found[0][1]) for each in found)
    return found[0]


def test_private_sums_and_counts_have_the_same_bits_and_a_float_reduction_has_others() -> None:
    """A release rounds to its own grid, which hides a last bit: so the sums themselves are compared."""
    wanted, count = private_sums(1)
    assert float(count) != 0.0
    for size in SIZES[1:]:
        found, counted = private_sums(size)
        assert same(found, wanted) and torch.equal(counted, count)
    assert not same(private_sums(4, FloatReduce)[0], wanted)


def test_float64_sums_would_depend_on_the_number_of_ranks() -> None:
    """Why totals are integers: the same passes, added in float64 rank by rank."""
    made = start("adaptive clipping")
    plan = plan_of(made)
    engine = Bookkeeping[Any](
        plan.model.module(),  # type: ignore[attr-defined]
        plan.model.record_losses,  # type: ignore[attr-defined]
        rows=48,
        kind="flat",
        max_grad_norm=0.3,
        dtype=plan.model.dtype,
    )
    parameters = {name: value + 0.1 for name, value in plan.model.init(KEY).items()}

    def summed(size: int) -> Parameters:
        plan.begin_passes(Keys.model_validate(keys_of("s0")), 1)
        with without_dropout(engine._module):
            shares = [TRAIN.select(own_rows(N, 48, At(rank, size))) for rank in range(size)]
            sums = [engine.private_sum(parameters, each) for each in shares]
        return {name: torch.stack([each[name] for each in sums]).sum(dim=0) for name in parameters}

    assert not same(summed(1), summed(2)) and same(summed(1), summed(1))


# --- Totals ---


def test_totals_are_exact_in_any_order_and_within_the_slack() -> None:
    generator = torch.Generator().manual_seed(3)
    like = {"w": torch.zeros(40, 5), "b": torch.zeros(7)}
    passes = [
        {name: torch.randn(each.shape, generator=generator, dtype=torch.float64) for name, each in like.items()}
        for _ in range(9)
    ]

    def total(order: list[int], *, exact: bool = False) -> Parameters:
        made = FloatTotals(like, Clip(0.5)) if exact else GridTotals(like, Clip(0.5), Grid(4 * N, 4 * N // 9))
        for at in order:
            for name, value in passes[at].items():
                made.add(name, value.clone())
        return made.finish()

    known, other = total(list(range(9))), total([4, 7, 0, 8, 2, 6, 1, 5, 3])
    assert same(known, other)
    side = 0.5 * 0.5 * grid_slack(4 * N, 4 * N // 9, 207, 1)  # of C, one pass on one of two sides
    for order in ([4], list(range(9))):
        found, exact = total(order), total(order, exact=True)
        off = math.sqrt(sum(float((found[name] - value).square().sum()) for name, value in exact.items()))
        assert 0.0 < off <= len(order) * side


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_sum_that_is_not_finite_on_one_rank_reaches_every_rank(broken: float) -> None:
    def work(ranks: Ranks) -> Parameters:
        made = GridTotals({"w": torch.zeros(3)}, Clip(1.0), Grid(100, 10, ranks))
        made.add("w", torch.tensor([1.0, broken if ranks.rank == 1 else 2.0, 3.0], dtype=torch.float64))
        return made.finish()

    for found in together(2, work):
        assert bool(found["w"].isnan().all())


@pytest.mark.parametrize(
    ("records", "rows", "norm"), [(64, 48, 1e-6), (2**40, 65_520, 1e6), (1000, 240, 1.0), (10**7, 1, 0.3)]
)
def test_the_largest_sums_fit(records: int, rows: int, norm: float) -> None:
    """A whole total into 64 bits, and a pass's sum into the digits that one addition rounds; both signs, and ties."""
    unit = grid_unit(records, rows, norm)
    assert math.frexp(unit)[0] == 0.5, "a power of two: scaling is exact"
    assert 1.01 * records * norm / unit < 2.0**62 and 1.01 * rows * norm / unit < 2.0**51
    assert 1.01 * records * norm / unit > 2.0**60 or 1.01 * rows * norm / unit > 2.0**49, "no finer unit fits"
    largest = 1.01 * rows * norm
    sums = [largest, largest, -largest, 0.0, 2.5 * unit, -3.5 * unit, 0.49 * unit, -0.0]
    made = GridTotals({"w": torch.zeros(2)}, Clip(norm), Grid(records, rows))
    for each in sums:
        made.add("w", torch.tensor([each, -each], dtype=torch.float64))
    wanted = float(sum(round(Fraction(each) / Fraction(unit)) for each in sums)) * unit
    assert made.finish()["w"].tolist() == [wanted, -wanted]


def test_shares_are_whole_passes_and_every_record_is_in_one() -> None:
    for size in SIZES:
        for count in (0, 1, 47, 48, 49, 230):
            shares = [own_rows(count, 48, At(rank, size)) for rank in range(size)]
            assert sorted(np.concatenate(shares).tolist()) == list(range(count))
            for rank, share in enumerate(shares):
                assert all(place // 48 % size == rank for place in share)
                assert all(one // 48 == share[at // 48 * 48] // 48 for at, one in enumerate(share))


# --- What is paid, and what ranks refuse ---


def test_a_private_job_s_totals_are_integers_whose_grid_is_paid_for() -> None:
    made = start_of(spec(evaluation=None), SHAPE)
    plan, message = plan_of(made), Supervisor(made).message()
    stored = numerics_of(message.spec, message.shape.public_sizes(message.mechanism), message.features)
    assert stored.totals == "integers" and stored.rows_per_step == 2 * N + 64
    paid = stored.sensitivity_slack + grid_slack(2 * N + 64, stored.rows_per_pass, plan.model.numbers, 1)
    assert plan.numerics == plan_of(made, At(0, 2)).numerics
    assert plan.numerics.sensitivity_slack == paid > stored.sensitivity_slack
    assert plan_of(start_of(spec(privacy=None, evaluation=None), SHAPE, public=True)).numerics.totals == "float64"


def test_ranks_that_differ_end() -> None:
    """A rank that reached another state ends every rank before the state is recorded."""

    def work(ranks: Ranks) -> bool:
        return ranks.agree(bytes([ranks.rank] * 32))

    assert together(3, work) == [False] * 3

    class Differs(Through):
        def agree(self, what: bytes) -> bool:
            return self.of.agree(bytes(32) if self.rank == 1 else what)

    with pytest.raises(RanksError):
        faulty(Differs)


# --- Jobs without privacy: sums of float64 passes, so equal up to rounding ---

WITHOUT: dict[str, dict[str, Any]] = {
    "linear": {"optimizer": {"kind": "dp_sgd", "learning_rate": 0.1}},
    "network with dropout": {"model": MLP, "sampling": POISSON},
    "DP-Adam, network": {"model": MLP, "optimizer": ADAM | {"learning_rate": 0.01}},
}


def public_job(name: str, shard: str = "none") -> dict[str, Any]:
    made = start(WITHOUT[name] | {"privacy": None, "runtime": {"dtype": "float64"}})  # float32 passes add up exactly
    made["spec"]["runtime"] |= {"shard": shard, "processes": 3}
    return made


@pytest.mark.parametrize("name", WITHOUT)
@pytest.mark.parametrize("shard", ["none", "optimizer"])
def test_without_privacy_ranks_give_the_same_model_up_to_rounding(name: str, shard: str) -> None:
    wanted = trained(Supervisor(public_job(name)), TRAIN, 1)[0].parameters
    for size in (2, 3):
        records = [Supervisor(public_job(name, shard)) for _ in range(2)]
        found = [trained(record, TRAIN, size) for record in records]
        assert all(same(each.parameters, found[0][0].parameters) for pair in found for each in pair)
        assert records[0].digests() == records[1].digests(), "a replay on as many ranks repeats each bit"
        for each, value in wanted.items():
            torch.testing.assert_close(found[0][0].parameters[each], value, rtol=1e-5, atol=1e-7)


def test_a_job_without_privacy_begins_again_on_fewer_ranks() -> None:
    """Its sums round otherwise, so the replay differs: it starts anew, at no charge, and ends with all its steps."""
    wanted = trained(Supervisor(public_job("DP-Adam, network")), TRAIN, 1)[0].parameters
    first = Supervisor(public_job("DP-Adam, network"))
    trained(first, TRAIN, 3)
    (segment,) = first.segments
    recorded = [each if each["last_step"] < 6 else each | {"digest": None} for each in segment["recorded"]]
    record = Supervisor(first.start, segments=[segment | {"recorded": recorded}], started=STEPS, hold=2 * STEPS)
    (outcome,) = trained(record, TRAIN, 1)
    assert record.resalts == 1 and outcome.steps == STEPS and same(outcome.parameters, wanted)


def test_a_float_sum_over_ranks_has_one_order() -> None:
    numbers = [torch.tensor([1e17, 1.0, 0.1, -1.0, 3.0]), torch.tensor([1.0, 1e17, 0.2, 1e17, 1.0])]
    numbers.append(torch.tensor([-1e17, -1e17, 0.3, -1e17, 0.5]))
    numbers = [each.double() for each in numbers]

    def work(ranks: Ranks) -> Tensor:
        own = numbers[ranks.rank].clone()
        ranks.add_up(own)
        return own

    wanted = numbers[0] + numbers[1] + numbers[2]
    assert all(torch.equal(each, wanted) for each in together(3, work, piece_bytes=16))
