"""Linear scaling and random search as the service does them: its own draws, division of the budget, and fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from app.hpo.space import Bounds
from app.hpo.strategies import Decision, Run, Study, decide, runs_of, slots
from benchmarks.reproduce.linear_scaling_runs import DELTA, SETTINGS, data, trial
from core.contracts.hpo import LinearScaling, PrivateCount, Random, Space, Strategy
from core.privacy.division import price_runs
from core.privacy.gdp import mu_from_epsilon
from core.privacy.price_requests import FilterChoice, StudyRequest, StudyRun, TrainingPlan
from core.privacy.prices import PricedRun
from core.privacy.releases import NoisyCount

SCORE_MU, LEVELS = 0.01, [0.1, 0.2]


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
    hpo = LinearScaling.model_validate({"space": space(name), "levels": LEVELS, "score": score, **options})
    priced = price_runs(_request(name, hpo, total))
    study = _study(name, hpo, seed, mu_of(priced[-1]))
    pilots, scores = runs_of(study, {}), {}
    for run in pilots:
        scores[run.number] = _noisy_score(name, _run(name, run, mu_of(priced[run.number]), seed), seed, run.number)
    final, decision = runs_of(study, scores)[-1], decide(study, pilots, scores)
    result = _run(name, final, mu_of(priced[-1]), seed)
    return Search(epsilon_of(priced[-1]), decision, final, result)


def random(name: str, total: float, seed: int) -> Search:
    """One draw, the whole budget."""
    hpo = Random(space=space(name))
    priced = price_runs(_request(name, hpo, total))
    [run] = runs_of(_study(name, hpo, seed, 0.0), {})
    return Search(epsilon_of(priced[0]), None, run, _run(name, run, mu_of(priced[0]), seed))


def space(name: str) -> Space:
    return Space(learning_rate=SETTINGS[name].learning_rate, steps=SETTINGS[name].steps)


def _study(name: str, hpo: Strategy, seed: int, final_mu: float) -> Study:
    levels = tuple(mu_from_epsilon(level, DELTA) for level in hpo.epsilons) if isinstance(hpo, LinearScaling) else ()
    return Study(hpo, _bounds(hpo), f"{name}/{seed}", levels, final_mu)


def _bounds(hpo: Strategy) -> Bounds:
    if hpo.space.steps is None:
        raise ValueError("the experiment's spaces have steps")
    return Bounds.of(hpo.space, hpo.space.steps[1])


def _request(name: str, hpo: Strategy, total: float) -> StudyRequest:
    """What the service asks of its pricing."""
    records, bounds = len(data(name).train), _bounds(hpo)
    release = NoisyCount(account="train", noise_mu=SCORE_MU, records=records)
    return StudyRequest(
        runs=tuple(
            StudyRun(role=slot.role, level=slot.level, releases=(release,) if slot.level is not None else ())
            for slot in slots(hpo, bounds)
        ),
        levels=tuple(hpo.epsilons) if isinstance(hpo, LinearScaling) else (),
        total_epsilon=total,
        target_delta=DELTA,
        unit="example",
        filter=FilterChoice(kind="gdp"),
        steps=bounds.steps,
        oracle=False,
        training=TrainingPlan(
            sampling="full_batch",
            sample_rate=1.0,
            steps=bounds.steps[1],
            max_grad_norm=1.0,
            clipping="flat",
            expected_batch_size=records,
        ),
    )


def mu_of(run: PricedRun) -> float:
    """Of a run with privacy."""
    if run.mu is None:
        raise ValueError("the experiment's runs are private")
    return run.mu


def epsilon_of(run: PricedRun) -> float:
    """Of a run with privacy."""
    if run.epsilon is None:
        raise ValueError("the experiment's runs are private")
    return run.epsilon


def _run(name: str, run: Run, mu: float, seed: int) -> dict[str, Any]:
    return trial(name, run.point.learning_rate, run.point.steps, mu, 1000 * seed + run.number)


def _noisy_score(name: str, result: dict[str, Any], seed: int, number: int) -> float:
    """Correct predictions on the training records, as the service releases them: a noisy count over the records."""
    records = len(data(name).train)
    noise = np.random.default_rng([seed, number]).normal(0.0, 1.0 / SCORE_MU)
    return min(max(result["train"] * records + noise, 0.0), records) / records
