"""Three methods that the papers compare with, one job each: DP-ZO, DPAdamWOSM, and the best of a secret number of runs.

    python examples/methods.py URL KEY PUBLIC_KEY    # PUBLIC_KEY: what HOME/signing_key.pub holds

The records are made here: 2,000 of five columns and two classes. Each job is a body of `POST /v1/jobs`. A second run by
the same key finds the data set and the jobs of the first, and spends nothing.
"""

import csv
import sys
import tempfile
from pathlib import Path

import numpy as np

import scrimp
from scrimp.errors import Conflict
from scrimp.signatures import problem_of

RECORDS, COLUMNS = 2000, ["x0", "x1", "x2", "x3", "x4"]
DATASET = {
    "name": "five-columns",
    "format": "csv",
    "task": {"kind": "classification", "label": "y", "classes": [0, 1]},
    "features": {"kind": "columns", "columns": COLUMNS},
    # The price of a selection is a Rényi divergence: a `gdp` filter refuses it.
    "privacy": {
        "sensitivity": "private",
        "records": RECORDS,
        "cap": {"epsilon": 10.0, "delta": 1e-5},
        "filter": "rdp",
        "order": 8.0,
    },
    "holdout": {"kind": "split", "fraction": 0.25},
}
JOB = {
    "dataset": DATASET["name"],
    "privacy": {"target_epsilon": 2.0},
    "sampling": {"kind": "full_batch"},
    "length": {"steps": 30},
    "evaluation": {"on": "holdout", "noise_mu": 0.2, "points": 1, "metrics": ["accuracy"]},
}
JOBS = {
    "DP-ZO": {"optimizer": {"kind": "dp_zo", "learning_rate": 0.1}, "length": {"steps": 200}},
    "DPAdamWOSM": {"optimizer": {"kind": "dp_adamwosm", "learning_rate": "auto"}},
    "best of a secret number of runs": {
        "optimizer": {"kind": "dp_sgd", "learning_rate": 1.0, "momentum": 0.9},
        "hpo": {
            "strategy": "random_size",
            "distribution": {"kind": "negative_binomial", "eta": 0.0, "gamma": 0.1},
            "most_runs": 6,
            "duration_s": 4,
            "space": {"learning_rate": [0.1, 10.0]},
        },
    },
}


def write(path: Path) -> None:
    draw = np.random.default_rng(2)
    labels = draw.integers(0, 2, RECORDS)
    values = draw.normal(0.0, 1.0, (RECORDS, len(COLUMNS))) + 0.8 * (2 * labels[:, None] - 1)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([*COLUMNS, "y"])
        rows.writerows([*row, label] for row, label in zip(values.round(4).tolist(), labels.tolist(), strict=True))


def main(url: str, key: str, public_key: str) -> None:
    with tempfile.TemporaryDirectory() as folder, scrimp.Client(url, key) as client:
        path = Path(folder) / "records.csv"
        write(path)
        try:
            print(f"registered {client.create_dataset(DATASET, path).id}")
        except Conflict as conflict:
            if conflict.code != "duplicate-name":
                raise
            print(f"{DATASET['name']} is registered already")
        for name, settings in JOBS.items():
            job = client.wait_for(client.submit(JOB | settings | {"name": name}, idempotency_key=f"methods.py {name}"))
            if job.status != "succeeded":
                sys.exit(f"{name}: the job is {job.status}: {job.failure}")
            signed = client.certificate(job.id).model_dump(mode="json", exclude_unset=True)
            if problem := problem_of(signed, public_key):
                sys.exit(f"{name}: the certificate does not hold: {problem}")
            accuracy, epsilon = job.metrics["accuracy"], signed["certificate"]["epsilon"]["value"]
            print(f"{name}: accuracy {accuracy.value:.2f} ± {accuracy.std:.2f}, certified ε = {epsilon:.3g}")


if __name__ == "__main__":
    main(*sys.argv[1:])
