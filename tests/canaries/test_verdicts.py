"""What an audit finds is its verdict, its words and its exit code."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from scrimp.audit.audit_report import markdown, notes, verdict
from scrimp.audit.audit_statistics import Agreement, Excess, Finding
from scrimp.audit.run import Audit, Pair, Report, Result
from scrimp.cli import app

KEPT = Finding(present=200, absent=200, fitted_mu=0.9, lower_mu=0.7, excess=Excess(1.0, 0.2, 0.1))
EXCEEDED = replace(KEPT, lower_mu=1.4, excess=Excess(1.0, 0.2, 0.3))
HONEST = Result("dp_sgd", ("job_1",), 4.0, 1e-5, 1.0, True, KEPT)
APART = Pair(("dp_sgd", "dp_adam"), Agreement(50, 100, 0.9), True)
REPORT = Report((HONEST, replace(HONEST, kind="dp_adam")), (APART,), 1e-3, 1e-5)
WRONG = {
    "a claim that is exceeded": (
        replace(REPORT, results=(HONEST, replace(HONEST, finding=EXCEEDED))),
        "δ is at least 0.3000",
    ),
    "a release without a charge": (
        replace(REPORT, results=(replace(HONEST, problems=("charged for 11",)), HONEST)),
        "charged for 11",
    ),
    "noise that two jobs share": (
        replace(REPORT, pairs=(APART, replace(APART, agreement=Agreement(99, 100, 1e-20), passed=False))),
        "share noise",
    ),
}


def audited(report: Report, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    monkeypatch.setattr(Audit, "run", lambda _: report)
    line = ["audit", "privacy", "--json", "--url", "http://127.0.0.1:9", "--key", "scrimp_key_none"]
    ran = CliRunner().invoke(app, line)
    return ran.exit_code, ran.stdout


def test_an_audit_without_a_fault_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert REPORT.passed and verdict(REPORT).startswith("2 kinds passed")
    code, told = audited(REPORT, monkeypatch)
    assert code == 0 and json.loads(told)["passed"] is True


@pytest.mark.parametrize("fault", WRONG)
def test_one_fault_among_others_is_the_verdict(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    report, says = WRONG[fault]
    assert not report.passed and "VIOLATION" in verdict(report) and any(says in note for note in notes(report))
    assert "VIOLATION" in markdown(report, "", 1.0) and says in markdown(report, "", 1.0)
    code, told = audited(report, monkeypatch)
    assert code == 1 and json.loads(told)["passed"] is False
