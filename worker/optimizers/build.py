"""From a job's specification to its optimizer."""

from __future__ import annotations

from dataclasses import replace

from app.contracts import optimizers as specs
from app.privacy.derive import phases_of
from worker.optimizers.ada_dps import AdaDps
from worker.optimizers.base import Optimizer
from worker.optimizers.descent import Descent
from worker.optimizers.dp2 import AdaGradMoment, Dp2, RmsPropMoment, SecondMoment, YogiMoment
from worker.optimizers.dp_adagrad import DpAdaGrad
from worker.optimizers.dp_adam import DpAdam
from worker.optimizers.dp_adambc import DpAdamBc
from worker.optimizers.dp_rmsprop import DpRmsProp
from worker.optimizers.dp_sgd import DpSgd
from worker.optimizers.pda_dpmd import PdaDpmd
from worker.optimizers.scale_then_privatize import ScaleThenPrivatize
from worker.optimizers.schedules import CONSTANT, Cosine, Schedule, WarmupLinear


def build_optimizer(spec: specs.Optimizer, steps: int) -> Optimizer:
    """The optimizer of a job.

    Args:
        spec: what was asked for.
        steps: T, which schedules run over.
    """
    descent = Descent(spec.learning_rate, _schedule(spec, steps), spec.weight_decay, spec.decay == "coupled")
    if spec.kind == "dp_sgd":
        return DpSgd(descent, spec.momentum, spec.free_step)
    if spec.kind == "dp_adam":
        return DpAdam(descent, spec.betas, spec.eps)
    if spec.kind == "dp_adambc":
        return DpAdamBc(descent, spec.betas, spec.eps_root)
    if spec.kind == "dp_rmsprop":
        return DpRmsProp(descent, spec.beta, spec.eps)
    if spec.kind == "dp_adagrad":
        return DpAdaGrad(descent, spec.eps)
    return _elaborate(spec, descent, steps)


def _elaborate(
    spec: specs.Dp2RmsProp | specs.Dp2AdaGrad | specs.Dp2Yogi | specs.ScaleThenPrivatize | specs.AdaDps | specs.PdaDpmd,
    descent: Descent,
    steps: int,
) -> Optimizer:
    """Those that divide gradients before the clip, or have public side information."""
    if spec.kind == "pda_dpmd":
        return PdaDpmd(descent, spec.horizon or steps)
    if spec.kind == "ada_dps":
        return AdaDps(descent, spec.beta, spec.eps)
    if spec.kind == "scale_then_privatize":
        betas = spec.betas or ((0.9, 0.999) if spec.base == "adam" else (0.0, 0.9))
        return ScaleThenPrivatize(descent, spec.base, betas, spec.eps, spec.eps_root, spec.eps_scale)
    adaptive = replace(descent, learning_rate=spec.learning_rate_adaptive)
    return Dp2(descent, adaptive, _moment(spec), phases_of(spec), spec.eps, spec.debias)


def _moment(spec: specs.Dp2RmsProp | specs.Dp2AdaGrad | specs.Dp2Yogi) -> SecondMoment:
    if spec.kind == "dp2_adagrad":
        return AdaGradMoment()
    return RmsPropMoment(spec.beta) if spec.kind == "dp2_rmsprop" else YogiMoment(spec.beta)


def _schedule(spec: specs.OptimizerSettings, steps: int) -> Schedule:
    schedule = spec.schedule
    if schedule.kind == "warmup_linear":
        return WarmupLinear(steps, schedule.warmup)
    if schedule.kind == "cosine":
        return Cosine(steps, schedule.final)
    return CONSTANT
