"""Sharded optimizer state: the same model and record, to the bit, as on one rank; and what must not pass for that."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from core.errors import PrivacyError
from tests.worker.gang import together, trained
from tests.worker.optimizing import OPTIMIZERS, copies, gradients, info
from tests.worker.optimizing import parameters as some_parameters
from tests.worker.support import Supervisor, plan_of
from tests.worker.test_preconditioned import dp2
from tests.worker.test_ranks import ADAM, JOBS, MLP, POISSON, SIZES, STEPS, TRAIN, At, Through, same, start
from worker.clipping.engine import Clip
from worker.clipping.totals import Grid, GridTotals
from worker.data.ranks import Ranks
from worker.data.shards import Shards
from worker.noise.gaussian import CorrelatedRelease, GaussianRelease, NoisedGradient
from worker.optimizers.base import Observing, Optimizer, Preconditioned, State, StepInfo
from worker.optimizers.pieces import flattened
from worker.optimizers.sharded import Sharded, sharded
from worker.telemetry import state_digest
from worker.training.plan import Plan

KEY = bytes(range(32))
TAIL = {"kind": "tail", "share": 0.5}
STATES: dict[str, dict[str, Any]] = {
    "DP-SGD, full batch, float32 sums": JOBS["DP-SGD, full batch, float32 sums"],
    "DP-Adam": JOBS["DP-Adam"],
    "DP-AdamBC": {"sampling": POISSON, "model": MLP, "optimizer": {"kind": "dp_adambc", "learning_rate": 0.1}},
    "DP2-RMSProp": JOBS["DP2-RMSProp"],
    "DP2-RMSProp, extra query": {
        "sampling": POISSON,
        "model": MLP,
        "optimizer": dp2("dp2_rmsprop", variant="extra_query"),
    },
    "adaptive clipping": JOBS["adaptive clipping"] | {"optimizer": {"kind": "dp_adambc", "learning_rate": 0.1}},
    "averaging": {"sampling": POISSON, "optimizer": ADAM | {"averaging": TAIL}},
    "averaged momentum": {"optimizer": {"kind": "dp_sgd", "learning_rate": 0.1, "momentum": 0.9, "averaging": TAIL}},
    "scale, then privatize": {"optimizer": {"kind": "scale_then_privatize", "learning_rate": 0.1, "eps_scale": 1.0}},
    "few records": JOBS["few records"],
}
LIKE = {"w": torch.zeros(2, 5), "b": torch.zeros(3), "none": torch.zeros(0, 4), "c": torch.zeros(())}


def made(name: str, shard: str = "optimizer", **changes: Any) -> dict[str, Any]:
    job = start(STATES[name], **changes)
    job["spec"]["runtime"] |= {"shard": shard, "processes": 4}
    return job


@pytest.mark.parametrize("name", STATES)
def test_every_number_of_ranks_gives_the_same_model_and_record(name: str) -> None:
    known = Supervisor(made(name, "none"))
    wanted = trained(known, TRAIN, 1)[0].parameters
    for size in SIZES:
        record = Supervisor(made(name))
        found = trained(record, TRAIN, size)
        assert all(same(each.parameters, wanted) for each in found)
        assert record.digests() == known.digests() and record.started == known.started == STEPS


def test_a_rank_keeps_the_state_of_what_it_owns_alone() -> None:
    made_for = plan_of(made("DP-Adam"))
    parameters = flattened(made_for.model.init(KEY))
    held = []
    for rank in range(3):
        shards = Shards.of(parameters, At(rank, 3))
        state = Sharded(made_for.optimizer, shards).init(parameters)
        assert sum(each.numel() for each in state.values()) == 2 * sum(span.count for span in shards.own.values())
        assert all(each.untyped_storage().nbytes() <= 8 * len(state) * 40 for each in state.values())
        held.append(sum(span.count for span in shards.own.values()))
    assert sum(held) == sum(each.numel() for each in parameters.values()) and max(held) - min(held) <= 1


def test_fewer_ranks_go_on_where_more_stopped() -> None:
    """Four ranks began; three, and two, and one repeat their steps and go on: nothing is charged again."""
    wanted = trained(Supervisor(made("DP-AdamBC", "none", length={"steps": 30})), TRAIN, 1)[0].parameters
    first = Supervisor(made("DP-AdamBC", length={"steps": 30}))
    trained(first, TRAIN, 4)
    (segment,) = first.segments
    begun = [each for each in segment["recorded"] if each["last_step"] < 20]
    begun.append({"first_step": begun[-1]["last_step"] + 1, "last_step": begun[-1]["last_step"] + 10, "digest": None})
    for size in (3, 2, 1):
        record = Supervisor(first.start, segments=[segment | {"recorded": list(begun)}], started=begun[-1]["last_step"])
        assert same(trained(record, TRAIN, size)[0].parameters, wanted)
        assert record.resalts == 0 and record.started == 30


def test_a_replay_that_differs_goes_back_to_what_matched() -> None:
    """The state that is kept while a record follows it is this rank's; the steps after it run under fresh keys."""
    first = Supervisor(made("DP-Adam", length={"steps": 30}))
    trained(first, TRAIN, 2)
    (segment,) = first.segments
    recorded = [dict(each) for each in segment["recorded"]]
    recorded[-1]["digest"] = "0" * 64
    found = []
    for size in (1, 3):
        again = [dict(each) for each in recorded]
        record = Supervisor(first.start, segments=[segment | {"recorded": again}], started=30, hold=60)
        found.append(trained(record, TRAIN, size)[0].parameters)
        assert record.resalts == 1
    assert same(*found)


