"""A certificate in plain words: what stands in it, and nothing that it does not say."""

from __future__ import annotations

import base64
import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.db.database import Database
from scrimp.certificate_page import Signer, page
from scrimp.cli import app
from scrimp.explain import declared, explained, loss_of
from scrimp.recompute import check_body
from tests.ledger.support import open_ledger
from tests.ledger.test_certificates import NUMERICS, document, issue, succeeded

OTHER_KEY = base64.b64encode(bytes(32)).decode()
MEANING = ("threat_model", "assumptions", "composition", "profile", "environment")


@pytest.fixture
def signed(db: Database) -> dict[str, Any]:
    job_id = succeeded(db, open_ledger(db))
    assert issue(db, job_id)
    return json.loads(json.dumps(document(db, job_id)))  # type: ignore[no-any-return]


@pytest.fixture
def earlier(signed: dict[str, Any]) -> dict[str, Any]:
    """The body of a certificate of version 2: what it means is not signed, so that the reader's tool says it."""
    return {name: member for name, member in signed["certificate"].items() if name not in MEANING} | {"version": 2}


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
    assert "digits" not in said(body)["Numbers and randomness"]
    body["numerics"]["fp32_precision"] = "tf32"
    assert "products round their factors to 11 digits" in said(body)["Numbers and randomness"]


def test_an_earlier_certificate_is_put_into_the_same_words(signed: dict[str, Any], earlier: dict[str, Any]) -> None:
    new, old = said(signed["certificate"]), said(earlier)
    assert list(new) == list(old)
    changed = {title for title in new if new[title] != old[title]}
    assert changed == {"Trust model", "What ran"}
    assert "assumed: the keys of noise, sampling and order are secret" in new["Trust model"]
    assert new["What ran"].splitlines()[1].startswith(NUMERICS["device_name"])


def test_what_is_signed_is_said_as_it_is(signed: dict[str, Any]) -> None:
    """A reader's tool of another release has no words of its own for it."""
    body = copy.deepcopy(signed["certificate"])
    body["threat_model"]["not_covered"] = ["the weather"]
    body["composition"] = ["all jobs together"]
    body["profile"]["attacks"][0]["true_positive"] = 0.5
    found = said(body)
    assert found["Not covered"] == "the weather"
    assert found["Composition"].startswith("all jobs together\n")
    assert "accuses 0.1 % of the absent ones wrongly, finds at most 50 %" in found["How to read it"]


def test_a_sampled_job_is_read_by_its_curve(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = succeeded(
        db, open_ledger(db, filter_kind="rdp", order=8.0, cap_epsilon=20.0), sampling="poisson", sigma=1.0, steps=40
    )
    assert issue(db, job_id)
    found = said(document(db, job_id)["certificate"])
    assert "with probability 0.0256" in found["Mechanism"]
    assert "on a grid of 0.0001" in found["Privacy parameters"]
    assert "finds at most" in found["How to read it"]
    body = document(db, job_id)["certificate"]
    bare = {name: member for name, member in body.items() if name != "profile"}
    one, other = loss_of(bare), loss_of(body)  # two accountants; the client's reads its curve at more points
    assert one.attacks == pytest.approx(other.attacks, rel=5e-3)
    assert one.epsilons == pytest.approx(other.epsilons, rel=1e-4)
    monkeypatch.setitem(sys.modules, "numpy", None)  # as in an installation of the client alone
    assert said(body) == found
    without = said(bare)
    assert without["How to read it"].endswith("where batches are sampled: pip install 'scrimp-client[audit]'")
    assert without | {"How to read it": found["How to read it"]} == found  # nothing else needs it


def test_a_job_that_stopped_early_has_the_plans_epsilon(signed: dict[str, Any]) -> None:
    body = copy.deepcopy(signed["certificate"])
    body["steps"]["started"] = 20
    body["released"] = {"weights": False, "metrics": []}
    found = said(body)
    assert "after 20 of 50 steps" in found["Privacy parameters"]
    assert found["What left the service"] == "nothing: no weights and no scores"


def test_what_else_a_job_did_is_said(earlier: dict[str, Any]) -> None:
    body = copy.deepcopy(earlier)
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


def test_each_block_s_ledger_is_named(earlier: dict[str, Any]) -> None:
    body = copy.deepcopy(earlier)
    settled = body["ledger"]
    body["ledger"] = [
        settled | {"block": label, "dataset": f"ds_{label}", "content_hmac": "", "entry_seq": seq}
        for label, seq in (("first", 3), ("2026-10", 7))
    ]
    found = said(body)["Composition"]
    assert "for each of the blocks first, 2026-10: all jobs on its ledger together stay within its cap" in found
    for each in ("entry 3 of the ledger of block first", "entry 7 of the ledger of block 2026-10"):
        assert each in found
    assert "records there lost nothing" in found
    read = said(body)["What it read"]
    train, held = declared(body)
    assert f"{train:,} to train on, {held:,} held out for scores" in read
    assert "block first (ds_first)\nblock 2026-10 (ds_2026-10)\nno other block" in read
    shown = page(body, Signer("", False))
    assert "block first (ds_first); block 2026-10 (ds_2026-10); no other block" in shown
    whole = said(earlier)["What it read"]
    assert "the whole data set: it had no blocks" in whole and "the whole data set" in page(earlier, Signer("", False))


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
        for key, status in ((signed["public_key"], 0), (OTHER_KEY, 1)):
            told = CliRunner().invoke(app, ["certificates", "explain", str(path), "--public-key", key])
            assert told.exit_code == status and ("How to read it" in told.output) == (status == 0), told.output
    forged = copy.deepcopy(signed)
    forged["certificate"]["epsilon"]["value"] = 0.1
    path.write_text(json.dumps(forged))
    told = CliRunner().invoke(app, ["certificates", "explain", str(path), "--public-key", signed["public_key"]])
    assert told.exit_code == 1 and "How to read it" not in told.output
    unknown = copy.deepcopy(signed)
    del unknown["certificate"]["profile"]  # as before version 3: the reader computes it
    unknown["certificate"]["events"]["train"]["events"][0]["kind"] = "laplace"
    wide = copy.deepcopy(unknown)  # computing it took a minute and 400 MiB
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


@pytest.mark.parametrize("sampled", [False, True])
def test_a_profile_that_says_too_little_is_found(
    db: Database, sampled: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = {"filter_kind": "rdp", "order": 8.0, "cap_epsilon": 20.0} if sampled else {}
    plan = {"sampling": "poisson", "sigma": 1.0, "steps": 40} if sampled else {}
    job_id = succeeded(db, open_ledger(db, **kind), **plan)
    assert issue(db, job_id)
    body = document(db, job_id)["certificate"]
    sound = check_body(body)  # of a sampled job the test's own ε
    assert len(sound) == sampled and "profile    ε at δ = 1e-05: " in capsys.readouterr().out
    faults = {
        ("epsilons", 5, "epsilon"): "ε at δ = 1e-10",
        ("attacks", 0, "true_positive"): "attack at 0.001",
    }
    for (member, at, name), what in faults.items():
        changed = copy.deepcopy(body)
        changed["profile"][member][at][name] *= 0.8
        (fault,) = check_body(changed)[len(sound) :]
        assert fault.startswith(f"the printed {what} of ")
    changed = copy.deepcopy(body)
    changed["profile"]["advantage"] *= 0.8
    assert check_body(changed)[-1].startswith("the printed advantage of ")
