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
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from app.contracts.dataset_spec import DatasetSpec
from app.formats import interactions
from app.formats.stored import Sequences
from benchmarks.reproduce import runs
from benchmarks.reproduce.dpformer_attention import looked_at
from benchmarks.reproduce.dpformer_report import write
from worker.data.sequences import SequenceRecords

sys.path.insert(0, str(runs.ROOT / "scripts"))
from fetch_data import fetch_ratings

RESULTS = runs.REPORTS / "dpformer.json"
EPSILONS, DELTA = (5.0, 8.0, 10.0), 1e-4
STEPS, BATCH, POINTS, K = 40, 256, 4, 10
SIZE: dict[str, Any] = {"dim": 32, "max_length": 12, "dropout": 0.2}
TUNING_SEED = 100
RATES, SCALES = (0.01, 0.03), (1.0, 0.03)
MODELS: dict[str, dict[str, Any]] = {
    "GRU": {"kind": "gru_rec"},
    "LSTM": {"kind": "lstm_rec"},
    "Transformer, untied": {"kind": "transformer_rec", "tied": False},
    "Transformer": {"kind": "transformer_rec"},
    "DPFormer, logits": {"kind": "transformer_rec", "re_attention": {"mode": "logits"}},
    "DPFormer, paper": {"kind": "transformer_rec", "re_attention": {"mode": "paper"}},
}


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


def job(model: dict[str, Any], rate: float, epsilon: float | None, points: int = POINTS) -> dict[str, Any]:
    """A JobSpec; `epsilon` None: without privacy."""
    return {
        "model": SIZE | model,
        "optimizer": {
            "kind": "dp_adam",
            "learning_rate": rate,
            "weight_decay": 1e-5,
            "schedule": {"kind": "warmup_linear", "warmup": 0.2},
        },
        "privacy": {"target_epsilon": epsilon, "target_delta": DELTA} if epsilon else None,
        "clipping": {"kind": "automatic", "max_grad_norm": 1.0} if epsilon else None,
        "sampling": {"kind": "poisson", "expected_batch_size": BATCH},
        "length": {"steps": STEPS},
        "evaluation": {"points": points, "ranking": {"k": K}},
        "runtime": {"dtype": "float32"},
    }


class Lab:
    """Asks for runs, which are made or remembered."""

    def __init__(self, data: runs.Data | None) -> None:
        self.data, self.kept = data, runs.Kept(RESULTS)

    def run(self, job_: dict[str, Any], seed: int) -> dict[str, Any]:
        def answer() -> dict[str, Any]:
            if self.data is None:
                raise LookupError("this run is not among the results")
            return runs.run(self.data, job_, seed=seed).kept()

        return self.kept.get({"job": job_, "seed": seed}, answer)

    def tuned(self, name: str) -> tuple[dict[str, Any], float]:
        """Model and learning rate with the best NDCG at ε = 8, of a seed that is not used again."""
        model, plain = MODELS[name], "re_attention" not in MODELS[name]
        if plain:
            tried = [(rate, self.run(job(model, rate, 8.0, 1), TUNING_SEED)) for rate in RATES]
            return model, runs.best(tried, f"ndcg@{K}", highest=True)[0]
        rate = self.tuned("Transformer")[1]
        scaled = [model | {"re_attention": {**model["re_attention"], "scale": scale}} for scale in SCALES]
        tried_scales = [(each, self.run(job(each, rate, 8.0, 1), TUNING_SEED)) for each in scaled]
        return runs.best(tried_scales, f"ndcg@{K}", highest=True)[0], rate

    def attention(self, job_: dict[str, Any], seed: int) -> dict[str, Any]:
        """Where the last item of a sequence looks, averaged over users (dpformer_attention)."""

        def answer() -> dict[str, Any]:
            if self.data is None:
                raise LookupError("this run is not among the results")
            return looked_at(self.data, job_, runs.run(self.data, job_, seed=seed))

        return self.kept.get({"attention": job_, "seed": seed}, answer)


def wanted(lab: Lab, seeds: int) -> Iterator[tuple[str, float | None, int, dict[str, Any]]]:
    """The runs of the comparison, whole seeds at a time: name, ε, seed, job."""
    for seed in range(seeds):
        for epsilon in (8.0, 5.0, 10.0):
            for name in MODELS:
                model, rate = lab.tuned(name)
                yield name, epsilon, seed, job(model, rate, epsilon)
        if seed == 0:
            for name in ("GRU", "Transformer"):
                model, rate = lab.tuned(name)
                yield name, None, seed, job(model, rate, None)


def maps(lab: Lab) -> Iterator[tuple[str, dict[str, Any]]]:
    """The runs whose attention is drawn, as in the paper's Figure 9."""
    for name, epsilons in {"Transformer": (None, 8.0), "DPFormer, logits": (8.0,)}.items():
        for epsilon in epsilons:
            model, rate = lab.tuned(name)
            said = "without privacy" if epsilon is None else f"ε = {epsilon:g}"
            yield f"{name}, {said}", lab.attention(job(model, rate, epsilon, 1), 0)


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
    made: dict[tuple[int, float | None], list[tuple[str, float | None, dict[str, Any]]]] = {}
    try:
        for name, epsilon, seed, job_ in wanted(lab, asked.seeds):
            if time.monotonic() > until:
                break
            found = lab.run(job_, seed)
            made.setdefault((seed, epsilon), []).append((name, epsilon, found))
            best = {name: values[-1][1] for name, values in found["metrics"].items() if "@" in name}
            print(name, epsilon, seed, round(found["seconds"]), best, flush=True)
    except LookupError as missing:
        print(missing)
    # Of a seed and an ε all models, or none.
    whole = [
        each for (_, epsilon), group in made.items() if epsilon is None or len(group) == len(MODELS) for each in group
    ]
    tuned = {name: lab.tuned(name) for name in MODELS}
    print(write(whole, dict(maps(lab)), popularity(data), tuned))


if __name__ == "__main__":
    main()
