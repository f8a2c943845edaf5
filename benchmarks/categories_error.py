"""Which categories that nobody declared are told, and with what error, beside OpenDP's thresholded counts at equal ρ.

    python -m benchmarks.categories_error PYTHON    # PYTHON has OpenDP: see benchmarks/categories_opendp.py

50,000 records, whose code has rank r with a part of 1/r: 5,000 codes or fewer. Ours is drawn by a job's own code and
has no δ; that of OpenDP has δ = 1e-7 besides. "told": values, in the mean of all releases. Prints the report's table.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from core.contracts.table import TextColumn
from core.statistics.plans import CategoriesPlan
from core.statistics.statistics_columns import Texts
from worker.statistics.frequent_values import frequent_values

RECORDS, CODES, RELEASES, DELTA, RHOS = 50_000, 5_000, 40, 1e-7, (0.03, 0.5)
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789."
COLUMNS = {
    "5 digits": TextColumn(name="code", longest=5, characters="0123456789"),
    "7 of A–Z, 0–9 and .": TextColumn(name="code", longest=7, characters=LETTERS),
    "24 printable": TextColumn(name="code", longest=24),
}


def codes() -> dict[str, int]:
    """How many records each code has."""
    weights = 1.0 / np.arange(1, CODES + 1)
    counts = np.floor(RECORDS * weights / weights.sum()).astype(int)
    return {f"{rank:05}": int(count) for rank, count in enumerate(counts) if count}


def ours(column: TextColumn, counts: Mapping[str, int], rho: float) -> list[dict[str, float]]:
    """Releases of a job's code."""
    rows = [column.stored(code) for code, count in counts.items() for _ in range(count)]
    stored = np.array(rows, dtype=np.int64).reshape(len(rows), column.cells)
    plan, std = CategoriesPlan(Texts(column, 0)), 1.0 / math.sqrt(2.0 * rho)
    releases = []
    for number in range(RELEASES):
        noisy = frequent_values(plan, stored, std, (number + 1).to_bytes(32, "big"), 0)
        releases.append({column.text_of(row[:-1]): row[-1] for row in noisy.tolist()})
    return releases


def row(
    who: str, threshold: float, rho: float, releases: Sequence[Mapping[str, float]], counts: Mapping[str, int]
) -> str:
    """A row of the table. The error is that of values whose count is twice the threshold or more."""
    told = statistics.mean(map(len, releases))
    false = sum(code not in counts for release in releases for code in release)
    covered = statistics.mean(sum(counts.get(code, 0) for code in release) for release in releases) / sum(
        counts.values()
    )
    errors = [
        noisy - counts[code]
        for release in releases
        for code, noisy in release.items()
        if counts.get(code, 0) >= 2 * threshold
    ]
    error = math.sqrt(statistics.mean(each**2 for each in errors))
    return f"| {rho:g} | {who} | {threshold:.0f} | {told:.0f} | {100 * covered:.1f} % | {false} | {error:.3f} |"


def main() -> None:
    counts = codes()
    print(f"{sum(counts.values()):,} records, {len(counts):,} codes, {RELEASES} releases\n")
    print("| ρ | | threshold | codes told | records with them | told that no record has | error |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        (path := Path(folder) / "counts.json").write_text(json.dumps(counts))
        for rho in RHOS:
            for name, column in COLUMNS.items():
                threshold = CategoriesPlan(Texts(column, 0)).threshold(1.0 / math.sqrt(2.0 * rho))
                print(row(name, threshold, rho, ours(column, counts, rho), counts))
            command = [sys.argv[1], "benchmarks/categories_opendp.py", str(path), str(rho), str(DELTA), str(RELEASES)]
            theirs = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            print(row(f"OpenDP, δ = {DELTA:g}", theirs["threshold"], rho, theirs["told"], counts))


if __name__ == "__main__":
    main()
