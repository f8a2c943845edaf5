"""Tries `learning_rate: auto` where nothing was calibrated: small networks, by a grid that was fixed before any run.

    python -m benchmarks.reproduce.rate_networks            # some twenty minutes of one core, resumable
    python -m benchmarks.reproduce.rate_networks --seeds 2  # each run twice

The reasoning under trial: a network at its start is a linear model of its tangent features, so the linear rule holds
with J, the length of an output's gradient, in the place of ‖x‖ (app/hpo/tangents.py). The grid is that rate times
powers of 2. Every run is kept in benchmarks/reports/reproduce/rate_networks.json.gz.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import torch

from app.admission.job_rules import check
from app.hpo.rates import Constants, PublicNumbers, Ruled, rate_of
from app.hpo.tangents import tangent_length
from benchmarks.reproduce import rate_data
from benchmarks.reproduce.linear_scaling_data import CLOTHES, TENSOR
from benchmarks.reproduce.rate_data import cache_folder
from benchmarks.reproduce.runs import REPORTS, Data, Kept
from core.contracts.job_spec import JobSpec
from core.privacy.pricing import price
from worker.data.records import DenseRecords

DELTA, EPSILONS = 1e-5, (1.0, 8.0)
ANCHOR = Constants(kappa=0.92, most_clipped=6.0, dense=0.45, words=4.4)  # the linear model's, whatever becomes of them
IMAGES, TEST = 10_000, 2_000
kept = Kept(REPORTS / "rate_networks.json.gz")


@dataclass(frozen=True)
class Way:
    """How a cell trains.

    Attributes:
        optimizer: its kind; the momentum is dp_sgd's.
        batch: the expected batch of Poisson sampling; None: full batch.
        powers: of 2, the grid's factors on the anchor's rate.
    """

    optimizer: str
    momentum: float
    steps: int
    batch: int | None
    powers: tuple[int, ...]

    def __str__(self) -> str:
        momentum = f", β = {self.momentum:g}" if self.optimizer == "dp_sgd" else ""
        sampling = "full batch" if self.batch is None else f"Poisson, {self.batch}"
        return f"{self.optimizer}{momentum}, T = {self.steps}, {sampling}"


@dataclass(frozen=True)
class Cell:
    """A data set, a network, how it trains, and ε."""

    name: str
    network: str
    way: Way
    epsilon: float

    def __str__(self) -> str:
        return f"{self.name}, {self.network}, {self.way}, ε = {self.epsilon:g}"


NETWORKS: dict[str, dict[str, Any]] = {
    "64 tanh": {"kind": "mlp", "hidden": [64]},
    "128, 64 ReLU": {"kind": "mlp", "hidden": [128, 64], "activation": "relu"},
    "conv2": {"kind": "cnn", "preset": "conv2"},
}
SGD = Way("dp_sgd", 0.9, 30, None, tuple(range(-4, 4)))
SAMPLED = Way("dp_sgd", 0.0, 120, 256, tuple(range(-4, 4)))
ADAM = Way("dp_adam", 0.0, 120, 256, tuple(range(-5, 3)))
CONV_SGD = Way("dp_sgd", 0.0, 120, 256, tuple(range(-3, 3)))
CONV_ADAM = Way("dp_adam", 0.0, 120, 256, tuple(range(-4, 2)))
SETS = ("small digits", "credit", "lending", "rotten tomatoes", "diamonds", "mnist", "fashion pixels")
DEEP_SETS = ("small digits", "lending", "mnist")
CELLS = (
    *(Cell(*each) for each in product(SETS, ("64 tanh",), (SGD, SAMPLED, ADAM), EPSILONS)),
    *(Cell(*each) for each in product(DEEP_SETS, ("128, 64 ReLU",), (SGD, ADAM), EPSILONS)),
    *(Cell(*each) for each in product(("mnist", "fashion images"), ("conv2",), (CONV_SGD, CONV_ADAM), EPSILONS)),
)


@cache
def data(name: str) -> Data:
    """One of the linear rule's sets, or the first images of Fashion-MNIST whole, 28 × 28."""
    if name != "fashion images":
        return rate_data.data(name)
    with np.load(cache_folder() / "fashion-mnist.npz") as stored:
        x, y = stored["x"][: IMAGES + TEST].reshape(IMAGES + TEST, -1), stored["y"][: IMAGES + TEST]
    parts = [
        DenseRecords(torch.from_numpy(x[part]), torch.from_numpy(y[part]))
        for part in np.split(np.arange(len(x)), [IMAGES])
    ]
    return Data(CLOTHES, TENSOR, parts[0], parts[1], 784, 10)


