"""Networks without BatchNorm against a linear probe: WRN-16-4 with GroupNorm and conv5, small, by DP-SGD.

    make reproduce-group-norm                      # this file: real images of 8 × 8, few steps, on a processor
    make reproduce-group-norm DATA=cifar10.npz     # wide_residual.py: the recipe of De et al. 2022, on a GPU

Each learning rate is searched on a validation split by a seed of its own, uphill in steps of 2; other seeds are scored
on the test images. Every run is kept in group_norm.json.gz: an interrupted experiment goes on.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch

from benchmarks.reproduce.dp2_data import validating
from benchmarks.reproduce.group_norm_text import TEXT, VERDICT
from benchmarks.reproduce.linear_scaling_data import CLOTHES, TENSOR
from benchmarks.reproduce.rate_data import cache_folder
from benchmarks.reproduce.runs import REPORTS, Data, Kept, machine, paired, run, uphill
from worker.data.records import DenseRecords

SIDE, TRAIN, TEST, VALIDATION = 8, 10_000, 1_000, 0.1
EPSILONS, DELTA, CLIP = (1.0, 3.0, 8.0), 1e-5, 1.0
SEARCHED, JUDGED = 0, (1, 2, 3, 4, 5)
RATES = tuple(2.0**power for power in range(-7, 7))
IMAGE = {"height": SIDE, "width": SIDE, "channels": 1}


@dataclass(frozen=True)
class Network:
    """What is trained, for how many steps of how many records.

    Attributes:
        model: of the JobSpec.
        first: where the walk over `RATES` begins.
        searched_at: the ε whose rate is taken for all; None: each has its own.
    """

    model: tuple[tuple[str, Any], ...]
    batch: int
    steps: int
    first: float
    searched_at: float | None = None

    def job(self, epsilon: float, rate: float) -> dict[str, Any]:
        """A JobSpec, less its data set and seed."""
        return {
            "model": dict(self.model),
            "optimizer": {"kind": "dp_sgd", "learning_rate": rate},
            "sampling": {"kind": "poisson", "expected_batch_size": self.batch},
            "length": {"steps": self.steps},
            "clipping": {"kind": "flat", "max_grad_norm": CLIP},
            "privacy": {"target_epsilon": epsilon, "target_delta": DELTA},
            "evaluation": {"points": 1},
        }


def _cnn(preset: str, batch: int, steps: int, first: float) -> Network:
    model = {"kind": "cnn", "preset": preset, "activation": "relu", "image": IMAGE}
    return Network(tuple(model.items()), batch, steps, first)


LONG, SHORT = ", 100 steps", ", 16 steps"  # WRN-16-4 has as many as a processor affords, and the others as many again
PROBE = "linear probe"
NETWORKS = {
    PROBE + LONG: Network((("kind", "linear"),), 256, 100, 2.0),
    "conv5" + LONG: _cnn("conv5", 256, 100, 1.0),
    PROBE + SHORT: Network((("kind", "linear"),), 192, 16, 2.0),
    "conv5" + SHORT: _cnn("conv5", 192, 16, 1.0),
    "WRN-16-4" + SHORT: replace(_cnn("wrn16_4", 192, 16, 1.0), searched_at=3.0),
}


@cache
def images(validation: bool) -> Data:
    """Clothes (Fashion-MNIST), padded to 32 × 32 and averaged to 8 × 8; the training part's first records.

    Args:
        validation: a tenth of the training records is held out, and the test images are not read.
    """

    def part(name: str, count: int) -> DenseRecords:
        with np.load(cache_folder() / f"fashion-mnist{name}.npz") as stored:
            x, y = stored["x"][:count].reshape(-1, 28, 28), stored["y"][:count]
        wide = np.pad(x, ((0, 0), (2, 2), (2, 2))).reshape(-1, SIDE, 32 // SIDE, SIDE, 32 // SIDE).mean((2, 4))
        return DenseRecords(torch.from_numpy(wide.reshape(len(x), -1).astype(np.float32)), torch.from_numpy(y).long())

    train = part("", TRAIN)
    whole = Data(CLOTHES, TENSOR, train, train if validation else part("-test", TEST), SIDE**2, 10)
    return validating(whole, VALIDATION) if validation else whole


class OutOfTime(Exception):
    """What is left is for the next call."""


class Lab:
    """Runs, made or remembered.

    Args:
        until: time.monotonic() after which no run begins.
    """

    def __init__(self, until: float) -> None:
        self._until, self._kept = until, Kept(REPORTS / "group_norm.json.gz")

    def accuracy(self, name: str, epsilon: float, rate: float, seed: int) -> float:
        """In per cent: on the validation split for the seed of the search, else on the test images."""
        asked = NETWORKS[name].job(epsilon, rate)

        def answer() -> dict[str, Any]:
            if time.monotonic() > self._until:
                raise OutOfTime
            done = run(images(seed == SEARCHED), asked, seed=seed)
            print(
                f"{name}, ε = {epsilon:g}, {rate:g}, {seed}: {done.last('accuracy')}, {done.seconds:.0f} s", flush=True
            )
            return done.rounded()

        found = self._kept.get({"network": name, "job": asked, "seed": seed}, answer)
        return 100.0 * float(found["metrics"]["accuracy"][-1][1])

    def rate(self, name: str, epsilon: float) -> float:
        """The one with the highest accuracy on the validation split."""
        network = NETWORKS[name]
        first, epsilon = RATES.index(network.first), network.searched_at or epsilon
        return uphill(lambda rate: self.accuracy(name, epsilon, rate, SEARCHED), RATES, first)


Scores = dict[tuple[str, float], tuple[float, list[float]]]  # by network and ε: its rate, and each seed's accuracy


def found(lab: Lab, seeds: tuple[int, ...]) -> Scores:
    """What is kept or can be made: cells of which nothing is there are left out."""
    scores: Scores = {}
    cells = list(itertools.product(NETWORKS, EPSILONS))
    for seed in seeds:  # a seed of every cell before the next seed
        for name, epsilon in cells:
            with suppress(OutOfTime):
                rate = lab.rate(name, epsilon)
                accuracy = lab.accuracy(name, epsilon, rate, seed)
                scores.setdefault((name, epsilon), (rate, []))[1].append(accuracy)
    return scores


def table(scores: Scores) -> str:
    """A row for each network, a column for each ε."""
    lines = ["| network | batch × steps | " + " | ".join(f"ε = {each:g}: rate, accuracy" for each in EPSILONS) + " |"]
    lines.append("|---|---|" + "---|" * len(EPSILONS))
    for name, network in NETWORKS.items():
        cells = [_cell(scores, name, epsilon) for epsilon in EPSILONS]
        lines.append(f"| {name} | {network.batch} × {network.steps} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(scores: Scores, name: str, epsilon: float) -> str:
    if (name, epsilon) not in scores:
        return "not run"
    rate, values = scores[name, epsilon]
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    text = f"{rate:g}: {statistics.mean(values):.1f}{spread} ({len(values)})"
    probe = PROBE + (LONG if name.endswith(LONG) else SHORT)
    if name != probe and (probe, epsilon) in scores:
        others = scores[probe, epsilon][1]
        both = min(len(values), len(others))
        text += f", {paired(values[:both], others[:both])}"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1e6, help="no run is begun after so many")
    parser.add_argument("--seeds", type=int, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    scores = found(Lab(time.monotonic() + 60.0 * asked.minutes), JUDGED[: asked.seeds])
    (REPORTS / "group_norm.md").write_text(
        TEXT.format(table=table(scores), verdict=VERDICT.strip(), machine=machine()), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
