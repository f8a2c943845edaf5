"""Differentially private training for any torch module, by the engine of the service.

    result = engine.train(model, loss, data, target_epsilon=3, delta=1e-5, steps="auto")
    optimizer, step = engine.make_private(model, loss, optimizer, sample_rate=0.01, noise_multiplier=1.1)

`train` and `step` draw records themselves, clip each one's gradient exactly, add noise that is rounded correctly, and
say what it cost. Below them are functions: `clipped_sum`, `release`, `account`. See docs/engine.md.
"""

from core.contracts.optimizers import DpAdaGrad, DpAdam, DpAdamBc, DpAdamWosm, DpRmsProp, DpSgd
from core.errors import InvalidRequest, PrivacyError
from scrimp.engine.errors import MisusedError
from scrimp.engine.model import LoopSettings
from scrimp.engine.own_loop import Private, Step, make_private
from scrimp.engine.pure import PrivateSum, account, clipped_sum, event_of, noise_multiplier, release
from scrimp.engine.report import Report
from scrimp.engine.training import Result, Settings, train
from worker.clipping.examined import UnfitLayerError

__all__ = [
    "DpAdaGrad",
    "DpAdam",
    "DpAdamBc",
    "DpAdamWosm",
    "DpRmsProp",
    "DpSgd",
    "InvalidRequest",
    "LoopSettings",
    "MisusedError",
    "PrivacyError",
    "Private",
    "PrivateSum",
    "Report",
    "Result",
    "Settings",
    "Step",
    "UnfitLayerError",
    "account",
    "clipped_sum",
    "event_of",
    "make_private",
    "noise_multiplier",
    "release",
    "train",
]
