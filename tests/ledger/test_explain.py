"""A certificate in plain words: what stands in it, and nothing that it does not say."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.db.engine import Database
from scrimp.cli import app
from scrimp.explain import explained
from tests.ledger.support import open_ledger
from tests.ledger.test_certificates import document, issue, succeeded


@pytest.fixture
def signed(db: Database) -> dict[str, Any]:
    job_id = succeeded(db, open_ledger(db))
    assert issue(db, job_id)
    return json.loads(json.dumps(document(db, job_id)))  # type: ignore[no-any-return]


def said(body: dict[str, Any]) -> dict[str, str]:
    return {title: "\n".join(lines) for title, lines in explained(body)}


def test_the_sections_are_in_nists_order_and_say_the_numbers(signed: dict[str, Any]) -> None:
    found = said(signed["certificate"])
    assert list(found)[:3] == ["Unit of privacy", "Privacy parameters", "Mechanism"]
    assert "one record" in found["Unit of privacy"]
    assert "ε = 1 at δ = 1e-05" in found["Privacy parameters"]
    for each in ("50 steps of clipped gradients' sums", "26.38", "accuracy on the holdout account, with noise"):
        assert each in found["Mechanism"]
    assert "ab" * 32 in found["What left the service"] and "± 0.004" in found["What left the service"]
    assert "when this was issued the cap was ε = 4.0 at δ = 1e-05" in found["Composition"]
    assert "accuses 0.1 % of the absent ones wrongly, finds at most 0.24 %" in found["How to read it"]
    assert "how long the job ran" in found["Not covered"]
    body = copy.deepcopy(signed["certificate"])
    body["numerics"]["sensitivity_slack"] = 1.00002
    assert "the noise is larger by 2e-05 of itself" in said(body)["Numbers and randomness"]


def test_a_sampled_job_is_read_by_its_curve(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = succeeded(
        db, open_ledger(db, filter_kind="rdp", order=8.0, cap_epsilon=20.0), sampling="poisson", sigma=1.0, steps=40
    )
    assert issue(db, job_id)
    found = said(document(db, job_id)["certificate"])
    assert "with probability 0.0256" in found["Mechanism"]
    assert "on a grid of 0.0001" in found["Privacy parameters"]
    assert "finds at most" in found["How to read it"]
    monkeypatch.setitem(sys.modules, "numpy", None)  # as in an installation of the client alone
    without = said(document(db, job_id)["certificate"])
    assert without["How to read it"].endswith("where batches are sampled: pip install 'scrimp-client[audit]'")
    assert without | {"How to read it": found["How to read it"]} == found


def test_a_job_that_stopped_early_has_the_plans_epsilon(signed: dict[str, Any]) -> None:
    body = copy.deepcopy(signed["certificate"])
    body["steps"]["started"] = 20
    body["released"] = {"weights": False, "metrics": []}
    found = said(body)
    assert "after 20 of 50 steps" in found["Privacy parameters"]
    assert found["What left the service"] == "nothing: no weights and no scores"


def test_what_else_a_job_did_is_said(signed: dict[str, Any]) -> None:
    body = copy.deepcopy(signed["certificate"])
    body["unit"], body["records_per_unit"], body["numerics"] = "user", 4, None
    body["side_information"] = {"id": "ds_2", "name": "reviews-open", "content_hmac": ""}
    body["mechanism"]["mean"] = {"noise_mu": 0.1}
    body["mechanism"]["releases"].append({"what": "classes", "noise_mu": 0.1})
    body["mechanism"]["training"] |= {"adaptive": {"count_noise_multiplier": 9.0}, "clipping": "adaptive"}
    body["mechanism"]["training"]["delayed"] = {"variant": "extra_query"}
    found = said(body)
    assert "at most 4 records" in found["Unit of privacy"]
    for each in (
        "follows a noisy count",
        "a second time",
        "the features' mean, once, with noise",
        "before the first step, classes, once, with noise",
        "what one user adds",
    ):
        assert each in found["Mechanism"]
    assert "reviews-open was used without noise" in found["Trust model"]
    assert found["Numbers and randomness"] == "this certificate does not say in which numbers it was computed"
    assert "several records of one person" not in found["Not covered"]


def test_each_block_s_ledger_is_named(signed: dict[str, Any]) -> None:
    body = copy.deepcopy(signed["certificate"])
    settled = body["ledger"]
    body["ledger"] = [
        settled | {"block": label, "dataset": f"ds_{label}", "content_hmac": "", "entry_seq": seq}
        for label, seq in (("first", 3), ("2026-10", 7))
    ]
    found = said(body)["Composition"]
    assert "all jobs on each block of this data set together stay within its cap" in found
    for each in ("entry 3 of the ledger of block first", "entry 7 of the ledger of block 2026-10"):
        assert each in found
    assert "records there lost nothing" in found


def test_what_costs_nothing_more_is_not_said_to_be_public(signed: dict[str, Any]) -> None:
    """The clipping norm was computed from noisy counts, and a group's score from noisy sums."""
    body = copy.deepcopy(signed["certificate"])
    derived = {"step": 50, "on": "train", "released_by": "post_processing"}
    public = {"name": "loss", "step": 50, "on": "holdout", "std": 0.0, "released_by": "public_data"}
    body["released"]["metrics"] = [
        derived | {"name": "clipping_norm", "std": 0.0},
        derived | {"name": "accuracy:rare", "std": 0.02},
        public,
    ]
    _, norm, group, exact = said(body)["What left the service"].split("\n")
    assert norm.endswith("as it is: computed from noisy numbers that were charged")
    assert group.endswith("with noise of ± 0.02: computed from noisy numbers that were charged")
    assert exact.endswith("exactly, as it is public")


def test_an_epsilon_is_never_shown_smaller(signed: dict[str, Any]) -> None:
    body = copy.deepcopy(signed["certificate"])
    body["epsilon"]["value"] = 1.00001
    assert "ε = 1.001" in said(body)["Privacy parameters"]


def test_the_command_reads_a_file_and_its_envelope(signed: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "certificate.json"
    for written in (signed, signed["envelope"]):
        path.write_text(json.dumps(written))
        told = CliRunner().invoke(app, ["certificates", "explain", str(path)])
        assert told.exit_code == 0, told.output
        assert "How to read it" in told.output
        as_json = CliRunner().invoke(app, ["certificates", "explain", str(path), "--json"])
        assert json.loads(as_json.output) == dict(explained(signed["certificate"]))
    unknown = copy.deepcopy(signed)
    unknown["certificate"]["events"]["train"]["events"][0]["kind"] = "laplace"
    wide = copy.deepcopy(signed)  # computing it took a minute and 400 MiB
    gaussian = {"kind": "gaussian", "noise_multiplier": 1.0}
    wide["certificate"]["events"]["train"]["events"] = [
        {
            "kind": "self_composed",
            "count": 3000,
            "event": {"kind": "poisson_sampled", "sample_rate": 0.5, "event": gaussian},
        }
    ]
    for broken in (signed | {"certificate": {}}, unknown, wide):
        path.write_text(json.dumps(broken))
        told = CliRunner().invoke(app, ["certificates", "explain", str(path)])
        assert told.exit_code == 1 and "no certificate that this version can read" in told.output
