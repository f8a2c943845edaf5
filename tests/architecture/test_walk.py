"""The walk with a parameter: it is followed into what takes it whole, and counted by stays."""

from __future__ import annotations

from pathlib import Path

from scripts.import_graph import ROOT
from scripts.walk import Program

FILES = {
    "asked": "class Part: ...\nclass Spec:\n    part: Part\nclass Held:\n    spec: Spec | None\n",
    "first": (
        "from app import second\nfrom app.asked import Part, Spec\n"
        "def enter(spec: Spec) -> None:\n"
        "    held = second.hold(spec)\n    leaf(spec.part)\n    plain(3)\n    second.read(held)\n    last(spec)\n"
        "def leaf(part: Part) -> None: ...\ndef plain(number: int) -> None: ...\ndef last(spec: Spec) -> None: ...\n"
    ),
    "second": (
        "from app.asked import Held, Spec\n"
        "def hold(spec: Spec) -> Held: ...\ndef read(held: Held) -> None:\n    read(held)\n"
    ),
}


def test_a_parameter_is_followed_whole_and_in_parts(tmp_path: Path) -> None:
    for name, code in FILES.items():
        path = tmp_path / "app" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(code)
    program = Program(tmp_path, ("app",))
    whole = program.follow("app.first", "enter", "spec")
    assert [each.name for each in whole.entered] == ["enter", "hold", "read", "read", "last"]
    assert str(whole) == "3 stays in 2 files with 1 returns"
    assert "leaf" in [each.name for each in program.follow("app.first", "enter", "spec", parts=True).entered]


def test_an_admission_is_a_short_walk() -> None:
    """From POST /v1/jobs to the hold; 55 stays with 34 returns, and 115 with 85 with its parts, before it had a room of
    its own (decision 35). Its parts took 103 stays with training alone; a job of queries is a second kind."""
    program = Program(ROOT, ("app", "core"))
    walk = program.follow("app.jobs.routes", "submit", "spec")
    assert {"ask_holds", "price_one", "check"} <= {each.name for each in walk.entered}
    assert len(walk.stays) <= 18 and len(walk.files) <= 10 and walk.returns <= 8
    parts = program.follow("app.jobs.routes", "submit", "spec", parts=True)
    assert len(parts.stays) <= 110 and len(parts.files) <= 31 and parts.returns <= 79
