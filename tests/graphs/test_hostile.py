"""Files that want more than to be a graph: each is refused, and no pickle in one is opened."""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from app.catalogue import graph_files
from core.parts import graph_file
from core.parts.graph_facts import facts_of, looked_at
from core.parts.graph_program import UnfitGraphError
from scrimp.graph_export import export_graph
from tests.worker.support import ROOT

Members = dict[str, bytes]
MODEL, WEIGHTS = "graph/models/model.json", "graph/data/weights/model_weights_config.json"


class Hostile:
    """A pickle that writes a file where it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (exec, (f"with open({str(self.path)!r}, 'w') as file: file.write('opened')",))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    module = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    return export_graph(module, torch.randn(3, 6), tmp_path_factory.mktemp("good") / "good.pt2")


def members(path: Path) -> Members:
    with zipfile.ZipFile(path) as archive:
        return {each: archive.read(each) for each in archive.namelist()}


def written(path: Path, content: Members, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, each in content.items():
            archive.writestr(zipfile.ZipInfo(name), each, compress_type=compression)
    return path


def changed(content: Members, member: str, change: Callable[[Any], None]) -> Members:
    document = json.loads(content[member])
    change(document)
    return content | {member: json.dumps(document).encode()}


def first_tensor(document: Any) -> Any:
    return next(iter(document["config"].values()))


def node(document: Any, at: int = 0) -> Any:
    return document["graph_module"]["graph"]["nodes"][at]


def cases(good: Members, trap: bytes) -> dict[str, tuple[Members, str]]:
    """Each with what its refusal says."""

    def of_model(change: Callable[[Any], None]) -> Members:
        return changed(good, MODEL, change)

    def of_weights(change: Callable[[Any], None]) -> Members:
        return changed(good, WEIGHTS, change)

    weight = "graph/data/weights/weight_0"
    deep = b"[" * 200_000
    return {
        "sample inputs": (good | {"graph/data/sample_inputs/model.pt": trap}, "is a pickle"),
        "old weights": (good | {"graph/data/weights/model.pt": trap}, "is a pickle"),
        "a pickled tensor": (of_weights(lambda d: first_tensor(d).update(use_pickle=True)) | {weight: trap}, "pickle"),
        "a custom object": (of_weights(lambda d: d["config"].update(x={"class_fqn": "os.system"})), "custom objects"),
        "a constant object": (good | {"graph/data/constants/custom_obj_0": trap}, "only a graph and raw tensors"),
        "compiled code": (good | {"graph/data/aotinductor/model/a.so": b"\x7fELF"}, "only a graph and raw tensors"),
        "out of the folder": (good | {"graph/../../../etc/passwd": b"x"}, "only a graph and raw tensors"),
        "another folder": (good | {"/etc/passwd": b"x"}, "beside its one folder"),
        "a number as text": (of_model(lambda d: node(d).update(target="os.system")), "torch.ops.aten"),
        "another operation": (of_model(lambda d: node(d).update(target="torch.ops.aten.nonzero.default")), "depends"),
        "unknown operation": (of_model(lambda d: node(d).update(target="torch.ops.aten.set_.source")), "no rule"),
        "a subgraph": (of_model(lambda d: node(d)["inputs"][0].update(arg={"as_graph": {}})), "as_graph"),
        "an object": (of_model(lambda d: d["graph_module"]["graph"].update(custom_obj_values={"a": 1})), "custom_obj"),
        "no graph": (of_model(lambda d: d.pop("graph_module")), "not what torch.export writes"),
        "a later value": (of_model(lambda d: node(d)["inputs"][0]["arg"]["as_tensor"].update(name="later")), "later"),
        "too large a size": (
            of_weights(lambda d: first_tensor(d)["tensor_meta"]["sizes"][0].update(as_int=2**40)),
            "view|less than",
        ),
        "wrong size": (good | {weight: good[weight][:-4]}, "another size"),
        "a missing tensor": ({name: each for name, each in good.items() if name != weight}, "not in the archive"),
        "another path": (of_weights(lambda d: first_tensor(d).update(path_name="../../x")), "not in the archive"),
        "no JSON": (good | {MODEL: b"{"}, "not JSON"),
        "deep JSON": (good | {MODEL: deep}, "not JSON"),
        "a view": (of_weights(lambda d: first_tensor(d)["tensor_meta"]["storage_offset"].update(as_int=4)), "a view"),
        "no description": (of_weights(lambda d: first_tensor(d).pop("tensor_meta")), "not what torch.export writes"),
        "no file of a tensor": (of_weights(lambda d: first_tensor(d).pop("path_name")), "not what torch.export writes"),
        "more strides": (
            of_weights(lambda d: first_tensor(d)["tensor_meta"]["strides"].append({"as_int": 1})),
            "a view",
        ),
        "sizes of text": (
            of_weights(lambda d: first_tensor(d)["tensor_meta"]["sizes"][0].update(as_int="x")),
            "not what torch.export writes",
        ),
        "a long version": (good | {"graph/archive_version": b"0" * 4096}, "at most 256"),
    }


def test_every_hostile_file_is_refused_and_nothing_in_it_opened(good: Path, tmp_path: Path) -> None:
    mark = tmp_path / "opened"
    trap = pickle.dumps(Hostile(mark))
    pickle.loads(trap)  # noqa: S301 - our own trap, to show that it works
    assert mark.exists(), "the trap works"
    mark.unlink()
    tried = cases(members(good), trap)
    paths = [written(tmp_path / f"{at}.pt2", each) for at, (each, _) in enumerate(tried.values())]
    command = [sys.executable, "-m", "tests.graphs.hostile", str(good), *map(str, paths)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    first, *said, last = map(json.loads, ran.stdout.splitlines())
    assert first == "accepted" and last == {"seen": [], "loaded": last["loaded"]}
    assert not any(name.startswith("torch") for name in last["loaded"])
    assert not mark.exists()
    for name, found, (_, why) in zip(tried, said, tried.values(), strict=True):
        assert any(each in found for each in why.split("|")), (name, found)


def arguments_of(document: Any, operation: str) -> Any:
    nodes = document["graph_module"]["graph"]["nodes"]
    return next(each for each in nodes if operation in each["target"])["inputs"]


@pytest.mark.parametrize(
    "change",
    [
        lambda d: arguments_of(d, "native_dropout").pop(1),
        lambda d: arguments_of(d, "relu").clear(),
        lambda d: arguments_of(d, "softmax").pop(0),
        lambda d: arguments_of(d, "softmax")[1].update(arg={"as_string": "x"}),
        lambda d: arguments_of(d, "embedding").pop(1),
        lambda d: arguments_of(d, "embedding")[1].update(arg={"as_none": True}),
    ],
    ids=["no rate", "nothing", "no input", "a text for a dimension", "no indices", "none for indices"],
)
def test_operations_without_their_arguments_are_refused(change: Callable[[Any], None], tmp_path: Path) -> None:
    """Each is the file's fault, which the caller is told of and no second look is taken at; not the service's."""
    good = members(export_graph(Whole().train(), torch.ones(3, 6), tmp_path / "whole.pt2"))
    path = written(tmp_path / "lacks.pt2", changed(good, MODEL, change))
    assert isinstance(graph_files.verdict_of(path, path.name, "test"), str)
    assert looked_at({"path": str(path)}).keys() == {"refused"}


def test_a_refusal_repeats_little_of_the_file(good: Path, tmp_path: Path) -> None:
    """A thousand are kept."""
    long = changed(members(good), MODEL, lambda d: node(d).update(outputs=[{"x" * 2**20: 1}]))
    path = written(tmp_path / "long.pt2", long)
    verdict = graph_files.verdict_of(path, path.name, "test")
    assert isinstance(verdict, str) and "gives xxx" in verdict and len(verdict) <= 1000


class Whole(nn.Module):
    """Operations of several rules."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.drop, self.head = nn.Embedding(5, 4), nn.Dropout(0.4), nn.Linear(24, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(torch.relu(self.drop(self.table(x.long()).flatten(1))).softmax(1))
        return scores


