"""A job goes on from its checkpoint to the same bits; from any other state than the recorded one it does not go on."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.gang import trained
from tests.worker.support import Supervisor, plan_of, run_child, run_direct, start_of
from tests.worker.test_joined import attempt
from tests.worker.test_keys import Job, centred_start, images, on_columns, spec
from tests.worker.test_planted import start_for
from tests.worker.test_preconditioned import POISSON, dp2
from tests.worker.test_preconditioned import SHAPE as SMALL
from tests.worker.test_preconditioned import TRAIN as FEW
from tests.worker.test_public_side import PUBLIC
from tests.worker.test_ranks import JOBS, TRAIN, same, start
from tests.worker.test_shards import STATES
from worker.messages import BlockStart, Finished
from worker.models.base import Parameters
from worker.noise.gaussian import CorrelatedRelease, GaussianRelease
from worker.training.loop import Training
from worker.training.position import Fill, Position

STEPS, KILLED = 30, 23  # blocks have ten steps, or two of a full batch
KINDS = JOBS | {name: job for name, job in STATES.items() if "averag" in name}
SHARED = ("DP-Adam", "DP2-RMSProp", "adaptive clipping", "averaging")


def job(name: str, shard: str = "none") -> dict[str, Any]:
    made = start(KINDS[name], length={"steps": STEPS})
    made["spec"]["runtime"] |= {"shard": shard, "processes": 4}
    return made


def killed(made: dict[str, Any], size: int = 1) -> Supervisor:
    """The record of an attempt that was killed in the last third of its steps, after its state was saved."""
    record = Supervisor(made, save_at=(KILLED,), die_at=KILLED)
    with pytest.raises(ConnectionError):
        trained(record, TRAIN, size)
    assert saved_after(record) in (20, 22)
    return record


@cache
def killed_adam(shard: str = "none", size: int = 1) -> Supervisor:
    """The same for DP-Adam, trained once for many tests. None of them changes it: `next_attempt` copies."""
    return killed(job("DP-Adam", shard), size)


def next_attempt(record: Supervisor, **changes: Any) -> Supervisor:
    """What the supervisor of the next attempt knows."""
    segments = deepcopy(record.segments)
    known = {"segments": segments, "started": record.started, "saved": record.saved, "state": record.state}
    return Supervisor(deepcopy(record.start), **known | changes)


def saved_after(record: Supervisor) -> int:
    assert record.saved is not None
    return record.saved.step


def began_after(record: Supervisor) -> int:
    """The step after which the attempt trained."""
    return int(record.of(BlockStart)[0].first_step) - 1


@cache
def undisturbed(name: str) -> tuple[Parameters, dict[int, str]]:
    record = Supervisor(job(name))
    return trained(record, TRAIN, 1)[0].parameters, record.digests()


def require_same(name: str, size: int = 1, shard: str = "none", then: int | None = None) -> None:
    """A killed job ends with the bits of an undisturbed one, after its last third, and starts no step twice."""
    wanted, digests = undisturbed(name)
    record = next_attempt(killed(job(name, shard), size))
    found = trained(record, TRAIN, then or size)
    assert all(same(each.parameters, wanted) for each in found)
    saved = saved_after(record)
    assert began_after(record) == saved
    assert record.digests() == {step: digests[step] for step in digests if step >= saved}
    assert record.resalts == 0 and record.started == STEPS


@pytest.mark.filterwarnings("ignore")  # see test_ranks.py
@pytest.mark.parametrize("name", KINDS)
def test_a_killed_job_ends_with_the_same_model(name: str) -> None:
    require_same(name)


@pytest.mark.parametrize("shard", ["none", "optimizer"])
@pytest.mark.parametrize("name", SHARED)
def test_on_two_ranks_and_sharded(name: str, shard: str) -> None:
    require_same(name, 2, shard)


def test_fewer_and_more_ranks_go_on_from_a_sharded_state() -> None:
    require_same("DP-Adam", 3, "optimizer", then=2)
    require_same("averaging", 2, "optimizer", then=1)
    require_same("averaging", 1, "optimizer", then=4)


def test_every_block_can_be_gone_on_from() -> None:
    wanted, _ = undisturbed("DP-Adam")
    for step in (11, 21):
        record = Supervisor(job("DP-Adam"), save_at=(step,), die_at=step)
        with pytest.raises(ConnectionError):
            trained(record, TRAIN, 1)
        again = next_attempt(record)
        assert same(trained(again, TRAIN, 1)[0].parameters, wanted) and began_after(again) == step - 1


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "DP-SGD, momentum, free step": {"kind": "dp_sgd", "learning_rate": 0.1, "momentum": 0.9, "free_step": True},
    "DP-AdamBC": {"kind": "dp_adambc", "learning_rate": 0.1},
    "DPAdamWOSM": {"kind": "dp_adamwosm", "learning_rate": 0.1},
    "DP-ZO": {"kind": "dp_zo", "learning_rate": 0.1},
    "DP-RMSProp": {"kind": "dp_rmsprop", "learning_rate": 0.1},
    "DP-AdaGrad": {"kind": "dp_adagrad", "learning_rate": 0.1},
    "DP2-Yogi, extra query": dp2("dp2_yogi", variant="extra_query"),
    "DP2-AdaGrad, noise first": dp2("dp2_adagrad", variant="noise_first"),
    "scale, then privatize": {"kind": "scale_then_privatize", "learning_rate": 0.1, "eps_scale": 1.0},
    "AdaDPS": {"kind": "ada_dps", "learning_rate": 0.1, "public_dataset": "ds_p", "public_batch_size": 8},
    "PDA-DPMD": {"kind": "pda_dpmd", "learning_rate": 0.1, "public_dataset": "ds_p"},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_goes_on(name: str) -> None:
    asked = spec(optimizer=OPTIMIZERS[name], sampling=POISSON, length={"steps": STEPS}, evaluation=None)
    side = PUBLIC if "public_dataset" in OPTIMIZERS[name] else None
    made = start_of(asked, SMALL)
    straight, record = Supervisor(made), Supervisor(made, save_at=(KILLED,), die_at=KILLED)
    wanted = run_direct(straight, FEW, None, side)[0].parameters
    with pytest.raises(ConnectionError):
        run_direct(record, FEW, None, side)
    again = next_attempt(record)
    assert same(run_direct(again, FEW, None, side)[0].parameters, wanted)
    assert began_after(again) == 20 and again.digests()[STEPS] == straight.digests()[STEPS]


# --- Faults that the comparison must find ---


def step_of_this_attempt(release: GaussianRelease, step: int) -> int:
    first = vars(release).setdefault("planted_first", step)
    return step - int(first) + 1


def noise_by_attempt(patch: pytest.MonkeyPatch) -> None:
    """Noise is numbered from the attempt's first step: the resumed one would use that of steps 1 to 10 again."""
    honest = GaussianRelease.release

    def release(self: GaussianRelease, private_sum: Any, step: int, *rest: Any) -> Any:
        return honest(self, private_sum, step_of_this_attempt(self, step), *rest)

    patch.setattr(GaussianRelease, "prepare", lambda *_args, **_more: None)
    patch.setattr(GaussianRelease, "release", release)


