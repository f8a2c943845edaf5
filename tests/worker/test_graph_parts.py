"""What an attempt loads of a graph: nodes of a part are read by that part alone, which paid for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from core.contracts.dataset_spec import NodeColumns
from core.contracts.job_spec import JobSpec, seen_by
from core.contracts.neighbourhoods import Tree
from core.parts import nodes
from core.parts.nodes import kept, number_of, stored_ids
from core.parts.part_files import save_part
from core.parts.stored_records import StoredPart
from tests.worker.support import keys_of, plan_of, start_of
from worker.attempt.part_loading import loader
from worker.messages import Part, Start

JOB = {
    "dataset": "ds_1",
    "model": {"kind": "gcn", "neighbours": 2},
    "optimizer": {"kind": "dp_sgd", "learning_rate": 1.0},
    "privacy": {"noise_multiplier": 1.0},
    "sampling": {"kind": "full_batch"},
    "length": {"steps": 2},
    "evaluation": None,
}
FEATURES = NodeColumns(columns=["a"], keep=2)
PARTS = ({"p": ["q"], "q": ["p", "s"]}, {"r": ["p", "q"], "s": ["r", "q"]})  # nodes of both name those of the other


def stored(part: dict[str, list[str]], first: float) -> NDArray[np.float32]:
    numbers = [[number_of(node), *kept(node, named, 2)] for node, named in part.items()]
    columns = first + np.arange(len(part), dtype=np.float64)[:, None]
    return np.concatenate([columns, stored_ids(numbers, 2)], axis=1).astype(np.float32)


def loaded(folder: Path, *parts: NDArray[np.float32]) -> NDArray[np.float32]:
    """The trees of all parts, by an attempt's own loader."""
    seen = seen_by(JobSpec.model_validate(JOB).model, FEATURES)
    shape = {"records_train": 4, "records_holdout": 0, "features": seen.numbers(1), "outputs": 2, "sparse": False}
    start: dict[str, Any] = start_of(JOB, shape) | {"features": seen.model_dump(mode="json")}
    named = []
    for place, x in enumerate(parts):
        path = folder / f"{len(parts)}-{place}-{len(list(folder.iterdir()))}"
        sha256 = save_part(path, StoredPart(x=x, y=np.zeros(len(x), dtype=np.int64)))
        named.append(Part(path=str(path), sha256=sha256, rows=8))
    message = start | {"segments": [{"from_step": 1, **keys_of("x")}], "allowed_steps": 0}
    found = loader(Start.model_validate(message), lambda: None, plan_of(start))(named).whole
    assert isinstance(found, StoredPart)
    return np.asarray(found.x)


def moves_another(folder: Path) -> bool:
    """Whether what is loaded of a part depends on the features of another, which may be gone."""
    one, two = (stored(part, 1.0 + 10.0 * place) for place, part in enumerate(PARTS))
    other = two.copy()
    other[:, 0] *= -1.0
    together = [loaded(folder, *pair)[: len(one)] for pair in ((one, two), (one, other))]
    together += [loaded(folder, each, one)[len(each) :] for each in (two, other)]
    return any(not np.array_equal(each, together[0]) for each in together)


def test_nodes_of_another_part_are_not_read(tmp_path: Path) -> None:
    assert not moves_another(tmp_path)


def test_features_of_a_node_that_is_gone_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plants the fault: the parts that were loaded before are still there, and their nodes are read."""
    before: list[NDArray[Any]] = []
    honest = nodes.trees

    def trees(of: NDArray[Any], columns: int, tree: Tree) -> NDArray[np.float32]:
        own = of[:, columns]
        earlier = [each[~np.isin(each[:, columns], own)] for each in before[-1:]]
        before.append(of)
        return honest(np.concatenate([*earlier, of]), columns, tree)[-len(of) :]

    monkeypatch.setattr(nodes, "trees", trees)
    assert moves_another(tmp_path)
