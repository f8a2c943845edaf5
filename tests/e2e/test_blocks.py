"""Jobs on blocks of a data set that grows, through the real service: what is paid, certified and verified."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from scrimp import recompute
from scrimp.cli import app
from scrimp.errors import ApiError
from tests.by_night import SQLITE_BY_DAY
from tests.e2e.conftest import Service, csv_spec, job_of, seed_of, until, write_csv
from tests.e2e.test_spine import finished, register, submit
from tests.node import VERIFIER


def grown(service: Service, name: str, tmp: Path) -> tuple[str, str]:
    """A data set and the id of a block that was appended to it."""
    dataset = register(service, name, tmp)
    path = write_csv(tmp / f"{name}-two.csv", rows=1000, seed=seed_of(f"{name}-two"))
    with service.client() as client:
        return dataset, client.blocks.add(dataset, "two", 1000, path).id


def spent(service: Service, dataset: str) -> dict[str, int]:
    accounts = service.get(f"/v1/datasets/{dataset}/ledger")["accounts"]
    assert [each["held"] for each in accounts.values()] == [0, 0]
    return {name: each["spent"] for name, each in accounts.items()}


def certified(service: Service, job: str) -> dict[str, Any]:
    """The relay signs it once the job has succeeded: until then the answer is `certificate-pending`."""

    def look() -> dict[str, Any] | None:
        found: dict[str, Any] = service.get(f"/v1/jobs/{job}/certificate")
        return found if "certificate" in found else None

    return until(look) or {}


def verified(certificate: dict[str, Any], folder: Path, key: str) -> subprocess.CompletedProcess[str]:
    path = folder / "certificate.json"
    path.write_text(json.dumps(certificate))
    command = [shutil.which("node") or "node", str(VERIFIER), str(path), "--public-key", key]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("service", SQLITE_BY_DAY, indirect=True)
def test_a_job_on_two_blocks_pays_on_both_and_is_certified(service: Service, tmp_path: Path) -> None:
    dataset, block = grown(service, "grows", tmp_path)
    job = finished(service, submit(service, job_of(dataset)))
    assert job["status"] == "succeeded", job
    assert job["spec"]["blocks"] == ["first", "two"] or job["spec"]["blocks"] == ["two", "first"]
    assert (
        spent(service, dataset)
        == spent(service, block)
        == {name: job["quote"]["charge"][name] for name in ("train", "holdout")}
    )
    certificate = certified(service, job["id"])
    body = certificate["certificate"]
    assert body["expected_batch_size"] == 1500 + 750, "the declared training parts of both"
    assert {each["dataset"] for each in body["ledger"]} == {dataset, block}
    assert recompute.recompute(certificate, certificate["public_key"], "it") == 0
    for each in (dataset, block):
        assert service.verification(each)["valid"]
    key = certificate["public_key"]
    told = verified(certificate, tmp_path, key)
    assert told.returncode == 0, told.stdout + told.stderr
    assert told.stdout.count("checkpoint ") == 2 and "blocks " in told.stdout
    # One flipped byte in one block's proof, and a block that is left out, are found.
    forged = json.loads(json.dumps(certificate))
    forged["certificate"]["ledger"].pop()
    assert verified(forged, tmp_path, key).returncode == 1


@pytest.mark.nightly  # by day some of three blocks: test_three_months_of_people_who_return
@pytest.mark.parametrize("service", ["sqlite"], indirect=True)
def test_a_job_on_one_block_spends_nothing_elsewhere(service: Service, tmp_path: Path) -> None:
    dataset, block = grown(service, "one-of-two", tmp_path)
    job = finished(service, submit(service, job_of(dataset, blocks=["two"])))
    assert job["status"] == "succeeded", job
    assert spent(service, dataset) == {"train": 0, "holdout": 0}
    assert spent(service, block)["train"] > 0
    (ledger,) = certified(service, job["id"])["certificate"]["ledger"]
    assert (ledger["block"], ledger["dataset"]) == ("two", block)
    with service.client() as client:
        retired = client.blocks.retire(dataset, "two")
    assert (retired.state, retired.content_deleted_at is not None) == ("retired", True)
    with pytest.raises(ApiError, match="not open"), service.client() as client:
        client.submit(job_of(dataset, blocks=["two"]))
    later = finished(service, submit(service, job_of(dataset)))
    assert (later["status"], later["spec"]["blocks"]) == ("succeeded", ["first"])
    # A block's checkpoint may be older than its end.
    until(lambda: stated(service, dataset, f"two ({block}), closed", f"first ({dataset}), open", "2 jobs"))


def stated(service: Service, dataset: str, *words: str) -> bool:
    """Whether the data set's statement says all these, in a line each: JSON, as a terminal's width breaks lines."""
    key = (service.home / "admin.key").read_text().strip()
    connection = {"SCRIMP_URL": f"http://127.0.0.1:{service.port}", "SCRIMP_KEY": key}
    done = CliRunner().invoke(app, ["ledger", "statement", dataset, "--json"], env=connection)
    if done.exit_code != 0:
        return False
    lines = [line for section in json.loads(done.stdout).values() for line in section]
    return all(any(each in line for line in lines) for each in words)


def write_month(path: Path, users: range, each: int, seed: int) -> Path:
    """Learnable records of each person."""
    draw = np.random.default_rng(seed)
    lines = ["u,x0,x1,x2,x3,x4,y"]
    for user in users:
        for x in draw.normal(size=(each, 5)):
            lines.append(f"p{user}," + ",".join(f"{number:.6f}" for number in x) + f",{int(x @ np.arange(1, 6) > 0)}")
    path.write_text("\n".join(lines) + "\n")
    return path


def write_visits(path: Path, people: int, seed: int) -> Path:
    """One to six visits of each person, who has an age, a group and a disposition of their own."""
    draw = np.random.default_rng(seed)
    lines = ["person,age,group,pulse,back"]
    for person in range(people):
        age, group, own = draw.integers(20, 90), draw.choice(["a", "b", "c"]), draw.normal(0.0, 0.5)
        for pulse in draw.normal(80.0, 12.0, draw.integers(1, 7)):
            logit = 0.06 * (age - 55) + {"a": -1.0, "b": 0.0, "c": 1.0}[group] + 0.05 * (pulse - 80.0) + own - 0.5
            lines.append(f"p{person},{age},{group},{pulse:.0f},{int(draw.random() < 1.0 / (1.0 + np.exp(-logit)))}")
    path.write_text("\n".join(lines) + "\n")
    return path


VISITS: dict[str, Any] = {
    "name": "block-visits",
    "format": "csv",
    "task": {"kind": "classification", "label": "back", "classes": [0, 1]},
    "features": {
        "kind": "table",
        "columns": [
            {"kind": "number", "name": "age", "range": [0, 110], "bins": 16},
            {"kind": "category", "name": "group", "values": ["a", "b", "c"]},
            {"kind": "number", "name": "pulse", "range": [30, 200], "bins": 16},
        ],
    },
    "privacy": {
        "sensitivity": "private",
        "unit": "user",
        "user_column": "person",
        "max_records_per_user": 4,
        "records": 4000,
        "cap": {"epsilon": 8.0, "delta": 1e-5},
    },
    "holdout": {"kind": "split", "fraction": 0.25},
}


@pytest.mark.parametrize("service", SQLITE_BY_DAY, indirect=True)
def test_people_with_several_records_and_epsilon_are_a_whole_job(service: Service, tmp_path: Path) -> None:
    """Nothing is chosen by hand: the model ranks people well, and the job runs what it was charged for."""
    with service.client() as client:
        dataset = client.create_dataset(VISITS, write_visits(tmp_path / "visits.csv", 4000, seed_of("visits"))).id
        job = finished(service, client.train(dataset, epsilon=4.0).id)
    assert job["status"] == "succeeded", job
    auc = job["metrics"]["auc"]
    assert auc["value"] - 3.0 * auc["std"] > 0.6, auc
    charge = {name: job["quote"]["charge"][name] for name in ("train", "holdout")}
    assert spent(service, dataset) == charge
    certificate = certified(service, job["id"])
    body = certificate["certificate"]
    norm = job["quote"]["resolved"]["max_grad_norm"]["value"]
    ran = (body["epsilon"]["unit"], body["records_per_unit"], body["expected_batch_size"], body["max_grad_norm"])
    assert ran == ("user", 4, 3000, norm)
    assert not any("several records" in each for each in job["quote"]["warnings"])
    assert recompute.recompute(certificate, certificate["public_key"], "it") == 0


MONTHS = {"2026-09": (range(600), 1), "2026-10": (range(300, 900), 1), "2026-11": (range(900), 2)}


@pytest.mark.parametrize("service", SQLITE_BY_DAY, indirect=True)
def test_three_months_of_people_who_return(service: Service, tmp_path: Path) -> None:
    """A file a month, with people of earlier ones, within k = 3: a job on any month pays there, and reads everybody."""
    people: dict[str, Any] = {"unit": "user", "user_column": "u", "max_records_per_user": 3, "records": 600}
    spec = csv_spec("months", filter="rdp", **people)
    files = {name: write_month(tmp_path / f"{name}.csv", *of, seed_of(name)) for name, of in MONTHS.items()}
    with service.client() as client:
        blocks = {"first": client.create_dataset(spec, files.pop("2026-09")).id}
        for name, file in files.items():
            made = client.blocks.add(blocks["first"], name, 900 if name == "2026-11" else 600, file)
            blocks[name] = made.id
            said = " ".join(made.warnings or ())
            assert made.read is not None
            if name == "2026-10":
                assert (made.read.units, made.read.dropped) == (600, 0) and "300 users are in earlier blocks" in said
            else:  # those of both earlier months have one record left, and two in the file
                assert (made.read.units, made.read.dropped) == (900, 300) and "900 users are in earlier blocks" in said
    charges = Counter[str]()
    batches = (
        {"kind": "full_batch"},
        {"kind": "cyclic", "batches": 4},
        {"kind": "poisson", "expected_batch_size": 300},
    )
    for labels, sampling in zip((["2026-11"], ["first", "2026-10"], list(blocks)), batches, strict=True):
        asked = job_of(blocks["first"], blocks=labels, sampling=sampling, privacy={"target_epsilon": 1.5})
        job = finished(service, submit(service, asked))
        assert job["status"] == "succeeded", job
        for label in labels:
            charges[label] += job["quote"]["charge"]["train"]
        certificate = certified(service, job["id"])
        body = certificate["certificate"]
        assert (body["epsilon"]["unit"], {each["block"] for each in body["ledger"]}) == ("user", set(labels))
        assert recompute.recompute(certificate, certificate["public_key"], "it") == 0
    assert {label: spent(service, each)["train"] for label, each in blocks.items()} == charges
    with service.client() as client:
        client.blocks.retire(blocks["first"], "first")
        later = write_month(tmp_path / "later.csv", range(600), 3, seed_of("later"))
        told = client.blocks.add(blocks["first"], "2026-12", 600, later)
    assert told.read is not None
    assert (told.read.units, told.read.dropped) == (0, 1800), "September's people have used up k: nothing is renewed"
