"""DPAdamWOSM against one run at `learning_rate: auto`, on the sets of the search report, at equal ε.

    python -m benchmarks.reproduce.wosm    # minutes of one core, resumable; writes benchmarks/reports/reproduce/wosm.md

Every run is kept in wosm.json.gz, but the runs of DP-SGD with the free step, which are those of search.json.gz.
"""

from __future__ import annotations

import math
import sys
from functools import cache
from itertools import product
from typing import Any

import torch

from app.admission.choices import Rule, rule_of
from benchmarks.reproduce.rate_data import data
from benchmarks.reproduce.runs import REPORTS, Kept, machine, run
from benchmarks.reproduce.search_gain import DATA, DELTA, STEPS, TOTALS, UNTOUCHED, facts, formula, mean, spec, trial
from core.contracts.job_spec import JobSpec
from core.privacy.gdp import mu_from_epsilon
from worker.models.linear import Linear

SEEDS = range(3)
MULTIPLES = (1.0, 0.5)  # of the rate by "auto"
TUNED = (0.001, 0.01, 0.1)  # η, named: without a rule a job names the rate that papers search around
RULES: dict[str, dict[str, Any]] = {
    "momentum": {"kind": "dp_sgd", "momentum": 0.9},
    "WOSM": {"kind": "dp_adamwosm"},
}

HEAD = f"""\
# DPAdamWOSM, or DP-SGD at a rate from public numbers?

`python -m benchmarks.reproduce.wosm`. Linear models without a bias, full batch, T = {STEPS}, C = 1, β = 0.9, δ = 1e-5,
{len(SEEDS)} seeds, equal ε. Shares of held-out records in percent: the mean, and in brackets the worst seed.

* **Free step**: `dp_sgd` at `learning_rate: auto`, with the free step: the runs of the [search report](search.md).
* **Momentum**: the same without the free step.
* **WOSM**: `dp_adamwosm` at `learning_rate: auto`; in the next column the better of that rate and its
  half, chosen on the records that it is judged by.
* **η named**: `dp_adamwosm` at one η for all cells: {", ".join(f"{each:g}" for each in TUNED)}.

| data | ε | free step | momentum | WOSM | the better (×) | {" | ".join(f"η = {each:g}" for each in TUNED)} |
|---|---|---|---|---|---|{"---|" * len(TUNED)}"""

kept = Kept(REPORTS / "wosm.json.gz")


def _job(epsilon: float, optimizer: dict[str, Any]) -> JobSpec:
    return JobSpec.model_validate(spec(epsilon, None).model_dump(mode="json") | {"optimizer": optimizer})


@cache
def auto(name: str, epsilon: float, kind: str) -> float:
    """The rate of `learning_rate: auto`."""
    rule = rule_of(_job(epsilon, RULES[kind]), facts(name))
    if not isinstance(rule, Rule):
        raise TypeError(f"the optimizer has a rule: {rule}")
    return rule.rate(STEPS, math.sqrt(STEPS) / mu_from_epsilon(epsilon, DELTA), 1.0).value


@cache
def correct(name: str, epsilon: float, kind: str, rate: float, seed: int) -> float:
    """The share of held-out records that one run classifies correctly."""
    question = {"data": name, "epsilon": epsilon, "optimizer": kind, "eta": float(f"{rate:.6g}"), "seed": seed}
    return float(kept.get(question, lambda: _trained(name, epsilon, kind, question["eta"], seed))["test"])


def _trained(name: str, epsilon: float, kind: str, rate: float, seed: int) -> dict[str, float]:
    them = data(name)
    job = _job(epsilon, RULES[kind] | {"learning_rate": rate}).model_dump(mode="json", exclude={"dataset", "seed"})
    job["privacy"] = {"noise_multiplier": math.sqrt(STEPS) / mu_from_epsilon(epsilon, DELTA), "target_delta": DELTA}
    done = run(them, job, seed=seed)
    model = Linear(them.features_count, them.outputs)
    right = model.correct(model.forward(done.parameters, them.holdout), them.holdout.labels)
    return {"test": round(float(right.double().mean()), 5), "seconds": round(done.seconds, 2)}


def cell(name: str, epsilon: float) -> tuple[str, list[float]]:
    """A row, and its means: free step, momentum, WOSM, its best, η named."""
    mu = mu_from_epsilon(epsilon, DELTA)
    free = [trial(name, formula(name, epsilon), STEPS, mu, seed)["test"] for seed in SEEDS]
    momentum = [correct(name, epsilon, "momentum", auto(name, epsilon, "momentum"), seed) for seed in SEEDS]
    base = auto(name, epsilon, "WOSM")
    by = {each: [correct(name, epsilon, "WOSM", each * base, seed) for seed in SEEDS] for each in MULTIPLES}
    named = [[correct(name, epsilon, "WOSM", each, seed) for seed in SEEDS] for each in TUNED]
    best = max(by, key=lambda each: mean(by[each]))
    shown = [f"{100 * mean(each):.1f} ({100 * min(each):.1f})" for each in (free, momentum, by[1.0])]
    shown.append(f"{100 * mean(by[best]):.1f} (×{best:g})")
    shown += [f"{100 * mean(each):.1f}" for each in named]
    return f"| {name} | {epsilon:g} | {' | '.join(shown)} |", [
        100.0 * mean(each) for each in (free, momentum, by[1.0], by[best], *named)
    ]


def _gain(rows: list[list[float]], of: int, over: int) -> str:
    gains = [row[of] - row[over] for row in rows]
    ahead = sum(each > 0.0 for each in gains)
    span = f"{min(gains):+.2f} … {max(gains):+.2f}"
    return f"{mean(gains):+.2f} points in the mean ({span}), ahead in {ahead} of {len(rows)} cells"


def main() -> None:
    torch.set_num_threads(1)
    lines, rows = [], []
    for name, epsilon in product((*DATA, *UNTOUCHED), TOTALS):
        line, means = cell(name, epsilon)
        lines.append(line)
        rows.append(means)
        print(line, file=sys.stderr, flush=True)
    says = [
        f"* WOSM at auto over momentum at auto: {_gain(rows, 2, 1)}.",
        f"* WOSM at auto over the free step at auto: {_gain(rows, 2, 0)}.",
        f"* WOSM at the better rate over WOSM at auto: {_gain(rows, 3, 2)}.",
        *(
            f"* WOSM at η = {each:g} over WOSM at auto: {_gain(rows, 4 + place, 2)}."
            for place, each in enumerate(TUNED)
        ),
    ]
    table = "\n".join(lines)
    (REPORTS / "wosm.md").write_text(f"{HEAD}\n{table}\n\n" + "\n".join(says) + f"\n\nMachine: {machine()}\n")


if __name__ == "__main__":
    main()
