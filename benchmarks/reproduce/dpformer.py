"""DPFormer's comparison of recommenders under differential privacy, on MovieLens-100k: runs, kept one by one.

    python -m benchmarks.reproduce.dpformer [--seeds N] [--minutes M] [--report]

MovieLens-1M, which the paper has, is not to be had here: MovieLens-100k stands in. Runs that are in the file of results
are not made again. The report is made of whole seeds.

Source: "DPFormer: learning differentially private transformer on long-tailed data", section 5 and appendix A.9.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from app.formats import interactions
from benchmarks.reproduce import runs
from benchmarks.reproduce.dpformer_attention import looked_at
from benchmarks.reproduce.dpformer_report import Made, write
from core.contracts.dataset_spec import DatasetSpec
from core.parts.stored_records import Sequences
from worker.data.sequence_records import SequenceRecords

sys.path.insert(0, str(runs.ROOT / "scripts"))
from fetch_data import fetch_ratings

RESULTS = runs.REPORTS / "dpformer.json.gz"
DELTA = 1e-4
FIRST, OTHERS = 8.0, (5.0, 10.0)  # ε: of the first come all seeds first
STEPS, PLAIN_BATCH, POINTS, K = 25, 256, 5, 10
RATE, PLAIN_RATE = 0.03, 0.005
SIZE: dict[str, Any] = {"dim": 64, "max_length": 12, "dropout": 0.2}
MODELS: dict[str, dict[str, Any]] = {
    "GRU": {"kind": "gru_rec"},
    "LSTM": {"kind": "lstm_rec"},
    "Transformer, untied": {"kind": "transformer_rec", "tied": False},
    "Transformer": {"kind": "transformer_rec"},
    "DPFormer, logits": {"kind": "transformer_rec", "re_attention": {"mode": "logits", "scale": RATE}},
    "DPFormer, paper": {"kind": "transformer_rec", "re_attention": {"mode": "paper", "scale": 1.0}},
}
LOOKED_AT = ("Transformer", "DPFormer, logits", "DPFormer, paper")


def movielens() -> runs.Data:
    """Users with all their items but the last; and whole, to be scored on the last. A 5-core, as in SASRec."""
    task = {"kind": "next_item", "core": 5}
    features: dict[str, Any] = {
        "kind": "interactions",
        "layout": "inter",
        "items": {"kind": "numbered", "count": 1682},
    }
    spec = {"name": "m", "format": "interactions", "task": task, "features": features}
    table = interactions.new_records(
        DatasetSpec.model_validate(spec | {"privacy": {"sensitivity": "public"}}), "file", 2**30
    )
    interactions.read(fetch_ratings(), table)
    table.check()
    part = table.part().x
    if not isinstance(part, Sequences):
        raise TypeError("interactions of task next_item are sequences")
    there, items = np.unique(part.items, return_inverse=True)
    items, starts = items.astype(np.int32), np.append(0, part.ends)[:-1]
    return runs.Data(
        task={"kind": "next_item"},
        features=features | {"items": {"kind": "numbered", "count": len(there)}},
        train=SequenceRecords(items, starts, part.ends - 1),
        holdout=SequenceRecords(items, starts, part.ends),
        features_count=len(there),
        outputs=1,
        sparse=True,
    )


def job(model: dict[str, Any], epsilon: float | None) -> dict[str, Any]:
    """A JobSpec. With privacy, all users in each step: for as many passes over the data that is the least noise;
    without it (`epsilon` None) as many epochs of batches of 256."""
    sampling: dict[str, Any] = {"kind": "full_batch"}
    length: dict[str, Any] = {"steps": STEPS}
    if epsilon is None:
        sampling, length = {"kind": "poisson", "expected_batch_size": PLAIN_BATCH}, {"epochs": STEPS}
    return {
        "model": SIZE | model,
        "optimizer": {
            "kind": "dp_adam",
            "learning_rate": RATE if epsilon else PLAIN_RATE,
            "weight_decay": 1e-5,
            "schedule": {"kind": "warmup_linear", "warmup": 0.2},
        },
        "privacy": {"target_epsilon": epsilon, "target_delta": DELTA} if epsilon else None,
        "clipping": {"kind": "automatic", "max_grad_norm": 1.0} if epsilon else None,
        "sampling": sampling,
        "length": length,
        "evaluation": {"points": POINTS, "ranking": {"k": K}},
        "runtime": {"dtype": "float32"},
    }


class Lab:
    """Asks for runs, which are made or remembered."""

    def __init__(self, data: runs.Data | None) -> None:
        self.data, self.kept = data, runs.Kept(RESULTS)

    def run(self, job_: dict[str, Any], seed: int, *, look: bool = False) -> dict[str, Any]:
        """A run, `attention` of the trained model with it if it is to be looked at."""

        def answer() -> dict[str, Any]:
            if self.data is None:
                raise LookupError("this run is not among the results")
            made = runs.run(self.data, job_, seed=seed)
            return made.rounded() | ({"attention": looked_at(self.data, job_, made)} if look else {})

        return self.kept.get({"job": job_, "seed": seed}, answer)


def wanted(lab: Lab, seeds: int) -> Iterator[tuple[str, float | None, int, dict[str, Any]]]:
    """The runs of the comparison, whole seeds at a time: name, ε, seed, run."""
    all_models, plain = tuple(MODELS), ("Transformer", "GRU")
    first = [(FIRST, seed, all_models) for seed in range(seeds)]
    others = [(epsilon, seed, all_models) for seed in range(seeds) for epsilon in OTHERS]
    for epsilon, seed, names in (*first, (None, 0, plain), *others):
        for name in names:
            look = seed == 0 and name in LOOKED_AT
            yield name, epsilon, seed, lab.run(job(MODELS[name], epsilon), seed, look=look)


def popularity(data: runs.Data) -> tuple[float, float]:
    """NDCG and HIT of ranking all items by how many of the training sequences have them."""
    counts = data.train.item_counts(data.features_count, 10_000)  # type: ignore[attr-defined]
    last = data.holdout.padded(1)[:, 0] - 1  # type: ignore[attr-defined]
    ranks = (counts[None] >= counts[last][:, None]).sum(dim=1).double()
    hits = (ranks <= K).double()
    return float((hits / torch.log2(ranks + 1)).mean()), float(hits.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=1e9, help="no run is begun after so many")
    parser.add_argument("--report", action="store_true", help="write the report of what there is, and run nothing new")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    data = movielens()
    lab, until = Lab(None if asked.report else data), time.monotonic() + 60 * asked.minutes
    made: list[Made] = []
    try:
        for name, epsilon, seed, found in wanted(lab, asked.seeds):
            made.append(Made(name, epsilon, seed, found))
            best = {name: values[-1][1] for name, values in found["metrics"].items() if "@" in name}
            print(name, epsilon, seed, round(found["seconds"]), best, flush=True)
            if time.monotonic() > until:
                break
    except LookupError as missing:
        print(missing)
    counted = Counter((each.seed, each.epsilon) for each in made)
    whole = [each for each in made if each.epsilon is None or counted[each.seed, each.epsilon] == len(MODELS)]
    print(write(whole, popularity(data), SIZE))


if __name__ == "__main__":
    main()
