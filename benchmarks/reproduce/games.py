"""DPFormer's comparison on the paper's second data set, Amazon video games: runs, kept one by one.

    make reproduce-dpformer DATA=FILE    # python -m benchmarks.reproduce.games FILE [--minutes M] [--report]

The rate of each model is searched by itself: on a validation split (each user's last item but one is held out, and the
last one left out), by one seed of its own. Five other seeds are then scored on each user's last item. Search and scores
are not paid for: the data are public. Runs that are in the file of results are not made again.

Source: "DPFormer: learning differentially private transformer on long-tailed data", section 5 and appendix A.9.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from benchmarks.reproduce.games_data import games, popularity
from benchmarks.reproduce.games_report import TIED, Found, Scores, write
from benchmarks.reproduce.games_text import VERDICT
from benchmarks.reproduce.runs import REPORTS, Data, Kept, uphill
from scrimp_server import inline
from worker.data.sequence_records import SequenceRecords
from worker.models.base import Parameters
from worker.training.loop import Training
from worker.training.position import Position

RESULTS = REPORTS / "dpformer_games.json.gz"
DELTA, STEPS, K = 1e-4, 30, 10
SIZE: dict[str, Any] = {"dim": 32, "max_length": 8, "dropout": 0.2}
SEARCHED, JUDGED = 0, (1, 2, 3, 4, 5)
RATES, FIRST_RATE = (0.00375, 0.0075, 0.015, 0.03, 0.06, 0.12, 0.24, 0.48), 3


@dataclass(frozen=True)
class Model:
    """A model of the comparison.

    Attributes:
        kind: of the JobSpec.
        tied: one matrix embeds items and scores them.
        mode: of Re-Attention. `paper` has the paper's units (scale 1), `logits` ours: what one step adds.
        private: False: the same steps without clipping and noise.
        rate_of: the model whose rate it takes; None: its own is searched.
    """

    kind: str = "transformer_rec"
    tied: bool = True
    mode: str = "off"
    private: bool = True
    rate_of: str | None = None

    def job(self, epsilon: float, rate: float) -> dict[str, Any]:
        """A JobSpec, without data set and seed: all users in each step, private or not."""
        model: dict[str, Any] = SIZE | {"kind": self.kind, "tied": self.tied}
        if self.mode != "off":
            model["re_attention"] = {"mode": self.mode, "scale": 1.0 if self.mode == "paper" else rate}
        return {
            "model": model,
            "optimizer": {
                "kind": "dp_adam",
                "learning_rate": rate,
                "weight_decay": 1e-5,
                "schedule": {"kind": "warmup_linear", "warmup": 0.2},
            },
            "privacy": {"target_epsilon": epsilon, "target_delta": DELTA} if self.private else None,
            "clipping": {"kind": "automatic", "max_grad_norm": 1.0} if self.private else None,
            "sampling": {"kind": "full_batch"},
            "length": {"steps": STEPS},
            "evaluation": {"points": 1, "ranking": {"k": K}},
            "runtime": {"dtype": "float32"},
        }


MODELS = {
    "GRU": Model(kind="gru_rec"),
    "Transformer, untied": Model(tied=False),
    "Transformer": Model(),
    "DPFormer, logits": Model(mode="logits", rate_of="Transformer"),
    "DPFormer, paper": Model(mode="paper"),
}
PLAIN = "Transformer, not private"


@dataclass(frozen=True)
class Setting:
    """So many of the most popular items, ε, and the models that are compared there, by name.

    Attributes:
        one_rate: all models take the tied transformer's rate, searched at this ε: half the runs. At ε = 8, where each
            was searched, Re-Attention's is the same.
    """

    items: int
    epsilon: float
    models: tuple[str, ...] = tuple(MODELS)
    one_rate: bool = False


RE_ATTENTION = ("Transformer", "DPFormer, paper")  # what more noise and rarer items are to decide
SETTINGS = (
    Setting(1_000, 8.0),
    Setting(1_000, 5.0, RE_ATTENTION, one_rate=True),
    Setting(4_000, 8.0, RE_ATTENTION),
    Setting(4_000, 5.0, RE_ATTENTION, one_rate=True),
    Setting(1_000, 10.0, RE_ATTENTION, one_rate=True),
)
RARE = f"ndcg@{K}, less popular half"


def rare_too(items: int) -> Callable[..., Training]:
    """Makes a training loop that also scores the records whose held-out item is in the less popular half of `items`."""

    class Loop(Training):
        def _evaluate(self, position: Position, parameters: Parameters) -> None:
            super()._evaluate(position, parameters)
            holdout = self._batches.holdout
            if not isinstance(holdout, SequenceRecords):
                raise TypeError("games are sequences")
            rare = torch.nonzero(holdout.padded(1)[:, 0] > items // 2)[:, 0].numpy()
            score, _ = self._plan.scores.exact(self._plan.model, parameters, holdout.select(rare), {})
            self._link.metrics[RARE] = [(position.step, score.value)]  # type: ignore[attr-defined]  # inline's Book

    return Loop


class Lab:
    """Asks for runs, which are made or remembered.

    Args:
        file: of the data; None: nothing new is run.
    """

    def __init__(self, file: Path | None) -> None:
        self._file, self._kept = file, Kept(RESULTS)
        self._data = cache(self._read)

    def ndcg_and_hit(self, setting: Setting, name: str, rate: float, seed: int) -> Scores:
        """A run's scores, in per cent: of the validation split for the seed of the search, else of the last items."""
        metrics = self._metrics(setting, name, rate, seed)
        return 100.0 * float(metrics[f"ndcg@{K}"][-1][1]), 100.0 * float(metrics[f"hit@{K}"][-1][1])

    def rare_ndcg(self, setting: Setting, name: str, rate: float, seed: int) -> float | None:
        """NDCG, in per cent, of the users whose last item is in the less popular half; None: an older run."""
        metrics = self._metrics(setting, name, rate, seed)
        return 100.0 * float(metrics[RARE][-1][1]) if RARE in metrics else None

    def _metrics(self, setting: Setting, name: str, rate: float, seed: int) -> dict[str, Any]:
        model = Model(private=False) if name == PLAIN else MODELS[name]
        question = {"items": setting.items, "model": name, "eta": rate, "seed": seed}
        if model.private:
            question["epsilon"] = setting.epsilon

        def answer() -> dict[str, Any]:
            data = self._data(setting.items, seed == SEARCHED)
            loop = rare_too(setting.items)
            found = inline.run(data, model.job(setting.epsilon, rate), seed=seed, training=loop)
            print(question, round(found.seconds), round(100 * found.last(f"ndcg@{K}"), 3), flush=True)
            return found.rounded()

        metrics: dict[str, Any] = self._kept.get(question, answer)["metrics"]
        return metrics

    def popular(self, items: int, last: int | None = None) -> Scores:
        """NDCG and HIT of ranking by popularity, in per cent; see games_data.popularity."""

        def answer() -> list[float]:
            return [100.0 * each for each in popularity(self._data(items, False), K, last)]

        ndcg, hit = self._kept.get({"items": items, "model": "popular", "last": last}, answer)
        return ndcg, hit

    def _read(self, items: int, validation: bool) -> Data:
        if self._file is None:
            raise LookupError("this run is not among the results")
        return games(self._file, items, validation=validation)


