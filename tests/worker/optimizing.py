"""What the tests of optimizers share: a case of each, small parameters, gradients that are all alike noised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from core.privacy.mechanism import DelayedMechanism
from worker.models.base import Parameters
from worker.noise.directions import ALONG
from worker.noise.gaussian import NoisedGradient
from worker.optimizers.ada_dps import AdaDps
from worker.optimizers.averaging import Moving, Tail, averaged
from worker.optimizers.base import Optimizer, State, StepInfo
from worker.optimizers.descent import Descent
from worker.optimizers.dp2 import AdaGradMoment, Dp2, RmsPropMoment, YogiMoment
from worker.optimizers.dp_adagrad import DpAdaGrad
from worker.optimizers.dp_adam import DpAdam
from worker.optimizers.dp_adambc import DpAdamBc
from worker.optimizers.dp_adamwosm import DpAdamWosm
from worker.optimizers.dp_rmsprop import DpRmsProp
from worker.optimizers.dp_sgd import DpSgd
from worker.optimizers.dp_zo import DpZo
from worker.optimizers.pda_dpmd import PdaDpmd
from worker.optimizers.scale_then_privatize import ScaleThenPrivatize
from worker.optimizers.schedules import WarmupLinear

NOISE_VARIANCE = 0.09


def phases(
    sgd: int, adaptive: int, variant: Literal["delayed", "extra_query", "noise_first"] = "delayed"
) -> DelayedMechanism:
    """So many plain steps, then so many adaptive ones."""
    return DelayedMechanism(variant=variant, delay_sgd=sgd, delay_adaptive=adaptive, max_grad_norm_adaptive=1.0)


# Every optimizer has its cases here, and passes the whole contract in each.
OPTIMIZERS: dict[str, Callable[[], Optimizer]] = {
    "dp_sgd": lambda: DpSgd(Descent(0.3)),
    "dp_sgd momentum": lambda: DpSgd(Descent(0.3), momentum=0.9),
    "dp_sgd momentum free_step": lambda: DpSgd(Descent(0.3), momentum=0.9, free_step=True),
    "dp_sgd free_step": lambda: DpSgd(Descent(0.3), free_step=True),
    "dp_sgd weight_decay": lambda: DpSgd(Descent(0.3, weight_decay=0.1), momentum=0.5),
    "dp_sgd coupled": lambda: DpSgd(Descent(0.3, weight_decay=0.1, coupled=True), momentum=0.5),
    "dp_sgd schedule": lambda: DpSgd(Descent(0.3, WarmupLinear(5, 0.4)), free_step=True),
    "dp_adam": lambda: DpAdam(Descent(0.1)),
    "dp_adam decays": lambda: DpAdam(Descent(0.1, weight_decay=0.1), betas=(0.5, 0.9)),
    "dp_adam coupled": lambda: DpAdam(Descent(0.1, weight_decay=0.1, coupled=True)),
    "dp_adambc": lambda: DpAdamBc(Descent(0.1)),
    "dp_adambc root": lambda: DpAdamBc(Descent(0.1, weight_decay=0.1), (0.5, 0.9), eps_root=1e-3),
    "dp_adamwosm": lambda: DpAdamWosm(Descent(0.1)),
    "dp_adamwosm decays": lambda: DpAdamWosm(Descent(0.1, weight_decay=0.1), beta=0.5, eps=1e-3),
    "dp_adamwosm coupled": lambda: DpAdamWosm(Descent(0.1, weight_decay=0.1, coupled=True)),
    "dp_zo": lambda: DpZo(Descent(0.3), 3),
    "dp_zo decays": lambda: DpZo(Descent(0.3, weight_decay=0.1), 3),
    "dp_zo coupled": lambda: DpZo(Descent(0.3, weight_decay=0.1, coupled=True), 3),
    "dp_zo moving average": lambda: averaged(DpZo(Descent(0.3), 3), Moving(0.9)),
    "dp_rmsprop": lambda: DpRmsProp(Descent(0.1)),
    "dp_rmsprop decays": lambda: DpRmsProp(Descent(0.1, weight_decay=0.1), beta=0.5, eps=0.1),
    "dp_adagrad": lambda: DpAdaGrad(Descent(0.1)),
    "dp_adagrad decays": lambda: DpAdaGrad(Descent(0.1, weight_decay=0.1)),
    "dp2_rmsprop": lambda: Dp2(Descent(0.3), Descent(0.1), RmsPropMoment(0.9), phases(1, 2), 0.1),
    "dp2_rmsprop debias": lambda: Dp2(Descent(0.3), Descent(0.1), RmsPropMoment(0.9), phases(2, 1), 0.1, debias=True),
    "dp2_adagrad": lambda: Dp2(Descent(0.3), Descent(0.1, weight_decay=0.1), AdaGradMoment(), phases(2, 1), 0.1),
    "dp2_yogi": lambda: Dp2(Descent(0.3), Descent(0.1), YogiMoment(0.9), phases(2, 1), 0.1),
    "dp2_yogi noise_first": lambda: Dp2(Descent(0.3), Descent(0.1), YogiMoment(0.9), phases(2, 1, "noise_first"), 0.1),
    "dp2_rmsprop extra_query": lambda: Dp2(
        Descent(0.3), Descent(0.1), RmsPropMoment(0.9), phases(2, 2, "extra_query"), 0.1
    ),
    "scale_then_privatize": lambda: ScaleThenPrivatize(Descent(0.1), "adam", (0.9, 0.999), 1e-8, 0.0, 1e-2),
    "scale_then_privatize rmsprop": lambda: ScaleThenPrivatize(
        Descent(0.1, weight_decay=0.1, coupled=True), "rmsprop", (0.0, 0.9), 1e-3, 1e-6, 1e-2
    ),
    "ada_dps": lambda: AdaDps(Descent(0.1, weight_decay=0.1), 0.9, 1e-2),
    "dp_sgd tail average": lambda: averaged(DpSgd(Descent(0.3)), Tail(4, 0.5)),
    "dp_sgd tail average momentum": lambda: averaged(DpSgd(Descent(0.3), momentum=0.9), Tail(3, 1.0)),
    "dp_adam moving average": lambda: averaged(DpAdam(Descent(0.1)), Moving(0.9)),
    "dp2_rmsprop moving average": lambda: averaged(
        Dp2(Descent(0.3), Descent(0.1), RmsPropMoment(0.9), phases(1, 2), 0.1), Moving(0.5)
    ),
    "pda_dpmd moving average": lambda: averaged(PdaDpmd(Descent(0.1), 5), Moving(0.5)),
    "pda_dpmd": lambda: PdaDpmd(Descent(0.1), 5),
    "pda_dpmd coupled": lambda: PdaDpmd(Descent(0.1, weight_decay=0.1, coupled=True), 9),
}


def info(step: int, variance: float = NOISE_VARIANCE) -> StepInfo:
    """With a second query, for who asks for one."""
    return StepInfo(step, variance, NoisedGradient({name: 0.5 * value for name, value in gradients(1)[0].items()}))


def parameters() -> Parameters:
    generator = torch.Generator().manual_seed(1)
    return {
        "weight": torch.randn(3, 4, generator=generator, dtype=torch.float64),
        "bias": torch.randn(3, generator=generator, dtype=torch.float64),
    }


def gradients(steps: int) -> list[NoisedGradient]:
    """Of each step a gradient, and beside it a slope for who moves along one direction."""
    generator = torch.Generator().manual_seed(2)
    return [
        NoisedGradient(
            {k: torch.randn(v.shape, generator=generator, dtype=v.dtype) for k, v in parameters().items()}
            | {ALONG: torch.tensor([0.5 - step], dtype=torch.float64)}
        )
        for step in range(steps)
    ]


def run(
    optimizer: Optimizer, steps: list[NoisedGradient], variance: float = NOISE_VARIANCE
) -> tuple[Parameters, State]:
    at = parameters()
    state = optimizer.init(at)
    for step, noised in enumerate(steps, start=1):
        at, state = optimizer.update(noised, state, at, info(step, variance))
    return at, state


def copies(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in tensors.items()}


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
