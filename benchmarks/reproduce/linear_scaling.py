"""Linear scaling on real data, as Panda et al. 2024 report it: Table 3, Figures 2 and 3, the law, Table 1, Figure 11.

    python -m benchmarks.reproduce.linear_scaling [--only imdb|pixels|frozen] [--runs-only]

Runs are kept in reports/reproduce/linear_scaling.json.gz: what is there is not run again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.reproduce import linear_scaling_text as text
from benchmarks.reproduce.linear_scaling_ablations import ablation, changes
from benchmarks.reproduce.linear_scaling_grid import Curve, Point, curve, oracle
from benchmarks.reproduce.linear_scaling_plots import plot_epsilons, plot_law
from benchmarks.reproduce.linear_scaling_runs import NAMES, SETTINGS, kept, mean, mu
from benchmarks.reproduce.linear_scaling_search import Search, linear_scaling, random
from benchmarks.reproduce.runs import REPORTS, machine

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
LAW = (0.1, 0.2, 0.5, 1.0)
ONE = {"frozen": (1.0,)}  # data sets with fewer of them, for the time that they take
SEEDS, DRAWS = range(5), {("imdb", 1.0): range(20), ("pixels", 1.0): range(20)}
ABLATED = ("imdb",)
LONGEST = {"imdb": EPSILONS}  # the others: for the time that they take


@dataclass
class Outcome:
    """All that was found on one data set. `longest`: the same searches with the longest final run, the default."""

    name: str
    law: dict[float, Curve]
    oracle: dict[float, tuple[Point, list[float]]]
    ours: dict[float, list[Search]]
    random: dict[float, list[Search]]
    longest: dict[float, list[Search]]
    ablations: list[tuple[str, float | None, float, list[float]]]

    def accuracies(self, kind: str, epsilon: float) -> list[float]:
        if kind == "oracle":
            return self.oracle[epsilon][1]
        searches: dict[float, list[Search]] = getattr(self, kind)
        return [float(each.result["test"]) for each in searches[epsilon]]

    def rerr(self, epsilon: float, kind: str = "ours") -> float:
        """(ours − random)/(oracle − random)."""
        random, best, ours = (mean(self.accuracies(each, epsilon)) for each in ("random", "oracle", kind))
        return (ours - random) / (best - random)


def outcome(name: str) -> Outcome:
    """Runs what has not been run yet; what matters most comes first."""
    one = oracle(name, 1.0)
    found, epsilons = Outcome(name, {}, {1.0: one}, {}, {}, {}, []), ONE.get(name, EPSILONS)
    for epsilon in sorted(epsilons, key=lambda each: each != 1.0):
        found.ours[epsilon] = [linear_scaling(name, epsilon, seed, final_steps="drawn") for seed in SEEDS]
        found.random[epsilon] = [random(name, epsilon, seed) for seed in DRAWS.get((name, epsilon), range(8))]
    found.law = {epsilon: curve(name, epsilon) for epsilon in LAW} if len(epsilons) > 1 else {}
    found.oracle |= {epsilon: oracle(name, epsilon) for epsilon in epsilons}
    for epsilon in LONGEST.get(name, ()):
        found.longest[epsilon] = [linear_scaling(name, epsilon, seed) for seed in SEEDS]
    if name in ABLATED:
        (rate, steps), _ = one
        for change in changes(rate * steps):
            found.ablations.append((change.name, change.paper, *ablation(name, change, (rate, steps))))
    return found


def table_3(outcomes: list[Outcome]) -> list[str]:
    lines = [
        "| data | random | oracle | ours | RERR | points under the oracle |",
        "|---|---|---|---|---|---|",
    ]
    for each in outcomes:
        random, best, ours = (each.accuracies(kind, 1.0) for kind in ("random", "oracle", "ours"))
        lines.append(_compared(NAMES[each.name], random, best, ours))
        if 1.0 in each.longest:
            name = f"{NAMES[each.name]}; longest final run"
            lines.append(_compared(name, random, best, each.accuracies("longest", 1.0)))
    return lines + [row(cells) for cells in text.OTHERS]


def _compared(name: str, random: list[float], best: list[float], ours: list[float]) -> str:
    rerr = (mean(ours) - mean(random)) / (mean(best) - mean(random))
    below = 100.0 * (mean(best) - mean(ours))
    return row([name, spread(random), spread(best), spread(ours), f"{rerr:.2f}", f"{below:.1f}"])


def studies(outcomes: list[Outcome]) -> list[str]:
    """Every search at ε = 1."""
    lines = [
        "| data | seed | r₁, r₂ | r* | fall-backs | η, T | accuracy |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in outcomes:
        for seed, search in zip(SEEDS, each.ours[1.0], strict=True):
            if search.decision is None:
                raise ValueError("linear scaling without a fit")
            rs = ", ".join(f"{r:.3g}" for r in search.decision.rs)
            fallbacks = ", ".join(search.decision.fit.fallbacks) or "–"
            point = f"{search.final.point.learning_rate:.3g}, {search.final.point.steps}"
            r_star, accuracy = f"{search.decision.fit.r_star:.3g}", f"{search.result['test']:.3f}"
            lines.append(row([NAMES[each.name], str(seed), rs, r_star, fallbacks, point, accuracy]))
    return lines


def by_epsilon(outcomes: list[Outcome]) -> list[str]:
    lines = ["| data | | " + " | ".join(f"ε = {epsilon:g}" for epsilon in EPSILONS) + " |", "|---" * 7 + "|"]
    for each in _swept(outcomes):
        for kind, what in text.KINDS.items():
            if not (epsilons := list(getattr(each, kind))):
                continue
            cells = [spread(each.accuracies(kind, e)) if e in epsilons else "" for e in EPSILONS]
            lines.append(row([NAMES[each.name], what, *cells]))
            if kind in ("ours", "longest"):
                errors = [f"{each.rerr(e, kind):.2f}" if e in epsilons else "" for e in EPSILONS]
                lines.append(row([NAMES[each.name], "its RERR", *errors]))
                finals = [f"{getattr(each, kind)[e][0].epsilon:.4g}" if e in epsilons else "" for e in EPSILONS]
                lines.append(row([NAMES[each.name], "ε of its final run", *finals]))
    return lines


def _swept(outcomes: list[Outcome]) -> list[Outcome]:
    """Those with more than one ε."""
    return [each for each in outcomes if len(each.ours) > 1]


def law(outcomes: list[Outcome]) -> list[str]:
    lines = [
        row(["data", *(f"ε = {e:g} (μ = {mu(e):.4f})" for e in LAW), "line at ε = 0.5, 1", "exponent of μ"]),
        "|---" * 7 + "|",
    ]
    for each in _swept(outcomes):
        best = [each.law[epsilon].best_r for epsilon in LAW]
        x = [mu(epsilon) for epsilon in LAW]
        slope = (best[1] - best[0]) / (x[1] - x[0])
        line = ", ".join(f"{best[0] + slope * (at - x[0]):.3g}" for at in x[2:])
        power = float(np.polyfit(np.log(x), np.log(best), 1)[0])
        lines.append(row([NAMES[each.name], *(f"{r:.3g}" for r in best), line, f"{power:.2f}"]))
    return lines


def ablations(outcomes: list[Outcome]) -> list[str]:
    ablated = [each for each in outcomes if each.ablations]
    if not ablated:
        return []
    head = " | ".join(f"{NAMES[each.name]} | the recipe gains" for each in ablated)
    lines = [f"| change | {head} | in the paper |", "|---" * (2 + 2 * len(ablated)) + "|"]
    for number, (change, paper, *_) in enumerate(ablated[0].ablations):
        cells = [change]
        for each in ablated:
            values, base = each.ablations[number][3], each.ablations[0][3]
            cells += [spread(values), "" if number == 0 else f"{100.0 * (mean(base) - mean(values)):+.1f}"]
        lines.append(row([*cells, "" if paper is None else f"{paper:+.2f}"]))
    return lines


def spread(values: list[float]) -> str:
    return f"{mean(values):.3f} ± {np.std(values, ddof=1):.3f}"


def row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def write(outcomes: list[Outcome]) -> None:
    plot_epsilons(_swept(outcomes), REPORTS / "linear_scaling_epsilon.png")
    plot_law({each.name: each.law for each in _swept(outcomes)}, REPORTS / "linear_scaling_law.png")
    parts: list[tuple[str, Callable[[list[Outcome]], list[str]]]] = [
        (text.TABLE_3, table_3),
        (text.STUDIES, studies),
        (text.EPSILONS, by_epsilon),
        (text.LAW, law),
        (text.ABLATIONS, ablations),
    ]
    seconds = sum(entry["seconds"] for entry in kept.entries.values())
    spaces = "; ".join(
        f"{NAMES[each.name]}: η in {SETTINGS[each.name].learning_rate}, T in {SETTINGS[each.name].steps}"
        for each in outcomes
    )
    head = text.HEAD.format(machine=machine(), runs=len(kept.entries), minutes=round(seconds / 60), spaces=spaces)
    body = "\n\n".join(title.format(table="\n".join(make(outcomes))) for title, make in parts)
    (REPORTS / "linear_scaling.md").write_text(f"{head}\n{body}\n\n{text.PRACTITIONER}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(NAMES), help="this data set")
    parser.add_argument("--runs-only", action="store_true", help="write no report")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    outcomes = []
    for name in arguments.only or NAMES:
        began = time.perf_counter()
        outcomes.append(outcome(name))
        print(f"{NAMES[name]}: RERR {outcomes[-1].rerr(1.0):.2f}, {time.perf_counter() - began:.0f} s", flush=True)
    if not arguments.runs_only:
        write(outcomes)


if __name__ == "__main__":
    main()