@cache
def length(name: str) -> float:
    """The median ‖x‖: what an owner would declare."""
    norms: torch.Tensor = data(name).train.private_norms  # type: ignore[attr-defined] - features, and public
    return float(norms.median())


def job(cell: Cell, learning_rate: float) -> dict[str, Any]:
    way = cell.way
    optimizer: dict[str, Any] = {"kind": way.optimizer, "learning_rate": float(f"{learning_rate:.4g}")}
    if way.optimizer == "dp_sgd":
        optimizer["momentum"] = way.momentum
    sampled = {"kind": "poisson", "expected_batch_size": way.batch}
    return {
        "model": NETWORKS[cell.network],
        "optimizer": optimizer,
        "clipping": {"kind": "flat", "max_grad_norm": 1.0},
        "sampling": {"kind": "full_batch"} if way.batch is None else sampled,
        "length": {"steps": way.steps},
        "privacy": {"target_epsilon": cell.epsilon, "target_delta": DELTA},
        "evaluation": {"points": 1},
    }


def spec(cell: Cell) -> JobSpec:
    return JobSpec.model_validate(job(cell, 1.0) | {"dataset": "ds_0"})


def sigma(cell: Cell) -> float:
    """σ, as the service prices it."""

    def priced() -> dict[str, float]:
        request = check(spec(cell), data(cell.name).facts()).pricing
        mechanism = price(request).mechanism if request else None
        if mechanism is None:
            raise TypeError("the experiment's jobs are private")
        return {"sigma": mechanism.training.noise_multiplier}

    return float(kept.get({"sigma of": str(cell)}, priced)["sigma"])


def numbers(cell: Cell) -> PublicNumbers:
    """What the rule sees."""
    them, asked = data(cell.name), spec(cell)
    tangent = tangent_length(asked.model, them.features_count, length(cell.name))
    if tangent is None:
        raise TypeError("the experiment's networks have a tangent length")
    return PublicNumbers(
        steps=cell.way.steps,
        expected_batch_size=cell.way.batch or len(them.train),
        noise_multiplier=sigma(cell),
        max_grad_norm=1.0,
        length=tangent,
        outputs=them.outputs,
    )


@cache
def anchor(cell: Cell) -> float:
    """The linear model's rule with J in the place of ‖x‖."""
    return rate_at(cell, ANCHOR)


def rate_at(cell: Cell, constants: Constants) -> float:
    """The rule's rate with these constants."""
    optimizer = spec(cell).optimizer
    if not isinstance(optimizer, Ruled):
        raise TypeError("the experiment's optimizers have a rule")
    return rate_of(optimizer, numbers(cell), constants).value


def accuracy(cell: Cell, learning_rate: float, seed: int) -> float:
    """The share of held-out records that one run classifies correctly."""
    return kept.accuracy(cell, lambda: data(cell.name), job(cell, learning_rate), seed)


def curve(cell: Cell, seeds: range) -> list[float]:
    """The mean accuracy at each rate of the grid."""
    rates = [anchor(cell) * 2.0**power for power in cell.way.powers]
    return [sum(accuracy(cell, rate, seed) for seed in seeds) / len(seeds) for rate in rates]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    seeds = range(parser.parse_args().seeds)
    torch.set_num_threads(1)
    began = time.process_time()
    for cell in CELLS:
        shown = " ".join(f"{100 * each:.1f}" for each in curve(cell, seeds))
        print(f"{time.process_time() - began:6.0f} s  {cell}: {anchor(cell):g}: {shown}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
