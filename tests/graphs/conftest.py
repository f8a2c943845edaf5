"""Files of graphs, each exported once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from core.parts import graph_file
from core.parts.graph_file import GraphFile
from scrimp.graph_export import export_graph
from tests.graphs.architectures import ACCEPTED

Exported = Callable[[str], GraphFile]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("graphs")


@pytest.fixture(scope="session")
def exported(folder: Path) -> Exported:
    """The file of an architecture by name, with weights of seed 0."""

    def export(name: str) -> GraphFile:
        path = folder / f"{name}.pt2"
        if not path.exists():
            export_graph(made(name), ACCEPTED[name].example(3), path)
        return graph_file.read(path)

    return export


def made(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return ACCEPTED[name].make()
