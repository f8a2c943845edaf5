"""What DP-AdamBC corrects, on Reuters R52: moments, fake Φ, γ′, DP-SGDM. `make reproduce-adambc-analysis`.

    python -m benchmarks.reproduce.adambc_analysis [--seeds N]

Finished runs are kept in benchmarks/reports/reproduce/adambc_analysis.json.gz; delete it to begin anew.

Source: Tang, Shpilevskiy & Lécuyer 2024, "DP-AdamBC: your DP-Adam is actually DP-SGD (unless you apply bias
correction)", Figures 1, 2, 4, 5 and Tables 1, 2.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch

from benchmarks.reproduce import adambc_moments, adambc_report
from benchmarks.reproduce.adambc_data import news
from benchmarks.reproduce.adambc_settings import (
    EPSILONS,
    FAKES,
    FLOORS,
    GAMMAS,
    GRID,
    SHOWN,
    TUNING_SEED,
    Setting,
    job,
    phi,
)
from benchmarks.reproduce.adambc_variants import VARIANTS
from benchmarks.reproduce.runs import REPORTS, Data, Kept, run

KEPT = REPORTS / "adambc_analysis.json.gz"
Tuned = dict[tuple[str, float], Setting]


@cache
def data(on_training: bool) -> Data:
    return news(on_training=on_training)


def answer(
    kept: Kept, setting: Setting, epsilon: float, seed: int, *, on_training: bool = False, variant: str = "as shipped"
) -> dict[str, Any]:
    """The metrics of a run, from the file where it was made before.

    Args:
        variant: what takes the optimizer's place (adambc_variants).
    """
    question = {"setting": setting, "epsilon": epsilon, "seed": seed, "variant": variant}

    def fresh() -> dict[str, Any]:
        result = run(data(on_training), job(setting, epsilon), seed=seed, optimizer=VARIANTS[variant])
        print(f"{result.last('accuracy'):.4f} in {result.seconds:.0f} s: {question}", flush=True)
        groups = {name: values[-1:] for name, values in result.metrics.items() if ":" in name}
        return result.kept() | {"metrics": result.metrics | groups}

    return kept.get(question | {"scored": "training" if on_training else "test"}, fresh)


def best(
    kept: Kept, settings: Iterable[Setting], epsilon: float, *, variant: str = "as shipped"
) -> tuple[Setting, dict[str, Any]]:
    """The setting with the lowest training loss, and its run."""
    runs = [(each, answer(kept, each, epsilon, TUNING_SEED, on_training=True, variant=variant)) for each in settings]
    return min(runs, key=lambda each: float(each[1]["metrics"]["loss"][-1][1]))


def tuned(kept: Kept) -> Tuned:
    """For each optimizer and ε: by one seed that no table shows."""
    return {(name, epsilon): best(kept, grid, epsilon)[0] for epsilon in EPSILONS for name, grid in GRID.items()}


def table(kept: Kept, chosen: Tuned, seeds: int) -> dict[tuple[str, float], list[dict[str, Any]]]:
    """Runs by optimizer and ε, a seed each."""
    return {
        (name, epsilon): [answer(kept, setting, epsilon, seed) for seed in range(seeds)]
        for (name, epsilon), setting in chosen.items()
    }


def fakes(kept: Kept) -> dict[str, dict[str, Any]]:
    """DP-AdamBC with another Φ than the noise's: each with a learning rate of its own."""
    return {each: best(kept, GRID["DP-AdamBC"], EPSILONS[1], variant=each)[1] for each in ("as shipped", *FAKES)}


def along(kept: Kept, base: Setting, name: str, values: Iterable[float]) -> dict[float, dict[str, Any]]:
    """One setting moved, all else as tuned."""
    epsilon = EPSILONS[1]
    return {value: answer(kept, base | {name: value}, epsilon, TUNING_SEED, on_training=True) for value in values}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="of the table of accuracies")
    parser.add_argument("--only", help="one part, and no report")
    options = parser.parse_args()
    seeds = options.seeds
    torch.set_num_threads(1)
    kept = Kept(KEPT)
    middle = EPSILONS[1]
    chosen = tuned(kept)
    adam = chosen["DP-Adam", middle]
    parts: dict[str, Callable[[], Any]] = {
        "moments": lambda: adambc_moments.measured(
            data(False), job(SHOWN, middle), floor=SHOWN["floor"] * phi(SHOWN, middle)
        ),
        "fakes": lambda: fakes(kept),
        "floors": lambda: along(kept, SHOWN, "floor", FLOORS),
        "gammas": lambda: along(kept, adam, "eps", GAMMAS),
        "momentum": lambda: {
            each: answer(kept, adam, middle, 0, variant=each) for each in ("as shipped", "implied momentum")
        },
        "table": lambda: table(kept, chosen, seeds),
    }
    if options.only:
        parts[options.only]()
        return
    found = {name: part() for name, part in parts.items()}
    print(adambc_report.write(found, chosen, seeds))


if __name__ == "__main__":
    main()