def test_what_torch_itself_writes_is_refused_for_its_pickle(tmp_path: Path) -> None:
    exported = torch.export.export(nn.Linear(6, 4), (torch.randn(3, 6),))
    torch.export.save(exported, tmp_path / "own.pt2")
    with pytest.raises(UnfitGraphError, match=r"sample_inputs/model\.pt.*pickle.*scrimp\.export_graph"):
        graph_file.read(tmp_path / "own.pt2")


def test_a_bomb_is_not_unpacked(good: Path, tmp_path: Path) -> None:
    bomb = members(good) | {"graph/data/weights/weight_0": bytes(2**26)}
    with pytest.raises(UnfitGraphError, match="compressed"):
        graph_file.read(written(tmp_path / "bomb.pt2", bomb, zipfile.ZIP_DEFLATED))
    with pytest.raises(UnfitGraphError, match="not a zip archive"):
        graph_file.of_content(b"PK" + bytes(100))


def test_a_member_that_lies_over_another_is_refused(good: Path, tmp_path: Path) -> None:
    """Many entries of the directory that name the same bytes."""
    content = bytearray(good.read_bytes())
    with zipfile.ZipFile(io.BytesIO(bytes(content))) as archive:
        large = max(archive.infolist(), key=lambda each: each.file_size)
        first = archive.infolist()[0]
        overlapping = [zipfile.ZipInfo(f"graph/data/weights/weight_{at}") for at in range(100, 200)]
        for each in overlapping:
            each.file_size = each.compress_size = large.file_size
            each.header_offset, each.CRC = first.header_offset, large.CRC
    made = io.BytesIO(bytes(content))
    with zipfile.ZipFile(made, "a") as archive:
        archive.filelist.extend(overlapping)
        archive._didModify = True  # type: ignore[attr-defined]
    with pytest.raises(UnfitGraphError, match="overlap"):
        graph_file.of_content(made.getvalue())


class Constant(nn.Module):
    """A linear layer, and a number from a large constant that each pass would compute again."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.linear(x)
        return scores + torch.zeros(2**14, 2**13).sum()


def test_a_graph_computes_no_huge_constants(tmp_path: Path) -> None:
    """Their size is in no estimate of a pass: that counts what belongs to records."""
    file = graph_file.read(export_graph(Constant(), torch.randn(3, 6), tmp_path / "constant.pt2"))
    with pytest.raises(UnfitGraphError, match="constants of 134217729 numbers"):
        facts_of(file)


class Standardized(nn.Module):
    """A linear layer whose weight is standardized in each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight / self.weight.square().sum(dim=1, keepdim=True).sqrt()
        return x @ weight.mT


def test_what_follows_from_a_copy_of_a_weight_is_each_records(tmp_path: Path) -> None:
    found = facts_of(graph_file.read(export_graph(Standardized(), torch.randn(3, 6), tmp_path / "standardized.pt2")))
    assert found["pass_numbers"] >= 3 * (6 + 64) + 3 * 64 * 6 * 3  # its copy, squares and quotients, three times each


def test_the_file_tells_nothing_of_the_machine(good: Path) -> None:
    whole = good.read_bytes()
    assert str(ROOT).encode() not in whole and b"File " not in whole and b".py" not in whole
