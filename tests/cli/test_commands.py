"""`scrimp …` against the real API: what it prints, its exit codes, and that a fault is a sentence."""

from __future__ import annotations

import json
from datetime import timedelta
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.audit.audit_chain import seal
from app.db.database import Database
from app.ledger import signed_terms
from app.ledger.signer import public_key
from app.ledger.signing_keys import publish, signing_key
from app.ledger.transparency.checkpoints import sign_due
from app.ledger.transparency.heads import Heads
from app.ledger.verifications import check_next
from app.settings import Settings
from scrimp import Client
from scrimp.cli import app, audit_commands, query_command
from scrimp.cli.command_session import connection
from scrimp.query import StatisticsQuery
from tests.cli.conftest import Cli
from tests.e2e.conftest import csv_spec, job_of, seed_of, write_csv


def test_a_data_set_is_shown_with_its_budget(cli: Cli, dataset: str) -> None:
    shown = cli("datasets", "show", dataset)
    assert shown.exit_code == 0, shown.output
    assert "cap ε = 8 (δ = 1e-05, gdp, one example added or removed)" in shown.output
    assert dataset in cli("datasets", "list").output
    assert dataset in [each["name"] for each in cli.json("datasets", "list")]


def test_a_mistyped_name_is_asked_about(cli: Cli, dataset: str) -> None:
    refused = cli("datasets", "show", f"{dataset}e")
    assert refused.exit_code == 1 and f"may not see it: did you mean '{dataset}'?" in " ".join(refused.stderr.split())


def test_the_threat_model_has_the_service_s_own_safeguards(cli: Cli) -> None:
    """The words are the documentation's, on the page before what this service's settings say."""
    shown, items = cli("threat-model"), cli.json("safeguards")
    page = Path(__file__).resolve().parents[2] / "docs" / "threat-model.md"
    words, told = shown.stdout.split("\n## Safeguards of the service\n")
    assert shown.exit_code == 0 and words.strip() == page.read_text().strip()
    assert [line.split(" | ")[0] for line in told.splitlines()[5:]] == [f"| {each['subject']}" for each in items]
    assert "not signed" in told and "| encryption in transit | **no** |" in told


def test_optimizers_are_listed_with_their_settings(cli: Cli) -> None:
    listed = cli("optimizers")
    assert listed.exit_code == 0, listed.output
    assert "dp_sgd" in listed.output and "dp_adambc" in listed.output
    one = cli("optimizers", "dp_adam")
    assert "eps" in one.output and "0.999" in one.output and "Kingma" in one.output
    assert cli.json("optimizers", "dp_adam")["schema"]["properties"]["kind"]["const"] == "dp_adam"
    unknown = cli("optimizers", "adam")
    assert unknown.exit_code == 1 and "choose one of dp_sgd" in unknown.stderr


def test_a_quote_is_free(cli: Cli, dataset: str, job_file: str) -> None:
    before = cli.json("ledger", "show", dataset)
    shown = cli("quote", job_file)
    assert shown.exit_code == 0, shown.output
    assert "it fits" in shown.output
    assert cli.json("quote", job_file)["epsilon"]["value"] <= 0.5
    assert cli.json("ledger", "show", dataset)["head"] == before["head"]


def test_queries_are_words_that_are_priced_together(cli: Cli, dataset: str) -> None:
    """Each kind of query, and filters; a price is free, and a word that is no query spends nothing."""
    before = cli.json("ledger", "show", dataset)["head"]
    words = ["count", "histogram:x0=-1,0.5,1", "histogram:y", "--where", "x1=-1..2", "--where", "y=0,1"]
    found = cli.json("query", dataset, *words, "--epsilon", "0.5", "--quote")
    assert [each["name"] for each in found["scores"]] == ["count()", "histogram(x0)", "histogram(y)"]
    assert found["memory"]["answers_bytes"] > 0 and found["epsilon"]["value"] <= 0.5
    shown = cli("query", dataset, "count", "--epsilon", "0.5", "--quote")
    assert shown.exit_code == 0 and "it fits" in shown.output
    for word, says in (
        ("median:x0", "is no query"),
        ("count:x0", "is no query"),
        ("quantile:x0", "not a column and numbers"),
        ("contingency:x0", "not two columns"),
    ):
        refused = cli("query", dataset, word, "--epsilon", "0.5")
        assert refused.exit_code == 2 and says in " ".join(refused.stderr.replace("│", " ").split()), refused.stderr
    refused = cli("query", dataset, "mean:salary", "--epsilon", "0.5")
    assert refused.exit_code == 1 and "'salary' is no declared column" in refused.stderr
    refused = cli("query", dataset, "mean:x0", "--epsilon", "0.5")
    assert refused.exit_code == 1 and "has no declared range" in refused.stderr
    assert cli.json("ledger", "show", dataset)["head"] == before