# --- Faults that the comparison above must find ---


def test_a_rank_that_skips_its_slice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = trained(Supervisor(made("DP-Adam", "none")), TRAIN, 1)[0].parameters
    honest, noised = Sharded.update, GaussianRelease.release

    def outcome() -> dict[str, Tensor]:
        return trained(Supervisor(made("DP-Adam")), TRAIN, 3)[0].parameters

    def idle(self: Sharded, gradient: Any, state: State, parameters: Any, at: StepInfo) -> Any:
        if self.shards.ranks.rank != 1:
            return honest(self, gradient, state, parameters, at)
        self._exchange(parameters)
        return parameters, state

    def bare(self: GaussianRelease, private_sum: Any, step: int, query: int, norm: float, shards: Shards) -> Any:
        if shards.ranks.rank != 1:
            return noised(self, private_sum, step, query, norm, shards)
        return NoisedGradient({name: value / 120 for name, value in private_sum.items()})

    assert same(outcome(), wanted)
    for cls, name, fault in ((Sharded, "update", idle), (GaussianRelease, "release", bare)):
        with monkeypatch.context() as planted:
            planted.setattr(cls, name, fault)
            assert not same(outcome(), wanted)


class KeepsItsOwn(Through):
    """Rank 1 does not take what the others send: it goes on with old parameters."""

    def from_rank(self, rank: int, numbers: Tensor) -> None:
        self.of.from_rank(rank, numbers.clone() if self.rank == 1 and rank != 1 else numbers)


def test_a_rank_with_other_parameters_ends_every_rank() -> None:
    job = made("DP-Adam")

    def plan_for(ranks: Ranks) -> Plan:
        return plan_of(job, KeepsItsOwn(ranks))

    with pytest.raises(Exception, match="different states"):
        trained(Supervisor(job), TRAIN, 3, plan_for)


# --- The parts ---


def test_every_number_has_one_owner() -> None:
    for size in (*SIZES, 20):
        seen = {name: [0] * each.numel() for name, each in LIKE.items()}
        for rank in range(size):
            shards = Shards.of(LIKE, At(rank, size))
            begin, end = shards.bounds(rank)
            assert sum(span.count for span in shards.own.values()) == end - begin
            for name, span in shards.own.items():
                assert list(LIKE)[span.tensor] == name and span.count > 0
                for place in range(span.first, span.first + span.count):
                    seen[name][place] += 1
        assert all(count == 1 for counts in seen.values() for count in counts)


def test_a_shard_s_correlated_noise_is_that_of_its_places() -> None:
    total = {name: torch.full(each.shape, 0.25, dtype=torch.float64) for name, each in LIKE.items()}
    numbers = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": 7}
    whole = CorrelatedRelease(KEY, decay=0.5, first_step=1, **numbers).release(total, 3)
    for rank in range(3):
        shards = Shards.of(LIKE, At(rank, 3))
        own = CorrelatedRelease(KEY, decay=0.5, first_step=1, **numbers)
        assert same(own.release(shards.views(total), 3, shards=shards), shards.views(whole))


@pytest.mark.parametrize("size", [2, 3, 20])
@pytest.mark.parametrize("query", [0, 1])
def test_a_shard_s_noise_is_that_of_its_places(size: int, query: int) -> None:
    """On every rank, odd places and empty shards included; with noise made ahead for the first query."""
    total = {name: torch.full(each.shape, 0.25, dtype=torch.float64) for name, each in LIKE.items()}

    def release() -> GaussianRelease:
        return GaussianRelease(KEY, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=7)

    whole = release().release(total, 3, query)
    for rank in range(size):
        shards = Shards.of(LIKE, At(rank, size))
        own = release()
        own.prepare(total, 3, shards=shards)
        got = own.release(shards.views(total), 3, query, None, shards)
        assert same(got, shards.views(whole))


