"""Files that no exporter writes: sizes and types that do not fit must not let records meet, or end a pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from core.errors import PrivacyError
from core.parts import graph_file
from core.parts.graph_program import Program, UnfitGraphError
from core.parts.graph_rules import places_of
from scrimp.graph_export import export_graph
from tests.graphs.operations import built
from worker.models.graph_module import GraphModule

ROWS = 3  # of a pass; forged sizes are as many


def of_rows(document: Any, name: str) -> None:
    """The tensor gets a line for each place in a pass."""
    for each in document["tensors"].values():
        if each["name"].startswith(name):
            each["sizes"] = [ROWS, *each["sizes"]]


def forged(module: nn.Module, folder: Path, name: str) -> GraphModule:
    path = export_graph(module, torch.randn(3, 6), folder / "forged.pt2")
    document = graph_file.read(path).program.model_dump(mode="json")
    of_rows(document, name)
    made = GraphModule(Program.model_validate(document), {}, torch.float64, "cpu")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _, each in made.named_parameters():
            each.copy_(torch.randn(each.shape, generator=generator))
    return made


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4)), "1."),
        (lambda: nn.Sequential(nn.Linear(6, 4), nn.RMSNorm(4)), "1."),
        (lambda: nn.Sequential(nn.Linear(6, 4), nn.ReLU()), "0.bias"),
        (lambda: nn.Sequential(nn.Unflatten(1, (2, 3)), nn.GroupNorm(1, 2), nn.Flatten()), "1."),
    ],
    ids=["layer norm", "rms norm", "bias", "group norm"],
)
def test_weights_with_a_line_for_each_place_of_a_pass(make: Callable[[], nn.Module], name: str, tmp_path: Path) -> None:
    """torch adds a bias of (rows, outputs), and normalizes over (rows, outputs), without a word."""
    graph = forged(make(), tmp_path, name)
    with pytest.raises((PrivacyError, RuntimeError)):
        graph(torch.ones(ROWS, 6, dtype=torch.float64))


@pytest.mark.parametrize("rounding", ["trunc", "floor"])
@pytest.mark.parametrize(("kind", "other"), [("int32", 2**32 - 1), ("int16", 2**16), ("uint8", 256), ("int64", 2**63)])
def test_a_divisor_lies_in_the_range_of_its_type(kind: str, other: int, rounding: str) -> None:
    """torch wraps it: 2³² − 1 is −1 as an int32, which ends the process at the least whole number."""
    document = built("div.Scalar_mode").module._program.model_dump(mode="json")
    text = str(document).replace("'int64'", f"'{kind}'").replace("'other': 2", f"'other': {other}")
    document = eval(text.replace("'floor'", f"'{rounding}'"))  # noqa: S307 - our own literal
    with pytest.raises(UnfitGraphError, match="divide by a positive number"):
        places_of(Program.model_validate(document))


def test_a_result_has_the_type_that_the_file_says() -> None:
    """Rules go by types: what is said to be a float, and is not, would pass by them."""
    document = built("floor_divide.default").module._program.model_dump(mode="json")
    for each in document["values"].values():
        each["dtype"] = "float32"
    made = GraphModule(Program.model_validate(document), {}, torch.float64, "cpu")
    x: Tensor = torch.ones(2, *built("floor_divide.default").case.row, dtype=torch.float64)
    with pytest.raises(PrivacyError, match="type"):
        made(x)
