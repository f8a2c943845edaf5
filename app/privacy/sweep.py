"""What another total, other levels or more runs would leave a study's final run: the questions before a search.

Answers are functions of the plan alone.
"""

from __future__ import annotations

from typing import Any

from app.errors import InvalidRequest
from app.privacy.study import price_runs

Json = dict[str, Any]


def final_run(request: Json) -> Json:
    """The privacy of the final run of a study like another one.

    Args:
        request: `study`, as `price_runs` is asked of it, with a pilot and a final run; and in the place of its own
            `total_epsilon`, `levels` (ε of each) and `runs_per_level`.

    Returns:
        `epsilon` of the final run alone, and its `mu`; both None where there is no such study: then `reason` says why,
        and `smallest_total_epsilon` what total would do, where one would.
    """
    study, levels = request["study"], request["levels"]
    pilot = next(run for run in study["runs"] if run["level"] is not None)
    places = [place for place in range(len(levels)) for _ in range(request["runs_per_level"])]
    runs = [*({**pilot, "level": place} for place in places), study["runs"][-1]]
    try:
        *_, final = price_runs({**study, "runs": runs, "levels": levels, "total_epsilon": request["total_epsilon"]})
    except InvalidRequest as refusal:
        fault = refusal.members["errors"][0]
        smallest = fault.get("smallest_total_epsilon")
        return {"epsilon": None, "mu": None, "smallest_total_epsilon": smallest, "reason": fault["detail"]}
    return {"epsilon": final["epsilon"], "mu": final["mu"], "smallest_total_epsilon": None, "reason": None}
