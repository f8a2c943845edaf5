"""Prices a study's final trial under another total, other levels or more trials, before the study starts.

Answers are functions of the plan alone.
"""

from __future__ import annotations

from core.errors import InvalidRequest
from core.privacy.division import price_runs
from core.privacy.price_requests import FinalRunRequest
from core.privacy.prices import FinalRun


def final_run(request: FinalRunRequest) -> FinalRun:
    """Computes the final trial's privacy in a variant of a study, which must have a pilot and a final trial."""
    study, levels = request.study, request.levels
    pilot = next(run for run in study.runs if run.level is not None)
    places = [place for place in range(len(levels)) for _ in range(request.runs_per_level)]
    pilots = [pilot.model_copy(update={"level": place}) for place in places]
    changes = {"runs": (*pilots, study.runs[-1]), "levels": levels, "total_epsilon": request.total_epsilon}
    try:
        *_, final = price_runs(study.model_copy(update=changes))
    except InvalidRequest as refusal:
        fault = refusal.members["errors"][0]
        smallest = fault.get("smallest_total_epsilon")
        return FinalRun(epsilon=None, mu=None, smallest_total_epsilon=smallest, reason=fault["detail"])
    return FinalRun(epsilon=final.epsilon, mu=final.mu, smallest_total_epsilon=None, reason=None)
