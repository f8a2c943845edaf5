"""Is an average of the iterates a better model than the last one, at the same charge? Linear models, DP-SGD.

    python -m benchmarks.reproduce.averaging    # minutes; resumable; writes benchmarks/reports/reproduce/averaging.md

Averages are post-processing, so one run has all endings: the last iterate, the free step, tails and a moving average.
They are compared at the rate of `learning_rate: auto` and at the best of its multiples. Every run is kept in
averaging.json.gz. The grid below was fixed before the first run.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from functools import cache

import torch

from app.hpo.rates import CALIBRATED
from benchmarks.reproduce.rate_data import data
from benchmarks.reproduce.rate_fit import eta
from benchmarks.reproduce.rate_runs import Setting, job
from benchmarks.reproduce.runs import REPORTS, Kept, machine, run
from worker.models.base import Parameters
from worker.models.linear import Linear
from worker.optimizers.averaging import Moving, Tail, Weights
from worker.optimizers.base import State

SETS = ("imdb", "fashion frozen", "rotten tomatoes")
EPSILONS = (1.0, 4.0)
LENGTHS = (30, 100)
MULTIPLES = (0.5, 1.0, 2.0, 4.0, 8.0)
SEEDS = (0, 1)
AVERAGES: dict[str, Callable[[int], Weights]] = {
    "tail, a quarter": lambda steps: Tail(steps, 0.25),
    "tail, half": lambda steps: Tail(steps, 0.5),
    "moving, 0.9": lambda _: Moving(0.9),
    "moving, 0.97": lambda _: Moving(0.97),
}
ENDINGS = ("free step", "last iterate", *AVERAGES)

kept = Kept(REPORTS / "averaging.json.gz")

TEXT = """# The last iterate or an average?

`python -m benchmarks.reproduce.averaging`. Linear models without a bias, DP-SGD, β = 0.9, C = 1, full batches,
δ = 1e-5, {seeds} seeds, held-out accuracy in per cent. All endings of a row come from the same runs: they cost the same
ε. "At auto" is at the rate of `learning_rate: auto`, which was calibrated with the free step; "best" is the best of
{multiples} times this rate, chosen on the records that it is judged by.

{table}

{verdict}

Machine: {machine}
"""


@cache
def accuracies(name: str, steps: int, epsilon: float, multiple: float, seed: int) -> dict[str, float]:
    """Held-out accuracy of one run, for each ending."""
    setting = Setting(steps=steps)
    asked = job(name, setting, epsilon, multiple * eta((name, setting, epsilon), CALIBRATED))
    question = {"data": name, "steps": steps, "epsilon": epsilon, "seed": seed}
    question["eta"] = asked["optimizer"]["learning_rate"]
    return kept.get(question, lambda: _trained(name, asked, steps, seed))


def _trained(name: str, asked: dict[str, dict[str, float]], steps: int, seed: int) -> dict[str, float]:
    them = data(name)
    model = Linear(them.features_count, them.outputs)
    means: dict[str, Parameters] = {}
    last: Parameters = {}

    def watch(step: int, iterate: Parameters, state: State) -> None:
        for ending, weights in AVERAGES.items():
            weight = weights(steps).at(step)
            for key, value in iterate.items():
                mean = means.setdefault(ending, {}).setdefault(key, torch.zeros_like(value))
                mean.add_((value - mean).mul_(weight))
        if step == steps:
            last.update({key: value.clone() for key, value in iterate.items()})

    done = run(them, asked, seed=seed, watch=watch)
    found = {"free step": done.parameters, "last iterate": last, **means}
    return {
        ending: round(
            float(model.correct(model.forward(found[ending], them.holdout), them.holdout.labels).double().mean()), 5
        )
        for ending in ENDINGS
    }


def mean(name: str, steps: int, epsilon: float, multiple: float, ending: str) -> float:
    """In per cent, over the seeds."""
    return 100.0 * sum(accuracies(name, steps, epsilon, multiple, seed)[ending] for seed in SEEDS) / len(SEEDS)


def main() -> None:
    torch.set_num_threads(1)
    lines = [f"| set, T, ε | {' | '.join(f'{each}: at auto / best (×)' for each in ENDINGS)} |"]
    lines.append(f"|---|{'---|' * len(ENDINGS)}")
    gains: dict[str, tuple[list[float], list[float]]] = {each: ([], []) for each in ENDINGS}
    for name, steps, epsilon in itertools.product(SETS, LENGTHS, EPSILONS):
        row, base = [], None
        for ending in ENDINGS:
            at = mean(name, steps, epsilon, 1.0, ending)
            best, times = max((mean(name, steps, epsilon, each, ending), -each) for each in MULTIPLES)
            base = base or (at, best)
            gains[ending][0].append(at - base[0])
            gains[ending][1].append(best - base[1])
            row.append(f"{at:.1f} / {best:.1f} (×{-times:g})")
        lines.append(f"| {name}, {steps}, {epsilon:g} | {' | '.join(row)} |")
        print(lines[-1], file=sys.stderr, flush=True)
    verdict = "Against the free step, in points, mean over the rows (worst row):\n\n" + "\n".join(
        f"* {ending}: at auto {_summary(at)}, each at its best rate {_summary(best)}"
        for ending, (at, best) in gains.items()
    )
    multiples = ", ".join(f"{each:g}" for each in MULTIPLES)
    text = TEXT.format(
        seeds=len(SEEDS), multiples=multiples, table="\n".join(lines), verdict=verdict, machine=machine()
    )
    (REPORTS / "averaging.md").write_text(text)


def _summary(gains: list[float]) -> str:
    return f"{sum(gains) / len(gains):+.2f} ({min(gains):+.2f})"


if __name__ == "__main__":
    main()
