"""DP² and its rivals on IMDB reviews and MovieLens-100k, as in the paper's Figures 4 to 7. `make reproduce-dp2`.

    python -m benchmarks.reproduce.dp2 [--only PART] [--seeds N]

Finished runs are kept in benchmarks/reports/reproduce/dp2.json.gz and dp2_long.json.gz; delete them to begin anew.
Parts:
tuning, short (all optimizers), judged (three of them by five seeds), long (100 epochs), paper (the paper's own values),
paper-long (the same by 100 epochs and three seeds), delay, ablations, privacy, ratings.

Source: Li, Zaheer, Liu, Reddi, McMahan & Smith 2023, "Differentially private adaptive optimization with delayed
preconditioners".
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch

from benchmarks.reproduce import dp2_data, dp2_report
from benchmarks.reproduce.dp2_lab import (
    METRIC,
    PRIVATE,
    RATED,
    SIGMA,
    TUNING_EPOCHS,
    TUNING_SEED,
    Setting,
    answer,
    rdp_epsilon,
)
from benchmarks.reproduce.dp2_settings import (
    ABLATIONS,
    DELAYS,
    GRID,
    JUDGED,
    LONG,
    LONG_EPOCHS,
    PAPER,
    PAPER_EPOCHS,
    PAPER_LONG,
    PAPER_SEEDS,
    PRIVACY,
    RATINGS,
    RATINGS_EPOCHS,
    SEEDS,
    SHORT_EPOCHS,
    SWEEP_EPOCHS,
)
from benchmarks.reproduce.runs import REPORTS, Data, Kept

KEPT, KEPT_LONG = (
    REPORTS / "dp2.json.gz",
    REPORTS / "dp2_long.json.gz",
)  # two: long runs go on beside others
Chosen = dict[str, Setting]
Entries = list[tuple[str, Setting, dict[str, Any]]]  # a name, its setting, what it gave


@cache
def data(scored: str) -> Data:
    """As a run's `scored` says."""
    if scored.startswith("ratings"):
        ratings = dp2_data.ratings()
        return dp2_data.on_training(ratings) if scored.endswith("training") else ratings
    words = "words" in scored
    reviews = dp2_data.reviews(unit_length=not words and "raw" not in scored, words=words)
    if scored == "validation":
        return dp2_data.validating(reviews)
    return dp2_data.on_training(reviews) if scored == "training" else reviews


def tuned(
    kept: Kept, grid: dict[str, list[Setting]], task: str = PRIVATE, by: str = "training"
) -> tuple[Chosen, Entries]:
    """Of each name's settings the best, and all that was tried.

    Args:
        by: `training`: the score of records that are trained on; `validation`: of a validation split.
    """
    scored, epochs = by if task == PRIVATE else f"ratings, {by}", TUNING_EPOCHS[task]
    tried: Entries = []
    chosen: Chosen = {}
    for name, settings in grid.items():
        runs = [
            (each, answer(kept, data(scored), each, epochs=epochs, seed=TUNING_SEED, scored=scored, task=task))
            for each in settings
        ]
        tried += [(name, *each) for each in runs]
        sign = 1.0 if task == PRIVATE else -1.0
        chosen[name] = max(runs, key=lambda each: sign * last(each[1], task))[0]
    return chosen, tried


def last(result: dict[str, Any], task: str = PRIVATE) -> float:
    return float(result["metrics"][METRIC[task]][-1][1])


def main_runs(kept: Kept, chosen: Chosen, epochs: float, seeds: int, scored: str = "holdout") -> Entries:
    """Seed by seed, so that what is cut off has as many of each."""
    return [
        (name, setting, answer(kept, data(scored), setting, epochs=epochs, seed=seed, scored=scored))
        for seed in range(seeds)
        for name, setting in chosen.items()
    ]


def paper_runs(kept: Kept) -> Entries:
    """The paper's own values, on rows of zeros and ones."""
    return [
        (name, setting, answer(kept, data("holdout, raw"), setting, epochs=SWEEP_EPOCHS, seed=0, scored="holdout, raw"))
        for name, setting in PAPER.items()
    ]


def sweep(kept: Kept, settings: Iterable[tuple[str, Setting, float]]) -> Entries:
    """Shorter runs with one seed: a name, a setting and σ."""
    return [
        (
            name,
            setting,
            answer(kept, data("holdout"), setting, epochs=SWEEP_EPOCHS, seed=0, scored="holdout", sigma=sigma)
            | {"sigma": sigma},
        )
        for name, setting, sigma in settings
    ]


def delay_runs(kept: Kept, chosen: Chosen) -> Entries:
    setting = chosen["DP2-RMSProp"]
    return sweep(kept, ((str(delay), setting | {"delay": delay}, SIGMA[PRIVATE]) for delay in DELAYS))


def ablation_runs(kept: Kept, chosen: Chosen) -> Entries:
    own, tried = tuned(kept, ABLATIONS)
    del tried
    every = {"DP2-RMSProp": chosen["DP2-RMSProp"], **own}
    return sweep(kept, ((name, setting, SIGMA[PRIVATE]) for name, setting in every.items()))


def privacy_runs(kept: Kept, chosen: Chosen) -> Entries:
    names, sigmas = PRIVACY
    return sweep(kept, ((name, chosen[name], sigma) for sigma in sigmas for name in names))


def rating_runs(kept: Kept) -> Entries:
    chosen, _ = tuned(kept, RATINGS, RATED)
    return [
        (name, each, answer(kept, data("ratings"), each, epochs=RATINGS_EPOCHS, seed=0, scored="ratings", task=RATED))
        for name, each in chosen.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1, help="of the main table")
    parser.add_argument("--only", help="one part, and no report")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kept = Kept(KEPT)
    chosen, tried = tuned(kept, GRID)
    parts: dict[str, Callable[[], Entries]] = {
        "tuning": lambda: tried,
        "short": lambda: main_runs(kept, chosen, SHORT_EPOCHS, options.seeds),
        "judged": lambda: main_runs(kept, tuned(kept, JUDGED, by="validation")[0], SHORT_EPOCHS, SEEDS),
        "long": lambda: main_runs(Kept(KEPT_LONG), {name: chosen[name] for name in LONG}, LONG_EPOCHS, 1),
        "paper": lambda: paper_runs(kept),
        "paper-long": lambda: main_runs(Kept(KEPT_LONG), PAPER_LONG, PAPER_EPOCHS, PAPER_SEEDS, "holdout, words"),
        "delay": lambda: delay_runs(kept, chosen),
        "ablations": lambda: ablation_runs(kept, chosen),
        "privacy": lambda: privacy_runs(kept, chosen),
        "ratings": lambda: rating_runs(kept),
    }
    if options.only:
        parts[options.only]()
        return
    found = {name: part() for name, part in parts.items()}
    some, lengths = chosen["DP-SGD"], {"short": SHORT_EPOCHS, "long": LONG_EPOCHS}
    print(dp2_report.write(found, {name: rdp_epsilon(data("holdout"), some, each) for name, each in lengths.items()}))


if __name__ == "__main__":
    main()
