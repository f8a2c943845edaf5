"""Synthetic rows on a real service: from Python and over REST, on the page, certified, and registered as a data set."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

import scrimp
from scrimp import recompute
from scrimp.cli import app
from tests.dashboard.conftest import token_of
from tests.e2e.conftest import Service, until
from tests.e2e.patients import TABLE

PEOPLE = 1_500
SPEC: dict[str, Any] = {
    "name": "records",
    **TABLE,
    "privacy": {
        "sensitivity": "private",
        "unit": "example",
        "records": PEOPLE,
        "cap": {"epsilon": 50.0, "delta": 1e-6},
        "filter": "gdp",
    },
}
COLUMNS = ("age", "bmi", "sex", "ill")
FILES = {"rows.csv", "rows.parquet", "utility.json"}


@pytest.fixture(scope="module")
def service(served: Callable[[str], Service], tmp_path_factory: pytest.TempPathFactory) -> Service:
    """Holds records in which the ill are older, and women."""
    service, rng = served("sqlite"), np.random.default_rng(5)
    ill = rng.integers(0, 2, PEOPLE)
    age = rng.normal(35 + 30 * ill, 10).clip(0, 100)
    bmi, sex = rng.normal(27, 5, PEOPLE).clip(10, 60), np.where(rng.random(PEOPLE) < 0.2 + 0.6 * ill, "f", "m")
    lines = ["age,bmi,sex,ill"]
    for number in range(PEOPLE):
        shown = "" if number % 10 == 0 else f"{bmi[number]:.3f}"
        lines.append(f"{age[number]:.3f},{shown},{sex[number]},{ill[number]}")
    path = tmp_path_factory.mktemp("records") / "records.csv"
    path.write_text("\n".join(lines) + "\n")
    with service.client() as client:
        client.create_dataset(SPEC, path)
    return service


def test_rows_of_the_client_are_like_the_records_and_register_again(service: Service, tmp_path: Path) -> None:
    with service.client() as client:
        rows = client.synthesize("records", epsilon=20.0, rows=2_000)
        assert rows.columns == COLUMNS and len(rows) == 2_000
        frame = rows.frame()
        by_label = frame.groupby("ill")
        assert by_label["age"].mean()[1] - by_label["age"].mean()[0] == pytest.approx(30.0, abs=6.0)
        women = (frame["sex"] == "f").groupby(frame["ill"]).mean()
        assert women[1] - women[0] == pytest.approx(0.6, abs=0.15)
        assert max(each["error"] for each in rows.utility["one_way"]) < 0.1
        # The rows fit the declaration that they were drawn by.
        path = client.download(rows.job, "rows.csv", tmp_path / "rows.csv")
        privacy = SPEC["privacy"] | {"records": len(rows)}
        again = client.create_dataset(SPEC | {"name": "drawn", "privacy": privacy}, path)
        assert again.read is not None and again.features == client.dataset("records").features
        assert not again.warnings


def test_a_job_over_rest_is_certified_by_its_rows(service: Service, tmp_path: Path) -> None:
    spec = {"kind": "synthetic", "dataset": "records", "rows": 300, "bins": 8, "privacy": {"target_epsilon": 5.0}}
    with _rest(service) as rest:
        quote = rest.post("/v1/quotes", json=spec).json()
        assert [each["what"] for each in quote["lines"]] == ["synthetic rows"]
        sent = rest.post("/v1/jobs", json=spec, headers={"Idempotency-Key": "rows over REST"})
        assert sent.status_code == 201, sent.text
        job = sent.json()["id"]
        until(lambda: rest.get(f"/v1/jobs/{job}").json()["status"] == "succeeded")
        files = {name: rest.get(f"/v1/jobs/{job}/artifacts/{name}").content for name in FILES}
        done = rest.get(f"/v1/jobs/{job}").json()
        until(lambda: "certificate" in rest.get(f"/v1/jobs/{job}/certificate").json())
        certificate = rest.get(f"/v1/jobs/{job}/certificate").json()
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    assert {each["name"]: each["sha256"] for each in done["artifacts"]} == hashes
    assert certificate["certificate"]["rows_sha256"] == hashes["rows.csv"]
    assert certificate["certificate"]["released"]["rows"] is True
    (tmp_path / "rows.parquet").write_bytes(files["rows.parquet"])
    typed = pyarrow.parquet.read_table(tmp_path / "rows.parquet")
    head, *cells = csv.reader(files["rows.csv"].decode().splitlines())
    assert tuple(head) == tuple(typed.column_names) == COLUMNS and len(cells) == typed.num_rows == 300
    assert [float(row[0]) for row in cells] == typed["age"].to_pylist()
    (file := tmp_path / "certificate.json").write_text(json.dumps(certificate))
    explained = CliRunner().invoke(app, ["certificates", "explain", str(file)])
    assert explained.exit_code == 0 and "synthetic rows drawn from 6 noisy two-way tables" in explained.stdout
    assert recompute.recompute(certificate, certificate["public_key"], "it") == 0
    ledger = service.get(f"/v1/datasets/{done['dataset']}/ledger")["accounts"]["train"]
    assert ledger["held"] == 0 and service.verification(done["dataset"])["valid"] is True


def test_the_page_shows_how_near_the_rows_are(service: Service) -> None:
    with service.client() as client:
        spec = {"kind": "synthetic", "dataset": "records", "rows": 50, "privacy": {"target_epsilon": 5.0}}
        job = client.wait_for(client.submit(spec), 300.0).id
        with pytest.raises(scrimp.ScrimpError, match="kind `synthetic`"):
            client.predict(job, [{"age": 1, "bmi": 20, "sex": "f"}])
    with httpx.Client(base_url=_url(service), follow_redirects=True, timeout=60.0) as browser:
        page = browser.get("/dashboard/login")
        browser.post("/dashboard/login", data={"key": _key(service), "csrf": token_of(page)})
        shown = browser.get(f"/dashboard/jobs/{job}").text
    assert "How near the rows are" in shown and "6 pairs of columns" in shown and "age with bmi" in shown
    assert "synthetic rows that follow from 6 noisy two-way tables" in shown and 'id="metrics"' not in shown


def _url(service: Service) -> str:
    return f"http://127.0.0.1:{service.port}"


def _key(service: Service) -> str:
    return (service.home / "admin.key").read_text().strip()


def _rest(service: Service) -> httpx.Client:
    return httpx.Client(base_url=_url(service), headers={"Authorization": f"Bearer {_key(service)}"}, timeout=300.0)