def test_a_filters_code_with_leading_zeros_stays_a_text() -> None:
    """0042 is another code than 42, which would be counted, and paid for, without a word."""
    named = StatisticsQuery(Client("http://127.0.0.1:9", "key"), "visits")
    for typed, values in (("code=0042,42,-7", ["0042", 42, -7]), ("code=-0,E11", ["-0", "E11"])):
        job = query_command._filtered(named, typed).spec(1.0)
        assert job["where"] == [{"column": "code", "in": values}]


def test_a_sweep_shows_what_is_left_for_the_final_run(cli: Cli, dataset: str, job_file: str) -> None:
    plan = json.loads(Path(job_file).read_text()) | {
        "evaluation": None,
        "hpo": {"score": {"kind": "private_count", "noise_mu": 0.01}},
    }
    search = cli.folder / "search.json"
    search.write_text(json.dumps(plan))
    asked = ["--sweep", "--total", "0.2", "--total", "1", "--levels", "0.1,0.2", "--runs", "1", "--runs", "3"]
    shown = cli("quote", str(search), *asked)
    assert shown.exit_code == 0, shown.output
    assert "at least" in shown.output and "0.879" in shown.output
    found = cli.json("quote", str(search), *asked)["points"]
    assert [(each["runs_per_level"], each["total_epsilon"]) for each in found] == [(1, 0.2), (1, 1), (3, 0.2), (3, 1)]
    assert cli("quote", job_file, "--total", "1").exit_code == 2
    assert cli("quote", str(search), "--sweep", "--levels", "a,b").exit_code == 2


def test_a_whole_job_is_scored_on_what_the_data_set_has(cli: Cli, dataset: str) -> None:
    """1,500 records train and 500 are held out: ± 1 point would need more than the most that either may spend."""
    job = cli.json("train", dataset, "--epsilon", "1")
    assert job["spec"]["evaluation"]["on"] == "holdout"
    whole = cli.file("whole.json", csv_spec("whole") | {"holdout": None})
    rows = write_csv(cli.folder / "whole.csv", seed=seed_of("whole"))
    assert cli("datasets", "add", whole, "--file", str(rows)).exit_code == 0
    second = cli.json("train", "whole", "--epsilon", "1")
    assert second["spec"]["evaluation"]["on"] == "train"
    assert second["spec"]["evaluation"]["noise_mu"] < job["spec"]["evaluation"]["noise_mu"]
    for each in (job, second):
        assert cli("jobs", "cancel", each["id"]).exit_code == 0


def test_a_data_set_and_epsilon_are_a_command(cli: Cli, dataset: str) -> None:
    job = cli.json("train", dataset, "--epsilon", "0.5")
    assert [each["name"] for each in job["quote"]["resolved"]["parts"]] == ["model", "optimizer", "scores", "device"]
    shown = cli("jobs", "show", job["id"])
    assert "linear, from public numbers" in shown.output, shown.output
    refused = cli("train", dataset, "--epsilon", "90")
    assert refused.exit_code == 3, refused.output
    unknown = cli("train", dataset, "--epsilon", "0.5", "--extractor", "none-such")
    assert unknown.exit_code == 1 and "there is no such extractor" in unknown.output, unknown.output
    assert cli("jobs", "cancel", job["id"]).exit_code == 0


def test_a_job_is_submitted_listed_and_cancelled(cli: Cli, dataset: str, job_file: str) -> None:
    before = cli.json("ledger", "show", dataset)["accounts"]["train"]["held"]
    job = cli.json("jobs", "submit", job_file, "--idempotency-key", "once")
    assert cli.json("jobs", "submit", job_file, "--idempotency-key", "once")["id"] == job["id"]
    assert job["id"] in cli("jobs", "list", "--dataset", dataset, "--status", "queued").output
    assert [each["id"] for each in cli.json("jobs", "list", "--search", job["id"], "--sort", "name")] == [job["id"]]
    assert cli.json("jobs", "list", "--search", "no such name") == []
    assert job["id"] in cli("jobs", "show", job["id"]).output
    held = cli.json("ledger", "show", dataset)["accounts"]["train"]["held"]
    assert held - before == job["quote"]["charge"]["train"]
    assert "is cancelled" in cli("jobs", "cancel", job["id"]).output
    assert "cancelled" in cli("jobs", "events", job["id"]).output
    kinds = [each["kind"] for each in cli.json("ledger", "entries", dataset, "--job", job["id"])]
    assert kinds == ["hold", "void"]
    again = cli("jobs", "cancel", job["id"])
    assert again.exit_code == 1
    assert "there is nothing to cancel" in again.stderr


