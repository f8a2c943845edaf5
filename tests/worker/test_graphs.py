"""Graph networks: their layers against a loop over nodes, and how far one node moves a step's sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.contracts.gcn import GcnModel
from core.parts.nodes import trees
from core.privacy.numerics import grid_slack
from tests.bound.worst import C, engine_of, flat
from tests.privacy.test_nodes import drawn_graphs, less, stored
from tests.worker.support import key
from worker.clipping.totals import Grid
from worker.data.records import DenseRecords
from worker.data.secret_slots import Slotted
from worker.models.networks import Network
from worker.training.self_test import random_parameters

COLUMNS, NODES = 3, 10
MODELS = [
    GcnModel(neighbours=2),
    GcnModel(neighbours=3, hidden=(5,)),
    GcnModel(hops=2, neighbours=2, hidden=(6,)),
    GcnModel(hops=2, neighbours=1, hidden=(6, 4), activation="relu"),
]
WIDE = 3.0  # columns that turn gradients round


def part(seed: int, graphs: int = 1) -> NDArray[np.float64]:
    ids = stored(drawn_graphs(NODES, graphs, seed))[:, 1:]
    columns = np.random.default_rng(seed).normal(0.0, WIDE, (len(ids), COLUMNS))
    return np.concatenate([columns, ids], axis=1)


def network_of(spec: GcnModel) -> Network:
    width = spec.tree.width(COLUMNS)
    return Network(width, 3, spec, dtype=torch.float64, rows_per_pass=4)


def by_hand(spec: GcnModel, of: dict[str, Tensor], tree: Tensor) -> Tensor:
    """One tree's outputs, a node at a time."""
    act = torch.tanh if spec.activation == "tanh" else torch.relu
    names = sorted({name.rpartition(".")[0] for name in of}, key=lambda name: int(name.partition(".")[0]))
    if spec.hops == 2:
        k, first = spec.neighbours, names.pop(0)
        nodes = tree[: (1 + k) * 2 * COLUMNS].view(1 + k, 2 * COLUMNS)
        seen = [act(of[f"{first}.weight"] @ each + of[f"{first}.bias"]) for each in nodes]
        mean = sum((weight * each for weight, each in zip(tree[-k:], seen[1:], strict=True)), torch.zeros_like(seen[0]))
        tree = torch.cat([seen[0], mean])
    for place, name in enumerate(names):
        tree = of[f"{name}.weight"] @ tree + of[f"{name}.bias"]
        tree = act(tree) if place < len(names) - 1 else tree
    return tree


@pytest.mark.parametrize("spec", MODELS, ids=lambda spec: f"{spec.hops}-{spec.neighbours}-{len(spec.hidden)}")
def test_a_network_is_its_formula(spec: GcnModel) -> None:
    found = torch.from_numpy(trees(part(seed=2), COLUMNS, spec.tree))
    model = network_of(spec)
    parameters = model.init(bytes.fromhex(key("init")))
    outputs = model.forward(parameters, DenseRecords(found, torch.zeros(len(found), dtype=torch.int64)))
    for place, each in enumerate(found.double()):
        torch.testing.assert_close(outputs[:, place], by_hand(spec, parameters, each))


def moved(spec: GcnModel, reach: int) -> float:
    """The most by which a node more or less moves the sum of a step, in parts of C, over drawn graphs."""
    model, most = network_of(spec), 0.0
    grid = Grid(NODES, model.rows_per_pass)
    engine = engine_of(model, positions=spec.positions(), grid=grid, per_unit=reach)
    parameters = random_parameters(model, torch.Generator().manual_seed(1))
    for seed in range(12):
        nodes = part(seed)
        labels = np.random.default_rng(seed).integers(0, 3, NODES)
        whole = _sum(engine, parameters, nodes, labels, spec, np.arange(NODES))
        for absent in range(0, NODES, 3):
            there = np.delete(np.arange(NODES), absent)
            other = _sum(engine, parameters, less(nodes, NODES, absent), labels[there], spec, there)
            most = max(most, float((whole - other).norm()) / C)
    return most


def _sum(
    engine: Any, parameters: Any, nodes: NDArray[Any], labels: NDArray[Any], spec: GcnModel, places: NDArray[Any]
) -> Tensor:
    """The private sum of a part, whose nodes stand in these slots."""
    occupants = np.full(NODES, -1)
    occupants[places] = np.arange(len(nodes))
    records = DenseRecords(torch.from_numpy(trees(nodes, COLUMNS, spec.tree)), torch.from_numpy(labels))
    return flat(engine.private_sum(parameters, Slotted(records, occupants), None))


@pytest.mark.parametrize("spec", MODELS, ids=lambda spec: f"{spec.hops}-{spec.neighbours}-{len(spec.hidden)}")
def test_a_node_moves_a_sum_by_its_clip_at_most(spec: GcnModel) -> None:
    model = network_of(spec)
    slack = grid_slack(NODES, model.rows_per_pass, model.numbers, spec.reach)
    assert moved(spec, spec.reach) <= 1.0 + 1e-9 + slack


def test_clipped_as_a_record_alone_a_node_would_move_it_further() -> None:
    """Plants the fault that the reach is there for."""
    assert moved(MODELS[1], 1) > 1.5


def test_a_job_s_engine_has_the_reach_of_its_mechanism() -> None:
    spec = MODELS[0]
    by_reach = engine_of(network_of(spec), reach=spec.reach)
    as_records = engine_of(network_of(spec), per_unit=spec.reach)
    nodes, labels = part(seed=7), np.arange(NODES) % 3
    parameters = random_parameters(network_of(spec), torch.Generator().manual_seed(1))
    sums = [_sum(each, parameters, nodes, labels, spec, np.arange(NODES)) for each in (by_reach, as_records)]
    assert torch.equal(*sums)
