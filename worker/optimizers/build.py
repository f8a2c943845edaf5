"""From a job's specification to its optimizer."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from core.contracts import optimizers as specs
from core.privacy.derive import phases_of
from worker.optimizers.ada_dps import AdaDps
from worker.optimizers.averaging import Moving, Tail, Weights, averaged
from worker.optimizers.base import Optimizer
from worker.optimizers.descent import Descent
from worker.optimizers.dp2 import AdaGradMoment, Dp2, RmsPropMoment, SecondMoment, YogiMoment
from worker.optimizers.dp_adagrad import DpAdaGrad
from worker.optimizers.dp_adam import DpAdam
from worker.optimizers.dp_adambc import DpAdamBc
from worker.optimizers.dp_adamwosm import DpAdamWosm
from worker.optimizers.dp_rmsprop import DpRmsProp
from worker.optimizers.dp_sgd import DpSgd
from worker.optimizers.dp_zo import DpZo
from worker.optimizers.pda_dpmd import PdaDpmd
from worker.optimizers.scale_then_privatize import ScaleThenPrivatize
from worker.optimizers.schedules import CONSTANT, Cosine, Schedule, WarmupLinear


def build_optimizer(spec: specs.Optimizer, steps: int) -> Optimizer:
    """The optimizer of a job.

    Args:
        spec: the requested optimizer.
        steps: T, the length of schedules.
    """
    descent = Descent(spec.rate, _schedule(spec.schedule, steps), spec.weight_decay, spec.decay == "coupled")
    optimizer: Optimizer
    match spec:
        case specs.DpSgd():
            optimizer = DpSgd(descent, spec.momentum, spec.free_step)
        case specs.DpAdam():
            optimizer = DpAdam(descent, spec.betas, spec.eps)
        case specs.DpAdamBc():
            optimizer = DpAdamBc(descent, spec.betas, spec.eps_root)
        case specs.DpAdamWosm():
            optimizer = DpAdamWosm(descent, spec.beta, spec.eps)
        case specs.DpZo():
            optimizer = DpZo(descent, spec.direction_seed)
        case specs.DpRmsProp():
            optimizer = DpRmsProp(descent, spec.beta, spec.eps)
        case specs.DpAdaGrad():
            optimizer = DpAdaGrad(descent, spec.eps)
        case specs.Dp2RmsProp() | specs.Dp2AdaGrad() | specs.Dp2Yogi():
            optimizer = _dp2(spec, descent)
        case specs.ScaleThenPrivatize():
            betas = spec.betas or ((0.9, 0.999) if spec.base == "adam" else (0.0, 0.9))
            optimizer = ScaleThenPrivatize(descent, spec.base, betas, spec.eps, spec.eps_root, spec.eps_scale)
        case specs.AdaDps():
            optimizer = AdaDps(descent, spec.beta, spec.eps)
        case specs.PdaDpmd():
            optimizer = PdaDpmd(descent, spec.horizon or steps)
        case _:
            assert_never(spec)
    return optimizer if spec.averaging is None else averaged(optimizer, _weights(spec.averaging, steps))


def _weights(settings: specs.Averaging, steps: int) -> Weights:
    match settings:
        case specs.TailAverage():
            return Tail(steps, settings.share)
        case specs.MovingAverage():
            return Moving(settings.decay)
        case _:
            assert_never(settings)


def _dp2(spec: specs.Dp2RmsProp | specs.Dp2AdaGrad | specs.Dp2Yogi, descent: Descent) -> Dp2:
    moment: SecondMoment
    match spec:
        case specs.Dp2RmsProp():
            moment = RmsPropMoment(spec.beta)
        case specs.Dp2AdaGrad():
            moment = AdaGradMoment()
        case specs.Dp2Yogi():
            moment = YogiMoment(spec.beta)
        case _:
            assert_never(spec)
    adaptive = replace(descent, learning_rate=spec.learning_rate_adaptive)
    return Dp2(descent, adaptive, moment, phases_of(spec), spec.eps, spec.debias)


def _schedule(schedule: specs.Schedule, steps: int) -> Schedule:
    match schedule:
        case specs.ConstantSchedule():
            return CONSTANT
        case specs.WarmupLinearSchedule():
            return WarmupLinear(steps, schedule.warmup)
        case specs.CosineSchedule():
            return Cosine(steps, schedule.final)
        case _:
            assert_never(schedule)
