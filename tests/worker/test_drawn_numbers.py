"""Modules on the meta device are made without drawing: torch would draw by its compiler, and load it for a second."""

from __future__ import annotations

import pytest
import torch

from tests.bound.worst import CASES, MORE
from worker.models import graph_module


def refused(*_: object, **__: object) -> None:
    raise AssertionError("numbers are drawn on the meta device")


@pytest.mark.parametrize("name", ["transformer", "gru, float64", "lstm"])
def test_a_module_is_made_without_drawing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = (CASES | MORE)[name].model
    monkeypatch.setattr(torch.nn.init, "normal_", refused)
    model.init(b"k" * 32)


def test_a_graph_s_table_is_made_without_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.init, "normal_", refused)
    made = graph_module._embedding({"padding_idx": 0}, (3, 2), False)
    assert made is not None and made.padding_idx == 0 and made.weight.is_meta and made.weight.requires_grad
