"""Linear scaling and random search as the service does them: its own draws, division of the budget, and fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from app.contracts.hpo import Hpo, LinearScaling, PrivateCount, Random, Space
from app.hpo.space import Bounds
from app.hpo.strategies import Decision, Run, Study, decide, runs_of, slots
from app.privacy.gdp import mu_from_epsilon
from app.privacy.study import price_runs
from benchmarks.reproduce.linear_scaling_runs import DELTA, SETTINGS, data, trial

SCORE_MU = 0.01


@dataclass(frozen=True)
class Search:
    """A study that has ended.

    Attributes:
        epsilon: of the final run alone.
        decision: None where nothing was fitted.
        final, result: the run whose model is handed out, and how it did.
    """

    epsilon: float
    decision: Decision | None
    final: Run
    result: dict[str, Any]


def linear_scaling(name: str, total: float, seed: int, **options: Any) -> Search:
    """The default strategy with private scores of the training records, charged.

    Args:
        total: ε of all of it.
        options: of LinearScaling, other than the default ones.
    """
    score = PrivateCount(noise_mu=SCORE_MU)
    hpo = LinearScaling.model_validate({"space": space(name), "score": score, **options})
    priced = price_runs(_request(name, hpo, total))
    study = _study(name, hpo, seed, priced[-1]["mu"])
    pilots, scores = runs_of(study, {}), {}
    for run in pilots:
        scores[run.number] = _noisy_score(name, _run(name, run, priced[run.number]["mu"], seed), seed, run.number)
    final, decision = runs_of(study, scores)[-1], decide(study, pilots, scores)
    result = _run(name, final, priced[-1]["mu"], seed)
    return Search(priced[-1]["epsilon"], decision, final, result)


def random(name: str, total: float, seed: int) -> Search:
    """One draw, the whole budget."""
    hpo = Random(space=space(name))
    priced = price_runs(_request(name, hpo, total))
    [run] = runs_of(_study(name, hpo, seed, 0.0), {})
    return Search(priced[0]["epsilon"], None, run, _run(name, run, priced[0]["mu"], seed))


def space(name: str) -> Space:
    return Space(learning_rate=SETTINGS[name].learning_rate, steps=SETTINGS[name].steps)


def _study(name: str, hpo: Hpo, seed: int, final_mu: float) -> Study:
    levels = tuple(mu_from_epsilon(level, DELTA) for level in hpo.levels) if isinstance(hpo, LinearScaling) else ()
    return Study(hpo, _bounds(hpo), f"{name}/{seed}", levels, final_mu)


def _bounds(hpo: Hpo) -> Bounds:
    if hpo.space.steps is None:
        raise ValueError("the experiment's spaces have steps")
    return Bounds.of(hpo.space, hpo.space.steps[1])


def _request(name: str, hpo: Hpo, total: float) -> dict[str, Any]:
    """What the service asks of its pricing."""
    records = len(data(name).train)
    release = {"what": "accuracy", "account": "train", "noise_mu": SCORE_MU, "records": records}
    return {
        "runs": [
            {"role": slot.role, "level": slot.level, "releases": [release] if slot.level is not None else []}
            for slot in slots(hpo, _bounds(hpo))
        ],
        "levels": list(hpo.levels) if isinstance(hpo, LinearScaling) else [],
        "total_epsilon": total,
        "target_delta": DELTA,
        "unit": "example",
        "filter": {"kind": "gdp", "order": None},
        "steps": list(_bounds(hpo).steps),
        "oracle": False,
        "training": {
            "sampling": "full_batch",
            "sample_rate": 1.0,
            "steps": _bounds(hpo).steps[1],
            "max_grad_norm": 1.0,
            "clipping": "flat",
            "expected_batch_size": records,
        },
    }


def _run(name: str, run: Run, mu: float, seed: int) -> dict[str, Any]:
    return trial(name, run.point.learning_rate, run.point.steps, mu, 1000 * seed + run.number)


def _noisy_score(name: str, result: dict[str, Any], seed: int, number: int) -> float:
    """Correct predictions on the training records, as the service releases them: a noisy count over the records."""
    records = len(data(name).train)
    noise = np.random.default_rng([seed, number]).normal(0.0, 1.0 / SCORE_MU)
    return min(max(result["train"] * records + noise, 0.0), records) / records
