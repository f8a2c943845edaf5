"""The preloaded library does what it says, what judges finds planted faults, and a sample of all writes.

`make nightly-writes` tries every write.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from tests.by_night import but
from tests.writes.campaign import Bench, Outcome, bench, judge, overspent
from tests.writes.crashes import Crashes, content_of
from tests.writes.library import KINDS, Fault, Map, library
from tests.writes.nightly import EARLIER, Journal, cases, text
from tests.writes.nightly import write as nightly_report
from tests.writes.on_postgres import ServerBench, server_bench

# Four operations below a home: a new file, a sync, another write in place, a rename. It tells what it saw.
PROGRAM = """
import os, sys
home = sys.argv[1]
file = os.open(f"{home}/a", os.O_RDWR | os.O_CREAT, 0o600)
for act in (
    lambda: os.write(file, b"12345678"),
    lambda: os.fsync(file),
    lambda: os.pwrite(file, b"abcd", 2),
    lambda: os.ftruncate(file, 6),
    lambda: os.rename(f"{home}/a", f"{home}/b"),
):
    try:
        print(act(), flush=True)
    except OSError as error:
        print(error.errno, flush=True)
"""
WHOLE = ["8", "None", "4", "None", "None"]


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = library(tmp_path_factory.mktemp("library"))
    if made is None:
        pytest.skip("no C compiler is here")
    return made


def write(preloaded: Path, folder: Path, fault: Fault) -> tuple[list[str], int, Map]:
    """The program with a fault, and the power cut where one was lost: what it saw, its exit code, and the map."""
    home, side, map_ = folder / "home", folder / "side", Map(folder / "map")
    home.mkdir()
    map_.arm(home, side, fault)
    environment = os.environ | {"LD_PRELOAD": str(preloaded), "WRITES_MAP": str(map_.path)}
    line = [sys.executable, "-c", PROGRAM, str(home)]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=300, check=False)
    if fault.kind == "lost":
        map_.cut_power(fault, side)
    return done.stdout.split(), done.returncode, map_


def content(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in (folder / "home").iterdir()}


def test_without_a_fault_operations_count_and_nothing_changes(preloaded: Path, tmp_path: Path) -> None:
    saw, code, map_ = write(preloaded, tmp_path, Fault())
    assert (saw, code, map_.count, map_.hit) == (WHOLE, 0, 5, None)
    assert content(tmp_path) == {"b": b"12abcd"}


@pytest.mark.parametrize(
    ("fault", "saw", "code", "left"),
    [
        (Fault(1, "error"), ["5", "None", "4", "None", "None"], 0, {"b": b"\0\0abcd"}),
        (Fault(3, "full"), ["8", "None", "28", "None", "None"], 0, {"b": b"123456"}),
        (Fault(2, "error"), ["8", "5", "4", "None", "None"], 0, {"b": b"12abcd"}),
        (Fault(5, "error"), ["8", "None", "4", "None", "5"], 0, {"a": b"12abcd"}),
        (Fault(3, "torn"), WHOLE, 0, {"b": b"12ab56"}),
        (Fault(4, "torn"), WHOLE, 0, {"b": b"12abcd78"}),
        (Fault(5, "torn"), WHOLE, 0, {"a": b"12abcd"}),
        (Fault(1, "torn, dies"), [], -9, {"a": b"1234"}),
        (Fault(5, "torn, dies"), ["8", "None", "4", "None"], -9, {"a": b"12abcd"}),
        (Fault(3, "lost", 1), ["8", "None", "4"], -9, {"a": b"12345678"}),
        (Fault(3, "lost", 2), ["8", "None", "4", "None"], -9, {"a": b"123456"}),
        (Fault(1, "lost", 1), ["8"], -9, {"a": b""}),
        (Fault(2, "lost", 1), ["8", "None"], -9, {"a": b""}),
        (Fault(5, "lost", 9), WHOLE, 0, {"a": b"12abcd"}),
    ],
)
def test_one_operation_goes_wrong(
    preloaded: Path, tmp_path: Path, fault: Fault, saw: list[str], code: int, left: dict[str, bytes]
) -> None:
    assert write(preloaded, tmp_path, fault)[:2] == (saw, code)
    assert content(tmp_path) == left


def test_what_a_rename_replaced_is_back_after_the_power_cut(preloaded: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "b").write_bytes(b"before")
    (tmp_path / "home").rename(tmp_path / "begins")
    (tmp_path / "other").mkdir()
    home, map_ = tmp_path / "begins", Map(tmp_path / "map")
    map_.arm(home, tmp_path / "side", Fault(5, "lost", 1))
    environment = os.environ | {"LD_PRELOAD": str(preloaded), "WRITES_MAP": str(map_.path)}
    subprocess.run([sys.executable, "-c", PROGRAM, str(home)], env=environment, timeout=300, check=False)
    assert (home / "b").read_bytes() == b"12abcd"
    map_.cut_power(Fault(5, "lost", 1), tmp_path / "side")
    assert (home / "b").read_bytes() == b"before" and (home / "a").read_bytes() == b"12abcd"


class Program:
    """Stands for a bench: its only history is the program."""

    def __init__(self, folder: Path, preloaded: Path) -> None:
        self.folder, self.case, self.map = folder, folder / "case", Map(folder / "map")
        self.home, self.side, self.log = self.case / "home", self.case / "side", self.case / "told.jsonl"
        self.environment = os.environ | {"LD_PRELOAD": str(preloaded), "WRITES_MAP": str(self.map.path)}

    def begin(self, history: str) -> None:
        self.home.mkdir(parents=True)
        sqlite3.connect(self.home / "scrimp.db").close()

    def act(self, history: str) -> int:
        line = [sys.executable, "-c", PROGRAM, str(self.home)]
        with self.log.open("w") as log:
            return subprocess.run(line, env=self.environment, stdout=log, timeout=300, check=False).returncode


def test_all_crashes_of_one_play_are_those_of_a_play_each(preloaded: Path, tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    crashes = Crashes(cast(Bench, Program(tmp_path / "all", preloaded)), "program")
    cases_ = {fault: (state, hit, code) for state in crashes.states for fault, hit, code in state.cases}
    assert crashes.count == 5 and len(cases_) == 10
    assert [cases_[Fault(n, "torn, dies")][1] for n in range(1, 6)] == [
        ("write", "a"),
        ("sync", "a"),
        ("write", "a"),
        ("truncate", "a"),
        ("rename", "b"),
    ]
    for fault, (state, _, code) in cases_.items():
        folder = tmp_path / f"{fault.at} {fault.kind}"
        folder.mkdir()
        saw, alone, _ = write(preloaded, folder, fault)
        assert code == alone, fault
        assert content(state.folder) == content(folder) | {"scrimp.db": b""}, fault
        assert (state.folder / "told.jsonl").read_text().split() == saw, fault


def test_what_recovers_to_the_same_is_one_state(tmp_path: Path) -> None:
    for name, torn in (("one", b""), ("two", b"\x37\x7f")):  # the second's log begins, and has no frame
        home = tmp_path / name / "home"
        home.mkdir(parents=True)
        with closing(sqlite3.connect(home / "scrimp.db")) as connection:
            connection.execute("PRAGMA journal_mode = wal").fetchall()
            connection.execute("CREATE TABLE a (b)")
        (home / "scrimp.db-wal").write_bytes(torn)
    one, two = tmp_path / "one", tmp_path / "two"
    same = content_of(one)
    assert content_of(two) == same
    (two / "told.jsonl").write_text("{}\n")
    assert content_of(two) != same, "what was told counts"
    with closing(sqlite3.connect(one / "home" / "scrimp.db")) as connection, connection:
        connection.execute("INSERT INTO a VALUES (1)")
    assert content_of(one) != same, "so does a row"


ENTRIES = [
    {"kind": "hold", "job_id": "job_1", "train": 100},
    {"kind": "post", "job_id": "job_1", "train": 100},
    {"kind": "hold", "job_id": "chg_1", "train": 7},
    {"kind": "post", "job_id": "chg_1", "train": 7},
]
ADMITTED = {"what": "admitted", "job": "job_1", "units": 100}
CHARGED = {"what": "charged", "charge": "chg_1", "units": 7}


def ledger(entries: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    train = {"spent": sum(each["train"] for each in entries if each["kind"] == "post"), "held": 0, "budget": 1000}
    said = {"what": "ledger", "entries": entries, "accounts": {"train": train}, "faults": []}
    return said | {"verified": {"valid": True}} | changes


def begun(step: int) -> list[dict[str, Any]]:
    return [ADMITTED, {"what": "started", "job": "job_1", "step": step}, CHARGED]


def test_what_began_and_is_not_spent_is_found() -> None:
    assert list(overspent(begun(2), ledger(ENTRIES))) == []
    for forgotten in (ENTRIES[:2], ENTRIES[2:], []):
        (fault,) = overspent(begun(2), ledger(forgotten))
        assert "107 were begun or charged" in fault
    assert list(overspent(begun(1), ledger([ENTRIES[1] | {"train": 50}, *ENTRIES[2:]]))) == []
    unposted = ledger(ENTRIES[:2]) | {"accounts": {"train": {"spent": 100, "held": 7, "budget": 1000}}}
    assert list(overspent(begun(2), unposted)) == []
    over = ledger(ENTRIES) | {"accounts": {"train": {"spent": 900, "held": 101, "budget": 1000}}}
    assert "overspent" in next(overspent([], over))


AFTER: dict[str, dict[str, Any]] = {
    "restore": {"what": "restore", "code": 0, "behind": []},
    "ended": {"what": "ended", "job": "job_1", "status": "succeeded"},
    "ledger": ledger(ENTRIES),
    "statement": {"what": "statement", "code": 0, "text": ""},
}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a statement that does not hold": ({"statement": {"what": "statement", "code": 1, "text": "no"}}, "its statement"),
    "a job that hangs": ({"ended": {"what": "ended", "job": "job_1", "status": "running"}}, "has not ended"),
    "a job that is gone": ({"ended": {"what": "ended", "job": "job_2", "status": "failed"}}, "is gone"),
    "a traceback": ({"unclear": {"what": "unclear", "path": "/v1/jobs", "text": "Traceback"}}, "an unclear error"),
    "a job's open hold": ({"ledger": ledger(ENTRIES, faults=["the hold of job_1 is not settled"])}, "is not settled"),
    "an entry that overspends": ({"ledger": ledger(ENTRIES, faults=["entry 2: overspent"])}, "overspent"),
}


def judged(kind: str, changes: dict[str, Any], code: int = 0) -> Outcome:
    outcome = Outcome("trained", Fault(1, kind), ("write", "heads"))
    judge(outcome, begun(2), list((AFTER | changes).values()), code, Path(os.devnull))
    return outcome


def test_an_honest_restart_has_no_faults() -> None:
    assert judged("error", {}).faults == [] and judged("error", {}).end == "goes on"
    unposted = {"ledger": ledger(ENTRIES, faults=["the hold of chg_1 is not settled"])}
    assert judged("error", unposted).faults == [], "a charge that nobody posted yet"


@pytest.mark.parametrize("wrong", WRONG)
def test_a_planted_fault_is_found(wrong: str) -> None:
    changes, says = WRONG[wrong]
    assert any(says in each for each in judged("error", changes).faults)


def test_a_restart_that_ends_with_an_error_is_found() -> None:
    assert "the restart ended with 1" in judged("lost", {}, 1).faults[0]


def test_a_found_fault_of_the_ledger_is_an_end_and_no_fault() -> None:
    found = judged("lost", {"ledger": ledger([], verified={"valid": False, "problem": "an entry is missing"})})
    assert found.end == "found: an entry is missing" and found.faults == []


@pytest.mark.parametrize("known", [True, False])
def test_a_registration_that_is_forgotten_is_known_outside(known: bool) -> None:
    text_ = "the ledger of ds_1 is behind" if known else "Every ledger holds the head"
    later = [
        {"what": "restore", "code": int(known), "behind": [], "text": text_},
        {"what": "registered again", "dataset": None},
    ]
    outcome = Outcome("registered", Fault(39, "torn"), ("write", "database's log"))
    judge(outcome, [], later, 0, Path(os.devnull))
    assert outcome.end == "forgotten, and known outside"
    assert outcome.faults == ([] if known else ["the data set is gone, and nothing says so"])


def test_a_campaign_goes_on_where_it_ended(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "writes.jsonl")
    journal.begin({"registered": 2, "trained": 3})
    every = cases(journal.lengths)
    assert len(every) == len(set(every)) == 5 * len(KINDS)
    history, fault = every[0]
    journal.add(Outcome(history, fault, ("write", "heads"), 0, "goes on", ["an overspend"]))
    again = Journal(journal.path)
    assert (again.lengths, again.done) == (journal.lengths, {every[0]})
    said = text(again)
    assert "1 faults of 25" in said and "an overspend" in said and "| heads | write |" in said
    report = tmp_path / "writes.md"
    report.write_text(f"another\n\n{EARLIER}\nby hand\n")
    nightly_report(report, again)
    assert report.read_text() == f"{said}\n{EARLIER}\nby hand\n"


@pytest.fixture(scope="module")
def benches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(tmp_path_factory.mktemp("bench")) as made:
        if made is None:
            pytest.skip("no C compiler is here")
        yield made


# Of each kind one, over both histories; a history without a fault has 153 and some 630 operations.
SAMPLE = [
    ("registered", Fault(40, "torn, dies")),
    ("trained", Fault(60, "torn")),
    ("trained", Fault(150, "error")),
    ("trained", Fault(250, "full")),
    ("trained", Fault(330, "lost", 7)),
]


@pytest.mark.parametrize(("history", "fault"), SAMPLE)
def test_a_fault_at_a_write_overspends_nothing(benches: Bench, history: str, fault: Fault) -> None:
    outcome = benches.run(history, fault)
    assert outcome.hit is not None, "the fault was reached"
    assert outcome.faults == [], outcome


@pytest.fixture(scope="module")
def on_server() -> Iterator[ServerBench]:
    with server_bench() as made:
        if made is None:
            pytest.skip("no C compiler, or no PostgreSQL, is here")
        yield made


@pytest.mark.parametrize(
    "fault", but([Fault(20, "full"), Fault(30, "torn, dies"), Fault(40, "lost", 7)], lambda each: each.kind == "full")
)
def test_a_fault_at_a_write_of_postgresql_overspends_nothing(on_server: ServerBench, fault: Fault) -> None:
    """It ends its processes and recovers by itself, or the machine dies."""
    outcome = on_server.run(fault)
    assert outcome.hit is not None and outcome.hit[1] == "PostgreSQL pg_wal"
    assert outcome.faults == [], outcome
    assert outcome.code == (0 if fault.kind == "full" else -9)
