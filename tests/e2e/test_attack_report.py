"""`scrimp attack-report` on three kinds of models that the real service trained, and let out.

SACRO-ML's answers are those of a real run on such models (docs/reports/attack-reports.md): it is not installed here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.by_night import but
from tests.e2e import stays
from tests.e2e.conftest import Service, job_of, seed_of
from tests.e2e.test_egress import Commands, offline
from tests.e2e.test_spine import finished, submit
from tests.egress.sacroml import recorded

# By day one of them: an answer's way to the report is the same, and tests/egress reads those of all.
MODELS: dict[str, dict[str, Any]] = {
    "linear": {"kind": "linear"},
    "gam": {"kind": "gam", "bins": 4},
    "mlp": {"kind": "mlp", "hidden": [16]},
}
RISKS = {"a": 0.2, "b": 0.4, "c": 0.6, "d": 0.8}
ROWS = 1000


def write_stays(path: Path) -> Path:
    return stays.write(path, RISKS, ROWS, seed_of(path.stem))


@pytest.mark.parametrize("service", ["sqlite"], indirect=True)
@pytest.mark.parametrize("kind", but(MODELS, lambda kind: kind == "mlp"))
def test_a_kind_from_the_job_to_the_report(service: Service, kind: str, tmp_path: Path) -> None:
    train, other = write_stays(tmp_path / f"train-{kind}.csv"), write_stays(tmp_path / f"other-{kind}.csv")
    scrimp = Commands(service, (service.home / "admin.key").read_text().strip())
    with service.client() as client:
        dataset = client.create_dataset(stays.declaration(f"attacked-{kind}", RISKS, ROWS, 30.0), train).id
    key = service.get("/v1/signing-keys")["items"][0]["public_key"]
    job = submit(service, job_of(dataset, model=MODELS[kind], evaluation=None))
    assert finished(service, job)["status"] == "succeeded"
    with service.client() as client:
        client.certificate(job)
    folder, to = tmp_path / kind, tmp_path / f"{kind}-attack"
    scrimp.fetched(job, folder)
    words = ("--train", str(train), "--holdout", str(other), "--to", str(to), "--public-key", key)
    done = offline("attack-report", str(folder), *words, "--python", str(recorded(tmp_path, kind)))
    assert done.exit_code == 0, done.output
    report = json.loads((to / "report.json").read_text())
    model = "mlp" if kind == "mlp" else "linear"
    assert (report["job"], report["model"], report["signer_checked"]) == (job, model, True)
    assert report["rows"] == {"train": ROWS, "holdout": ROWS} and not report["above"]
    assert offline("verify-egress", str(folder), "--public-key", key).exit_code == 0, "the folder is as it was"
