"""Nodes of a graph through the real service: registered, priced, trained, certified, and asked for predictions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scrimp.errors import InvalidRequest
from tests.e2e.conftest import Service
from tests.e2e.test_spine import finished, submit

ROOT = Path(__file__).resolve().parents[2]
TOPICS = {"game": "sports", "song": "music", "court": "law"}
NODES, CLASSES, COLUMNS = 1200, 3, ["a", "b", "c", "d"]


def write_graph(path: Path, seed: int = 0) -> Path:
    """Nodes that mostly name nodes of their own class; their columns say little of it."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, NODES)
    x = 0.25 * np.eye(CLASSES, len(COLUMNS))[y] + 0.5 * rng.normal(size=(NODES, len(COLUMNS)))
    by_class = [np.flatnonzero(y == each) for each in range(CLASSES)]
    lines = [",".join(["node", *COLUMNS, "topic", "links"])]
    for node in range(NODES):
        own = rng.choice(by_class[y[node]], size=20)
        named = " ".join(f"n{each}" for each in (*own, NODES + node))  # the last one is no row of the file
        lines.append(",".join([f"n{node}", *(f"{each:.4f}" for each in x[node]), f"t{y[node]}", named]))
    path.write_text("\n".join(lines) + "\n")
    return path


def in_two_files(path: Path) -> tuple[Path, Path]:
    """The same nodes without their lists, and their edges."""
    header, *rows = [line.rpartition(",") for line in path.read_text().splitlines()]
    edges = [f"{node.partition(',')[0]},{other}" for node, _, named in rows for other in named.split()]
    files = path.with_suffix(".nodes"), path.with_suffix(".edges")
    files[0].write_text("\n".join([header[0], *(node for node, *_ in rows)]) + "\n")
    files[1].write_text("\n".join(["source,target", *edges]) + "\n")
    return files


def spec(name: str, sensitivity: str) -> dict[str, Any]:
    privacy: dict[str, Any] = {"sensitivity": sensitivity}
    if sensitivity == "private":
        privacy |= {"records": NODES, "cap": {"epsilon": 40.0, "delta": 1e-5}, "filter": "gdp"}
    return {
        "name": name,
        "format": "csv",
        "task": {"kind": "classification", "label": "topic", "classes": ["t0", "t1", "t2"]},
        "features": {"kind": "nodes", "columns": COLUMNS, "node": "node", "neighbours": "links", "keep": 20},
        "privacy": privacy,
        "holdout": {"kind": "split", "fraction": 0.25},
    }


def job(dataset: str, **changes: Any) -> dict[str, Any]:
    return {
        "dataset": dataset,
        "model": {"kind": "gcn", "hops": 1, "neighbours": 3},
        "optimizer": {"kind": "dp_sgd", "learning_rate": 1.0, "momentum": 0.9},
        "privacy": {"target_epsilon": 10.0},
        "length": {"steps": 30},
        "evaluation": {"on": "holdout", "noise_mu": 0.5, "points": 1},
    } | changes


@pytest.mark.parametrize("service", ["sqlite"], indirect=True)
def test_a_graph_from_post_to_prediction(service: Service, tmp_path: Path) -> None:
    with service.client() as client:
        client.create_dataset(spec("nodes-public", "public"), write_graph(tmp_path / "nodes-public", 1))
        nodes, edges = in_two_files(write_graph(tmp_path / "nodes-private"))
        private = spec("nodes-private", "private")
        private["features"] |= {"edges": {"undirected": False}}
        with pytest.raises(InvalidRequest, match="edges are in a file of their own"):
            client.create_dataset(private, nodes)
        client.create_dataset(private, nodes, edges_file=edges)
        with pytest.raises(InvalidRequest, match="keeps 20"):
            client.quote(job("nodes-private", model={"kind": "gcn", "neighbours": 21}))
    free = {"privacy": None, "evaluation": {"on": "train"}}  # a hold-out of a fourth has a fourth of the edges
    two = {"kind": "gcn", "hops": 2, "neighbours": 2, "hidden": [8]}
    jobs = {
        "private": submit(service, job("nodes-private")),
        "two": submit(service, job("nodes-private", model=two, sampling={"kind": "cyclic", "batches": 3})),
        "edges": submit(service, job("nodes-public", model={"kind": "gcn", "neighbours": 12}, **free)),
        "columns": submit(service, job("nodes-public", model={"kind": "linear"}, **free)),
    }
    ended = {name: finished(service, each) for name, each in jobs.items()}
    assert {each["status"] for each in ended.values()} == {"succeeded"}
    scores = {name: each["metrics"]["accuracy"]["value"] for name, each in ended.items()}
    assert scores["edges"] > scores["columns"] + 0.1, "neighbours tell a class that columns do not"
    assert ended["private"]["metrics"]["accuracy"]["std"] > 0
    with service.client() as client:
        certificate = client.certificate(jobs["private"]).model_dump(mode="json")["certificate"]
        assert certificate["mechanism"]["training"]["reach"] == 2 * 4 - 1
        assert any("others list a node" in each for each in certificate["threat_model"]["not_covered"])
        node = dict.fromkeys(COLUMNS, 0.0)
        like = [dict(zip(COLUMNS, row, strict=True)) for row in np.eye(CLASSES, len(COLUMNS)).tolist()]
        asked = [node | {"links": [each] * 12} for each in like]
        answers = client.predict(jobs["edges"], asked)
        assert [each["class"] for each in answers] == ["t0", "t1", "t2"]
        assert client.predict(jobs["two"], [node | {"links": [node | {"links": [node]}]}, node])
        with pytest.raises(InvalidRequest, match="at most 3 nodes"):
            client.predict(jobs["private"], [node | {"links": [node] * 4}])


@pytest.mark.parametrize("service", ["sqlite"], indirect=True)
def test_the_example_runs_as_it_says(service: Service) -> None:
    url, key = f"http://127.0.0.1:{service.port}", (service.home / "admin.key").read_text().strip()
    line = [sys.executable, str(ROOT / "examples" / "graph.py"), url, key]
    ran = subprocess.run(
        [*line, (service.home / "signing_key.pub").read_text().strip()], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    said = [f"pages on {word!r} link to: {topic}" for word, topic in TOPICS.items()]
    assert all(each in ran.stdout for each in said), ran.stdout
    assert "the certificate holds: ε = 6, 9 c = C" in ran.stdout
