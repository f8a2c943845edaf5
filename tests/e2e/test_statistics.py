"""Statistics on a real service: from Python, on the command line, on the pages and over REST, on one bill."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

import scrimp
from core.contracts.table import PRINTABLE
from scrimp.cli import app
from tests.dashboard.conftest import token_of
from tests.e2e.conftest import Service, until
from tests.e2e.patients import TABLE

PEOPLE, EACH = 900, 2
SPEC: dict[str, Any] = {
    "name": "visits",
    **TABLE,
    "privacy": {
        "sensitivity": "private",
        "unit": "user",
        "user_column": "patient",
        "max_records_per_user": EACH,
        "records": PEOPLE,
        "cap": {"epsilon": 50.0, "delta": 1e-6},
        "filter": "gdp",
    },
}


@pytest.fixture(scope="module")
def visits(served: Callable[[str], Service], tmp_path_factory: pytest.TempPathFactory) -> tuple[Service, Any]:
    """The service, and the rows that it holds: two of each person."""
    service, rng = served("sqlite"), np.random.default_rng(5)
    n = PEOPLE * EACH
    age, bmi, sex = rng.normal(50, 15, n).clip(0, 100), rng.normal(27, 5, n), rng.integers(0, 2, n)
    lines = ["patient,age,bmi,sex,ill"]
    for number in range(n):
        shown = "" if number % 10 == 0 else f"{bmi[number]:.3f}"
        lines.append(f"p{number // EACH},{age[number]:.3f},{shown},{'fm'[sex[number]]},{number % 2}")
    path = tmp_path_factory.mktemp("visits") / "visits.csv"
    path.write_text("\n".join(lines) + "\n")
    with service.client() as client:
        client.create_dataset(SPEC, path)
    return service, (age, bmi, sex)


def test_the_client_s_answers_are_near_the_records(visits: tuple[Service, Any]) -> None:
    service, (age, bmi, sex) = visits
    with service.client() as client:
        asked = client.query("visits").where("sex", one_of=["f"]).count().mean("age", "bmi")
        asked = asked.histogram("age", edges=[40, 60]).contingency("sex", "ill").quantile("age", 0.5)
        quote = asked.quote(20.0)
        assert [each.name for each in quote.scores][:2] == ["count()", "mean(age, bmi)"] and quote.memory is not None
        found = asked.run(20.0, name="women")
        # A weight of one query is more noise of the others: what is there is seen, not what nobody has.
        count, mean_age, mean_bmi = found[:3]
        women = sex == 0
        there = women & (np.arange(len(age)) % 10 != 0)
        for each, exact in ((count, women.sum()), (mean_age, age[women].mean()), (mean_bmi, bmi[there].mean())):
            assert each.value is not None and each.standard_error is not None
            assert abs(each.value - exact) < 6.0 * each.standard_error, each
        cells = [each for each in found if each.kind == "contingency" and len(each.cell) == 2]
        men = [each for each in cells if each.cell[0] == "m"]
        assert len(men) == 2 and all(abs(each.raw or 0.0) < 6.0 * (each.standard_error or 0.0) for each in men)
        assert found.frame()["kind"].nunique() == 5
        with pytest.raises(scrimp.ScrimpError, match="kind `statistics`"):
            client.predict(client.jobs.id_of("women"), [{"age": 1, "bmi": 20, "sex": "f"}])


def test_words_of_the_command_line_are_one_job_with_a_certificate(visits: tuple[Service, Any], tmp_path: Path) -> None:
    service, (age, _, _) = visits
    words = ["count", "sum:age", "variance:age", "covariance:age,bmi", "quantile:age=0.25,0.75"]
    done = _cli(service, "query", "visits", *words, "--where", "age=0..100", "--epsilon", "10", "--json")
    answers = json.loads(done)
    by_kind = {each["kind"]: each for each in answers}
    assert abs(by_kind["sum"]["value"] - age.sum()) < 6 * by_kind["sum"]["standard_error"]
    assert set(by_kind) == {"count", "sum", "variance", "covariance", "quantile"}
    jobs = service.get("/v1/jobs?dataset=visits")["items"]
    (job,) = [each for each in jobs if "sum" in {query["kind"] for query in each["spec"].get("queries", ())}]
    assert {each["name"] for each in job["artifacts"]} == {"answers.json", "answers.csv"}
    until(lambda: _certified(service, job["id"]))
    (file := tmp_path / "certificate.json").write_text(_cli(service, "certificates", "show", job["id"]))
    said = _cli(service, "certificates", "explain", str(file))
    assert "one release of sums" in said and "sum age" in said and "answers of one noisy release" in said
    ledger = service.get(f"/v1/datasets/{job['dataset']}/ledger")["accounts"]["train"]
    assert ledger["held"] == 0 and service.verification(job["dataset"])["valid"] is True
    # Two records a person: the noise of the count is that of a sum that one person moves by 2.
    sigma = job["quote"]["noise_multiplier"]
    assert by_kind["count"]["standard_error"] == pytest.approx(sigma * EACH * len(words) ** 0.5, rel=1e-6)


def test_the_page_shows_answers_and_no_metrics(visits: tuple[Service, Any]) -> None:
    service, _ = visits
    with service.client() as client:
        client.query("visits").histogram("age", edges=[40, 60]).run(5.0, name="shown")
        job = client.jobs.id_of("shown")
        key = _key(service)
    with httpx.Client(base_url=f"http://127.0.0.1:{service.port}", follow_redirects=True, timeout=60.0) as browser:
        page = browser.get("/dashboard/login")
        browser.post("/dashboard/login", data={"key": key, "csrf": token_of(page)})
        shown = browser.get(f"/dashboard/jobs/{job}").text
    assert "Histogram of age" in shown and "40 to 60" in shown and "statistics, 1 query" in shown
    assert 'id="metrics"' not in shown


def test_rest_refuses_what_is_not_declared(visits: tuple[Service, Any]) -> None:
    service, _ = visits
    with service.client() as client:
        for change, pointer in (
            ({"where": [{"column": "patient", "in": ["p1"]}]}, "/where/0"),
            ({"queries": [{"kind": "mean", "columns": ["sex"]}]}, "/queries/0"),
            ({"model": {"kind": "linear"}}, ""),
        ):
            job = {"kind": "statistics", "dataset": "visits", "privacy": {"target_epsilon": 1.0}}
            with pytest.raises(scrimp.InvalidRequest) as refused:
                client.quote(job | {"queries": [{"kind": "count"}]} | change)
            assert refused.value.problem["errors"][0]["pointer"] == pointer


def test_values_that_nobody_declared_are_told_filtered_by_and_paid_as_a_histogram(
    visits: tuple[Service, Any], tmp_path: Path
) -> None:
    """From a CSV file to answers, the page, the certificate and the ledger; rare values stay unknown."""
    service, _ = visits
    words = ["E11.9"] * 700 + ["I10"] * 250 + [f"Z{number}" for number in range(150)]
    (path := tmp_path / "codes.csv").write_text(
        "age,code,ill\n" + "".join(f"{number % 90},{word},{number % 2}\n" for number, word in enumerate(words))
    )
    texts = [{"name": "code", "longest": 6, "characters": "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789."}]
    features = {"kind": "table", "columns": TABLE["features"]["columns"][:1], "texts": texts}
    private = {
        "sensitivity": "private",
        "records": len(words),
        "cap": {"epsilon": 20.0, "delta": 1e-6},
        "filter": "gdp",
    }
    with service.client() as client:
        dataset = client.create_dataset({**TABLE, "name": "codes", "features": features, "privacy": private}, path)
        quoted = [
            client.query("codes").categories("code").quote(4.0),
            client.query("codes").histogram("ill").quote(4.0),
        ]
        assert quoted[0].charge == quoted[1].charge and quoted[0].scores[0].name == "categories(code)"
        (count,) = client.query("codes").where("code", one_of=["I10"]).count().run(4.0)
        assert count.value is not None and abs(count.value - 250) < 6 * (count.standard_error or 0.0)
        with pytest.raises(scrimp.InvalidRequest):
            client.query("codes").histogram("code").quote(1.0)
    assert quoted[0].scores[0].threshold == pytest.approx(8.0 * quoted[0].scores[0].std, rel=0.3)
    assert quoted[1].scores[0].threshold is None
    answers = json.loads(_cli(service, "query", "codes", "categories:code", "--epsilon", "4", "--json"))
    assert [each["cell"] for each in answers] == [["E11.9"], ["I10"]]
    for each, exact in zip(answers, (700, 250), strict=True):
        assert abs(each["raw"] - exact) < 6 * each["standard_error"]
    (job,) = [
        each
        for each in service.get(f"/v1/jobs?dataset={dataset.id}")["items"]
        if each["spec"].get("queries", [{}])[0].get("kind") == "categories"
    ]
    until(lambda: _certified(service, job["id"]))
    (file := tmp_path / "certificate.json").write_text(_cli(service, "certificates", "show", job["id"]))
    assert "categories code" in _cli(service, "certificates", "explain", str(file))
    assert service.verification(dataset.id)["valid"] is True
    with httpx.Client(base_url=f"http://127.0.0.1:{service.port}", follow_redirects=True, timeout=60.0) as browser:
        page = browser.get("/dashboard/login")
        browser.post("/dashboard/login", data={"key": _key(service), "csrf": token_of(page)})
        shown = browser.get(f"/dashboard/jobs/{job['id']}").text
        assert browser.get(f"/dashboard/datasets/{dataset.id}").status_code == 200
    assert "Categories of code" in shown and "E11.9" in shown
    assert not re.findall(r"(?<![\w-])Z\d+(?![\w-])", shown), "as a word: a form's token may hold Z7 by chance"


HOSTILE = ("<img src=x onerror=alert(1)>", '=HYPERLINK("http://x")', "[red]'; DROP--", "\uff1dcmd|' /C calc'!A0")


def test_hostile_texts_are_shown_as_they_are_and_rows_are_drawn_beside_them(
    visits: tuple[Service, Any], tmp_path: Path
) -> None:
    """Frequent values that look like markup or formulas; and a job that reads the other columns of such a table."""
    service, _ = visits
    with (path := tmp_path / "typed.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["age", "said", "ill"])
        table.writerows([number % 90, HOSTILE[number % 4], number % 2] for number in range(1_000))
    said = {"name": "said", "longest": 40, "characters": PRINTABLE + "\uff1d"}
    features = {"kind": "table", "columns": TABLE["features"]["columns"][:1], "texts": [said]}
    private = {"sensitivity": "private", "records": 1_000, "cap": {"epsilon": 30.0, "delta": 1e-6}, "filter": "gdp"}
    with service.client() as client:
        dataset = client.create_dataset({**TABLE, "name": "typed", "features": features, "privacy": private}, path)
        job = client.wait_for(client.submit(client.query("typed").categories("said").spec(8.0)), 120.0)
        with client.download(job.id, "answers.csv", tmp_path / "answers.csv").open(
            newline="", encoding="utf-8"
        ) as file:
            cells = [row["cell"] for row in csv.DictReader(file)]
        assert sorted(cells) == sorted(each if each[0] in "<[" else f"'{each}" for each in HOSTILE)
        rows = {"kind": "synthetic", "dataset": dataset.id, "rows": 100, "privacy": {"target_epsilon": 2.0}}
        drawn = client.wait_for(client.submit(rows), 240.0)
        assert drawn.status == "succeeded"
        head = client.download(drawn.id, "rows.csv", tmp_path / "rows.csv").read_text().splitlines()[0]
        assert head == '"age","ill"'
    with httpx.Client(base_url=f"http://127.0.0.1:{service.port}", follow_redirects=True, timeout=60.0) as browser:
        page = browser.get("/dashboard/login")
        browser.post("/dashboard/login", data={"key": _key(service), "csrf": token_of(page)})
        shown = browser.get(f"/dashboard/jobs/{job.id}").text
    assert "<img src=x" not in shown and shown.count("&lt;img src=x onerror=alert(1)&gt;") >= 1
    answers = json.loads(_cli(service, "query", "typed", "categories:said", "--epsilon", "8", "--json"))
    assert {each["cell"][0] for each in answers} == set(HOSTILE)
    assert "[red]'; DROP--" in _cli(service, "query", "typed", "categories:said", "--epsilon", "8")


def _cli(service: Service, *arguments: str) -> str:
    connection = [] if arguments[:2] == ("certificates", "explain") else _connection(service)
    done = CliRunner().invoke(app, [*arguments, *connection])
    assert done.exit_code == 0, done.output
    return done.stdout


def _key(service: Service) -> str:
    return (service.home / "admin.key").read_text().strip()


def _connection(service: Service) -> list[str]:
    return ["--url", f"http://127.0.0.1:{service.port}", "--key", _key(service)]


def _certified(service: Service, job: str) -> bool:
    return "certificate" in service.get(f"/v1/jobs/{job}/certificate")
