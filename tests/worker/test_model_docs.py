"""The snippets of docs/models.md, run on files that the worker writes."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter

from core.contracts.dataset_spec import Features, Task
from core.contracts.job_spec import GruRecModel
from tests.worker.support import key
from worker.models.linear import Linear
from worker.models.model_files import save_model
from worker.models.next_item import NextItem

KEY = bytes.fromhex(key("init"))
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "models.md"
LOADED, LINEAR = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), flags=re.DOTALL)


def run(snippet: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(folder)
    exec(snippet, {})  # noqa: S102 - our own document, as a user would run it
    return capsys.readouterr().out


@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_model(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, bias: bool) -> None:
    task = TypeAdapter(Task).validate_python({"kind": "classification", "label": "y", "classes": ["no", "yes"]})
    features = TypeAdapter(Features).validate_python({"kind": "columns", "columns": ["age", "height"]})
    model = Linear(2, 2, bias=bias)
    parameters = model.init() | {"weight": torch.tensor([[0.1, 0.0], [0.0, 1.0]], dtype=torch.float64)}
    save_model(tmp_path, model, parameters, task, features)
    said = run(LINEAR, tmp_path, capsys, monkeypatch)
    assert said.startswith("no [[0.90") and LINEAR.count("\n") <= 10
    save_model(tmp_path, model, parameters | {"mean": torch.tensor([40.0, 0.0])}, task, features)
    assert run(LINEAR, tmp_path, capsys, monkeypatch).startswith("yes [[0.15")


def test_any_model(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    items = {"kind": "numbered", "count": 9, "first": 1}
    features = TypeAdapter(Features).validate_python({"kind": "interactions", "layout": "inter", "items": items})
    model = NextItem(9, GruRecModel(dim=4, max_length=5), dtype=torch.float64)
    torch.manual_seed(0)
    parameters = {name: value + 0.5 * torch.randn_like(value) for name, value in model.init(KEY).items()}
    save_model(tmp_path, model, parameters, TypeAdapter(Task).validate_python({"kind": "next_item"}), features)
    wanted = model.filled(parameters).scores(torch.tensor([[3, 1, 4]]))[0, -1, 1:].topk(5).indices + 1
    (answer,) = ast.literal_eval(run(LOADED, tmp_path, capsys, monkeypatch))
    assert [each["item"] for each in answer["items"]] == [str(item) for item in wanted.tolist()]