def test_without_a_model_there_is_nothing_to_predict_with(cli: Cli, job_file: str) -> None:
    job = cli.json("jobs", "submit", job_file)
    records = cli.file("records.json", {"records": [{"a": 1.0, "b": 2.0}], "top": 2})
    refused = cli("predict", job["id"], records)
    assert refused.exit_code == 1 and "there is no model to predict with" in refused.stderr
    assert cli("predict", job["id"], cli.file("none.json", {"rows": []})).exit_code == 2
    (table := cli.folder / "rows.csv").write_text("a,b\n1,2.5\n3,word\n")
    archive = cli.folder / "records.npz"
    archive.write_bytes(b"PK\x03\x04 and so on")
    refused = cli("predict", job["id"], str(archive))
    assert refused.exit_code == 2 and "is an npz or zip file" in refused.stderr and ".csv" in refused.stderr
    wrong = cli("predict", job["id"], str(table), "--column", "text")
    assert wrong.exit_code == 2 and "rows.csv lacks `text`" in wrong.stderr
    assert cli("predict", job["id"], records, "--column", "a").exit_code == 2


def test_each_submission_is_a_job_of_its_own(cli: Cli, job_file: str) -> None:
    first, second = cli.json("jobs", "submit", job_file), cli.json("jobs", "submit", job_file)
    assert first["id"] != second["id"]
    assert len(cli.json("jobs", "list", "--limit", "1")) == 1
    for job in (first, second):
        cli("jobs", "cancel", job["id"])


def test_a_budget_refusal_has_an_exit_code_of_its_own(cli: Cli, dataset: str) -> None:
    expensive = cli.file("expensive.json", job_of(dataset, privacy={"target_epsilon": 20.0}))
    refused = cli("jobs", "submit", expensive)
    assert refused.exit_code == 3
    for expected in ("does not fit", "largest ε that fits", "Nothing was charged"):
        assert expected in refused.stderr
    problem = json.loads(cli("jobs", "submit", expensive, "--json").stderr)
    assert problem["type"] == "/problems/budget-exceeded"
    fitting = cli.file(
        "fitting.json", job_of(dataset, privacy={"target_epsilon": problem["largest_epsilon_that_fits"]})
    )
    assert cli.json("quote", fitting)["fits"] is True


def test_a_bad_spec_is_pointed_at(cli: Cli, dataset: str) -> None:
    bad = cli.file("bad.json", job_of(dataset, privacy={"target_epsilon": -1}))
    refused = cli("jobs", "submit", bad)
    assert refused.exit_code == 1
    assert "/privacy/target_epsilon" in refused.stderr


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_file_that_is_no_json_object_is_wrong_usage(cli: Cli, text: str) -> None:
    path = cli.folder / "broken.json"
    path.write_text(text)
    assert cli("quote", str(path)).exit_code == 2
    assert cli("quote", str(cli.folder / "not-there.json")).exit_code == 2


def test_the_chain_is_recomputed_here(cli: Cli, dataset: str) -> None:
    assert "not verified it yet" in cli("ledger", "verify", dataset).output
    settings = Settings(home=cli.folder / "home")
    db = Database.of(settings)
    while check_next(db, Heads.of(settings), timedelta(days=1)):  # what the relay does
        pass
    db.close()
    found = cli.json("ledger", "verify", dataset)
    assert (found["valid"], found["stale"], found["checked_head"]) == (True, False, found["head"])
    assert found["recomputed_here"] == {"entries": found["entries"], "head": found["head"], "first_bad_entry": None}
    first = cli.json("ledger", "entries", dataset)[0]["hash"]
    assert cli("ledger", "verify", dataset, "--head", first).exit_code == 0
    assert cli("ledger", "verify", dataset, "--head", "0" * 64).exit_code == 1


def test_a_file_is_checked_as_it_is_added(cli: Cli) -> None:
    file = write_csv(cli.folder / "checked.csv", rows=500, seed=12)
    spec = cli.file("checked.json", csv_spec("checked", records=500))
    checked = cli("datasets", "check", spec, "--file", str(file))
    assert checked.exit_code == 0 and "500" in checked.output, checked.output
    proposed = cli("datasets", "check", "--file", str(file), "--label", "y")
    assert proposed.exit_code == 0, "the declaration is proposed from the file"
    assert "checked" not in cli("datasets", "list").output


