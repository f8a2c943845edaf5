"""One contract for every optimizer, and the exact updates of each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from worker.models.base import Parameters
from worker.noise.gaussian import NoisedGradient
from worker.optimizers.base import Optimizer, State
from worker.optimizers.dp_sgd import DpSgd

# Every optimizer has its cases here, and passes the whole contract in each.
OPTIMIZERS: dict[str, Callable[[], Optimizer]] = {
    "dp_sgd": lambda: DpSgd(0.3),
    "dp_sgd momentum": lambda: DpSgd(0.3, momentum=0.9),
    "dp_sgd momentum free_step": lambda: DpSgd(0.3, momentum=0.9, free_step=True),
    "dp_sgd free_step": lambda: DpSgd(0.3, free_step=True),
    "dp_sgd weight_decay": lambda: DpSgd(0.3, momentum=0.5, weight_decay=0.1),
}


def parameters() -> Parameters:
    generator = torch.Generator().manual_seed(1)
    return {
        "weight": torch.randn(3, 4, generator=generator, dtype=torch.float64),
        "bias": torch.randn(3, generator=generator, dtype=torch.float64),
    }


def gradients(steps: int) -> list[NoisedGradient]:
    generator = torch.Generator().manual_seed(2)
    return [
        NoisedGradient({k: torch.randn(v.shape, generator=generator, dtype=v.dtype) for k, v in parameters().items()})
        for _ in range(steps)
    ]


def run(optimizer: Optimizer, steps: list[NoisedGradient]) -> tuple[Parameters, State]:
    at = parameters()
    state = optimizer.init(at)
    for noised in steps:
        at, state = optimizer.update(noised, state, at)
    return at, state


def copies(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in tensors.items()}


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.fixture(params=OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def optimizer(request: pytest.FixtureRequest) -> Optimizer:
    return request.param()


def test_contract_names_shapes_and_types_stay(optimizer: Optimizer) -> None:
    at, state = run(optimizer, gradients(3))
    for got in (at, optimizer.finish(state, at)):
        assert list(got) == list(parameters())
        assert all(
            got[name].shape == value.shape and got[name].dtype == value.dtype for name, value in parameters().items()
        )
    assert all(isinstance(value, torch.Tensor) for value in state.values())


def test_contract_updates_are_pure(optimizer: Optimizer) -> None:
    """Arguments stay as they are: a state that was kept can be gone back to."""
    at, state = run(optimizer, gradients(2))
    noised = gradients(3)[2]
    kept = copies(at), copies(state), copies(noised)
    first = optimizer.update(noised, state, at)
    finished = optimizer.finish(state, at)
    assert same(at, kept[0]) and same(state, kept[1]) and same(noised, kept[2])
    again = optimizer.update(noised, state, at)
    assert same(first[0], again[0]) and same(first[1], again[1])
    assert same(finished, optimizer.finish(state, at))


def test_contract_resumes_from_every_step(optimizer: Optimizer) -> None:
    """State and parameters are all there is: going on from copies of them gives the same bits."""
    steps = gradients(5)
    straight = run(optimizer, steps)
    for cut in range(6):
        at, state = run(optimizer, steps[:cut])
        at, state = copies(at), copies(state)
        for noised in steps[cut:]:
            at, state = optimizer.update(noised, state, at)
        assert same(at, straight[0]) and same(state, straight[1])


def test_contract_the_first_state_says_nothing_of_the_parameters(optimizer: Optimizer) -> None:
    other = {name: value + 1 for name, value in parameters().items()}
    assert same(optimizer.init(parameters()), optimizer.init(other))


def test_contract_finishing_before_any_step_changes_nothing(optimizer: Optimizer) -> None:
    assert same(optimizer.finish(optimizer.init(parameters()), parameters()), parameters())


def test_contract_a_zero_gradient_from_the_start_moves_only_by_decay(optimizer: Optimizer) -> None:
    zero = NoisedGradient({name: torch.zeros_like(value) for name, value in parameters().items()})
    at, _ = run(optimizer, [zero])
    ratio = at["weight"] / parameters()["weight"]
    torch.testing.assert_close(ratio, ratio[0, 0].expand_as(ratio))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_dp_sgd_without_noise_is_torch_sgd(momentum: float) -> None:
    """Also at the first step: with b = 0 before it, μ b + g̃ is g̃, as torch's buffer begins; no dampening."""
    leaves = {name: value.clone().requires_grad_() for name, value in parameters().items()}
    reference = torch.optim.SGD(leaves.values(), lr=0.3, momentum=momentum, dampening=0.0)
    steps = gradients(6)
    for count, noised in enumerate(steps, start=1):
        for name, leaf in leaves.items():
            leaf.grad = noised[name].clone()
        reference.step()
        at, _ = run(DpSgd(0.3, momentum=momentum), steps[:count])
        for name, leaf in leaves.items():
            torch.testing.assert_close(at[name], leaf.detach(), rtol=1e-13, atol=1e-13)


def test_decoupled_weight_decay_never_enters_the_momentum() -> None:
    steps = gradients(4)
    _, plain = run(DpSgd(0.3, momentum=0.9), steps)
    at, decayed = run(DpSgd(0.3, momentum=0.9, weight_decay=0.1), steps)
    assert same(plain, decayed)
    expected, momentum = parameters(), {name: torch.zeros_like(value) for name, value in parameters().items()}
    for noised in steps:
        momentum = {name: 0.9 * momentum[name] + noised[name] for name in expected}
        expected = {name: value - 0.3 * (momentum[name] + 0.1 * value) for name, value in expected.items()}
    for name in at:
        torch.testing.assert_close(at[name], expected[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_free_step_moves_once_more_along_the_momentum(momentum: float) -> None:
    steps = gradients(4)
    plain = DpSgd(0.3, momentum=momentum)
    free = DpSgd(0.3, momentum=momentum, free_step=True)
    at, state = run(free, steps)
    assert same(at, run(plain, steps)[0])
    finished = free.finish(state, at)
    b = torch.zeros(3, 4, dtype=torch.float64)
    for noised in steps:
        b = momentum * b + noised["weight"]
    torch.testing.assert_close(finished["weight"], at["weight"] - 0.3 * b)
    assert same(plain.finish(run(plain, steps)[1], at), at)
