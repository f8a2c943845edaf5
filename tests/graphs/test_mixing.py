"""Graphs whose records see each other are refused, by the name of what mixes them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from core.parts import graph_file
from core.parts.graph_program import UnfitGraphError
from core.parts.graph_rules import Place, places_of
from scrimp.graph_export import export_graph
from tests.graphs.architectures import ACCEPTED
from tests.graphs.conftest import Exported
from tests.graphs.mixers import MIXERS


@pytest.mark.parametrize("name", MIXERS)
def test_a_mixer_is_refused(name: str, tmp_path: Path) -> None:
    make, why = MIXERS[name]
    path = export_graph(make(), torch.randn(3, 6), tmp_path / "mixer.pt2")
    with pytest.raises(UnfitGraphError, match=why):
        places_of(graph_file.read(path).program)


@pytest.mark.parametrize("name", ACCEPTED)
def test_an_architecture_is_followed(name: str, exported: Exported) -> None:
    program = exported(name).program
    assert places_of(program)[program.output] == Place(0)


def test_records_second_and_folded(exported: Exported) -> None:
    """torch's own attention puts time first and folds its heads into the records."""
    found = set(places_of(exported("sequence").program).values())
    assert {Place(1), Place(1, 1, 2), Place(0, 1, 2), Place(0, 4, 1)} <= found


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (nn.Sequential(nn.Linear(6, 4), nn.AlphaDropout(0.5)), "would not replay"),
        (nn.Sequential(nn.Unflatten(1, (2, 3)), nn.GRU(3, 4, batch_first=True)), "more than one tensor"),
    ],
    ids=["dropout", "recurrent"],
)
def test_what_has_no_rule_is_named(module: nn.Module, why: str, tmp_path: Path) -> None:
    path = export_graph(module, torch.randn(3, 6), tmp_path / "other.pt2")
    with pytest.raises(UnfitGraphError, match=why):
        places_of(graph_file.read(path).program)


def test_a_fixed_number_of_records_cannot_be_exported(tmp_path: Path) -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.edges = nn.Parameter(torch.ones(29, 29))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.edges @ x

    with pytest.raises(ValueError, match="works for 29 records alone"):
        export_graph(Fixed(), torch.randn(3, 6), tmp_path / "fixed.pt2")
