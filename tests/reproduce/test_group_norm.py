"""Networks with GroupNorm against a probe: their jobs, and what stands beside what."""

from __future__ import annotations

import pytest

from benchmarks.reproduce.group_norm import LONG, NETWORKS, PROBE, RATES, SHORT, table
from core.contracts.job_spec import JobSpec


@pytest.mark.parametrize("name", NETWORKS)
def test_each_network_is_a_job(name: str) -> None:
    asked = JobSpec.model_validate(NETWORKS[name].job(3.0, 1.0) | {"dataset": "ds_x"})
    assert asked.model.kind == ("linear" if name.startswith(PROBE) else "cnn")
    assert NETWORKS[name].first in RATES[1:-1]


def test_a_network_stands_beside_the_probe_with_as_many_steps() -> None:
    scores = {
        (PROBE + LONG, 1.0): (2.0, [70.0, 72.0]),
        (PROBE + SHORT, 1.0): (2.0, [60.0, 62.0]),
        ("WRN-16-4" + SHORT, 1.0): (1.0, [65.0]),
        ("conv5" + LONG, 1.0): (1.0, [50.0, 54.0]),
    }
    wide, conv = (
        next(line for line in table(scores).splitlines() if line.startswith(f"| {name}"))
        for name in ("WRN-16-4", "conv5" + LONG)
    )
    assert "1: 65.0 (1), +5.00 |" in wide and wide.count("not run") == 2
    assert "1: 52.0 ± 2.8 (2), -19.00 ± 1.00 |" in conv