def test_a_kept_checkpoint_is_found_in_the_ledger(cli: Cli, dataset: str) -> None:
    kept, settings = cli.folder / "kept.checkpoint", Settings(home=cli.folder / "home")
    db, key = Database.of(settings), signing_key(settings)
    publish(db, key)
    sign_due(db, Heads.of(settings), key, lambda *_: None)  # what the relay does
    signed_terms.sign_due(db, key)
    db.close()
    assert cli("ledger", "checkpoint", dataset, "--to", str(kept)).exit_code == 0
    assert "not of this chain" not in cli("ledger", "verify", dataset).output
    verified = cli("ledger", "verify", dataset, "--checkpoint", str(kept))
    assert verified.exit_code == 0 and "✓ what you kept is of this chain" in verified.output
    assert cli.json("ledger", "proof", dataset, "--entry", "1")["entry"] == 1
    assert cli("ledger", "proof", dataset).exit_code == 2
    stated = cli("ledger", "statement", dataset, "--to", str(cli.folder / "statement.json"))
    assert stated.exit_code == 0 and "Guarantee" in stated.output, stated.output
    with Client(cli.url, cli.key) as client:
        assert (cli.folder / "statement.json").read_bytes() == client.statement(dataset)
    trusted = public_key(key)
    assert cli.bare("ledger", "statement", str(cli.folder / "statement.json"), "--public-key", trusted).exit_code == 0
    note = kept.read_text().split("\n")
    kept.write_text("\n".join([*note[:2], "A" * 43 + "=", *note[3:]]))
    assert cli("ledger", "verify", dataset, "--checkpoint", str(kept)).exit_code == 1
    kept.write_text("none")
    assert cli("ledger", "verify", dataset, "--checkpoint", str(kept)).exit_code == 1


def test_a_key_works_until_it_is_revoked(cli: Cli, dataset: str) -> None:
    made = cli.json("keys", "create", "ann", "--role", "analyst")
    assert cli("datasets", "list", key=made["token"]).exit_code == 0
    assert cli("keys", "list", key=made["token"]).exit_code == 1
    assert "ann" in cli("keys", "list").output
    assert cli("keys", "revoke", made["key"]["id"]).exit_code == 0
    refused = cli("datasets", "list", key=made["token"])
    assert refused.exit_code == 1
    assert "revoked" in refused.stderr


def test_train_says_what_the_job_is_for(cli: Cli) -> None:
    """The owner may require it, and the refusal asks for it."""
    data = write_csv(cli.folder / "ruled.csv", rows=2000, seed=21)
    rules = {"controller": "A hospital", "purposes": ["care research"], "requires": ["purpose", "permit"]}
    spec = cli.file("ruled.json", csv_spec("ruled") | {"governance": rules})
    assert cli("datasets", "add", spec, "--file", str(data)).exit_code == 0
    assert "requires a purpose" in cli("train", "ruled", "--epsilon", "0.5").output
    job = cli.json("train", "ruled", "--epsilon", "0.5", "--use", "purpose=care research", "--use", "permit=17/2026")
    assert cli("train", "ruled", "--epsilon", "0.5", "--use", "care research").exit_code == 2
    assert job["spec"]["use"] == {"purpose": "care research", "permit": "17/2026"}


def test_grants_rotation_and_who_am_i(cli: Cli, dataset: str) -> None:
    made = cli.json("keys", "create", "bob", "--expires", "30d", "--max-queued-jobs", "5")
    token, key_id = made["token"], made["key"]["id"]
    assert made["key"]["limits"]["max_queued_jobs"] == 5 and made["key"]["expires_at"]
    assert cli("datasets", "show", dataset, key=token).exit_code == 1
    terms = (
        "--permit",
        "17/2026",
        "--person",
        "A. Analyst",
        "--person",
        "B. Boss",
        "--ends-at",
        "2099-01-01T00:00:00Z",
    )
    first = cli("grants", "set", dataset, key_id, "--max-epsilon-per-job", "1", *terms).output
    assert "at most ε = 1" in first and "used by A. Analyst, B. Boss" in first and "replaced" not in first
    said = cli("grants", "set", dataset, key_id, "--max-epsilon-per-job", "0.5").output
    ended = said.partition("replaced its grant to train; no longer: ")[2]
    assert "at most ε = 1 for one job, permit 17/2026, until " in ended and "used by A. Analyst, B. Boss" in ended
    assert "no longer" not in cli("grants", "set", dataset, key_id, "--max-epsilon-per-job", "0.5").output
    assert "may train, at most ε = 0.5 for one job" in " ".join(said.split())
    assert [grant["key_id"] for grant in cli.json("grants", "list", dataset)] == [key_id]
    assert "bob" in cli("grants", "list", dataset).output
    assert "train, at most ε = 0.5" in cli("datasets", "show", dataset, key=token).output
    assert cli("grants", "list", dataset, key=token).exit_code == 1
    by_name = cli("grants", "set", dataset, "bob", key=token)
    assert by_name.exit_code == 1
    assert "only an admin's key finds a key by its name" in by_name.stderr and "scrimp keys self" in by_name.stderr
    assert key_id in cli("keys", "self", key=token).output
    fresh = json.loads(cli("keys", "rotate", "--json", key=token).output)["token"]
    assert cli("keys", "self", key=token).exit_code == 1
    assert cli("datasets", "show", dataset, key=fresh).exit_code == 0
    assert cli("grants", "remove", dataset, key_id).exit_code == 0
    assert cli("datasets", "show", dataset, key=fresh).exit_code == 1
    assert cli("keys", "create", "eve", "--expires", "tomorrow").exit_code == 2


