"""Fits the constants of `learning_rate: auto` for linear models, and tries them on data sets that no fit saw.

    python -m benchmarks.reproduce.rate --fit        # the oracle's grid on eight sets; hours of one core, resumable
    python -m benchmarks.reproduce.rate --untouched  # once, after the constants are frozen

Every run is kept in benchmarks/reports/reproduce/rate.json.gz, so that a cut-off experiment goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch

from benchmarks.reproduce.rate_data import FITTED, UNTOUCHED
from benchmarks.reproduce.rate_runs import SETTINGS, cells, curve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--untouched", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    names = (*(FITTED if asked.fit else ()), *(UNTOUCHED if asked.untouched else ()))
    began = time.perf_counter()
    for setting in SETTINGS:
        for name, _, epsilon in cells(names, (setting,)):
            best = max(curve(name, setting, epsilon))
            seconds = time.perf_counter() - began
            print(f"{seconds:6.0f} s  {name}, {setting}, ε = {epsilon:g}: best {best:.4f}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
