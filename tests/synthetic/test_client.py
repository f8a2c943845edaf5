"""What the client sends and shows of synthetic rows."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pandas as pd

from core.contracts.job_spec import JobSpec
from scrimp.client import Client
from scrimp.synthetic import spec_of, synthesized


class Finished:
    """A client whose job is done, with these files."""

    def __init__(self) -> None:
        self.sent: dict[str, Any] = {}

    def submit(self, spec: dict[str, Any]) -> SimpleNamespace:
        self.sent = spec
        return SimpleNamespace(id="job_1")

    def wait_for(self, job: SimpleNamespace, timeout_s: float) -> SimpleNamespace:
        assert timeout_s == 9.0
        return job

    def download(self, job_id: str, name: str, to: Path) -> Path:
        assert job_id == "job_1"
        to.write_text('age,sex\n1.5,"f, m"\n,m\n' if name == "rows.csv" else json.dumps({"rows": 2}))
        return to


def test_rows_are_fetched_with_their_utility() -> None:
    done = Finished()
    rows = synthesized(cast(Client, done), spec_of("visits", 0.5, ["age", "sex"], 2, target="sex"), 9.0)
    assert JobSpec.model_validate(done.sent).rows == 2 and JobSpec.model_validate(done.sent).target == "sex"
    assert len(rows) == 2 and rows.columns == ("age", "sex") and rows.rows == (("1.5", "f, m"), ("", "m"))
    frame = rows.frame()
    assert frame["age"].tolist()[0] == 1.5 and pd.isna(frame["age"][1]) and rows.utility == {"rows": 2}


def test_what_is_left_out_is_left_to_the_service() -> None:
    assert spec_of("visits", 0.5, None, None) == {
        "kind": "synthetic",
        "dataset": "visits",
        "privacy": {"target_epsilon": 0.5},
    }
