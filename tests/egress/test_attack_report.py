"""An owner's attack on a model that leaves: its rows, SACRO-ML's answer, and what that is compared with.

The answers of SACRO-ML are recorded from real runs (tests/egress/sacroml).
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import scrimp
from core.privacy.events import AccountEvents, composed, noisy_sums
from core.privacy.profile import profile_of
from scrimp.attack_report import WARNING, answers_on, area_of, attacked, bound_of, rates_of, report_of, write
from scrimp.cli import app
from scrimp.egress import Examined
from scrimp.errors import ScrimpError
from scrimp.record_files import RecordFile
from tests.egress.conftest import World
from tests.egress.sacroml import HERE, recorded
from tests.worker.test_predicting import CASES, message
from worker.predicting.predict import predicted

FILES = {
    "clipped": "age,sex,y,id\n30,m,yes,1\n,f,no,2\n",
    "pairs": "age,sex,y,id\n30,m,yes,1\n2,f,no,2\n",
    "relu": "a,b,y\n1,-2.5,perhaps\n3,0.0,no\n",
}


def body_of(mu: float) -> dict[str, Any]:
    """What a certificate says of a Gaussian mechanism."""
    events = AccountEvents(train=composed([noisy_sums(1.0, 1.0 / mu, 1)]), holdout=None)
    return {"profile": profile_of(events, 4.0).model_dump(mode="json"), "unit": "example"}


def file_of(path: Path, text: str, times: int = 30) -> Path:
    header, *rows = text.splitlines(keepends=True)
    path.write_text(header + "".join(rows * times))
    return path


def answer_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / f"{name}.json").read_text())
    return found


@pytest.mark.parametrize("kind", FILES)
def test_rows_are_answered_as_the_service_answers(tmp_path: Path, kind: str) -> None:
    """Linear, additive, MLP: the attack reads what a recipient reads."""
    asked, _ = message(tmp_path, kind, top=3)
    task = CASES[kind][1]
    classes = [str(each) for each in task["classes"]]
    file = RecordFile.read(file_of(tmp_path / "rows.csv", FILES[kind]))
    found = answers_on(scrimp.load_model(tmp_path), file)
    for at, theirs in enumerate(predicted(asked)[:2]):
        wanted = [theirs["probabilities"][each] for each in classes]
        label = file.rows[at]["y"]
        for row in (at, at + 2):
            assert found["probabilities"][row] == pytest.approx(wanted, rel=1e-5)
            assert found["correct"][row] == (theirs["class"] == label)


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("mlp", "x\n1\n", "task is regression"),
        ("clipped", "age,sex\n30,m\n", "lacks `y`"),
        ("clipped", "age,sex,y\n30,m,maybe\n", "rows.csv, line 2: 'maybe' is no class"),
        ("clipped", "age,sex,y\n30,x,no\n", "does not fit the model.*not a declared value"),
    ],
)
def test_rows_that_do_not_fit_are_refused(tmp_path: Path, kind: str, text: str, said: str) -> None:
    message(tmp_path, kind)
    file = RecordFile.read(file_of(tmp_path / "rows.csv", text, times=60))
    with pytest.raises(ScrimpError, match=said):
        answers_on(scrimp.load_model(tmp_path), file)


def test_few_rows_are_refused(tmp_path: Path) -> None:
    message(tmp_path, "clipped")
    with pytest.raises(ScrimpError, match="has 2 rows, and the attack needs 40"):
        answers_on(scrimp.load_model(tmp_path), RecordFile.read(file_of(tmp_path / "rows.csv", FILES["clipped"], 1)))


@pytest.mark.parametrize("mu", [0.2, 1.0, 3.0])
def test_the_bound_is_never_below_the_mechanism_s_own_curve(mu: float) -> None:
    """Φ(Φ⁻¹(α) + μ) is what a Gaussian mechanism loses, exactly."""
    from statistics import NormalDist

    normal, bound = NormalDist(), bound_of(body_of(mu))
    shares = [10.0**-exponent for exponent in range(1, 7)] + [at / 50 for at in range(1, 50)]
    assert all(bound(share) >= normal.cdf(normal.inv_cdf(share) + mu) for share in shares)
    assert [bound(share) for share in sorted(shares)] == sorted(map(bound, shares)) and bound(1.0) == 1.0
    for each in body_of(mu)["profile"]["attacks"]:
        assert bound(each["false_positive"]) == pytest.approx(each["true_positive"], rel=1e-6)
    area = area_of({"score": [0.0, 1.0], "member": [0, 1]}, body_of(mu))
    assert normal.cdf(mu / math.sqrt(2.0)) <= area.bound <= 1.0


def test_a_perfect_attack_is_above_and_a_blind_one_is_not() -> None:
    draw = np.random.default_rng(20)
    member = [1] * 2000 + [0] * 2000
    perfect = {"member": member, "score": [*(1.0 + draw.random(2000)), *draw.random(2000)]}
    blind = {"member": member, "score": [0.5] * 4000}
    assert all(each.above for each in [*rates_of(perfect, body_of(0.5)), area_of(perfect, body_of(0.5))])
    assert not any(each.above for each in [*rates_of(blind, body_of(0.5)), area_of(blind, body_of(0.5))])
    assert area_of(blind, body_of(0.5)).auc == 0.5 and all(
        each.true_positive == 0.0 for each in rates_of(blind, body_of(0.5))
    )


def test_what_a_mechanism_may_lose_is_not_called_a_fault() -> None:
    """Of 200 attacks that find exactly what μ allows, 5 % at most may be told as above."""
    draw, told = np.random.default_rng(21), 0
    member = [1] * 500 + [0] * 500
    for _ in range(200):
        answer = {"member": member, "score": [*(1.0 + draw.standard_normal(500)), *draw.standard_normal(500)]}
        told += any(each.above for each in [*rates_of(answer, body_of(1.0)), area_of(answer, body_of(1.0))])
    assert told <= 10


@pytest.mark.parametrize("kind", ["linear", "gam", "mlp"])
def test_sacroml_found_nothing_in_the_service_s_models(kind: str) -> None:
    answer = answer_of(kind)
    assert answer["sacroml"] == "2.0.1" and len(answer["auc"]) == 10
    found = [*rates_of(answer, body_of(0.5)), area_of(answer, body_of(0.5))]
    assert not any(each.above for each in found)
    assert abs(area_of(answer, body_of(0.5)).auc - answer["auc"][0]) < 1e-3, "the area is SACRO-ML's"


def test_a_planted_model_that_knows_its_rows_is_above() -> None:
    """A forest that was fitted to its rows without noise, and attacked by SACRO-ML: not what μ = 0.5 allows."""
    answer = answer_of("overfit")
    rates, area = rates_of(answer, body_of(0.5)), area_of(answer, body_of(0.5))
    assert area.above and rates[-1].above
    assert rates[-1].between[0] > rates[-1].bound >= (rates[-1].promised or 1.0)


def model_folder(tmp_path: Path, mu: float = 0.5) -> Path:
    """As much of an egress as an attack reads."""
    folder = tmp_path / "passport"
    (folder / "model").mkdir(parents=True)
    message(folder / "model", "clipped")
    (folder / "certificate.json").write_text(json.dumps({"certificate": body_of(mu)}))
    (folder / "manifest.json").write_text("{}")
    return folder


HELD = Examined({"egress": "egr_1", "job": "job_1"}, [], True)


def rows(tmp_path: Path) -> dict[str, Path]:
    text = FILES["clipped"]
    return {
        "train": file_of(tmp_path / "train.csv", text),
        "holdout": file_of(tmp_path / "holdout.csv", text, times=31),
    }


def test_the_report_is_its_owner_s_alone(tmp_path: Path) -> None:
    folder, to = model_folder(tmp_path), tmp_path / "attack"
    report = report_of(folder, HELD, rows(tmp_path), recorded(tmp_path, "overfit"))
    sha256 = write(report, to, folder)
    assert report["above"] is True and report["rows"] == {"train": 60, "holdout": 62}
    assert sha256 == hashlib.sha256((to / "report.json").read_bytes()).hexdigest()
    assert {each.name: oct(each.stat().st_mode & 0o777) for each in to.iterdir()} == {
        "report.json": "0o600",
        "report.md": "0o600",
    }
    assert to.stat().st_mode & 0o777 == 0o700
    assert (to / "report.md").read_text().splitlines()[0] == f"# {WARNING}"
    assert next(iter(json.loads((to / "report.json").read_text()))) == "warning"
    assert "**Above what the certificate allows" in (to / "report.md").read_text()
    assert sorted(each.name for each in folder.iterdir()) == ["certificate.json", "manifest.json", "model"]


@pytest.mark.parametrize("inside", ["passport", "passport/report", "passport/../passport/report", "link/report"])
def test_a_report_within_the_egress_is_refused(tmp_path: Path, inside: str) -> None:
    folder = model_folder(tmp_path)
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(ScrimpError, match="must not leave with it"):
        write({}, tmp_path / inside, folder)


def test_a_folder_that_is_there_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "attack").mkdir()
    with pytest.raises(ScrimpError, match="name a new folder"):
        write({}, tmp_path / "attack", model_folder(tmp_path))


def test_the_same_rows_twice_are_refused(tmp_path: Path) -> None:
    files = rows(tmp_path)
    (tmp_path / "copy.csv").write_bytes(files["train"].read_bytes())
    with pytest.raises(ScrimpError, match="both files are the same"):
        report_of(
            model_folder(tmp_path), HELD, files | {"holdout": tmp_path / "copy.csv"}, recorded(tmp_path, "overfit")
        )


def test_an_egress_that_does_not_hold_is_not_attacked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="it is changed"):
        report_of(model_folder(tmp_path), Examined({}, ["it is changed"], True), rows(tmp_path), tmp_path)


def failing(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return path


@pytest.mark.parametrize(
    ("text", "said"),
    [("exit 3", "has no sacroml: python3 -m venv"), ("echo first >&2; echo last >&2; exit 1", "failed: last")],
)
def test_an_environment_that_cannot_attack_says_so(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ScrimpError, match=said):
        attacked(failing(tmp_path, text), {"train": {}, "holdout": {}})
    with pytest.raises(ScrimpError, match=r"No such file.*pip install sacroml"):
        attacked(tmp_path / "nowhere", {"train": {}, "holdout": {}})


def test_our_own_environment_has_no_sacroml(tmp_path: Path) -> None:
    """The program itself, run by an interpreter: it needs nothing of ours, and says what it lacks."""
    import sys

    with pytest.raises(ScrimpError, match="has no sacroml"):
        attacked(Path(sys.executable), {"train": {}, "holdout": {}})


@pytest.mark.parametrize("answer", [{"score": [0.1], "member": [1]}, {"score": [0.1, math.nan], "member": [0, 1]}])
def test_an_answer_that_is_none_is_refused(answer: dict[str, Any]) -> None:
    with pytest.raises(ScrimpError, match="not one of scores"):
        rates_of(answer, body_of(0.5))


def ran(folder: Path, files: dict[str, Path], to: Path, *words: str) -> Result:
    options = ("--train", str(files["train"]), "--holdout", str(files["holdout"]), "--to", str(to))
    return CliRunner().invoke(app, ["attack-report", str(folder), *options, *words])


def test_the_command_refuses_before_it_reads_a_row(shared: World, tmp_path: Path) -> None:
    folder = shared.made(shared.first, tmp_path / "folder")
    files = rows(tmp_path)
    within = ran(folder, files, folder / "attack")
    assert within.exit_code == 1 and "must not leave with it" in " ".join(within.output.split())
    bare = ran(folder, files, tmp_path / "attack")
    assert bare.exit_code == 1 and "pip install sacroml==2.0.1" in " ".join(bare.output.split())
    (folder / "page.html").write_text("changed")
    changed = ran(folder, files, tmp_path / "attack", "--python", str(recorded(tmp_path, "overfit")))
    assert changed.exit_code == 1 and "page.html is not the file that was signed" in " ".join(changed.output.split())
    assert not (tmp_path / "attack").exists()
