"""Mutation testing itself: what is a mutant, that a fault is really in place, and what the report says."""

from __future__ import annotations

import ast
import importlib
import mmap
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.mutation import compare, nightly, report, runs
from tests.mutation.inside import Importing, functions_of, replace
from tests.mutation.mutants import Mutant, mutated, of_module
from tests.mutation.tests_of import Known, Measuring, Test

SOURCE = '''"""What it does: 1 + 1."""
from __future__ import annotations

LIMIT: int = 3


class Account:
    def fits(self, amount: int) -> bool:
        """Not 2 * this."""
        if amount < 0 or not isinstance(amount, int):
            raise ValueError(f"{amount + 1} is wrong")
        return self.spent + amount <= LIMIT

    spent = 0


def held(amounts, spare=2):
    total = 0
    for each in amounts:
        total += each
    return min(total, spare) if total else None
'''
WANTED = {
    "LIMIT → ": set(),
    "3 → 4": {""},
    "3 → 2": {""},
    "0 → 1": {"", "Account.fits", "held"},
    "2 → 3": {""},  # a default is a number of the import
    "amount < 0 → amount <= 0": {"Account.fits"},
    "amount < 0 → amount >= 0": {"Account.fits"},
    "amount < 0 or not isinstance(amount, int) → amount < 0": {"Account.fits"},
    "amount < 0 or not isinstance(amount, int) → amount < 0 and (not isinstance(amount, int))": {"Account.fits"},
    "not isinstance(amount, int) → isinstance(amount, int)": {"Account.fits"},
    "raise ValueError(f'{amount + 1} is wrong') → pass": {"Account.fits"},
    "self.spent + amount → self.spent - amount": {"Account.fits"},
    "self.spent + amount <= LIMIT → self.spent + amount < LIMIT": {"Account.fits"},
    "return self.spent + amount <= LIMIT → return None": {"Account.fits"},
    "total += each → total -= each": {"held"},
    "total += each → pass": {"held"},
    "min → max": {"held"},
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of a root of its own, which nobody has imported."""
    (tmp_path / "mutated_here.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mutated_here", raising=False)
    return tmp_path


def the(what: str, function: str) -> Mutant:
    found = of_module("mutated_here.py", SOURCE)
    return next(each for each in found if (each.what, each.function) == (what, function))


def test_every_kind_of_fault_is_made_where_it_is_and_texts_are_left_alone() -> None:
    found = of_module("mutated_here.py", SOURCE)
    for what, functions in WANTED.items():
        assert {each.function for each in found if each.what == what} == functions, what
    assert [each.number for each in found] == [*range(len(found))]
    assert max(Counter(each.name for each in found).values()) == 1
    said = " ".join(each.what for each in found)
    assert "wrong') →" not in said.replace("raise ValueError(f'{amount + 1} is wrong') →", "") and "1 + 1" not in said


def test_a_mutant_differs_from_the_module_in_one_place_and_keeps_its_lines() -> None:
    lines = [(node.lineno, type(node)) for node in ast.walk(ast.parse(SOURCE)) if isinstance(node, ast.stmt)]
    for each in of_module("mutated_here.py", SOURCE):
        tree = mutated(each, SOURCE)
        compile(tree, "mutated_here.py", "exec")
        assert ast.dump(tree) != ast.dump(ast.parse(SOURCE)), each
        same = [(node.lineno, type(node)) for node in ast.walk(tree) if isinstance(node, ast.stmt)]
        assert [line for line, _ in same] == [line for line, _ in lines]
    with pytest.raises(LookupError):
        mutated(of_module("mutated_here.py", SOURCE)[0], SOURCE.replace("LIMIT: int = 3", "LIMIT: int = 5"))


def test_whoever_holds_a_function_runs_the_fault(package: Path) -> None:
    module: Any = importlib.import_module("mutated_here")
    bound, held = module.Account().fits, module.held
    assert bound(3) and held([1, 2]) == 2
    functions = functions_of(package, ["mutated_here.py"])
    replace(the("self.spent + amount <= LIMIT → self.spent + amount < LIMIT", "Account.fits"), package, functions)
    replace(the("min → max", "held"), package, functions)
    assert not bound(3) and bound(2) and held([1, 2]) == 3


def test_a_module_that_nothing_has_imported_yet_is_mutated(package: Path) -> None:
    """A campaign ended at the first fault of a module that a test imports within itself."""
    replace(the("min → max", "held"), package, functions_of(package, ["mutated_here.py"]))
    assert importlib.import_module("mutated_here").held([1, 2]) == 3


def test_a_constant_is_changed_while_its_module_is_imported(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    Importing(the("3 → 4", ""), package).install()
    module: Any = importlib.import_module("mutated_here")
    assert module.LIMIT == 4 and module.Account().fits(4)


def test_what_becomes_of_a_child() -> None:
    def endless() -> bool:
        while True:
            pass

    def raises() -> bool:
        raise AssertionError

    assert runs.in_a_child(lambda: True, 0.0) == "survived"
    assert runs.in_a_child(lambda: False, 0.0) == "killed"
    assert runs.in_a_child(endless, -0.9) == "timeout"  # a second of processor time
    with pytest.raises(SystemExit):
        runs.in_a_child(raises, 0.0)  # the driver's own fault kills no mutant


def test_a_child_may_grow_by_as_much_after_a_long_run_of_tests() -> None:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with mmap.mmap(-1, runs.MEMORY, flags=flags, prot=mmap.PROT_READ):  # what thousands of tests leave mapped
        assert runs.in_a_child(lambda: len(bytearray(2**26)) == 2**26, 0.0) == "survived"


TESTS = """from mutated_here import LIMIT, Account, held

def test_fits():
    assert Account().fits(LIMIT) and not Account().fits(LIMIT + 1)

def test_held():
    assert held([1, 2]) == 2
"""


def test_faults_meet_tests_in_forks_of_one_process(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of a function's code, and while a module is imported; what no test looks at survives."""
    (package / "test_here.py").write_text(TESTS)
    monkeypatch.chdir(package)
    home = runs.Home(package, package, package / "template.db")
    fits, held = (Test(f"test_here.py::test_{name}", 0.0, frozenset()) for name in ("fits", "held"))
    boundary = the("self.spent + amount <= LIMIT → self.spent + amount < LIMIT", "Account.fits")
    negative = the("amount < 0 → amount >= 0", "Account.fits")
    unseen = the("0 → 1", "held")

    def note(_mutant: Mutant, result: str) -> None:
        with (package / "results").open("a") as file:
            file.write(f"{result}\n")

    runs.in_place(home, [(boundary, [held, fits]), (negative, [fits]), (unseen, [held])], note, float("inf"))
    assert (package / "results").read_text().split() == ["killed", "killed", "survived"]
    assert runs.while_imported(home, the("2 → 3", ""), [held, fits]) == "killed"
    assert runs.while_imported(home, the("3 → 4", ""), [held, fits]) == "survived"
    assert "mutated_here" not in sys.modules


WHILE_IMPORTED = """
import sys
from pathlib import Path
from tests.mutation import runs
from tests.mutation.mutants import of_module
from tests.mutation.tests_of import Test

package = Path(sys.argv[1])
mutants = of_module("mutated_here.py", (package / "mutated_here.py").read_text())
mutant = next(each for each in mutants if each.name.endswith("3 → 4"))
runs.preload(["anyio", "xdist", "hypothesis"])
assert {"anyio", "xdist", "hypothesis"} <= set(sys.modules)
home = runs.Home(package, package, package / "template.db")
print(runs.while_imported(home, mutant, [Test("test_here.py::test_held", 0.0, frozenset())]))
"""


def test_packages_with_a_plugin_may_be_loaded_before_a_fault_of_an_import(package: Path) -> None:
    """pytest warns that it cannot rewrite them; where warnings are errors, as here, no such fault was run."""
    (package / "test_here.py").write_text(TESTS)
    (package / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    line = [sys.executable, "-c", WHILE_IMPORTED, str(package)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(nightly.ROOT), str(package)))}
    done = subprocess.run(line, cwd=package, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["survived"], done.stdout + done.stderr


def test_a_test_is_chosen_by_the_lines_that_it_runs() -> None:
    mutant = the("total += each → pass", "held")
    line = f"mutated_here.py:{mutant.lines[0]}"
    slow, quick = Test("b.py::slow", 1.0, frozenset({line})), Test("a.py::quick", 0.1, frozenset({line, "x.py:1"}))
    other = Test("a.py::other", 0.0, frozenset({"mutated_here.py:4"}))
    assert nightly.Choice([quick, slow]).of(mutant) == [slow, quick]  # which runs little else
    assert nightly.Choice([slow, other]).of(the("3 → 4", "")) == [other, slow]
    assert nightly.at_most([quick, slow], 0.5) == [quick]


def test_what_was_measured_is_measured_again_if_the_file_changes(package: Path, tmp_path: Path) -> None:
    (package / "test_here.py").write_text("def test(): pass\n")
    measured = Measuring(package, ["mutated_here.py"])
    measured.found["test_here.py::test"] = (0.25, {"mutated_here.py:9"})
    measured.found["test_here.py::failed"] = (0.25, {"mutated_here.py:9"})
    measured.failed.add("test_here.py::failed")
    known = Known(tmp_path / "tests.json", package, ["mutated_here.py"])
    Known(tmp_path / "tests.json", package, ["mutated_here.py"]).add(Measuring(package, []), ["mutated_here.py"])
    assert known.missing(["test_here.py"]) == ["test_here.py"]
    known.add(measured, ["test_here.py"])
    again = Known(tmp_path / "tests.json", package, ["mutated_here.py"])
    assert again.missing(["test_here.py", "mutated_here.py"]) == []  # what another process added is there too
    assert [each.id for each in again.tests(["test_here.py"], 1.0)] == ["test_here.py::test"]
    assert again.tests(["test_here.py"], 0.1) == []
    (package / "test_here.py").write_text("def test(): assert True\n")
    assert again.missing(["test_here.py"]) == ["test_here.py"]


def test_results_are_kept_until_their_module_changes(tmp_path: Path) -> None:
    path = "core/privacy/shares.py"
    mutant = of_module(path, (nightly.ROOT / path).read_text())[0]
    journal = nightly.Journal(tmp_path / "results.jsonl")
    journal.add(mutant, "killed")
    assert nightly.Journal(journal.path).results == {mutant.name: "killed"}
    kept = journal.path.read_text().replace(journal.versions[mutant.module], "0" * 16)
    journal.path.write_text(kept)
    assert nightly.Journal(journal.path).results == {}


def test_the_report_names_every_survivor_and_its_judgement(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mutants = of_module("mutated_here.py", SOURCE)[:4]
    names = [each.name for each in mutants]
    monkeypatch.setattr(report, "JUDGED", tmp_path / "judged.json")
    report.JUDGED.write_text(
        f'{{"equivalent": {{"{names[0]}": "nobody reads it"}}, "hole": {{"{names[3]}": "test_x kills it"}}}}'
    )
    results = dict(zip(names, ("survived", "not reached", "timeout", "killed"), strict=True))
    text, new = report.text(mutants, results, seed=7)
    assert new == 1 and "4 of 4" in text.replace("\n", " ") and "2 were killed, 2 survive" in text
    assert f"* `{names[0]}`: **equivalent**: nobody reads it" in text
    assert f"* `{names[1]}`: **not judged**: not reached" in text
    assert f"* `{names[3]}`: test_x kills it" in text
    assert "| `mutated_here.py` | 4 | 4 | 2 | 1 | 1 | 0 | 0 | 1 |" in text


def test_what_no_test_runs_counts_up_to_the_last_one_that_was_run() -> None:
    """All of them used to count at once: a campaign of 200 mutants said that 1,600 survive."""
    mutants = of_module("mutated_here.py", SOURCE)[:5]
    fast = Test("tests/a.py::test_a", 0.1, frozenset({"mutated_here.py:1"}))
    chosen = [(mutant, tests) for mutant, tests in zip(mutants, ([], [fast], [], [fast], []), strict=True)]
    assert nightly.out_of_reach(chosen, {}) == []
    assert nightly.out_of_reach(chosen, {mutants[1].name: "killed"}) == [mutants[0]]
    assert nightly.out_of_reach(chosen, {mutants[3].name: "killed"}) == [mutants[0], mutants[2]]
    assert nightly.out_of_reach([(mutants[4], [])], {}) == [mutants[4]], "there is none to be run"


def test_two_suites_are_compared_by_the_mutants_that_both_have(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    for folder, source in ((before, SOURCE), (after, "\n\n" + SOURCE.replace("min(", "max("))):
        folder.mkdir()
        (folder / "mutated_here.py").write_text(source)
    names = compare.common(before, after, ["mutated_here.py"], 100)
    gone = {each.name for each in of_module("mutated_here.py", SOURCE)} - {*names}
    assert gone and all("min" in each for each in gone), "wherever the lines are"
    assert compare.common(before, after, ["mutated_here.py"], 3) == names[:3]
    found = dict.fromkeys(names[:4], "killed")
    text, less = compare.text(("a", "b"), names, found, found | {names[0]: "survived", names[1]: "timeout"})
    assert less == [names[0]] and "| `mutated_here.py` | 4 | 4 | 3 |" in text
    assert compare.text(("a", "b"), names, found | {names[0]: "not reached"}, found)[1] == []


def test_every_judgement_is_of_a_mutant_that_there_is() -> None:
    """A judgement of code that has changed says nothing any more."""
    there = {each.name for each in nightly.drawn()}
    gone = {name for name, (verdict, _) in report.judgements().items() if verdict != "hole"} - there
    assert gone == set()
