"""Barcode MNIST with a convolutional network: DP-GD, DP-GDM, DP-Adam and DP-AdamBC, loss and accuracy by class size.

Appendix B of "On the Performance of Differentially Private Optimization with Heavy-Tail Class Imbalance", on a stand-in
(see barcode_data). Poisson batches; the training records are scored; of each optimizer the rate with the lowest
training loss is shown. Finished runs are kept beside the report, and a run that is there is not run again.

    python -m benchmarks.reproduce.barcode_mnist [--minutes 30]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from typing import Any

from benchmarks.reproduce.barcode_data import barcode_mnist
from benchmarks.reproduce.barcode_report import write_report
from benchmarks.reproduce.four import Grid, Setting, Tried
from benchmarks.reproduce.runs import REPORTS, Kept, run

CLIP, NOISE, BATCH, STEPS, DELTA = 1.0, 0.5, 256, 150, 1e-4
DEVIATION = NOISE * CLIP / BATCH  # √Φ
SEED = 0
GRID: Grid = {
    "DP-GD": [Setting("DP-GD", rate) for rate in (2.5, 7.5)],
    "DP-GDM": [Setting("DP-GDM", rate) for rate in (2.5, 7.5)],
    "DP-Adam": [Setting("DP-Adam", rate) for rate in (2.5, 7.5)],
    "DP-AdamBC": [Setting("DP-AdamBC", rate, 0.3) for rate in (1.3, 4.0)],
}


def job(setting: Setting) -> dict[str, Any]:
    return {
        "model": {"kind": "cnn", "preset": "conv2"},
        "optimizer": setting.spec(1.0, DEVIATION, 0.999),
        "sampling": {"kind": "poisson", "expected_batch_size": BATCH},
        "length": {"steps": STEPS},
        "clipping": {"kind": "flat", "max_grad_norm": CLIP},
        "privacy": {"noise_multiplier": NOISE, "target_delta": DELTA},
        "evaluation": {"points": 3, "by_frequency": True},
    }


class OutOfTime(Exception):
    """What is left is for the next call."""


class Experiment:
    """Runs, kept by what was asked.

    Args:
        minutes: after which no run begins.
    """

    def __init__(self, minutes: float) -> None:
        self.data, self.kept = barcode_mnist(), Kept(REPORTS / "barcode_mnist.json.gz")
        self.deadline = time.monotonic() + 60.0 * minutes

    def result(self, setting: Setting) -> dict[str, Any]:
        question = {"job": job(setting), "setting": asdict(setting), "seed": SEED}
        return self.kept.get(question, lambda: self._run(setting))

    def _run(self, setting: Setting) -> dict[str, Any]:
        if time.monotonic() > self.deadline:
            raise OutOfTime
        done = run(self.data, job(setting), seed=SEED)
        print(setting.optimizer, setting, f"loss {done.last('loss'):.3f}, {done.seconds:.0f} s", flush=True)
        return done.rounded()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1e6, help="after which no run begins")
    experiment = Experiment(parser.parse_args().minutes)
    tried: Tried = {name: [] for name in GRID}
    try:
        for nth in range(max(map(len, GRID.values()))):
            for name, settings in GRID.items():
                tried[name] += [(each, experiment.result(each)) for each in settings[nth : nth + 1]]
    except OutOfTime:
        print("Out of time: the same command goes on from here")
    if all(tried.values()):
        print(write_report(tried))


if __name__ == "__main__":
    main()
