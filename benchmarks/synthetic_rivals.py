"""OpenDP's MST and AIM on the tables that `python -m benchmarks.bench_synthetic --cells FOLDER` writes.

    pip install opendp[mbi]==0.16.0 mbi==1.1.0     # in an environment of its own
    python benchmarks/synthetic_rivals.py FOLDER

Defaults of the library but for how rows are drawn (below). Each cell's rows are kept beside its records, so that a
cut-off run goes on where it was. The library is no part of Scrimp's environment, and this file imports nothing of it.
"""

from __future__ import annotations

import itertools
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

RHOS = (0.03, 0.5)
TRIES = 12


def rows_of(stored: Any, algorithm: str, rho: float) -> np.ndarray:
    """Synthetic cells, (records, columns)."""
    import opendp.prelude as dp
    import polars as pl

    dp.enable_features("contrib")
    codes, sizes = stored["codes"], stored["sizes"]
    names = [f"c{place}" for place in range(len(sizes))]
    frame = pl.LazyFrame({name: codes[:, place] for place, name in enumerate(names)})
    method = {"mst": dp.mbi.MST, "aim": dp.mbi.AIM}[algorithm]()
    keys = {name: list(range(int(size))) for name, size in zip(names, sizes, strict=True)}
    # Its own check of what MST and AIM spent may fail in the last digit of a float: then a little less ρ is asked.
    for tried in range(TRIES):
        try:
            return _synthesized(frame, len(codes), keys, method, rho * (1.0 - 1e-6 * tried))
        except Exception as error:
            if "insufficient budget" not in str(error) or tried == TRIES - 1:
                raise
    raise AssertionError


def _synthesized(frame: Any, count: int, keys: dict[str, list[int]], method: Any, rho: float) -> np.ndarray:
    import opendp.prelude as dp

    context = dp.Context.compositor(
        data=frame, privacy_unit=dp.unit_of(contributions=1), privacy_loss=dp.loss_of(rho=rho)
    )
    asked = context.query(rho=rho).select(*keys)
    table = asked.contingency_table(keys=keys, algorithm=method).release()
    # mbi 1.1.0's default, "round", deals the cells of all columns to the rows of a group in one order: columns with a
    # common neighbour rise together, which no table of the model says.
    found = table.synthesize(method="sample").select(*keys).to_numpy().astype(np.int64)
    return found[np.random.default_rng(0).permutation(len(found))[:count]]


def main() -> None:
    folder = Path(sys.argv[1])
    warnings.simplefilter("ignore")
    paths = sorted(
        folder.glob("*.cells.npz"), key=lambda path: path.name.split(".")[1]
    )  # the first split of all tables
    for algorithm, path, rho in itertools.product(("mst", "aim"), paths, RHOS):
        kept = folder / f"{path.name.removesuffix('.cells.npz')}.{algorithm}.{rho:g}.npz"
        if kept.exists():
            continue
        began = time.process_time()
        with np.load(path) as stored:
            try:
                rows, why = rows_of(stored, algorithm, rho), ""
            except Exception as error:  # a cell that the library refuses is told
                rows, why = np.zeros((0, 0), dtype=np.int64), f"{type(error).__name__}: {error}"[-300:]
        np.savez(kept, rows=rows, why=why, seconds=time.process_time() - began)
        print(kept.name, len(rows), why, f"{time.process_time() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
