"""A request for a graph is pinned to its file, or refused, by what the file says alone."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from app.catalogue import graph_files, model_folders
from app.sandbox.limited import WorkLimitError
from core.contracts.graph import GraphFacts, GraphModel
from core.errors import InvalidRequest, LimitError
from core.parts.graph_program import Program, UnfitGraphError
from core.parts.graph_rules import places_of
from tests.graphs.architectures import ACCEPTED
from tests.graphs.conftest import Exported, made
from tests.graphs.operations import built


@pytest.fixture
def root(tmp_path: Path, exported: Exported, folder: Path) -> Path:
    exported("vit")
    (tmp_path / "models" / "own").mkdir(parents=True)
    shutil.copy(folder / "vit.pt2", tmp_path / "models" / "own" / "vit.pt2")
    return tmp_path / "models"


def test_a_request_is_pinned_to_the_file(root: Path, exported: Exported) -> None:
    found = model_folders.resolved(GraphModel(path="own/vit.pt2"), root, 4)
    assert isinstance(found, GraphModel)
    numbers = sum(each.numel() for each in made("vit").parameters())
    assert (found.sha256, found.parameters, found.trained) == (exported("vit").sha256, numbers, numbers)
    assert (found.inputs, found.outputs) == (math.prod(ACCEPTED["vit"].record), 4)
    assert found.positions() == 5 and found.pass_numbers is not None
    assert model_folders.resolved(found, root, 4) == found  # as it is sent again
    with pytest.raises(InvalidRequest, match="the graph in this file has 4"):
        model_folders.resolved(found.model_copy(update={"outputs": 5}), root, 4)


def test_a_path_stays_in_the_models_root(root: Path) -> None:
    outside = root.parent / "outside.pt2"
    shutil.copy(root / "own" / "vit.pt2", outside)
    (root / "own" / "link.pt2").symlink_to(outside)
    for path in ("own/link.pt2", "own/absent.pt2", "own"):
        with pytest.raises(InvalidRequest, match="no such file in the models root"):
            graph_files.pinned(root, path, GraphFacts())
    with pytest.raises(InvalidRequest, match="no models root"):
        graph_files.pinned(None, "own/vit.pt2", GraphFacts())


def test_a_file_that_changed_is_looked_at_again(root: Path) -> None:
    first = graph_files.pinned(root, "own/vit.pt2", GraphFacts())
    (root / "own" / "vit.pt2").write_bytes(b"PK no graph")
    with pytest.raises(InvalidRequest, match="not a zip archive"):
        graph_files.pinned(root, "own/vit.pt2", first)


@pytest.mark.parametrize("ends", ["too slow", "refused"])
def test_a_refused_file_is_read_once(root: Path, monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    """Whatever it is called: a file that takes the whole time would take it at every quote."""
    reads: list[str] = []

    def run_limited(target: str, request: dict[str, str], **_: object) -> dict[str, str]:
        reads.append(request["path"])
        if ends == "too slow":
            raise WorkLimitError("a test")
        return {"refused": "a test"}

    monkeypatch.setattr(graph_files, "run_limited", run_limited)
    for name in ("one.pt2", "other.pt2", "one.pt2"):
        (root / name).write_bytes(f"no graph, {ends}".encode())
        with pytest.raises(InvalidRequest):
            graph_files.pinned(root, name, GraphFacts())
    assert len(reads) == 1


def test_a_busy_machine_says_nothing_of_a_file(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_limited, busy = graph_files.run_limited, [LimitError("a test"), LimitError("a test")]

    def once_busy(*arguments: Any, **how: Any) -> dict[str, Any]:
        if busy:
            raise busy.pop()
        return run_limited(*arguments, **how)

    monkeypatch.setattr(graph_files, "run_limited", once_busy)
    monkeypatch.setattr(graph_files, "_verdicts", {})
    for _ in range(2):
        with pytest.raises(LimitError) as caught:
            graph_files.pinned(root, "own/vit.pt2", GraphFacts())
        assert caught.value.status == 503, "try again: nothing is wrong with the request"
    assert graph_files.pinned(root, "own/vit.pt2", GraphFacts()).inputs == 3 * 8 * 8


@pytest.mark.parametrize("other", [0, -1, {"value": "x"}])
def test_whole_numbers_are_divided_by_positive_constants_alone(other: object) -> None:
    """By 0 torch raises an error, and the least whole number by −1 ends a process: both would tell of a record."""
    document = built("floor_divide.default").module._program.model_dump(mode="json")
    document["nodes"][2]["arguments"]["other"] = other
    with pytest.raises(UnfitGraphError, match="divide by a positive number"):
        places_of(Program.model_validate(document))


def test_the_least_whole_number_ends_no_pass() -> None:
    of = built("floor_divide.default")
    x = torch.full((2, *of.case.row), torch.nan)  # as a whole number the least one
    assert of.module(x).shape == x.shape