def searched(lab: Lab, setting: Setting, name: str) -> float:
    """The rate with the highest NDCG on the validation split: uphill from RATES[FIRST_RATE], to the first fall."""
    other = TIED if setting.one_rate and name != TIED else MODELS[name].rate_of if name in MODELS else None
    if other is not None:
        return searched(lab, setting, other)
    return uphill(lambda rate: lab.ndcg_and_hit(setting, name, rate, SEARCHED)[0], RATES, FIRST_RATE)


def made(lab: Lab, setting: Setting, until: float) -> Iterator[Found]:
    """What is found in a setting after each round, one seed of every model; nothing is begun after `until`."""
    if time.monotonic() > until:
        return
    rates = {name: searched(lab, setting, name) for name in setting.models}
    edges = frozenset(name for name, rate in rates.items() if rate in (RATES[0], RATES[-1]))
    popular = {
        f"popular{what}": lab.popular(setting.items, last) for what, last in (("", None), (", by last items", 1))
    }
    rounds: dict[int, dict[str, Scores]] = {}
    rare: dict[int, dict[str, float | None]] = {}
    for seed in JUDGED:
        if time.monotonic() > until:
            return
        rounds[seed] = {name: lab.ndcg_and_hit(setting, name, rates[name], seed) for name in setting.models}
        rare[seed] = {name: lab.rare_ndcg(setting, name, rates[name], seed) for name in setting.models}
        yield Found(setting.items, setting.epsilon, rates, edges, dict(rounds), popular, dict(rare))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, nargs="?", help="`user item` a line; without it nothing new is run")
    parser.add_argument("--minutes", type=float, default=1e9, help="no round is begun after so many")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    lab, until = Lab(asked.file), time.monotonic() + 60 * asked.minutes
    found: dict[Setting, Found] = {}
    plain: Scores | None = None
    for setting in SETTINGS:
        with suppress(LookupError):  # without the file: what is kept
            for each in made(lab, setting, until):
                found[setting] = each
    if time.monotonic() < until:
        with suppress(LookupError):
            plain = lab.ndcg_and_hit(SETTINGS[0], PLAIN, searched(lab, SETTINGS[0], PLAIN), JUDGED[0])
    print(write(list(found.values()), plain, VERDICT))


if __name__ == "__main__":
    main()
