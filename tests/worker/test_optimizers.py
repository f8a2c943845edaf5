"""One contract for every optimizer; and what holds for all of them: schedules and weight decay."""

from __future__ import annotations

import math

import pytest
import torch

from tests.worker.optimizing import OPTIMIZERS, copies, gradients, info, parameters, run, same
from worker.data.flat import spanning
from worker.noise.gaussian import NoisedGradient
from worker.optimizers import pieces
from worker.optimizers.base import Optimizer, StepInfo
from worker.optimizers.descent import Descent
from worker.optimizers.dp_sgd import DpSgd
from worker.optimizers.schedules import CONSTANT, Cosine, Schedule, WarmupLinear


@pytest.fixture(params=OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def optimizer(request: pytest.FixtureRequest) -> Optimizer:
    return request.param()


def test_contract_names_shapes_and_types_stay(optimizer: Optimizer) -> None:
    at, state = run(optimizer, gradients(3))
    assert list(state) == list(optimizer.init(parameters()))
    for got in (at, optimizer.finish(state, at, 3)):
        assert list(got) == list(parameters())
        assert all(
            got[name].shape == value.shape and got[name].dtype == value.dtype for name, value in parameters().items()
        )
    assert all(isinstance(value, torch.Tensor) and value.dtype == torch.float64 for value in state.values())


def test_contract_updates_are_in_place(optimizer: Optimizer) -> None:
    """What is returned is what was given, so that a step needs no second copy. A copied state can be gone back to."""
    at, state = run(optimizer, gradients(2))
    noised = gradients(3)[2]
    kept = copies(at), copies(state), copies(noised)
    finished = copies(optimizer.finish(state, at, 2))
    assert same(at, kept[0]) and same(state, kept[1])
    first = optimizer.update(noised, state, at, info(3))
    assert all(first[0][name].data_ptr() == value.data_ptr() for name, value in at.items())
    assert all(first[1][name].data_ptr() == value.data_ptr() for name, value in state.items())
    assert same(noised, kept[2])
    assert same(finished, optimizer.finish(kept[1], kept[0], 2))
    again = optimizer.update(noised, kept[1], kept[0], info(3))
    assert same(first[0], again[0]) and same(first[1], again[1])


@pytest.mark.parametrize("joined", [0, 2**18])
def test_contract_pieces_change_no_bit(optimizer: Optimizer, joined: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of flat tensors, of single ones, and of pieces that end within a tensor."""
    at, state = run(optimizer, gradients(4))
    monkeypatch.setattr(pieces, "PIECE", 5)
    monkeypatch.setattr(pieces, "JOINED", joined)
    flat = pieces.flattened(parameters())
    one = optimizer.init(flat)
    other, two = flat, one
    for step, noised in enumerate(gradients(4), start=1):
        other, two = optimizer.update(noised, two, other, info(step))
    assert same(at, other) and same(state, two)


def test_neighbours_by_chance_are_not_one_tensor() -> None:
    whole = torch.zeros(6)
    views = [whole[:2], whole[2:6].view(2, 2)]
    assert spanning(views) is not None
    assert spanning([whole[:2], whole[3:]]) is None
    assert spanning([whole[:2], torch.zeros(4)]) is None
    assert spanning([whole.view(2, 3)[:, :2], whole[4:]]) is None


def test_contract_resumes_from_every_step(optimizer: Optimizer) -> None:
    """State, parameters and the step are all there is: going on from copies of them gives the same bits."""
    steps = gradients(5)
    straight = run(optimizer, steps)
    for cut in range(6):
        at, state = run(optimizer, steps[:cut])
        at, state = copies(at), copies(state)
        for step, noised in enumerate(steps[cut:], start=cut + 1):
            at, state = optimizer.update(noised, state, at, info(step))
        assert same(at, straight[0]) and same(state, straight[1])


def test_contract_the_first_state_says_nothing_of_the_parameters(optimizer: Optimizer) -> None:
    other = {name: value + 1 for name, value in parameters().items()}
    assert same(optimizer.init(parameters()), optimizer.init(other))


def test_contract_finishing_before_any_step_changes_nothing(optimizer: Optimizer) -> None:
    assert same(optimizer.finish(optimizer.init(parameters()), parameters(), 0), parameters())


def test_contract_a_zero_gradient_from_the_start_moves_only_by_decay(optimizer: Optimizer) -> None:
    zero = NoisedGradient({name: torch.zeros_like(value) for name, value in gradients(1)[0].items()})
    at, _ = optimizer.update(zero, optimizer.init(parameters()), parameters(), StepInfo(1, 0.09, zero))
    assert all(bool(torch.isfinite(value).all()) for value in at.values())
    ratio = at["weight"].abs() / parameters()["weight"].abs()
    if not getattr(optimizer, "inner", optimizer).descent.coupled:
        torch.testing.assert_close(ratio, torch.full_like(ratio, float(ratio[0, 0])))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_free_step_moves_once_more_along_the_momentum(momentum: float) -> None:
    """With the learning rate of the last step."""
    steps, descent = gradients(4), Descent(0.3, Cosine(6, 0.0))
    plain = DpSgd(descent, momentum=momentum)
    free = DpSgd(descent, momentum=momentum, free_step=True)
    at, state = run(free, steps)
    assert same(at, run(plain, steps)[0])
    finished = free.finish(state, at, 4)
    b = torch.zeros(3, 4, dtype=torch.float64)
    for noised in steps:
        b = momentum * b + noised["weight"]
    torch.testing.assert_close(finished["weight"], at["weight"] - 0.3 * 0.5 * (1 + math.cos(math.pi / 2)) * b)
    assert same(plain.finish(run(plain, steps)[1], at, 4), at)


def test_decoupled_weight_decay_never_enters_the_momentum() -> None:
    steps = gradients(4)
    _, plain = run(DpSgd(Descent(0.3), momentum=0.9), steps)
    _, decayed = run(DpSgd(Descent(0.3, weight_decay=0.1), momentum=0.9), steps)
    assert same(plain, decayed)


@pytest.mark.parametrize("steps", [1, 2, 5, 100])
@pytest.mark.parametrize("warmup", [0.0, 0.2, 0.5])
def test_warm_up_rises_to_the_rate_then_falls(steps: int, warmup: float) -> None:
    factors = [WarmupLinear(steps, warmup).factor(step) for step in range(1, steps + 1)]
    rising = math.ceil(warmup * steps)
    assert all(0.0 < each <= 1.0 for each in factors)  # no step that is paid for has rate 0
    assert factors[:rising] == [pytest.approx((step + 1) / rising) for step in range(rising)]
    falls = [one - two for one, two in zip(factors[rising:], factors[rising + 1 :], strict=False)]
    assert falls == [pytest.approx(1 / (steps + 1 - rising))] * len(falls)
    if rising < steps:
        assert factors[-1] == pytest.approx(1 / (steps + 1 - rising))


def test_schedules_are_torchs() -> None:
    def of_torch(make: object) -> list[float]:
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
        schedule, rates = make(optimizer), []  # type: ignore[operator]
        for _ in range(20):
            rates.append(schedule.get_last_lr()[0])
            optimizer.step()
            schedule.step()
        return rates

    def of_ours(schedule: Schedule) -> list[float]:
        return [Descent(0.3, schedule).rate(step) for step in range(1, 21)]

    from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

    assert of_ours(CONSTANT) == [0.3] * 20
    assert of_ours(Cosine(20, 0.0)) == pytest.approx(of_torch(lambda o: CosineAnnealingLR(o, 20)))
    assert of_ours(Cosine(20, 0.1)) == pytest.approx(of_torch(lambda o: CosineAnnealingLR(o, 20, eta_min=0.03)))

    def linear(k: int) -> float:  # k steps are done
        return (k + 1) / 4 if k < 4 else (20 - k) / 17

    assert of_ours(WarmupLinear(20, 0.2)) == pytest.approx(of_torch(lambda o: LambdaLR(o, linear)))