def forgets_last_noise(patch: pytest.MonkeyPatch) -> None:
    """Correlated noise begins anew: the resumed step lacks the share of the step before it."""
    honest = CorrelatedRelease.release

    def release(self: CorrelatedRelease, private_sum: Any, step: int, *rest: Any) -> Any:
        self._first = int(vars(self).setdefault("planted_first", step))
        return honest(self, private_sum, step, *rest)

    patch.setattr(CorrelatedRelease, "release", release)


@pytest.mark.parametrize(("name", "plant"), [("DP-Adam", noise_by_attempt), ("correlated noise", forgets_last_noise)])
def test_noise_that_is_not_of_the_step_is_found(
    name: str, plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        require_same(name)


def without(part: str) -> Callable[..., Position]:
    """A position that is read without this part."""
    honest = Position.filled

    def filled(self: Position, step: int, optimizer: Any, fill: Fill) -> Position:
        before = self.copy()
        position = honest(self, step, optimizer, fill)
        return replace(position, **{part: getattr(before, part)})

    return filled


@pytest.mark.parametrize("part", ["parameters", "state", "norm"])
def test_a_state_without_a_part_is_not_gone_on_from(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The digest tells: the attempt begins at the first step, and reaches the same bits. Without it, it would not."""
    wanted, _ = undisturbed("adaptive clipping, momentum")
    record = killed(job("adaptive clipping, momentum"))
    monkeypatch.setattr(Position, "filled", without(part))
    again = next_attempt(record)
    assert same(trained(again, TRAIN, 1)[0].parameters, wanted) and began_after(again) == 0
    monkeypatch.setattr("worker.training.write_ahead.Replay.contradicts", lambda *_: False)
    blind = next_attempt(record)
    with pytest.raises(AssertionError, match="a replay differs"):
        trained(blind, TRAIN, 1)


KINDS["adaptive clipping, momentum"] = KINDS["adaptive clipping"] | {
    "optimizer": {"kind": "dp_sgd", "learning_rate": 0.1, "momentum": 0.9}
}


def one_bit(state: bytes) -> bytes:
    return state[:100] + bytes([state[100] ^ 1]) + state[101:]


TORN: dict[str, Callable[[bytes], bytes]] = {
    "one bit": one_bit,
    "cut": lambda state: state[: len(state) // 2],
    "empty": lambda _state: b"",
    "zeros": lambda state: bytes(len(state)),
    "moved": lambda state: state[8:] + state[:8],
}


@pytest.mark.parametrize(("how", "size"), [*((how, 1) for how in TORN), ("one bit", 2), ("cut", 2)])
def test_a_changed_state_is_not_gone_on_from(how: str, size: int) -> None:
    """Whatever its container lets through. Two ranks differ in who reads, and in a part of the state that one lacks."""
    wanted, _ = undisturbed("DP-Adam")
    record = killed_adam("optimizer")
    again = next_attempt(record, state=TORN[how](record.state))
    assert all(same(each.parameters, wanted) for each in trained(again, TRAIN, size))
    assert began_after(again) == 0 and again.resalts == 0 and again.started == STEPS


def test_an_older_state_is_gone_on_from_to_the_same_bits() -> None:
    """It is the job's own: its steps are repeated under the same keys, compared with their digests, and free."""
    wanted, _ = undisturbed("DP-Adam")
    first = Supervisor(job("DP-Adam"), save_at=(11,), die_at=11)
    with pytest.raises(ConnectionError):
        trained(first, TRAIN, 1)
    record = killed_adam()
    again = next_attempt(record, saved=first.saved, state=first.state)
    assert same(trained(again, TRAIN, 1)[0].parameters, wanted)
    assert began_after(again) == 10 and again.started == STEPS


def test_another_job_s_state_is_not_gone_on_from() -> None:
    wanted, _ = undisturbed("DP-Adam")
    record = killed_adam()
    other = killed(job("DP-SGD, network with dropout"))
    again = next_attempt(record, saved=other.saved, state=other.state)
    assert same(trained(again, TRAIN, 1)[0].parameters, wanted) and began_after(again) == 0


def test_a_state_without_a_recorded_digest_is_not_gone_on_from() -> None:
    """The database was set back: the digest is lost, and with it the proof that noise met this state."""
    record = deepcopy(killed_adam())
    (segment,) = record.segments
    for each in segment["recorded"]:
        each["digest"] = each["digest"] if each["last_step"] < saved_after(record) else None
    segment["recorded"] = [each for each in segment["recorded"] if each["last_step"] <= saved_after(record)]
    again = next_attempt(record, started=saved_after(record))
    wanted, _ = undisturbed("DP-Adam")
    assert same(trained(again, TRAIN, 1)[0].parameters, wanted) and began_after(again) == 0


def test_a_later_step_that_differs_goes_back_to_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine rounds otherwise: what was recorded after the checkpoint is charged again, no earlier step."""
    record = Supervisor(job("DP-Adam"), save_at=(11,), die_at=25)
    with pytest.raises(ConnectionError):
        trained(record, TRAIN, 1)
    honest = Training._step

    def step(self: Training, step: int, at: Position) -> Position:
        position = honest(self, step, at)
        next(iter(position.parameters.values())).mul_(1 + 2.0**-50)
        return position

    monkeypatch.setattr(Training, "_step", step)
    again = next_attempt(record, hold=STEPS + 20)
    trained(again, TRAIN, 1)
    assert began_after(again) == 10 and again.resalts == 1
    assert [each["from_step"] for each in again.segments] == [1, 11] and again.started == STEPS + 20


# --- What is released before the first step ---


def test_a_state_under_another_mean_is_not_gone_on_from(tmp_path: Path) -> None:
    """Passes and the published model have what the statistics released: a mean that differs is another job's."""
    made, train, holdout = on_columns(centred_start(spec(model=CENTRED, length={"steps": 10})))
    whole = attempt(tmp_path / "whole", made, [train], [holdout])
    assert isinstance(run_child(whole).last, Finished)
    first = attempt(tmp_path / "first", made, [train], [holdout])
    first.save_at, first.die_at = (9,), 9
    assert run_child(first).last is None
    assert first.saved is not None and len(first.state) % 8 == 0
    for before, begins in ((first.saved.before, 8), ("0" * 64, 0)):
        again = attempt(tmp_path / f"again{begins}", made, [train], [holdout])
        again.segments, again.started, again.metrics = first.segments, first.started, dict(first.metrics)
        again.saved, again.state = first.saved.model_copy(update={"before": before}), first.state
        ended = run_child(again)
        assert isinstance(ended.last, Finished) and began_after(again) == begins
        made_of = [[each.sha256 for each in one.of(Finished)[0].artifacts] for one in (again, whole)]
        assert made_of[0] == made_of[1] and again.metrics == whole.metrics


PROCESSES: dict[str, Callable[[], Job]] = {
    "canaries": lambda: (*start_for("columns", audit={"canaries": 100, "kind": "records"}, length={"steps": 10}), None),
    "views": lambda: on_columns(images(length={"steps": 4})),
    "sequences": lambda: (*start_for("sequences", length={"steps": 10}), None),
    "ratings": lambda: (*start_for("ratings", length={"steps": 10}), None),
}


@pytest.mark.parametrize("name", PROCESSES)
def test_a_process_goes_on(name: str, tmp_path: Path) -> None:
    """Over the pipe, with what a model and its data have beside columns: all files are the same."""
    made, train, holdout = PROCESSES[name]()
    parts = [train], [] if holdout is None else [holdout]
    last = int(made["steps"])
    whole, first = attempt(tmp_path / "whole", made, *parts), attempt(tmp_path / "first", made, *parts)
    assert isinstance(run_child(whole).last, Finished)
    first.save_at, first.die_at = (last,), last
    assert run_child(first).last is None and saved_after(first) > 0
    again = attempt(tmp_path / "again", made, *parts)
    again.segments, again.started, again.saved, again.state = first.segments, first.started, first.saved, first.state
    ended = run_child(again)
    assert isinstance(ended.last, Finished) and began_after(again) == saved_after(first)
    files = [[each.sha256 for each in one.of(Finished)[0].artifacts] for one in (again, whole)]
    assert files[0] == files[1] and len(files[0]) > 0


CENTRED = {"kind": "linear", "center": {"max_norm": 2.0, "noise_mu": 0.5}}


def test_a_public_rank_s_state_lies_in_its_memory() -> None:
    """`filled` writes into the tensors of the position it is called on, so no second state is in memory."""
    position = Position(0, {"w": torch.zeros(3)}, {"m/w": torch.zeros(3)}, 1.0)
    numbers = iter((1.0, 2.0, 0.5))

    def fill(value: torch.Tensor) -> None:
        value.fill_(next(numbers))

    filled = position.filled(7, plan_of(job("DP-Adam")).optimizer, fill)
    assert filled.parameters["w"] is position.parameters["w"] and filled.state["m/w"].tolist() == [2.0] * 3
    assert (filled.step, filled.norm) == (7, 0.5)
