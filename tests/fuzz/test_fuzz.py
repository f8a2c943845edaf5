"""About sixty inputs for each parser (100,000 by night); what ever broke one; how each input ended is seen."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.by_night import but
from tests.fuzz import campaign as campaigns
from tests.fuzz.campaign import CORPUS, Campaign
from tests.fuzz.cases import ANY, FORMATS, Case
from tests.fuzz.examine import examine

INPUTS = 120  # of 60 an archive parser may accept one or two: coverage guides one engine, so counts vary


# By day one process feeds all parsers, and the one that has most Python is fed by coverage too: a process takes 3 s.
@pytest.mark.parametrize("format", but((ANY, *FORMATS), lambda format: format in (ANY, "npz")))
def test_dozens_of_inputs(format: str, tmp_path: Path) -> None:
    inputs = INPUTS * (len(FORMATS) if format == ANY else 1)
    done = Campaign(format).run(inputs, seed=21, found=tmp_path)
    assert done.findings == []
    assert done.inputs == inputs
    for parser in FORMATS if format == ANY else (format,):
        assert done.accepted[parser] >= 3, "most inputs must not fail at the door"
    assert done.engines == {engine: round(inputs * share) for engine, share in campaigns.engines(format).items()}


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*-*")), ids=lambda path: path.name)
def test_what_once_broke_a_parser(path: Path, tmp_path: Path) -> None:
    examine(Case.of(path.read_bytes()), tmp_path, limited=True)


# Stand-ins for the fuzzing process, which write down an input and then end in some way.
START = """
import json, os, sys, time
from pathlib import Path
from tests.fuzz.cases import Case, fixed_schemas
case = Case(fixed_schemas("csv")[0].spec(), b"a,b,y\\n1,2,3\\n")
Path(sys.argv[-1], "current").write_bytes(case.to_bytes())
"""
ENDS = {
    "hang": (START + "time.sleep(600)", "finding: hang"),
    "death": (START + "os.abort()", "accepted (its process died: status -6)"),
    "finding": (
        START + "print(json.dumps(['finding: KeyError at a:1', 0.1, 5, case.to_bytes().hex(), 'csv']))",
        "finding: KeyError at a:1",
    ),
}


@pytest.mark.parametrize("how", ENDS)
def test_the_parent_sees_how_a_process_ends(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaigns, "SILENCE_S", 5.0)
    monkeypatch.setattr(campaigns, "engines", lambda _format: {"structured": 1.0})
    program, outcome = ENDS[how]
    done = Campaign("csv").run(1, seed=1, found=tmp_path, worker=[sys.executable, "-c", program])
    assert dict(done.outcomes) == {outcome: 1}
    assert done.findings == ([outcome] if outcome.startswith("finding") else [])
    (kept,) = tmp_path.iterdir()
    assert Case.of(kept.read_bytes()).content == b"a,b,y\n1,2,3\n"
