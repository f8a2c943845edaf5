"""`scrimp egress`, `verify-egress` and `dpia` against the real service: from the job to the annex, with two persons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from scrimp.cli import app
from tests.e2e.conftest import Service, job_of, until
from tests.e2e.test_spine import finished, register, submit

FOR = ("--recipient", "University Hospital", "--reason", "use in the study")


class Commands:
    """`scrimp …` with one key against the service; offline commands get an address where nobody answers."""

    def __init__(self, service: Service, key: str) -> None:
        self.connection = {"SCRIMP_URL": f"http://127.0.0.1:{service.port}", "SCRIMP_KEY": key}

    def __call__(self, *words: str) -> Result:
        return CliRunner().invoke(app, [*words, "--json"], env=self.connection)

    def json(self, *words: str) -> Any:
        done = self(*words)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def fetched(self, job: str, to: Path) -> Any:
        """`scrimp egress`, until the relay has made it: the command itself waits for a minute."""

        def look() -> Any:
            done = self("egress", job, "--out", str(to), *FOR)
            assert done.exit_code == 0 or "is being made" in done.output, done.output
            return json.loads(done.stdout) if done.exit_code == 0 else None

        return until(look)


def offline(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), env={"SCRIMP_URL": "http://127.0.0.1:1", "SCRIMP_KEY": "none"})


def trained(service: Service, name: str, tmp: Path) -> tuple[str, str]:
    """A data set, and a job on it that has its certificate."""
    dataset = register(service, name, tmp)
    job = finished(service, submit(service, job_of(dataset)))
    assert job["status"] == "succeeded", job
    with service.client() as client:
        client.certificate(job["id"])
    return dataset, job["id"]


@pytest.mark.parametrize("service", ["sqlite"], indirect=True)
def test_from_the_job_to_the_annex(service: Service, tmp_path: Path) -> None:
    _, job = trained(service, "leaves", tmp_path)
    scrimp = Commands(service, (service.home / "admin.key").read_text().strip())
    folder = tmp_path / "passport"
    fetched = scrimp.fetched(job, folder)
    assert {"manifest.json", "model/model.safetensors", "answers/ico-dpia.md"} <= set(fetched["files"])
    assert scrimp("egress", job, "--out", str(folder), *FOR).exit_code == 1, "the folder is not empty"
    again = scrimp.json("egress", job, "--out", str(tmp_path / "again"), *FOR)
    assert again["egress"] == fetched["egress"], "it is not asked for twice"
    key = service.get("/v1/signing-keys")["items"][0]["public_key"]
    checked = offline("verify-egress", str(folder), "--public-key", key, "--job", job, "--json")
    assert (checked.exit_code, json.loads(checked.stdout)["valid"]) == (0, True), checked.output
    assert offline("verify-egress", str(folder)).exit_code == 2
    assert offline("verify-egress", str(folder), "--public-key", key, "--job", "job_other").exit_code == 1
    annex = offline("dpia", str(folder), "--public-key", key)
    assert annex.exit_code == 0, annex.output
    assert fetched["egress"] in annex.stdout and "* [ ] 3. Consider consultation\n" in annex.stdout
    dates = tmp_path / "dates.json"
    until(lambda: scrimp("certificates", "date", str(folder), "--to", str(dates)).exit_code == 0)
    assert len(json.loads(dates.read_text())["dates"]) == 3
    dated = offline("verify-egress", str(folder), "--public-key", key, "--dated", str(dates))
    assert dated.exit_code == 0, dated.output
    (folder / "page.html").write_text("changed")
    assert offline("verify-egress", str(folder), "--public-key", key).exit_code == 1
    assert offline("dpia", str(folder), "--public-key", key).exit_code == 1


@pytest.mark.parametrize("service", ["sqlite"], indirect=True)
def test_two_persons_let_it_out(service: Service, tmp_path: Path) -> None:
    dataset, job = trained(service, "leaves-by-two", tmp_path)
    admin = (service.home / "admin.key").read_text().strip()
    with service.client() as client:
        second, own = client.create_key("second", "admin"), client.own_key().id
    one, two = Commands(service, admin), Commands(service, second.token)
    one.json("approvals", "name", dataset, "--person", f"A. Meier={own}", "--person", f"B. Kaya={second.key.id}")
    waiting = one("egress", job, "--out", str(tmp_path / "early"), *FOR)
    assert waiting.exit_code == 3 and not (tmp_path / "early").exists(), waiting.output
    approval = json.loads(waiting.stdout)["approval"]
    assert one("egress", job, "--out", str(tmp_path / "early"), *FOR).exit_code == 3, "asked again, it waits still"
    refused = one("approvals", "agree", approval)
    assert refused.exit_code == 1 and "agreed" in refused.output, refused.output
    assert one("egress", job, "--out", str(tmp_path / "early"), *FOR).exit_code == 3
    assert two.json("approvals", "agree", approval)["status"] == "agreed"
    folder = tmp_path / "passport"
    one.fetched(job, folder)
    key = service.get("/v1/signing-keys")["items"][0]["public_key"]
    checked = json.loads(offline("verify-egress", str(folder), "--public-key", key, "--json").stdout)
    assert checked["valid"] and {each["person"] for each in checked["manifest"]["approvals"]} == {"A. Meier", "B. Kaya"}
    annex = offline("dpia", str(folder), "--public-key", key)
    assert f"* B. Kaya ({second.key.id}) agreed at" in annex.stdout
