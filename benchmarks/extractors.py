"""Extractors against each other, and against none, as features of a linear probe: two public sets, cross-validated.

    python -m benchmarks.extractors MODELS_ROOT [NAME ...]

MODELS_ROOT holds extractors (scripts/add_extractor.py); NAMEs are those that are run, by default all. Rows are kept in
benchmarks/reports/extractors.json and not made again for the same number of records; then extractors.md is written.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.reproduce.runs import ROOT, machine
from core.contracts.dataset_spec import DatasetSpec
from core.parts.stored_records import StoredPart, Texts
from scrimp_server.commands.bench import table
from scrimp_server.extractor_bench import Public, bench, fitting

sys.path.append(str(ROOT / "scripts"))
from fetch_data import fetch_images, fetch_reviews

RESULTS = ROOT / "benchmarks" / "reports" / "extractors.json"
EPSILONS, FOLDS = (1.0, 8.0), 5


def reviews(count: int) -> Public:
    """IMDB, so many reviews at random."""
    with fetch_reviews().open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    chosen = [rows[at] for at in np.random.default_rng(0).permutation(len(rows))[:count]]
    part = StoredPart(Texts.of([row["text"] for row in chosen]), np.array([int(row["label"]) for row in chosen]))
    return _public(part, {"kind": "text", "column": "t"}, "jsonl", [0, 1], "reviews")


def clothes(count: int) -> Public:
    """Fashion-MNIST, so many images at random."""
    with np.load(fetch_images()) as file:
        x, y = file["x"].reshape(len(file["y"]), -1).astype(np.float32), file["y"].astype(np.int64)
    chosen = np.random.default_rng(0).permutation(len(y))[:count]
    features = {"kind": "tensor", "array": "x", "image": {"height": 28, "width": 28, "channels": 1}}
    return _public(StoredPart(x[chosen], y[chosen]), features, "images", list(range(10)), "clothes")


def _public(part: StoredPart, features: dict[str, object], form: str, classes: list[int], name: str) -> Public:
    document = {"name": name, "format": form, "features": features, "privacy": {"sensitivity": "public"}}
    document["task"] = {"kind": "classification", "label": "y", "classes": classes}
    return Public(DatasetSpec.model_validate(document), part, f"{name}/{len(part.y)}", Path(), len(classes))


TEXT = """# Extractors, and none, as features of a linear probe

`python -m benchmarks.extractors MODELS_ROOT`, the code of `scrimp bench-extractors`. Public sets, so many records at
random, {folds} folds: mean accuracy ± standard deviation over folds, in per cent. The probe is linear
(50 full-batch steps, the rate from public numbers), δ = 1e-5; without privacy it takes 300 steps, unsearched,
and may overfit: it is no upper bound. ms: processor time of a record's features, one thread of a busy machine. Names
say pixels a side, pooling, and tokens read; `none` is the pixels themselves.
{tables}
{reading}
Machine: {machine}
"""
# What the kept rows say: renew it with them.
READING = """## What this decides

The mean of five folds has a standard error of about half the deviation that is shown.

* **Images: any of them is ahead of the pixels**, by 2 to 5 points, and more pixels a side are worth more than a larger
  network.
* **Reviews, 1,000 of them, cut at 64 tokens.** At ε = 8 words are ahead of MiniLM by its mean, 75.9 against 71.6 %: the
  words of a whole review say more than its first 64 tokens. At ε = 1 MiniLM has 66.4 and words 63.0 %, which the errors
  do not tell apart. An encoder's first token's state is behind both: pooling must be the one that it was trained with.
* **Undecided:** whole reviews (256 tokens), more records, and SmolLM2's hidden states.
"""


def write(found: dict[str, Any]) -> None:
    """The report of the kept rows, the best at the largest ε first."""
    tables = ""
    for name, kept in found.items():
        if not isinstance(kept, dict):
            continue
        rows = sorted(kept["rows"], key=lambda row: -row["scores"][-1]["mean"])
        heads = " | ".join(("not private", *(f"ε = {each:g}" for each in EPSILONS)))
        tables += f"\n## {name}, {kept['records']:,} records\n\n"
        tables += f"| extractor | features | ms | {heads} |\n{'|---' * (4 + len(EPSILONS))}|\n"
        for row in rows:
            cells = " | ".join(f"{100 * each['mean']:.1f} ± {100 * each['deviation']:.1f}" for each in row["scores"])
            tables += f"| {row['extractor']} | {row['features']:,} | {row['milliseconds']:.0f} | {cells} |\n"
    text = TEXT.format(folds=found["folds"], tables=tables, reading=READING, machine=found["machine"])
    RESULTS.with_suffix(".md").write_text(text)


def completed(kept: dict[str, Any], public: Public, models_root: Path, names: Sequence[str]) -> None:
    """Adds the rows that are not kept yet, writing each; those of another number of records go."""
    records, name = len(public.part.y), public.spec.name
    if kept.get(name, {}).get("records") != records:
        kept[name] = {"records": records, "rows": []}
    rows = kept[name]["rows"]
    fit = [each for each in fitting(public, models_root) if not names or each in names]
    missing = [each for each in fit if each not in {row["extractor"] for row in rows}]
    if not missing:
        return
    for row in bench(public, models_root, missing, EPSILONS, FOLDS, None):
        rows.append(dataclasses.asdict(row))
        kept["machine"] = machine()
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
        print("\n".join(table([row])), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models_root", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--reviews", type=int, default=1000)
    parser.add_argument("--clothes", type=int, default=3000)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    kept["folds"] = FOLDS
    for public in (clothes(asked.clothes), reviews(asked.reviews)):
        completed(kept, public, asked.models_root, asked.names)
    write(kept)


if __name__ == "__main__":
    main()
