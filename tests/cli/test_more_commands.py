"""Names in the place of ids, caps, heads, webhooks, catalogues, completion, and what is interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

import pytest
from rich.console import Console

from scrimp.cli.show import sparkline
from scrimp.cli.watch_command import _Lines
from scrimp.models import Job
from tests.cli.conftest import Cli
from tests.e2e.conftest import csv_spec, job_of, seed_of, write_csv
from tests.factories import job_answer


def test_a_ledgers_columns_have_names_without_formats(cli: Cli, dataset: str) -> None:
    head = cli("ledger", "entries", dataset).stdout.splitlines()[0].split()
    assert "train" in head and "hold-out" in head and not any(":" in word for word in head)


def test_jobs_and_keys_have_names(cli: Cli, dataset: str) -> None:
    file = cli.file("named.json", job_of(dataset, name="first look", privacy={"target_epsilon": 0.1}, evaluation=None))
    job = cli.json("jobs", "submit", file)
    assert cli.json("jobs", "show", "first look")["id"] == job["id"]
    assert cli.json("jobs", "metrics", "first look") == []
    assert [each["kind"] for each in cli.json("ledger", "entries", dataset, "--job", "first look")] == ["hold"]
    spec = json.loads(cli("jobs", "spec", "first look").stdout)
    assert spec == job["spec"]
    again = cli.json("jobs", "submit", cli.file("again.json", spec | {"name": "second look"}))
    assert again["spec"] == spec | {"name": "second look"}
    retried = cli.json("jobs", "retry", "second look")
    assert retried["id"] != again["id"] and retried["spec"] == again["spec"] | {"name": "second look #2"}
    twin = cli.json("jobs", "submit", cli.file("again.json", spec | {"name": "second look"}))
    several = cli("jobs", "cancel", "second look")
    assert several.exit_code == 1 and twin["id"] in several.stderr and again["id"] in several.stderr
    for each in ("first look", again["id"], twin["id"], "second look #2"):
        assert cli("jobs", "cancel", each).exit_code == 0
    made = cli.json("keys", "create", "carl")
    assert "carl) may train" in cli("grants", "set", dataset, "carl").output
    assert cli("grants", "remove", dataset, "carl").exit_code == 0
    assert made["key"]["id"] in cli("keys", "revoke", "carl").output
    gone = cli("keys", "revoke", "carl")
    assert gone.exit_code == 1 and "no key is called 'carl'" in gone.stderr


def test_a_certificate_s_file_that_is_not_there_is_wrong_usage(cli: Cli) -> None:
    for name in ("nowhere.json", "certificates/nowhere"):
        missing = cli.bare("certificates", "verify", name)
        assert missing.exit_code == 2 and "No such file" in missing.stderr
    assert "there is no job 'nobody'" in cli("certificates", "verify", "nobody").stderr


def test_caps_checkpoints_and_joins(cli: Cli) -> None:
    for name in ("mine", "yours"):
        spec, rows = cli.file(f"{name}.json", csv_spec(name)), write_csv(cli.folder / f"{name}.csv", seed=seed_of(name))
        assert cli("datasets", "add", spec, "--file", str(rows)).exit_code == 0
    assert cli.json("ledger", "cap", "mine", "--epsilon", "9", "--reason", "a contract")["cap"]["value"] == 9.0
    refused = cli("ledger", "cap", "mine", "--epsilon", "-1", "--reason", "x")
    assert refused.exit_code == 1 and "/epsilon" in refused.stderr
    pending = cli("ledger", "checkpoint", "mine")
    assert pending.exit_code == 1 and "no checkpoint is signed yet" in pending.stderr, "a relay signs it"
    joined = cli("ledger", "join", "yours", "mine", "--reason", "the same people")
    assert joined.exit_code == 0 and joined.output.startswith("mine  cap ε = 9"), joined.output
    assert "joined to another" in cli("ledger", "show", "yours").output


def test_charges_of_another_system(cli: Cli, dataset: str) -> None:
    claim = json.dumps({"kind": "laplace", "scale": 50.0})
    made = cli.json("charges", "reserve", dataset, claim, "--attested", "OpenDP: ages by decade", "--once", "first")
    assert made["status"] == "held" and made["mechanism"] == {"kind": "laplace", "scale": 50.0, "count": 1}
    again = cli.json("charges", "reserve", dataset, claim, "--attested", "OpenDP: ages by decade", "--once", "first")
    assert again == made
    assert "is posted" in cli("charges", "post", made["id"]).output
    other = cli.json("charges", "reserve", dataset, claim, "--attested", "another", "--account", "train")
    assert cli.json("charges", "void", other["id"], "--reason", "it failed")["reason"] == "it failed"
    assert cli.json("charges", "show", other["id"])["holdout"] == 0
    assert [each["status"] for each in cli.json("charges", "list", dataset)] == ["voided", "posted"]
    assert cli("charges", "reserve", dataset, "laplace", "--attested", "x").exit_code == 2
    refused = cli(
        "charges", "reserve", dataset, '{"kind": "approximate", "epsilon": 1.0, "delta": 1e-6}', "--attested", "x"
    )
    assert refused.exit_code == 1 and "bounds neither a Rényi" in refused.stderr.replace("\n", " ")


def test_budgets_within_a_cap(cli: Cli, dataset: str) -> None:
    ann = cli.json("keys", "create", "ann")["key"]["id"]
    assert cli("grants", "set", dataset, "ann").exit_code == 0
    made = cli.json("budgets", "set", dataset, "team", "--epsilon", "2", "--for", "ann")
    assert made["keys"] == [ann] and made["version"] == 1
    assert "ε = 3" in cli("budgets", "set", dataset, "team", "--epsilon", "3").output
    shown = cli("budgets", "show", dataset, "team").output
    assert "0 % spent, 0 % held. The cap holds even if all keys share what they learn." in shown.replace("\n", " ")
    assert "team" in cli("budgets", "list", dataset).output
    assert cli("ledger", "spending", dataset).exit_code == 0
    ben = cli.json("keys", "create", "ben")["key"]["id"]
    cli("grants", "set", dataset, "ben")
    for who in (ann, ben):
        replaced = cli("budgets", "set", dataset, "team", "--epsilon", "3", "--for", who)
        left = f"no longer within it, bounded by the cap alone: {ann}"
        assert (left in replaced.stderr.replace("\n", " ")) == (who == ben)
    asked = cli.json("budgets", "request", dataset, "--epsilon", "2", "--reason", "two more models")
    assert asked["status"] == "open" and asked["id"] in cli("budgets", "requests", dataset).output
    assert cli.json("budgets", "approve", asked["id"], "--answer", "fine")["status"] == "approved"
    other = cli.json("budgets", "request", dataset, "--epsilon", "3", "--reason", "more")
    assert "is denied" in cli("budgets", "deny", other["id"]).output
    assert cli("budgets", "close", dataset, "team").exit_code == 0
    closed = {each["name"]: each["closed"] for each in cli.json("budgets", "list", dataset)}
    assert closed.pop("team") and list(closed.values()) == [False]
    assert cli("budgets", "set", dataset, "team", "--epsilon", "30", "--for", "ann").exit_code == 1


def test_a_job_pauses_and_resumes(cli: Cli, dataset: str) -> None:
    file = cli.file("paused.json", job_of(dataset, privacy={"target_epsilon": 0.1}, evaluation=None))
    job = cli.json("jobs", "submit", file)["id"]
    assert "is paused" in cli("jobs", "pause", job).output
    assert cli.json("jobs", "resume", job)["status"] == "queued"
    assert cli("jobs", "resume", job).exit_code == 1


def test_webhooks_live_and_die(cli: Cli, dataset: str) -> None:
    address = "https://127.0.0.1:8443/hook"
    assert cli("webhooks", "create", address).exit_code == 2
    made = cli.json("webhooks", "create", address, "--event", "job.succeeded", "--dataset", dataset)
    one = made["webhook"]["id"]
    assert made["secret"] and one in cli("webhooks", "list").output
    assert "job.succeeded" in cli("webhooks", "show", one).output
    assert "is off" in cli("webhooks", "change", one, "--disable").output
    assert cli.json("webhooks", "change", one, "--event", "job.failed", "--enable")["events"] == ["job.failed"]
    assert cli("webhooks", "change", one).exit_code == 2
    assert cli.json("webhooks", "rotate-secret", one)["secret"] != made["secret"]
    assert cli.json("webhooks", "test", one)["status"]
    assert len(cli.json("webhooks", "deliveries", one)) == 1
    assert cli("webhooks", "delete", one).exit_code == 0
    assert cli("webhooks", "show", one).exit_code == 1


@pytest.mark.parametrize(("name", "one"), [("models", "linear"), ("strategies", "linear_scaling")])
def test_catalogues_are_listed(cli: Cli, name: str, one: str) -> None:
    listed = cli(name)
    assert listed.exit_code == 0 and one in listed.output, listed.output
    assert one in cli(name, one).output
    unknown = cli(name, "nothing")
    assert unknown.exit_code == 1 and one in unknown.stderr


def test_workers_and_extractors_may_be_none(cli: Cli) -> None:
    assert cli.json("workers") == [] and cli("workers").output.strip() == "none"
    assert cli("extractors").exit_code == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands(cli: Cli, shell: str) -> None:
    script = cli.bare("completion", shell)
    assert script.exit_code == 0 and "_SCRIMP_COMPLETE" in script.output
    asked = {"_SCRIMP_COMPLETE": f"complete_{shell}", "COMP_WORDS": "scrimp jo", "COMP_CWORD": "1"}
    asked |= {"_TYPER_COMPLETE_ARGS": "scrimp jo", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    program = "import sys; sys.argv = ['scrimp']; from scrimp.cli import main; main()"
    run = [sys.executable, "-c", program]
    done = subprocess.run(run, env=os.environ | asked, capture_output=True, text=True, timeout=300, check=False)
    assert "jobs" in done.stdout and "keys" not in done.stdout, done.stderr
    assert cli.bare("completion", "ksh").exit_code == 2


def test_an_interrupted_watch_has_its_own_exit_code(cli: Cli, job_file: str) -> None:
    job = cli.json("jobs", "submit", job_file)["id"]
    line = [sys.executable, "-m", "scrimp.cli", "jobs", "watch", job, "--url", cli.url, "--key", cli.key]

    def hearing() -> None:  # a shell's background job, which the tests may be, ignores it, and so would the command
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(line, preexec_fn=hearing, **pipes) as process:  # noqa: PLW1509 - one call, no lock
        assert process.stdout is not None
        assert job in process.stdout.readline()
        assert any("queued" in line for line in process.stdout), "it is watching"  # the lines above wrap or do not
        for _ in range(12):  # Python forgets one that comes while it runs a finalizer; a person presses again
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=300)
                break
    assert process.returncode == 130
    assert cli.json("jobs", "cancel", job)["status"] == "cancelled"


def test_a_sparkline_follows_the_scores(capsys: pytest.CaptureFixture[str]) -> None:
    assert (sparkline([]), sparkline([0.5]), sparkline([0.5, 0.5])) == ("", "", "▁▁")
    assert sparkline([0.1, float("nan"), 0.9]) == "▁█" and len(sparkline(list(range(100)))) == 20
    lines = _Lines(Console(width=120))
    for step, value in ((1, 0.5), (2, 0.9), (2, 0.9), (4, 0.7)):
        score = {"name": "accuracy", "step": step, "value": value, "std": 0.01, "on": "holdout"}
        scores = {"accuracy": score | {"released_by": "noisy_count"}}
        lines.update(Job(**job_answer(status="running", progress={"step": step, "steps": 4}, metrics=scores)))
    assert capsys.readouterr().out.splitlines() == [
        "job_1  running  1/4  accuracy 0.5000 ± 0.0100",
        "job_1  running  2/4  accuracy ▁█ 0.9000 ± 0.0100",
        "job_1  running  4/4  accuracy ▁█▄ 0.7000 ± 0.0100",
    ]