def test_a_rank_must_noise_all_that_it_owns() -> None:
    shards = Shards.of(LIKE, At(0, 2))
    release = GaussianRelease(KEY, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=7)
    with pytest.raises(PrivacyError, match="owns"):
        release.release({"b": torch.zeros(2, dtype=torch.float64)}, 1, shards=shards)
    short = {name: part[:-1] for name, part in shards.views({k: v.double() for k, v in LIKE.items()}).items()}
    with pytest.raises(PrivacyError, match="one word"):
        release.release(short, 1, shards=shards)


def test_a_total_reaches_its_owner_and_no_other_rank() -> None:
    def work(ranks: Ranks) -> dict[str, Tensor]:
        totals = GridTotals(LIKE, Clip(1.0), Grid(100, 10, ranks, sharded=True))
        for name, each in LIKE.items():
            totals.add(name, torch.full(each.shape, 1.0 + ranks.rank, dtype=torch.float64))
        return totals.finish()

    for rank, found in enumerate(together(3, work)):
        own = Shards.of(LIKE, At(rank, 3)).own
        assert {name: each.tolist() for name, each in found.items()} == {
            name: [6.0] * span.count for name, span in own.items()
        }
        storage = {each.untyped_storage().nbytes() for each in found.values()}
        assert max(storage) <= 8 * 5, "the other ranks' totals are not kept"


def test_a_state_in_pieces_has_the_digest_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.optimizers.sharded.PIECE", 2)
    optimizer = plan_of(made("averaging")).optimizer
    parameters = flattened({name: each.double() for name, each in LIKE.items()})
    state = optimizer.init(parameters)
    for at, each in enumerate(state.values()):
        each.add_(torch.arange(each.numel(), dtype=torch.float64).view(each.shape) + at)
    wanted = state_digest(5, parameters, state)

    def work(ranks: Ranks) -> str:
        shards = Shards.of(parameters, ranks)
        own = {
            f"{slot}{name}": shards.views({name_: state[slot + name_] for name_ in LIKE})[name].clone()
            for slot in ("m/", "v/", "average/")
            for name in shards.own
        }
        return state_digest(5, parameters, Sharded(optimizer, shards).whole_state(own))

    assert together(3, work) == [wanted] * 3


def of_three_numbers(tensors: dict[str, Tensor]) -> Any:
    return {"bias": tensors["bias"].clone()}


# A direction's signs go by the place among all numbers; admission refuses `shard` for it (tests/catalogue).
SHARDED = [name for name in OPTIMIZERS if not name.startswith("dp_zo")]
FEW = ["dp_adambc", "dp_sgd tail average momentum", "dp2_rmsprop extra_query", "pda_dpmd"]


@pytest.mark.parametrize(("name", "size"), [(name, 3) for name in SHARDED] + [(name, 5) for name in FEW])
def test_every_optimizer_is_elementwise(name: str, size: int) -> None:
    """Three ranks have the parameters, divisors and finished model of one; so a new optimizer that mixes numbers, such
    as one that normalizes by a layer, is found here. Five ranks share three numbers: two own nothing."""
    cut = of_three_numbers if size == 5 else copies
    steps, public = [cut(each) for each in gradients(6)], [cut(each) for each in gradients(6)]
    optimizer = OPTIMIZERS[name]()

    def ran(ranks: Ranks | None) -> list[Any]:
        parameters = flattened(cut(some_parameters()))
        shards = None if ranks is None else Shards.of(parameters, ranks)
        used: Optimizer = optimizer if shards is None else sharded(optimizer, shards)
        state, found = used.init(parameters), []
        for step, noised in enumerate(steps, start=1):
            if isinstance(used, Observing):
                state = used.observe(cut(public[step - 1]), state)
            if isinstance(used, Preconditioned):
                found += [used.divisors(state, step, query) for query in (0, 1)]
            second = cut(info(step).second or {})
            own, second = (each if shards is None else shards.views(each) for each in (noised, second))
            at = StepInfo(step, info(step).noise_variance, NoisedGradient(second))
            parameters, state = used.update(NoisedGradient(own), state, parameters, at)
            found.append(copies(parameters))
        return [*found, copies(used.finish(state, parameters, len(steps)))]

    wanted = ran(None)
    for found in together(size, ran):
        plain = [each for each in found if each is not None]
        kept = [each for each in wanted if each is not None]
        assert len(plain) == len(kept) and all(same(dict(a), dict(b)) for a, b in zip(plain, kept, strict=True))
