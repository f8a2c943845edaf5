"""Synthetic rows from Python: one job with one privacy cost, and its rows.

rows = client.synthesize("visits", epsilon=0.5)
rows.frame().groupby("sex")["age"].mean()
"""

from __future__ import annotations

import csv
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scrimp.client import Client

ROWS, UTILITY = "rows.csv", "utility.json"


@dataclass(frozen=True)
class SyntheticRows:
    """A job's rows, and how near they are to its noisy tables.

    Attributes:
        job: its id, for `certificate` and `download`.
        columns: the header of rows.csv.
        rows: its cells, as text; empty where missing.
        utility: utility.json.
    """

    job: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    utility: dict[str, Any]

    def __len__(self) -> int:
        return len(self.rows)

    def frame(self) -> Any:
        """A pandas DataFrame; numbers are numbers. Needs pandas."""
        import pandas as pd  # the client works without it

        frame = pd.DataFrame(list(self.rows), columns=list(self.columns)).replace("", None)
        for name in frame.columns:
            try:
                frame[name] = pd.to_numeric(frame[name])
            except ValueError:
                continue
        return frame


def synthesized(client: Client, spec: dict[str, Any], timeout_s: float) -> SyntheticRows:
    """Runs a synthetic job and fetches its rows."""
    job = client.wait_for(client.submit(spec), timeout_s)
    with tempfile.TemporaryDirectory() as folder:
        rows = client.download(job.id, ROWS, Path(folder) / ROWS)
        with rows.open(encoding="utf-8", newline="") as file:
            head, *cells = csv.reader(file)
        utility = json.loads(client.download(job.id, UTILITY, Path(folder) / UTILITY).read_text(encoding="utf-8"))
    return SyntheticRows(job.id, tuple(head), tuple(map(tuple, cells)), utility)


def spec_of(
    dataset: str, epsilon: float, columns: Sequence[str] | None, rows: int | None, **members: Any
) -> dict[str, Any]:
    """The JobSpec. `members`: further ones, such as `target` or `bins`."""
    settings = {"columns": None if columns is None else list(columns), "rows": rows}
    settings_set = {name: value for name, value in settings.items() if value is not None}
    return {"kind": "synthetic", "dataset": dataset, "privacy": {"target_epsilon": epsilon}} | settings_set | members
