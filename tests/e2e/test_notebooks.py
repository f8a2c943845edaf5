"""The notebooks in examples/, each run from top to bottom against a running service."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.e2e.conftest import Service

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train", "search"])
def test_a_notebook_runs(
    served: Callable[[str], Service], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = served("sqlite")
    monkeypatch.setenv("SCRIMP_URL", f"http://127.0.0.1:{service.port}")
    monkeypatch.setenv("SCRIMP_KEY", (service.home / "admin.key").read_text().strip())
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    book = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    said = "".join(output.get("text", "") for cell in book.cells for output in cell.get("outputs", []))
    if name == "train":
        assert "signature right; ε = 3.0000" in said
    else:
        assert said.count("role='pilot'") == 4 and "released_by='noisy_count'" in said
