"""The report on the heavy tail: tables and figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.reproduce.heavy_tail_problem import Problem, Setting

Grid = dict[str, list[Setting]]
Tried = dict[str, list[tuple[Setting, dict[str, Any]]]]
Chosen = dict[str, Setting]


@dataclass(frozen=True)
class Study:
    """One problem: what was tried by optimizer, what was chosen, and its runs, a seed each."""

    name: str
    problem: Problem
    tried: Tried
    chosen: Chosen
    runs: dict[str, list[dict[str, Any]]]


def write_report(studies: list[Study]) -> Path:
    import numpy as np
    for s in studies:
        print(s.name, s.problem)
        for o, c in s.chosen.items():
            names = sorted({n for r in s.runs[o] for n in r["metrics"]}, key=lambda n: -int(n.split(":")[1].split("-")[0]) if ":" in n else -10**9)
            print(o, c, *[f"{n}={np.mean([r['metrics'][n][-1][1] for r in s.runs[o]]):.3f}" for n in names])
    return Path()