def test_a_key_s_limits_are_shown_and_set(cli: Cli) -> None:
    made = cli.json("keys", "create", "carol", "--weight", "3", "--max-stored-bytes", "1000", "--max-priority", "2")
    key = made["key"]["id"]
    assert made["key"]["limits"] | {"weight": 3, "max_stored_bytes": 1000, "max_priority": 2} == made["key"]["limits"]
    changed = cli.json("keys", "set", "carol", "--weight", "4", "--max-running-jobs", "1", "--default", "max-priority")
    assert changed["limits"] == made["key"]["limits"] | {"weight": 4, "max_running_jobs": 1, "max_priority": 10}
    assert "weight" in cli("keys", "set", key, "--default", "max_running_jobs").output
    shown = json.loads(cli("keys", "self", "--json", key=made["token"]).output)
    assert (shown["limits"]["weight"], shown["limits"]["max_running_jobs"]) == (4, None)
    for wrong in ((), ("--weight", "0"), ("--default", "height"), ("--weight", "2", "--default", "weight")):
        assert cli("keys", "set", key, *wrong).exit_code == 2
    assert cli("keys", "set", key, "--weight", "2", key=made["token"]).exit_code == 1


def test_what_is_not_there_is_named(cli: Cli) -> None:
    missing = cli("datasets", "show", "no-such-set")
    assert (missing.exit_code, "no-such-set" in missing.stderr) == (1, True)
    assert cli("jobs", "show", "job_none").exit_code == 1
    assert cli("certificates", "show", "job_none").exit_code == 1


def test_a_service_that_is_not_there_is_a_sentence(cli: Cli) -> None:
    away = cli("jobs", "list", url="http://127.0.0.1:9")
    assert away.exit_code == 1
    assert away.stderr.strip() == "✗ no service answers at http://127.0.0.1:9: is `scrimp serve` running?"


def test_the_version_is_that_of_the_package() -> None:
    shown = CliRunner().invoke(app, ["--version"])
    assert (shown.exit_code, shown.output) == (0, f"scrimp {metadata.version('scrimp')}\n")


def test_wrong_usage_is_2() -> None:
    assert CliRunner().invoke(app, ["jobs", "submit"]).exit_code == 2
    assert CliRunner().invoke(app, ["no-such-command"]).exit_code == 2


def test_the_homes_admin_key_is_sent_to_this_machine_only(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRIMP_HOME", str(cli.folder / "home"))
    assert connection(cli.url, None) == (cli.url, cli.key)
    assert connection("https://example.org", None) == ("https://example.org", None)
    assert connection(None, "mine") == ("http://127.0.0.1:8100", "mine")


def test_the_audit_log_is_listed_followed_and_verified(cli: Cli, dataset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    db = Database(f"sqlite:///{cli.folder / 'home' / 'scrimp.db'}")
    while seal(db):
        pass
    db.close()
    listed = cli.json("audit", "list", "--action", "dataset.registered")
    assert {each["target"][:3] for each in listed} == {"ds_"}
    assert "dataset.registered" in cli("audit", "list").output
    verified = cli.json("audit", "verify", "--head", listed[0]["hash"])
    assert (verified["valid"], verified["head_known"]) == (True, True)
    assert verified["recomputed_here"]["head"] == verified["head"]
    assert cli("audit", "verify", "--head", "00").exit_code == 1

    def stop(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(audit_commands, "sleep", stop)
    followed = cli("audit", "follow", "--json").stdout.splitlines()
    assert [json.loads(line)["seq"] for line in followed if line.startswith("{")] == list(
        range(1, verified["entries"] + 1)
    )
