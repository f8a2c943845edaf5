"""Trains a private graph network on a graph of two files, and asks it about a page of the caller's own.

    python examples/graph.py URL KEY PUBLIC_KEY    # PUBLIC_KEY: what HOME/signing_key.pub holds

The graph is made here: 3,000 pages of three topics, three words each. A page's words say little of its topic; the pages
that link to it say more. ε protects a page: its topic, its words and the links on it.
"""

import csv
import sys
import tempfile
from pathlib import Path

import numpy as np

import scrimp
from scrimp.signatures import problem_of

PAGES, LINKS = 3000, 4
TOPICS = ["sports", "music", "law"]
WORDS = ["game", "song", "court"]
DATASET = {
    "name": "linked-pages",
    "format": "csv",
    "task": {"kind": "classification", "label": "topic", "classes": TOPICS},
    "features": {
        "kind": "nodes",
        "columns": WORDS,
        "node": "page",
        "neighbours": "linked_by",
        "keep": 8,
        "edges": {"source": "from", "target": "to", "undirected": False},
    },
    "privacy": {
        "sensitivity": "private",
        "records": PAGES,
        "cap": {"epsilon": 12.0, "delta": 1e-5},
        "filter": "gdp",
    },
    "holdout": {"kind": "split", "fraction": 0.2},
}
JOB = {
    "dataset": DATASET["name"],
    "name": "pages by their links",
    "model": {"kind": "gcn", "hops": 1, "neighbours": LINKS},
    "optimizer": {"kind": "dp_sgd", "learning_rate": 1.0, "momentum": 0.9},
    "sampling": {"kind": "full_batch"},
    "length": {"steps": 50},
    "privacy": {"target_epsilon": 6.0},
    "evaluation": {"on": "holdout", "noise_mu": 0.5, "points": 1},
}


def write(nodes: Path, edges: Path) -> None:
    """Pages, and links, of which four in five stay within a topic."""
    draw = np.random.default_rng(1)
    topics = draw.integers(0, 3, PAGES)
    words = 0.4 * np.eye(3)[topics] + draw.normal(0.0, 0.5, (PAGES, 3))
    by_topic = [np.flatnonzero(topics == each) for each in range(3)]
    with nodes.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["page", *WORDS, "topic"])
        rows.writerows([page, *words[page].round(3).tolist(), TOPICS[topic]] for page, topic in enumerate(topics))
    with edges.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["from", "to"])
        for page, topic in enumerate(topics):
            near = draw.random(LINKS) < 0.8
            others = np.where(near, draw.choice(by_topic[topic], LINKS), draw.integers(0, PAGES, LINKS))
            rows.writerows([page, other] for other in others.tolist())


def main(url: str, key: str, public_key: str) -> None:
    with tempfile.TemporaryDirectory() as folder, scrimp.Client(url, key) as client:
        nodes, edges = Path(folder) / "nodes.csv", Path(folder) / "edges.csv"
        write(nodes, edges)
        made = client.create_dataset(DATASET, nodes, edges_file=edges)
        print(f"registered {made.id}; warnings: {made.warnings}")
        job = client.wait_for(client.submit(JOB))
        if job.status != "succeeded":
            sys.exit(f"the job is {job.status}: {job.failure}")
        accuracy = job.metrics["accuracy"]
        print(f"{job.id}: accuracy on the hold-out {accuracy.value:.2f} ± {accuracy.std:.2f}")
        page = dict.fromkeys(WORDS, 0.0)
        asked = [page | {"linked_by": [page | {word: 1.0}] * 3} for word in WORDS]
        answers = client.predict(job.id, asked)
        for word, answer in zip(WORDS, answers, strict=True):
            print(f"a blank page that pages on {word!r} link to: {answer['class']}")
        signed = client.certificate(job.id).model_dump(mode="json", exclude_unset=True)
        if problem := problem_of(signed, public_key):
            sys.exit(f"the certificate does not hold: {problem}")
        told = signed["certificate"]
        print(
            f"the certificate holds: ε = {told['epsilon']['value']:.3g}, {told['mechanism']['training']['reach']} c = C"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
