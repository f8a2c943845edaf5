"""`scrimp audit privacy` on the real service, as an owner runs it: an honest service passes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from scrimp.audit.audited_kinds import QUICK
from scrimp.cli import app
from tests.by_night import but
from tests.e2e.conftest import Service
from tests.e2e.test_spine import ON_SQLITE


def audit(service: Service, *options: str) -> Result:
    settings = {"SCRIMP_HOME": str(service.home), "SCRIMP_PORT": str(service.port), "COLUMNS": "130"}
    return CliRunner().invoke(app, ["audit", "privacy", *options], env=settings)


ADAPTIVE_AND_SCORES = ("dp_adam", "score loss")


@ON_SQLITE
@pytest.mark.parametrize(
    ("kinds", "pairs"), but([(ADAPTIVE_AND_SCORES, 0), (QUICK, 10)], lambda case: case[0] is ADAPTIVE_AND_SCORES)
)
def test_an_honest_service_passes(service: Service, tmp_path: Path, kinds: tuple[str, ...], pairs: int) -> None:
    """By night seven kinds: plain, adaptive, with a moving norm, sampled, of users, scores, and a network."""
    report = tmp_path / "audit.md"
    ran = audit(service, "--json", "--report", str(report), "--name", "honest", "--kinds", ",".join(kinds))
    assert ran.exit_code == 0, ran.stdout + ran.stderr
    found = json.loads(ran.stdout)
    assert found["passed"] is True and [each["kind"] for each in found["results"]] == list(kinds)
    for result in found["results"]:
        # No more than is charged, and enough of it that a fault of a fifth would be above.
        finding = result["finding"]
        assert finding["lower_mu"] <= result["charged_mu"], result
        # Guesses of one record's presence are right by chance alone.
        assert finding["guesses"] or finding["fitted_mu"] > 0.65 * result["charged_mu"], result
        assert result["problems"] == []
    assert len(found["pairs"]) == pairs
    told = report.read_text()
    assert f"{len(kinds)} kinds passed" in told and "| dp_adam |" in told
    assert f"Noise was compared between {pairs} pairs" in told or not pairs


@pytest.mark.nightly  # the same audit as above, in a table
@ON_SQLITE
def test_a_table_is_shown(service: Service) -> None:
    shown = audit(service, "--kinds", "dp_sgd", "--canaries", "400")
    assert shown.exit_code == 0, shown.stdout + shown.stderr
    for expected in ("charged μ", "at least μ", "passed", "false alarm at most 0.001"):
        assert expected in shown.stdout


@ON_SQLITE
def test_an_unknown_kind_is_wrong_usage(service: Service) -> None:
    wrong = audit(service, "--kinds", "adam")
    assert wrong.exit_code == 2 and "there is no kind 'adam'" in wrong.stderr
