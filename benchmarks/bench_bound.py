"""Measures the worst change of a clipped sum and a score by one record. Writes reports/bound.md.

The cases are those of tests/bound/worst.py: every kind of model with weights of gain 30, over 1 to 33 records.
`before` uses passes with one row per record and no MKL_CBWR; it runs in a separate process. Nothing here is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]
if "--before" in sys.argv:
    os.environ["MKL_CBWR"] = ""  # kernels are chosen by addresses and tails, as torch does by itself

import numpy as np  # noqa: E402
import torch  # noqa: E402

import worker  # noqa: E402, F401 - before torch: its kernels
from app.privacy.releases import NoisySum  # noqa: E402
from tests.bound.worst import CASES, C, Case, drawn, engine_of, flat, neighbours, sums_of  # noqa: E402
from worker.models.base import Parameters  # noqa: E402
from worker.models.modules import ModuleModel  # noqa: E402

REPORT = ROOT / "benchmarks" / "reports" / "bound.md"
DTYPES = {"float32": torch.float32, "float64": torch.float64}
LOSS = NoisySum.model_validate(
    {"what": "loss", "account": "holdout", "noise_mu": 0.5, "records": 34, "sensitivity": 8.0}
)
NUMBERS = (1, 2, 3, 4, 5, 7, 9, 13, 17, 20, 33)


def shaped(case: Case, rows: int | None, dtype: torch.dtype) -> Case:
    """Returns the case with passes of this type and, if given, with this number of rows."""
    changes: dict[str, Any] = {} if rows is None else {"rows_per_pass": rows}
    if isinstance(case.model, ModuleModel):
        changes["dtype"] = dtype
    return replace(case, model=replace(case.model, **changes))  # type: ignore[type-var]


def worst(case: Case, dtype: torch.dtype, *, fixed: bool) -> tuple[float, float]:
    """Returns max ‖S − S′‖ / C, and the largest change of a loss's sums over their sensitivity."""
    parameters, records = drawn(case)
    of_sum = of_score = 0.0
    for n in (each for each in NUMBERS if each in case.numbers):
        everyone = records.select(np.arange(n))
        whole = _both(shaped(case, None if fixed else n, dtype), parameters, everyone)
        for fewer in neighbours(records, n):
            part = _both(shaped(case, None if fixed else max(1, n - 1), dtype), parameters, fewer)
            of_sum = max(of_sum, float((whole[0] - part[0]).norm()) / C)
            of_score = max(of_score, float((whole[1] - part[1]).norm()) / LOSS.sensitivity)
    return of_sum, of_score


def _both(case: Case, parameters: Parameters, records: Any) -> tuple[torch.Tensor, torch.Tensor]:
    total = flat(engine_of(case.model).private_sum(parameters, records))
    return total, sums_of(LOSS, case.model, parameters, records)


def measured(*, fixed: bool) -> dict[str, tuple[float, float]]:
    found = {}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for name, case in CASES.items():
            for dtype, of in DTYPES.items():
                if isinstance(case.model, ModuleModel) and ", float64" not in name:
                    found[f"{name}|{dtype}|{threads}"] = worst(case, of, fixed=fixed)
            if not isinstance(case.model, ModuleModel):
                found[f"{name}|float64|{threads}"] = worst(case, torch.float64, fixed=fixed)
    return found


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--before", action="store_true")
    if asked.parse_args().before:
        print(json.dumps(measured(fixed=False)))
        return
    command = [sys.executable, __file__, "--before"]
    before = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout)
    after = measured(fixed=True)
    lines = [
        "# One record more or less, at its worst",
        "",
        f"`python benchmarks/bench_bound.py`, torch {torch.__version__}, {platform.machine()}. Weights of gain 30;"
        " clipped sums over C, and a `loss` score's sums over their sensitivity. At most 1 + slack is promised.",
        "",
        "| model | passes | threads | sum before | sum now | slack | score before | score now |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for key, (now, score) in after.items():
        name, dtype, threads = key.split("|")
        slack = CASES[name].slack - 1.0
        was, score_was = before[key]
        lines.append(
            f"| {name} | {dtype} | {threads} | {was:.4f} | {now:.7f} | {slack:.0e} | {score_was:.4f} | {score:.7f} |"
        )
        assert now <= 1.0 + slack and score <= 1.0 + 1e-12, key
    REPORT.write_text("\n".join(lines) + "\n")
    print(f"wrote {REPORT}")


if __name__ == "__main__":
    main()
