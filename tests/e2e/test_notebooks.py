"""The notebooks in examples/, each run from top to bottom against a running service."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

from scripts import run_notebooks
from tests.by_night import but
from tests.e2e.conftest import SERVED, Service

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("name", but(["train", "bill", "search"], lambda name: name == "train"))
def test_a_notebook_runs(
    served: Callable[[str], Service], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = run(name, served("sqlite"), tmp_path, monkeypatch)
    if name == "train":
        assert "signature right; ε = 3.0000" in said
    elif name == "bill":
        assert said.count("the certificate holds") == 3 and "True True" in said
    else:
        assert said.count("pilot  η") == 4 and "released_by='noisy_count'" in said


@pytest.mark.nightly  # by day its stored outputs, below; such a module: test_own_graph.py
@pytest.mark.slow
def test_the_notebook_of_an_own_model_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a service of its own: another notebook registers the same digits, which would be a second budget."""
    (tmp_path / "service").mkdir()
    service = Service(tmp_path / "service" / "home", SERVED).start()
    try:
        said = run("own_model", service, tmp_path, monkeypatch)
    finally:
        assert service.stop() == 0
    assert "buffer_mutation" in said and "result     the certificate holds" in said and said.count("True ") == 2


def run(name: str, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a notebook's cells print."""
    for variable in ("SCRIMP_URL", "SCRIMP_KEY", "IPYTHONDIR"):
        monkeypatch.setenv(variable, "")  # put back after the test
    book = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    key = (service.home / "admin.key").read_text().strip()
    run_notebooks.execute(book, tmp_path, f"http://127.0.0.1:{service.port}", key)
    run_notebooks.clean(book)
    return "".join(output.get("text", "") for cell in book.cells for output in cell.get("outputs", []))


@pytest.mark.nightly  # by day its stored outputs, below; the engine in tests/engine
@pytest.mark.slow
def test_the_engine_s_notebook_runs_without_a_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("SCRIMP_URL", "SCRIMP_KEY", "IPYTHONDIR"):
        monkeypatch.setenv(variable, "")
    book = nbformat.read(EXAMPLES / "engine.ipynb", as_version=4)
    run_notebooks.execute(book, tmp_path, "", "")
    run_notebooks.clean(book)
    said = "".join(output.get("text", "") for cell in book.cells for output in cell.get("outputs", []))
    assert said.count("True") == 2 and "1 (BatchNorm1d): it mixes records" in said and said.count("unsigned") == 2


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.name)
def test_stored_outputs_are_whole_and_name_no_machine(path: Path) -> None:
    book = nbformat.read(path, as_version=4)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    again = "run `make notebooks`"
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), again
    assert sum(bool(cell.outputs) for cell in code) > len(code) / 2, again
    assert not any(output.output_type == "error" for cell in code for output in cell.outputs)
    run_notebooks.clean(book)
