"""Linear models on classes with a heavy tail: DP-GD, DP-GDM, DP-Adam and DP-AdamBC, loss and accuracy by class size.

The setting of "On the Performance of Differentially Private Optimization with Heavy-Tail Class Imbalance", section 3
and appendix C. With g records a group, group k has 2ᵏ classes of g/2ᵏ records, as long as that is 5 or more; inputs are
uniform on [0, 1]^d, d = g + n, and know nothing of the labels; full batches; the training records are scored.
g = 1024 is the paper's: n = 8192, d = 9216, 255 classes. Smaller problems keep what decides (see `Problem`).

    python -m benchmarks.reproduce.heavy_tail [--size eighth | quarter | half | full] [--minutes 50]

tunes at an eighth, repeats the best settings there with five seeds, and runs them at larger sizes up to the one asked
for: `full` is some hours of one core. What `--minutes` cuts off is continued by the next call. Finished runs are kept
beside the report, and a run that is there is not run again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from benchmarks.reproduce.four import Chosen, Grid, Setting, Tried, lowest_loss
from benchmarks.reproduce.heavy_tail_anatomy import anatomy
from benchmarks.reproduce.heavy_tail_problem import PAPER_NOISE, Problem, job
from benchmarks.reproduce.heavy_tail_report import Study, write_report
from benchmarks.reproduce.runs import REPORTS, ROOT, Checkpoint, Kept, run

sys.path.append(str(ROOT / "scripts"))
from fetch_data import cache_folder

SIZES = {"eighth": 128, "quarter": 256, "half": 512, "full": 1024}
VARIANTS = {"C = 10": (10.0, 10.0), "σ = 5": (1.0, 5.0)}  # C, and σ at the paper's size
SEEDS = (1, 2, 3, 4, 5)
POINTS = 25  # at which a run is scored, where its course is shown

# Half powers of η, as in the paper, in the units of Setting; γ and γ′ too, where the paper does not say which.
DEVIATION = Problem(SIZES["full"]).noise_deviation
PHI = DEVIATION**2
ETAS = (1e-4, 5e-4, 1e-3, 5e-3)
PAPER_GRID = {
    "DP-GD": [Setting("DP-GD", rate) for rate in (0.05, 0.1, 0.5, 1.0, 5.0)],
    "DP-GDM": [Setting("DP-GDM", eta / 0.1) for eta in (0.01, 0.05, 0.1, 0.5)],
    "DP-Adam": [Setting("DP-Adam", eta / DEVIATION) for eta in ETAS],
    "DP-AdamBC": [
        Setting("DP-AdamBC", eta / DEVIATION, root / PHI) for root in (1e-8, 5e-8, 1e-7, 5e-7, 1e-6) for eta in ETAS
    ],
}
FINE_GRID = {
    "DP-GD": [Setting("DP-GD", rate) for rate in (0.1, 0.2, 0.35, 0.5, 0.7, 1.0)],
    "DP-GDM": [Setting("DP-GDM", rate) for rate in (0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8)],
    "DP-Adam": [
        Setting("DP-Adam", rate, guard)
        for guard, rates in {0.0: (0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8), 1.0: (2.8, 4.0)}.items()
        for rate in rates
    ],
    "DP-AdamBC": [
        Setting("DP-AdamBC", rate, guard)
        for guard, rates in {
            0.01: (0.05, 0.1, 0.2, 0.35),
            0.05: (0.1, 0.2, 0.35, 0.5, 0.7),
            0.2: (0.2, 0.35, 0.5, 0.7, 1.0, 1.4),
            1.0: (1.0, 1.4, 2.0),
        }.items()
        for rate in rates
    ],
}
VARIANT_GRID = {
    "DP-GD": [Setting("DP-GD", rate) for rate in (0.1, 0.2, 0.35, 0.5)],
    "DP-GDM": [Setting("DP-GDM", rate) for rate in (1.0, 1.4, 2.0)],
    "DP-Adam": [
        Setting("DP-Adam", rate, guard)
        for guard, rates in {0.0: (0.5, 0.7, 1.0, 1.4, 2.0), 1.0: (1.4, 2.0, 2.8, 4.0)}.items()
        for rate in rates
    ],
    "DP-AdamBC": [Setting("DP-AdamBC", rate, guard) for guard in (0.05, 0.2, 0.5) for rate in (0.35, 0.5, 0.7, 1.0)],
}


class OutOfTime(Exception):
    """What is left is for the next call."""


class Experiment:
    """Runs, kept by what was asked.

    Args:
        minutes: after which no more is computed.
    """

    def __init__(self, minutes: float) -> None:
        self.kept = Kept(REPORTS / "heavy_tail.json.gz")
        self.deadline = time.monotonic() + 60.0 * minutes

    def result(self, problem: Problem, setting: Setting, seed: int, points: int = 1) -> dict[str, Any]:
        question = {"problem": asdict(problem), "setting": asdict(setting), "seed": seed, "points": points}
        return self.kept.get(question, lambda: self._run(question, problem, setting, seed, points))

    def tuned(self, problem: Problem, grid: Grid) -> Tried:
        """Every setting of a grid with its run, by optimizer."""
        return {name: [(each, self.result(problem, each, seed=0)) for each in grid[name]] for name in grid}

    def study(self, name: str, problem: Problem, tried: Tried, chosen: Chosen, seeds: Sequence[int]) -> Study:
        """The chosen settings with other seeds; where time is out, those that are done, if there are any."""
        runs: dict[str, list[dict[str, Any]]] = {}
        for optimizer, each in chosen.items():
            with suppress(OutOfTime):
                runs[optimizer] = [self.result(problem, each, seed, POINTS) for seed in seeds]
        if not runs:
            raise OutOfTime
        return Study(name, problem, tried, chosen, runs)

    def _run(self, question: dict[str, Any], problem: Problem, setting: Setting, seed: int, points: int) -> Any:
        name = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:16]
        checkpoint = Checkpoint(cache_folder() / "reproduce" / f"heavy_tail-{name}.pt")
        result = run(problem.data, job(problem, setting, points), seed=seed, watch=self._in_time, checkpoint=checkpoint)
        print(problem, setting, f"loss {result.last('loss'):.3f}, {result.seconds:.0f} s", flush=True)
        return result.rounded()

    def _in_time(self, *_: Any) -> None:
        if time.monotonic() > self.deadline:
            raise OutOfTime


def studies(experiment: Experiment, size: str) -> Iterator[Study]:
    """What the report shows, in order of what matters most, as far as there is time."""
    base = Problem(SIZES["eighth"])
    tried = experiment.tuned(base, PAPER_GRID)
    yield experiment.study("paper's grid", base, tried, as_paper := lowest_loss(tried), SEEDS)
    tried = experiment.tuned(base, FINE_GRID)
    yield experiment.study("fine grid", base, tried, finer := lowest_loss(tried), SEEDS)
    for variant, (clip, noise) in VARIANTS.items():
        problem = replace(base, clip=clip, noise=noise)
        # With half the noise there are a quarter of the steps; DP-GD, at its limit, cannot make them larger.
        haste = (PAPER_NOISE / noise) ** 2
        grid = {
            name: [each if name == "DP-GD" else replace(each, rate=each.rate * haste) for each in settings]
            for name, settings in VARIANT_GRID.items()
        }
        tried = experiment.tuned(problem, grid)
        yield experiment.study(variant, problem, tried, lowest_loss(tried), SEEDS)
    for larger in list(SIZES)[1 : list(SIZES).index(size) + 1]:
        yield experiment.study(f"{larger}, paper's grid", Problem(SIZES[larger]), {}, as_paper, SEEDS[:1])
        if larger == "quarter":
            yield experiment.study(f"{larger}, fine grid", Problem(SIZES[larger]), {}, finer, SEEDS[:1])


def looks(experiment: Experiment, base: Study) -> list[tuple[Setting, dict[str, Any]]]:
    """What second moments see, under the settings that the paper's grid gave."""
    found = []
    for name in ("DP-Adam", "DP-AdamBC"):
        setting = base.chosen[name]
        question = {"anatomy": asdict(base.problem), "setting": asdict(setting), "seed": SEEDS[0]}
        seen = experiment.kept.get(question, lambda at=setting: anatomy(base.problem, at, SEEDS[0]))  # type: ignore[misc]
        found.append((setting, seen))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(SIZES), default="half", help="of the largest runs")
    parser.add_argument("--minutes", type=float, default=1e6, help="after which to stop")
    arguments = parser.parse_args()
    experiment = Experiment(arguments.minutes)
    done: list[Study] = []
    try:
        for study in studies(experiment, arguments.size):
            done.append(study)
    except OutOfTime:
        print("Out of time: the same command goes on from here")
    if len(done) >= 2:
        print(write_report(done, looks(experiment, done[0])))


if __name__ == "__main__":
    main()
